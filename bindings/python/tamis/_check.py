# SPDX-License-Identifier: MIT
"""Holds a selection against ``tamis.reference``, as ``tamis check`` holds it against its oracle.

Nothing here calls the library's kernels: a fault in them must not be able to hide itself. A list
is good, other among equal scores (tie order only), what another numerics class selects (rounding
only, and which), or wrong. Consumers are judged by the reference's own blocks; where the result's
blocks differ, also by those, so that one fault at the source is reported once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import reference, traces
from .errors import ArgumentError, FormatError
from .traces import Result, Trace, TraceLayer

GOOD, TIES, ROUNDING, WRONG = range(4)
VERDICTS = ("good", "tie order only", "rounding only", "wrong")
_NAN = float("nan")


@dataclass
class Finding:
    """What is known of one list of a row; ranks, ids and scores are of its first difference."""

    list: str  #: "layer 20" or "blocks"
    row: int
    verdict: int = GOOD
    classes: tuple[str, ...] = ()  #: that select this list, for "rounding only"
    fault: str | None = None  #: what is wrong, when it is the list itself
    rank: int = 0  #: its column; -1: the counts
    expected: int = -1
    found: int = -1
    expected_score: float = _NAN
    found_score: float = _NAN
    followed: bool = False  #: right for the result's own blocks, which differ

    def __str__(self) -> str:
        why = f"{VERDICTS[self.verdict]}{', ' + self.fault if self.fault else ''}"
        if self.rank < 0:
            return (
                f"{self.list}, row {self.row}: expected count {self.expected}, "
                f"found {self.found}: {why}"
            )
        what = "block" if self.list == "blocks" else "position"
        if self.classes:
            why += f": what the class selects: {', '.join(self.classes)}"
        return (
            f"{self.list}, row {self.row}, rank {self.rank}: expected {what} {self.expected} "
            f"(score {self.expected_score:.9g}), found {self.found} "
            f"(score {self.found_score:.9g}): {why}"
        )


@dataclass
class Report:
    """What a check found.

    Attributes:
        verdict: the class of ``numerics`` ("exact") when all is right, else "WRONG",
            "rounding only (CLASSES)" or "tie order only".
        good: whether all is right.
        rows: the rows that were recomputed; total: the rows of the trace.
        layers: numbers of the layers that were judged.
        findings: one for every list and row that differs.
        overlap: by list, the share of the exact selection that the result selects too.
        recall: by list, the share of the layer's true full top-k that the result has (blocks: that
            lies inside them).
    """

    verdict: str
    numerics: str
    rows: list[int]
    total: int
    layers: list[int]
    findings: list[Finding]
    overlap: dict[str, float] = field(default_factory=dict)
    recall: dict[str, float] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        lines = []
        seen: dict[str, Finding] = {}
        for finding in self.findings:
            worst = seen.get(finding.list)
            if worst is None or finding.verdict > worst.verdict:
                seen[finding.list] = finding
        lines += [str(finding) for finding in seen.values()]
        for name in self.overlap:
            lines.append(
                f"{name}: overlap {self.overlap[name]:.6f}, recall {self.recall[name]:.6f}"
            )
        lines.append(f"{len(self.rows)} of {self.total} rows recomputed")
        lines.append(f"check: {self.verdict}, {len(self.rows)} rows x {len(self.layers)} layers")
        return "\n".join(lines)


# ---- one list ---------------------------------------------------------------------------------


def _count(ids: Any) -> int:
    """Entries before the first -1."""
    ends = np.flatnonzero(ids == -1)
    return int(ends[0]) if ends.size else len(ids)


def _common(a: Any, b: Any) -> int:
    """Members of two lists in common."""
    return int(np.intersect1d(a[: _count(a)], b[: _count(b)]).size)


def _own_fault(found: Any, limit: int) -> tuple[str | None, int]:
    """A list's own fault and where; what it holds is in range and unique afterwards."""
    count = _count(found)
    outside = np.flatnonzero((found < -1) | (found >= limit))
    holes = np.flatnonzero(found[count:] != -1)
    if outside.size and (not holes.size or outside[0] <= count + holes[0]):
        return "out of range", int(outside[0])
    if holes.size:
        return "-1 inside the valid prefix", count
    kept = found[:count]
    _, first = np.unique(kept, return_index=True)
    if first.size < count:
        again = np.setdiff1d(np.arange(count), first)
        smallest = kept[again].min()
        return "duplicate", int(np.flatnonzero(kept == smallest)[1])
    falls = np.flatnonzero(np.diff(kept) < 0)
    if falls.size:
        return "not ascending", int(falls[0]) + 1
    return None, 0


