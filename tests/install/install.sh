#!/bin/sh
# SPDX-License-Identifier: MIT
# install.sh prefix BUILD_DIR PREFIX        installs into PREFIX, made anew
# install.sh cmake PREFIX VERSION           a project by find_package(tamis), shared and static
# install.sh shared|static PREFIX VERSION   a program by pkg-config
# install.sh mpi PREFIX VERSION             an MPI program by pkg-config, and by find_package
set -eu
mode=$1
here=$(cd "$(dirname "$0")" && pwd)

# `needs PROGRAM yes|no`: whether the program loads the shared library.
needs() {
    if readelf -d "$1" | grep -q 'NEEDED.*libtamis\.so\.'; then found=yes; else found=no; fi
    [ "$found" = "$2" ] || { echo "FAILED: $1 loads libtamis.so: $found, not $2"; exit 1; }
}

if [ "$mode" = prefix ]; then
    build=$2 prefix=$3
    rm -rf "$prefix"
    cmake --install "$build" --prefix "$prefix" >/dev/null
    for header in "$here"/../../include/tamis/*.h; do
        cmp "$header" "$prefix/include/tamis/$(basename "$header")"
    done
    exit 0
fi

prefix=$2 version=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
library=$(dirname "$(find "$prefix" -name 'libtamis.a')")
if [ "$mode" = cmake ]; then
    cmake -S "$here/project" -B "$work" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    cmake --build "$work" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    needs "$work/host_shared" yes
    needs "$work/host_static" no
    "$work/host_shared" "$version"
    "$work/host_static" "$version"
    exit 0
fi

if [ "$mode" = mpi ]; then
    # As root in a container, and without a launcher: one rank.
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    flags=$(PKG_CONFIG_PATH=$library/pkgconfig pkg-config --cflags --libs tamis-mpi)
    eval mpicc '"$here/project/mpi_main.c" -o "$work/host"' "$flags"
    LD_LIBRARY_PATH=$library "$work/host"
    cmake -S "$here/project" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DWITH_MPI=ON >"$work/log" 2>&1 &&
        cmake --build "$work/build" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    "$work/build/host_mpi"
    exit 0
fi

# Its output quotes itself, for a prefix with a space: hence eval below.
config() {
    PKG_CONFIG_PATH=$library/pkgconfig pkg-config "$@" tamis
}
[ "$(config --modversion)" = "$version" ]
if [ "$mode" = shared ]; then
    eval cc "$(config --cflags)" '"$here/project/main.c" -o "$work/host"' "$(config --libs)"
    needs "$work/host" yes
    LD_LIBRARY_PATH=$library "$work/host" "$version"
else
    mkdir "$work/only" # a folder with the static library alone, as the linker prefers the other
    cp "$library/libtamis.a" "$work/only"
    eval cc "$(config --cflags)" '"$here/project/main.c" -o "$work/host" -L"$work/only"' \
        "$(config --static --libs)"
    needs "$work/host" no
    "$work/host" "$version"
fi
