#!/bin/sh
# SPDX-License-Identifier: MIT
# covered.sh INCLUDE_DIR LAYOUT_C: every struct of the public headers has its size and each
# of its fields its offset asserted.
set -eu
include=$1 layout=$2
awk '
    { # strips comments
        text = $0; $0 = ""
        while (text != "") {
            at = index(text, comment ? "*/" : "/*")
            if (!comment) $0 = $0 (at ? substr(text, 1, at - 1) : text)
            text = at ? substr(text, at + 2) : ""
            if (at) comment = !comment
        }
        sub(/ *$/, "")
    }
    /^typedef struct [a-z_0-9]+ \{/ { inside = 1; n = 0; next }
    inside && /^\} [a-z_0-9]+;/ {
        name = $2; sub(/;.*/, "", name); inside = 0
        print "SIZE(" name ","
        for (i = 0; i < n; i++) print "AT(" name ", " field[i] ","
    }
    inside && /;/ {
        line = $0; sub(/;.*/, "", line); parts = split(line, part, ",")
        for (i = 1; i <= parts; i++) {
            sub(/\[[^]]*\] *$/, "", part[i]); sub(/ *$/, "", part[i])
            sub(/.*[ *]/, "", part[i]); field[n++] = part[i]
        }
    }' "$include"/tamis/*.h | {
    missing=0 count=0
    while read -r want; do
        count=$((count + 1))
        grep -qF "$want" "$layout" && continue
        echo "layout.c lacks $want ...)"
        missing=$((missing + 1))
    done
    if [ "$missing" -gt 0 ] || [ "$count" -lt 150 ]; then
        echo "FAILED: $missing of $count sizes and offsets are not asserted"
        exit 1
    fi
    echo "$count sizes and offsets are asserted"
}
