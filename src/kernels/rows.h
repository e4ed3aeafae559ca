/* SPDX-License-Identifier: MIT */
/* rows.h: the arguments of one row, for stages composed of others. */
#ifndef TAMIS_KERNELS_ROWS_H
#define TAMIS_KERNELS_ROWS_H

#include <stddef.h>

#include "kernels/kernels.h"

static inline tamis_rows tamis_rows_at(const tamis_rows *rows, int64_t r) {
    tamis_rows one = *rows;
    one.count = 1;
    one.ks = rows->ks ? rows->ks + r : NULL;
    one.ke = rows->ke + r;
    one.request = rows->request ? rows->request + r : NULL;
    return one;
}

static inline tamis_query tamis_query_at(const tamis_query *query, int64_t r) {
    tamis_query one = *query;
    int64_t bytes = query->weights_type == TAMIS_BF16 ? 2 : 4;
    one.codes = query->codes + r * query->codes_row_stride;
    one.scales = query->scales + r * query->scales_row_stride;
    one.weights = (const uint8_t *)query->weights + r * query->weights_row_stride * bytes;
    return one;
}

static inline tamis_selection tamis_selection_at(const tamis_selection *selection, int64_t r) {
    tamis_selection one = *selection;
    one.positions =
        selection->positions ? selection->positions + r * selection->positions_stride : NULL;
    one.slots = selection->slots ? selection->slots + r * selection->slots_stride : NULL;
    one.scores = selection->scores ? selection->scores + r * selection->scores_stride : NULL;
    one.counts = selection->counts ? selection->counts + r : NULL;
    return one;
}

/* Scores of all of one row, f32; the caller says where they go. */
static inline tamis_mqa_logits_args tamis_score_of_row(int32_t numerics, const tamis_k_cache *k,
                                                       tamis_rows one, tamis_query query) {
    tamis_mqa_logits_args score = {0};
    score.numerics = numerics;
    score.k = *k;
    score.rows = one;
    score.query = query;
    score.logits_type = TAMIS_F32;
    return score;
}

/* Selection among one row's `width` f32 scores, of positions from 0. */
static inline tamis_topk_args tamis_topk_of_row(tamis_rows one, int32_t page_size,
                                                tamis_selection selection, const float *scores,
                                                int64_t width) {
    tamis_topk_args topk = {0};
    topk.logits_type = TAMIS_F32;
    topk.rows = one;
    topk.logits = scores;
    topk.width = width;
    topk.page_size = page_size;
    topk.selection = selection;
    return topk;
}

/* Expansion of row r's list to blocks[width]; *count gets how many. */
static inline tamis_expand_args tamis_expand_of_consume(const tamis_consume_args *args, int64_t r,
                                                        int32_t *blocks, int32_t *count) {
    tamis_expand_args expand = {0};
    expand.candidate_size = expand.block_size = args->block_size;
    expand.rows = tamis_rows_at(&args->rows, r);
    expand.width = args->counts ? args->counts[r] : args->width;
    expand.candidates = args->blocks + r * args->blocks_stride;
    expand.blocks = blocks;
    expand.counts = count;
    return expand;
}

/* Scores of row r's `count` expanded blocks, to scratch. */
static inline tamis_sparse_mqa_logits_args tamis_score_of_consume(const tamis_consume_args *args,
                                                                  int64_t r,
                                                                  tamis_consume_scratch scratch,
                                                                  int64_t count) {
    tamis_sparse_mqa_logits_args score = {0};
    score.numerics = args->numerics;
    score.k = args->k;
    score.rows = tamis_rows_at(&args->rows, r);
    score.query = tamis_query_at(&args->query, r);
    score.block_size = args->block_size;
    score.logits_type = TAMIS_F32;
    score.width = count;
    score.blocks = scratch.blocks;
    score.logits = scratch.scores;
    score.physical = args->physical ? args->physical + r * args->physical_stride : NULL;
    return score;
}

/* Selection of row r among `count` expanded blocks whose scores are in scratch. */
static inline tamis_topk_args tamis_topk_of_consume(const tamis_consume_args *args, int64_t r,
                                                    tamis_consume_scratch scratch, int64_t count) {
    tamis_topk_args topk = tamis_topk_of_row(tamis_rows_at(&args->rows, r), args->k.page_size,
                                             tamis_selection_at(&args->selection, r),
                                             scratch.scores, count * args->block_size);
    topk.block_size = args->block_size;
    topk.blocks = scratch.blocks;
    return topk;
}

/*
 * consume by a tier's own scoring and selection (spec 5.3): a row is expanded, scored and selected
 * before the next one, so that its scores stay in the cache. expand anchors its ids at ks /
 * block_size, which the other two undo with the same interval, so ks % block_size needs no care
 * here.
 */
static inline void tamis_consume_rows(const tamis_consume_args *args, int32_t ith, int32_t nth,
                                      void (*score)(const tamis_sparse_mqa_logits_args *, int32_t,
                                                    int32_t),
                                      void (*select)(const tamis_topk_args *, int32_t, int32_t)) {
    tamis_consume_scratch scratch = tamis_consume_scratch_at(args, ith);
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        int32_t count = 0;
        tamis_expand_args expand = tamis_expand_of_consume(args, r, scratch.blocks, &count);
        tamis_expand_ref(&expand, 0, 1);
        tamis_sparse_mqa_logits_args scores = tamis_score_of_consume(args, r, scratch, count);
        score(&scores, 0, 1);
        tamis_topk_args topk = tamis_topk_of_consume(args, r, scratch, count);
        select(&topk, 0, 1);
    }
}

#endif
