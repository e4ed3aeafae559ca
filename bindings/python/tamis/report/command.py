# SPDX-License-Identifier: MIT
"""The command ``tamis report``: options in, a page or JSON out, one line for whatever is wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, NoReturn, Optional

from . import build, page, quiet, shown_name, write
from .measure import MAX_ROWS

PAGE = "report.html"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as the other subcommands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="tamis report",
        description="Write what an indexer selects, and whether RESULT is right, as one HTML page "
        "that loads nothing.",
        epilog="Exit 0: written; 2: bad usage or input. A RESULT that is wrong makes a page too: "
        "`tamis check` has the exit status for that.",
    )
    parser.add_argument("trace", metavar="TRACE", help="a tamis-trace/1 file (docs/trace.md)")
    parser.add_argument("result", metavar="RESULT", nargs="?", help="selections to judge")
    parser.add_argument("-o", "--output", metavar="PAGE", help=f"the page ({PAGE})")
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        default=MAX_ROWS,
        help=f"measure at most so many rows ({MAX_ROWS}), in runs of neighbours",
    )
    parser.add_argument("--tier", metavar="NAME", help="kernels to score with (the best)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (all processors)")
    parser.add_argument("--no-timing", action="store_true", help="do not time dense and sparse")
    parser.add_argument(
        "--json", action="store_true", help="print the numbers as JSON; no page without -o"
    )
    return parser


def _same_file(a: str, b: str) -> bool:
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


def _options(argv: Optional[list[str]]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.rows < 1:
        parser.error(f"--rows: required 1 or more, found {options.rows}")
    if options.output is None and not options.json:
        options.output = PAGE
    for name in filter(None, (options.trace, options.result)):
        if options.output and _same_file(name, options.output):
            parser.error(f"{options.output}: the page would replace {name}")
    if options.output:
        folder = os.path.dirname(os.path.abspath(options.output))
        if os.path.isdir(options.output):
            parser.error(f"{options.output}: required a file to write, found a folder")
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            parser.error(f"{options.output}: required a folder that can be written, found {folder}")
    return options


def _words(options: argparse.Namespace) -> str:
    """The command that makes this page again."""
    words = [shown_name(name) for name in (options.trace, options.result) if name]
    if options.rows != MAX_ROWS:
        words.append(f"--rows {options.rows}")
    if options.tier:
        words.append(f"--tier {options.tier}")
    return " ".join(["tamis report", *words, "-o", shown_name(options.output or PAGE)])


def _bar(what: str, share: float) -> None:
    print(f"\r\033[K{what}: {share:4.0%}", end="", file=sys.stderr, flush=True)


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    noisy = sys.stderr.isatty()
    try:
        return build(
            options.trace,
            options.result,
            rows=options.rows,
            timed=not options.no_timing,
            tier=options.tier,
            threads=options.threads,
            command=_words(options),
            progress=_bar if noisy else quiet,
        )
    finally:
        if noisy:
            print("\r\033[K", end="", file=sys.stderr)


def run(argv: Optional[list[str]] = None) -> int:
    """The exit status. Nothing is left half-written, whatever happens."""
    options = _options(argv)
    try:
        data = _measured(options)
        if options.output:
            write(options.output, page.render(data))
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        print(f"tamis report: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tamis report: stopped", file=sys.stderr)
        return 2
    if options.json:
        return _told(json.dumps(page.plain(data), indent=1))
    return _told(f"{options.output}: {os.path.getsize(options.output):,} bytes")


def _told(text: str) -> int:
    """Prints the text: 0, or 2 where nobody reads to its end, or nothing takes it."""
    try:
        print(text, flush=True)
    except OSError as error:
        # What is left in the buffer would be written, and fail, once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"tamis report: output: {error.strerror}", file=sys.stderr)
        return 2
    return 0
