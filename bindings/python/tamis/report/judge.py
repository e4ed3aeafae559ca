# SPDX-License-Identifier: MIT
"""Walks a result alongside the measuring pass and hands each list to verdict.py.

A consumer is judged by the blocks made here; where it differs and the result's own blocks do too,
also by those, so that one fault at the source is not reported again by every consumer. The classes
that only the plain C tier computes are tried for the first rows that differ in each list.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..traces import Result, Trace, TraceLayer
from . import ranks, verdict
from .engine import Engine

SLOW_ROWS = 8  # rows of a list that the slow classes are tried on


class Judge:
    """Of one result, or of none: then every call does nothing."""

    def __init__(
        self, trace: Trace, result: Result | None, engine: Engine, plain: Engine, keep: int
    ) -> None:
        self._trace, self._result = trace, result
        self._fast, self._plain, self._keep = engine, plain, keep
        self._topk = trace.model.index_topk
        self._size = trace.model.candidate_block_size
        self._width = trace.model.candidate_topk_blocks
        self._tallies: dict[str, verdict.Tally] = {}
        self._rounding = verdict.Rounding()
        self._notes = verdict.Notes()
        self._source: TraceLayer | None = None

    def begin(self, layer: TraceLayer) -> None:
        self._notes = verdict.Notes()
        if layer.role.role == "source":
            self._source = layer

    # ---- one list of one row -----------------------------------------------------------------

    def full(
        self, layer: TraceLayer, row: int, keys: ranks.Keys, expected: ranks.Positions
    ) -> None:
        found = self._found(layer, row)
        if found is None:
            return
        name = f"layer {layer.layer}"
        difference = verdict.compare(found, expected, keys)
        self._rounding.explain(name, difference, partial(self._selects_full, layer, row, found))
        self._notes.look(difference, found, expected, int(layer.ks[row]), None)
        difference = self._counted(layer, row, difference, len(expected))
        self._note(name, row, difference, len(expected), False)

    def blocks(
        self, layer: TraceLayer, row: int, keys: ranks.Keys, expected: ranks.Positions
    ) -> None:
        found = self._their_blocks(row)
        if found is None:
            return
        difference = verdict.compare_blocks(found, expected, ranks.block_keys(keys, self._size))
        self._rounding.explain("blocks", difference, partial(self._publishes, layer, row, found))
        self._note("blocks", row, difference, len(expected), False)

    def consumer(
        self,
        layer: TraceLayer,
        row: int,
        keys: ranks.Keys,
        expected: ranks.Positions,
        blocks: ranks.Positions,
        full: ranks.Positions,
    ) -> None:
        found = self._found(layer, row)
        if found is None:
            return
        name, followed = f"layer {layer.layer}", False
        difference = verdict.compare_in_pool(found, keys, blocks, self._size, self._topk)
        theirs = self._their_blocks(row)
        other = theirs is not None and not np.array_equal(verdict.prefix(theirs), blocks)
        if difference and other and theirs is not None:
            follows = verdict.compare_in_pool(found, keys, theirs, self._size, self._topk)
            if verdict.rank_of(follows) < verdict.rank_of(difference):
                difference, followed = follows, True
        sets = [blocks] + ([theirs] if other and theirs is not None else [])
        self._rounding.explain(name, difference, partial(self._consumes, layer, row, found, sets))
        self._notes.look(difference, found, expected, int(layer.ks[row]), full)
        difference = self._counted(layer, row, difference, len(expected))
        self._note(name, row, difference, len(expected), followed)

    # ---- what the result holds ---------------------------------------------------------------

    def _found(self, layer: TraceLayer, row: int) -> NDArray[np.int64] | None:
        if self._result is None or layer.layer not in self._result.selected:
            return None
        return np.asarray(self._result.selected[layer.layer][row], np.int64)

    def _their_blocks(self, row: int) -> NDArray[np.int64] | None:
        if self._result is None or self._result.blocks is None:
            return None
        return np.asarray(self._result.blocks[row], np.int64)

    def _counted(
        self, layer: TraceLayer, row: int, difference: verdict.Difference | None, expected: int
    ) -> verdict.Difference | None:
        """A list that is right but for its count.<layer> is wrong for it."""
        counts = self._result.counts.get(layer.layer) if self._result else None
        wrong = verdict.VERDICTS.index(verdict.WRONG)
        if counts is None or int(counts[row]) == expected or verdict.rank_of(difference) == wrong:
            return difference
        return verdict.wrong_count_tensor(expected, int(counts[row]))

    def _note(
        self, name: str, row: int, difference: verdict.Difference | None, expected: int, own: bool
    ) -> None:
        where = {
            "row": row,
            "request": int(self._trace.request[row]),
            "token": int(self._trace.position[row]),
        }
        tally = self._tallies.setdefault(name, verdict.Tally(name, self._keep))
        tally.row(where, difference, expected, own)

    # ---- rounding ----------------------------------------------------------------------------

    def _engine_of(self, numerics: str) -> Engine:
        return self._plain if numerics in verdict.SLOW_CLASSES else self._fast

    def _keys(self, layer: TraceLayer, row: int, numerics: str) -> ranks.Keys:
        visible = max(0, int(layer.ke[row] - layer.ks[row]))
        scores = self._engine_of(numerics).scores(layer, row, row + 1, numerics)[0, :visible]
        return ranks.score_keys(scores)

    def _selects_full(
        self, layer: TraceLayer, row: int, found: NDArray[np.int64], numerics: str
    ) -> bool:
        keys = self._keys(layer, row, numerics)
        return verdict.agrees(verdict.compare(found, ranks.best(keys, self._topk), keys))

    def _publishes(
        self, layer: TraceLayer, row: int, found: NDArray[np.int64], numerics: str
    ) -> bool:
        keys = self._keys(layer, row, numerics)
        chosen, _ = ranks.publish(keys, self._size, self._width)
        maxima = ranks.block_keys(keys, self._size)
        return verdict.agrees(verdict.compare_blocks(found, chosen, maxima))

    def _consumes(
        self,
        layer: TraceLayer,
        row: int,
        found: NDArray[np.int64],
        sets: list[ranks.Positions],
        numerics: str,
    ) -> bool:
        """On these blocks, and on those that the class itself publishes."""
        visible = max(0, int(layer.ke[row] - layer.ks[row]))
        tried = list(sets)
        if self._source is not None and self._source.present:
            keys = self._keys(self._source, row, numerics)
            tried.append(ranks.publish(keys, self._size, self._width)[0])
        members = verdict.prefix(found)
        for blocks in tried:
            pool = ranks.pool_of(blocks, self._size, visible)
            places = np.searchsorted(pool, members)
            if places.size and (
                places.max() >= len(pool) or not np.array_equal(pool[places], members)
            ):
                continue
            scores = self._engine_of(numerics).pool_scores(layer, row, pool, numerics)
            keys = ranks.score_keys(scores)
            if verdict.agrees(verdict.compare(places, ranks.best(keys, self._topk), keys)):
                return True
        return False

    # ---- the whole ---------------------------------------------------------------------------

    def data(self) -> dict[str, Any] | None:
        if self._result is None:
            return None
        tallies = sorted(self._tallies.values(), key=lambda t: t.name != "blocks")
        worst = max((t.verdict for t in tallies), key=verdict.VERDICTS.index, default=verdict.GOOD)
        names = {f"layer {layer.layer}" for layer in self._trace.layers if layer.present}
        if self._source is not None:
            names.add("blocks")
        return {
            "verdict": worst,
            "lists": [t.data() for t in tallies],
            "not_in_the_result": sorted(names - set(self._tallies)),
        }