def _same_scores(a: Any, b: Any, scores: Any) -> bool:
    keys = reference.order_keys(scores)
    return bool(np.array_equal(np.sort(keys[a]), np.sort(keys[b])))


def _judge_list(name: str, row: int, found: Any, expected: Any, limit: int, scores: Any) -> Finding:
    """All but the verdict ROUNDING. ``scores`` has one entry for each id below limit."""
    out = Finding(name, row)
    if np.array_equal(found, expected):
        return out
    out.verdict = WRONG
    out.fault, at = _own_fault(found, limit)
    count = _count(expected)
    if out.fault is None:
        at = int(np.flatnonzero(found != expected)[0])
        if _count(found) != count:
            out.fault = "wrong count"
    out.rank, out.expected, out.found = at, int(expected[at]), int(found[at])
    if out.expected >= 0:
        out.expected_score = float(scores[out.expected])
    if 0 <= out.found < limit:
        out.found_score = float(scores[out.found])
    if out.fault is None and _same_scores(found[:count], expected[:count], scores):
        out.verdict = TIES
    return out


# ---- one row ----------------------------------------------------------------------------------


class _Lists:
    """What is judged."""

    def __init__(self, trace: Trace, result: Result | None, numerics: str) -> None:
        self.trace = trace
        self.numerics = numerics
        if result is None:
            self.selected = {
                entry.layer: entry.selected for entry in trace.present if entry.selected is not None
            }
            self.counts: dict[int, Any] = {}
            self.blocks = trace.blocks
        else:
            present = {entry.layer for entry in trace.present}
            self.selected = {n: x for n, x in result.selected.items() if n in present}
            self.counts = result.counts
            self.blocks = result.blocks
        if trace.source is None:  # then blocks are an input of the consumers
            self.blocks = None
        if not self.selected and self.blocks is None:
            raise FormatError("result", "a selection of a layer that the trace holds", "none")


class _Row:
    """Scores of one row of one layer, by class: all of them, or those of a pool."""

    def __init__(self, layer: TraceLayer, row: int) -> None:
        self.layer, self.row = layer, row
        self.start = int(layer.ks[row])
        self.n = int(layer.ke[row]) - self.start
        self.weights = layer.weights[row]
        self._all: dict[str, Any] = {}

    def at(self, numerics: str, positions: Any) -> Any:
        k, query = self.layer.k, self.layer.query
        return reference.scores(
            k.codes[positions],
            k.scales[positions],
            query.codes[self.row],
            query.scales[self.row],
            self.weights,
            numerics,
        )

    def all(self, numerics: str) -> Any:
        if numerics not in self._all:
            self._all[numerics] = self.at(numerics, slice(self.start, self.start + self.n))
        return self._all[numerics]

    def inside(self, numerics: str, blocks: Any, size: int) -> Any:
        """Full length; NaN outside the pool, where nobody looks."""
        inside = reference.pool(blocks, self.n, size)
        out = np.full(self.n, np.nan, np.float32)
        out[inside] = self.at(numerics, self.start + inside)
        return out


