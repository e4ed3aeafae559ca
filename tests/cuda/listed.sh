#!/bin/sh
# SPDX-License-Identifier: MIT
# listed.sh PTXAS_LOG KERNELS_INC: the kernels that were compiled are those that creation loads. One
# that is not listed would be loaded by its first launch, which a capture may be.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n "s/.*Compiling entry function '\([a-z0-9_]*\)'.*/\1/p" "$1" | sort -u >"$work/compiled"
sed -n 's/^TAMIS_CUDA_KERNEL(\([a-z0-9_]*\),.*/tamis_\1/p' "$2" | sort -u >"$work/listed"
if [ ! -s "$work/compiled" ] || ! diff "$work/compiled" "$work/listed"; then
    echo "FAILED: '<' is compiled but not in kernels.inc, '>' the other way round"
    exit 1
fi
echo "$(wc -l <"$work/listed") kernels, all listed"
