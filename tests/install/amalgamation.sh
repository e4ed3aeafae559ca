#!/bin/sh
# SPDX-License-Identifier: MIT
# amalgamation.sh SOURCE_DIR STATIC_LIBRARY PYTHON: makes the amalgamation, compiles it with gcc and
# clang without special flags and with a host's, links every call that its header declares, and holds
# its results to the library's.
set -eu
source=$1 library=$2 python=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$source/tests/install
"$python" "$source/tools/amalgamate.py" "$work"
cc -std=c11 -O2 -Wall -Wextra -Werror -D_POSIX_C_SOURCE=200809L -I"$source/include" "$here/agree.c" "$library" -lm -lpthread -o "$work/library"
"$work/library" >"$work/want"
tiers=$(cut -d' ' -f1 "$work/want" | sort -u | tr '\n' ' ')
lines=$(wc -l <"$work/want")
[ "$lines" -ge 23 ] || { echo "FAILED: only $lines digests"; exit 1; }

# Everything that the header declares.
cc -E -P "$work/tamis.h" | tr '\n' ' ' | tr ';' '\n' | grep 'visibility("default")' |
    sed -e 's/.*visibility("default")))//' -e 's/^\([^(]*\)(.*/\1/' -e 's/ *$//' -e 's/.*[ *]//' |
    sort -u >"$work/declared"
declared=$(wc -l <"$work/declared")
[ "$declared" -ge 40 ] || { echo "FAILED: only $declared declarations were found in tamis.h"; exit 1; }
{
    printf '#include "tamis.h"\nvoid (*const volatile calls[])(void) = {\n'
    sed 's/.*/    (void (*)(void))&,/' "$work/declared"
    printf '};\nint main(void) { return calls[0] == 0; }\n'
} >"$work/links.c"

# Every tier gives the same bits.
sed -n "s/^ref //p" "$work/want" >"$work/tier.ref"
for tier in $tiers; do
    sed -n "s/^$tier //p" "$work/want" >"$work/tier.$tier"
    cmp "$work/tier.ref" "$work/tier.$tier" || { echo "FAILED: $tier is not ref"; exit 1; }
done

agrees() {
    compiler=$1
    shift
    (cd "$work" && "$compiler" "$@" -Werror -c tamis.c -o tamis.o)
    "$compiler" -std=c11 -O2 -Wall -Wextra -Werror -D_POSIX_C_SOURCE=200809L -DAGREE_AMALGAMATION=1 -I"$work" "$here/agree.c" \
        "$work/tamis.o" -lm -lpthread -o "$work/vendored"
    "$compiler" -std=c11 -O2 -I"$work" "$work/links.c" "$work/tamis.o" -lm -lpthread -o "$work/links"
    "$work/links"
    "$work/vendored" >"$work/got"
    if ! diff "$work/want" "$work/got"; then
        echo "FAILED: $compiler $* disagrees with the library"
        exit 1
    fi
    echo "$compiler $*: $declared calls link, $lines digests on $tiers agree"
}
refuses() {
    compiler=$1
    shift
    if (cd "$work" && "$compiler" "$@" -c tamis.c -o tamis.o 2>"$work/said"); then
        echo "FAILED: $compiler $* was not refused"
        exit 1
    fi
    grep -q 'without -ffast-math' "$work/said"
}

ran=
for compiler in gcc clang; do
    if ! command -v $compiler >/dev/null; then
        echo "skipped: no $compiler"
        continue
    fi
    ran=$ran$compiler
    [ $compiler = clang ] || agrees gcc -O3 -flto # clang's needs a linker of its own
    agrees $compiler -O3
    agrees $compiler -O2 -std=c11
    agrees $compiler -O3 -march=native
    refuses $compiler -O3 -ffast-math
done
case $ran in
*gcc*clang*) ;;
*)
    echo "SKIPPED: a compiler is missing: gcc and clang are needed, found: ${ran:-none}"
    exit 77
    ;;
esac
