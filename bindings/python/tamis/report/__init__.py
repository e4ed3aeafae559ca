# SPDX-License-Identifier: MIT
"""``tamis report TRACE [RESULT] -o report.html``: what an indexer selects, as one page.

``build`` measures and returns the numbers, ``page.render`` makes the page of them, ``write`` does
both and puts the file in place whole or not at all. docs/report.md says what the page holds.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from .. import traces
from .._library import version
from ..errors import Error
from . import page, timing
from .engine import Engine
from .judge import Judge
from .measure import MAX_ROWS, Progress, measure_trace

KEEP = 20  # differences of each kind in a list that are told in full

_File = TypeVar("_File")

__all__ = ["build", "main", "write"]


def _quiet(_what: str, _share: float) -> None:
    """No progress is wanted."""


def _own_result(trace: traces.Trace) -> Optional[traces.Result]:
    """The selections that a trace itself holds."""
    selected = {x.layer: x.selected for x in trace.present if x.selected is not None}
    return traces.Result(selected, trace.blocks) if selected else None


def _opened(path: str, read: Callable[[], _File]) -> _File:
    """What was read; an error says in which file."""
    try:
        return read()
    except Error as error:
        if os.fspath(path) not in str(error):
            error.name = f"{path}: {error.name}"
        raise


def build(
    trace_path: str,
    result_path: Optional[str] = None,
    *,
    rows: int = MAX_ROWS,
    timed: bool = True,
    tier: Optional[str] = None,
    command: str = "tamis.report.build",
    progress: Progress = _quiet,
) -> dict[str, Any]:
    """The numbers of a trace's page, and of a result's where one is given or the trace holds one.

    rows: at most this many rows are measured; more are sampled in runs of neighbours.
    timed: also time dense and sparse rows, on this machine.
    tier: the library's kernels: "ref", "avx2", ..., None for the best.
    """
    trace = _opened(trace_path, lambda: traces.read(trace_path))
    result: Optional[traces.Result]
    if result_path:
        result = _opened(result_path, lambda: traces.read_result(result_path, trace))
    else:
        result = _own_result(trace)
    engine, plain = Engine(tier), Engine("ref")
    judge = Judge(trace, result, engine, plain, KEEP)
    data = measure_trace(trace, engine, judge, rows, progress)
    judged = judge.data()
    if judged and result:
        judged["file"] = os.path.basename(result_path or trace_path)
        judged["numerics"] = result.numerics
    progress("timing", 1.0)
    now = datetime.datetime.now(datetime.timezone.utc)
    data.update(
        format="tamis-report/1",
        file=os.path.basename(trace_path),
        about=trace.about,
        model=trace.model.to_config(),
        two_level=trace.model.two_level,
        requests=trace.requests,
        result=judged,
        time=timing.measure(trace, Engine(tier, 1)) if timed else None,
        made={"version": version(), "date": f"{now:%Y-%m-%d %H:%M} UTC", "command": command},
    )
    return data


def write(path: str, text: str) -> None:
    """Puts the page at `path`, whole or not at all."""
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(prefix=".tamis-report-", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tamis report",
        description="Write what an indexer selects, and whether RESULT is right, as one HTML page.",
        epilog="The page loads nothing. Exit 0: written; 2: bad usage or input. A RESULT that is "
        "wrong makes a page as well: `tamis check` has the exit status for that.",
    )
    parser.add_argument("trace", metavar="TRACE", help="a tamis-trace/1 file (docs/trace.md)")
    parser.add_argument("result", metavar="RESULT", nargs="?", help="selections to hold against it")
    parser.add_argument("-o", "--output", default="report.html", help="the page (report.html)")
    parser.add_argument(
        "--rows", type=int, default=MAX_ROWS, help=f"rows to measure at most ({MAX_ROWS})"
    )
    parser.add_argument("--tier", help="kernels to score with (the best of this machine)")
    parser.add_argument("--no-timing", action="store_true", help="do not time dense and sparse")
    return parser


def _same_file(a: str, b: str) -> bool:
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


def _bar(what: str, share: float) -> None:
    print(f"\r\033[K{what}: {share:4.0%}", end="", file=sys.stderr, flush=True)


def main(argv: Optional[list[str]] = None) -> int:
    """The command. One line says what is wrong with an input, and nothing is left half-written."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.rows < 1:
        parser.error(f"--rows: required 1 or more, found {options.rows}")
    for name in filter(None, (options.trace, options.result)):
        if _same_file(name, options.output):
            parser.error(f"{options.output}: the page would replace {name}")
    shown = [options.trace, options.result] if options.result else [options.trace]
    command = " ".join(
        ["tamis report", *(Path(p).name for p in shown), "-o", Path(options.output).name]
    )
    noisy = sys.stderr.isatty()
    try:
        data = build(
            options.trace,
            options.result,
            rows=options.rows,
            timed=not options.no_timing,
            tier=options.tier,
            command=command,
            progress=_bar if noisy else _quiet,
        )
        write(options.output, page.render(data))
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if noisy:
            print("\r\033[K", end="", file=sys.stderr)
        print(f"tamis report: {error}", file=sys.stderr)
        return 2
    if noisy:
        print("\r\033[K", end="", file=sys.stderr)
    print(f"{options.output}: {os.path.getsize(options.output):,} bytes")
    return 0
