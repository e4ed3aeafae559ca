#!/bin/sh
# SPDX-License-Identifier: MIT
# header.sh INCLUDE_DIR HEADER LANGUAGE STANDARD [COMPILER]: the header compiles alone, pedantically.
set -eu
include=$1 header=$2 language=$3 standard=$4 compiler=${5:-}
if [ -z "$compiler" ]; then
    echo "SKIPPED: no compiler for $language was found"
    exit 77
fi
printf '#include <tamis/%s>\nint main(void) { return 0; }\n' "$header" |
    "$compiler" -x "$language" -std="$standard" -Wall -Wextra -pedantic -pedantic-errors -Werror \
        -I"$include" -fsyntax-only -
