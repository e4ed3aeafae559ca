# SPDX-License-Identifier: MIT
"""The command ``tamis``: ``report`` is made in Python, all else by the wheel's command."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; what is not made in Python replaces this process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["report"]:
        from . import report

        return report.main(arguments[1:])
    program = Path(os.environ.get("TAMIS_COMMAND") or Path(__file__).parent / "bin" / "tamis")
    if not program.exists():
        print(
            f"tamis: required the command at {program}, which a wheel built where jansson.h was "
            "found carries; found none",
            file=sys.stderr,
        )
        return 2
    os.execv(program, ["tamis", *arguments])


if __name__ == "__main__":
    sys.exit(main())
