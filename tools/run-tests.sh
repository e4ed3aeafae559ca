#!/bin/sh
# SPDX-License-Identifier: MIT
# run-tests.sh BUILD_DIR [ctest arguments]: runs the tests, lists each skipped one with its reason,
# and ends with the line "N passed, N failed, N skipped". Fails when a test did, or when none ran. A
# test that could not run (no executable, no fixture) failed: only one that says so itself is skipped.
set -u
if [ $# -lt 1 ]; then
    echo "usage: run-tests.sh BUILD_DIR [ctest arguments]" >&2
    exit 2
fi
build=$1
shift
report=$(mktemp) || exit 2
trap 'rm -f "$report"' EXIT
ctest --test-dir "$build" -j2 --output-on-failure --output-junit "$report" "$@"
status=$?
awk -v status=$status '
    function end_case() {
        if (name == "") return
        if (state == "run") passed++
        else if (state == "fail") failed++
        else if (state == "notrun" && !own) { failed++; print "not run: " name ": " why }
        else { skipped++; print "skipped: " name ": " (reason == "" ? "no reason given" : reason) }
        name = ""
    }
    /<testcase / {
        match($0, /name="[^"]*"/); name = substr($0, RSTART + 6, RLENGTH - 7)
        match($0, /status="[^"]*"/); state = substr($0, RSTART + 8, RLENGTH - 9)
        reason = why = ""; own = 0
    }
    match($0, /<skipped message="[^"]*"/) {
        why = substr($0, RSTART + 18, RLENGTH - 19); own = why ~ /^SKIP_/
    }
    match($0, /SKIPPED: .*/) {
        reason = substr($0, RSTART + 9)
        sub(/<\/system-out>.*/, "", reason)
        gsub(/&quot;/, "\"", reason); gsub(/&lt;/, "<", reason); gsub(/&gt;/, ">", reason)
        gsub(/&apos;/, "\047", reason); gsub(/&amp;/, "\\&", reason)
    }
    /<\/testcase>/ { end_case() }
    END {
        printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
        if (failed > 0 || passed == 0 || status != 0) exit 1
    }' "$report"
