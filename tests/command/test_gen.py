# SPDX-License-Identifier: MIT
"""`gen`: the same bytes for a seed, every hazard selected exactly, shapes, statistics, and bounded memory at full size."""
import json
import os
import resource

from support import SMALL, TAMIS, File, bad, good, main, make, skip

HAZARDS = "ties zeros nan spans heavy-tail negative-weights random-bits".split()


def test_deterministic(folder):
    a, b = os.path.join(folder, "a"), os.path.join(folder, "b")
    for hazard in [None, *HAZARDS]:
        options = [*SMALL, "--requests", "2", "--full", "1", *(["--hazard", hazard] if hazard else [])]
        good("gen", a, *options)
        good("gen", b, *options)
        first = open(a, "rb").read()
        assert first == open(b, "rb").read(), hazard
        good("gen", b, *options, "--seed", "2")
        assert first != open(b, "rb").read(), hazard


def select_exactly(folder, *options):
    trace, result = make(folder, *options)
    for numerics in ("exact", "bf16"):
        good("run", trace, "-o", result, "--numerics", numerics)
        last = good("check", trace, result, "--rows", "all", "--numerics", numerics).last()
        assert last == f"check: {numerics}, 12 rows x 3 layers", last
    return File(trace)


def test_hazards(folder):
    for hazard in HAZARDS:
        made = select_exactly(folder, "--hazard", hazard)
        scales, weights = made.data["k.0.scales"], made.data["w.1"]
        if hazard == "ties":
            keys = [bytes(made.row("k.0.codes", j)) for j in range(3000)]
            assert max(keys.count(key) for key in set(keys[:20])) > 1500
        elif hazard == "zeros":
            assert sum(all(code & 0x77 == 0 for code in made.row("k.0.codes", j)) for j in range(3000)) > 1000
        elif hazard == "nan":
            assert 255 in scales and 255 in made.data["q.1.scales"] and any(w != w for w in weights)
        elif hazard == "spans":
            spans = [max(made.row("k.0.scales", j)) - min(made.row("k.0.scales", j)) for j in range(3000)]
            assert max(spans) > 200 and min(scales) < 5
        elif hazard == "heavy-tail":
            assert max(scales) - min(scales) > 10
        elif hazard == "negative-weights":
            assert max(weights) <= 0
        else:
            assert len(set(scales)) == 256 and len(set(made.data["k.0.codes"])) == 256


def test_hazards_mixed(folder):
    select_exactly(folder, *[part for hazard in HAZARDS[:6] for part in ("--hazard", hazard)])
    select_exactly(folder, "--hazard", "ties", "--hazard", "spans", "--requests", "5", "--rows-at", "spread")


def test_shapes(folder):
    for options in (["--heads", "4", "--dim", "64"], ["--heads", "64", "--dim", "128"], ["--topk", "1"], ["--block-size", "16"],
                    ["--topk", "1000", "--blocks", "300"], ["--ratio", "2", "--requests", "3"], ["--blocks", "4096", "--topk", "4096"],
                    ["--positions", "1", "--rows", "1"], ["--layers", "0", "--full", "1"], ["--positions", "2999", "--requests", "12"]):
        trace, result = make(folder, *options)
        good("check", trace, result, "--rows", "all")


def test_step(folder):
    path = os.path.join(folder, "t")
    good("gen", path, *SMALL, "--requests", "3", "--ratio", "2")
    made = File(path)
    contexts, positions, requests = made.data["context"], made.data["position"], made.data["request"]
    assert sum(tokens // 2 for tokens in contexts) == 3000 == made.shape["k.0.codes"][0] and contexts[1] % 2 == 1
    assert list(requests) == sorted(requests)
    for request in range(3):
        rows = [p for p, r in zip(positions, requests) if r == request]
        assert rows == list(range(contexts[request] - len(rows), contexts[request]))
    good("gen", path, *SMALL, "--rows-at", "spread")
    rows = File(path).data["position"]
    assert list(rows) == [(i + 1) * 250 - 1 for i in range(12)]
    assert "--rows" in bad("gen", path, "--positions", "30", "--rows", "31")


def test_statistics(folder):
    """Without a hazard: exponent spans at most 3 and mostly 1 or 2, six weights in ten negative, neighbours alike."""
    trace, result = os.path.join(folder, "t"), os.path.join(folder, "r")
    good("gen", trace, "--positions", "32768", "--rows", "64", "--blocks", "512", "--layers", "1")
    good("run", trace, "-o", result)
    made, out = File(trace), File(result)
    for name, low in (("k.0.scales", 0.8), ("q.0.scales", 0.7)):
        scales = made.data[name]
        spans = [max(scales[i:i + 4]) - min(scales[i:i + 4]) for i in range(0, len(scales), 4)]
        assert max(spans) <= 3 and sum(s in (1, 2) for s in spans) > low * len(spans), name
    negative = sum(w < 0 for w in made.data["w.1"]) / len(made.data["w.1"])
    assert 0.4 < negative < 0.8, negative
    kept = [len(set(out.row("blocks", r)) & set(out.row("blocks", r + 1))) / 512 for r in range(63)]
    assert 0.5 < sum(kept) / 63 < 0.9, kept


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def test_large(folder):
    """1,048,576 positions: gen's memory does not grow with them, run's is the trace and 64 MiB."""
    if b"__asan_init" in open(TAMIS, "rb").read():
        skip("a sanitizer's own memory would be measured")
    trace, result = os.path.join(folder, "t"), os.path.join(folder, "r")
    good("gen", trace, "--positions", "1048576", "--rows", "8", "--layers", "1")
    assert peak_bytes() < 32 << 20, peak_bytes()
    size = os.path.getsize(trace)
    assert size > 1048576 * 68
    ran = json.loads(good("run", trace, "-o", result, "--json").out)
    assert peak_bytes() < size + (64 << 20), peak_bytes()
    assert ran["layers"][0]["positions_scored"] == 8 * 1048576 - 28
    assert good("check", trace, result, "--rows", "2").last() == "check: exact, 2 rows x 2 layers"


def test_large_rows(folder):
    """512 rows of 1,048,576 positions (2 GiB of scores, were they stored): run's memory is the trace and 64 MiB."""
    if b"__asan_init" in open(TAMIS, "rb").read():
        skip("a sanitizer's own memory would be measured")
    trace, result = os.path.join(folder, "t"), os.path.join(folder, "r")
    good("gen", trace, "--positions", "1048576", "--rows", "512", "--layers", "1", "--heads", "4", "--dim", "64")
    size = os.path.getsize(trace)
    ran = json.loads(good("run", trace, "-o", result, "--json").out)
    assert peak_bytes() <= size + (64 << 20), (peak_bytes(), size)
    assert [layer["role"] for layer in ran["layers"]] == ["source", "consumer"]
    assert ran["layers"][0]["positions_scored"] == 512 * 1048576 - 511 * 512 // 2


main(globals())
