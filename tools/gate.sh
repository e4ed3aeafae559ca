#!/bin/sh
# SPDX-License-Identifier: MIT
# Instruction counts of the fixed AVX2 source and consumer (bench/gate_workload.c) against the committed
# figures in bench/gate.txt. Usage: tools/gate.sh check|accept BUILD_DIR
# check fails above +3%. accept writes the new figures: commit them with the reason.
set -eu
mode=${1:?check or accept}
build=${2:?build directory}
here=$(cd "$(dirname "$0")/.." && pwd)
figures=$here/bench/gate.txt
command -v valgrind >/dev/null || {
    echo "gate: FAILED: valgrind is required, which counts (tools/setup.sh ci installs it)" >&2
    exit 1
}
# Counts depend on the compiler; figures of another one say nothing.
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
version=$("$compiler" --version | head -n 1)
new=$(mktemp)
trap 'rm -f "$new"' EXIT

count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect="gate_$1" \
        "$build/bench/gate_workload" avx2 2>&1 >/dev/null | sed -n 's/.*Collected : //p'
}

echo "# $version" >"$new"
for part in source consumer; do
    echo "$part $(count $part)" >>"$new"
done
if [ "$mode" = accept ]; then
    cp "$new" "$figures"
    cat "$figures"
    exit 0
fi
if [ "$(head -n 1 "$figures")" != "# $version" ]; then
    echo "gate: SKIPPED: figures are for '$(head -n 1 "$figures" | cut -c3-)', this is '$version'"
    exit 0
fi
awk 'NR == FNR { was[$1] = $2; next }
     $1 != "#" {
         change = 100 * ($2 / was[$1] - 1)
         printf "gate: %-9s %12d instructions, committed %12d, %+.2f%%\n", $1, $2, was[$1], change
         if (!(change <= 3)) bad = 1
     }
     END { if (bad) print "gate: FAILED: more than +3%"; exit bad }' "$figures" "$new"
