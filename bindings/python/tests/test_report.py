# SPDX-License-Identifier: MIT
"""The report's numbers against plain numpy: planted traces whose figures are known beforehand, and
random ones (NaN, ties, several requests, one level, absent layers) measured again by full sorts."""

import base64
import json
import os
import re
import struct
import subprocess
import zlib

import numpy as np
import pytest

from tamis import mxfp4, reference, report, traces
from tamis.report import measure, page, timing, verdict

TOPK, BLOCKS, SIZE, HEADS, DIM = 16, 4, 8, 4, 64
MODEL = {
    "compress_ratios": [1, 1, 1],
    "kv_source_layer_ids": [0],
    "index_source_layer_ids": [0, 1, 2],
    "candidate_source_layer_id": 0,
    "candidate_topk_blocks": BLOCKS,
    "candidate_block_size": SIZE,
    "index_n_heads": HEADS,
    "index_head_dim": DIM,
    "index_topk": TOPK,
}
ONE_LEVEL = {k: v for k, v in MODEL.items() if not k.startswith("candidate")}


def numbers(html):
    """The page's own JSON."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1]
    return json.loads(text)


def reported(trace, result=None, **options):
    data = report.build(str(trace), None if result is None else str(result), timed=False, **options)
    html = page.render(data)
    return numbers(html), html


# ---- a planted trace --------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path):
    """Three rows at tokens 253, 254, 255 over 256 positions; layer 2 is absent.

    One head counts and reads one dim, so that a score is a key's value there. The source (dim 0)
    sees 6 in blocks 3, 5, 7 and .5 elsewhere. The consumer reads dim 1 in rows 0 and 1 (6 at eight
    positions of block 3 and eight of block 20, 1 elsewhere) and dim 2 in row 2 (6 at four of the
    positions that rows 0 and 1 choose and at twelve others of the pool, 1 elsewhere).
    """
    k = np.zeros((256, DIM), np.float32)
    k[:, 0] = 0.5
    for block in (3, 5, 7):
        k[block * 8 : block * 8 + 8, 0] = 6
    k[:, 1] = 1
    k[24:32, 1] = k[160:168, 1] = 6
    k[:, 2] = 1
    k[[24, 25, 26, 27], 2] = 6
    k[48:56, 2] = 0.5
    k[56:64, 2] = k[44:48, 2] = 6
    q = {0: np.zeros((3, HEADS, DIM), np.float32), 1: np.zeros((3, HEADS, DIM), np.float32)}
    q[0][:, 0, 0] = 1
    q[1][:2, 0, 1] = 1
    q[1][2, 0, 2] = 1
    w = np.zeros((3, HEADS), np.float32)
    w[:, 0] = 1
    tensors = {"position": np.array([253, 254, 255], np.int64), "k.0": k}
    for layer in (0, 1):
        tensors[f"q.{layer}"], tensors[f"w.{layer}"] = q[layer], w
    path = tmp_path / "planted.safetensors"
    traces.write(path, MODEL, tensors, "planted")
    return path


# Blocks 3, 5, 7 and the newest; the best of the source are 24..31 and 40..47 by the lower position.
EXPECTED = {
    "blocks": [[3, 5, 7, 31]] * 3,
    0: [[*range(24, 32), *range(40, 48)]] * 3,
    1: [[*range(24, 32), *range(40, 48)]] * 2 + [[24, 25, 26, 27, *range(44, 48), *range(56, 64)]],
}


def planted_result(tmp_path, change):
    """EXPECTED as a result file, after change(selected, blocks)."""
    selected = {layer: np.array(EXPECTED[layer], np.int32) for layer in (0, 1)}
    blocks = np.array(EXPECTED["blocks"], np.int32)
    counts = {layer: np.full(3, TOPK, np.int32) for layer in (0, 1)}
    change(selected, blocks, counts)
    path = tmp_path / "result.safetensors"
    traces.Result(selected, blocks, counts).save(path)
    return path


def test_planted_figures(planted):
    data, _ = reported(planted)
    source, consumer, absent = data["layers"]
    assert [x["role"] for x in data["layers"]] == ["source", "consumer", "consumer"]
    assert not absent["present"]
    # Rows 0 and 1: eight of their true sixteen lie in block 20, not published. Row 2: none does.
    assert consumer["recall_by_row"] == [0.5, 0.5, 1.0]
    assert consumer["recall"]["mean"] == pytest.approx(2 / 3)
    assert (consumer["recall"]["least"], consumer["recall"]["worst_row"]) == (0.5, 0)
    # One token on: all, then 24..27 and 44..47 of sixteen. Blocks: all.
    one, four, _ = consumer["overlap"]
    assert one["pairs"] == 2 and one["share"]["mean"] == pytest.approx((1 + 8 / 16) / 2)
    assert four["pairs"] == 0 and four["share"] is None
    assert data["blocks"]["overlap"][0]["share"]["least"] == 1
    # The source: 24 equal scores, sixteen in. The consumer: 8 sixes, then ones of its pool.
    assert source["ties"]["rows_crossed"] == 3
    assert source["ties"]["worst"] == {"row": 2, "inside": 16, "outside": 8}
    assert source["ties"]["equal"]["mean"] == 24
    pools = [30, 31, 32]  # three blocks and what is visible of the newest
    assert consumer["ties"]["equal"]["most"] == pools[1] - 8
    assert consumer["ties"]["worst"] == {"row": 1, "inside": 8, "outside": pools[1] - 16}
    assert data["blocks"]["ties"]["rows_crossed"] == 0
    assert data["blocks"]["ties"]["equal"]["mean"] == 3
    assert consumer["scored"] == sum(pools) and source["scored"] == 254 + 255 + 256
    assert source["scores"]["threshold"]["median"] == 6
    assert sum(source["scores"]["all"]) == source["visible"]
    assert sum(consumer["scores"]["pool"]) == sum(pools)
    assert data["widest"] == 256 and data["result"] is None


def test_a_right_result(planted, tmp_path):
    data, html = reported(planted, planted_result(tmp_path, lambda *_: None))
    assert data["result"]["verdict"] == "good"
    assert [e["verdicts"]["good"] for e in data["result"]["lists"]] == [3, 3, 3]
    assert "every list holds exactly what it must" in html


def _swap(selected, _blocks, _counts):
    selected[0][1, 15] = 63  # also 6, but a higher position than 47


def _other(selected, _blocks, _counts):
    selected[0][2, 15] = 200  # .5 for 6


def _duplicate(selected, _blocks, _counts):
    selected[1][0, 1] = 24


def _descending(selected, _blocks, _counts):
    selected[1][0] = selected[1][0, ::-1]


def _beyond(selected, _blocks, _counts):
    selected[1][1, 15] = 255  # row 1 sees 255 positions


def _short(selected, _blocks, _counts):
    selected[1][2, 15] = -1


def _hole(selected, _blocks, _counts):
    selected[1][2, 3] = -1


def _outside(selected, _blocks, _counts):
    selected[1][0, 15] = 160  # 6 in block 20


def _newest(_selected, blocks, _counts):
    blocks[1] = [3, 5, 7, 30]


def _count(_selected, _blocks, counts):
    counts[1][2] = 15


def _one_level(selected, _blocks, _counts):
    selected[1][0] = [*range(24, 32), *range(160, 168)]


def _before(selected, _blocks, _counts):
    selected[1][2] = selected[1][1]


@pytest.mark.parametrize(
    "change, name, row, word, kind, note",
    [
        (_swap, "layer 0", 1, "tie order only", "tie order", ""),
        (_other, "layer 0", 2, "wrong", "other members", ""),
        (_duplicate, "layer 1", 0, "wrong", "duplicate", ""),
        (_descending, "layer 1", 0, "wrong", "not ascending", "the members are right"),
        (_beyond, "layer 1", 1, "wrong", "out of range", ""),
        (_short, "layer 1", 2, "wrong", "wrong count", ""),
        (_hole, "layer 1", 2, "wrong", "-1 inside the valid prefix", ""),
        (_outside, "layer 1", 0, "wrong", "outside the published blocks", ""),
        (_newest, "blocks", 1, "wrong", "the newest block is missing", ""),
        (_count, "layer 1", 2, "wrong", "wrong count tensor", "count says 15"),
        (_one_level, "layer 1", 0, "wrong", "outside the published blocks", "of one level"),
        (_before, "layer 1", 2, "wrong", "other members", "the row before"),
    ],
)
def test_planted_difference(planted, tmp_path, change, name, row, word, kind, note):
    data, html = reported(planted, planted_result(tmp_path, change))
    lists = {entry["list"]: entry for entry in data["result"]["lists"]}
    assert data["result"]["verdict"] == word
    for other, entry in lists.items():
        assert len(entry["differences"]) == (1 if other == name else 0), other
    (found,) = lists[name]["differences"]
    assert (found["row"], found["verdict"], found["kind"]) == (row, word, kind)
    assert note in " ".join(found["notes"])
    assert found["token"] == 253 + row
    assert kind in html


def test_difference_names_both_members(planted, tmp_path):
    data, _ = reported(planted, planted_result(tmp_path, _other))
    (found,) = next(e for e in data["result"]["lists"] if e["list"] == "layer 0")["differences"]
    assert (found["expected"], found["expected_score"]) == (47, 6)
    assert (found["found"], found["found_score"], found["rank"]) == (200, 0.5, 15)
    assert (found["missing"], found["extra"]) == (1, 1)


def test_own_selections_are_judged(planted, tmp_path):
    tensors = dict(traces.safetensors.read(planted).tensors)
    tensors = {name: t.array for name, t in tensors.items()}
    for layer in (0, 1):
        tensors[f"selected.{layer}"] = np.array(EXPECTED[layer], np.int32)
    tensors["blocks"] = np.array(EXPECTED["blocks"], np.int32)
    tensors["blocks"][0, 0] = 2
    path = tmp_path / "own.safetensors"
    traces.write(path, MODEL, tensors)
    data, _ = reported(path)
    verdicts = {entry["list"]: entry["verdict"] for entry in data["result"]["lists"]}
    assert verdicts == {"blocks": "wrong", "layer 0": "good", "layer 1": "good"}


# ---- random traces, measured again by full sorts ----------------------------------------------


def random_trace(path, seed, model, hazard):
    """Two requests of 150 and 101 tokens, nine rows."""
    rng = np.random.default_rng(seed)
    context, position = [150, 101], [0, 30, 46, 47, 148, 149, 10, 96, 100]
    rows, n = len(position), sum(c // r for c in context for r in [model["compress_ratios"][0]])
    tensors = {
        "position": np.array(position, np.int64),
        "request": np.array([0] * 6 + [1] * 3, np.int32),
        "context": np.array(context, np.int32),
    }
    k = rng.standard_normal((n, DIM)).astype(np.float32)
    if hazard == "ties":
        k = k[rng.integers(0, 4, n)]
    codes, scales = mxfp4.quantize(k)
    if hazard == "nan":
        scales[rng.random(scales.shape) < 0.1] = 255
    if hazard == "spans":
        scales = rng.integers(90, 130, scales.shape).astype(np.uint8)
    tensors["k.0.codes"], tensors["k.0.scales"] = codes, scales
    for layer in (0, 2):
        q = rng.standard_normal((rows, HEADS, DIM)).astype(np.float32)
        tensors[f"q.{layer}.codes"], tensors[f"q.{layer}.scales"] = mxfp4.quantize(q)
        tensors[f"w.{layer}"] = rng.standard_normal((rows, HEADS)).astype(np.float32)
    traces.write(path, model, tensors)
    return traces.read(path)


def order(scores, places):
    """Places from best to worst by a full sort: NaN last, then the lower place."""
    values = np.where(np.isnan(scores[places]), -np.inf, scores[places] + 0.0)
    nan = np.isnan(scores[places])
    return places[np.lexsort((places, -values, nan))]


def select(scores, places, count):
    return np.sort(order(scores, places)[:count])


def publish(scores):
    n = len(scores)
    if n == 0:
        return np.arange(0)
    starts = range(0, n, SIZE)
    best = np.array([scores[order(scores, np.arange(s, min(s + SIZE, n)))[0]] for s in starts])
    rest = order(best, np.arange(len(best) - 1))[: BLOCKS - 1]
    return np.sort(np.append(rest, len(best) - 1))


def again(trace, layer, blocks):
    """recall, chosen, pools, ties and spans of one layer, row by row."""
    out = {"recall": [], "chosen": [], "equal": [], "crossed": 0, "scored": 0, "nan": 0}
    out |= {"fast": 0, "integer": 0, "published": [], "threshold": []}
    for r in range(trace.rows):
        ks, ke = int(layer.ks[r]), int(layer.ke[r])
        q = layer.query
        codes, scales = layer.k.codes[ks:ke], layer.k.scales[ks:ke]
        s = reference.scores(codes, scales, q.codes[r], q.scales[r], layer.weights[r])
        places = np.arange(len(s))
        out["published"].append(publish(s))
        if layer.role.role == "consumer":
            places = np.array([j for j in places if j // SIZE in blocks[r]], np.int64)
            full = select(s, np.arange(len(s)), TOPK)
        chosen = select(s, places, TOPK)
        out["chosen"].append(chosen)
        if layer.role.role == "consumer" and len(s):
            out["recall"].append(len(set(full) & set(chosen)) / len(full))
        if len(places) > TOPK:
            last = s[order(s, places)[TOPK - 1]]
            equal = [j for j in places if s[j] == last or (np.isnan(s[j]) and np.isnan(last))]
            out["equal"].append(len(equal))
            out["crossed"] += any(j not in chosen for j in equal)
            if np.isfinite(last):
                out["threshold"].append(last)
        out["scored"] += len(places)
        out["nan"] += int(np.isnan(s).sum())
        q_spans = [int(max(h)) - int(min(h)) for h in q.scales[r]]
        q_nan = any(255 in h for h in q.scales[r])
        for j in places:
            span = int(max(scales[j])) - int(min(scales[j]))
            if 255 in scales[j] or q_nan:
                continue
            out["fast"] += span <= 3 and max(q_spans) <= 3
            out["integer"] += span + max(q_spans) <= 14
    return out


def overlaps(trace, lists, distance):
    shares = []
    for a in range(trace.rows):
        for b in range(trace.rows):
            same = trace.request[a] == trace.request[b]
            if same and trace.position[b] - trace.position[a] == distance and len(lists[a]):
                shares.append(len(set(lists[a]) & set(lists[b])) / len(lists[a]))
    return shares


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("hazard", ["", "ties", "nan", "spans"])
@pytest.mark.parametrize("levels", [1, 2])
def test_random_figures(tmp_path, ratio, hazard, levels):
    model = dict(MODEL if levels == 2 else ONE_LEVEL, compress_ratios=[ratio] * 3)
    trace = random_trace(tmp_path / "t.safetensors", ratio + 10 * levels, model, hazard)
    data, html = reported(trace.path)
    blocks = None
    for layer, found in zip(trace.layers, data["layers"]):
        assert found["present"] == layer.present == (layer.layer != 1)
        if not layer.present:
            continue
        want = again(trace, layer, blocks)
        if layer.role.role == "source":
            blocks = want["published"]
            for i, d in enumerate((1, 4, 16)):
                _same_shares(data["blocks"]["overlap"][i], overlaps(trace, blocks, d))
        assert found["recall_by_row"] == [round(x, 4) for x in want["recall"]]
        for i, d in enumerate((1, 4, 16)):
            _same_shares(found["overlap"][i], overlaps(trace, want["chosen"], d))
        for key in ("scored", "nan", "fast", "integer"):
            assert found[key] == want[key], key
        assert found["ties"]["rows_with_a_cut"] == len(want["equal"])
        assert found["ties"]["rows_crossed"] == want["crossed"]
        if want["equal"]:
            assert found["ties"]["equal"]["mean"] == pytest.approx(np.mean(want["equal"]))
        if want["threshold"]:
            median = np.median(want["threshold"])
            assert found["scores"]["threshold"]["median"] == pytest.approx(median)
        assert found["selected"] == sum(len(c) for c in want["chosen"])
        _same_heat(html, found["heat"], f"Layer {layer.layer}", want["chosen"])


def _same_shares(found, want):
    assert found["pairs"] == len(want)
    if want:
        assert found["share"]["mean"] == pytest.approx(np.mean(want))
        assert found["share"]["least"] == pytest.approx(min(want))


def _grey(html, name):
    """The levels of a heat map, decoded from its PNG by hand."""
    tag = re.search(rf'<img src="data:image/png;base64,([^"]+)"[^>]*data-list="{name}"', html)
    png = base64.b64decode(tag[1])
    width, height = struct.unpack(">II", png[16:24])
    size = struct.unpack(">I", png[33:37])[0]
    lines = np.frombuffer(zlib.decompress(png[41 : 41 + size]), np.uint8)
    lines = lines.reshape(height, width + 1)
    assert not lines[:, 0].any()
    return lines[:, 1:]


def _same_heat(html, heat, name, chosen):
    levels = _grey(html, name)
    want = np.zeros((len(chosen), heat["width"]), np.int64)
    for r, members in enumerate(chosen):
        for j in members:
            want[r, j // heat["bin"]] += 1
    assert levels.shape == (heat["height"], heat["width"]) == want.shape
    assert np.array_equal(levels * heat["scale"], want)


@pytest.mark.parametrize("numerics", ["bf16", "dg_bf16", "ref_bf16"])
def test_rounding_is_named(tmp_path, numerics):
    """What a class's scores select, by the reference, is a matter of rounding and never wrong."""
    trace = random_trace(tmp_path / "t.safetensors", 5, MODEL, "")
    layer = trace.layers[0]
    selected = np.full((trace.rows, TOPK), -1, np.int32)
    different = 0
    for r in range(trace.rows):
        ks, ke, q = int(layer.ks[r]), int(layer.ke[r]), layer.query
        part = (layer.k.codes[ks:ke], layer.k.scales[ks:ke], q.codes[r], q.scales[r])
        row = select(reference.scores(*part, layer.weights[r], numerics), np.arange(ke - ks), TOPK)
        exact = select(reference.scores(*part, layer.weights[r]), np.arange(ke - ks), TOPK)
        selected[r, : len(row)] = row
        different += not np.array_equal(row, exact)
    assert different, "the trace's rounding changes nothing: choose another seed"
    path = tmp_path / "rounded.safetensors"
    traces.Result({0: selected}).save(path)
    data, _ = reported(trace.path, path)
    (entry,) = data["result"]["lists"]
    assert entry["verdict"] == "rounding only"
    assert entry["verdicts"]["rounding only"] == different
    assert numerics != "bf16" or set(entry["kinds"]) == {"rounding: bf16"}
    assert data["result"]["not_in_the_result"] == ["blocks", "layer 2"]


