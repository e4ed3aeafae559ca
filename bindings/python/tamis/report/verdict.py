# SPDX-License-Identifier: MIT
"""A result's lists held against those made here, and what kind of difference each is.

The words and their order are those of `tamis check` (command/lists.c, command/judge.c): a list's
own fault comes before any question of membership; equal scores at the cut are "tie order only";
what another numerics class selects is "rounding only"; the rest is wrong. `tamis check` recomputes
scores apart from the library; here they are the library's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ranks import Keys, Positions, best, key_scores, pool_of

GOOD, TIES, ROUNDING, WRONG = "good", "tie order only", "rounding only", "wrong"
VERDICTS = (GOOD, TIES, ROUNDING, WRONG)
CLASSES = ("bf16", "dg_bf16", "ref_bf16")
SLOW_CLASSES = ("dg_bf16", "ref_bf16")  # the plain C tier alone has them
SLOW_ROWS = 8  # rows of a list that they are tried on without a success
SLOW_SECONDS = 120  # spent on them in all

OUTSIDE = "outside the published blocks"
NEWEST = "the newest block is missing"


@dataclass
class Difference:
    """The first thing to look at in one row of one list."""

    verdict: str
    kind: str
    rank: int  # place in the found list; -1: no entry there is at fault
    expected: int  # a member left out or the entry that belongs there; -1: none
    found: int  # the entry at fault; -1: none
    expected_score: float | None
    found_score: float | None
    missing: int  # members of the expected list that are not found
    extra: int
    notes: list[str] = field(default_factory=list)


def prefix(entries: NDArray[np.int64]) -> NDArray[np.int64]:
    tail = np.flatnonzero(entries == -1)
    return entries[: tail[0]] if tail.size else entries


def _own_fault(found: NDArray[np.int64], limit: int) -> tuple[str, int] | None:
    """The list's own fault and where it is."""
    count = len(prefix(found))
    out = np.flatnonzero((found < -1) | (found >= limit))
    gap = np.flatnonzero(found[count:] != -1)
    if out.size and (not gap.size or out[0] <= count + gap[0]):
        return "out of range", int(out[0])
    if gap.size:
        return "-1 inside the valid prefix", count
    entries = found[:count]
    first_at = {}
    for at, value in enumerate(entries.tolist()):
        if value in first_at:
            return "duplicate", at
        first_at[value] = at
    falls = np.flatnonzero(np.diff(entries) < 0)
    return ("not ascending", int(falls[0]) + 1) if falls.size else None


def _score(keys: Keys, place: int) -> float | None:
    if not 0 <= place < len(keys):
        return None
    return float(key_scores(keys[place : place + 1])[0])


def _at(
    found: NDArray[np.int64], expected: Positions, rank: int, keys: Keys
) -> tuple[int, int, int, float | None, float | None]:
    wanted = int(expected[rank]) if rank < len(expected) else -1
    have = int(found[rank]) if 0 <= rank < len(found) else -1
    return rank, wanted, have, _score(keys, wanted), _score(keys, have)


def compare(found: NDArray[np.int64], expected: Positions, keys: Keys) -> Difference | None:
    """None when the list (padded with -1) holds exactly `expected`; keys has one for each place."""
    entries = prefix(found)
    tail_is_clean = bool((found[len(entries) :] == -1).all())
    if tail_is_clean and np.array_equal(entries, expected):
        return None
    valid = np.unique(entries[(entries >= 0) & (entries < len(keys))])
    missing = np.setdiff1d(expected, valid, assume_unique=True)
    extra = np.setdiff1d(valid, expected, assume_unique=True)
    counts = len(missing), len(extra)
    fault = _own_fault(found, len(keys))
    if fault:
        return Difference(WRONG, fault[0], *_at(found, expected, fault[1], keys), *counts)
    if len(entries) != len(expected):
        shorter = min(len(entries), len(expected))
        unlike = np.flatnonzero(entries[:shorter] != expected[:shorter])
        rank = int(unlike[0]) if unlike.size else shorter
        return Difference(WRONG, "wrong count", *_at(found, expected, rank, keys), *counts)
    left_out = int(missing[np.argmax(keys[missing])])
    intruder = int(extra[np.argmin(keys[extra])])
    same = np.array_equal(np.sort(keys[missing]), np.sort(keys[extra]))
    return Difference(
        TIES if same else WRONG,
        "tie order" if same else "other members",
        int(np.searchsorted(entries, intruder)),
        left_out,
        intruder,
        _score(keys, left_out),
        _score(keys, intruder),
        *counts,
    )


def wrong_count_tensor(expected: int, found: int) -> Difference:
    """count.<layer> says another number than the list has."""
    note = f"count says {found}, the list has to hold {expected}"
    return Difference(WRONG, "wrong count tensor", -1, -1, -1, None, None, 0, 0, [note])


def rank_of(difference: Difference | None) -> int:
    """From good to bad."""
    return VERDICTS.index(difference.verdict if difference else GOOD)


def agrees(difference: Difference | None) -> bool:
    """The list, or the list but for equal scores."""
    return rank_of(difference) <= VERDICTS.index(TIES)


