/* SPDX-License-Identifier: MIT */
/* check.h: what `check` found, for the two files that find it and tell it. */
#ifndef TAMIS_COMMAND_CHECK_H
#define TAMIS_COMMAND_CHECK_H

#include "command.h"
#include "judge.h"

typedef struct check_state {
    judge judge;
    int64_t sampled;               /* rows judged */
    int64_t *rows;                 /* [sampled] which */
    finding *findings;             /* [sampled][layer_count + 1]; the last of a row is its blocks */
    tally *tallies;                /* [layer_count + 1] */
    int32_t layers;                /* judged: present and in the result */
    int32_t verdict;               /* the worst */
    const char *result;            /* file, for messages */
    const char *backend, *machine; /* that selected, and its tier or device; NULL: neither did */
    char rounding[64]; /* classes that explain VERDICT_ROUNDING: "bf16", "bf16, ref_bf16" */
} check_state;

/* One line for each list that differs, the table of classes, and the last line. */
void check_report_text(const check_state *c);
void check_report_json(const check_state *c);

#endif
