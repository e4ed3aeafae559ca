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

#endif
