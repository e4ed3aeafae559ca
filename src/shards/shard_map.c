/* SPDX-License-Identifier: MIT */
/*
 * shard_map.c: which blocks a rank owns. Positions of a rank keep the order that they have in the
 * request, so everything that depends on the order of positions, ties first of all, may be decided
 * on own positions.
 */
#include "fail.h"
#include "shards/shard.h"

#include <stdio.h>
#include <string.h>

void tamis_shard_default(tamis_shard *shard) {
    memset(shard, 0, sizeof *shard);
    shard->struct_size = (uint32_t)sizeof *shard;
    shard->ranks = 1;
    shard->block_size = 8;
}

static tamis_status fail_interval(tamis_error *error, const char *array, int64_t i,
                                  const char *required, int64_t found) {
    char argument[60];
    snprintf(argument, sizeof argument, "shard.%s[%lld]", array, (long long)i);
    return tamis_fail(error, TAMIS_ERROR_SHARD, argument, required, "%lld", (long long)found);
}

/* Intervals of one request. */
static tamis_status check_request(const tamis_shard *s, int64_t request, tamis_error *error) {
    int64_t last = 0, limit = INT32_MAX / s->block_size;
    for (int64_t i = s->start[request]; i < s->start[request + 1]; i++) {
        if (s->first[i] < last) {
            return fail_interval(error, "first", i, "the end of the interval before it, or more",
                                 s->first[i]);
        }
        if (s->last[i] <= s->first[i]) {
            return fail_interval(error, "last", i, "more than its first", s->last[i]);
        }
        if (s->last[i] > limit) {
            return fail_interval(error, "last", i, "blocks below position 2^31", s->last[i]);
        }
        last = s->last[i];
    }
    return TAMIS_OK;
}

tamis_status tamis_shard_check(const tamis_shard *s, tamis_error *error) {
    TAMIS_NEED(s->struct_size == sizeof *s, TAMIS_ERROR_STRUCT_SIZE, "shard.struct_size",
               "the size that tamis_shard_default sets", s->struct_size);
    TAMIS_NEED(s->ranks >= 1 && s->ranks <= TAMIS_MAX_RANKS, TAMIS_ERROR_ARGUMENT, "shard.ranks",
               "1 .. 64", s->ranks);
    TAMIS_NEED(s->rank >= 0 && s->rank < s->ranks, TAMIS_ERROR_ARGUMENT, "shard.rank",
               "0 .. ranks-1", s->rank);
    TAMIS_NEED(s->block_size == 8 || s->block_size == 16, TAMIS_ERROR_ARGUMENT, "shard.block_size",
               "8 or 16", s->block_size);
    TAMIS_NEED(s->requests >= 0 && s->requests <= INT32_MAX, TAMIS_ERROR_ARGUMENT, "shard.requests",
               "0 .. 2^31-1", s->requests);
    if (s->requests == 0) {
        return TAMIS_OK;
    }
    TAMIS_NEED(s->start != NULL, TAMIS_ERROR_ARGUMENT, "shard.start", "an array", 0);
    TAMIS_NEED(s->start[0] == 0, TAMIS_ERROR_ARGUMENT, "shard.start[0]", "0", s->start[0]);
    for (int64_t r = 0; r < s->requests; r++) {
        TAMIS_NEED(s->start[r + 1] >= s->start[r], TAMIS_ERROR_ARGUMENT, "shard.start",
                   "ascending starts", s->start[r + 1]);
    }
    TAMIS_NEED(s->start[s->requests] == 0 || (s->first && s->last), TAMIS_ERROR_ARGUMENT,
               "shard.first", "arrays of first and last blocks", 0);
    for (int64_t r = 0; r < s->requests; r++) {
        TAMIS_TRY(check_request(s, r, error));
    }
    return TAMIS_OK;
}

void tamis_shard_number(const tamis_shard *s, int32_t *before) {
    for (int64_t r = 0; r < s->requests; r++) {
        int32_t own = 0;
        for (int64_t i = s->start[r]; i < s->start[r + 1]; i++) {
            before[i] = own;
            own += s->last[i] - s->first[i];
        }
    }
}

tamis_status tamis_shard_index(tamis_shard *shard, int32_t *before, tamis_error *error) {
    TAMIS_NEED(shard != NULL, TAMIS_ERROR_ARGUMENT, "shard", "a shard", 0);
    TAMIS_TRY(tamis_shard_check(shard, error));
    int64_t intervals = shard->requests ? shard->start[shard->requests] : 0;
    TAMIS_NEED(before != NULL || intervals == 0, TAMIS_ERROR_ARGUMENT, "before", "an array", 0);
    tamis_shard_number(shard, before);
    shard->before = before;
    return TAMIS_OK;
}

static int has(const tamis_shard *s, int64_t request) {
    return request >= 0 && request < s->requests;
}

int64_t tamis_shard_length(const tamis_shard *s, int64_t request, int64_t visible) {
    if (!has(s, request) || visible < 0) {
        return -1;
    }
    int64_t block = visible / s->block_size, part = visible % s->block_size;
    int64_t own = tamis_shard_blocks_below(s, request, block) * s->block_size;
    return own + (part > 0 && tamis_shard_own_block(s, request, block) >= 0 ? part : 0);
}

int64_t tamis_shard_own(const tamis_shard *s, int64_t request, int64_t position) {
    if (!has(s, request) || position < 0) {
        return -1;
    }
    int64_t own = tamis_shard_own_block(s, request, position / s->block_size);
    return own < 0 ? -1 : own * s->block_size + position % s->block_size;
}

int64_t tamis_shard_position(const tamis_shard *s, int64_t request, int64_t own) {
    if (!has(s, request) || own < 0) {
        return -1;
    }
    int64_t block = tamis_shard_block(s, request, own / s->block_size);
    return block < 0 ? -1 : block * s->block_size + own % s->block_size;
}
