/* SPDX-License-Identifier: MIT */
/*
 * plan.c: a plan's limits and the layout of its memory.
 *
 * One function walks the layout: with no memory it counts, with memory it places, so that sizes and
 * addresses cannot disagree.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fail.h"
#include "indexer/indexer.h"
#include "indexer/levels.h"
#include "kernels/kernels.h"
#include "plan/plan.h"

void tamis_plan_limits_default(tamis_plan_limits *limits) {
    memset(limits, 0, sizeof *limits);
    limits->struct_size = (uint32_t)sizeof *limits;
    limits->threads = 1;
}

tamis_status tamis_plan_check_limits(const tamis_plan_limits *l, tamis_error *error) {
    TAMIS_NEED(l != NULL, TAMIS_ERROR_ARGUMENT, "limits", "a tamis_plan_limits", 0);
    TAMIS_NEED(l->struct_size == sizeof *l, TAMIS_ERROR_STRUCT_SIZE, "limits.struct_size",
               "sizeof(tamis_plan_limits)", l->struct_size);
    TAMIS_NEED(l->max_requests >= 1 && l->max_requests <= 65536, TAMIS_ERROR_LIMIT,
               "limits.max_requests", "1 .. 65536", l->max_requests);
    TAMIS_NEED(l->max_batched_tokens >= 1 && l->max_batched_tokens <= 1 << 24, TAMIS_ERROR_LIMIT,
               "limits.max_batched_tokens", "1 .. 16777216", l->max_batched_tokens);
    TAMIS_NEED(l->draft_tokens >= 0 && l->draft_tokens <= 255, TAMIS_ERROR_LIMIT,
               "limits.draft_tokens", "0 .. 255", l->draft_tokens);
    TAMIS_NEED(l->largest_graph >= 0 && l->largest_graph <= 1 << 24, TAMIS_ERROR_LIMIT,
               "limits.largest_graph", "0 .. 16777216", l->largest_graph);
    TAMIS_NEED(l->threads >= 1 && l->threads <= 1024, TAMIS_ERROR_LIMIT, "limits.threads",
               "1 .. 1024", l->threads);
    TAMIS_NEED(l->max_context >= 1 && l->max_context <= INT32_MAX, TAMIS_ERROR_LIMIT,
               "limits.max_context", "1 .. 2147483647", l->max_context);
    return TAMIS_OK;
}

tamis_status tamis_plan_check_ranks(const tamis_indexer *indexer, tamis_error *error) {
    TAMIS_NEED(indexer->context_parallel == 1, TAMIS_ERROR_REQUIREMENT, "indexer.context_parallel",
               "1: tamis_shards runs several ranks", indexer->context_parallel);
    return TAMIS_OK;
}

int64_t tamis_plan_max_rows(const tamis_plan_limits *l) {
    if (tamis_plan_check_limits(l, NULL) != TAMIS_OK) {
        return -1;
    }
    int64_t rows = (int64_t)l->max_requests * (1 + l->draft_tokens);
    rows = l->max_batched_tokens > rows ? l->max_batched_tokens : rows;
    return l->largest_graph > rows ? l->largest_graph : rows;
}

int32_t tamis_model_block_size(const tamis_model *model) {
    return model->candidate_source_layer_id >= 0 ? model->candidate_block_size : 8;
}

int32_t tamis_model_topk_blocks(const tamis_model *model) {
    return model->candidate_source_layer_id >= 0 ? model->candidate_topk_blocks : 0;
}

/* An index source's ratio decides. */
int64_t tamis_plan_longest_row(const tamis_model *model, const tamis_plan_limits *limits) {
    int64_t longest = 0;
    for (int32_t i = 0; i < model->num_index_sources; i++) {
        int32_t ratio = model->compress_ratios[model->index_source_layer_ids[i]];
        int64_t visible = tamis_visible(limits->max_context - 1, ratio);
        longest = visible > longest ? visible : longest;
    }
    return longest;
}

static int64_t maxima_bytes(const tamis_plan_shape *shape, const tamis_plan_limits *limits) {
    int32_t size = tamis_model_block_size(shape->model);
    return tamis_round_up((tamis_plan_longest_row(shape->model, limits) + size - 1) / size * 4, 64);
}

/* A row's line holds what a source needs, or its scores on the dense route, padded to a block. */
static int64_t line_bytes(const tamis_plan_shape *shape, const tamis_plan_limits *limits) {
    int32_t size = tamis_model_block_size(shape->model);
    int32_t blocks = tamis_model_topk_blocks(shape->model);
    int64_t longest = tamis_plan_longest_row(shape->model, limits), scores = 0,
            pool = (int64_t)blocks * size;
    int64_t kept = tamis_source_capacity(blocks, shape->model->index_topk, size);
    int64_t source = maxima_bytes(shape, limits) + kept * 4;
    if (shape->sparse_logits == TAMIS_SPARSE_OFF) {
        scores = longest + size;
    } else if (shape->sparse_logits == TAMIS_SPARSE_AUTO) {
        scores = (pool < longest ? pool : longest) + size;
    }
    return tamis_round_up(scores * 4 > source ? scores * 4 : source, 64);
}

