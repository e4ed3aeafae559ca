# SPDX-License-Identifier: MIT
"""tamis.check against the command's check: the same verdicts of the same damaged results."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_traces import MODEL, written

import tamis
from tamis import errors, traces

BUNDLED = Path(__file__).resolve().parents[3] / "data" / "trace_a.safetensors"
COMMAND = os.environ.get("TAMIS_COMMAND")


def swapped(result):
    result.selected[1][2, [0, 1]] = result.selected[1][2, [1, 0]]


def wrong_member(result):
    row = result.selected[1][2]
    row[-1] = next(j for j in range(19, -1, -1) if j not in row)
    row.sort()


def duplicate(result):
    result.selected[3][2, 1] = result.selected[3][2, 0]


def hole(result):
    result.selected[3][2, 3] = -1


def out_of_range(result):
    result.selected[3][0, 3] = 40


def short(result):
    result.selected[2][2, -1] = -1


def count(result):
    result.counts[2][2] -= 1


def outside(result):
    blocks = set(result.blocks[2].tolist())
    row = result.selected[3][2]
    row[0] = next(8 * b for b in range(5) if b not in blocks)
    row.sort()


def blocks_wrong(result):
    row = result.blocks[2]
    row[0] = next(b for b in range(5) if b not in row)
    row.sort()


def newest(result):
    row = result.blocks[2]
    row[-1] = next(b for b in range(5) if b not in row)
    row.sort()


def good(result):
    pass


DAMAGES = [
    good,
    swapped,
    wrong_member,
    duplicate,
    hole,
    out_of_range,
    short,
    count,
    outside,
    blocks_wrong,
    newest,
]


def told(report):
    """What JSON of the command says, of a Report."""
    out = []
    for f in report.findings:
        out.append(
            {
                "list": f.list,
                "row": f.row,
                "verdict": tamis._check.VERDICTS[f.verdict],
                "fault": f.fault,
                "classes": ", ".join(f.classes) or None,
                "followed_blocks": f.followed,
                "rank": f.rank,
                "expected": f.expected,
                "found": f.found,
            }
        )
    return sorted(out, key=lambda entry: (entry["row"], entry["list"]))


def commands(trace, result, *options):
    if not COMMAND:
        pytest.skip("TAMIS_COMMAND names no command to compare with")
    done = subprocess.run(
        [COMMAND, "check", trace, result, "--json", *options], capture_output=True, text=True
    )
    said = json.loads(done.stdout)
    for entry in said["differences"]:
        del entry["expected_score"], entry["found_score"]
    said["differences"].sort(key=lambda entry: (entry["row"], entry["list"]))
    return said, done.returncode


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("numerics", ["exact", "bf16"])
def test_verdicts_are_the_commands(tmp_path, damage, numerics):
    path = written(tmp_path / "a.safetensors")
    result = tamis.run(path, numerics=numerics)
    damage(result)
    result.save(tmp_path / "r.safetensors")
    report = tamis.check(path, tmp_path / "r.safetensors", rows="all", numerics=numerics)
    assert report.good == (damage is good)
    said, code = commands(path, tmp_path / "r.safetensors", "--rows", "all", "--numerics", numerics)
    assert (said["verdict"], code) == (report.verdict, 0 if report.good else 1)
    assert told(report) == said["differences"]
    for entry in said["classes"]:
        faulty = {f.list for f in report.findings if f.fault}  # the command counts ascending lists
        if entry["class"] == "result" and entry["list"] in set(report.overlap) - faulty:
            assert report.overlap[entry["list"]] == pytest.approx(entry["overlap"], abs=1e-9)
            assert report.recall[entry["list"]] == pytest.approx(entry["recall"], abs=1e-9)


def real(tmp_path):
    """Three rows of the bundled trace over 16,400 of its keys, and a pool of 2,048 positions."""
    trace = traces.read(BUNDLED)
    model = {**trace.model.to_config(), "candidate_topk_blocks": 256}
    k = trace.layer(4).k
    given = {
        "position": trace.position[:3],
        "k.4.codes": k.codes[:16400],
        "k.4.scales": k.scales[:16400],
    }
    for layer in (4, 6):
        q = trace.layer(layer).query
        given[f"q.{layer}.codes"], given[f"q.{layer}.scales"] = q.codes[:3], q.scales[:3]
        given[f"w.{layer}"] = q.weights[:3]
    path = tmp_path / "real.safetensors"
    traces.write(path, model, given)
    return path


@pytest.mark.parametrize("claimed", ["bf16", "dg_bf16", "ref_bf16"])
def test_rounding_is_named(tmp_path, claimed):
    """A result of another class: right when it says so, and explained when it claims exact."""
    path, saved = real(tmp_path), tmp_path / "r.safetensors"
    tamis.run(path, numerics=claimed, tier="ref").save(saved)
    assert tamis.check(path, saved, numerics=claimed).verdict == claimed
    report = tamis.check(path, saved)
    assert report.verdict.startswith("rounding only (") and claimed in report.verdict
    assert all(claimed in finding.classes for finding in report.findings)
    said, _ = commands(path, saved)
    assert said["verdict"] == report.verdict and told(report) == said["differences"]


def test_ties_are_told_from_wrong_members(tmp_path):
    """All keys are equal, so that every choice inside the blocks is a tie."""
    k = np.zeros((70, 32), np.uint8)
    path = written(tmp_path / "a.safetensors", change={"k.2.codes": k})
    result = tamis.run(path)
    assert result.selected[2][2].tolist() == list(range(8))
    result.selected[2][2] += 1
    report = tamis.check(path, result, rows="all")
    assert (report.verdict, len(report.findings)) == ("tie order only", 1)


def test_ties_outside_the_blocks_are_no_ties(tmp_path):
    k = np.zeros((70, 32), np.uint8)
    path = written(tmp_path / "a.safetensors", change={"k.2.codes": k})
    result = tamis.run(path)
    assert result.blocks[2].tolist() == [0, 1, 2, 4]
    result.selected[3][2, -1] = 24
    result.save(tmp_path / "r.safetensors")
    report = tamis.check(path, tmp_path / "r.safetensors", rows="all")
    assert report.verdict == "WRONG"
    assert report.findings[0].fault == "outside the published blocks"
    if COMMAND:
        said, _ = commands(path, tmp_path / "r.safetensors", "--rows", "all")
        assert told(report) == said["differences"]


def test_rows_are_sampled_as_the_command_samples(tmp_path):
    path = written(tmp_path / "a.safetensors")
    result = tamis.run(path)
    assert tamis.check(path, result, rows=1).rows == [0, 4]
    assert tamis.check(path, result, rows=3).rows == [0, 2, 4]
    assert tamis.check(path, result).rows == [0, 1, 2, 3, 4]
    for rows in (0, "some", -1):
        with pytest.raises(errors.ArgumentError, match="rows: required a number from 1"):
            tamis.check(path, result, rows=rows)
    with pytest.raises(errors.ArgumentError, match="numerics"):
        tamis.check(path, result, numerics="half")


def test_results_inside_a_trace_are_judged(tmp_path):
    path = written(tmp_path / "a.safetensors")
    result = tamis.run(path)
    given = {f"selected.{n}": x for n, x in result.selected.items()}
    given["blocks"] = result.blocks
    assert tamis.check(written(tmp_path / "b.safetensors", change=given)).good
    given["selected.1"] = given["selected.1"][:, ::-1].copy()
    report = tamis.check(written(tmp_path / "c.safetensors", change=given))
    assert report.verdict == "WRONG" and "layer 1, row 0" in str(report)
    with pytest.raises(errors.FormatError, match="result: required a selection"):
        tamis.check(path)
    assert MODEL["index_topk"] == 8
