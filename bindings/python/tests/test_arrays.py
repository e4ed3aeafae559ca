# SPDX-License-Identifier: MIT
"""Arrays of any kind: what is taken without a copy, and what is refused with both values."""

import numpy as np
import pytest
from problems import Problem, strided

import tamis
from tamis import arrays
from tamis.errors import ArgumentError, GeometryError, LayoutError


class Dlpack:
    """An object of no known kind that hands out DLPack capsules of a numpy array."""

    def __init__(self, array):
        self.array = array
        self.given = 0

    def __dlpack__(self, **options):
        self.given += 1
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def refusal(*args, **kwargs):
    with pytest.raises(ArgumentError) as caught:
        arrays.require(*args, **kwargs)
    return caught.value


def test_numpy_is_viewed_not_copied():
    x = np.arange(24, dtype=np.int32).reshape(4, 6)[::2, 1:5]
    v = arrays.require("x", x, arrays.INT32, (2, None))
    assert v.pointer == x.ctypes.data
    assert (v.shape, v.strides, v.device) == ((2, 4), (12, 1), arrays.CPU)


def test_dlpack_is_viewed_not_copied():
    x = np.arange(24, dtype=np.int64).reshape(4, 6)
    for part in (x, x[1:3, ::1], x[::2]):
        held = Dlpack(part)
        v = arrays.require("x", held, arrays.INT64, (None, 6))
        assert (v.pointer, v.dtype, v.shape) == (part.ctypes.data, "int64", part.shape)
        assert v.strides[0] == part.strides[0] // 8
        assert held.given == 1


def test_dlpack_keeps_the_memory_until_the_view_goes():
    import gc
    import weakref

    class Array(np.ndarray):
        pass

    x = np.zeros((3, 3), np.float32).view(Array)
    gone = weakref.ref(x)
    v = arrays.view("x", Dlpack(x))
    del x
    gc.collect()
    assert gone() is not None and v.shape == (3, 3)
    del v
    gc.collect()
    assert gone() is None


def test_dlpack_of_another_device_is_refused():
    class Elsewhere(Dlpack):
        def __dlpack_device__(self):
            return (10, 0)

    with pytest.raises(ArgumentError, match="x: required an array on the CPU or a CUDA device"):
        arrays.view("x", Elsewhere(np.zeros(3)))


@pytest.mark.parametrize(
    "array, found",
    [
        (np.zeros((3, 4), np.int64), "int64 [3, 4]"),
        (np.zeros((3, 5), np.int32), "int32 [3, 5]"),
        (np.zeros(3, np.int32), "int32 [3]"),
        (np.zeros((3, 4), ">i4"), "byte-swapped int32 [3, 4]"),
        (Dlpack(np.zeros((3, 4), np.float64)), "float64 [3, 4]"),
    ],
)
def test_dtype_and_shape_are_named_with_what_was_found(array, found):
    error = refusal("rows.ke", array, arrays.INT32, (None, 4))
    assert (error.name, error.required, error.found) == ("rows.ke", "int32 [*, 4]", found)
    assert error.status == -1 and isinstance(error, ValueError)
    assert str(error).startswith(f"rows.ke: required int32 [*, 4], found {found} (")


def test_strides_that_calls_cannot_take_are_refused():
    x = np.zeros((4, 8), np.int32)
    assert "a last stride of 1" in refusal("x", x[:, ::2], arrays.INT32, (4, 4)).required
    assert "strides (-8, 1)" in refusal("x", x[::-1], arrays.INT32, (4, 8)).found
    packed = np.zeros(3, [("a", np.int32), ("b", np.int16)])["a"]
    assert "parts of an element" in refusal("x", packed, arrays.INT32, (3,)).required
    odd = np.zeros(17, np.uint8)[1:].view(np.int32)
    if odd.ctypes.data % 4:
        assert "aligned to 4" in refusal("x", odd, arrays.INT32, (4,)).required


def test_outputs_have_to_be_writable():
    x = np.zeros((2, 3), np.int32)
    x.flags.writeable = False
    arrays.require("x", x, arrays.INT32, (2, 3))
    error = refusal("x", x, arrays.INT32, (2, 3), writable=True)
    assert error.found == "a read-only one"


