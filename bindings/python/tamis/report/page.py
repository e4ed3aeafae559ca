# SPDX-License-Identifier: MIT
"""The page: parts, style, script and the measured numbers in one file that loads nothing."""

from __future__ import annotations

import json
import math
import re
from importlib import resources
from typing import Any

from . import sections, summary
from .markup import esc

_HEAD = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    '<link rel="icon" href="data:,">'
)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _style() -> str:
    """The style; its `@dark` colours are wanted twice: for the system's choice and the reader's."""
    css = _asset("page.css")
    found = re.search(r"@dark \{(.*?)\n\}\n", css, re.S)
    if not found:
        raise ValueError("page.css: required an @dark block, found none")
    dark = (
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{{found[1]}}} }}\n"
        f":root[data-theme=dark] {{{found[1]}}}\n"
    )
    return css[: found.start()] + dark + css[found.end() :]


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinities: they become text. Images are elsewhere in the page."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k != "png"}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def as_json(data: dict[str, Any]) -> str:
    """The numbers, safe inside a script element."""
    text = json.dumps(plain(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def render(data: dict[str, Any]) -> str:
    """The whole page."""
    parts = [part(data) for part in sections.ALL]
    names = [m[1] for m in (re.match(r'<section id="(\w+)"', part) for part in parts) if m]
    links = "".join(f'<a href="#{name}">{sections.TITLES[name]}</a>' for name in names)
    about = f"<p>{esc(data['about'])}</p>" if data["about"] else ""
    made = data["made"]
    return (
        f"{_HEAD}<title>{esc(data['file'])}: tamis report</title><style>{_style()}</style></head>"
        "<body>"
        '<a class="skip" href="#summary">To the summary</a>'
        '<header><div class="brand"><span>tamis report</span><button type="button" id="theme" '
        "hidden>Dark</button></div>"
        f"<h1>{esc(data['file'])}</h1>{about}"
        f'<nav aria-label="Parts of this page">{links}</nav></header>'
        f"<main>{summary.summary(data)}{''.join(parts)}</main>"
        f"<footer><p>Made by tamis {esc(made['version'])} on {esc(made['date'])} with "
        f"<code>{esc(made['command'])}</code>. Its numbers are in it as JSON, in the element "
        f"<code>#data</code>.</p></footer>"
        f'<script type="application/json" id="data">{as_json(data)}</script>'
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )
