#!/bin/sh
# SPDX-License-Identifier: MIT
# check.sh TAMIS ROOT FOLDER: what the GPU selects from the real trace and from made ones, every row of
# every layer, is exact by the oracle; a plan for the released model fits the device.
set -eu
tamis=$1 root=$2 folder=$3
"$tamis" info | grep -q '^device 0' || {
    echo "SKIPPED: no GPU"
    exit 77
}
mkdir -p "$folder"
exact() {
    last=$("$tamis" check "$1" --backend cuda --rows all | tail -n 1)
    echo "$1: $last"
    case $last in
    "check: exact, "*) ;;
    *) exit 1 ;;
    esac
}
exact "$root/data/trace_a.safetensors"
for hazard in ties nan spans random-bits; do
    "$tamis" gen "$folder/$hazard.st" --positions 20000 --rows 40 --layers 2 --hazard "$hazard" >/dev/null
    exact "$folder/$hazard.st"
    rm "$folder/$hazard.st"
done
"$tamis" plan "$root/data/deepseek-v4.1-flash.json" --backend cuda | grep 'on a GPU instead: .*; device 0, .*, runs it'
