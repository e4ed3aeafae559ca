# SPDX-License-Identifier: MIT
"""What the calls of stages share: the tuples that they return, and groups of pointers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import arrays
from ._calls import Call, numerics_code, output
from .arrays import (
    FLOATS,
    INT32,
    Maker,
    dimension,
    require,
    stride,
)
from .errors import ArgumentError
from .views import KCache, Query, Rows, Selection, fill_query, fill_rows, weights_type

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


def typed(name: str, x: Any, kind: type) -> None:
    """x has to be one of the package's own."""
    if not isinstance(x, kind):
        raise ArgumentError(name, f"a tamis.{kind.__name__}", type(x).__name__)


def device_of(k: KCache) -> arrays.Device:
    """Where K lies."""
    typed("k", k, KCache)
    return k.device


def point_rows(call: Call[Any], rows: Rows) -> Any:
    """The rows; their C view."""
    typed("rows", rows, Rows)
    views = rows.views(call.device)
    struct = call.struct.rows
    fill_rows(struct, views)
    for name, v in views:
        call.point(name, v, struct)
    return struct


def point_key(call: Call[Any], k: KCache) -> None:
    """K."""
    struct = call.struct.k
    k.fill(struct)
    for name, v in k.tensors():
        call.point(name, v, struct)


def point_query(call: Call[Any], query: Query, rows: int) -> None:
    """Queries, of as many rows."""
    typed("query", query, Query)
    c, s, w = query.views(call.device)
    if c.shape[0] != rows:
        raise ArgumentError("query.codes", f"{rows} rows, as rows.ke has", f"{c.shape[0]}")
    struct = call.struct.query
    fill_query(struct, c, s, w)
    for name, v in (("query.codes", c), ("query.scales", s), ("query.weights", w)):
        call.point(name, v, struct)


def check_pages(k: KCache, rows: Rows) -> None:
    """K in pages is found through a page table."""
    if k.layout == "mxfp4_page" and rows.page_table is None:
        raise ArgumentError("rows.page_table", "one, as K lies in pages", "None")


def point_scored(call: Call[Any], k: KCache, rows: Rows, query: Query, numerics: str) -> int:
    """K, rows and queries; the number of rows."""
    call.struct.numerics = numerics_code(numerics)
    point_key(call, k)
    count = int(point_rows(call, rows).count)
    check_pages(k, rows)
    point_query(call, query, count)
    return count


_SELECTED = (
    ("positions", "int32"),
    ("slots", "int64"),
    ("scores", "float32"),
    ("counts", "int32"),
)


def point_selection(
    call: Call[Any],
    rows: int,
    topk: int,
    want: Sequence[str],
    out: Selection | None,
    maker: Maker,
) -> Selection:
    """The outputs of a selection: the caller's, or new ones of those wanted."""
    struct = call.struct.selection
    struct.topk = topk = dimension("selection.topk", topk, 1, 4096)
    if out is not None:
        typed("out", out, Selection)
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


def point_lists(
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


def point_rope(call: Call[Any], table: Any) -> None:
    """The rotary table."""
    v = require("rope", table, FLOATS, (None, 64), call.device)
    struct = call.struct.rope
    call.point("rope", v, struct, "table")
    struct.type = weights_type(v)
    struct.positions = v.shape[0]
    struct.row_stride = stride(v, 0, 64)


def longest_row(rows: Rows, device: arrays.Device) -> int:
    """The largest number of positions that a row sees, read on the CPU."""
    if device.kind != "cpu":
        raise ArgumentError("columns", f"given for arrays on {device}", "None")
    views = dict(rows.views(device))
    length = arrays.int32_values(views["rows.ke"]).astype(np.int64)
    if "rows.ks" in views:
        length -= arrays.int32_values(views["rows.ks"])
    return max(0, int(length.max(initial=0)))


def point_published(
    call: Call[Any], rows: int, width: int, out: Blocks | None, maker: Maker | None
) -> Blocks:
    """The outputs of a publish."""
    width = dimension("topk_blocks", width, 1, 4096)
    given = out or Blocks(None, None)
    blocks, b = output(call.device, "blocks", given.blocks, maker, "int32", (rows, width))
    counts, n = output(call.device, "counts", given.counts, maker, "int32", (rows,))
    if b is not None:
        call.point("out.blocks", b, writable=True)
        call.struct.blocks_stride = stride(b, 0, width)
    if n is not None:
        call.point("out.block_counts", n, attribute="counts", writable=True)
    return Blocks(blocks, counts)
