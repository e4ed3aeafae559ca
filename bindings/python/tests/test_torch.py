# SPDX-License-Identifier: MIT
"""torch tensors on the CPU: the same bytes as numpy arrays, without a copy, strides kept."""

import numpy as np
import pytest
from problems import Problem, strided

import tamis
from tamis import arrays, errors, stages

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")


def tensors(p):
    k = {
        "mxfp4_page": lambda: tamis.KCache.pages(torch.from_numpy(p.k.codes), p.page_size, p.dim),
        "mxfp4_split": lambda: tamis.KCache.split(*map(torch.from_numpy, (p.k.codes, p.k.scales))),
        "mxfp4_row": lambda: tamis.KCache.rows(torch.from_numpy(p.k.codes)),
    }[p.layout]()
    rows = tamis.Rows(*(None if x is None else torch.from_numpy(x) for x in p.rows))
    return k, rows, tamis.Query(*map(torch.from_numpy, p.query))


@pytest.mark.parametrize("layout", ["mxfp4_page", "mxfp4_split", "mxfp4_row"])
def test_outputs_are_tensors_with_numpys_bytes(layout):
    p = Problem(1, layout=layout)
    everything = ("positions", "slots", "scores", "counts")
    want = stages.source(p.k, p.rows, p.query, 20, 5, want=everything)
    got = stages.source(*tensors(p), 20, 5, want=everything)
    for a, b in zip((*got.selection, *got[1:]), (*want.selection, *want[1:])):
        assert isinstance(a, torch.Tensor) and a.numpy().tobytes() == b.tobytes()


def test_tensors_are_viewed_with_their_strides():
    x = torch.arange(60, dtype=torch.int32).reshape(3, 4, 5)[:, 1:3]
    v = arrays.require("x", x, arrays.INT32, (3, 2, 5))
    assert (v.pointer, v.strides) == (x.data_ptr(), (20, 5, 1))
    with pytest.raises(errors.ArgumentError, match="a last stride of 1"):
        arrays.require("x", x.transpose(1, 2), arrays.INT32, (3, 5, 2))
    p = Problem(2)
    k, rows, query = tensors(p)
    wide = tamis.Query(*(torch.from_numpy(strided(x)) for x in p.query))
    wide = tamis.Query(*(w[..., : x.shape[-1]] for w, x in zip(wide, p.query)))
    want = stages.mqa_logits(k, rows, query).logits
    assert torch.equal(stages.mqa_logits(k, rows, wide).logits, want)


def test_bfloat16_and_packed_dtypes_are_taken():
    p = Problem(3, layout="mxfp4_split")
    k, rows, query = tensors(p)
    weights = query.weights.to(torch.bfloat16)
    want = stages.mqa_logits(k, rows, query._replace(weights=weights.float())).logits
    k = tamis.KCache.split(k.codes.view(torch.int8), k.scales.view(torch.float8_e8m0fnu))
    codes = query.codes
    if hasattr(torch, "float4_e2m1fn_x2"):
        codes = codes.view(torch.float4_e2m1fn_x2)
    packed = tamis.Query(codes, query.scales.view(torch.float8_e8m0fnu), weights)
    got = stages.mqa_logits(k, rows, packed).logits
    assert torch.equal(got, want)
    rounded = stages.mqa_logits(k, rows, packed, dtype="bfloat16").logits
    assert rounded.dtype == torch.bfloat16 and torch.equal(rounded, want.to(torch.bfloat16))


def test_bfloat16_queries_are_prepared():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 8, 128, generator=generator).to(torch.bfloat16)
    w = torch.randn(3, 8, generator=generator).to(torch.bfloat16)
    table = torch.randn(9, 64, generator=generator)
    positions = torch.tensor([0, 8, 3])
    made = stages.q_prepare(q, positions, table, w, weights_dtype="bfloat16")
    assert made.weights.dtype == torch.bfloat16
    bits = q.view(torch.int16).numpy().view(np.uint16)
    codes, scales, weights = tamis.reference.q_prepare(
        bits, positions.numpy(), table.numpy(), w.float().numpy()
    )
    assert np.array_equal(made.codes.numpy(), codes) and np.array_equal(made.scales.numpy(), scales)
    assert torch.equal(made.weights, torch.from_numpy(weights).to(torch.bfloat16))


def test_dlpack_of_torch_has_the_types_that_numpy_lacks():
    class Dlpack:
        def __init__(self, x):
            self.x = x
            self.__dlpack__, self.__dlpack_device__ = x.__dlpack__, x.__dlpack_device__

    x = torch.zeros(3, 4, dtype=torch.bfloat16)
    v = arrays.view("x", Dlpack(x[1:]))
    assert (v.dtype, v.shape, v.pointer) == ("bfloat16", (2, 4), x[1:].data_ptr())


def test_prepared_calls_exchange_tensors():
    p, other = Problem(1, rows=4), Problem(2, rows=4)
    k, rows, query = tensors(p)
    blocks = stages.source(k, rows, query, 8, 5).blocks
    call = stages.consume.prepare(k, rows, query, blocks, 16)
    fresh = tamis.Query(*map(torch.from_numpy, other.query))
    call.update({"query.codes": fresh.codes, "query.scales": fresh.scales})
    call.update({"query.weights": fresh.weights})
    assert torch.equal(call.run().positions, stages.consume(k, rows, fresh, blocks, 16).positions)
    with pytest.raises(errors.ArgumentError, match=r"blocks: required int32 \[4, 5\]"):
        call.update({"blocks": blocks.long()})
    with pytest.raises(errors.ArgumentError, match="strides"):
        call.update({"blocks": torch.zeros(4, 9, dtype=torch.int32)[:, :5]})
    with pytest.raises(
        errors.ArgumentError, match="blocks: required an array on cpu, found one on"
    ):
        call.update({"blocks": blocks.to("meta")})
    call.update({"blocks": blocks.numpy()})  # another kind of array that fits
    assert torch.equal(call.run().positions, stages.consume(k, rows, fresh, blocks, 16).positions)


def test_meta_tensors_are_refused():
    k, rows, query = tensors(Problem(1, layout="mxfp4_row"))
    with pytest.raises(
        errors.ArgumentError, match="rows.ke: required an array on cpu, found one on meta"
    ):
        stages.mqa_logits(k, rows._replace(ke=rows.ke.to("meta")), query)
    with pytest.raises(errors.ArgumentError, match="k.codes: required arrays on the CPU or a CUDA"):
        stages.mqa_logits(tamis.KCache.rows(k.codes.to("meta")), rows, query)


def test_traces_are_written_from_tensors(tmp_path):
    from test_traces import MODEL
    from test_traces import tensors as given

    made = {}
    for name, x in given().items():
        bits = x.dtype == np.uint16
        tensor = torch.from_numpy(x.view(np.int16) if bits else x)
        made[name] = tensor.view(torch.bfloat16) if bits else tensor
    tamis.traces.write(tmp_path / "t.safetensors", MODEL, made)
    tamis.traces.write(tmp_path / "n.safetensors", MODEL, given())
    assert (tmp_path / "t.safetensors").read_bytes() == (tmp_path / "n.safetensors").read_bytes()
