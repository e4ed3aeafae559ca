# SPDX-License-Identifier: MIT
"""K, queries and rows as calls take them: named arrays that are checked together.

Words are those of types.h: a *row* is one query token, a *position* one compressed position of a
request's context, a *block* some consecutive positions, a *slot* a place in a page.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _abi, arrays
from .arrays import BYTES, FLOATS, INT32, Device, View, require, stride
from .errors import ArgumentError, GeometryError, LayoutError

LAYOUTS = {
    "mxfp4_page": _abi.K_MXFP4_PAGE,
    "mxfp4_split": _abi.K_MXFP4_SPLIT,
    "mxfp4_row": _abi.K_MXFP4_ROW,
}


def weights_type(v: View) -> int:
    """TAMIS_F32 or TAMIS_BF16."""
    return _abi.F32 if v.dtype == "float32" else _abi.BF16


class Selection(NamedTuple):
    """What a row selects. Entries not asked for are None.

    positions ``int32 [R, topk]``: ascending from the row's first visible position, -1 in the tail;
    slots ``int64 [R, topk]``; scores ``float32 [R, topk]``, -inf in the tail; counts ``int32 [R]``.
    """

    positions: Any = None
    slots: Any = None
    scores: Any = None
    counts: Any = None


class KCache:
    """Index-K memory of one layer, never copied. Made by ``pages``, ``split`` or ``rows``."""

    __slots__ = ("_scales", "_view", "codes", "head_dim", "layout", "page_size", "scales", "size")

    def __init__(
        self,
        layout: str,
        head_dim: int,
        page_size: int,
        codes: Any,
        scales: Any,
        view: View,
        scales_view: View | None,
    ) -> None:
        self.layout = layout
        self.head_dim = head_dim
        self.page_size = page_size
        self.size = view.shape[0]
        self.codes = codes
        self.scales = scales
        self._view = view
        self._scales = scales_view

    def __reduce__(self) -> Any:
        """Made anew of its arrays: addresses are of one process."""
        if self.layout == "mxfp4_page":
            return KCache.pages, (self.codes, self.page_size, self.head_dim)
        if self.layout == "mxfp4_split":
            return KCache.split, (self.codes, self.scales)
        return KCache.rows, (self.codes,)

    @classmethod
    def pages(cls, data: Any, page_size: int | None = None, head_dim: int = 128) -> KCache:
        """``mxfp4_page``, the servers' layout: a page's codes, slot-major, then its scales.

        data: bytes ``[pages, page_size, D/2 + D/32]`` (68 at D = 128), or ``[pages, bytes]`` with
        ``page_size``. The stride of the first dimension is the page stride.
        """
        row = row_bytes(head_dim)
        if page_size is not None:
            page_size = arrays.integer("page_size", page_size)
        v = arrays.view("k.codes", data)
        if len(v.shape) == 3:
            v = require("k.codes", data, BYTES, (None, page_size, row), dense=2)
            page_size = v.shape[1]
        else:
            if page_size is None:
                raise ArgumentError("page_size", "given with [pages, bytes]", "None")
            v = require("k.codes", data, BYTES, (None, None))
            if v.shape[1] < page_size * row:
                raise LayoutError(
                    "k.codes", f"{page_size * row} bytes a page or more", f"{v.shape[1]}"
                )
        return cls("mxfp4_page", head_dim, page_size, data, None, v, None)

    @classmethod
    def split(cls, codes: Any, scales: Any) -> KCache:
        """``mxfp4_split``: codes ``[N, D/2]`` and scales ``[N, D/32]``, bytes."""
        c = require("k.codes", codes, BYTES, (None, None))
        head_dim = c.shape[1] * 2
        row_bytes(head_dim)
        s = require("k.scales", scales, BYTES, (c.shape[0], head_dim // 32), c.device)
        return cls("mxfp4_split", head_dim, 0, codes, scales, c, s)

    @classmethod
    def rows(cls, data: Any) -> KCache:
        """``mxfp4_row``: bytes ``[N, D/2 + D/32]``, 68 at D = 128."""
        v = require("k.codes", data, BYTES, (None, None))
        if v.shape[1] not in (34, 68):
            raise LayoutError("k.codes", "rows of 68 bytes (34 at 64 dims)", f"{v.shape[1]}")
        return cls("mxfp4_row", 128 if v.shape[1] == 68 else 64, 0, data, None, v, None)

    @property
    def device(self) -> Device:
        """Where its memory lies."""
        return self._view.device

    def struct(self) -> _abi.KCacheStruct:
        """The C view of it; the arrays have to outlive its use."""
        k = _abi.KCacheStruct()
        self.fill(k)
        return k

    def fill(self, k: _abi.KCacheStruct) -> None:
        """Writes the C view of it."""
        v = self._view
        k.layout = LAYOUTS[self.layout]
        k.head_dim = self.head_dim
        k.page_size = self.page_size
        k.size = v.shape[0]
        least = self.page_size * row_bytes(self.head_dim) if self.page_size else v.shape[1]
        k.stride = stride(v, 0, least)
        k.codes = v.pointer
        if self._scales is not None:
            k.scales = self._scales.pointer
            k.scales_stride = stride(self._scales, 0, self._scales.shape[1])

    def tensors(self) -> list[tuple[str, View]]:
        """Named views, for calls that keep and exchange them."""
        out = [("k.codes", self._view)]
        if self._scales is not None:
            out.append(("k.scales", self._scales))
        return out


def row_bytes(head_dim: int) -> int:
    """Bytes of one position's K: 68 at 128 dims, 34 at 64."""
    if head_dim not in (64, 128):
        raise GeometryError("head_dim", "64 or 128", str(head_dim))
    return head_dim // 2 + head_dim // 32


