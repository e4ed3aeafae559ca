# SPDX-License-Identifier: MIT
"""The package is typed, and says so: mypy --strict finds nothing in it."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]


def test_mypy_strict_finds_nothing(tmp_path):
    version = pytest.importorskip("mypy.version", reason="SKIPPED: mypy is not installed")
    pytest.importorskip("torch", reason="SKIPPED: torch, whose types are used, is not installed")
    if int(version.__version__.split(".")[0]) < 2:
        pytest.skip(f"SKIPPED: mypy {version.__version__} is older than 2")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml"]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path)],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (PACKAGE / "tamis" / "py.typed").exists()
