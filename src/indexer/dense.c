/* SPDX-License-Identifier: MIT */
/*
 * dense.c: score everything, mask by the published blocks, select.
 */
#include "cache/address.h"
#include "fail.h"
#include "indexer/backend.h"
#include "indexer/levels.h"
#include "kernels/check.h"
#include "kernels/fpenv.h"
#include "kernels/rows.h"

/* Workspace of a slice: the scores of one row, padded to whole blocks, and its expanded list. */
typedef struct layout {
    int64_t scores, list;
} layout;

static layout lay_out(const tamis_dense_args *args) {
    layout l = {0, 0};
    int64_t most = 0;
    for (int64_t r = 0; r < args->rows.count; r++) {
        int64_t length = tamis_row_length(&args->rows, r);
        most = length > most ? length : most;
    }
    l.scores = tamis_round_up((most + 16) * 4, 64);
    l.list = args->blocks ? tamis_round_up(args->width * 4, 64) : 0;
    return l;
}

int64_t tamis_dense_workspace(const tamis_dense_args *args, int32_t nth) {
    if (args == NULL || nth < 1 || tamis_check_dense(args, TAMIS_CHECK_JUDGING, NULL) != TAMIS_OK) {
        return -1;
    }
    layout l = lay_out(args);
    return nth * (l.scores + l.list);
}

static void score_row(const tamis_backend *backend, const tamis_dense_args *args, int64_t r,
                      float *scores) {
    tamis_mqa_logits_args score = tamis_score_of_row(
        args->numerics, &args->k, tamis_rows_at(&args->rows, r), tamis_query_at(&args->query, r));
    score.logits = scores;
    backend->kernels.mqa_logits(&score, 0, 1);
}

/* The consume arguments that share their helpers: lists, selection, K and rows. */
static tamis_consume_args as_consume(const tamis_dense_args *args) {
    tamis_consume_args consume = {0};
    consume.k = args->k;
    consume.rows = args->rows;
    consume.block_size = args->block_size;
    consume.width = args->width;
    consume.blocks = args->blocks;
    consume.blocks_stride = args->blocks_stride;
    consume.counts = args->counts;
    consume.selection = args->selection;
    return consume;
}

static void select_row(const tamis_backend *backend, const tamis_dense_args *args, int64_t r,
                       tamis_consume_scratch scratch) {
    tamis_consume_args consume = as_consume(args);
    tamis_topk_args topk;
    if (args->blocks) {
        int32_t count = 0;
        tamis_expand_args expand = tamis_expand_of_consume(&consume, r, scratch.blocks, &count);
        backend->kernels.expand(&expand, 0, 1);
        tamis_keep_blocks(scratch.blocks, tamis_row_start(&args->rows, r) / args->block_size, count,
                          args->block_size, tamis_row_length(&args->rows, r), scratch.scores);
        topk = tamis_topk_of_consume(&consume, r, scratch, count);
    } else {
        topk = tamis_topk_of_row(tamis_rows_at(&args->rows, r), args->k.page_size,
                                 tamis_selection_at(&args->selection, r), scratch.scores,
                                 tamis_row_length(&args->rows, r));
    }
    backend->kernels.topk(&topk, 0, 1);
}

tamis_status tamis_dense(const tamis_backend *backend, const tamis_dense_args *args, int32_t ith,
                         int32_t nth, tamis_error *error) {
    int64_t r, end;
    TAMIS_TRY(tamis_check_call(backend, args, ith, nth, error));
    TAMIS_TRY(tamis_check_dense(args, tamis_backend_judges(backend), error));
    layout l = lay_out(args);
    TAMIS_TRY(tamis_check_workspace(args->workspace, args->workspace_bytes,
                                    nth * (l.scores + l.list), error));
    uint8_t *base = (uint8_t *)args->workspace + ith * (l.scores + l.list);
    tamis_consume_scratch scratch = {(float *)(void *)base, (int32_t *)(void *)(base + l.scores)};
    uint64_t saved = tamis_fp_enter();
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        score_row(backend, args, r, scratch.scores);
        select_row(backend, args, r, scratch);
    }
    tamis_fp_leave(saved);
    return TAMIS_OK;
}