def compare_blocks(
    found: NDArray[np.int64], expected: Positions, maxima: Keys
) -> Difference | None:
    """As compare; a list without the newest block is wrong, whatever the scores say."""
    difference = compare(found, expected, maxima)
    if difference and difference.kind in ("other members", "tie order"):
        newest = len(maxima) - 1
        if newest not in found:
            difference.verdict, difference.kind = WRONG, NEWEST
            difference.expected = newest
            difference.expected_score = _score(maxima, newest)
            difference.found, difference.found_score, difference.rank = -1, None, -1
    return difference


def compare_in_pool(
    found: NDArray[np.int64], keys: Keys, blocks: Positions, size: int, topk: int
) -> Difference | None:
    """A consumer's list against the best of these blocks."""
    pool = pool_of(blocks, size, len(keys))
    difference = compare(found, pool[best(keys[pool], topk)], keys)
    if difference and difference.kind in ("other members", "tie order"):
        strangers = np.setdiff1d(prefix(found), pool)
        if strangers.size:
            at = int(strangers[0])
            difference.verdict, difference.kind = WRONG, OUTSIDE
            difference.found, difference.found_score = at, _score(keys, at)
            difference.rank = int(np.flatnonzero(found == at)[0])
    return difference


class Rounding:
    """Which numerics class's own choice a list is, tried for lists that are wrong otherwise.

    The class that explained the list before is tried first. The classes of the plain C tier take
    long, so they are given up for a list of a result after some rows without a success, and for all
    of them when their time is spent; rows that this leaves open say so.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._failures: Counter[str] = Counter()
        self._slow_seconds = 0.0

    def explain(
        self, name: str, difference: Difference | None, selects: Callable[[str], bool]
    ) -> None:
        if difference is None or difference.kind not in ("other members", OUTSIDE):
            return
        last = self._last.get(name)
        for numerics in sorted(CLASSES, key=lambda c: c != last):
            if numerics in SLOW_CLASSES and self._given_up(name):
                difference.notes.append(f"{numerics} was not tried")
                continue
            start = time.monotonic()
            explains = selects(numerics)
            self._slow_seconds += (numerics in SLOW_CLASSES) * (time.monotonic() - start)
            if explains:
                difference.verdict, difference.kind = ROUNDING, f"rounding: {numerics}"
                difference.notes.clear()
                self._last[name] = numerics
                return
        self._failures[name] += 1

    def _given_up(self, name: str) -> bool:
        without_success = name not in self._last and self._failures[name] >= SLOW_ROWS
        return without_success or self._slow_seconds > SLOW_SECONDS


class Notes:
    """Common mistakes that a wrong list looks like, named so that they are found at once."""

    def __init__(self) -> None:
        self._before: Positions | None = None

    def look(
        self,
        difference: Difference | None,
        found: NDArray[np.int64],
        expected: Positions,
        start: int,
        full: Positions | None,
    ) -> None:
        before, self._before = self._before, expected
        if difference is None or difference.verdict != WRONG or not len(expected):
            return
        entries = prefix(found)
        if full is not None and np.array_equal(entries, full):
            difference.notes.append("this is the selection over the whole context, of one level")
        if before is not None and np.array_equal(entries, before):
            difference.notes.append("this is the list of the row before")
        if start and np.array_equal(entries, expected + start):
            difference.notes.append("positions count over all requests, not from the row's own")
        elif len(entries) == len(expected):
            shift = np.unique(entries - expected)
            if shift.size == 1 and abs(int(shift[0])) <= 16:
                difference.notes.append(f"every entry is shifted by {int(shift[0]):+d}")
        if difference.kind == "not ascending" and difference.missing == 0:
            difference.notes.append("the members are right, their order is not")


class Tally:
    """What was found of one list over all rows; the first `keep` differences of a kind in full."""

    def __init__(self, name: str, keep: int) -> None:
        self.name, self._keep = name, keep
        self._verdicts: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._common = self._expected = self._followed = 0
        self._rows: list[dict[str, Any]] = []

    def row(
        self, where: dict[str, int], difference: Difference | None, expected: int, followed: bool
    ) -> None:
        self._expected += expected
        self._common += expected - (difference.missing if difference else 0)
        self._followed += followed
        if difference is None:
            self._verdicts[GOOD] += 1
            return
        self._verdicts[difference.verdict] += 1
        self._kinds[difference.kind] += 1
        if self._kinds[difference.kind] <= self._keep:
            self._rows.append(where | vars(difference))

    @property
    def verdict(self) -> str:
        return max(self._verdicts, key=VERDICTS.index, default=GOOD)

    def data(self) -> dict[str, Any]:
        return {
            "list": self.name,
            "verdict": self.verdict,
            "rows": sum(self._verdicts.values()),
            "verdicts": {v: self._verdicts[v] for v in VERDICTS},
            "kinds": dict(self._kinds.most_common()),
            "followed": self._followed,
            "overlap": self._common / self._expected if self._expected else None,
            "differences": self._rows,
        }
