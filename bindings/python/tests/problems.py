# SPDX-License-Identifier: MIT
"""Random problems for the tests: K in any layout, rows, queries, and what a row sees, in numpy."""

import numpy as np

import tamis

LAYOUTS = ("mxfp4_page", "mxfp4_split", "mxfp4_row")


class Problem:
    """R rows over a few requests of K in one layout; ``codes`` and ``scales`` by request."""

    def __init__(
        self,
        seed=0,
        rows=5,
        heads=8,
        dim=128,
        length=200,
        layout="mxfp4_page",
        page_size=16,
        wide=False,
        starts=False,
    ):
        rng = self.rng = np.random.default_rng(seed)
        self.rows_count, self.heads, self.dim, self.layout = rows, heads, dim, layout
        self.page_size = page_size
        half, groups = dim // 2, dim // 32
        requests = 2
        pages_each = -(-length // page_size)
        n = requests * pages_each * page_size
        codes = rng.integers(0, 256, (n, half), np.uint8)
        scales = self._scales((n, groups), wide)
        table = rng.permutation(requests * pages_each).astype(np.int32).reshape(requests, -1)
        self.request = rng.integers(0, requests, rows).astype(np.int32)
        ke = rng.integers(0, length + 1, rows).astype(np.int32)
        ke[0] = length
        ks = rng.integers(0, 20, rows).astype(np.int32) if starts else None
        if layout == "mxfp4_page":
            self.k = paged(codes, scales, page_size)
            self.rows = tamis.Rows(ke, ks, self.request, table)
            slots = table[:, :, None] * page_size + np.arange(page_size)
            self.slots = slots.reshape(requests, -1)[self.request]
        else:
            first = self.request * (n // requests)
            self.k = (
                tamis.KCache.split(codes, scales)
                if layout == "mxfp4_split"
                else tamis.KCache.rows(np.concatenate([codes, scales], axis=1))
            )
            begin = first.astype(np.int32) if ks is None else first.astype(np.int32) + ks
            self.rows = tamis.Rows(np.maximum(first + ke, 0).astype(np.int32), begin)
            self.slots = np.arange(n)[None].repeat(rows, 0)
        self.codes, self.scales = codes, scales
        self.query = tamis.Query(
            rng.integers(0, 256, (rows, heads, half), np.uint8),
            self._scales((rows, heads, groups), wide),
            rng.standard_normal((rows, heads)).astype(np.float32),
        )

    def _scales(self, shape, wide):
        if wide:
            return self.rng.integers(0, 256, shape, np.uint8)
        return self.rng.integers(118, 134, shape).astype(np.uint8)

    def interval(self, r):
        start = 0 if self.rows.ks is None else int(self.rows.ks[r])
        return start, max(int(self.rows.ke[r]) - start, 0)

    def keys(self, r):
        """Codes and scales of the positions that row r sees."""
        start, n = self.interval(r)
        at = self.slots[r][start : start + n]
        return self.codes[at], self.scales[at]

    def scores(self, r, numerics="exact"):
        codes, scales = self.keys(r)
        q = self.query
        return tamis.reference.scores(
            codes, scales, q.codes[r], q.scales[r], q.weights[r], numerics
        )


def paged(codes, scales, page_size, stride=0):
    """K in pages: a page's codes, then its scales; in pages of ``stride`` bytes where given."""
    n, half = codes.shape
    pages = n // page_size
    size = page_size * (half + scales.shape[1])
    data = np.random.default_rng(1).integers(0, 256, (pages, max(size, stride)), np.uint8)
    data[:, : page_size * half] = codes.reshape(pages, -1)
    data[:, page_size * half : size] = scales.reshape(pages, -1)
    return tamis.KCache.pages(data, page_size, head_dim=half * 2)


def bits(x):
    """float32 as its bits, so that NaN and zeros compare as they are."""
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def strided(x, gap=3):
    """The same values in rows with a gap of poison between them."""
    wide = np.full((*x.shape[:-1], x.shape[-1] + gap), 77, x.dtype)
    out = wide[..., : x.shape[-1]]
    out[...] = x
    return out
