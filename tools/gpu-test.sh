#!/bin/sh
# SPDX-License-Identifier: MIT
# gpu-test.sh [BUILD_DIR]: builds for this machine's GPU, holds every CUDA stage to the CPU's ref, does
# so for a part of the cases with a build of PTX for 8.0 alone, and runs compute-sanitizer's four tools
# over a part of the cases. Prints a table and one closing line.
# Without a GPU or nvcc it says SKIPPED and why, and succeeds. Needs no network: packages that the
# machine lacks come from .carry/ (tools/gpu-pack.sh).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build-gpu}
jobs=$(nproc)
stages="q_prepare k_insert k_gather mqa_logits block_max publish expand sparse_mqa_logits topk consume source dense"
PATH=$PATH:/usr/local/cuda/bin

skip() {
    echo "SKIPPED: test-gpu: $1"
    exit 0
}
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU' || skip "no NVIDIA GPU on this machine"
command -v nvcc >/dev/null 2>&1 || skip "no nvcc on this machine"

if ! pkg-config --exists jansson cmocka 2>/dev/null && ls "$root"/.carry/*.deb >/dev/null 2>&1; then
    carry=$build/carry
    mkdir -p "$carry"
    for package in "$root"/.carry/*.deb; do
        dpkg -x "$package" "$carry"
    done
    libs=$(dirname "$(find "$carry" -name 'libjansson.so' | head -n 1)")
    export PATH="$carry/usr/bin:$PATH" LD_LIBRARY_PATH="$libs:${LD_LIBRARY_PATH:-}"
    export PKG_CONFIG_PATH="$libs/pkgconfig" C_INCLUDE_PATH="$carry/usr/include" LIBRARY_PATH="$libs"
    sed -i "s|^prefix=/usr|prefix=$carry/usr|; s|=/usr/|=$carry/usr/|" "$PKG_CONFIG_PATH"/*.pc
fi

if ! python3 -c 'import pytest' 2>/dev/null && ls "$root"/.carry/wheels/*.whl >/dev/null 2>&1; then
    export TAMIS_WHEELS="$build/site"
    python3 -m pip install -q --no-index --no-deps --target "$TAMIS_WHEELS" "$root"/.carry/wheels/*.whl
fi

nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader
nvcc --version | sed -n 's/.*release/nvcc/p'
cmake -S "$root" -B "$build" -G Ninja -DTAMIS_CUDA=on >"$build.log" 2>&1 || {
    cat "$build.log"
    exit 1
}
rm -f "$build.log"
started=$(date +%s)
cmake --build "$build" -j "$jobs" --target gpu_harness gpu_hostile gpu_properties gpu_indexer \
    gpu_plan_same gpu_plan_guard gpu_plan_raised gpu_plan_tiles gpu_plan_scores gpu_pitfalls \
    gpu_runtime tamis_command >"$build/build.txt" 2>&1 || {
    tail -n 40 "$build/build.txt"
    exit 1
}
echo "built in $(($(date +%s) - started)) s"

# The code of 8.0, as PTX that the driver compiles for this GPU: its machine code would not run here.
portable=$build/portable
mkdir -p "$portable"
(cmake -S "$root" -B "$portable" -G Ninja -DTAMIS_CUDA=on -DTAMIS_CUDA_ARCHS=80-virtual \
    -DTAMIS_BUILD_COMMAND=off && cmake --build "$portable" -j "$jobs" --target gpu_harness \
    gpu_plan_same gpu_plan_guard gpu_plan_scores) >"$portable/build.txt" 2>&1 &
portable_build=$!

status=0
# A time limit leaves programs behind that `timeout` put into groups of their own, and they go on on the GPU.
trap 'pkill -f -- "$build/.*tests/cuda/gpu_" || true; exit 143' TERM INT
"$root/tools/run-tests.sh" "$build" -L '^gpu$' -j 8 >"$build/tests.txt" 2>&1 || status=1
grep -E '^ *[0-9]+/[0-9]+ Test|^skipped:|FAILED|during:' "$build/tests.txt" | sed 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: //'
if [ $status -ne 0 ]; then
    grep -vE '^ *[0-9]+/[0-9]+ Test|^ +Start' "$build/tests.txt" | head -n 60
fi
tests=$(tail -n 1 "$build/tests.txt")
for program in live_length errors; do
    "$build/tests/cuda/gpu_properties" "$program" || status=1
done

run_portable() {
    if ! wait $portable_build; then
        tail -n 40 "$portable/build.txt"
        echo "portable: FAILED to build"
        status=1
        portable_says=", no PTX of 8.0"
        return
    fi
    export CUDA_CACHE_PATH="$portable/jit"
    begun=$(date +%s)
    "$portable/tests/cuda/gpu_harness" block_max few >/dev/null || true # compiles, once for all
    echo "portable: the driver took $(($(date +%s) - begun)) s for the PTX"
    for name in $stages pages routes released stamps graph few; do
        case $name in
        pages | routes | released) echo "gpu_plan_same $name" ;;
        stamps | graph) echo "gpu_plan_guard $name" ;;
        few) echo "gpu_plan_scores $name" ;;
        *) echo "gpu_harness $name few" ;;
        esac
    done >"$portable/programs"
    xargs -P 8 -I@ sh -c "set -- @; timeout 120 '$portable/tests/cuda/'@ >'$portable/'\$2.txt 2>&1 || echo \$2" \
        <"$portable/programs" >"$portable/failed"
    unset CUDA_CACHE_PATH
    if [ -s "$portable/failed" ]; then
        status=1
        echo "portable: FAILED: $(tr '\n' ' ' <"$portable/failed")"
        head -n 30 "$portable/$(head -n 1 "$portable/failed").txt"
        portable_says=", PTX of 8.0 failed"
    else
        echo "portable: $(wc -l <"$portable/programs") programs of PTX for 8.0 pass"
        portable_says=", PTX of 8.0 too"
    fi
}
portable_says=
run_portable

# One tool over every stage, several at once. A machine may refuse the tools: that is said, not hidden.
sanitize() {
    tool=$1
    folder=$build/$tool
    mkdir -p "$folder"
    if ! timeout 120 compute-sanitizer --tool "$tool" "$build/tests/cuda/gpu_harness" block_max few \
        >"$folder/probe.log" 2>&1 && grep -qiE 'not supported|LibraryNotLoaded|Unable to' "$folder/probe.log"; then
        echo "$tool: SKIPPED: $(grep -iE 'not supported|LibraryNotLoaded|Unable to' "$folder/probe.log" | head -n 1)"
        sanitized="$sanitized, $tool skipped"
        return
    fi
    routes= # many rows: the longest by far, so first, and for one tool only
    [ "$tool" != memcheck ] || routes="routes order"
    for name in $routes $stages levels stages pages rows tiles stamps hostile bytes falling small few; do
        case $name in
        levels | stages) echo "gpu_hostile $name" ;;
        pages | rows | routes | tiles) echo "gpu_plan_same $name" ;;
        stamps | hostile) echo "gpu_plan_guard $name" ;;
        bytes | falling | order) echo "gpu_plan_raised $name" ;;
        small) echo "gpu_plan_tiles $name" ;;
        few) echo "gpu_plan_scores $name" ;;
        *) echo "gpu_harness $name few" ;;
        esac
    done | xargs -P $(((jobs + 1) * 2 / 3)) -I@ sh -c "set -- @; timeout 240 compute-sanitizer --tool $tool --error-exitcode 9 \
        '$build/tests/cuda/'@ >'$folder/'\$2.txt 2>&1 || echo \$2" >"$folder/failed"
    if [ -s "$folder/failed" ]; then
        status=1
        echo "$tool: FAILED: $(tr '\n' ' ' <"$folder/failed")"
        first=$(head -n 1 "$folder/failed")
        head -n 30 "$folder/$first.txt"
        sanitized="$sanitized, $tool failed"
    else
        echo "$tool: $(cat "$folder"/*.txt | grep -cE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards') programs clean"
        sanitized="$sanitized, $tool clean"
    fi
}
sanitized=
if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck synccheck initcheck; do
        sanitize $tool
    done
else
    sanitized=", no compute-sanitizer"
fi

verdict=green
[ $status -eq 0 ] || verdict=FAILED
echo "test-gpu: $verdict: $tests$portable_says$sanitized, $(($(date +%s) - started)) s"
exit $status
