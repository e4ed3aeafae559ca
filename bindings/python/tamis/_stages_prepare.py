# SPDX-License-Identifier: MIT
"""Stages that make queries and keys: q_prepare, k_insert, k_gather."""

from __future__ import annotations

from typing import Any

from . import _abi
from ._backend import Backend
from ._calls import Call, Stage, float_type, output
from ._stage_parts import (
    Split,
    device_of,
    check_pages,
    point_key,
    point_rope,
    point_rows,
)
from .arrays import (
    BFLOAT16,
    FLOAT32,
    FLOATS,
    INT64,
    Maker,
    Stream,
    require,
    stride,
)
from .errors import ArgumentError
from .views import KCache, Query, Rows, weights_type


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
    point_rope(call, rope)
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
    where = device_of(k)
    v = require("x", x, BFLOAT16, (None, k.head_dim), where)
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
    point_rope(call, rope)
    point_key(call, k)
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
        "k_gather", _abi.KGatherArgs(), device_of(k), backend, threads, stream, None
    )
    a = call.struct
    point_key(call, k)
    count = int(point_rows(call, rows).count)
    check_pages(k, rows)
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
