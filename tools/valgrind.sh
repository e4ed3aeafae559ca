#!/bin/sh
# SPDX-License-Identifier: MIT
# Memcheck on a subset of the tests: the small per-stage ones. Usage: tools/valgrind.sh BUILD_DIR
set -eu
build=${1:?build directory}
ran=0
for stage in expand publish block_max topk k_gather; do
    test=$build/tests/kernels/check_$stage
    [ -x "$test" ] || { echo "valgrind: $test is missing" >&2; exit 1; }
    echo "valgrind: check_$stage"
    valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite "$test" >/dev/null
    ran=$((ran + 1))
done
echo "valgrind: $ran programs clean"
