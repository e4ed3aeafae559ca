# SPDX-License-Identifier: MIT
"""Small pieces of HTML and numbers written for people.

Text in figures is HTML laid over drawings, never SVG text: a drawing may be stretched to any width
and its labels stay readable on a phone.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, Optional


def esc(text: object) -> str:
    """Text as HTML."""
    return html.escape(str(text), quote=True)


def count(value: Optional[float]) -> str:
    """Whole numbers with separators; others with one decimal."""
    if value is None:
        return "–"
    if abs(value - round(value)) < 1e-9:
        return f"{round(value):,}"
    return f"{value:,.1f}"


def share(value: Optional[float], digits: int = 1) -> str:
    """Per cent. Only the whole is 100%, only nothing is 0%."""
    if value is None:
        return "–"
    if value in (0, 1):
        return f"{value:.0%}"
    unit = 10.0**-digits
    shown = min(max(100 * value, unit), 100 - unit)
    return f"{shown:.{digits}f}%"


def duration(ns: float) -> str:
    """Three significant digits with a unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            value = ns / size
            return f"{value:.{max(0, 2 - int(math.log10(value)))}f} {unit}"
    return f"{ns:.0f} ns"


def score(value: Optional[float], digits: int = 5) -> str:
    """A score in few digits; what is no number is named."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}".replace("-", "−")


def times(value: float) -> str:
    """A ratio: 6.6×, 64×."""
    return f"{value:.1f}×" if value < 20 else f"{value:,.0f}×"


def plural(n: int, word: str, many: str = "") -> str:
    """1 row, 2 rows."""
    return f"{n:,} {word if n == 1 else many or word + 's'}"


def attributes(**values: Any) -> str:
    """Attributes of a tag; a trailing underscore keeps a name off Python's own words."""
    out = ""
    for name, value in values.items():
        if value is not None:
            out += f' {name.rstrip("_").replace("_", "-")}="{esc(value)}"'
    return out


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], name: str = "") -> str:
    """A table of HTML cells; the first cell of a row heads it. Wide ones scroll in their frame."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    label = esc(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table{attributes(class_=name or None)}><caption>{label}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def bar(part: Optional[float], kind: str = "") -> str:
    """A bar in a cell, its number beside it: the number is what is read aloud."""
    if part is None:
        return "–"
    width = f"{100 * min(max(part, 0.0), 1.0):.2f}%"
    return (
        f'<span class="bar" aria-hidden="true"><i class="{kind}" style="width:{width}"></i></span>'
        f'<span class="value">{share(part)}</span>'
    )


def chip(text: str, kind: str) -> str:
    """A word in a coloured frame."""
    return f'<span class="chip {esc(kind)}">{esc(text)}</span>'


def section(name: str, title: str, why: str, body: str) -> str:
    """A part of the page with one sentence on what it says."""
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{esc(title)}'
        f'</h2><p class="why">{why}</p>{body}</section>'
    )
