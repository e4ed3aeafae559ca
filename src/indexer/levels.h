/* SPDX-License-Identifier: MIT */
/* levels.h: steps of the two levels that the stage calls and the indexer share. */
#ifndef TAMIS_INDEXER_LEVELS_H
#define TAMIS_INDEXER_LEVELS_H

#include <string.h>

#include "kernels/kernels.h"

/*
 * The mask of the dense route: scores of listed blocks (local ids) move to the front, so that
 * nothing masked can be chosen, not even over a NaN. Ids ascend, so a block only ever moves
 * forward.
 */
static inline void tamis_keep_blocks(const int32_t *blocks, int64_t anchor, int64_t count,
                                     int64_t size, int64_t length, float *scores) {
    for (int64_t i = 0; i < count; i++) {
        int64_t first = (blocks[i] - anchor) * size;
        int64_t last = first + size < length ? first + size : length;
        memmove(scores + i * size, scores + first, (size_t)(last - first) * sizeof *scores);
    }
}

/*
 * Memory that one row of a source uses. A row of at most `capacity` positions keeps its scores; a
 * longer one keeps its block maxima, and scores the blocks that can hold its selection once more.
 */
typedef struct tamis_source_work {
    float *maxima;    /* [blocks of the row] */
    float *scores;    /* [capacity], and at least [topk_blocks] */
    int64_t capacity; /* positions */
    int32_t *list;    /* [topk + 1] */
    void *scratch;    /* tamis_consume_scratch_bytes(topk + 1, block_size) */
} tamis_source_work;

/* Floats of tamis_source_work.scores: the published pool, or that of topk + 1 blocks. */
static inline int64_t tamis_source_capacity(int32_t topk_blocks, int32_t topk, int32_t block_size) {
    return (int64_t)(topk_blocks > topk ? topk_blocks : topk + 1) * block_size;
}

/* Arguments of one row: rows.count is 1. Scores it, slice ith of nth of its positions. */
void tamis_source_score_row(const tamis_kernels *kernels, const tamis_source_args *one,
                            const tamis_source_work *work, int32_t ith, int32_t nth);

/* Publishes and selects, once every slice has scored. */
void tamis_source_finish_row(const tamis_kernels *kernels, const tamis_source_args *one,
                             const tamis_source_work *work);

#endif
