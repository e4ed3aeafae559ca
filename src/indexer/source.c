/* SPDX-License-Identifier: MIT */
/*
 * source.c: the first level. A row's scores are never stored: the scoring kernel leaves one f32 per
 * block, the best blocks are published, and the row's own selection is a consumer's over its own
 * blocks. Every one of the best topk positions lies in one of the best topk blocks
 * (docs/numerics.md), so the published list serves when it is longer than topk (the pinned block
 * takes a place); otherwise the best topk + 1 blocks are listed apart.
 */
#include <stddef.h>

#include "cache/address.h"
#include "fail.h"
#include "indexer/backend.h"
#include "kernels/check.h"
#include "kernels/fpenv.h"
#include "kernels/rows.h"

static int selects(const tamis_selection *out) {
    return out->positions || out->slots || out->scores || out->counts;
}

static int own_list_is_published(const tamis_source_args *args) {
    return args->blocks && args->topk_blocks > args->selection.topk;
}

static int64_t own_width(const tamis_source_args *args) {
    return own_list_is_published(args) ? args->topk_blocks : args->selection.topk + 1;
}

static int64_t most_blocks(const tamis_source_args *args) {
    int64_t most = 0;
    for (int64_t r = 0; r < args->rows.count; r++) {
        int64_t blocks = tamis_blocks_of(tamis_row_length(&args->rows, r), args->block_size);
        most = blocks > most ? blocks : most;
    }
    return most;
}

/* Workspace: block maxima, one line a slice or a row; then for each slice its list and scratch. */
typedef struct layout {
    int64_t line, lines, list, scratch;
} layout;

static layout lay_out(const tamis_source_args *args, int64_t lines) {
    layout l = {tamis_round_up(most_blocks(args) * 4, 64), lines, 0, 0};
    if (selects(&args->selection)) {
        l.list = tamis_round_up(own_width(args) * 4, 64);
        l.scratch = tamis_consume_scratch_bytes(own_width(args), args->block_size);
    }
    return l;
}

static int64_t layout_bytes(const layout *l, int32_t nth) {
    return l->lines * l->line + nth * (l->list + l->scratch);
}

int64_t tamis_source_workspace(const tamis_source_args *args, int32_t nth) {
    if (nth < 1 || tamis_check_source(args, TAMIS_CHECK_JUDGING, NULL) != TAMIS_OK) {
        return -1;
    }
    layout l = lay_out(args, nth);
    return layout_bytes(&l, nth);
}

int64_t tamis_source_split_workspace(const tamis_source_args *args, int32_t nth) {
    if (nth < 1 || tamis_check_source(args, TAMIS_CHECK_JUDGING, NULL) != TAMIS_OK) {
        return -1;
    }
    layout l = lay_out(args, args->rows.count);
    return layout_bytes(&l, nth);
}

static tamis_mqa_logits_args score_args(const tamis_source_args *args) {
    tamis_mqa_logits_args score = {0};
    score.numerics = args->numerics;
    score.k = args->k;
    score.rows = args->rows;
    score.query = args->query;
    score.block_size = args->block_size;
    return score;
}

/* Lists the best blocks of row r: to the caller's array, or to a list of this slice. */
static void publish_row(const tamis_backend *backend, const tamis_source_args *args, int64_t r,
                        const float *block_max, int32_t *list, int32_t width, int32_t *count) {
    tamis_publish_args publish = {0};
    publish.block_size = args->block_size;
    publish.topk_blocks = width;
    publish.rows = tamis_rows_at(&args->rows, r);
    publish.block_max = block_max;
    publish.blocks = list;
    publish.counts = count;
    backend->kernels.publish(&publish, 0, 1);
}

