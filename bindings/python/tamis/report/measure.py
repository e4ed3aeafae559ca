# SPDX-License-Identifier: MIT
"""One pass over a trace: everything that the page says, as one dictionary.

The library scores; all that follows (order, cuts, blocks, selections) is numpy on those scores, so
a fault of a selecting kernel cannot hide. Layers go one after another and rows in tiles, so that
memory is the trace, one tile of scores, and a meter; between layers only the published blocks of
the rows at hand are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..traces import Trace, TraceLayer
from . import meters, ranks
from .engine import Engine
from .judge import Judge

TILE_BYTES = 32 << 20  # of scores; the keys of a row and a few masks come on top
MAX_ROWS = 1024
RUN = 32  # neighbouring rows that are taken together when not all are
HEAT_CELLS = 1 << 20  # over all heat maps of the page
HEAT_SIZE = (256, 512)

Progress = Callable[[str, float], None]


def choose_runs(rows: int, limit: int) -> list[tuple[int, int]]:
    """All rows, or evenly spread runs of neighbours with the first and the last row among them."""
    if rows <= limit:
        return [(0, rows)] if rows else []
    count = max(1, limit // RUN)
    length = min(RUN, limit)
    if count == 1:
        return [(rows - length, rows)]
    starts = [i * (rows - length) // (count - 1) for i in range(count)]
    return [(start, start + length) for start in starts]


class RowSet:
    """The rows that are measured, and where each stands among them."""

    def __init__(self, trace: Trace, limit: int) -> None:
        self.runs = choose_runs(trace.rows, limit)
        self.rows = np.concatenate([np.arange(*run) for run in self.runs] or [np.arange(0)])
        self.request = trace.request[self.rows]
        self.token = trace.position[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def tiles(self, layer: TraceLayer) -> Iterator[tuple[int, int, int]]:
        """(place among the measured rows, first row, row past the last) of each tile."""
        place = 0
        for first, last in self.runs:
            at = first
            while at < last:
                end = at + 1
                widest = int(layer.ke[at] - layer.ks[at])
                while end < last:
                    widest = max(widest, int(layer.ke[end] - layer.ks[end]))
                    if (end + 1 - at) * widest * 4 > TILE_BYTES:
                        break
                    end += 1
                yield place, at, end
                place += end - at
                at = end


def heat_size(maps: int, rows: int) -> tuple[int, int]:
    """Largest height and width of each heat map of a page that shows this many."""
    height, width = min(HEAT_SIZE[0], max(rows, 1)), HEAT_SIZE[1]
    shrink = min(1.0, (HEAT_CELLS / (max(maps, 1) * height * width)) ** 0.5)
    return max(1, int(height * shrink)), max(1, int(width * shrink))


class Pass:
    """The walk over layers and rows, with what it needs at hand."""

    def __init__(
        self, trace: Trace, engine: Engine, rows: RowSet, judge: Judge, progress: Progress
    ) -> None:
        self.trace, self.engine, self.rows, self.judge = trace, engine, rows, judge
        self.topk = trace.model.index_topk
        self.size = trace.model.candidate_block_size
        self.width = trace.model.candidate_topk_blocks
        self.present = trace.present
        self.blocks: list[ranks.Positions] | None = None
        self.k_spans: dict[int, NDArray[np.int64]] = {}
        self._progress, self._done = progress, 0

    def heat(self, places: int) -> meters.Heat:
        maps = len(self.present) + (self.size > 0)
        return meters.Heat(len(self.rows), places, *heat_size(maps, len(self.rows)))

    def step(self, layer: TraceLayer, rows: int) -> None:
        self._done += rows
        total = len(self.rows) * len(self.present)
        self._progress(f"layer {layer.layer}", self._done / max(total, 1))

    def _blocks_of(self, place: int, row: int) -> ranks.Positions:
        """What a consumer may select in: made here, or the trace's own."""
        if self.blocks is not None:
            return self.blocks[place]
        return np.asarray(self.trace.blocks[row], np.int64)

    def run(self) -> dict[str, Any]:
        layers, blocks = [], None
        for layer in self.trace.layers:
            entry: dict[str, Any] = {
                "layer": layer.layer,
                "role": layer.role.role,
                "ratio": layer.role.ratio,
                "k_owner": layer.role.k_owner,
                "source": layer.role.source,
                "present": layer.present,
            }
            if layer.present:
                source = layer.role.role == "source"
                meter = meters.Blocks(self.heat(self._most_blocks(layer))) if source else None
                entry |= self._layer(layer, meter)
                if meter:
                    blocks = meter.data()
            layers.append(entry)
        return {
            "layers": layers,
            "blocks": blocks,
            "widest": max((e["widest"] for e in layers if e["present"]), default=0),
        }

    def _widest(self, layer: TraceLayer) -> int:
        rows = self.rows.rows
        return int((layer.ke[rows] - layer.ks[rows]).max(initial=0))

    def _most_blocks(self, layer: TraceLayer) -> int:
        return -(-self._widest(layer) // self.size)

    def _layer(self, layer: TraceLayer, published: meters.Blocks | None) -> dict[str, Any]:
        meter = meters.Layer(self.topk, self.heat(self._widest(layer)))
        if layer.role.k_owner not in self.k_spans:
            self.k_spans = {layer.role.k_owner: meters.spans_of(layer.k.scales)}
        spans = self.k_spans[layer.role.k_owner]
        q_spans = meters.spans_of(layer.query.scales)
        if published:
            self.blocks = []
        self.judge.begin(layer)
        for place, first, last in self.rows.tiles(layer):
            keys = ranks.score_keys(self.engine.scores(layer, first, last))
            for row in range(first, last):
                visible = max(0, int(layer.ke[row] - layer.ks[row]))
                line = keys[row - first, :visible]
                self._row(layer, meter, published, place + row - first, row, line, spans, q_spans)
            self.step(layer, last - first)
        data = meter.data()
        data["q_spans"] = meters.count_spans(q_spans)
        data["k_spans"] = meters.count_spans(spans)
        data["widest"] = self._widest(layer)
        return data

    def _row(
        self,
        layer: TraceLayer,
        meter: meters.Layer,
        published: meters.Blocks | None,
        place: int,
        row: int,
        keys: ranks.Keys,
        k_spans: NDArray[np.int64],
        q_spans: NDArray[np.int64],
    ) -> None:
        request, token = int(self.rows.request[place]), int(self.rows.token[place])
        start, visible = int(layer.ks[row]), len(keys)
        seen = k_spans[start : start + visible]
        row_span = -1 if (q_spans[row] < 0).any() else int(q_spans[row].max(initial=0))
        full = ranks.best(keys, self.topk)
        meter.all_scores.add(keys)
        if layer.role.role == "consumer":
            blocks = self._blocks_of(place, row)
            pool = ranks.pool_of(blocks, self.size, visible)
            inside = keys[pool]
            chosen = pool[ranks.best(inside, self.topk)]
            meter.recall(row, full, chosen)
            meter.cut(row, ranks.cut_of(inside, self.topk))
            meter.pool_scores.add(inside)
            meter.counted(keys, len(pool), seen[pool], row_span)
            self.judge.consumer(layer, row, keys, chosen, blocks, full)
        else:
            chosen = full
            meter.cut(row, ranks.cut_of(keys, self.topk))
            meter.counted(keys, visible, seen, row_span)
            self.judge.full(layer, row, keys, chosen)
        meter.chose(place, request, token, visible, chosen)
        if published and self.blocks is not None:
            ids, cut = ranks.publish(keys, self.size, self.width)
            self.blocks.append(ids.astype(np.int32))
            published.row(place, row, request, token, -(-visible // self.size), ids, cut)
            self.judge.blocks(layer, row, keys, ids)


def measure_trace(
    trace: Trace, engine: Engine, judge: Judge, limit: int, progress: Progress
) -> dict[str, Any]:
    """All layers of a trace, over at most `limit` rows."""
    rows = RowSet(trace, limit)
    data = Pass(trace, engine, rows, judge, progress).run()
    data["rows"] = {
        "in_trace": trace.rows,
        "measured": len(rows),
        "runs": len(rows.runs),
        "row": rows.rows.tolist(),
        "token": rows.token.tolist(),
        "request": rows.request.tolist(),
    }
    return data
