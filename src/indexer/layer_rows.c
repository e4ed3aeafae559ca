/* SPDX-License-Identifier: MIT */
/*
 * layer_rows.c: the two levels for one row of a step.
 *
 * A published row is expanded and placed once, when it is published: `placed` holds its physical
 * blocks where K has pages, and its anchored ids otherwise. Every consumer of the step scores
 * straight from there.
 */
#include <string.h>

#include "cache/address.h"
#include "indexer/layer.h"
#include "indexer/levels.h"
#include "kernels/rows.h"

static int paged(const tamis_layer *layer) {
    return layer->indexer->k_layout == TAMIS_K_MXFP4_PAGE;
}

static int32_t *published(const tamis_layer *layer, int64_t r) {
    return layer->plan->blocks + r * layer->topk_blocks;
}

static int32_t *placed(const tamis_layer *layer, int64_t r) {
    return layer->plan->placed + r * layer->topk_blocks;
}

static float *line(const tamis_layer *layer, int64_t i) {
    return (float *)(void *)(layer->plan->line + i * layer->plan->line_bytes);
}

static float *scratch(const tamis_layer *layer, int64_t i) {
    return (float *)(void *)(layer->plan->scratch + i * layer->plan->scratch_bytes);
}

static tamis_query query_of(const tamis_layer *layer, int64_t r) {
    return tamis_query_at(&layer->args->query, layer->step->token[r]);
}

static tamis_selection selection_of(const tamis_layer *layer, int64_t r) {
    return tamis_selection_at(&layer->selection, layer->step->token[r]);
}

int tamis_layer_is_dense(const tamis_layer *layer, int64_t r) {
    int64_t pool = (int64_t)layer->topk_blocks * layer->block_size;
    /* Up to the pool both routes select the same, and one score a position needs no list. */
    return layer->indexer->sparse_logits == TAMIS_SPARSE_OFF ||
           (layer->indexer->sparse_logits == TAMIS_SPARSE_AUTO &&
            tamis_row_length(&layer->rows, r) <= pool);
}

/* Scores of all of row r. */
static void score_all(const tamis_layer *layer, int64_t r, float *out, int32_t ith, int32_t nth) {
    tamis_mqa_logits_args score =
        tamis_score_of_row(layer->indexer->numerics, &layer->args->k,
                           tamis_rows_at(&layer->rows, r), query_of(layer, r));
    score.logits = out;
    layer->indexer->backend.kernels.mqa_logits(&score, ith, nth);
}

/* Scores of row r's published pool. */
static void score_pool(const tamis_layer *layer, int64_t r, float *out, int32_t ith, int32_t nth) {
    tamis_sparse_mqa_logits_args score = {0};
    score.numerics = layer->indexer->numerics;
    score.k = layer->args->k;
    score.rows = tamis_rows_at(&layer->rows, r);
    score.query = query_of(layer, r);
    score.block_size = layer->block_size;
    score.logits_type = TAMIS_F32;
    score.width = layer->plan->blocks_count[r];
    score.blocks = paged(layer) ? published(layer, r) : placed(layer, r);
    score.physical = paged(layer) ? placed(layer, r) : NULL;
    score.logits = out;
    layer->indexer->backend.kernels.sparse_mqa_logits(&score, ith, nth);
}

/* Selection among `width` scores: of a pool's blocks, or of positions from 0 where blocks is NULL.
 */
static void select_from(const tamis_layer *layer, int64_t r, const float *scores, int64_t width,
                        const int32_t *blocks) {
    tamis_topk_args topk =
        tamis_topk_of_row(tamis_rows_at(&layer->rows, r), layer->args->k.page_size,
                          selection_of(layer, r), scores, width);
    topk.block_size = layer->block_size;
    topk.blocks = blocks;
    layer->indexer->backend.kernels.topk(&topk, 0, 1);
}

static void select_pool(const tamis_layer *layer, int64_t r, const float *scores) {
    select_from(layer, r, scores, (int64_t)layer->plan->blocks_count[r] * layer->block_size,
                paged(layer) ? published(layer, r) : placed(layer, r));
}

/* Expands and places the published row: read by every consumer of the step. */
static void place(const tamis_layer *layer, int64_t r) {
    const int32_t *page_row = tamis_page_row(&layer->rows, r), *ids = published(layer, r);
    int32_t size = layer->block_size, page_size = layer->args->k.page_size;
    int32_t anchor = (int32_t)(tamis_row_start(&layer->rows, r) / size);
    for (int32_t i = 0; i < layer->plan->blocks_count[r]; i++) {
        if (paged(layer)) {
            int64_t slot = tamis_slot_of(page_row, page_size, (int64_t)ids[i] * size);
            placed(layer, r)[i] = (int32_t)(slot / size);
        } else {
            placed(layer, r)[i] = ids[i] + anchor;
        }
    }
    atomic_fetch_add_explicit(&layer->plan->totals.expanded, 1, memory_order_relaxed);
}

