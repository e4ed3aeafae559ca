# SPDX-License-Identifier: MIT
"""`tamis bench` from outside. Usage: bench.py json|threads|usage|lists|names TAMIS. No test looks at a time."""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "bench_tiny.txt")
LISTS = os.path.join(HERE, "bench_lists.txt")
KEYS = {"shape", "stage", "backend", "tier", "rows", "positions", "ns_per_row", "dense_ns_per_row",
        "ratio", "spread"}
STAGES = ("q_prepare k_insert k_gather mqa_logits block_max publish expand sparse_mqa_logits topk "
          "consume source dense").split()


def bench(*arguments):
    return subprocess.run([sys.argv[2], "bench", *arguments], capture_output=True, text=True)


def measure(*arguments):
    done = bench("--json", "--repeats", "3", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(why, *arguments):
    done = bench(*arguments)
    assert done.returncode == 2, (arguments, done.returncode)
    assert done.stdout == "", done.stdout
    assert done.stderr.count("\n") == 1 and why in done.stderr, (why, done.stderr)


def near(a, b, tolerance=1e-6):
    return abs(a - b) <= tolerance * abs(b)


def check_result(result):
    assert KEYS <= set(result), result
    assert result["shape"] == "bench_tiny" and result["backend"] == "cpu"
    assert result["rows"] == 2 and result["positions"] == 4096 and result["repeats"] == 3
    assert result["ns_per_row"] >= result["least_ns_per_row"] > 0 and result["spread"] >= 0
    opponent = result["stage"] in ("consume", "source", "sparse_mqa_logits", "topk")
    assert (result["dense_ns_per_row"] is not None) == opponent, result
    assert (result["ratio"] is not None) == opponent, result
    if opponent:
        assert near(result["ratio"], result["dense_ns_per_row"] / result["ns_per_row"])
    if result["ref_ratio"] is not None:
        assert near(result["ref_ratio"], result["ref_ns_per_row"] / result["ns_per_row"])


def test_json():
    out = measure("--shape", TINY, "--compare-tiers", "--cache", "both")
    assert {"cpu", "cores", "tsc_mhz", "compiler", "version", "date", "commit"} <= set(out["machine"])
    for result in out["results"]:
        check_result(result)
    cells = {(r["stage"], r["lists"], r["cache"]) for r in out["results"]}
    assert len(cells) == len(out["results"]) == 2 * (7 + 2 * 5), len(out["results"])
    assert {r["stage"] for r in out["results"]} == set(STAGES)
    # 256 blocks of 8 positions of 68 bytes; the newest block is whole here.
    consume = [r for r in out["results"] if r["stage"] == "consume"]
    assert all(r["positions_per_row"] == 2048 and r["k_bytes_per_row"] == 2048 * 68 for r in consume)
    assert all(0 < r["topk_share"] for r in consume)


def test_threads():
    out = measure("--shape", TINY, "--threads", "3", "--stage", "consume", "--stage", "source")
    assert out["results"] and all(r["form"] == "score|merge" for r in out["results"]), out["results"]
    out = measure("--shape", TINY, "--threads", "2", "--stage", "consume", "--clock", "cpu")
    assert all(r["form"] == "whole" and r["threads"] == 2 for r in out["results"])


def test_usage():
    refused("no shape 'no-such'", "--shape", "no-such")
    refused("no-such.txt", "--shape", "no-such.txt")
    refused("found 'no-such'", "--stage", "no-such")
    refused("found 'x'", "--lists", "x")
    refused("found '0'", "--seconds", "0")
    refused("no-such", "--tier", "no-such", "--shape", TINY)
    refused("found 'sun'", "--clock", "sun")
    refused("found 'gpu'", "--backend", "gpu")
    for option in (["--clock", "cpu"], ["--cache", "cold"], ["--tier", "ref"], ["--threads", "2"], ["--huge-pages"]):
        refused(option[0] + ": required --backend cpu", "--backend", "cuda", *option)
    refused("required source or consume", "--backend", "cuda", "--stage", "topk")
    tiny = open(TINY).read()
    cases = [("rows       2\n", "", "'rows' is missing"),
             ("rows       2", "rows       0", "found '0'"),
             ("rows       2", "rows       2\nrows 2", "given twice"),
             ("rows       2", "columns    2", "unknown word 'columns'"),
             ("rows       2", "rows 2 3", "a word and a value"),
             ("heads      32", "heads      30", "steps of 4"),
             ("kind       decode", "kind  encode", "decode or prefill"),
             ("lists      both", "lists none", "local, random or both")]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "shape.txt")
        for old, new, why in cases:
            assert old in tiny
            with open(path, "w") as out:
                out.write(tiny.replace(old, new))
            refused(why, "--shape", path)


def test_lists():
    """The inputs have the figures that were measured on trained tensors."""
    inputs = measure("--shape", LISTS, "--stage", "expand")["inputs"][0]
    for key, measured in (("kept_1", .717), ("kept_4", .660), ("kept_16", .613)):
        assert abs(inputs["local"][key] - measured) < .02, (key, inputs["local"])
    assert 2 <= inputs["local"]["run_blocks"] <= 3, inputs["local"]
    # 2,048 of 16,384 blocks: an eighth is shared by chance, and every eighth id has its neighbour.
    assert abs(inputs["random"]["kept_1"] - .125) < .02, inputs["random"]
    assert abs(inputs["random"]["run_blocks"] - 8 / 7) < .03, inputs["random"]
    for share, measured in zip(inputs["k_spans"], (.063, .558, .372, .006)):
        assert abs(share - measured) < .01, inputs["k_spans"]
    assert abs(inputs["negative_weights"] - .6) < .1, inputs["negative_weights"]


def test_names():
    named = json.loads(bench("--list", "--json").stdout)["shapes"]
    wanted = {f"{kind}-{n}-{rows}" for kind in ("decode", "prefill") for n in ("16k", "64k", "256k", "1m")
              for rows in (1, 8, 64, 512)}
    assert wanted <= set(named), wanted - set(named)


if __name__ == "__main__":
    globals()["test_" + sys.argv[1]]()
