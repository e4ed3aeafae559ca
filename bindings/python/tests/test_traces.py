# SPDX-License-Identifier: MIT
"""Traces and results: what is read, what is refused and how, and the same files through C."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tamis
from tamis import errors, mxfp4, safetensors, traces

BUNDLED = Path(__file__).resolve().parents[3] / "data" / "trace_a.safetensors"
COMMAND = os.environ.get("TAMIS_COMMAND")

MODEL = {
    "compress_ratios": [0, 2, 1, 1],
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3],
    "candidate_source_layer_id": 2,
    "candidate_topk_blocks": 4,
    "candidate_block_size": 8,
    "index_n_heads": 4,
    "index_head_dim": 64,
    "index_topk": 8,
}


def tensors(seed=0):
    """Two requests, of 40 and 30 tokens, and five rows."""
    rng = np.random.default_rng(seed)
    out = {
        "position": np.array([5, 9, 39, 0, 29], np.int64),
        "request": np.array([0, 0, 0, 1, 1], np.int32),
        "context": np.array([40, 30], np.int32),
        "k.1": rng.standard_normal((35, 64)).astype(np.float32),
        "k.2.codes": rng.integers(0, 256, (70, 32), np.uint8),
        "k.2.scales": rng.integers(120, 130, (70, 2)).astype(np.uint8),
    }
    for layer in (1, 2, 3):
        q = rng.standard_normal((5, 4, 64)).astype(np.float32)
        out[f"q.{layer}"] = mxfp4.float32_to_bfloat16(q) if layer == 3 else q
        out[f"w.{layer}"] = rng.standard_normal((5, 4)).astype(np.float32)
    return out


def written(path, model=MODEL, change=None, drop=(), metadata=None):
    """A trace file as the dict ``change`` makes it, whether a reader takes it or not."""
    made = {name: x for name, x in {**tensors(), **(change or {})}.items() if name not in drop}
    meta = {"format": "tamis-trace/1", "model": json.dumps(model), **(metadata or {})}
    safetensors.write(path, made, {key: value for key, value in meta.items() if value is not None})
    return path


def test_a_trace_is_read_as_it_was_written(tmp_path):
    given = tensors()
    path = tmp_path / "a.safetensors"
    traces.write(path, MODEL, given, about="a test")
    trace = traces.read(path)
    assert (trace.about, trace.rows, trace.requests) == ("a test", 5, 2)
    assert trace.model == tamis.Model.from_config(MODEL)
    assert [(entry.layer, entry.role.role) for entry in trace.layers] == [
        (1, "full"),
        (2, "source"),
        (3, "consumer"),
    ]
    assert trace.layer(1).visible.tolist() == [3, 5, 20, 0, 15]
    assert trace.layer(1).ks.tolist() == [0, 0, 0, 20, 20]
    assert trace.layer(3).visible.tolist() == [6, 10, 40, 1, 30]
    assert trace.layer(3).ks.tolist() == [0, 0, 0, 40, 40]
    assert trace.layer(3).k is trace.layer(2).k
    assert np.array_equal(trace.layer(2).k.codes, given["k.2.codes"])
    codes, scales = mxfp4.quantize(given["q.3"])
    assert np.array_equal(trace.layer(3).query.codes, codes)
    assert np.array_equal(trace.layer(3).query.scales, scales)


def test_run_check_and_save(tmp_path):
    path = written(tmp_path / "a.safetensors")
    trace = traces.read(path)
    result = tamis.run(trace, scores=True, slots=True)
    report = tamis.check(trace, result, rows="all")
    assert report.good and report.verdict == "exact" and report.layers == [1, 2, 3]
    dense = tamis.run(trace, dense=True, tier="ref", threads=3)
    for layer in (1, 2, 3):
        assert np.array_equal(dense.selected[layer], result.selected[layer])
        valid = result.selected[layer] >= 0
        slots = result.selected[layer] + trace.layer(layer).ks[:, None]
        assert np.array_equal(result.slots[layer], np.where(valid, slots, -1))
    saved = tmp_path / "r.safetensors"
    result.save(saved)
    again = traces.read_result(saved, trace)
    assert np.array_equal(again.blocks, result.blocks)
    assert all(np.array_equal(again.counts[n], result.counts[n]) for n in (1, 2, 3))
    assert tamis.check(path, saved, rows="all").good
    only = tamis.run(trace, layers=[3])
    assert sorted(only.selected) == [2, 3]
    with pytest.raises(errors.ArgumentError, match="layers: required a layer that selects"):
        tamis.run(trace, layers=[0])


def test_bundled_trace_is_the_commands_to_the_byte(tmp_path):
    if not COMMAND:
        pytest.skip("TAMIS_COMMAND names no command to compare with")
    c, mine = tmp_path / "c.safetensors", tmp_path / "python.safetensors"
    options = ["--scores", "--slots"]
    subprocess.run([COMMAND, "run", BUNDLED, "-o", c, *options], check=True, capture_output=True)
    trace = traces.read(BUNDLED)
    result = tamis.run(trace, scores=True, slots=True)
    result.save(mine)
    theirs, ours = safetensors.read(c), safetensors.read(mine)
    assert set(theirs.tensors) == set(ours.tensors) and len(ours.tensors) == 21
    for name, tensor in theirs.tensors.items():
        assert tensor.array.tobytes() == ours.tensors[name].array.tobytes(), name
    said = subprocess.run(
        [COMMAND, "check", BUNDLED, mine, "--rows", "2"], check=True, capture_output=True, text=True
    )
    assert said.stdout.splitlines()[-1] == "check: exact, 2 rows x 5 layers"
    assert str(tamis.check(trace, c, rows=2)).splitlines()[-1] == "check: exact, 2 rows x 5 layers"


# ---- what is refused ----------------------------------------------------------------------------

I32 = np.int32
REFUSED = [
    # (model, change, drop, metadata), the thing that the error names
    (({}, {}, (), {"format": "tamis-trace/2"}), "__metadata__.format"),
    (({}, {}, (), {"format": None}), "__metadata__.format"),
    (({}, {}, (), {"model": None}), "__metadata__.model"),
    (({}, {}, (), {"model": "{"}), "__metadata__.model"),
    (({}, {}, (), {"model": '{"a": 1, "a": 2}'}), "__metadata__.model"),
    (({"index_topk": 0}, {}, (), {}), "__metadata__.model: index_topk"),
    (({"index_n_heads": "4"}, {}, (), {}), "__metadata__.model: index_n_heads"),
    (({"compress_ratios": [0, 2, 1, -1]}, {}, (), {}), "__metadata__.model: compress_ratios[3]"),
    (({"candidate_block_size": None}, {}, (), {}), "__metadata__.model: candidate_block_size"),
    (({"num_hidden_layers": 9}, {}, (), {}), "__metadata__.model: num_hidden_layers"),
    (({"compress_ratios": [0, 2, 3, 1]}, {}, (), {}), "compress_ratios[2]"),
    (({}, {}, ("position",), {}), "position"),
    (({}, {"position": np.zeros(5, np.float32)}, (), {}), "position"),
    (({}, {"position": np.array([5, 9, 9, 0, 29], I32)}, (), {}), "position[2]"),
    (({}, {"position": np.array([5, 9, 40, 0, 29], I32)}, (), {}), "position[2]"),
    (({}, {"position": np.array([-1, 9, 39, 0, 29], I32)}, (), {}), "position[0]"),
    (({}, {"request": np.array([0, 1, 0, 1, 1], I32)}, (), {}), "request[2]"),
    (({}, {"request": np.array([0, 0, 0, 1, 2], I32)}, (), {}), "request[4]"),
    (({}, {}, ("context",), {}), "context"),
    (({}, {}, ("request",), {}), "request"),
    (({}, {"context": np.array([40, -1], I32)}, (), {}), "context[1]"),
    (({}, {"context": np.array([41, 31], I32)}, (), {}), "k."),
    (({}, {"q.1": np.zeros((5, 4, 32), np.float32)}, (), {}), "q.1"),
    (({}, {"w.1": np.zeros((5, 4), I32)}, (), {}), "w.1"),
    (({}, {}, ("w.1",), {}), "w.1"),
    (({}, {}, ("q.1",), {}), "q.1"),
    (({}, {}, ("k.1",), {}), "k.1"),
    (({}, {}, ("k.2.scales",), {}), "k.2.scales"),
    (({}, {"k.2": np.zeros((70, 64), np.float32)}, (), {}), "k.2"),
    (({}, {"k.2.scales": np.zeros((69, 2), np.uint8)}, (), {}), "k.2.scales"),
    (({}, {}, ("q.1", "w.1"), {}), "q.1"),
    (({}, {"selected.1": np.zeros((5, 9), I32)}, (), {}), "selected.1"),
    (({}, {"blocks": np.zeros((5, 3), I32)}, (), {}), "blocks"),
    (({}, {}, ("q.2", "w.2"), {}), "blocks"),
]


@pytest.mark.parametrize("case, name", REFUSED, ids=[f"{i}-{e[1]}" for i, e in enumerate(REFUSED)])
def test_refusals_are_named_and_are_the_commands(tmp_path, case, name):
    model, change, drop, metadata = case
    path = written(tmp_path / "bad.safetensors", {**MODEL, **model}, change, drop, metadata)
    with pytest.raises((errors.FormatError, errors.ModelError)) as caught:
        traces.read(path)
    assert caught.value.name.startswith(name), caught.value
    assert caught.value.required and caught.value.found
    if COMMAND:
        said = subprocess.run([COMMAND, "run", path], capture_output=True, text=True)
        assert said.returncode == 2
        mine = str(caught.value).split(":")[: caught.value.name.count(":") + 2]
        assert said.stderr.startswith(f"tamis: {':'.join(mine)}:"), (said.stderr, str(caught.value))


def test_consumers_without_their_source_take_what_is_visible_or_given(tmp_path):
    small = {"position": np.array([5, 9, 31, 0, 29], np.int64)}
    path = written(tmp_path / "a.safetensors", change=small, drop=("q.2", "w.2"))
    trace = traces.read(path)
    assert trace.source is None and not trace.layer(2).present
    assert trace.blocks.tolist() == [
        [0, -1, -1, -1],
        [0, 1, -1, -1],
        [0, 1, 2, 3],
        [0, -1, -1, -1],
        [0, 1, 2, 3],
    ]
    assert tamis.check(trace, tamis.run(trace), rows="all").good
    blocks = np.array([[0, 1, 3, 4]] * 5, I32)
    path = written(tmp_path / "b.safetensors", change={"blocks": blocks}, drop=("q.2", "w.2"))
    trace = traces.read(path)
    assert np.array_equal(trace.blocks, blocks)
    assert tamis.check(trace, tamis.run(trace), rows="all").good


def test_one_level_models_have_no_blocks(tmp_path):
    model = {key: value for key, value in MODEL.items() if not key.startswith("candidate")}
    path = written(tmp_path / "a.safetensors", model)
    trace = traces.read(path)
    assert [entry.role.role for entry in trace.layers] == ["full"] * 3 and trace.blocks is None
    result = tamis.run(trace)
    assert result.blocks is None and tamis.check(trace, result, rows="all").good
    with pytest.raises(errors.FormatError, match="blocks: required none"):
        traces.read(written(tmp_path / "b.safetensors", model, {"blocks": np.zeros((5, 4), I32)}))


def test_a_refused_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(errors.FormatError, match="w.1"):
        traces.write(path, MODEL, {**tensors(), "w.1": np.zeros((5, 3), np.float32)})
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["a.safetensors"]
    with pytest.raises(errors.FileError, match="a regular file, or none"):
        traces.write(tmp_path, MODEL, tensors())
    with pytest.raises(errors.FileError):
        traces.write(tmp_path / "no" / "a", MODEL, tensors())


def test_results_are_held_to_their_trace(tmp_path):
    trace = traces.read(written(tmp_path / "a.safetensors"))
    path = tmp_path / "r.safetensors"
    good = np.zeros((5, 8), I32)
    for made, meta, name in (
        ({"selected.1": np.zeros((5, 7), I32)}, {}, "selected.1"),
        ({"selected.0": good}, {}, "selected"),
        ({"selected.1": good, "count.1": np.zeros((5, 1), I32)}, {}, "count.1"),
        ({"selected.1": good}, {"format": "other/1"}, "__metadata__.format"),
    ):
        safetensors.write(path, made, meta)
        with pytest.raises(errors.FormatError) as caught:
            traces.read_result(path, trace)
        assert caught.value.name == name
    safetensors.write(path, {"selected.1": good}, {})
    assert list(traces.read_result(path, trace).selected) == [1]


# ---- the container ------------------------------------------------------------------------------


def header_of(entries, data=b"\0" * 16):
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return len(text).to_bytes(8, "little") + text + data


U8 = {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}
CONTAINERS = [
    (b"", "file"),
    (b"1234567", "file"),
    ((2**62).to_bytes(8, "little"), "header length"),
    (header_of(b"[1]"), "header"),
    (header_of(b"{"), "header"),
    (header_of(b'{"a": 1, "a": 1}'), "header"),
    (header_of(b"\xff\xfe"), "header"),
    (header_of(b"[" * 5000), "header"),
    (header_of({"__metadata__": {"a": 1}, "x": U8}), "__metadata__.a"),
    (header_of({"x": 3}), "x"),
    (header_of({"x": {**U8, "dtype": "U9"}}), "x"),
    (header_of({"x": {**U8, "dtype": 8}}), "x"),
    (header_of({"x": {**U8, "shape": [-16]}}), "x"),
    (header_of({"x": {**U8, "shape": [2.0]}}), "x"),
    (header_of({"x": {**U8, "shape": [1] * 5}}), "x"),
    (header_of({"x": {**U8, "shape": [2**40, 2**40]}}), "x"),
    (header_of({"x": {**U8, "data_offsets": [16, 0]}}), "x"),
    (header_of({"x": {**U8, "data_offsets": [0, 17]}}), "x"),
    (header_of({"x": {**U8, "data_offsets": [0]}}), "x"),
    (header_of({"x": {**U8, "shape": [8]}}), "x"),
    (header_of({"x": U8}, b"\0" * 17), "data"),
    (header_of({"x": U8, "y": U8}), "y"),
    (header_of({"x": {**U8, "shape": [4], "data_offsets": [8, 12]}}, b"\0" * 12), "x"),
]


@pytest.mark.parametrize("data, name", CONTAINERS, ids=[str(i) for i in range(len(CONTAINERS))])
def test_malformed_files_are_refused_by_name(tmp_path, data, name):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(errors.FormatError) as caught:
        safetensors.read(path)
    assert caught.value.name == name
    if COMMAND:
        said = subprocess.run([COMMAND, "run", path], capture_output=True, text=True)
        assert said.returncode == 2
        assert said.stderr.startswith(f"tamis: {path}: {name}:"), said.stderr


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path, tmp_path / "pipe"):
        with pytest.raises(errors.FileError) as caught:
            safetensors.read(path)
        assert caught.value.name == str(path) and isinstance(caught.value, OSError)


def test_unaligned_tensors_are_copied_and_whole(tmp_path):
    path = tmp_path / "a.safetensors"
    entries = {
        "b": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "x": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    path.write_bytes(header_of(entries, b"\1\2\3" + np.array([1.5, -2], np.float32).tobytes()))
    file = safetensors.read(path)
    assert file.get("b").array.tolist() == [1, 2, 3]
    assert file.get("x").array.tolist() == [1.5, -2]
    assert not file.get("b").array.flags.writeable


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damaged_files_end_in_one_error(tmp_path, data):
    """Any bytes changed in the header, or the file cut: a good trace or an Error, nothing else."""
    whole = tmp_path / "whole.safetensors"
    if not whole.exists():
        written(whole)
    raw = bytearray(whole.read_bytes())
    length = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(raw), len(raw), length, length + 100]))
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(raw[:cut])
    try:
        trace = traces.read(path)
    except tamis.Error as error:
        assert error.name and error.required and error.found
    else:
        tamis.run(trace, threads=1)


def test_safetensors_own_library_reads_what_is_written(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    path = written(tmp_path / "a.safetensors")
    made = {name: x for name, x in tensors().items() if x.dtype != np.uint16}
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        for name, x in made.items():
            assert np.array_equal(file.get_tensor(name), x)
    other = tmp_path / "b.safetensors"
    meta = {"format": "tamis-trace/1", "model": json.dumps(MODEL)}
    given = {**made, "q.3": tensors()["q.1"]}
    library.save_file(given, other, metadata=meta)
    assert traces.read(other).rows == 5
