# SPDX-License-Identifier: MIT
"""The two levels: source, consume, and dense, which does either at the price of scoring all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _abi
from ._backend import Backend
from ._calls import Call, Stage
from ._stage_parts import (
    WANT,
    Blocks,
    SourceOutput,
    device_of,
    point_lists,
    point_published,
    point_scored,
    point_selection,
)
from .arrays import (
    Maker,
    Stream,
    dimension,
    integer,
)
from .views import KCache, Query, Rows, Selection


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
        "consume", _abi.ConsumeArgs(), device_of(k), backend, threads, stream, workspace
    )
    a = call.struct
    count = point_scored(call, k, rows, query, numerics)
    a.block_size = integer("block_size", block_size)
    a.width = point_lists(call, "blocks", blocks, count, counts, physical)
    made = point_selection(call, count, topk, want, out, Maker(blocks, k.device))
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
        "source", _abi.SourceArgs(), device_of(k), backend, threads, stream, workspace
    )
    a = call.struct
    count = point_scored(call, k, rows, query, numerics)
    a.block_size = integer("block_size", block_size)
    a.topk_blocks = topk_blocks = dimension("topk_blocks", topk_blocks, 0, 4096)
    maker = Maker(rows.ke, k.device)
    published = Blocks(None, None)
    if topk_blocks:
        given = None if out is None else Blocks(out.blocks, out.counts)
        published = point_published(call, count, topk_blocks, given, maker if out is None else None)
    chosen = point_selection(call, count, topk, want, None if out is None else out.selection, maker)
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
        "dense", _abi.DenseArgs(), device_of(k), backend, threads, stream, workspace
    )
    a = call.struct
    count = point_scored(call, k, rows, query, numerics)
    a.block_size = integer("block_size", block_size)
    if blocks is not None:
        a.width = point_lists(call, "blocks", blocks, count, counts)
    made = point_selection(call, count, topk, want, out, Maker(rows.ke, k.device))
    return call.finish(made, count)