class _Judge:
    """Judges every list of a row."""

    def __init__(self, lists: _Lists, row: int) -> None:
        self.lists, self.row = lists, row
        model = lists.trace.model
        self.topk = model.index_topk
        self.width, self.size = model.candidate_topk_blocks, model.candidate_block_size
        self.findings: list[Finding] = []
        #: list -> [shared with the exact selection, its size, of the full top-k, its size]
        self.tallies: dict[str, list[int]] = {}
        self.blocks: Any = None
        self.source_row: _Row | None = None
        self.class_blocks: dict[str, Any] = {}

    def run(self) -> _Judge:
        for layer in self.lists.trace.present:
            if layer.role.role == "consumer":
                self._consumer(layer)
            else:
                self._full(layer)
        return self

    def _others(self) -> Sequence[str]:
        return [name for name in reference.CLASSES if name != self.lists.numerics]

    def _add(self, finding: Finding) -> None:
        if finding.verdict != GOOD:
            self.findings.append(finding)

    def _tally(self, name: str, found: Any, exact: Any, full: Any, inside: int) -> None:
        self.tallies[name] = [
            _common(found, exact),
            _count(exact),
            inside,
            _count(full),
        ]

    def _full(self, layer: TraceLayer) -> None:
        row = _Row(layer, self.row)
        numerics = self.lists.numerics
        scores = row.all(numerics)
        exact = scores if numerics == "exact" else row.all("exact")
        full = reference.topk(exact, self.topk)
        found = self.lists.selected.get(layer.layer)
        if found is not None:
            mine = found[self.row]
            name = f"layer {layer.layer}"
            expected = reference.topk(scores, self.topk)
            finding = _judge_list(name, self.row, mine, expected, row.n, scores)
            if finding.verdict == WRONG and finding.fault is None:
                self._explain_full(finding, row, mine)
            self._check_count(layer, expected, finding)
            self._add(finding)
            inside = _common(mine, full)
            self._tally(name, mine, full, full, inside)
        if layer.role.role == "source":
            self._blocks(row, scores, exact, full)

    def _explain_full(self, finding: Finding, row: _Row, found: Any) -> None:
        for name in self._others():
            scores = row.all(name)
            choice = reference.topk(scores, self.topk)
            if _judge_list("", 0, found, choice, row.n, scores).verdict <= TIES:
                _explained(finding, name)

    def _blocks(self, row: _Row, scores: Any, exact: Any, full: Any) -> None:
        self.source_row = row
        self.blocks = reference.publish(scores, self.width, self.size)
        if self.lists.blocks is None:
            return
        found = self.lists.blocks[self.row]
        best = reference.block_max(scores, self.size)
        finding = _judge_list("blocks", self.row, found, self.blocks, best.size, best)
        count = _count(found)
        if finding.verdict != GOOD and finding.fault is None and found[count - 1] != best.size - 1:
            finding.verdict, finding.fault = WRONG, "the newest block is missing"
        if finding.verdict == WRONG and finding.fault is None:
            for name in self._others():
                other = reference.block_max(row.all(name), self.size)
                judged = _judge_list("", 0, found, self._published(name), other.size, other)
                if judged.verdict <= TIES:
                    _explained(finding, name)
        self._add(finding)
        published = reference.publish(exact, self.width, self.size)
        inside = int(np.isin(full[: _count(full)] // self.size, found).sum())
        self._tally("blocks", found, published, full, inside)

    def _published(self, numerics: str) -> Any:
        """Blocks of another class."""
        if self.source_row is None:
            return self.blocks
        if numerics not in self.class_blocks:
            scores = self.source_row.all(numerics)
            self.class_blocks[numerics] = reference.publish(scores, self.width, self.size)
        return self.class_blocks[numerics]

    def _consumer(self, layer: TraceLayer) -> None:
        if self.blocks is None:
            self.blocks = self.lists.trace.blocks[self.row]
        found = self.lists.selected.get(layer.layer)
        if found is None:
            return
        row, mine = _Row(layer, self.row), found[self.row]
        name, numerics = f"layer {layer.layer}", self.lists.numerics
        scores = row.all(numerics)
        exact = scores if numerics == "exact" else row.all("exact")
        expected = reference.consume(scores, self.blocks, self.topk, self.size)
        finding = self._judge_in(name, row, mine, self.blocks, scores)
        theirs = None if self.lists.blocks is None else self.lists.blocks[self.row]
        if (
            finding.verdict != GOOD
            and theirs is not None
            and not np.array_equal(theirs, self.blocks)
        ):
            follows = self._judge_in(name, row, mine, theirs, scores)
            follows.followed = True
            if follows.verdict < finding.verdict:
                finding = follows
        self._check_count(layer, expected, finding)
        self._add(finding)
        full = reference.topk(exact, self.topk)
        chosen = reference.consume(exact, self.blocks, self.topk, self.size)
        inside = _common(mine, full)
        self._tally(name, mine, chosen, full, inside)

    def _judge_in(self, name: str, row: _Row, found: Any, blocks: Any, scores: Any) -> Finding:
        """A consumer's list by these blocks."""
        expected = reference.consume(scores, blocks, self.topk, self.size)
        finding = _judge_list(name, self.row, found, expected, row.n, scores)
        inside = bool(np.isin(found[: _count(found)] // self.size, blocks).all())
        if finding.verdict == TIES and not inside:
            finding.verdict = WRONG
        if finding.verdict == WRONG and finding.fault is None:
            for other in self._others():
                for given in (blocks, self._published(other)):
                    if not np.isin(found[: _count(found)] // self.size, given).all():
                        continue
                    rounded = row.inside(other, given, self.size)
                    choice = reference.consume(rounded, given, self.topk, self.size)
                    judged = _judge_list("", 0, found, choice, row.n, rounded)
                    if judged.verdict <= TIES:
                        _explained(finding, other)
        if finding.verdict == WRONG and finding.fault is None and not inside:
            finding.fault = "outside the published blocks"
        return finding

    def _check_count(self, layer: TraceLayer, expected: Any, finding: Finding) -> None:
        counts = self.lists.counts.get(layer.layer)
        count = _count(expected)
        if counts is None or int(counts[self.row]) == count or finding.verdict == WRONG:
            return
        finding.verdict, finding.fault, finding.rank = WRONG, "wrong count tensor", -1
        finding.expected, finding.found = count, int(counts[self.row])


def _explained(finding: Finding, numerics: str) -> None:
    finding.verdict = ROUNDING
    if numerics not in finding.classes:
        finding.classes += (numerics,)


# ---- all of it --------------------------------------------------------------------------------


def check(
    trace: Any,
    result: Any = None,
    *,
    rows: int | str = 16,
    numerics: str = "exact",
    threads: int | None = None,
) -> Report:
    """Judges a result by an independent computation in numpy.

    Args:
        trace: a Trace, or the path of one.
        result: a Result, the path of one, or None: the results inside the trace.
        rows: how many to recompute, evenly spread, the first and the last among them; or "all".
        numerics: the class that the result claims: "exact", "bf16", "dg_bf16" or "ref_bf16".
        threads: rows recomputed at once; None: one for each processor.
    """
    if not isinstance(trace, Trace):
        trace = traces.read(os.fspath(trace))
    if result is not None and not isinstance(result, Result):
        result = traces.read_result(os.fspath(result), trace)
    if numerics not in reference.CLASSES:
        raise ArgumentError("numerics", " or ".join(reference.CLASSES), repr(numerics))
    lists = _Lists(trace, result, numerics)
    sampled = _sample(trace.rows, rows)
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        judged = list(pool.map(lambda row: _Judge(lists, row).run(), sampled))
    findings = [finding for judge in judged for finding in judge.findings]
    report = Report(
        _conclude(findings, numerics),
        numerics,
        sampled,
        trace.rows,
        sorted(lists.selected),
        findings,
    )
    for name in dict.fromkeys(name for judge in judged for name in judge.tallies):
        sums = np.sum([judge.tallies[name] for judge in judged if name in judge.tallies], axis=0)
        report.overlap[name] = float(sums[0] / sums[1]) if sums[1] else 1.0
        report.recall[name] = float(sums[2] / sums[3]) if sums[3] else 1.0
    return report


def _sample(total: int, rows: int | str) -> list[int]:
    if rows == "all":
        return list(range(total))
    if not isinstance(rows, int) or rows < 1:
        raise ArgumentError("rows", 'a number from 1, or "all"', repr(rows))
    count = min(rows, total)
    if count == 1 and total > 1:
        count = 2
    return [i * (total - 1) // (count - 1) if count > 1 else 0 for i in range(count)]


def _conclude(findings: list[Finding], numerics: str) -> str:
    """The worst verdict, and the fewest classes that explain all rounding: one if one does."""
    worst = max((finding.verdict for finding in findings), default=GOOD)
    if worst == GOOD:
        return numerics
    if worst != ROUNDING:
        return "WRONG" if worst == WRONG else VERDICTS[worst]
    explained = [set(f.classes) for f in findings if f.verdict == ROUNDING]
    common = set.intersection(*explained)
    order = [name for name in reference.CLASSES if name in (common or set.union(*explained))]
    return f"rounding only ({', '.join(order[:1] if common else order)})"