static int64_t lay_out(const tamis_plan_shape *shape, const tamis_plan_limits *limits,
                       uint8_t *memory, tamis_plan *plan) {
    int64_t at = 0, rows = tamis_plan_max_rows(limits), threads = limits->threads;
    int64_t blocks = tamis_model_topk_blocks(shape->model), own = shape->model->index_topk + 1;
    int64_t width = blocks > own ? blocks : own;
    tamis_plan_take(memory, &at, (int64_t)sizeof *plan);
    plan->token = tamis_plan_take(memory, &at, rows * 4);
    plan->request = tamis_plan_take(memory, &at, rows * 4);
    for (int i = 0; i < 2; i++) {
        plan->ks[i] = tamis_plan_take(memory, &at, rows * 4);
        plan->ke[i] = tamis_plan_take(memory, &at, rows * 4);
    }
    plan->slice = tamis_plan_take(memory, &at, threads * 8);
    plan->scored = tamis_plan_take(memory, &at, threads * 8);
    plan->merged = tamis_plan_take(memory, &at, threads * 8);
    plan->whole = tamis_plan_take(memory, &at, threads * 8);
    plan->blocks = tamis_plan_take(memory, &at, rows * blocks * 4);
    plan->blocks_count = tamis_plan_take(memory, &at, rows * 4);
    plan->placed = tamis_plan_take(memory, &at, rows * blocks * 4);
    plan->maxima_bytes = maxima_bytes(shape, limits);
    plan->line_bytes = line_bytes(shape, limits);
    plan->line = tamis_plan_take(memory, &at, threads * plan->line_bytes);
    plan->list_bytes = tamis_round_up(own * 4, 64);
    plan->list = tamis_plan_take(memory, &at, threads * plan->list_bytes);
    plan->scratch_bytes = tamis_consume_scratch_bytes(width, tamis_model_block_size(shape->model));
    plan->scratch = tamis_plan_take(memory, &at, threads * plan->scratch_bytes);
    return at;
}

int64_t tamis_plan_bytes_for(const tamis_plan_shape *shape, const tamis_plan_limits *limits,
                             tamis_error *error) {
    tamis_plan counted;
    if (tamis_plan_check_limits(limits, error) != TAMIS_OK) {
        return -1;
    }
    return lay_out(shape, limits, NULL, &counted);
}

static tamis_plan_shape shape_of(const tamis_indexer *indexer) {
    tamis_plan_shape shape = {&indexer->model, indexer->sparse_logits};
    return shape;
}

int64_t tamis_plan_bytes(const tamis_indexer *indexer, const tamis_plan_limits *limits,
                         tamis_error *error) {
    if (indexer == NULL) {
        tamis_fail(error, TAMIS_ERROR_ARGUMENT, "indexer", "an indexer", "NULL");
        return -1;
    }
    if (tamis_plan_check_ranks(indexer, error) != TAMIS_OK) {
        return -1;
    }
    tamis_plan_shape shape = shape_of(indexer);
    return tamis_plan_bytes_for(&shape, limits, error);
}

int tamis_model_ratio_selects(const tamis_model *model, int32_t ratio) {
    for (int32_t i = 0; i < model->num_index_sources; i++) {
        if (model->compress_ratios[model->index_source_layer_ids[i]] == ratio) {
            return 1;
        }
    }
    return 0;
}

/* Differs from one init to the next, also in the same memory. */
static int32_t make_nonce(void) {
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int32_t)((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
}

tamis_status tamis_plan_init(const tamis_indexer *indexer, const tamis_plan_limits *limits,
                             void *memory, int64_t bytes, tamis_plan **out, tamis_error *error) {
    char required[60];
    TAMIS_NEED(out != NULL, TAMIS_ERROR_ARGUMENT, "plan", "a place for the pointer", 0);
    *out = NULL;
    TAMIS_NEED(indexer != NULL, TAMIS_ERROR_ARGUMENT, "indexer", "an indexer", 0);
    TAMIS_TRY(tamis_plan_check_ranks(indexer, error));
    TAMIS_TRY(tamis_plan_check_limits(limits, error));
    int64_t needed = tamis_plan_bytes(indexer, limits, error);
    snprintf(required, sizeof required, "at least %lld", (long long)needed);
    TAMIS_NEED(bytes >= needed, TAMIS_ERROR_WORKSPACE, "bytes", required, bytes);
    TAMIS_NEED(memory != NULL && (uintptr_t)memory % 64 == 0, TAMIS_ERROR_WORKSPACE, "memory",
               "a pointer aligned to 64 bytes", (uintptr_t)memory % 64);
    tamis_plan_shape shape = shape_of(indexer);
    tamis_plan *plan = memory;
    memset(plan, 0, sizeof *plan);
    lay_out(&shape, limits, memory, plan);
    memset((void *)plan->slice, 0, (size_t)limits->threads * 8);
    memset((void *)plan->scored, 0, (size_t)limits->threads * 8);
    memset((void *)plan->merged, 0, (size_t)limits->threads * 8);
    memset((void *)plan->whole, 0, (size_t)limits->threads * 8);
    plan->nonce = make_nonce();
    plan->indexer = indexer;
    plan->limits = *limits;
    plan->max_rows = tamis_plan_max_rows(limits);
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        plan->selects[ratio - 1] = tamis_model_ratio_selects(&indexer->model, ratio);
    }
    *out = plan;
    return TAMIS_OK;
}

void tamis_plan_count(const tamis_plan *plan, tamis_plan_counters *counters) {
    memset(counters, 0, sizeof *counters);
    counters->struct_size = (uint32_t)sizeof *counters;
    counters->steps = atomic_load(&plan->totals.steps);
    counters->expanded = atomic_load(&plan->totals.expanded);
    counters->consumed = atomic_load(&plan->totals.consumed);
    counters->sparse_rows = atomic_load(&plan->totals.sparse_rows);
    counters->dense_rows = atomic_load(&plan->totals.dense_rows);
}
