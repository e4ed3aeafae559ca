#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the wheel, installs it into a fresh environment without torch, and runs the first script of
# its README and the command there. Usage: tools/wheel-test.sh [WHEEL]; TAMIS_CUDA=off builds faster.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$work/venv"
pip="$work/venv/bin/pip --disable-pip-version-check -q"

wheel=${1:-}
if [ -z "$wheel" ]; then
    export TAMIS_CUDA_ARCHS="${TAMIS_CUDA_ARCHS:-native}"
    $pip wheel bindings/python --no-deps -w "$work"
    wheel=$(ls "$work"/tamis-*.whl)
fi
echo "wheel: $(basename "$wheel"), $(stat -c %s "$wheel") bytes"
case $wheel in
*-py3-none-manylinux_2_*) ;;
*) echo "FAILED: required the tag py3-none-manylinux_2_X, found $(basename "$wheel")" && exit 1 ;;
esac
$pip install "$wheel"

site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
needed=$(readelf -d "$site"/tamis/lib/* "$site"/tamis/bin/* | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort -u)
for library in $needed; do
    case $library in
    libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | ld-linux-x86-64.so.2 | libtamis.so.0) ;;
    *) echo "FAILED: the wheel needs $library, which it does not bring" && exit 1 ;;
    esac
done

sed -n '/^```python$/,/^```$/p;/^It prints/q' bindings/python/README.md | sed '/^```/d' >"$work/script.py"
expected=$(sed -n 's/^It prints `\(.*\)`\.$/\1/p' bindings/python/README.md)
repository=$PWD
cd "$work"
unset PYTHONPATH TAMIS_LIBRARY TAMIS_COMMAND
found=$(venv/bin/python script.py)
if [ "$found" != "$expected" ] || [ -z "$expected" ]; then
    echo "FAILED: the README's script: required '$expected', found '$found'" && exit 1
fi
echo "script: $found"
venv/bin/python -c '
import sys, tamis
assert "torch" not in sys.modules
print("import:", tamis.__version__, [tier for tier, runs in tamis.tiers().items() if runs])'
venv/bin/tamis run "$repository/data/trace_a.safetensors" -o result.safetensors | tail -n 1
venv/bin/python - "$repository" <<'PYTHON'
import sys, tamis
print(str(tamis.check(sys.argv[1] + "/data/trace_a.safetensors", "result.safetensors", rows=2)).splitlines()[-1])
PYTHON
venv/bin/tamis report "$repository/data/trace_a.safetensors" result.safetensors -o report.html --rows 2 --no-timing
grep -qi "<!doctype html>" report.html
echo "wheel: good"
