# SPDX-License-Identifier: MIT
"""Running sums of one list of selections (a layer's, or the published blocks), row by row.

A meter keeps what the page shows and forgets the row: its size does not depend on how long the
contexts are, and on the number of rows only by a few numbers each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import png
from .ranks import Cut, Keys, Positions, key_scores

DISTANCES = (1, 4, 16)  # tokens between the rows whose selections are compared
SPAN_NAMES = ("0", "1", "2", "3", "more", "NaN")
FIRST, NEWEST = 128, 1024  # positions at either end that selections are counted in
FAST_SPAN = 3  # src/kernels/cuda/score_fast.cuh: signed bytes hold a code shifted by 3
INTEGER_SPAN = 14  # src/kernels/cuda/score.cuh: spans of a query and a key together

_BIN_BITS = 18  # of a key: ten mantissa bits or so, far finer than a bar of the page


def spans_of(scales: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Largest minus smallest exponent of the last axis; -1 where a scale is NaN."""
    spans: NDArray[np.int64] = scales.max(-1).astype(np.int64) - scales.min(-1)
    spans[(scales == 255).any(-1)] = -1
    return spans


def count_spans(spans: NDArray[np.int64]) -> list[int]:
    """Counts by SPAN_NAMES."""
    places = np.where(spans < 0, 5, np.minimum(spans, 4))
    return [int(n) for n in np.bincount(places.ravel(), minlength=6)]


