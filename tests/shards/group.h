/* SPDX-License-Identifier: MIT */
/*
 * group.h: the layers of tests/plan spread over ranks: each rank's shard and its own K, made from
 * the plain rows that the oracle reads, and what each rank has to write.
 *
 * A member needs nothing of the others but a transport, so that threads and MPI processes run the
 * same tests.
 */
#ifndef TAMIS_TESTS_SHARDS_GROUP_H
#define TAMIS_TESTS_SHARDS_GROUP_H

#include "layers.h"

enum { /* who owns a block */
       SPLIT_CONTIGUOUS,
       SPLIT_UNEVEN, /* contiguous, cut anywhere: ranks may be empty */
       SPLIT_BLOCKS, /* round robin by block */
       SPLIT_PAGES,  /* round robin by page */
       SPLIT_RANDOM,
       SPLIT_ONE,   /* everything on one rank */
       SPLIT_HOLES, /* odd ranks own nothing */
       SPLIT_KINDS
};

typedef struct split {
    int32_t kind, ranks, unit; /* blocks of a page */
    uint64_t seed;
} split;

int32_t split_owner(const split *s, int64_t asked, int64_t block, int64_t blocks);

/* One ratio's part of a rank. */
typedef struct part {
    tamis_shard shard;
    tamis_k_cache cache;
    int64_t held[MAX_TEST_REQUESTS];
    int32_t *table, *k_start;
    int64_t table_stride, table_width;
    int64_t *slot[MAX_TEST_REQUESTS]; /* of each position of a request; -1: another rank's */
} part;

typedef struct member {
    const layers *l;
    const tamis_indexer *indexer;
    int32_t rank, ranks, threads;
    part part[2]; /* [ratio - 1] */
    tamis_plan_limits limits;
    tamis_shards_options options;
    tamis_transport transport;
    void *memory;
    int64_t bytes;
    tamis_shards *shards;
    tamis_shards_batch batch;
    outcome out[LAYERS];
    tamis_pool *pool;
    tamis_status status; /* of the first call that failed */
    tamis_error error;
} member;

/* What one rank with all of K writes for every layer, by the library; with `oracle`, once the
 * oracle has agreed. */
void alone_run(const layers *l, const char *tier, int64_t rows, int oracle, outcome want[LAYERS]);

tamis_indexer *group_indexer(const layers *l, const char *tier, int32_t ranks);

/* A member's own K and outputs for `rows` rows, but no transport yet. Memory is fresh(). */
void member_make(member *m, const layers *l, const tamis_indexer *indexer, const split *s,
                 int32_t rank, int32_t threads, int64_t rows);
/* Sets the transport and takes memory for the rank. */
void member_connect(member *m, const tamis_transport *transport, int32_t tile_rows);

/* init, step, every layer: the first error ends it. */
void member_run(member *m);
tamis_status member_layer(member *m, int32_t layer);

/* What the member's layer has to hold: `want` with the slots of its own K. */
outcome member_expect(const member *m, int32_t layer, const outcome *want);
void member_same(const member *m, int32_t layer, const outcome *want, const char *what);

/* ---- ranks that are threads ---- */

typedef struct group {
    tamis_local_group *local;
    member member[TAMIS_MAX_RANKS];
    int32_t ranks;
} group;

group *group_make(const layers *l, const tamis_indexer *indexer, const split *s, int32_t threads,
                  int64_t rows, int32_t tile_rows);
void group_free(group *g);
/* Calls work for every member, each in a thread of its own. */
void group_each(group *g, void (*work)(member *m));

#endif
