# SPDX-License-Identifier: MIT
"""The library's calls on rows of a trace: scores, and the two ways to a consumer's selection."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import stages
from .._backend import Backend
from ..traces import TraceLayer
from ..views import KCache, Query, Rows


def _query(layer: TraceLayer, first: int, last: int) -> Query:
    q = layer.query
    return Query(q.codes[first:last], q.scales[first:last], q.weights[first:last])


def _rows(layer: TraceLayer, first: int, last: int) -> Rows:
    return Rows(ke=layer.ke[first:last], ks=layer.ks[first:last])


class Engine:
    """Kernels of a tier on so many threads (None: one for each processor)."""

    def __init__(self, tier: Optional[str] = None, threads: Optional[int] = None) -> None:
        self._backend = Backend(tier or "auto", threads)
        self.tier = self._backend.tier
        self.threads = self._backend.threads
        self._how: dict[str, Any] = {"backend": self._backend, "threads": self.threads}

    def scores(
        self, layer: TraceLayer, first: int, last: int, numerics: str = "exact"
    ) -> NDArray[np.float32]:
        """[rows][longest]: scores of the visible positions of rows first .. last-1."""
        made = stages.mqa_logits(
            layer.k,
            _rows(layer, first, last),
            _query(layer, first, last),
            numerics=numerics,
            **self._how,
        )
        scores: NDArray[np.float32] = made.logits
        return scores

    def pool_scores(
        self, layer: TraceLayer, row: int, pool: NDArray[np.int64], numerics: str
    ) -> NDArray[np.float32]:
        """Scores of these positions of one row, in their order."""
        at = int(layer.ks[row]) + pool
        made = stages.mqa_logits(
            KCache.split(layer.k.codes[at], layer.k.scales[at]),
            Rows(ke=np.array([len(pool)], np.int32)),
            _query(layer, row, row + 1),
            numerics=numerics,
            **self._how,
        )
        scores: NDArray[np.float32] = made.logits[0]
        return scores

    def prepare_source(
        self, layer: TraceLayer, first: int, last: int, topk: int, size: int, width: int
    ) -> Any:
        """A source's (width blocks of size) or, with width 0, a full layer's call, to be run."""
        return stages.source.prepare(
            layer.k,
            _rows(layer, first, last),
            _query(layer, first, last),
            topk,
            width,
            block_size=size or 8,
            want=("positions",),
            **self._how,
        )

    def prepare_consume(
        self, layer: TraceLayer, first: int, last: int, topk: int, size: int, blocks: Any
    ) -> Any:
        """A consumer's call: only the blocks are scored."""
        return stages.consume.prepare(
            layer.k,
            _rows(layer, first, last),
            _query(layer, first, last),
            blocks,
            topk,
            block_size=size,
            want=("positions",),
            **self._how,
        )

    def prepare_dense(
        self, layer: TraceLayer, first: int, last: int, topk: int, size: int, blocks: Any
    ) -> Any:
        """The same selection by scoring everything."""
        return stages.dense.prepare(
            layer.k,
            _rows(layer, first, last),
            _query(layer, first, last),
            topk,
            blocks=blocks,
            block_size=size,
            want=("positions",),
            **self._how,
        )
