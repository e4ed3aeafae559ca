# SPDX-License-Identifier: MIT
"""Stages that score: mqa_logits, block_max, sparse_mqa_logits."""

from __future__ import annotations

from typing import Any

from . import _abi, arrays
from ._backend import Backend
from ._calls import Call, Stage, float_type, output
from ._stage_parts import (
    Logits,
    device_of,
    longest_row,
    point_lists,
    point_rows,
    point_scored,
)
from .arrays import (
    FLOATS,
    Maker,
    Stream,
    dimension,
    integer,
    require,
    stride,
)
from .views import KCache, Query, Rows, weights_type


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
        "mqa_logits", _abi.MqaLogitsArgs(), device_of(k), backend, threads, stream, None
    )
    a = call.struct
    count = point_scored(call, k, rows, query, numerics)
    given = out or Logits(None, None)
    if columns is None:
        if given.logits is not None:
            columns = arrays.view("out.logits", given.logits).shape[1]
        elif given.block_max is not None and given.logits is None and k.device.kind != "cpu":
            columns = arrays.view("out.block_max", given.block_max).shape[1] * block_size
        else:
            columns = longest_row(rows, k.device)
    a.columns = columns = dimension("columns", columns, 0, 2**31 - 1)
    a.block_size = integer("block_size", block_size)
    maker = Maker(rows.ke, k.device) if out is None else None
    made = _logits(call, given.logits, maker if logits else None, dtype, (count, columns))
    width = -(-columns // block_size) if block_size > 0 else 0
    if given.block_max is not None:
        width = arrays.view("out.block_max", given.block_max).shape[1]
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
    count = int(point_rows(call, rows).count)
    v = require("logits", logits, FLOATS, (count, None), v.device)
    call.point("logits", v)
    a.logits_type, a.logits_stride = weights_type(v), stride(v, 0, v.shape[1])
    a.block_size = integer("block_size", block_size)
    width = -(-v.shape[1] // block_size) if block_size > 0 else 0
    if out is not None:
        width = arrays.view("out.block_max", out).shape[1]
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
        "sparse_mqa_logits",
        _abi.SparseMqaLogitsArgs(),
        device_of(k),
        backend,
        threads,
        stream,
        None,
    )
    a = call.struct
    count = point_scored(call, k, rows, query, numerics)
    a.block_size = integer("block_size", block_size)
    a.width = point_lists(call, "blocks", blocks, count, counts, physical)
    maker = Maker(blocks, k.device) if out is None else None
    return call.finish(_logits(call, out, maker, dtype, (count, a.width * block_size)))
