/* SPDX-License-Identifier: MIT */
/* shard_check.c: what the arguments of a rank's stages must be. */
#include "cache/address.h"
#include "kernels/check_parts.h"
#include "shards/shard.h"
#include "shards/shard_stages.h"

/* An indexed shard, and rows of its requests. */
static tamis_status check_owned(const tamis_shard *shard, int64_t rows, const int32_t *request,
                                tamis_error *error) {
    TAMIS_TRY(tamis_shard_check(shard, error));
    int64_t intervals = shard->requests ? shard->start[shard->requests] : 0;
    TAMIS_NEED(shard->before != NULL || intervals == 0, TAMIS_ERROR_SHARD, "shard.before",
               "an indexed shard: see tamis_shard_index", 0);
    TAMIS_NEED(rows >= 0, TAMIS_ERROR_ARGUMENT, "args.rows", "0 or more", rows);
    for (int64_t r = 0; r < rows; r++) {
        int64_t found = tamis_shard_request(request, r);
        if (found < 0 || found >= shard->requests) {
            return tamis_fail_at(error, TAMIS_ERROR_ARGUMENT, "args.request", r,
                                 "a request of the shard", found);
        }
    }
    return TAMIS_OK;
}

static tamis_status check_visible(const int32_t *visible, int64_t rows, tamis_error *error) {
    TAMIS_NEED_POINTER(visible || rows == 0, "args.visible");
    for (int64_t r = 0; r < rows; r++) {
        if (visible[r] < 0) {
            return tamis_fail_at(error, TAMIS_ERROR_LENGTH, "args.visible", r, "0 or more",
                                 visible[r]);
        }
    }
    return TAMIS_OK;
}

static tamis_status check_width(int64_t width, tamis_error *error) {
    TAMIS_NEED(width >= 0 && width <= TAMIS_MAX_BLOCKS, TAMIS_ERROR_ARGUMENT, "args.width",
               "0 .. 4096", width);
    return TAMIS_OK;
}

/* An array of rows, which may be NULL where it has no element. */
static tamis_status check_array(const void *array, int64_t rows, int64_t stride, int64_t width,
                                const char *name, const char *stride_name, tamis_error *error) {
    TAMIS_NEED_POINTER(array || rows == 0 || width == 0, name);
    return tamis_check_stride(rows, stride, width, stride_name, error);
}

static tamis_status check_topk_blocks(int32_t topk_blocks, tamis_error *error) {
    TAMIS_NEED(topk_blocks >= 1 && topk_blocks <= TAMIS_MAX_BLOCKS, TAMIS_ERROR_ARGUMENT,
               "args.topk_blocks", "1 .. 4096", topk_blocks);
    return TAMIS_OK;
}

tamis_status tamis_check_shard_blocks(const tamis_shard_blocks_args *a, tamis_error *error) {
    int64_t own = 0, longest = 0, size = a->shard.block_size;
    TAMIS_NEED_SIZE(a);
    TAMIS_TRY(check_topk_blocks(a->topk_blocks, error));
    TAMIS_TRY(check_owned(&a->shard, a->rows, a->request, error));
    TAMIS_TRY(check_visible(a->visible, a->rows, error));
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t before = a->visible[r] > 0 ? (a->visible[r] - 1) / size : 0;
        int64_t mine =
            tamis_shard_blocks_below(&a->shard, tamis_shard_request(a->request, r),
                                     tamis_blocks_of(a->visible[r], a->shard.block_size));
        longest = before > longest ? before : longest;
        own = mine > own ? mine : own;
    }
    TAMIS_TRY(check_width(a->width, error));
    TAMIS_NEED(a->width >= a->topk_blocks - 1 || a->width >= longest, TAMIS_ERROR_ARGUMENT,
               "args.width", "topk_blocks - 1, or the blocks before the longest row's newest",
               a->width);
    TAMIS_TRY(check_array(a->block_max, a->rows, a->block_max_stride, own, "args.block_max",
                          "args.block_max_stride", error));
    TAMIS_TRY(check_array(a->ids, a->rows, a->ids_stride, a->width, "args.ids", "args.ids_stride",
                          error));
    TAMIS_TRY(check_array(a->scores, a->rows, a->scores_stride, a->width, "args.scores",
                          "args.scores_stride", error));
    TAMIS_NEED_POINTER(a->counts || a->rows == 0, "args.counts");
    return TAMIS_OK;
}

/* Candidates of every rank: an array of ids or scores. */
static tamis_status check_gathered(const void *array, int32_t ranks, int64_t rows, int64_t stride,
                                   int64_t rank_stride, int64_t width, const char *name,
                                   const char *stride_name, const char *rank_stride_name,
                                   tamis_error *error) {
    TAMIS_TRY(check_array(array, rows, stride, width, name, stride_name, error));
    int64_t all = rows == 0 ? 0 : (rows - 1) * stride + width;
    return tamis_check_stride(ranks, rank_stride, rows > 1 ? all : rows * width, rank_stride_name,
                              error);
}