static void select_row(const tamis_backend *backend, const tamis_source_args *args, int64_t r,
                       const int32_t *list, void *scratch) {
    tamis_consume_args consume = {0};
    consume.numerics = args->numerics;
    consume.k = args->k;
    consume.rows = tamis_rows_at(&args->rows, r);
    consume.query = tamis_query_at(&args->query, r);
    consume.block_size = args->block_size;
    consume.width = own_width(args);
    consume.blocks = list;
    consume.selection = tamis_selection_at(&args->selection, r);
    consume.workspace = scratch;
    backend->kernels.consume(&consume, 0, 1);
}

/* From the block maxima of row r to its outputs. */
static void finish_row(const tamis_backend *backend, const tamis_source_args *args, int64_t r,
                       const float *block_max, const layout *l, int32_t ith) {
    uint8_t *own = (uint8_t *)args->workspace + l->lines * l->line + ith * (l->list + l->scratch);
    int32_t *list = (int32_t *)(void *)own;
    if (args->blocks) {
        int32_t *published = args->blocks + r * args->blocks_stride;
        publish_row(backend, args, r, block_max, published, args->topk_blocks,
                    args->counts ? args->counts + r : NULL);
        list = own_list_is_published(args) ? published : list;
    }
    if (!selects(&args->selection)) {
        return;
    }
    if (!own_list_is_published(args)) {
        publish_row(backend, args, r, block_max, list, args->selection.topk + 1, NULL);
    }
    select_row(backend, args, r, list, own + l->list);
}

static tamis_status check(const tamis_backend *backend, const tamis_source_args *args, int split,
                          int32_t ith, int32_t nth, layout *l, tamis_error *error) {
    TAMIS_TRY(tamis_check_call(backend, args, ith, nth, error));
    TAMIS_TRY(tamis_check_source(args, tamis_backend_judges(backend), error));
    *l = lay_out(args, split ? args->rows.count : nth);
    return tamis_check_workspace(args->workspace, args->workspace_bytes, layout_bytes(l, nth),
                                 error);
}

tamis_status tamis_source(const tamis_backend *backend, const tamis_source_args *args, int32_t ith,
                          int32_t nth, tamis_error *error) {
    layout l;
    int64_t r, end;
    TAMIS_TRY(check(backend, args, 0, ith, nth, &l, error));
    float *block_max = (float *)(void *)((uint8_t *)args->workspace + ith * l.line);
    uint64_t saved = tamis_fp_enter();
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        tamis_mqa_logits_args score = score_args(args);
        score.rows = tamis_rows_at(&args->rows, r);
        score.query = tamis_query_at(&args->query, r);
        score.block_max = block_max;
        backend->kernels.mqa_logits(&score, 0, 1);
        finish_row(backend, args, r, block_max, &l, ith);
    }
    tamis_fp_leave(saved);
    return TAMIS_OK;
}

tamis_status tamis_source_score(const tamis_backend *backend, const tamis_source_args *args,
                                int32_t ith, int32_t nth, tamis_error *error) {
    layout l;
    TAMIS_TRY(check(backend, args, 1, ith, nth, &l, error));
    tamis_mqa_logits_args score = score_args(args);
    score.block_max = args->workspace;
    score.block_max_stride = l.line / 4;
    if (l.line > 0) { /* some row sees a position */
        uint64_t saved = tamis_fp_enter();
        backend->kernels.mqa_logits(&score, ith, nth);
        tamis_fp_leave(saved);
    }
    return TAMIS_OK;
}

tamis_status tamis_source_merge(const tamis_backend *backend, const tamis_source_args *args,
                                int32_t ith, int32_t nth, tamis_error *error) {
    layout l;
    int64_t r, end;
    TAMIS_TRY(check(backend, args, 1, ith, nth, &l, error));
    uint64_t saved = tamis_fp_enter();
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        const float *block_max =
            (const float *)(const void *)((const uint8_t *)args->workspace + r * l.line);
        finish_row(backend, args, r, block_max, &l, ith);
    }
    tamis_fp_leave(saved);
    return TAMIS_OK;
}