def quantiles(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, least, 5th percentile, median and largest; None of nothing."""
    array = np.asarray(values, np.float64)
    if array.size == 0:
        return None
    low, median = np.quantile(array, [0.05, 0.5])
    return {
        "mean": float(array.mean()),
        "least": float(array.min()),
        "p05": float(low),
        "median": float(median),
        "most": float(array.max()),
    }


class Overlap:
    """Share of a row's members that a row some tokens later keeps."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int, Positions]] = deque()
        self._shares: dict[int, list[float]] = {d: [] for d in DISTANCES}

    def row(self, request: int, token: int, members: Positions) -> None:
        recent = self._recent
        while recent and (recent[0][0] != request or recent[0][1] < token - max(DISTANCES)):
            recent.popleft()
        for _, earlier, before in recent:
            if token - earlier in self._shares and len(before):
                common = np.intersect1d(before, members, assume_unique=True).size
                self._shares[token - earlier].append(common / len(before))
        recent.append((request, token, members))

    def data(self) -> list[dict[str, Any]]:
        return [
            {"distance": d, "pairs": len(s), "share": quantiles(s)} for d, s in self._shares.items()
        ]


class Ties:
    """How many equal scores lie at the cut, and how many rows they cross it in."""

    def __init__(self) -> None:
        self._cuts: list[tuple[int, Cut]] = []
        self._rows = 0

    def row(self, row: int, cut: Cut | None) -> None:
        self._rows += 1
        if cut:
            self._cuts.append((row, cut))

    def data(self) -> dict[str, Any]:
        equal = [c.inside + c.outside for _, c in self._cuts]
        crossing = [(c.outside, c.inside, row) for row, c in self._cuts if c.outside]
        outside, inside, row = max(crossing, default=(0, 0, None))
        return {
            "rows": self._rows,
            "rows_with_a_cut": len(equal),
            "rows_crossed": len(crossing),
            "equal": quantiles(equal),
            "equal_as_bf16": quantiles([c.as_bf16 for _, c in self._cuts]),
            "worst": None if row is None else {"row": row, "inside": inside, "outside": outside},
        }


class Heat:
    """Selected members by row and position bin, at most `height` x `width` cells."""

    def __init__(self, rows: int, places: int, height: int, width: int) -> None:
        self.bin = max(1, -(-places // width))
        self.width = max(1, -(-places // self.bin))
        self.height = max(1, min(rows, height))
        self._rows = rows
        self._cells = np.zeros((self.height, self.width), np.int64)
        self._count = np.zeros(self.height, np.int64)
        self._places = places
        self._frontier = np.zeros(self.height, np.int64)

    def line_of(self, index: int) -> int:
        return index * self.height // max(self._rows, 1)

    def row(self, index: int, visible: int, members: Positions) -> None:
        line = self.line_of(index)
        self._frontier[line] = max(self._frontier[line], visible)
        self._cells[line] += np.bincount(members // self.bin, minlength=self.width)
        self._count[line] += 1

    def data(self) -> dict[str, Any]:
        """A cell's members per row are level * scale; a cell with any has a level of 1 or more."""
        mean = self._cells / np.maximum(self._count, 1)[:, None]
        top = float(mean.max(initial=0))
        scale = max(1.0, top / 255) if self._whole() else max(top, 1e-9) / 255
        levels = np.ceil(mean / scale - 1e-9).clip(0, 255).astype(np.uint8)
        return {
            "png": png.data_uri(levels),
            "width": self.width,
            "height": self.height,
            "bin": self.bin,
            "scale": scale,
            "most": top,
            "places": self._places,
            "frontier": self._frontier.tolist(),
        }

    def _whole(self) -> bool:
        return int(self._count.max(initial=0)) <= 1


class ScoreCounts:
    """A histogram of scores by key, finer than the page's: the range is known only at the end."""

    def __init__(self) -> None:
        self._counts = np.zeros(1 << _BIN_BITS, np.int64)

    def add(self, keys: Keys) -> None:
        places = keys >> np.uint32(32 - _BIN_BITS)
        self._counts += np.bincount(places, minlength=1 << _BIN_BITS)

    @staticmethod
    def _values() -> NDArray[np.float64]:
        middle = (np.arange(1 << _BIN_BITS, dtype=np.uint64) << (32 - _BIN_BITS)).astype(np.uint32)
        with np.errstate(invalid="ignore"):  # the lowest and highest keys are NaNs of every kind
            return key_scores(middle + np.uint32(1 << (31 - _BIN_BITS))).astype(np.float64)

    def range(self) -> tuple[float, float] | None:
        """From the ten-thousandth lowest finite score to the largest."""
        values = self._values()
        counts = np.where(np.isfinite(values), self._counts, 0)
        seen = np.flatnonzero(counts)
        if seen.size == 0:
            return None
        share = np.cumsum(counts) / counts.sum()
        low = float(values[int(np.searchsorted(share, 1e-4))])
        high = float(values[seen[-1]])
        if not high > low:
            return low - 1, low + 1
        near = 1e-6 * (high - low)  # the bin of zero has a subnormal in its middle
        return (0.0 if abs(low) < near else low), (0.0 if abs(high) < near else high)

    def bars(self, low: float, high: float, count: int) -> list[int]:
        """Counts in equal steps from low to high; what lies below counts in the first."""
        values = self._values()
        finite = np.isfinite(values)
        places = ((values[finite] - low) / (high - low) * count).clip(0, count - 1).astype(np.int64)
        sums = np.bincount(places, weights=self._counts[finite], minlength=count)
        return [int(n) for n in sums]


class Layer:
    """Everything the page says of one layer's selections."""

    def __init__(self, topk: int, heat: Heat) -> None:
        self.heat, self.overlap, self.ties = heat, Overlap(), Ties()
        self.all_scores, self.pool_scores = ScoreCounts(), ScoreCounts()
        self._topk = topk
        self._recall: list[float] = []
        self._recall_rows: list[int] = []
        self._thresholds: list[float] = []
        self._first = self._newest = 0
        self.scored = self.visible = self.selected = self.nan = self.infinite = 0
        self.fast = self.integer = 0

    def recall(self, row: int, full: Positions, chosen: Positions) -> None:
        if len(full):
            common = np.intersect1d(full, chosen, assume_unique=True).size
            self._recall.append(common / len(full))
            self._recall_rows.append(row)

    def cut(self, row: int, cut: Cut | None) -> None:
        self.ties.row(row, cut)
        if cut:
            score = float(key_scores(np.array([cut.key], np.uint32))[0])
            if np.isfinite(score):
                self._thresholds.append(score)

    def counted(self, keys: Keys, scored: int, spans: NDArray[np.int64], q_span: int) -> None:
        """Scores of a row's visible positions; `scored` of them, with these spans, were needed."""
        self.visible += len(keys)
        self.scored += scored
        self.nan += int(np.count_nonzero(keys == 0))
        self.infinite += int(np.count_nonzero((keys == 0xFF800000) | (keys == 0x007FFFFF)))
        if q_span >= 0:
            good = spans >= 0
            self.integer += int(np.count_nonzero(good & (spans <= INTEGER_SPAN - q_span)))
            if q_span <= FAST_SPAN:
                self.fast += int(np.count_nonzero(good & (spans <= FAST_SPAN)))

    def chose(self, index: int, request: int, token: int, visible: int, chosen: Positions) -> None:
        self.selected += len(chosen)
        self.heat.row(index, visible, chosen)
        self.overlap.row(request, token, chosen)
        self._first += int(np.count_nonzero(chosen < FIRST))
        self._newest += int(np.count_nonzero(chosen >= visible - NEWEST))

    def data(self) -> dict[str, Any]:
        recall = quantiles(self._recall)
        if recall:
            worst = int(np.argmin(self._recall))
            recall |= {"worst_row": self._recall_rows[worst]}
        return {
            "recall": recall,
            "recall_by_row": [round(v, 4) for v in self._recall],
            "ties": self.ties.data(),
            "overlap": self.overlap.data(),
            "heat": self.heat.data(),
            "scores": self._scores(),
            "scored": self.scored,
            "visible": self.visible,
            "selected": self.selected,
            "first": self._first,
            "newest": self._newest,
            "nan": self.nan,
            "infinite": self.infinite,
            "fast": self.fast,
            "integer": self.integer,
        }

    def _scores(self) -> dict[str, Any] | None:
        limits = self.all_scores.range()
        if limits is None:
            return None
        low, high = limits
        return {
            "low": low,
            "high": high,
            "all": self.all_scores.bars(low, high, 96),
            "pool": self.pool_scores.bars(low, high, 96),
            "threshold": quantiles(self._thresholds),
        }


class Blocks:
    """The published blocks: what rows keep of them, ties at their cut, where they lie."""

    def __init__(self, heat: Heat) -> None:
        self.heat, self.overlap, self.ties = heat, Overlap(), Ties()
        self.count = 0
        self._runs: list[int] = []

    def row(
        self,
        index: int,
        row: int,
        request: int,
        token: int,
        visible: int,
        blocks: Positions,
        cut: Cut | None,
    ) -> None:
        self.ties.row(row, cut)
        self.overlap.row(request, token, blocks)
        self.heat.row(index, visible, blocks)
        self.count += len(blocks)
        if len(blocks):
            self._runs.append(1 + int(np.count_nonzero(np.diff(blocks) != 1)))

    def data(self) -> dict[str, Any]:
        return {
            "ties": self.ties.data(),
            "overlap": self.overlap.data(),
            "heat": self.heat.data(),
            "published": self.count,
            "runs": quantiles(self._runs),
        }
