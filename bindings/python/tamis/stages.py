# SPDX-License-Identifier: MIT
"""Every stage of the indexer as a function, on numpy arrays, torch tensors and DLPack objects.

docs/kernels.md is the contract of each stage, docs/numerics.md its arithmetic to the bit. All are
called alike::

    selection = tamis.stages.consume(k, rows, query, blocks, topk=512)
    call = tamis.stages.consume.prepare(k, rows, query, blocks, topk=512)   # checked once
    call.update({"blocks": others}).run()                                  # a ctypes call

Common arguments:

* ``out``: arrays to write, strided as they like; without it outputs are made, numpy's or torch's
  as the inputs are. On a GPU without torch it has to be given.
* ``backend`` and ``threads``: CPU kernels of a tier, and the slices that a call is cut into.
  Results never depend on them.
* ``stream``: of a GPU; None is torch's current one. The call queues its work there and returns.
* ``numerics``: "exact" (default) or "bf16"; "dg_bf16" and "ref_bf16" on the ref tier.

On a GPU lengths, positions and ids are clamped by the kernels instead of refused, and a call can be
captured in a torch CUDA graph: make one eager call before, which loads the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _abi, arrays
from ._backend import Backend
from ._calls import Call, Stage, float_type, numerics_code, output
from .arrays import (
    BFLOAT16,
    FLOAT32,
    FLOATS,
    INT32,
    INT64,
    Maker,
    Stream,
    require,
    stride,
)
from .errors import ArgumentError
from .views import KCache, Query, Rows, Selection, fill_query, fill_rows, weights_type

__all__ = [
    "Blocks",
    "Call",
    "Expanded",
    "Logits",
    "block_max",
    "consume",
    "dense",
    "expand",
    "k_gather",
    "k_insert",
    "mqa_logits",
    "publish",
    "q_prepare",
    "source",
    "sparse_mqa_logits",
    "topk",
]

#: Entries of a Selection that calls make unless told otherwise.
WANT = ("positions", "counts")


class Blocks(NamedTuple):
    """Published blocks: ids ``int32 [R, topk_blocks]`` ascending, -1 tail; counts ``int32 [R]``."""

    blocks: Any
    counts: Any


class Expanded(NamedTuple):
    """What expand writes: blocks ``int32 [R, width]``, counts and columns ``int32 [R]``."""

    blocks: Any
    counts: Any
    columns: Any


class Logits(NamedTuple):
    """Scores ``[R, columns]`` and block maxima ``float32 [R, blocks]``; None where not made."""

    logits: Any
    block_max: Any


class Split(NamedTuple):
    """K as codes ``uint8 [N, D/2]`` and scales ``uint8 [N, D/32]``."""

    codes: Any
    scales: Any


class SourceOutput(NamedTuple):
    """What a source writes: its own selection and its published blocks."""

    selection: Selection
    blocks: Any
    counts: Any


# ---- parts that calls share -------------------------------------------------------------------


def _rows(call: Call[Any], rows: Rows) -> Any:
    views = rows.views(call.device)
    struct = call.struct.rows
    fill_rows(struct, views)
    for name, v in views:
        call.point(name, v, struct)
    return struct


def _key(call: Call[Any], k: KCache) -> None:
    struct = call.struct.k
    k.fill(struct)
    for name, v in k.tensors():
        call.point(name, v, struct)


def _query(call: Call[Any], query: Query, rows: int) -> None:
    c, s, w = query.views(call.device)
    if c.shape[0] != rows:
        raise ArgumentError("query.codes", f"{rows} rows, as rows.ke has", f"{c.shape[0]}")
    struct = call.struct.query
    fill_query(struct, c, s, w)
    for name, v in (("query.codes", c), ("query.scales", s), ("query.weights", w)):
        call.point(name, v, struct)


def _scored(call: Call[Any], k: KCache, rows: Rows, query: Query, numerics: str) -> int:
    """K, rows and queries; the number of rows."""
    call.struct.numerics = numerics_code(numerics)
    _key(call, k)
    count = int(_rows(call, rows).count)
    _query(call, query, count)
    return count


_SELECTED = (
    ("positions", "int32"),
    ("slots", "int64"),
    ("scores", "float32"),
    ("counts", "int32"),
)


def _selection(
    call: Call[Any],
    rows: int,
    topk: int,
    want: Sequence[str],
    out: Selection | None,
    maker: Maker,
) -> Selection:
    struct = call.struct.selection
    struct.topk = topk
    for name in want:
        if name not in Selection._fields:
            raise ArgumentError("want", "names of " + ", ".join(Selection._fields), repr(name))
    made = []
    for name, dtype in _SELECTED:
        shape = (rows,) if name == "counts" else (rows, topk)
        given = None if out is None else getattr(out, name)
        make = maker if out is None and name in want else None
        x, v = output(call.device, name, given, make, dtype, shape)
        if v is not None:
            call.point(f"out.{name}", v, struct, name, writable=True)
            if name != "counts":
                setattr(struct, f"{name}_stride", stride(v, 0, topk))
        made.append(x)
    return Selection(*made)


def _lists(
    call: Call[Any], name: str, x: Any, rows: int, counts: Any = None, physical: Any = None
) -> int:
    """Block lists with their counts and places; the width."""
    v = require(name, x, INT32, (rows, None), call.device)
    call.point(name, v)
    setattr(call.struct, f"{name}_stride", stride(v, 0, v.shape[1]))
    if counts is not None:
        call.point("counts", require("counts", counts, INT32, (rows,), call.device))
    if physical is not None:
        p = require("physical", physical, INT32, v.shape, call.device)
        call.point("physical", p)
        call.struct.physical_stride = stride(p, 0, v.shape[1])
    return v.shape[1]


def _rope(call: Call[Any], table: Any) -> None:
    v = require("rope", table, FLOATS, (None, 64), call.device)
    struct = call.struct.rope
    call.point("rope", v, struct, "table")
    struct.type = weights_type(v)
    struct.positions = v.shape[0]
    struct.row_stride = stride(v, 0, 64)


def _longest(rows: Rows, device: arrays.Device) -> int:
    """The largest number of positions that a row sees, read on the CPU."""
    if device.kind != "cpu":
        raise ArgumentError("columns", f"given for arrays on {device}", "None")
    ke = np.asarray(rows.ke)
    length = ke if rows.ks is None else ke - np.asarray(rows.ks)
    return max(0, int(length.max())) if length.size else 0


# ---- preparing --------------------------------------------------------------------------------


@Stage
def q_prepare(
    q: Any,
    positions: Any,
    rope: Any,
    weights: Any = None,
    *,
    weights_dtype: str = "float32",
    out: Query | None = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Query]:
    """Queries rotated, rounded to bfloat16 and quantised to MXFP4; weights scaled.

    Args:
        q: bfloat16 ``[T, H, D]``.
        positions: int64 ``[T]``, token positions, rows of ``rope``.
        rope: float32 or bfloat16 ``[P, 64]``: cos of 32 pairs, then sin.
        weights: float32 or bfloat16 ``[T, H]``; None leaves weights out.
        weights_dtype: of the weights made.
    """
    v = require("q", q, BFLOAT16, (None, None, None))
    tokens, heads, dim = v.shape
    call: Call[Query] = Call(
        "q_prepare", _abi.QPrepareArgs(), v.device, backend, threads, stream, None
    )
    a = call.struct
    a.heads, a.head_dim, a.tokens = heads, dim, tokens
    call.point("q", v)
    a.q_token_stride, a.q_head_stride = stride(v, 0, heads * dim), stride(v, 1, dim)
    call.point("positions", require("positions", positions, INT64, (tokens,), v.device))
    _rope(call, rope)
    maker = Maker(q, v.device) if out is None else None
    given = out or Query(None, None, None)
    a.weights_in_type = a.weights_out_type = _abi.F32
    weights_out = None
    if weights is not None:
        w = require("weights", weights, FLOATS, (tokens, heads), v.device)
        call.point("weights", w, attribute="weights_in")
        a.weights_in_type, a.weights_in_stride = weights_type(w), stride(w, 0, heads)
        dtype = weights_dtype
        if given.weights is not None:
            found = require("out.weights", given.weights, FLOATS, (tokens, heads))
            dtype = "float32" if found.dtype == "float32" else "bfloat16"
        a.weights_out_type = float_type("weights_dtype", dtype)
        weights_out, o = output(
            call.device, "weights", given.weights, maker, dtype, (tokens, heads)
        )
        if o is None:
            raise ArgumentError("out.weights", "an array, as weights are given", "None")
        call.point("out.weights", o, attribute="weights_out", writable=True)
        a.weights_out_stride = stride(o, 0, heads)
    shape = (tokens, heads, dim // 2)
    codes, c = output(call.device, "codes", given.codes, maker, "uint8", shape)
    scales, s = output(
        call.device, "scales", given.scales, maker, "uint8", (tokens, heads, dim // 32)
    )
    if c is None or s is None:
        raise ArgumentError("out", "codes and scales", "None")
    call.point("out.codes", c, writable=True)
    call.point("out.scales", s, writable=True)
    a.codes_row_stride, a.codes_head_stride = stride(c, 0, heads * dim // 2), stride(c, 1, dim // 2)
    a.scales_row_stride = stride(s, 0, heads * dim // 32)
    a.scales_head_stride = stride(s, 1, dim // 32)
    return call.finish(Query(codes, scales, weights_out))


@Stage
def k_insert(
    x: Any,
    positions: Any,
    slots: Any,
    k: KCache,
    norm_weight: Any,
    rope: Any,
    *,
    eps: Any = 1e-6,
    ratio: int = 1,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[None]:
    """Keys normalised, rotated at their group's first token, quantised and stored in their slots.

    Args:
        x: bfloat16 ``[T, D]``.
        positions: int64 ``[T]``, token positions. Only the last token of a group writes.
        slots: int64 ``[T]``: page * page_size + slot, or rows of K; negative: skipped. They differ.
        k: the cache that is written.
        norm_weight: float32 or bfloat16 ``[D]``.
        rope: float32 or bfloat16 ``[P, 64]``.
        eps: added to the mean square: a number, or float32 ``[1]`` where the work runs.
        ratio: 1 or 2.
    """
    v = require("x", x, BFLOAT16, (None, k.head_dim), k.device)
    tokens = v.shape[0]
    call: Call[None] = Call(
        "k_insert", _abi.KInsertArgs(), k.device, backend, threads, stream, None
    )
    a = call.struct
    a.ratio, a.tokens = ratio, tokens
    call.point("x", v)
    a.x_stride = stride(v, 0, k.head_dim)
    call.point("positions", require("positions", positions, INT64, (tokens,), k.device))
    call.point("slots", require("slots", slots, INT64, (tokens,), k.device))
    norm = require("norm_weight", norm_weight, FLOATS, (k.head_dim,), k.device)
    call.point("norm_weight", norm)
    a.norm_weight_type = weights_type(norm)
    if isinstance(eps, (int, float)):
        number = Maker(x, k.device).empty((1,), "float32")
        number[:] = eps  # on a GPU a kernel of the current stream, which a capture records
        eps = number
    call.point("eps", require("eps", eps, FLOAT32, (1,), k.device))
    _rope(call, rope)
    _key(call, k)
    for name, written in k.tensors():
        if not written.writable:
            raise ArgumentError(name, "an array that can be written", "a read-only one")
    return call.finish(None)


@Stage
def k_gather(
    k: KCache,
    rows: Rows,
    start: Any,
    size: int,
    *,
    out: Split | None = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Split]:
    """The K of each row's interval copied to contiguous rows ``start[i] ..`` of ``size``.

    Args:
        start: int64 ``[R]``, the first destination row of each interval; they do not overlap.
        size: destination rows. Rows outside the intervals keep what they hold.
    """
    call: Call[Split] = Call(
        "k_gather", _abi.KGatherArgs(), k.device, backend, threads, stream, None
    )
    a = call.struct
    _key(call, k)
    count = int(_rows(call, rows).count)
    call.point("start", require("start", start, INT64, (count,), k.device))
    a.size = size
    maker = Maker(rows.ke, k.device) if out is None else None
    given = out or Split(None, None)
    half, groups = k.head_dim // 2, k.head_dim // 32
    codes, c = output(call.device, "codes", given.codes, maker, "uint8", (size, half))
    scales, s = output(call.device, "scales", given.scales, maker, "uint8", (size, groups))
    if c is None or s is None:
        raise ArgumentError("out", "codes and scales", "None")
    call.point("out.codes", c, writable=True)
    call.point("out.scales", s, writable=True)
    a.codes_stride, a.scales_stride = stride(c, 0, half), stride(s, 0, groups)
    return call.finish(Split(codes, scales))


# ---- scoring ----------------------------------------------------------------------------------


def _logits(
    call: Call[Any], given: Any, maker: Maker | None, dtype: str, shape: tuple[int, int]
) -> Any:
    if given is not None:
        found = require("out.logits", given, FLOATS, shape, call.device)
        dtype = "float32" if found.dtype == "float32" else "bfloat16"
    x, v = output(call.device, "logits", given, maker, dtype, shape)
    call.struct.logits_type = float_type("dtype", dtype)
    if v is not None:
        call.point("out.logits", v, writable=True)
        call.struct.logits_stride = stride(v, 0, shape[1])
    return x


@Stage
def mqa_logits(
    k: KCache,
    rows: Rows,
    query: Query,
    *,
    columns: int | None = None,
    logits: bool = True,
    block_max: bool = False,
    block_size: int = 8,
    dtype: str = "float32",
    numerics: str = "exact",
    out: Logits | None = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Logits]:
    """Scores of every visible position, -inf up to ``columns``, and largest scores of blocks.

    Args:
        columns: width of the scores; None on the CPU: the longest row's.
        logits, block_max: which of the two are made.
        dtype: of the scores: float32, or bfloat16, the float32 score rounded once.
    """
    call: Call[Logits] = Call(
        "mqa_logits", _abi.MqaLogitsArgs(), k.device, backend, threads, stream, None
    )
    a = call.struct
    count = _scored(call, k, rows, query, numerics)
    given = out or Logits(None, None)
    if columns is None:
        if given.logits is not None:
            columns = int(given.logits.shape[1])
        elif given.block_max is not None and given.logits is None and k.device.kind != "cpu":
            columns = int(given.block_max.shape[1]) * block_size
        else:
            columns = _longest(rows, k.device)
    a.columns, a.block_size = columns, block_size
    maker = Maker(rows.ke, k.device) if out is None else None
    made = _logits(call, given.logits, maker if logits else None, dtype, (count, columns))
    width = -(-columns // block_size) if block_size > 0 else 0
    if given.block_max is not None:
        width = int(given.block_max.shape[1])
    best, b = output(
        call.device,
        "block_max",
        given.block_max,
        maker if block_max else None,
        "float32",
        (count, width),
    )
    if b is not None:
        call.point("out.block_max", b, writable=True)
        a.block_max_stride = stride(b, 0, width)
    return call.finish(Logits(made, best))


@Stage
def block_max(
    logits: Any,
    rows: Rows,
    *,
    block_size: int = 8,
    out: Any = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Any]:
    """The largest score of each block's visible positions: float32 ``[R, ceil(columns / size)]``.

    Args:
        logits: float32 or bfloat16 ``[R, columns]``.
    """
    v = require("logits", logits, FLOATS, (None, None))
    call: Call[Any] = Call(
        "block_max", _abi.BlockMaxArgs(), v.device, backend, threads, stream, None
    )
    a = call.struct
    count = int(_rows(call, rows).count)
    v = require("logits", logits, FLOATS, (count, None), v.device)
    call.point("logits", v)
    a.logits_type, a.logits_stride = weights_type(v), stride(v, 0, v.shape[1])
    a.block_size = block_size
    width = -(-v.shape[1] // block_size) if block_size > 0 else 0
    if out is not None:
        width = int(out.shape[1])
    maker = Maker(logits, v.device) if out is None else None
    x, b = output(call.device, "block_max", out, maker, "float32", (count, width))
    assert b is not None
    call.point("out.block_max", b, attribute="block_max", writable=True)
    a.block_max_stride = stride(b, 0, width)
    return call.finish(x)


@Stage
def sparse_mqa_logits(
    k: KCache,
    rows: Rows,
    query: Query,
    blocks: Any,
    *,
    counts: Any = None,
    physical: Any = None,
    block_size: int = 8,
    dtype: str = "float32",
    numerics: str = "exact",
    out: Any = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Any]:
    """Scores of the positions inside listed blocks: ``[R, width * block_size]``, -inf elsewhere.

    Args:
        blocks: int32 ``[R, width]``, ids anchored at ks / block_size as ``expand`` writes them.
        counts: int32 ``[R]``: blocks that count; None: all.
        physical: int32 ``[R, width]``: where each block lies, see stages.h.
    """
    call: Call[Any] = Call(
        "sparse_mqa_logits", _abi.SparseMqaLogitsArgs(), k.device, backend, threads, stream, None
    )
    a = call.struct
    count = _scored(call, k, rows, query, numerics)
    a.block_size = block_size
    a.width = _lists(call, "blocks", blocks, count, counts, physical)
    maker = Maker(blocks, k.device) if out is None else None
    return call.finish(_logits(call, out, maker, dtype, (count, a.width * block_size)))


# ---- selecting --------------------------------------------------------------------------------


@Stage
def publish(
    block_max: Any,
    rows: Rows,
    topk_blocks: int,
    *,
    block_size: int = 8,
    out: Blocks | None = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Blocks]:
    """The best ``topk_blocks`` blocks of each row, that of the newest position always among them.

    Args:
        block_max: float32 ``[R, blocks]``.
    """
    v = require("block_max", block_max, FLOAT32, (None, None))
    call: Call[Blocks] = Call(
        "publish", _abi.PublishArgs(), v.device, backend, threads, stream, None
    )
    a = call.struct
    count = int(_rows(call, rows).count)
    v = require("block_max", block_max, FLOAT32, (count, None), v.device)
    call.point("block_max", v)
    a.block_max_stride, a.block_size, a.topk_blocks = (
        stride(v, 0, v.shape[1]),
        block_size,
        topk_blocks,
    )
    maker = Maker(block_max, v.device) if out is None else None
    return call.finish(_published(call, count, topk_blocks, out, maker))


def _published(
    call: Call[Any], rows: int, width: int, out: Blocks | None, maker: Maker | None
) -> Blocks:
    given = out or Blocks(None, None)
    blocks, b = output(call.device, "blocks", given.blocks, maker, "int32", (rows, width))
    counts, n = output(call.device, "counts", given.counts, maker, "int32", (rows,))
    if b is not None:
        call.point("out.blocks", b, writable=True)
        call.struct.blocks_stride = stride(b, 0, width)
    if n is not None:
        call.point("out.block_counts", n, attribute="counts", writable=True)
    return Blocks(blocks, counts)


@Stage
def expand(
    candidates: Any,
    rows: Rows,
    *,
    candidate_size: int = 8,
    block_size: int = 8,
    keep_duplicates: bool = False,
    fixed_width: bool = False,
    out: Expanded | None = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Expanded]:
    """Candidate lists of any kind made into ascending sparse blocks (spec 5.4).

    Args:
        candidates: int32 ``[R, width]``: any order, duplicates, -1, out of range.
        candidate_size: positions of a candidate block, a multiple of ``block_size``.
        keep_duplicates: keep ids that come twice.
        fixed_width: fill the tail by repeating the last id instead of -1.
    """
    v = require("candidates", candidates, INT32, (None, None))
    call: Call[Expanded] = Call(
        "expand", _abi.ExpandArgs(), v.device, backend, threads, stream, None
    )
    a = call.struct
    count = int(_rows(call, rows).count)
    a.width = _lists(call, "candidates", candidates, count)
    a.candidate_size, a.block_size = candidate_size, block_size
    a.flags = keep_duplicates * _abi.EXPAND_KEEP_DUPLICATES + fixed_width * _abi.EXPAND_FIXED_WIDTH
    width = a.width * candidate_size // block_size if block_size > 0 else 0
    maker = Maker(candidates, v.device) if out is None else None
    given = out or Expanded(None, None, None)
    blocks, b = output(call.device, "blocks", given.blocks, maker, "int32", (count, width))
    counts, n = output(call.device, "counts", given.counts, maker, "int32", (count,))
    columns, c = output(call.device, "columns", given.columns, maker, "int32", (count,))
    if b is None:
        raise ArgumentError("out.blocks", "an array", "None")
    call.point("out.blocks", b, writable=True)
    a.blocks_stride = stride(b, 0, width)
    for name, view in (("counts", n), ("columns", c)):
        if view is not None:
            call.point(f"out.{name}", view, writable=True)
    return call.finish(Expanded(blocks, counts, columns))


@Stage
def topk(
    logits: Any,
    rows: Rows | None,
    topk: int,
    *,
    columns: Any = None,
    blocks: Any = None,
    block_size: int = 8,
    page_size: int = 0,
    want: Sequence[str] = WANT,
    out: Selection | None = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Selection]:
    """The best ``topk`` valid columns of each row, ascending: higher scores first, NaN last, equal
    scores by the lower column.

    Args:
        logits: float32 or bfloat16 ``[R, width]``.
        rows: which columns are visible; None: all of them.
        columns: int32 ``[R]``: leading columns that count; None: all.
        blocks: int32 ``[R, width / block_size]``: what the columns stand for, as ``expand`` writes
            it; positions are written then.
        page_size: of the page table in ``rows``, where slots are wanted.
    """
    v = require("logits", logits, FLOATS, (None, None))
    call: Call[Selection] = Call("topk", _abi.TopkArgs(), v.device, backend, threads, stream, None)
    a = call.struct
    count = v.shape[0]
    if rows is None:
        a.rows.count = count
    else:
        count = int(_rows(call, rows).count)
        v = require("logits", logits, FLOATS, (count, None), v.device)
    call.point("logits", v)
    a.logits_type, a.logits_stride, a.width = weights_type(v), stride(v, 0, v.shape[1]), v.shape[1]
    if columns is not None:
        call.point("columns", require("columns", columns, INT32, (count,), v.device))
    if blocks is not None:
        a.block_size = block_size
        b = require("blocks", blocks, INT32, (count, v.shape[1] // max(block_size, 1)), v.device)
        call.point("blocks", b)
        a.blocks_stride = stride(b, 0, b.shape[1])
    a.page_size = page_size
    made = _selection(call, count, topk, want, out, Maker(logits, v.device))
    return call.finish(made)


# ---- the two levels ---------------------------------------------------------------------------


@Stage
def consume(
    k: KCache,
    rows: Rows,
    query: Query,
    blocks: Any,
    topk: int,
    *,
    counts: Any = None,
    physical: Any = None,
    block_size: int = 8,
    numerics: str = "exact",
    want: Sequence[str] = WANT,
    out: Selection | None = None,
    workspace: Any = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Selection]:
    """Each row's best ``topk`` positions inside its published blocks.

    Args:
        blocks: int32 ``[R, width]``: ids of the row's blocks, -1 is none; any order.
        counts: int32 ``[R]``: ids that count; None: all.
        physical: int32 ``[R, width]``: where each block lies, see stages.h.
        want: which of positions, slots, scores, counts are made.
        workspace: bytes, aligned to 64; None: taken here.
    """
    call: Call[Selection] = Call(
        "consume", _abi.ConsumeArgs(), k.device, backend, threads, stream, workspace
    )
    a = call.struct
    count = _scored(call, k, rows, query, numerics)
    a.block_size = block_size
    a.width = _lists(call, "blocks", blocks, count, counts, physical)
    made = _selection(call, count, topk, want, out, Maker(blocks, k.device))
    return call.finish(made, count)


@Stage
def source(
    k: KCache,
    rows: Rows,
    query: Query,
    topk: int,
    topk_blocks: int = 0,
    *,
    block_size: int = 8,
    numerics: str = "exact",
    want: Sequence[str] = WANT,
    out: SourceOutput | None = None,
    workspace: Any = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[SourceOutput]:
    """Every visible position scored: the row's best ``topk``, and its best blocks.

    Args:
        topk_blocks: blocks to publish; 0: a full layer, which publishes none.
        want: which of positions, slots, scores, counts are made.
        workspace: bytes, aligned to 64; None: taken here.
    """
    call: Call[SourceOutput] = Call(
        "source", _abi.SourceArgs(), k.device, backend, threads, stream, workspace
    )
    a = call.struct
    count = _scored(call, k, rows, query, numerics)
    a.block_size, a.topk_blocks = block_size, topk_blocks
    maker = Maker(rows.ke, k.device)
    published = Blocks(None, None)
    if topk_blocks:
        given = None if out is None else Blocks(out.blocks, out.counts)
        published = _published(call, count, topk_blocks, given, maker if out is None else None)
    chosen = _selection(call, count, topk, want, None if out is None else out.selection, maker)
    return call.finish(SourceOutput(chosen, published.blocks, published.counts), count)


@Stage
def dense(
    k: KCache,
    rows: Rows,
    query: Query,
    topk: int,
    *,
    blocks: Any = None,
    counts: Any = None,
    block_size: int = 8,
    numerics: str = "exact",
    want: Sequence[str] = WANT,
    out: Selection | None = None,
    workspace: Any = None,
    backend: Backend | None = None,
    threads: int = 1,
    stream: Stream = None,
) -> Call[Selection]:
    """Everything scored, then selected, inside ``blocks`` when they are given: the results of
    ``consume`` (or of a full layer) at the price of scoring all."""
    call: Call[Selection] = Call(
        "dense", _abi.DenseArgs(), k.device, backend, threads, stream, workspace
    )
    a = call.struct
    count = _scored(call, k, rows, query, numerics)
    a.block_size = block_size
    if blocks is not None:
        a.width = _lists(call, "blocks", blocks, count, counts)
    made = _selection(call, count, topk, want, out, Maker(rows.ke, k.device))
    return call.finish(made, count)
