# SPDX-License-Identifier: MIT
"""`check` finds every kind of planted fault and calls it by its name, in the right place, once."""
import json
import os

from support import File, Run, bad, device, good, main, make


def plant(trace, result, tensor, row, change):
    """Changes one row of a result; returns what `check` says of it, as text and as JSON."""
    out = File(result)
    values = list(out.row(tensor, row)) if len(out.shape[tensor]) > 1 else [out.data[tensor][row]]
    change(values)
    if len(out.shape[tensor]) > 1:
        out.set_row(tensor, row, values)
    else:
        out.data[tensor][row] = values[0]
    path = result + ".planted"
    out.write(path)
    text, data = Run("check", trace, path, "--rows", "all"), Run("check", trace, path, "--rows", "all", "--json")
    assert text.status == 1 and data.status == 1 and text.err == "", (text.status, text.out, text.err)
    return text, json.loads(data.out)


def only(found, name, row, verdict, fault=None, rank=None):
    """Exactly one difference, with these words."""
    text, data = found
    assert len(data["differences"]) == 1, data["differences"]
    difference = data["differences"][0]
    assert (difference["list"], difference["row"], difference["verdict"]) == (name, row, verdict), difference
    assert difference["fault"] == fault, difference
    assert rank is None or difference["rank"] == rank, difference
    word = {"wrong": "WRONG", "tie order only": "tie order only", "rounding only": "rounding only"}[verdict]
    assert text.last().startswith("check: " + word), text.out
    where = f"{name}, row {row}, rank {difference['rank']}: expected" if fault != "wrong count tensor" else f"{name}, row {row}: expected count"
    assert where in text.out, text.out
    return difference


def test_good(folder):
    for options in ([], ["--requests", "3", "--rows-at", "spread"], ["--block-size", "16"], ["--layers", "0"]):
        trace, result = make(folder, *options)
        layers = 1 if options == ["--layers", "0"] else 3
        assert good("check", trace, result, "--rows", "all").last() == f"check: exact, 12 rows x {layers} layers"


def test_swapped(folder):
    trace, result = make(folder)

    def swap(row):
        row[10], row[11] = row[11], row[10]

    only(plant(trace, result, "selected.1", 7, swap), "layer 1", 7, "wrong", "not ascending", 11)


