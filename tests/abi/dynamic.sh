#!/bin/sh
# SPDX-License-Identifier: MIT
# dynamic.sh LIBRARY SONAME: the library's soname, and that it needs libc, libm and pthreads alone.
set -eu
library=$1 soname=$2
if readelf -s "$library" | grep -Eq '__(asan|ubsan|msan|tsan)_'; then
    echo "SKIPPED: a sanitizer's runtime is linked into this build"
    exit 77
fi
found=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
if [ "$found" != "$soname" ]; then
    echo "FAILED: soname is '$found', not '$soname'"
    exit 1
fi
extra=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -Ev '^(libc|libm|libpthread|ld-linux[-a-z0-9_]*)\.so(\.[0-9]+)?$' || true)
if [ -n "$extra" ]; then
    echo "FAILED: the library also needs: $extra"
    exit 1
fi
echo "$found needs nothing beyond libc, libm and pthreads"
