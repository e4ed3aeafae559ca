#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes build/venv with what all Python tests need: torch (5 GB, a minute or two), mypy and the rest.
# The next `cmake` takes it for them. Usage: tools/python-venv.sh [BUILD_DIR]
set -eu
build=${1:-build}
"${PYTHON:-python3}" -m venv "$build/venv"
"$build/venv/bin/pip" --disable-pip-version-check install -q torch numpy pytest hypothesis mypy \
    safetensors ml_dtypes
"$build/venv/bin/python" -c 'import torch; print("torch", torch.__version__)'
