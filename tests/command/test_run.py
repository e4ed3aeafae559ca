# SPDX-License-Identifier: MIT
"""Result files of `run`: names, shapes, values, and that no option but the numerics class changes a selection."""
import json
import os
import struct

from support import SMALL, File, bad, good, main, make

SHAPE = {"selected.0": [12, 64], "selected.1": [12, 64], "selected.2": [12, 64], "count.0": [12], "count.1": [12], "count.2": [12],
         "blocks": [12, 100]}


def visible(trace, r):
    return trace.data["position"][r] + 1


def test_result_file(folder):
    trace, result = make(folder, "--rows-at", "spread")
    source, out = File(trace), File(result)
    assert out.shape == SHAPE and set(out.dtype.values()) == {"I32"}
    for r in range(12):
        n = visible(source, r)
        blocks = [b for b in out.row("blocks", r) if b >= 0]
        assert len(blocks) == min(100, (n + 7) // 8) and blocks == sorted(set(blocks)) and blocks[-1] == (n - 1) // 8
        assert list(out.row("blocks", r))[len(blocks):] == [-1] * (100 - len(blocks))
        for layer in range(3):
            row = list(out.row(f"selected.{layer}", r))
            count = out.data[f"count.{layer}"][r]
            assert count == min(64, n) and row[:count] == sorted(set(row[:count])) and row[count:] == [-1] * (64 - count)
            assert row[0] >= 0 and row[count - 1] < n
            assert layer == 0 or all(p // 8 in blocks for p in row[:count])


def test_slots_and_scores(folder):
    trace, result = make(folder, "--requests", "3", "--rows-at", "spread", "--ratio", "2")
    good("run", trace, "-o", result, "--slots", "--scores")
    source, out = File(trace), File(result)
    assert out.shape == {**SHAPE, **{f"slot.{l}": [12, 64] for l in range(3)}, **{f"score.{l}": [12, 64] for l in range(3)}}
    assert {out.dtype[f"slot.{l}"] for l in range(3)} == {"I64"} and {out.dtype[f"score.{l}"] for l in range(3)} == {"F32"}
    start = [0]
    for tokens in source.data["context"]:
        start.append(start[-1] + tokens // 2)
    for r in range(12):
        first = start[source.data["request"][r]]
        for layer in range(3):
            for position, slot, score in zip(out.row(f"selected.{layer}", r), out.row(f"slot.{layer}", r), out.row(f"score.{layer}", r)):
                assert slot == (first + position if position >= 0 else -1)
                assert (score == float("-inf")) == (position < 0)


def test_tiers_and_threads(folder):
    trace, result = make(folder, "--requests", "2")
    before = open(result, "rb").read()
    tiers = [tier["name"] for tier in json.loads(good("info", "--json").out)["tiers"] if tier["supported"]]
    for tier in tiers:
        for threads in (1, 2, 5, 13, 40):  # 13 and 40: more threads than rows, so rows are split
            good("run", trace, "-o", result, "--tier", tier, "--threads", threads)
            assert open(result, "rb").read() == before, (tier, threads)


def test_dense(folder):
    trace, result = make(folder)
    before = open(result, "rb").read()
    ran = json.loads(good("run", trace, "-o", result, "--dense", "--json").out)
    assert open(result, "rb").read() == before
    scored = [layer["positions_scored"] for layer in ran["layers"]]
    assert scored[0] == scored[1] == scored[2]
    sparse = [layer["positions_scored"] for layer in json.loads(good("run", trace, "--json").out)["layers"]]
    assert sparse[0] == scored[0] and 0 < sparse[1] <= 12 * 800


def test_layers(folder):
    trace, result = make(folder)
    whole = File(result)
    good("run", trace, "-o", result, "--layers", "2")
    part = File(result)
    assert part.names() == {"selected.0", "count.0", "blocks", "selected.2", "count.2"}
    assert all(part.data[name] == whole.data[name] for name in part.names())
    assert "layer 1: not in the result" in good("check", trace, result).out


def test_roles(folder):
    """Full layers with keys of their own, absent layers, and consumers whose source is absent."""
    trace, result = make(folder, "--full", "2")
    out = good("run", trace, "-o", result).out
    assert [out.count(role) for role in ("  full", "  source", "  consumer")] == [2, 1, 2]
    good("check", trace, result, "--rows", "all")
    blocks = File(result).data["blocks"]
    part = File(trace)
    for name in ("q.1.codes", "q.1.scales", "w.1", "k.1.codes", "k.1.scales", "q.2.codes", "q.2.scales", "w.2"):
        del part.data[name]
    part.write(trace)
    assert "blocks" in bad("run", trace, "-o", result + ".2")
    part.add("blocks", "I32", [12, 100], blocks)
    part.write(trace)
    out = good("run", trace, "-o", result + ".2").out
    assert out.count("absent") == 2
    whole, alone = File(result), File(result + ".2")
    assert alone.names() == {f"{kind}.{l}" for kind in ("selected", "count") for l in (0, 3, 4)}
    assert all(alone.data[name] == whole.data[name] for name in alone.names())
    assert good("check", trace, result + ".2").last() == "check: exact, 12 rows x 3 layers"


def test_bf16(folder):
    trace, result = make(folder)
    good("run", trace, "-o", result, "--numerics", "bf16", "--scores")
    assert good("check", trace, result, "--numerics", "bf16").last() == "check: bf16, 12 rows x 3 layers"
    for score in File(result).data["score.1"]:
        assert struct.unpack("<I", struct.pack("<f", score))[0] & 0xFFFF == 0


def test_real_trace(folder):
    here = os.path.dirname(os.path.abspath(__file__))
    trace, result = os.path.join(here, "..", "..", "data", "trace_a.safetensors"), os.path.join(folder, "r.st")
    out = good("run", trace, "-o", result).out
    assert out.count("consumer") == 4 and "118,784" in out
    assert good("check", trace, result, "--rows", "2").last() == "check: exact, 2 rows x 5 layers"


main(globals())
