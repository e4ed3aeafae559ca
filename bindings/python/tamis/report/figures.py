# SPDX-License-Identifier: MIT
"""Drawings: areas and lines as SVG that stretches, with their axes in HTML around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .markup import attributes, count, esc, score, share

_WIDTH, _HEIGHT = 960, 240  # of the drawing's own units; it is stretched to its frame


def _steps(heights: Sequence[float], hang: bool = False) -> str:
    """The outline of bars, each 0..1 high, standing on the bottom or hanging from the top."""
    step = _WIDTH / max(len(heights), 1)
    base = 0 if hang else _HEIGHT
    points = [f"M0 {base}"]
    for i, height in enumerate(heights):
        y = _HEIGHT * (height if hang else 1 - height)
        points.append(f"L{i * step:.1f} {y:.1f}L{(i + 1) * step:.1f} {y:.1f}")
    return "".join(points) + f"L{_WIDTH} {base}Z"


def _svg(label: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img"'
        f"{attributes(aria_label=label)}><title>{esc(label)}</title>{body}</svg>"
    )


def _frame(svg: str, left: Sequence[tuple[float, str]], bottom: Sequence[tuple[float, str]]) -> str:
    """A drawing with labels at these shares of its height (from the bottom) and width."""
    ys = "".join(f'<span style="bottom:{100 * at:.1f}%">{esc(text)}</span>' for at, text in left)
    xs = "".join(f'<span style="left:{100 * at:.1f}%">{esc(text)}</span>' for at, text in bottom)
    return (
        f'<div class="plot"><div class="ys" aria-hidden="true">{ys}</div><div class="area">{svg}'
        f'</div><div class="xs" aria-hidden="true">{xs}</div></div>'
    )


def scores(data: dict[str, Any], name: str, pooled: bool) -> str:
    """How many scores lie where, counts on a logarithmic axis, and the last chosen score."""
    low, high = data["low"], data["high"]
    most = max(max(data["all"]), 1)
    top = math.log10(most + 1)

    def heights(counts: list[int]) -> list[float]:
        return [math.log10(n + 1) / top for n in counts]

    body = f'<path class="all" d="{_steps(heights(data["all"]))}"/>'
    if pooled:
        body += f'<path class="pool" d="{_steps(heights(data["pool"]))}"/>'
    threshold = data["threshold"]
    label = f"{name}: scores from {score(low)} to {score(high)}"
    if threshold:
        where = [
            _WIDTH * min(max((threshold[key] - low) / (high - low), 0), 1)
            for key in ("least", "median", "most")
        ]
        body += (
            f'<rect class="band" x="{where[0]:.1f}" y="0" height="{_HEIGHT}" '
            f'width="{max(where[2] - where[0], 1):.1f}"/>'
            f'<path class="cut" d="M{where[1]:.1f} 0V{_HEIGHT}"/>'
        )
        label += f"; threshold {score(threshold['median'])}"
    powers = [p for p in range(0, int(top) + 1) if p % (2 if top > 4 else 1) == 0]
    left = [(math.log10(10**p + 1) / top, count(10**p)) for p in powers]
    middle = low + (high - low) / 2
    bottom = [(0.0, score(low, 3)), (0.5, score(middle, 3)), (1.0, score(high, 3))]
    return _frame(_svg(label, body), left, bottom)


def recall(values: Sequence[float], floor: float, name: str) -> str:
    """What each row's recall lacks, hanging from 100%; of several rows in one step the worst."""
    per_step = max(1, -(-len(values) // 240))
    worst = [min(values[i : i + per_step]) for i in range(0, len(values), per_step)]
    heights = [min(1.0, (1 - v) / (1 - floor)) for v in worst]
    label = f"{name}: recall by row, worst {share(min(values))}"
    svg = _svg(label, f'<path class="pool" d="{_steps(heights, hang=True)}"/>')
    bottom = [(0.0, "first row"), (1.0, "last row")]
    return _frame(svg, [(0.0, share(floor, 0)), (1.0, "100%")], bottom)


def stacked(counts: Sequence[int], names: Sequence[str], what: str) -> str:
    """One bar of shares."""
    total = sum(counts)
    if not total:
        return "–"
    parts = "".join(
        f'<i class="s{i}" style="flex-grow:{n / total:.6f}"'
        f"{attributes(title=f'{name}: {share(n / total)}')}>"
        "</i>"
        for i, (n, name) in enumerate(zip(counts, names))
        if n
    )
    text = ", ".join(f"{name}: {share(n / total)}" for n, name in zip(counts, names) if n)
    return (
        f'<span class="stack" role="img"{attributes(aria_label=what + ": " + text)}>{parts}</span>'
    )


def against(dense: float, sparse: float, most: float) -> str:
    """Two bars of time, one under the other."""
    return "".join(
        f'<span class="line {kind}"><i style="width:{100 * value / most:.2f}%"></i></span>'
        for kind, value in (("dense", dense), ("sparse", sparse))
        if value
    )


def heat(png: str, data: dict[str, Any], list_name: str, label: str) -> str:
    """A heat map: an image that the script repaints in the page's colours and makes readable."""
    return (
        f'<div class="heat"><div class="ys" aria-hidden="true"><span style="bottom:100%">first row'
        f'</span><span style="bottom:0">last row</span></div><div class="area">'
        f'<img src="{png}"{attributes(alt=label, data_list=list_name)}>'
        f'</div><div class="xs" aria-hidden="true"><span style="left:0">0</span>'
        f'<span style="left:100%">{count(data["places"])}</span></div></div>'
    )