class Query(NamedTuple):
    """Prepared queries: MXFP4 codes ``[R, H, D/2]``, scales ``[R, H, D/32]``, weights ``[R, H]``
    (float32 or bfloat16), as ``q_prepare`` makes them."""

    codes: Any
    scales: Any
    weights: Any

    def views(self, device: Device | None = None) -> tuple[View, View, View]:
        """Checked against one another; R is free."""
        c = require("query.codes", self.codes, BYTES, (None, None, None), device)
        rows, heads, half = c.shape
        s = require("query.scales", self.scales, BYTES, (rows, heads, half // 16), c.device)
        w = require("query.weights", self.weights, FLOATS, (rows, heads), c.device)
        return c, s, w


def fill_query(q: _abi.QueryStruct, c: View, s: View, w: View) -> None:
    """The C view of a query."""
    _rows, heads, half = c.shape
    q.heads = heads
    q.head_dim = half * 2
    q.weights_type = weights_type(w)
    q.codes = c.pointer
    q.scales = s.pointer
    q.weights = w.pointer
    q.codes_head_stride = stride(c, 1, half)
    q.codes_row_stride = stride(c, 0, heads * half)
    q.scales_head_stride = stride(s, 1, half // 16)
    q.scales_row_stride = stride(s, 0, heads * half // 16)
    q.weights_row_stride = stride(w, 0, heads)


class Rows(NamedTuple):
    """Where each row finds its K: positions ``ks[r] .. ke[r]-1`` (ks None: 0) of its request,
    through ``page_table [requests, pages]`` where K lies in pages, of K's rows otherwise.

    All int32; ``request [R]`` is each row's row of the page table (None: 0).
    """

    ke: Any
    ks: Any = None
    request: Any = None
    page_table: Any = None

    def views(self, device: Device) -> list[tuple[str, View]]:
        """Named views of what is given."""
        ke = require("rows.ke", self.ke, INT32, (None,), device)
        out = [("rows.ke", ke)]
        for name, x in (("rows.ks", self.ks), ("rows.request", self.request)):
            if x is not None:
                out.append((name, require(name, x, INT32, ke.shape, device)))
        if self.page_table is not None:
            table = require("rows.page_table", self.page_table, INT32, (None, None), device)
            out.append(("rows.page_table", table))
        return out


def fill_rows(r: _abi.RowsStruct, views: list[tuple[str, View]]) -> None:
    """The C view of rows."""
    for name, v in views:
        setattr(r, name[5:], v.pointer)
        if name == "rows.ke":
            r.count = v.shape[0]
        elif name == "rows.page_table":
            r.requests, r.page_table_width = v.shape
            r.page_table_stride = stride(v, 0, v.shape[1])
