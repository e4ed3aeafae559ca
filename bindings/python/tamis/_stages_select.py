# SPDX-License-Identifier: MIT
"""Stages that select: publish, expand, topk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _abi
from ._backend import Backend
from ._calls import Call, Stage, output
from ._stage_parts import (
    WANT,
    Blocks,
    Expanded,
    point_lists,
    point_published,
    point_rows,
    point_selection,
)
from .arrays import (
    FLOAT32,
    FLOATS,
    INT32,
    Maker,
    Stream,
    dimension,
    integer,
    require,
    stride,
)
from .errors import ArgumentError
from .views import Rows, Selection, weights_type


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
    count = int(point_rows(call, rows).count)
    v = require("block_max", block_max, FLOAT32, (count, None), v.device)
    call.point("block_max", v)
    a.block_max_stride = stride(v, 0, v.shape[1])
    a.block_size = integer("block_size", block_size)
    a.topk_blocks = topk_blocks = dimension("topk_blocks", topk_blocks, 1, 4096)
    maker = Maker(block_max, v.device) if out is None else None
    return call.finish(point_published(call, count, topk_blocks, out, maker))


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
    count = int(point_rows(call, rows).count)
    a.width = point_lists(call, "candidates", candidates, count)
    a.candidate_size = candidate_size = dimension("candidate_size", candidate_size, 1, 128)
    a.block_size = block_size = integer("block_size", block_size)
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
        count = int(point_rows(call, rows).count)
        v = require("logits", logits, FLOATS, (count, None), v.device)
    call.point("logits", v)
    a.logits_type, a.logits_stride, a.width = weights_type(v), stride(v, 0, v.shape[1]), v.shape[1]
    if columns is not None:
        call.point("columns", require("columns", columns, INT32, (count,), v.device))
    if blocks is not None:
        a.block_size = block_size = integer("block_size", block_size)
        b = require("blocks", blocks, INT32, (count, v.shape[1] // max(block_size, 1)), v.device)
        call.point("blocks", b)
        a.blocks_stride = stride(b, 0, b.shape[1])
    a.page_size = integer("page_size", page_size)
    made = point_selection(call, count, topk, want, out, Maker(logits, v.device))
    return call.finish(made)
