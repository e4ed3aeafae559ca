/* SPDX-License-Identifier: MIT */
/* made.h: the selections of a whole trace made in memory, in the form of a result file. */
#ifndef TAMIS_COMMAND_MADE_H
#define TAMIS_COMMAND_MADE_H

#include "select.h"

typedef struct made_result {
    tamis_result result;
    const int32_t *const *result_counts; /* [layer_count] of present layers; else NULL */
    int32_t **selected, **counts;        /* what those point to */
    int32_t *blocks;
    int32_t layers;
    char machine[120]; /* tier and threads, or device */
} made_result;

/* Selects every present layer on the CPU or on the first GPU. Returns STATUS_GOOD or has said why
 * not; made_result_free in either case. */
int make_result(const tamis_trace *trace, int cuda, const common_options *common, int32_t numerics,
                made_result *made);
void made_result_free(made_result *made);

#endif
