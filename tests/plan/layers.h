/* SPDX-License-Identifier: MIT */
/*
 * layers.h: a small model with every role, a batch of requests over it, and what every layer of a
 * step has to select, by the oracle.
 *
 * Nothing expected comes from a step's arrays: rows, lengths and K are derived here from the
 * requests, and K is kept twice, in request order for the oracle and scattered for the library.
 */
#ifndef TAMIS_TESTS_PLAN_LAYERS_H
#define TAMIS_TESTS_PLAN_LAYERS_H

#include "common.h"

enum {
    LAYER_NONE = 0,
    LAYER_FULL = 1,   /* owns K of the other ratio */
    LAYER_REUSE = 2,  /* of LAYER_FULL */
    LAYER_SOURCE = 3, /* owns K of source_ratio */
    LAYER_CONSUMER = 4,
    CONSUMERS = 4,
    LAYERS = 9,
    MAX_TEST_REQUESTS = 12,
    DRAFTS = 3 /* of the limits that plan_open sets */
};

typedef struct shape {
    int32_t layout, page_size;                                  /* page_size 0 without pages */
    int32_t heads, dim, topk, topk_blocks, block, source_ratio; /* topk_blocks 0: one level */
    int32_t numerics;                                           /* TAMIS_NUMERICS_EXACT or _BF16 */
} shape;

/* Requests by (context, new tokens). */
typedef struct request {
    int64_t context;
    int32_t fresh;
} request;

/* K of one ratio. */
typedef struct keys {
    int64_t start[MAX_TEST_REQUESTS + 1]; /* first row of each request in the plain arrays */
    uint8_t *codes, *scales;              /* plain, in request order */
    tamis_k_cache cache;                  /* the same rows where the library finds them */
    int32_t *table;                       /* PAGE */
    int64_t table_stride, table_width;
    int32_t *k_start; /* SPLIT, ROW */
    int64_t *slot;    /* of each plain row */
} keys;

typedef struct layers {
    shape shape;
    int32_t ratios[LAYERS];
    tamis_model model;
    keys keys[2]; /* [ratio - 1] */
    tamis_query query[LAYERS];
    int64_t context[MAX_TEST_REQUESTS];
    int32_t query_start[MAX_TEST_REQUESTS + 1];
    tamis_batch batch;
} layers;

/* What a layer wrote, or has to write: `rows` rows, each output with room that stays poisoned. */
typedef struct outcome {
    int64_t rows;
    tamis_selection selection;
    int32_t *blocks; /* source only */
    int64_t blocks_stride;
} outcome;

/* How a layer is run. */
typedef struct way {
    int32_t nth;
    int32_t split;    /* score | merge */
    tamis_pool *pool; /* NULL: slices one after the other, the last first */
} way;

/* Memory is fresh(): release() ends it. */
layers *layers_make(shape s, const request *requests, int32_t count);
/* New tokens of request i. */
int32_t layers_fresh(const layers *l, int64_t i);

tamis_indexer *layers_indexer(const layers *l, const char *tier, int32_t sparse_logits);
/* Limits that hold the batch, padded to `rows`. */
tamis_plan_limits layers_limits(const layers *l, int32_t threads, int64_t rows);
/* A plan of these limits, or of layers_limits, in fresh() memory. */
tamis_plan *layers_plan_of(const tamis_indexer *indexer, const tamis_plan_limits *limits);
tamis_plan *layers_plan(const layers *l, const tamis_indexer *indexer, int32_t threads,
                        int64_t rows);
tamis_step layers_step(tamis_plan *plan, const tamis_batch *batch);

int layers_selects(int32_t layer);
int layers_consumes(const layers *l, int32_t layer);
tamis_layer_args layers_args(const layers *l, int32_t layer, const outcome *out);

outcome outcome_make(const layers *l, int32_t layer, int64_t rows);
/* By the oracle, for rows rows: those past the batch's tokens are padding. */
outcome layers_expect(const layers *l, int32_t layer, int64_t rows);
void layers_run(tamis_plan *plan, const tamis_step *step, const layers *l, int32_t layer, way how,
                const outcome *out);
/* Bits, padding of rows included. */
void outcome_same(const outcome *got, const outcome *want, const char *what);

/* Calls work for every supported tier. */
void each_tier(void (*work)(const char *tier));

#endif
