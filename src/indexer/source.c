/* SPDX-License-Identifier: MIT */
/* source.c: the first level's public calls: rows over slices, and each row's memory. */
#include "cache/address.h"
#include "fail.h"
#include "indexer/backend.h"
#include "indexer/levels.h"
#include "kernels/check.h"
#include "kernels/fpenv.h"
#include "kernels/rows.h"

/* Workspace: lines of block maxima and scores, one a slice or a row; then each slice's own part. */
typedef struct layout {
    int64_t maxima, line, lines, list, own, capacity;
} layout;

static layout lay_out(const tamis_source_args *args, int64_t lines) {
    layout l = {0};
    int64_t most = 0;
    for (int64_t r = 0; r < args->rows.count; r++) {
        int64_t length = tamis_row_length(&args->rows, r);
        most = length > most ? length : most;
    }
    l.capacity = tamis_source_capacity(args->blocks ? args->topk_blocks : 0, args->selection.topk,
                                       args->block_size);
    l.maxima = tamis_round_up(tamis_blocks_of(most, args->block_size) * 4, 64);
    l.line = l.maxima + tamis_round_up(l.capacity * 4, 64);
    l.lines = lines;
    l.list = tamis_round_up((args->selection.topk + 1) * (int64_t)4, 64);
    l.own = l.list + tamis_consume_scratch_bytes(args->selection.topk + 1, args->block_size);
    return l;
}

static int64_t layout_bytes(const layout *l, int32_t nth) {
    return l->lines * l->line + nth * l->own;
}

static tamis_source_work work_at(const tamis_source_args *args, const layout *l, int64_t line,
                                 int32_t ith) {
    tamis_source_work work;
    uint8_t *base = args->workspace, *at = base + line * l->line;
    uint8_t *own = base + l->lines * l->line + ith * l->own;
    work.maxima = (float *)(void *)at;
    work.scores = (float *)(void *)(at + l->maxima);
    work.capacity = l->capacity;
    work.list = (int32_t *)(void *)own;
    work.scratch = own + l->list;
    return work;
}

static tamis_source_args row_at(const tamis_source_args *args, int64_t r) {
    tamis_source_args one = *args;
    one.rows = tamis_rows_at(&args->rows, r);
    one.query = tamis_query_at(&args->query, r);
    one.blocks = args->blocks ? args->blocks + r * args->blocks_stride : NULL;
    one.counts = args->counts ? args->counts + r : NULL;
    one.selection = tamis_selection_at(&args->selection, r);
    return one;
}

static int64_t workspace(const tamis_source_args *args, int64_t lines, int32_t nth) {
    layout l = lay_out(args, lines);
    return layout_bytes(&l, nth);
}

int64_t tamis_source_workspace(const tamis_source_args *args, int32_t nth) {
    if (args == NULL || nth < 1 ||
        tamis_check_source(args, TAMIS_CHECK_JUDGING, NULL) != TAMIS_OK) {
        return -1;
    }
    return workspace(args, nth, nth);
}

int64_t tamis_source_split_workspace(const tamis_source_args *args, int32_t nth) {
    if (args == NULL || nth < 1 ||
        tamis_check_source(args, TAMIS_CHECK_JUDGING, NULL) != TAMIS_OK) {
        return -1;
    }
    return workspace(args, args->rows.count, nth);
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
    tamis_source_work work = work_at(args, &l, ith, ith);
    uint64_t saved = tamis_fp_enter();
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        tamis_source_args one = row_at(args, r);
        tamis_source_score_row(&backend->kernels, &one, &work, 0, 1);
        tamis_source_finish_row(&backend->kernels, &one, &work);
    }
    tamis_fp_leave(saved);
    return TAMIS_OK;
}

tamis_status tamis_source_score(const tamis_backend *backend, const tamis_source_args *args,
                                int32_t ith, int32_t nth, tamis_error *error) {
    layout l;
    TAMIS_TRY(check(backend, args, 1, ith, nth, &l, error));
    uint64_t saved = tamis_fp_enter();
    for (int64_t r = 0; r < args->rows.count; r++) {
        tamis_source_args one = row_at(args, r);
        tamis_source_work work = work_at(args, &l, r, ith);
        tamis_source_score_row(&backend->kernels, &one, &work, ith, nth);
    }
    tamis_fp_leave(saved);
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
        tamis_source_args one = row_at(args, r);
        tamis_source_work work = work_at(args, &l, r, ith);
        tamis_source_finish_row(&backend->kernels, &one, &work);
    }
    tamis_fp_leave(saved);
    return TAMIS_OK;
}
