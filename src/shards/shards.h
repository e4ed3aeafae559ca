/* SPDX-License-Identifier: MIT */
/* shards.h: what lies in a rank's memory. */
#ifndef TAMIS_SRC_SHARDS_H
#define TAMIS_SRC_SHARDS_H

#include "indexer/indexer.h"
#include "shards/agree.h"

enum { /* what a collective call is, for the ranks to compare */
       TAMIS_CALL_INIT = 1,
       TAMIS_CALL_STEP,
       TAMIS_CALL_STEP_END,
       TAMIS_CALL_SOURCE,
       TAMIS_CALL_CONSUMER,
       TAMIS_CALL_RUN_END
};

/* A tile's message: one rank's candidates of `rows` rows. Offsets in elements of 4 bytes. */
typedef struct tamis_tile_layout {
    int64_t rows;
    int64_t blocks, topk; /* candidates of a row; blocks -1: none, not even counts */
    int64_t block_counts, block_ids, block_scores, counts, positions, scores;
    int64_t bytes; /* a multiple of 64 */
} tamis_tile_layout;

tamis_tile_layout tamis_tile_of(int64_t rows, int64_t blocks, int64_t topk);

/* A ratio's shards as they were last agreed on. */
typedef struct tamis_shard_copy {
    tamis_shard shard;              /* points to the arrays below */
    int64_t *start;                 /* [max_requests + 1] */
    int32_t *first, *last, *before; /* [max_intervals] */
    int64_t *covered;               /* [max_requests] blocks that somebody owns */
} tamis_shard_copy;

struct tamis_shards {
    const tamis_indexer *indexer;
    tamis_plan_limits limits;
    tamis_link link;
    tamis_pool *pool;
    int64_t max_rows, max_intervals, tile_rows;
    int32_t topk, topk_blocks, block_size;
    int32_t selects[2]; /* [ratio - 1] */
    uint64_t list_exchanges;
    int compared; /* whether copies are what all ranks agreed on */
    tamis_shard_copy copy[2];
    /* the step */
    uint64_t serial; /* 0: none yet */
    int64_t rows, requests, max_visible[2];
    int32_t *request;                    /* [max_rows] */
    int32_t *visible[2], *ks[2], *ke[2]; /* [max_rows] of the request; of own K */
    const int32_t *page_table[2];
    int64_t page_table_stride[2], page_table_width[2];
    /* what a source published, and the stamp of it */
    int32_t *blocks, *block_counts; /* [max_rows][topk_blocks], [max_rows] */
    uint64_t published_serial;
    int32_t published_layer;
    /* what a run selected, until all ranks have agreed to write it */
    int32_t *positions, *counts; /* [max_rows][topk], [max_rows] */
    float *scores;               /* [max_rows][topk] */
    uint8_t *send, *receive;     /* [message_bytes], [ranks][message_bytes] */
    int64_t message_bytes;
    /* of each slice, or, where rows are cut over positions, of each row */
    uint8_t *line; /* [threads][line_bytes]: maxima, scores, list, scratch */
    int64_t line_bytes, maxima_bytes, scores_bytes, list_bytes;
};

/* Bytes of the lists of both ratios in one message. */
int64_t tamis_lists_bytes(const tamis_shards *shards, int64_t requests, const int64_t intervals[2]);

#endif
