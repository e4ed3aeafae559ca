/* SPDX-License-Identifier: MIT */
/*
 * shard_stages.c: what a rank does with its own part, and what all do with what they exchanged.
 * Selection among a rank's own blocks is the tier's topk; the rest moves a few thousand numbers.
 */
#include "shards/shard_stages.h"

#include <string.h>

#include "cache/address.h"
#include "fail.h"
#include "indexer/backend.h"
#include "kernels/fpenv.h"
#include "kernels/order.h"
#include "shards/shard.h"
#include "shards/shard_merge.h"

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void fill_ids(int32_t *ids, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        ids[i] = -1;
    }
}

static void fill_scores(float *scores, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        scores[i] = tamis_f32_of_bits(0xFF800000u); /* -inf */
    }
}

/* The best `most` of n own blocks, to ids and scores; returns how many. */
static int32_t best_blocks(const tamis_kernels *kernels, const float *maxima, int64_t n,
                           int64_t most, int32_t *ids, float *scores) {
    tamis_topk_args best = {0};
    int32_t count = 0;
    if (most == 0) {
        return 0;
    }
    best.logits_type = TAMIS_F32;
    best.rows.count = 1;
    best.logits = maxima;
    best.width = n;
    best.selection.topk = (int32_t)most;
    best.selection.positions = ids;
    best.selection.scores = scores;
    best.selection.counts = &count;
    kernels->topk(&best, 0, 1);
    return count;
}

void tamis_shard_blocks_rows(const tamis_kernels *kernels, const tamis_shard_blocks_args *a,
                             int32_t ith, int32_t nth) {
    int64_t r, end, most = least(a->topk_blocks - 1, a->width);
    tamis_slice(a->rows, ith, nth, &r, &end);
    for (; r < end; r++) {
        int32_t *ids = a->ids + r * a->ids_stride;
        float *scores = a->scores + r * a->scores_stride;
        int64_t request = tamis_shard_request(a->request, r), n = 0;
        if (a->visible[r] > 0) {
            n = tamis_shard_blocks_below(&a->shard, request,
                                         (a->visible[r] - 1) / a->shard.block_size);
        }
        int32_t count =
            best_blocks(kernels, a->block_max + r * a->block_max_stride, n, most, ids, scores);
        for (int32_t i = 0; i < count; i++) {
            ids[i] = (int32_t)tamis_shard_block(&a->shard, request, ids[i]);
        }
        fill_ids(ids, count, a->width);
        fill_scores(scores, count, a->width);
        a->counts[r] = count;
    }
}

void tamis_shard_publish_rows(const tamis_kernels *kernels, const tamis_shard_publish_args *a,
                              int32_t ith, int32_t nth) {
    int64_t r, end;
    (void)kernels;
    tamis_slice(a->rows, ith, nth, &r, &end);
    for (; r < end; r++) {
        int32_t *blocks = a->blocks + r * a->blocks_stride;
        int64_t count = 0;
        if (a->visible[r] > 0) {
            int32_t newest = (a->visible[r] - 1) / a->block_size; /* above all other ids */
            const tamis_candidates candidates = {a->ids + r * a->ids_stride,
                                                 a->scores + r * a->scores_stride,
                                                 a->counts + r,
                                                 a->ids_rank_stride,
                                                 a->scores_rank_stride,
                                                 a->counts_rank_stride,
                                                 a->ranks,
                                                 newest};
            count = tamis_merge(&candidates, a->topk_blocks - 1, blocks, NULL);
            blocks[count++] = newest;
        }
        fill_ids(blocks, count, a->topk_blocks);
        if (a->block_counts) {
            a->block_counts[r] = (int32_t)count;
        }
    }
}

void tamis_shard_lists_rows(const tamis_kernels *kernels, const tamis_shard_lists_args *a,
                            int32_t ith, int32_t nth) {
    int64_t r, end;
    (void)kernels;
    tamis_slice(a->rows, ith, nth, &r, &end);
    for (; r < end; r++) {
        const int32_t *blocks = a->blocks + r * a->blocks_stride;
        int64_t request = tamis_shard_request(a->request, r);
        int64_t n = a->counts ? a->counts[r] : a->width;
        int32_t *own = a->own + r * a->own_stride, count = 0;
        int64_t at = -1;
        for (int64_t i = 0; i < n; i++) {
            int64_t block =
                blocks[i] < 0 ? -1 : tamis_shard_next_own(&a->shard, request, blocks[i], &at);
            if (block >= 0) {
                own[count++] = (int32_t)block;
            }
        }
        fill_ids(own, count, a->width);
        a->own_counts[r] = count;
    }
}

