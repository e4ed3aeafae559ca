#!/bin/sh
# SPDX-License-Identifier: MIT
# without_nvcc.sh CMAKE SOURCE BUILD COMPILER GENERATOR: a build with TAMIS_CUDA=off has the whole interface
# and the whole command; tamis_cuda_create and --backend cuda say what it lacks.
set -eu
cmake=$1 source=$2 build=$3 compiler=$4 generator=$5
"$cmake" -S "$source" -B "$build" -G "$generator" -DCMAKE_C_COMPILER="$compiler" -DTAMIS_CUDA=off \
    -DTAMIS_BUILD_TESTS=OFF -DTAMIS_BUILD_COMMAND=ON -DCMAKE_BUILD_TYPE=Debug >/dev/null
"$cmake" --build "$build" --target tamis_static tamis_command >/dev/null
"$compiler" -std=c11 -I"$source/include" -I"$source/tests/harness" "$source/tests/cuda/without_driver.c" \
    "$source/tests/harness/require.c" "$build/src/libtamis.a" -lm -lpthread -D_POSIX_C_SOURCE=200809L \
    -o "$build/without_driver"
"$build/without_driver"
tamis=$build/tamis trace=$build/without.st
"$tamis" info | grep '^CUDA backend: not built, '
"$tamis" gen "$trace" --positions 500 --rows 3 --layers 1 >/dev/null
"$tamis" check "$trace" --backend cpu | grep '^check: exact, 3 rows x 2 layers'
for word in run check plan; do
    file=$trace
    [ $word != plan ] || file=$source/data/deepseek-v4.1-flash.json
    if message=$("$tamis" $word "$file" --backend cuda 2>&1) ||
        ! echo "$message" | grep 'build: required a build with CUDA kernels'; then
        echo "FAILED: tamis $word --backend cuda: $message"
        exit 1
    fi
done
