#!/bin/sh
# SPDX-License-Identifier: MIT
# symbols.sh LIBRARY INCLUDE_DIR COMPILER: the shared library exports exactly what the headers
# declare with TAMIS_API. The list comes from the preprocessed header, so macros are expanded.
set -eu
library=$1 include=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for header in "$include"/tamis/*.h; do
    printf '#include <tamis/%s>\n' "${header##*/}"
done | "$compiler" -E -P -I"$include" - | tr '\n' ' ' | tr ';' '\n' |
    grep 'visibility("default")' |
    sed -e 's/.*visibility("default")))//' -e 's/^\([^(]*\)(.*/\1/' -e 's/ *$//' \
        -e 's/.*[ *]//' | sort -u >"$work/declared"
nm -D --defined-only "$library" | awk '{print $NF}' | sed 's/@.*//' | sort -u >"$work/exported"
count=$(wc -l <"$work/declared")
if [ "$count" -lt 40 ]; then
    echo "FAILED: only $count declarations were found in the headers"
    exit 1
fi
if ! diff "$work/declared" "$work/exported"; then
    echo "FAILED: '<' is declared but not exported, '>' is exported but not declared"
    exit 1
fi
echo "$count symbols, all declared and all exported"
