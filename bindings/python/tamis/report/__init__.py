# SPDX-License-Identifier: MIT
"""``tamis report TRACE [RESULT] -o report.html``: what an indexer selects, as one page.

``build`` measures and returns the numbers, ``page.render`` makes the page of them, ``write`` does
both and puts the file in place whole or not at all. docs/report.md says what the page holds.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from typing import Any, Callable, Optional, TypeVar

from .. import traces
from .._library import version
from ..errors import Error
from . import timing
from .engine import Engine
from .judge import Judge
from .measure import MAX_ROWS, Progress, measure_trace

KEEP = 20  # differences of each kind in a list that are told in full

_File = TypeVar("_File")

__all__ = ["build", "main", "write"]


def main(argv: Optional[list[str]] = None) -> int:
    """The command: its exit status."""
    from .command import run

    return run(argv)


def quiet(_what: str, _share: float) -> None:
    """No progress is wanted."""


def shown_name(path: str) -> str:
    """A file's name as text; bytes that are not UTF-8 are replaced."""
    return os.path.basename(path).encode("utf-8", "replace").decode("utf-8")


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
    threads: Optional[int] = None,
    command: str = "tamis.report.build",
    progress: Progress = quiet,
) -> dict[str, Any]:
    """The numbers of a trace's page, and of a result's where one is given or the trace holds one.

    rows: at most this many rows are measured; more are sampled in runs of neighbours.
    timed: also time dense and sparse rows, on this machine.
    tier: the library's kernels: "ref", "avx2", ..., None for the best.
    threads: to measure with, None: one for each processor; times are of one thread in any case.
    """
    trace = _opened(trace_path, lambda: traces.read(trace_path))
    result: Optional[traces.Result]
    if result_path:
        result = _opened(result_path, lambda: traces.read_result(result_path, trace))
    else:
        result = _own_result(trace)
    engine, plain = Engine(tier, threads), Engine("ref", threads)
    judge = Judge(trace, result, engine, plain, KEEP)
    data = measure_trace(trace, engine, judge, rows, progress)
    judged = judge.data()
    if judged and result:
        judged["file"] = shown_name(result_path or trace_path)
        judged["numerics"] = result.numerics
    progress("timing", 1.0)
    now = datetime.datetime.now(datetime.timezone.utc)
    data.update(
        format="tamis-report/1",
        file=shown_name(trace_path),
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