/* Row r as a source's arguments: what it publishes goes to the plan. */
static tamis_source_args source_args(const tamis_layer *layer, int64_t r) {
    tamis_source_args one = {0};
    one.numerics = layer->indexer->numerics;
    one.k = layer->args->k;
    one.rows = tamis_rows_at(&layer->rows, r);
    one.query = query_of(layer, r);
    one.block_size = layer->block_size;
    one.selection = selection_of(layer, r);
    if (layer->role.role == TAMIS_ROLE_SOURCE) {
        one.topk_blocks = layer->topk_blocks;
        one.blocks = published(layer, r);
        one.counts = layer->plan->blocks_count + r;
    }
    return one;
}

/* Scores lie in line `at`, the rest in what slice `own` has. */
static tamis_source_work source_work(const tamis_layer *layer, int64_t at, int64_t own) {
    const tamis_plan *plan = layer->plan;
    tamis_source_work work;
    uint8_t *base = plan->line + at * plan->line_bytes;
    work.maxima = (float *)(void *)base;
    work.scores = (float *)(void *)(base + plan->maxima_bytes);
    work.capacity =
        tamis_source_capacity(layer->topk_blocks, layer->selection.topk, layer->block_size);
    work.list = (int32_t *)(void *)(plan->list + own * plan->list_bytes);
    work.scratch = plan->scratch + own * plan->scratch_bytes;
    return work;
}

static void score_source(const tamis_layer *layer, int64_t r, int64_t at, int32_t ith,
                         int32_t nth) {
    tamis_source_args one = source_args(layer, r);
    tamis_source_work work = source_work(layer, at, 0);
    tamis_source_score_row(&layer->indexer->backend.kernels, &one, &work, ith, nth);
}

/* From scores to outputs; published blocks are placed, and copied out when asked. */
static void finish_source(const tamis_layer *layer, int64_t r, int64_t at, int64_t own) {
    tamis_source_args one = source_args(layer, r);
    tamis_source_work work = source_work(layer, at, own);
    tamis_source_finish_row(&layer->indexer->backend.kernels, &one, &work);
    if (layer->role.role != TAMIS_ROLE_SOURCE) {
        return;
    }
    place(layer, r);
    if (layer->args->blocks) {
        memcpy(layer->args->blocks + layer->step->token[r] * layer->args->blocks_stride,
               published(layer, r), (size_t)layer->topk_blocks * sizeof *layer->args->blocks);
    }
}

static int is_empty(const tamis_layer *layer, int64_t r) {
    return tamis_row_length(&layer->rows, r) == 0;
}

void tamis_layer_source_row(const tamis_layer *layer, int64_t r, int32_t own) {
    if (!is_empty(layer, r)) {
        score_source(layer, r, own, 0, 1);
    }
    finish_source(layer, r, own, own);
}

/* Masks the scores of all of row r by its published blocks, and selects. */
static void finish_dense(const tamis_layer *layer, int64_t r, float *scores) {
    tamis_keep_blocks(published(layer, r), 0, layer->plan->blocks_count[r], layer->block_size,
                      tamis_row_length(&layer->rows, r), scores);
    select_pool(layer, r, scores);
}

static void count_route(const tamis_layer *layer, int dense) {
    tamis_plan_counts *totals = &layer->plan->totals;
    atomic_fetch_add_explicit(&totals->consumed, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(dense ? &totals->dense_rows : &totals->sparse_rows, 1,
                              memory_order_relaxed);
}

void tamis_layer_consumer_row(const tamis_layer *layer, int64_t r, int32_t own) {
    int dense = tamis_layer_is_dense(layer, r);
    count_route(layer, dense);
    if (is_empty(layer, r)) {
        select_from(layer, r, line(layer, own), 0, NULL);
    } else if (dense) {
        score_all(layer, r, line(layer, own), 0, 1);
        finish_dense(layer, r, line(layer, own));
    } else {
        score_pool(layer, r, scratch(layer, own), 0, 1);
        select_pool(layer, r, scratch(layer, own));
    }
}

void tamis_layer_score_row(const tamis_layer *layer, int64_t r, int32_t ith, int32_t nth) {
    if (is_empty(layer, r)) {
        return;
    }
    if (layer->role.role != TAMIS_ROLE_CONSUMER) {
        score_source(layer, r, r, ith, nth);
    } else if (tamis_layer_is_dense(layer, r)) {
        score_all(layer, r, line(layer, r), ith, nth);
    } else {
        score_pool(layer, r, scratch(layer, r), ith, nth);
    }
}

void tamis_layer_merge_row(const tamis_layer *layer, int64_t r) {
    if (layer->role.role != TAMIS_ROLE_CONSUMER) {
        finish_source(layer, r, r, r);
        return;
    }
    int dense = tamis_layer_is_dense(layer, r);
    count_route(layer, dense);
    if (is_empty(layer, r)) {
        select_from(layer, r, line(layer, r), 0, NULL);
    } else if (dense) {
        finish_dense(layer, r, line(layer, r));
    } else {
        select_pool(layer, r, scratch(layer, r));
    }
}