def test_slow_classes_are_given_up():
    """Eight rows that nothing explains end the search; one that is explained keeps it going."""

    def wrong():
        return verdict.Difference("wrong", "other members", 0, 1, 2, 1.0, 0.5, 1, 1)

    for explained in (False, True):
        rounding, tried = verdict.Rounding(), []
        for row in range(20):
            found = wrong()
            rounding.explain(
                "blocks",
                found,
                lambda c: tried.append(c) or (explained and row == 0 and c == "dg_bf16"),
            )
        assert tried.count("bf16") == 20
        assert tried.count("ref_bf16") == (19 if explained else verdict.SLOW_ROWS)
        assert found.notes == (
            [] if explained else ["dg_bf16 was not tried", "ref_bf16 was not tried"]
        )


def test_consumers_without_their_source(tmp_path):
    """Blocks of the trace itself are read, in any order and with ids that name nothing."""
    trace = random_trace(tmp_path / "t.safetensors", 8, MODEL, "")
    file = traces.safetensors.read(trace.path)
    kept = {
        n: t.array for n, t in file.tensors.items() if n.split(".")[1:2] != ["0"] or n[0] == "k"
    }
    rng = np.random.default_rng(1)
    kept["blocks"] = rng.integers(-2, 20, (trace.rows, BLOCKS)).astype(np.int32)
    path = tmp_path / "consumer.safetensors"
    traces.write(path, MODEL, kept)
    data, _ = reported(path)
    trace = traces.read(path)
    assert [x["present"] for x in data["layers"]] == [False, False, True]
    want = again(trace, trace.layers[2], trace.blocks)
    assert data["layers"][2]["recall_by_row"] == [round(x, 4) for x in want["recall"]]
    assert data["layers"][2]["scored"] == want["scored"]
    assert data["blocks"] is None


