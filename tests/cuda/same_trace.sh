#!/bin/sh
# SPDX-License-Identifier: MIT
# same_trace.sh TAMIS TRACE FOLDER: a trace selected on the CPU and on the GPU gives the same result
# file, every layer and row, scores and slots, by both routes of consumers.
set -eu
tamis=$1 trace=$2 folder=$3
"$tamis" info | grep -q '^device 0' || {
    echo "SKIPPED: no GPU"
    exit 77
}
mkdir -p "$folder"
"$tamis" run "$trace" -o "$folder/cpu.safetensors" --scores --slots >/dev/null
for how in "" --dense; do
    "$tamis" run "$trace" -o "$folder/cuda.safetensors" --scores --slots --backend cuda $how
    cmp "$folder/cpu.safetensors" "$folder/cuda.safetensors"
done
"$tamis" run "$trace" -o "$folder/cpu.safetensors" --scores --numerics bf16 >/dev/null
"$tamis" run "$trace" -o "$folder/cuda.safetensors" --scores --numerics bf16 --backend cuda
cmp "$folder/cpu.safetensors" "$folder/cuda.safetensors"
echo "gpu: the real trace: the same files, $(stat -c %s "$folder/cuda.safetensors") bytes"
