#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library's ABI (symbols, struct layouts) against the committed dump, abi/libtamis.abi.
# Usage: tools/abi.sh check|accept. accept renews the dump: raise TAMIS_ABI_VERSION when something
# that existed changed, and say why in the commit.
set -eu
cd "$(dirname "$0")/.."
build=build-abi
dump=abi/libtamis.abi
new=$(mktemp)
trap 'rm -f "$new"' EXIT

# Full debug information, and no CUDA kernels: they are no part of the ABI.
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DTAMIS_BUILD_TESTS=OFF -DTAMIS_BUILD_COMMAND=OFF \
    -DTAMIS_CUDA=off >/dev/null
cmake --build $build --target src/libtamis.so.0 >/dev/null 2>&1 || cmake --build $build
abidw --headers-dir include --drop-private-types --no-show-locs --no-comp-dir-path --no-corpus-path --no-architecture \
    --out-file "$new" $build/src/libtamis.so
sed -i "s|path='$PWD/|path='|" "$new"
if [ "${1:?check or accept}" = accept ]; then
    mkdir -p abi
    cp "$new" $dump
    echo "abi: $(grep -c '<function-decl.*elf-symbol-id' $dump) functions in $dump"
    exit 0
fi
if abidiff --no-show-locs $dump "$new"; then
    echo "abi: unchanged"
else
    echo "abi: CHANGED: if that is meant, run make abi-accept"
    exit 1
fi
