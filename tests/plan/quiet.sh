#!/bin/sh
# SPDX-License-Identifier: MIT
# quiet.sh PROGRAM: no system call stands between a pair of getppid markers of `PROGRAM markers`.
set -u
program=$1
log=$(mktemp) || exit 1
trap 'rm -f "$log" "$log.err"' EXIT
"$program" counters >"$log" 2>&1
if [ $? -eq 77 ]; then # before strace: a sanitizer does not run under it
    cat "$log"
    exit 77
fi
command -v strace >/dev/null || { echo "SKIPPED: strace is not installed"; exit 77; }
if ! strace -o "$log" true 2>"$log.err"; then
    echo "SKIPPED: ptrace is refused: $(head -n 1 "$log.err")"
    exit 77
fi
strace -f -o "$log" "$program" markers >"$log.err" 2>&1
status=$?
if [ $status -ne 0 ]; then
    cat "$log.err"
    echo "FAILED: $program exited with $status"
    exit 1
fi
awk '/getppid\(\)/ { markers++; inside = !inside; next }
     inside { print "between markers: " $0; bad++ }
     END {
         printf "%d pairs of markers, %d system calls between them\n", markers / 2, bad
         exit !(markers >= 12 && markers % 2 == 0 && bad == 0)
     }' "$log"
