/* SPDX-License-Identifier: MIT */
/* shard_merge.h: the best of what several ranks chose for one row. */
#ifndef TAMIS_SRC_SHARD_MERGE_H
#define TAMIS_SRC_SHARD_MERGE_H

#include <stdint.h>

/* One row's candidates: rank k's ids and scores begin k strides behind those of rank 0. */
typedef struct tamis_candidates {
    const int32_t *ids;
    const float *scores;
    const int32_t *counts;
    int64_t ids_stride, scores_stride, counts_stride;
    int32_t ranks;
    int32_t limit; /* ids are below it; others are dropped */
} tamis_candidates;

/* The best `most` in the order of spec 4.3, ascending by id, to ids and canonical scores (each may
 * be NULL). Returns how many there are. */
int64_t tamis_merge(const tamis_candidates *candidates, int64_t most, int32_t *ids, float *scores);

#endif
