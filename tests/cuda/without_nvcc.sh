#!/bin/sh
# SPDX-License-Identifier: MIT
# without_nvcc.sh CMAKE SOURCE BUILD COMPILER GENERATOR: a build with TAMIS_CUDA=off has the whole interface,
# and tamis_cuda_create says what it lacks.
set -eu
cmake=$1 source=$2 build=$3 compiler=$4 generator=$5
"$cmake" -S "$source" -B "$build" -G "$generator" -DCMAKE_C_COMPILER="$compiler" -DTAMIS_CUDA=off \
    -DTAMIS_BUILD_TESTS=OFF -DTAMIS_BUILD_COMMAND=OFF -DCMAKE_BUILD_TYPE=Debug >/dev/null
"$cmake" --build "$build" --target tamis_static >/dev/null
"$compiler" -std=c11 -I"$source/include" -I"$source/tests/harness" "$source/tests/cuda/without_driver.c" \
    "$source/tests/harness/require.c" "$build/src/libtamis.a" -lm -lpthread -D_POSIX_C_SOURCE=200809L \
    -o "$build/without_driver"
"$build/without_driver"