void tamis_shard_positions_rows(const tamis_kernels *kernels, const tamis_shard_positions_args *a,
                                int32_t ith, int32_t nth) {
    int64_t r, end;
    (void)kernels;
    tamis_slice(a->rows, ith, nth, &r, &end);
    for (; r < end; r++) {
        int32_t *positions = a->positions + r * a->positions_stride;
        int64_t request = tamis_shard_request(a->request, r);
        for (int64_t i = 0; i < a->width; i++) {
            positions[i] = (int32_t)tamis_shard_position(&a->shard, request, positions[i]);
        }
    }
}

void tamis_shard_topk_rows(const tamis_kernels *kernels, const tamis_shard_topk_args *a,
                           int32_t ith, int32_t nth) {
    const tamis_selection *out = &a->selection;
    int64_t r, end;
    (void)kernels;
    tamis_slice(a->rows, ith, nth, &r, &end);
    for (; r < end; r++) {
        const tamis_candidates candidates = {a->positions + r * a->positions_stride,
                                             a->scores + r * a->scores_stride,
                                             a->counts + r,
                                             a->positions_rank_stride,
                                             a->scores_rank_stride,
                                             a->counts_rank_stride,
                                             a->ranks,
                                             INT32_MAX};
        int32_t *positions = out->positions ? out->positions + r * out->positions_stride : NULL;
        float *scores = out->scores ? out->scores + r * out->scores_stride : NULL;
        int64_t count = tamis_merge(&candidates, out->topk, positions, scores);
        if (positions) {
            fill_ids(positions, count, out->topk);
        }
        if (scores) {
            fill_scores(scores, count, out->topk);
        }
        if (out->counts) {
            out->counts[r] = (int32_t)count;
        }
    }
}

void tamis_shard_slots_rows(const tamis_kernels *kernels, const tamis_shard_slots_args *a,
                            int32_t ith, int32_t nth) {
    int64_t r, end;
    (void)kernels;
    tamis_slice(a->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        const int32_t *positions = a->positions + r * a->positions_stride;
        const int32_t *page_row = tamis_page_row(&a->rows, r);
        int64_t *slots = a->slots + r * a->slots_stride;
        int64_t request = tamis_shard_request(a->rows.request, r);
        int64_t start = tamis_row_start(&a->rows, r), held = INT64_MAX;
        if (page_row) {
            held = a->rows.page_table_width * a->page_size;
        }
        for (int64_t i = 0; i < a->width; i++) {
            int64_t own = tamis_shard_own(&a->shard, request, positions[i]);
            slots[i] = own < 0 || start + own >= held
                           ? -1
                           : tamis_slot_of(page_row, a->page_size, start + own);
        }
    }
}

#define TAMIS_SHARD_STAGE_CALL(name)                                                               \
    void tamis_##name##_args_default(tamis_##name##_args *args) {                                  \
        memset(args, 0, sizeof *args);                                                             \
        args->struct_size = (uint32_t)sizeof *args;                                                \
    }                                                                                              \
    tamis_status tamis_##name(const tamis_backend *backend, const tamis_##name##_args *args,       \
                              int32_t ith, int32_t nth, tamis_error *error) {                      \
        TAMIS_TRY(tamis_check_call(backend, args, ith, nth, error));                               \
        TAMIS_TRY(tamis_check_##name(args, error));                                                \
        uint64_t saved = tamis_fp_enter();                                                         \
        tamis_##name##_rows(&backend->kernels, args, ith, nth);                                    \
        tamis_fp_leave(saved);                                                                     \
        return TAMIS_OK;                                                                           \
    }
TAMIS_SHARD_STAGE_LIST(TAMIS_SHARD_STAGE_CALL)