def unselected(result, tensor, row, inside):
    """A position of the row's blocks (or outside them) that is not selected."""
    out = File(result)
    blocks, chosen = set(out.row("blocks", row)), set(out.row(tensor, row))
    return next(p for p in range(2900) if (p // 8 in blocks) == inside and p not in chosen)


def test_wrong_member(folder):
    trace, result = make(folder)
    for tensor, name in (("selected.0", "layer 0"), ("selected.2", "layer 2")):
        member = unselected(result, tensor, 4, True)

        def replace(row):
            row[20] = member
            row.sort()

        expected = list(File(result).row(tensor, 4))
        difference = only(plant(trace, result, tensor, 4, replace), name, 4, "wrong")
        assert difference["expected"] == expected[difference["rank"]]
        assert difference["expected_score"] is not None and difference["found_score"] is not None


def test_outside_blocks(folder):
    trace, result = make(folder)
    member = unselected(result, "selected.1", 0, False)

    def replace(row):
        row[63] = member
        row.sort()

    only(plant(trace, result, "selected.1", 0, replace), "layer 1", 0, "wrong", "outside the published blocks")


def test_duplicate(folder):
    trace, result = make(folder)

    def near(row):
        row[31] = row[30]

    def far(row):
        row[31] = row[2]

    only(plant(trace, result, "selected.1", 11, near), "layer 1", 11, "wrong", "duplicate", 31)
    only(plant(trace, result, "selected.1", 11, far), "layer 1", 11, "wrong", "duplicate", 31)


def test_minus_one(folder):
    trace, result = make(folder)

    def hole(row):
        row[5] = -1

    only(plant(trace, result, "selected.2", 1, hole), "layer 2", 1, "wrong", "-1 inside the valid prefix", 5)


def test_out_of_range(folder):
    trace, result = make(folder)
    for value in (3000, 2**31 - 1, -2, -2**31):

        def change(row):
            row[63] = value

        only(plant(trace, result, "selected.2", 1, change), "layer 2", 1, "wrong", "out of range", 63)


def test_count(folder):
    trace, result = make(folder)

    def short(row):
        row[63] = -1

    def more(value):
        value[0] += 1

    only(plant(trace, result, "selected.0", 2, short), "layer 0", 2, "wrong", "wrong count", 63)
    only(plant(trace, result, "count.1", 2, more), "layer 1", 2, "wrong", "wrong count tensor")


def test_tie_order(folder):
    """Equal keys have equal scores: one equal key for another is a matter of tie order alone."""
    trace, result = make(folder, "--hazard", "ties", "--topk", "500")  # more than there are other keys
    source, out = File(trace), File(result)
    key = [bytes(source.row("k.0.codes", j)) + bytes(source.row("k.0.scales", j)) for j in range(3000)]
    row, blocks = list(out.row("selected.1", 5)), set(out.row("blocks", 5))
    n = source.data["position"][5] + 1
    given, taken = next((j, p) for j in row for p in range(n) if p not in row and p // 8 in blocks and key[p] == key[j])

    def change(values):
        values[values.index(given)] = taken
        values.sort()

    difference = only(plant(trace, result, "selected.1", 5, change), "layer 1", 5, "tie order only")
    assert difference["expected_score"] == difference["found_score"]


def test_rounding(folder):
    """A bf16 selection held against exact: rounding, named, and nothing worse."""
    trace, result = make(folder, "--positions", "20000", "--topk", "512", "--blocks", "500")
    exact = File(result)
    good("run", trace, "-o", result, "--numerics", "bf16")
    rounded = File(result)
    assert any(exact.data[name] != rounded.data[name] for name in ("selected.0", "selected.1", "selected.2"))
    run = Run("check", trace, result, "--rows", "all")
    assert run.status == 1 and run.last().startswith("check: rounding only (bf16)"), run.out
    data = json.loads(Run("check", trace, result, "--rows", "all", "--json").out)
    assert {d["verdict"] for d in data["differences"]} <= {"rounding only", "tie order only"}
    assert all("bf16" in d["classes"] for d in data["differences"] if d["verdict"] == "rounding only")
    overlap = {(entry["list"], entry["class"]): entry["overlap"] for entry in data["classes"]}
    for name in ("layer 0", "blocks"):
        assert overlap[name, "exact"] == 1 > overlap[name, "bf16"] == overlap[name, "result"] > 0.9, overlap
    assert good("check", trace, result, "--rows", "all", "--numerics", "bf16").last() == "check: bf16, 12 rows x 3 layers"


def test_blocks_wrong(folder):
    """One block exchanged: the blocks are wrong, the consumers, which are right, stay right."""
    trace, result = make(folder)
    blocks = set(File(result).row("blocks", 9))
    other = next(b for b in range(300) if b not in blocks)

    def change(row):
        row[50] = other
        row.sort()

    only(plant(trace, result, "blocks", 9, change), "blocks", 9, "wrong")


def test_newest_block(folder):
    trace, result = make(folder)
    blocks = set(File(result).row("blocks", 0))
    other = next(b for b in range(300) if b not in blocks)

    def change(row):
        row[99] = other
        row.sort()

    only(plant(trace, result, "blocks", 0, change), "blocks", 0, "wrong", "the newest block is missing")


def test_one_fault_once(folder):
    """A source that scored with other queries: its consumers did right by its blocks and are not blamed."""
    trace, result = make(folder)
    other = os.path.join(folder, "other.st")
    good("gen", other, "--positions", "3000", "--rows", "12", "--topk", "64", "--blocks", "100", "--heads", "8", "--dim", "64",
         "--layers", "2", "--seed", "2")
    mixed, donor = File(trace), File(other)
    for name in ("q.0.codes", "q.0.scales", "w.0"):
        mixed.data[name] = donor.data[name]
    mixed.write(other)
    good("run", other, "-o", result)
    run = Run("check", trace, result, "--rows", "all")
    assert run.status == 1 and run.last().startswith("check: WRONG"), run.out
    data = json.loads(Run("check", trace, result, "--rows", "all", "--json").out)
    assert {d["list"] for d in data["differences"] if d["verdict"] != "good"} == {"layer 0", "blocks"}, data["differences"]
    assert "judged by the result's own blocks" in run.out


def test_inside_trace(folder):
    trace, result = make(folder)
    whole, out = File(trace), File(result)
    for name in ("selected.0", "selected.1", "blocks"):
        whole.add(name, "I32", out.shape[name], out.data[name])
    whole.write(trace)
    assert good("check", trace).last() == "check: exact, 12 rows x 2 layers"
    whole.data["selected.1"][100] ^= 1
    whole.write(trace)
    assert Run("check", trace, "--rows", "all").status == 1


def test_sampling(folder):
    trace, result = make(folder, "--rows", "100")
    for wanted, rows in ((None, 16), ("3", 3), ("1", 2), ("1000", 100), ("all", 100)):
        run = good("check", trace, result, *(["--rows", wanted] if wanted else []))
        assert run.last() == f"check: exact, {rows} rows x 3 layers", run.out
        assert f"{rows} of 100 rows recomputed" in run.out
    for row in (0, 99):  # the first and the last are always among them

        def hole(values):
            values[0] = -1

        out = File(result)
        values = list(out.row("selected.0", row))
        hole(values)
        out.set_row("selected.0", row, values)
        out.write(result + ".planted")
        assert Run("check", trace, result + ".planted", "--rows", "2").status == 1


def test_backend(folder):
    """Selections made on the spot are judged as a file's are; a RESULT beside them is refused."""
    for options in ([], ["--requests", "3"], ["--layers", "0"], ["--hazard", "ties"]):
        trace, result = make(folder, *options)
        made, given = Run("check", trace, "--backend", "cpu", "--rows", "all"), Run("check", trace, result, "--rows", "all")
        assert made.status == given.status == 0 and made.err == "", (made.out, made.err)
        lines = [line for line in made.out.split("\n") if not line.startswith("selected by tier ")]
        assert lines == given.out.split("\n"), (made.out, given.out)
    report = json.loads(good("check", trace, "--backend=cpu", "--json", "--threads", "1").out)
    assert report["backend"] == "cpu" and report["result"] is None and report["selected_by"].endswith(", 1 threads")
    given = json.loads(good("check", trace, result, "--json").out)
    assert given["backend"] is None and given["result"] == result and given["verdict"] == report["verdict"] == "exact"
    assert good("check", trace, "--backend", "cpu", "--numerics", "bf16").last().startswith("check: bf16, ")
    for backend in ("cpu", "cuda"):
        err = bad("check", trace, result, "--backend", backend)
        assert f"--backend selects what is judged: required no RESULT, found '{result}'" in err, err
    assert "required exact or bf16 with --backend, found dg_bf16" in bad("check", trace, "--backend", "cpu", "--numerics", "dg_bf16")
    assert "required cpu or cuda, found 'gpu'" in bad("check", trace, "--backend", "gpu")


def test_backend_cuda(folder):
    """On a GPU every layer is exact; without one the missing part is named."""
    trace, _ = make(folder)
    if device(json.loads(good("info", "--json").out)["cuda"]):
        run = good("check", trace, "--backend", "cuda", "--rows", "all")
        assert run.last() == "check: exact, 12 rows x 3 layers" and "selected by CUDA on " in run.out, run.out
    else:
        err = bad("check", trace, "--backend", "cuda")
        assert err.startswith("tamis: --backend cuda: ") and "required" in err and "found" in err, err


main(globals())