# ---- against `tamis check` ----------------------------------------------------------------------

COMMAND = os.environ.get("TAMIS_COMMAND")


def damage(rng, row, places):
    """One of the things that go wrong in a list, or none."""
    kind, at = rng.integers(0, 9), rng.integers(0, len(row))
    if kind == 0:
        row[at] = rng.integers(-3, places + 3)
    elif kind == 1:
        row[at] = row[at - 1]
    elif kind == 2:
        row[at:] = -1
    elif kind == 3:
        row[:] = row[::-1].copy()
    elif kind == 4:
        row[:] = np.sort(rng.choice(max(places, len(row)), len(row), replace=False))
    elif kind == 5:
        others = np.setdiff1d(np.arange(places), row)
        if others.size:
            row[at] = rng.choice(others)
            valid = np.sort(row[row >= 0])
            row[: len(valid)] = valid


@pytest.mark.skipif(not COMMAND, reason="SKIPPED: TAMIS_COMMAND names no command to compare with")
@pytest.mark.parametrize("numerics", ["exact", "bf16"])
@pytest.mark.parametrize("hazard", ["", "ties", "nan"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_same_verdicts_as_check(tmp_path, seed, hazard, numerics):
    """The same verdict and fault for every list of every row, whatever is damaged."""
    trace = random_trace(tmp_path / "t.safetensors", seed, MODEL, hazard)
    good = tmp_path / "good.safetensors"
    made = [COMMAND, "run", trace.path, "-o", good, "--numerics", numerics]
    subprocess.run(made, check=True, capture_output=True)
    result = traces.read_result(good, trace)
    rng = np.random.default_rng(seed)
    lists = {layer: rows.copy() for layer, rows in result.selected.items()}
    blocks = result.blocks.copy()
    for r in range(trace.rows):
        visible = int(trace.layers[0].visible[r])
        for rows in lists.values():
            damage(rng, rows[r], visible)
        if rng.random() < 0.4:
            damage(rng, blocks[r], -(-visible // SIZE))
    path = tmp_path / "bad.safetensors"
    traces.Result(lists, blocks, result.counts).save(path)
    words = [COMMAND, "check", trace.path, path, "--rows", "all", "--json"]
    checked = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)
    theirs = {(d["list"], d["row"]): (d["verdict"], d["fault"]) for d in checked["differences"]}
    data, _ = reported(trace.path, path)
    ours = {}
    for entry in data["result"]["lists"]:
        for d in entry["differences"]:
            fault = None if d["kind"] in ("tie order", "other members") else d["kind"]
            fault = None if d["verdict"] == "rounding only" else fault
            ours[entry["list"], d["row"]] = (d["verdict"], fault)
    assert ours == theirs


# ---- rows and time ----------------------------------------------------------------------------


@pytest.mark.parametrize("rows, limit", [(0, 8), (5, 8), (8, 8), (1000, 64), (1000, 100), (33, 32)])
def test_sampled_rows(rows, limit):
    runs = measure.choose_runs(rows, limit)
    taken = [r for first, last in runs for r in range(first, last)]
    assert taken == sorted(set(taken)) and len(taken) <= limit
    if rows:
        assert taken[-1] == rows - 1
        assert rows <= limit or len(taken) >= min(limit, measure.RUN)
    if rows <= limit:
        assert taken == list(range(rows))


def test_sampled_page_says_so(tmp_path):
    trace = random_trace(tmp_path / "t.safetensors", 3, MODEL, "")
    data, html = reported(trace.path, rows=4)
    assert data["rows"]["row"] == [5, 6, 7, 8] and data["rows"]["in_trace"] == 9
    assert "4 rows, in 1 run" in html


def test_time_is_of_two_equal_ways(planted, monkeypatch):
    data = report.build(str(planted))["time"]
    consumer = data["layers"][1]
    assert consumer["sparse"]["ns"] > 0 and consumer["dense"]["ns"] > 0
    assert data["ratio"] == pytest.approx(consumer["dense"]["ns"] / consumer["sparse"]["ns"])
    assert data["processor"] == timing.processor()
    assert (data["rows"], data["positions"], data["pool"]) == (3, 256, 32)

    def unmasked(self, layer, first, last, topk, size, blocks):
        return self.prepare_source(layer, first, last, topk, size, 0)

    class Other:
        def __init__(self, call):
            self.call = call

        def run(self):
            return self.call.run().selection

    monkeypatch.setattr(timing.Engine, "prepare_dense", lambda self, *a: Other(unmasked(self, *a)))
    with pytest.raises(RuntimeError, match="layer 1: sparse and dense selections differ"):
        report.build(str(planted))