static tamis_status check_ranks(int32_t ranks, int64_t rows, int64_t width, const int32_t *counts,
                                int64_t stride, tamis_error *error) {
    TAMIS_NEED(ranks >= 1 && ranks <= TAMIS_MAX_RANKS, TAMIS_ERROR_ARGUMENT, "args.ranks",
               "1 .. 64", ranks);
    TAMIS_NEED(rows >= 0, TAMIS_ERROR_ARGUMENT, "args.rows", "0 or more", rows);
    TAMIS_TRY(check_width(width, error));
    TAMIS_NEED_POINTER(counts || rows == 0, "args.counts");
    TAMIS_TRY(tamis_check_stride(ranks, stride, rows, "args.counts_rank_stride", error));
    for (int32_t k = 0; k < ranks; k++) {
        TAMIS_TRY(tamis_check_counts(counts + k * stride, rows, width, 0, "args.counts", error));
    }
    return TAMIS_OK;
}

tamis_status tamis_check_shard_publish(const tamis_shard_publish_args *a, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_TRY(tamis_check_block_size(a->block_size, error));
    TAMIS_TRY(check_topk_blocks(a->topk_blocks, error));
    TAMIS_TRY(check_ranks(a->ranks, a->rows, a->width, a->counts, a->counts_rank_stride, error));
    TAMIS_TRY(check_visible(a->visible, a->rows, error));
    TAMIS_TRY(check_gathered(a->ids, a->ranks, a->rows, a->ids_stride, a->ids_rank_stride, a->width,
                             "args.ids", "args.ids_stride", "args.ids_rank_stride", error));
    TAMIS_TRY(check_gathered(a->scores, a->ranks, a->rows, a->scores_stride, a->scores_rank_stride,
                             a->width, "args.scores", "args.scores_stride",
                             "args.scores_rank_stride", error));
    return check_array(a->blocks, a->rows, a->blocks_stride, a->topk_blocks, "args.blocks",
                       "args.blocks_stride", error);
}

tamis_status tamis_check_shard_lists(const tamis_shard_lists_args *a, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_TRY(check_owned(&a->shard, a->rows, a->request, error));
    TAMIS_TRY(check_width(a->width, error));
    TAMIS_TRY(check_array(a->blocks, a->rows, a->blocks_stride, a->width, "args.blocks",
                          "args.blocks_stride", error));
    TAMIS_TRY(tamis_check_counts(a->counts, a->rows, a->width, 0, "args.counts", error));
    TAMIS_NEED_POINTER(a->own_counts || a->rows == 0, "args.own_counts");
    return check_array(a->own, a->rows, a->own_stride, a->width, "args.own", "args.own_stride",
                       error);
}

tamis_status tamis_check_shard_positions(const tamis_shard_positions_args *a, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_TRY(check_owned(&a->shard, a->rows, a->request, error));
    TAMIS_TRY(check_width(a->width, error));
    return check_array(a->positions, a->rows, a->positions_stride, a->width, "args.positions",
                       "args.positions_stride", error);
}

tamis_status tamis_check_shard_topk(const tamis_shard_topk_args *a, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_TRY(check_ranks(a->ranks, a->rows, a->width, a->counts, a->counts_rank_stride, error));
    TAMIS_TRY(check_gathered(a->positions, a->ranks, a->rows, a->positions_stride,
                             a->positions_rank_stride, a->width, "args.positions",
                             "args.positions_stride", "args.positions_rank_stride", error));
    TAMIS_TRY(check_gathered(a->scores, a->ranks, a->rows, a->scores_stride, a->scores_rank_stride,
                             a->width, "args.scores", "args.scores_stride",
                             "args.scores_rank_stride", error));
    TAMIS_NEED(a->selection.slots == NULL, TAMIS_ERROR_ARGUMENT, "selection.slots",
               "NULL: see tamis_shard_slots", 1);
    return tamis_check_selection(&a->selection, a->rows, error);
}

tamis_status tamis_check_shard_slots(const tamis_shard_slots_args *a, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_TRY(check_owned(&a->shard, a->rows.count, a->rows.request, error));
    TAMIS_TRY(check_width(a->width, error));
    for (int64_t r = 0; a->rows.ks && r < a->rows.count; r++) {
        if (a->rows.ks[r] < 0) {
            return tamis_fail_at(error, TAMIS_ERROR_LENGTH, "rows.ks", r, "0 or more",
                                 a->rows.ks[r]);
        }
    }
    if (a->rows.page_table) {
        TAMIS_NEED(a->page_size >= 8 && a->page_size % 8 == 0, TAMIS_ERROR_LAYOUT, "args.page_size",
                   "a positive multiple of 8", a->page_size);
        TAMIS_TRY(tamis_check_paging(&a->rows, error));
        TAMIS_NEED(a->rows.requests >= a->shard.requests, TAMIS_ERROR_ARGUMENT, "rows.requests",
                   "a row of page_table for each request of the shard", a->rows.requests);
    } else {
        TAMIS_NEED(a->page_size == 0, TAMIS_ERROR_LAYOUT, "args.page_size",
                   "0 without a page table", a->page_size);
    }
    TAMIS_TRY(check_array(a->positions, a->rows.count, a->positions_stride, a->width,
                          "args.positions", "args.positions_stride", error));
    return check_array(a->slots, a->rows.count, a->slots_stride, a->width, "args.slots",
                       "args.slots_stride", error);
}
