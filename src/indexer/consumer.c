/* SPDX-License-Identifier: MIT */
/*
 * consumer.c: the second level's public calls. Whole rows go to the tier's consume kernel; the
 * split form scores all pools into the workspace, each row cut over its positions, and then
 * selects.
 */
#include "fail.h"
#include "indexer/backend.h"
#include "kernels/check.h"
#include "kernels/fpenv.h"
#include "kernels/rows.h"

int64_t tamis_consume_workspace(const tamis_consume_args *args, int32_t nth) {
    if (args == NULL || nth < 1 ||
        tamis_check_consume(args, TAMIS_CHECK_JUDGING, NULL) != TAMIS_OK) {
        return -1;
    }
    return nth * tamis_consume_scratch_bytes(args->width, args->block_size);
}

tamis_status tamis_consume(const tamis_backend *backend, const tamis_consume_args *args,
                           int32_t ith, int32_t nth, tamis_error *error) {
    TAMIS_TRY(tamis_check_call(backend, args, ith, nth, error));
    TAMIS_TRY(tamis_check_consume(args, tamis_backend_judges(backend), error));
    TAMIS_TRY(tamis_check_workspace(
        args->workspace, args->workspace_bytes,
        nth * tamis_consume_scratch_bytes(args->width, args->block_size), error));
    uint64_t saved = tamis_fp_enter();
    backend->kernels.consume(args, ith, nth);
    tamis_fp_leave(saved);
    return TAMIS_OK;
}

/* The split form's workspace: one scratch a row for scores, then one list of blocks a slice. */
static int64_t split_scores_bytes(const tamis_consume_args *args) {
    return tamis_round_up(args->width * args->block_size * 4, 64);
}

static int64_t split_bytes(const tamis_consume_args *args, int32_t nth) {
    return args->rows.count * split_scores_bytes(args) + nth * tamis_round_up(args->width * 4, 64);
}

static tamis_consume_scratch split_scratch(const tamis_consume_args *args, int64_t r, int32_t ith) {
    tamis_consume_scratch scratch;
    uint8_t *base = args->workspace;
    scratch.scores = (float *)(void *)(base + r * split_scores_bytes(args));
    scratch.blocks = (int32_t *)(void *)(base + args->rows.count * split_scores_bytes(args) +
                                         ith * tamis_round_up(args->width * 4, 64));
    return scratch;
}

int64_t tamis_consume_split_workspace(const tamis_consume_args *args, int32_t nth) {
    if (args == NULL || nth < 1 ||
        tamis_check_consume(args, TAMIS_CHECK_JUDGING, NULL) != TAMIS_OK) {
        return -1;
    }
    return split_bytes(args, nth);
}

static tamis_status check_split(const tamis_backend *backend, const tamis_consume_args *args,
                                int32_t ith, int32_t nth, tamis_error *error) {
    TAMIS_TRY(tamis_check_call(backend, args, ith, nth, error));
    TAMIS_TRY(tamis_check_consume(args, tamis_backend_judges(backend), error));
    return tamis_check_workspace(args->workspace, args->workspace_bytes, split_bytes(args, nth),
                                 error);
}

/* Every slice expands the row for itself: a list of ids is cheap against a barrier. */
static int64_t expand_row(const tamis_backend *backend, const tamis_consume_args *args, int64_t r,
                          int32_t *blocks) {
    int32_t count = 0;
    tamis_expand_args expand = tamis_expand_of_consume(args, r, blocks, &count);
    backend->kernels.expand(&expand, 0, 1);
    return count;
}

tamis_status tamis_consume_score(const tamis_backend *backend, const tamis_consume_args *args,
                                 int32_t ith, int32_t nth, tamis_error *error) {
    TAMIS_TRY(check_split(backend, args, ith, nth, error));
    uint64_t saved = tamis_fp_enter();
    for (int64_t r = 0; r < args->rows.count; r++) {
        tamis_consume_scratch scratch = split_scratch(args, r, ith);
        int64_t count = expand_row(backend, args, r, scratch.blocks);
        tamis_sparse_mqa_logits_args score = tamis_score_of_consume(args, r, scratch, count);
        backend->kernels.sparse_mqa_logits(&score, ith, nth);
    }
    tamis_fp_leave(saved);
    return TAMIS_OK;
}

tamis_status tamis_consume_merge(const tamis_backend *backend, const tamis_consume_args *args,
                                 int32_t ith, int32_t nth, tamis_error *error) {
    int64_t r, end;
    TAMIS_TRY(check_split(backend, args, ith, nth, error));
    uint64_t saved = tamis_fp_enter();
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        tamis_consume_scratch scratch = split_scratch(args, r, ith);
        int64_t count = expand_row(backend, args, r, scratch.blocks);
        tamis_topk_args topk = tamis_topk_of_consume(args, r, scratch, count);
        backend->kernels.topk(&topk, 0, 1);
    }
    tamis_fp_leave(saved);
    return TAMIS_OK;
}
