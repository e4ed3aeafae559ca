/* SPDX-License-Identifier: MIT */
/*
 * world.h: numbers for the tests of a rank's stages: ownership is an array of owners, and scores
 * are those of every position, so that what has to come out is found by asking block by block.
 */
#ifndef TAMIS_TESTS_SHARDS_WORLD_H
#define TAMIS_TESTS_SHARDS_WORLD_H

#include "common.h"

enum { ROWS = 5, REQUESTS = 3, BLOCKS = 90, WORLD_RANKS = 5, PAD = 3 };

typedef struct world {
    int32_t size, ranks, owner[REQUESTS][BLOCKS];
    tamis_shard shard[WORLD_RANKS];
    int32_t visible[ROWS], request[ROWS];
    float *scores[ROWS]; /* of every position */
} world;

/* Runs of owners, short and long; scores by kind: 0 NaN, infinities and zeros, 1 ties, 2 ordinary,
 * 3 subnormal, the first three with some of kind 0. */
world *world_make(int32_t size, int32_t ranks, int kind);

/* A position's place among the own ones of a rank, -1 when another has it. */
int64_t own_by_counting(const world *w, int32_t rank, int32_t i, int64_t position);

/* Candidates of all ranks, with room between rows and ranks that stays poisoned. */
typedef struct gathered {
    int64_t width, stride, rank_stride, counts_stride;
    int32_t *ids, *counts;
    float *scores;
} gathered;

gathered gathered_make(int32_t ranks, int64_t width);

/* Rank k's candidates for blocks, into g. */
void run_shard_blocks(const world *w, int32_t k, int32_t topk_blocks, const gathered *g);

/* Arguments over gathered candidates, with outputs of their own. */
tamis_shard_publish_args publish_args(const world *w, int32_t topk_blocks, const gathered *g);
tamis_shard_topk_args topk_args(const world *w, int32_t topk, const gathered *g);

#endif
