#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the libFuzzer targets with clang, AddressSanitizer and UBSan, and runs one after the other.
# usage: tools/fuzz.sh [SECONDS each, 60] [BUILD FOLDER, build/fuzz]
# Corpora stay in the build folder; a crash fails the script and is kept there as TARGET-crash-*.
set -eu
seconds=${1:-60}
root=$(cd "$(dirname "$0")/.." && pwd)
build=${2:-$root/build/fuzz}

CC=clang cmake -S "$root" -B "$build" -G Ninja -DTAMIS_FUZZ=ON -DTAMIS_BUILD_COMMAND=OFF \
    -DTAMIS_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
ninja -C "$build" fuzz_trace fuzz_expand fuzz_seeds

mkdir -p "$build/seeds/trace" "$build/seeds/expand" "$build/corpus/trace" "$build/corpus/expand"
"$build/tests/fuzz/fuzz_seeds" "$build/seeds"
for what in trace expand; do
    dict=
    [ "$what" != trace ] || dict=-dict=$root/tests/fuzz/trace.dict
    echo "fuzz_$what: $seconds s"
    "$build/tests/fuzz/fuzz_$what" ${dict:+"$dict"} -max_total_time="$seconds" -max_len=16384 -timeout=10 \
        -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$build/$what-" \
        "$build/corpus/$what" "$build/seeds/$what" >"$build/fuzz_$what.log" 2>&1 || {
        tail -40 "$build/fuzz_$what.log"
        exit 1
    }
    grep -E '^#[0-9]+.*(INITED|DONE)|^Done|^stat::' "$build/fuzz_$what.log"
done
echo "fuzz: no crash in $seconds s of each target"
