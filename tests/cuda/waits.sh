#!/bin/sh
# SPDX-License-Identifier: MIT
# waits.sh CUOBJDUMP KERNELS_FATBIN: kernels that are launched early (launch.h) touch no memory but their
# arguments before they have waited for the kernel before: loads that never change are free to move, as the
# compiler sees it. Where the fat binary has machine code of sm_90a.
set -eu
"$1" -sass -arch sm_90a "$2" 2>/dev/null | awk '
    /Function : / { name = $NF; waited = 0; next }
    name !~ /^tamis_((consume_raised[124]?|consume_split|consume_rows|mqa_logits_fast)_sm90|(consume_fast|consume_split|consume_copied|topk_pool)_smxx)$/ { next }
    / ACQBULK / { waited = 1; found[name] = 1 }
    / (LD|LDG|ST|STG|ATOM|ATOMG|RED|CCTL|LDGSTS|UBLKPF|UBLKCP)[. ]/ && !waited && !(name in early) { early[name] = $0 }
    / EXIT / { seen[name] = 1 }
    END {
        for (name in seen) kernels++
        if (!kernels) { print "SKIPPED: no machine code of sm_90a"; exit 77 }
        for (name in seen) if (!(name in found)) { print "FAILED: " name " never waits"; bad = 1 }
        for (name in early) { print "FAILED: " name " does not wait before" early[name]; bad = 1 }
        if (!bad) print kernels " kernels wait first"
        exit bad || kernels != 11
    }'
