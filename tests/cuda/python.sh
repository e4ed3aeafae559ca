#!/bin/sh
# SPDX-License-Identifier: MIT
# python.sh LIBTAMIS SOURCE FILE: a file of the Python package's tests on this machine's GPU, by the python3 that PATH has:
# the one that torch was installed for. TAMIS_WHEELS may name a folder where pytest is, if that python3 lacks it.
set -eu
export TAMIS_LIBRARY="$1" PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH="$2/bindings/python${TAMIS_WHEELS:+:$TAMIS_WHEELS}"
python3 - "$3" <<'PYTHON' || exit 77
import sys
try:
    import numpy, pytest, torch
except ImportError as missing:
    sys.exit(f"SKIPPED: gpu.python: {sys.executable} has no {missing.name}")
if not torch.cuda.is_available():
    sys.exit(f"SKIPPED: gpu.python: torch {torch.__version__} finds no GPU")
PYTHON
cd "$2/bindings/python/tests"
exec python3 run.py "$3"