@pytest.mark.parametrize("thing", [None, 3, [1, 2], "text"])
def test_what_is_no_array_is_refused(thing):
    assert refusal("q", thing, arrays.INT32, (2,)).found == type(thing).__name__


def test_any_one_byte_dtype_holds_codes():
    p = Problem(1, layout="mxfp4_split")
    want = tamis.stages.mqa_logits(p.k, p.rows, p.query).logits
    k = tamis.KCache.split(p.codes.view(np.int8), Dlpack(p.scales))
    query = tamis.Query(Dlpack(p.query.codes), p.query.scales.view(np.int8), p.query.weights)
    assert np.array_equal(tamis.stages.mqa_logits(k, p.rows, query).logits, want)


def test_ml_dtypes_bfloat16_is_taken_by_its_name():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.zeros((2, 4), ml_dtypes.bfloat16)
    assert arrays.require("x", x, arrays.BFLOAT16, (2, 4)).dtype == "bfloat16"


def test_caches_know_their_layouts():
    data = np.zeros((3, 8, 68), np.uint8)
    k = tamis.KCache.pages(data)
    assert (k.layout, k.head_dim, k.page_size, k.size) == ("mxfp4_page", 128, 8, 3)
    assert k.struct().stride == 8 * 68
    wide = np.zeros((3, 1024), np.uint8)[:, :600]
    assert tamis.KCache.pages(wide, 8).struct().stride == 1024
    assert tamis.KCache.rows(np.zeros((5, 34), np.uint8)).head_dim == 64
    assert (
        tamis.KCache.split(np.zeros((5, 32), np.uint8), np.zeros((5, 2), np.uint8)).head_dim == 64
    )
    with pytest.raises(ArgumentError, match="page_size"):
        tamis.KCache.pages(wide)
    with pytest.raises(LayoutError, match="k.codes: required 1088 bytes a page or more, found 600"):
        tamis.KCache.pages(wide, 16)
    with pytest.raises(GeometryError):
        tamis.KCache.split(np.zeros((5, 48), np.uint8), np.zeros((5, 3), np.uint8))
    with pytest.raises(ArgumentError, match=r"k.scales: required a one-byte dtype \[5, 4\]"):
        tamis.KCache.split(np.zeros((5, 64), np.uint8), np.zeros((6, 4), np.uint8))


def test_strided_arrays_keep_their_gaps():
    p = Problem(2, rows=6)
    want = tamis.stages.source(p.k, p.rows, p.query, 16, 4)
    query = tamis.Query(*(strided(x) for x in p.query))
    out = tamis.stages.SourceOutput(
        tamis.Selection(strided(np.zeros((6, 16), np.int32)), counts=np.zeros(6, np.int32)),
        strided(np.zeros((6, 4), np.int32)),
        np.zeros(6, np.int32),
    )
    got = tamis.stages.source(p.k, p.rows, query, 16, 4, out=out)
    assert got.selection.positions is out.selection.positions
    assert np.array_equal(got.selection.positions, want.selection.positions)
    assert np.array_equal(got.blocks, want.blocks)
    assert (out.blocks.base[:, 4:] == 77).all() and (
        out.selection.positions.base[:, 16:] == 77
    ).all()
    assert all((x.base[..., -3:] == 77).all() for x in query)


def test_every_argument_may_be_a_dlpack_object():
    p = Problem(5, rows=4, starts=True)
    want = tamis.stages.mqa_logits(p.k, p.rows, p.query, block_max=True)
    rows = tamis.Rows(*map(Dlpack, p.rows))
    query = tamis.Query(*map(Dlpack, p.query))
    k = tamis.KCache.pages(Dlpack(p.k.codes), p.page_size)
    got = tamis.stages.mqa_logits(k, rows, query, block_max=True)
    assert np.array_equal(got.logits, want.logits)
    out = tamis.stages.Logits(np.empty_like(want.logits), np.empty_like(want.block_max))
    tamis.stages.mqa_logits(k, rows, query, out=tamis.stages.Logits(*map(Dlpack, out)))
    assert np.array_equal(out.logits, want.logits)
