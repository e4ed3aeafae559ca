#!/bin/sh
# SPDX-License-Identifier: MIT
# many_steps.sh TAMIS [SCRIPTS [OPTION ..]]: random scripts of 250 steps each (40: 10,000 steps), seeds 1001 onward,
# every row judged. OPTIONs go to `tamis replay`. Ends with one line; fails when a script did.
set -u
tamis=$1
scripts=${2:-40}
shift
[ $# -gt 0 ] && shift
report=$(mktemp) || exit 2
trap 'rm -f "$report"' EXIT
failed=0
seed=1001
while [ $seed -le $((1000 + scripts)) ]; do
    "$tamis" replay --generate $seed --steps 250 --json "$@" >>"$report" || {
        failed=$((failed + 1))
        echo "seed $seed failed"
    }
    seed=$((seed + 1))
done
sed -n 's/^ *"\(steps\|rows\|judged\)": \([0-9]*\),*$/\1 \2/p' "$report" |
    awk -v failed=$failed -v scripts="$scripts" '{ sum[$1] += $2 } END {
        printf "replay: %d scripts, %d failed, %d steps, %d rows, %d lists judged\n", scripts, failed, sum["steps"], sum["rows"], sum["judged"]
    }'
[ $failed -eq 0 ]
