/* SPDX-License-Identifier: MIT */
/* shard.h: a rank's own blocks of a request, found by bisection of its intervals. */
#ifndef TAMIS_SRC_SHARD_H
#define TAMIS_SRC_SHARD_H

#include <stddef.h>

#include <tamis/shards.h>

/* The last interval of the request that begins at or before a block, or -1. */
static inline int64_t tamis_shard_find(const tamis_shard *s, int64_t request, int64_t block) {
    int64_t low = s->start[request] - 1, high = s->start[request + 1];
    while (high - low > 1) { /* low begins at or before the block, high behind it */
        int64_t middle = low + (high - low) / 2;
        if (s->first[middle] <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low < s->start[request] ? -1 : low;
}

/* The own block of a block of the request, or -1. */
static inline int64_t tamis_shard_own_block(const tamis_shard *s, int64_t request, int64_t block) {
    int64_t i = tamis_shard_find(s, request, block);
    return i >= 0 && block < s->last[i] ? s->before[i] + (block - s->first[i]) : -1;
}

/* The same for one block after another: *at, -1 at first, is the interval where the last was found.
 * Blocks that ascend, as they mostly do, are a few intervals further on. */
static inline int64_t tamis_shard_next_own(const tamis_shard *s, int64_t request, int64_t block,
                                           int64_t *at) {
    int64_t i = *at, end = s->start[request + 1];
    if (i >= 0 && s->first[i] <= block) {
        for (int steps = 0; steps < 8 && i + 1 < end && s->first[i + 1] <= block; steps++) {
            i++;
        }
    }
    if (i < 0 || s->first[i] > block || (i + 1 < end && s->first[i + 1] <= block)) {
        i = tamis_shard_find(s, request, block);
    }
    *at = i;
    return i >= 0 && block < s->last[i] ? s->before[i] + (block - s->first[i]) : -1;
}

/* Own blocks before a block. */
static inline int64_t tamis_shard_blocks_below(const tamis_shard *s, int64_t request,
                                               int64_t block) {
    int64_t i = tamis_shard_find(s, request, block - 1);
    if (i < 0) {
        return 0;
    }
    return s->before[i] + (block < s->last[i] ? block : s->last[i]) - s->first[i];
}

/* The request's block of an own block, or -1 past the last. */
static inline int64_t tamis_shard_block(const tamis_shard *s, int64_t request, int64_t own) {
    int64_t low = s->start[request] - 1, high = s->start[request + 1];
    if (own < 0) {
        return -1;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (s->before[middle] <= own) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if (low < s->start[request] || own - s->before[low] >= s->last[low] - s->first[low]) {
        return -1;
    }
    return s->first[low] + (own - s->before[low]);
}

static inline int64_t tamis_shard_request(const int32_t *request, int64_t r) {
    return request ? request[r] : 0;
}

/* Everything but `before`. */
tamis_status tamis_shard_check(const tamis_shard *shard, tamis_error *error);

/* before[] of a checked shard. */
void tamis_shard_number(const tamis_shard *shard, int32_t *before);

#endif
