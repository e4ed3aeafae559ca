#!/bin/sh
# SPDX-License-Identifier: MIT
# check.sh TAMIS ROOT FOLDER: what the GPU selects from the real trace and from made ones is exact by
# the oracle, in every layer; a plan for the released model fits the device. The oracle takes about a
# second of one core for a row of the real trace: every row where there are 16 cores, fewer elsewhere.
set -eu
tamis=$1 root=$2 folder=$3
"$tamis" info | grep -q '^device 0' || {
    echo "SKIPPED: no GPU"
    exit 77
}
mkdir -p "$folder"
cores=$(nproc)
rows=all
[ "$cores" -ge 16 ] || rows=$((12 * cores))
exact() {
    last=$("$tamis" check "$1" --backend cuda --rows "$2" | tail -n 1)
    echo "$1: $last"
    case $last in
    "check: exact, "*) ;;
    *) exit 1 ;;
    esac
}
exact "$root/data/trace_a.safetensors" "$rows"
for hazard in ties nan spans random-bits; do
    "$tamis" gen "$folder/$hazard.st" --positions 20000 --rows 40 --layers 2 --hazard "$hazard" >/dev/null
    exact "$folder/$hazard.st" all
    rm "$folder/$hazard.st"
done
"$tamis" plan "$root/data/deepseek-v4.1-flash.json" --backend cuda | grep 'on a GPU instead: .*; device 0, .*, runs it'
