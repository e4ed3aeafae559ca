/* SPDX-License-Identifier: MIT */
/* plan.h: what lies in a plan's memory. */
#ifndef TAMIS_SRC_PLAN_H
#define TAMIS_SRC_PLAN_H

#include <stdatomic.h>
#include <stddef.h>

#include <tamis/tamis.h>

/* What a plan's size depends on besides its limits. */
typedef struct tamis_plan_shape {
    const tamis_model *model;
    int32_t sparse_logits; /* TAMIS_SPARSE_* */
} tamis_plan_shape;

/* Bytes of a plan, or -1 with the error. */
int64_t tamis_plan_bytes_for(const tamis_plan_shape *shape, const tamis_plan_limits *limits,
                             tamis_error *error);

tamis_status tamis_plan_check_limits(const tamis_plan_limits *limits, tamis_error *error);

/* A plan's rows and page tables are those of all of K. */
tamis_status tamis_plan_check_ranks(const tamis_indexer *indexer, tamis_error *error);

/* Positions of the longest row of any layer. */
int64_t tamis_plan_longest_row(const tamis_model *model, const tamis_plan_limits *limits);

/* Whether layers of a ratio select, so that its rows need K. */
int tamis_model_ratio_selects(const tamis_model *model, int32_t ratio);

/* Takes `bytes` from the memory at *at, or only counts where memory is NULL. */
static inline void *tamis_plan_take(uint8_t *memory, int64_t *at, int64_t bytes) {
    void *taken = memory ? memory + *at : NULL;
    *at += (bytes + 63) / 64 * 64;
    return taken;
}

/* Tokens of request i that a step adds. */
static inline int64_t tamis_new_tokens(const tamis_batch *batch, int64_t i) {
    return (int64_t)batch->query_start[i + 1] - batch->query_start[i];
}

/* What of a batch can be checked without reading its arrays; the same with lengths and starts; the
 * page table of one ratio. */
tamis_status tamis_batch_check_fields(const tamis_batch *batch, int64_t max_requests,
                                      int64_t max_rows, tamis_error *error);
tamis_status tamis_batch_check_requests(const tamis_batch *batch, const tamis_plan_limits *limits,
                                        int64_t max_rows, tamis_error *error);
tamis_status tamis_batch_check_table(const tamis_batch *batch, int32_t ratio, tamis_error *error);

/*
 * The stamp of the published blocks (spec 6.3): serial, source layer and number of slices in one
 * word, set by the first slice that publishes; the blocks are complete when that many slices have
 * closed.
 */
typedef struct tamis_stamp {
    _Atomic uint64_t opened; /* tamis_stamp_word, or 0 */
    _Atomic int32_t closed;  /* slices done */
    _Atomic int64_t rows;
    _Atomic int64_t k_size; /* of the cache that the blocks were placed in */
} tamis_stamp;

static inline uint64_t tamis_stamp_word(uint64_t serial, int32_t layer, int32_t nth) {
    return serial << 32 | (uint64_t)(uint16_t)layer << 16 | (uint16_t)nth;
}

typedef struct tamis_plan_counts {
    _Atomic uint64_t steps, expanded, consumed, sparse_rows, dense_rows;
} tamis_plan_counts;

struct tamis_plan {
    const tamis_indexer *indexer;
    tamis_plan_limits limits;
    int64_t max_rows;
    int32_t selects[2];       /* [ratio - 1] whether layers of that ratio select */
    uint64_t serial;          /* of the last step made */
    tamis_step_counts counts; /* the step's */
    tamis_stamp stamp;
    tamis_plan_counts totals;
    int32_t *token, *request, *ks[2], *ke[2]; /* [max_rows] */
    _Atomic uint64_t *slice;                  /* [threads] serial that each slice has published */
    _Atomic uint64_t owner;                   /* of the lines: indexer/lines.h */
    _Atomic uint64_t *scored, *merged; /* [threads] claims of the lines that a slice served */
    _Atomic uint64_t *whole;           /* [threads] whether a slice is in a whole run */
    int32_t nonce; /* of this init: a step that outlived its plan's memory is no step of the next */
    int32_t *blocks;       /* [max_rows][topk_blocks] published ids, -1 tail */
    int32_t *blocks_count; /* [max_rows] */
    int32_t *placed;       /* [max_rows][topk_blocks] PAGE: physical blocks; else anchored ids */
    uint8_t *line; /* [threads][line_bytes] block maxima and kept scores of one row, or, on the
                      dense route, all its scores */
    int64_t line_bytes, maxima_bytes;
    uint8_t *scratch; /* [threads][scratch_bytes] of one slice's consume */
    int64_t scratch_bytes;
    uint8_t *list; /* [threads][list_bytes] blocks of a source's own selection */
    int64_t list_bytes;
};

#endif
