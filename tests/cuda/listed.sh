#!/bin/sh
# SPDX-License-Identifier: MIT
# listed.sh PTXAS_LOG KERNELS_INC: the kernels that were compiled are those that creation loads. One
# that is not listed would be loaded by its first launch, which a capture may be. Portable kernels
# (smxx) take at most 99 KB of shared memory: what every GPU has from 8.0 on.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n "s/.*Compiling entry function '\([a-z0-9_]*\)'.*/\1/p" "$1" | sort -u >"$work/compiled"
sed -n 's/^TAMIS_CUDA_KERNEL(\([a-z0-9_]*\),.*/tamis_\1/p' "$2" | sort -u >"$work/listed"
if [ ! -s "$work/compiled" ] || ! diff "$work/compiled" "$work/listed"; then
    echo "FAILED: '<' is compiled but not in kernels.inc, '>' the other way round"
    exit 1
fi
# Static bytes as ptxas tells them, then dynamic ones as the list has them: NAME BYTES.
awk -F"'" '/Compiling entry function/ { name = $2 }
    / bytes smem/ { match($0, /[0-9]+ bytes smem/); print name, substr($0, RSTART, RLENGTH) + 0 }' "$1" >"$work/static"
sed -n 's/^TAMIS_CUDA_KERNEL(\([a-z0-9_]*\), *[0-9]*, *\(.*\))$/tamis_\1 \2/p' "$2" | while read -r name bytes; do
    echo "$name $(($bytes))"
done >"$work/dynamic"
[ "$(wc -l <"$work/dynamic")" -eq "$(wc -l <"$work/listed")" ]
awk 'NR == FNR { dynamic[$1] = $2; next }
    $1 ~ /_smxx/ { bytes = $2 + dynamic[$1]; most = bytes > most ? bytes : most
        if (bytes > 99 * 1024) { print "FAILED: " $1 " takes " bytes " bytes of shared memory"; bad = 1 } }
    END { print "at most " most + 0 " bytes of shared memory"; exit bad }' "$work/dynamic" "$work/static"
echo "$(wc -l <"$work/listed") kernels, all listed"
