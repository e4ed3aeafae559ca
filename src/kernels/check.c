/* SPDX-License-Identifier: MIT */
/*
 * check.c: what each stage's arguments must be. Nothing here looks at what arrays of bytes hold,
 * and with TAMIS_CHECK_DEVICE at what any array holds.
 */
#include <stddef.h>
#include <stdio.h>

#include "cache/address.h"
#include "kernels/check.h"
#include "kernels/check_parts.h"

tamis_status tamis_check_workspace(const void *workspace, int64_t bytes, int64_t needed,
                                   tamis_error *error) {
    char required[60];
    if (bytes < needed) {
        snprintf(required, sizeof required, "at least %lld", (long long)needed);
        return tamis_fail(error, TAMIS_ERROR_WORKSPACE, "args.workspace_bytes", required, "%lld",
                          (long long)bytes);
    }
    TAMIS_NEED_POINTER(workspace || needed == 0, "args.workspace");
    TAMIS_NEED((uintptr_t)workspace % 64 == 0, TAMIS_ERROR_WORKSPACE, "args.workspace",
               "aligned to 64 bytes", (uintptr_t)workspace % 64);
    return TAMIS_OK;
}

tamis_status tamis_check_q_prepare(const tamis_q_prepare_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_TRY(tamis_check_geometry(a->heads, a->head_dim, "args.heads", "args.head_dim", error));
    TAMIS_NEED(a->tokens >= 0, TAMIS_ERROR_ARGUMENT, "args.tokens", "0 or more", a->tokens);
    TAMIS_TRY(tamis_check_rope(&a->rope, error));
    TAMIS_TRY(tamis_check_positions(a->positions, a->tokens, a->rope.positions, flags, error));
    TAMIS_NEED_POINTER(a->q || a->tokens == 0, "args.q");
    TAMIS_NEED_POINTER(a->codes || a->tokens == 0, "args.codes");
    TAMIS_NEED_POINTER(a->scales || a->tokens == 0, "args.scales");
    int64_t t = a->tokens, h = a->heads, d = a->head_dim;
    TAMIS_TRY(tamis_check_stride(h, a->q_head_stride, d, "args.q_head_stride", error));
    TAMIS_TRY(tamis_check_stride(t, a->q_token_stride, d, "args.q_token_stride", error));
    TAMIS_TRY(tamis_check_stride(h, a->codes_head_stride, d / 2, "args.codes_head_stride", error));
    TAMIS_TRY(tamis_check_stride(t, a->codes_row_stride, d / 2, "args.codes_row_stride", error));
    TAMIS_TRY(
        tamis_check_stride(h, a->scales_head_stride, d / 32, "args.scales_head_stride", error));
    TAMIS_TRY(tamis_check_stride(t, a->scales_row_stride, d / 32, "args.scales_row_stride", error));
    if (a->weights_in || a->weights_out) {
        TAMIS_NEED_POINTER(a->weights_in, "args.weights_in");
        TAMIS_NEED_POINTER(a->weights_out, "args.weights_out");
        TAMIS_TRY(tamis_check_type(a->weights_in_type, "args.weights_in_type", error));
        TAMIS_TRY(tamis_check_type(a->weights_out_type, "args.weights_out_type", error));
        TAMIS_TRY(tamis_check_stride(t, a->weights_in_stride, h, "args.weights_in_stride", error));
        TAMIS_TRY(
            tamis_check_stride(t, a->weights_out_stride, h, "args.weights_out_stride", error));
    }
    return TAMIS_OK;
}

tamis_status tamis_check_k_insert(const tamis_k_insert_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_NEED(a->ratio == 1 || a->ratio == 2, TAMIS_ERROR_ARGUMENT, "args.ratio", "1 or 2",
               a->ratio);
    TAMIS_NEED(a->tokens >= 0, TAMIS_ERROR_ARGUMENT, "args.tokens", "0 or more", a->tokens);
    TAMIS_TRY(tamis_k_cache_check(&a->k, error));
    TAMIS_TRY(tamis_check_rope(&a->rope, error));
    TAMIS_TRY(tamis_check_positions(a->positions, a->tokens, a->rope.positions, flags, error));
    TAMIS_TRY(tamis_check_type(a->norm_weight_type, "args.norm_weight_type", error));
    TAMIS_NEED_POINTER(a->x || a->tokens == 0, "args.x");
    TAMIS_NEED_POINTER(a->slots || a->tokens == 0, "args.slots");
    TAMIS_NEED_POINTER(a->norm_weight, "args.norm_weight");
    TAMIS_NEED_POINTER(a->eps, "args.eps");
    if (!(flags & TAMIS_CHECK_DEVICE) && !(*a->eps >= 0)) {
        return tamis_fail(error, TAMIS_ERROR_ARGUMENT, "args.eps", "0 or more", "%g",
                          (double)*a->eps);
    }
    TAMIS_TRY(tamis_check_stride(a->tokens, a->x_stride, a->k.head_dim, "args.x_stride", error));
    int64_t slots = a->k.size * (a->k.layout == TAMIS_K_MXFP4_PAGE ? a->k.page_size : 1);
    for (int64_t t = 0; t < a->tokens && !(flags & TAMIS_CHECK_DEVICE); t++) {
        if (a->slots[t] >= slots) {
            return tamis_fail_at(error, TAMIS_ERROR_LENGTH, "args.slots", t,
                                 "slots that the cache has", a->slots[t]);
        }
    }
    return TAMIS_OK;
}

static tamis_status check_rows(const tamis_rows *rows, const tamis_k_cache *k, int flags,
                               tamis_error *error) {
    return flags & TAMIS_CHECK_DEVICE ? tamis_check_device_rows(rows, k, error)
                                      : tamis_check_rows(rows, k, error);
}

tamis_status tamis_check_k_gather(const tamis_k_gather_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_TRY(check_rows(&a->rows, &a->k, flags, error));
    TAMIS_NEED_POINTER(a->start || a->rows.count == 0, "args.start");
    TAMIS_NEED(a->size >= 0, TAMIS_ERROR_ARGUMENT, "args.size", "0 or more", a->size);
    TAMIS_NEED_POINTER(a->codes || a->size == 0, "args.codes");
    TAMIS_NEED_POINTER(a->scales || a->size == 0, "args.scales");
    TAMIS_TRY(tamis_check_stride(a->size, a->codes_stride, a->k.head_dim / 2, "args.codes_stride",
                                 error));
    TAMIS_TRY(tamis_check_stride(a->size, a->scales_stride, a->k.head_dim / 32,
                                 "args.scales_stride", error));
    for (int64_t i = 0; i < a->rows.count && !(flags & TAMIS_CHECK_DEVICE); i++) {
        int64_t length = tamis_row_length(&a->rows, i);
        if (a->start[i] < 0 || a->start[i] > a->size - length) {
            return tamis_fail_at(error, TAMIS_ERROR_LENGTH, "args.start", i,
                                 "room for its interval in the destination", a->start[i]);
        }
    }
    return TAMIS_OK;
}

/* What the calls that score share. */
static tamis_status check_scoring(int32_t numerics, int flags, const tamis_k_cache *k,
                                  const tamis_rows *rows, const tamis_query *query,
                                  tamis_error *error) {
    TAMIS_TRY(tamis_check_numerics(numerics, flags, error));
    TAMIS_TRY(check_rows(rows, k, flags, error));
    return tamis_check_query(query, k, rows->count, error);
}

/* Blocks of listed positions must not straddle pages (spec 5.4). */
static tamis_status check_paged_blocks(const tamis_k_cache *k, int32_t block_size,
                                       tamis_error *error) {
    TAMIS_TRY(tamis_check_block_size(block_size, error));
    TAMIS_NEED(k->page_size % block_size == 0, TAMIS_ERROR_LAYOUT, "k.page_size",
               "a multiple of block_size", k->page_size);
    return TAMIS_OK;
}

/* The longest row; on a device, where nobody knows it, the least there can be in a row that counts.
 */
static int64_t widest(const tamis_rows *rows, int flags) {
    int64_t most = flags & TAMIS_CHECK_DEVICE ? rows->count > 0 : 0;
    for (int64_t r = 0; r < rows->count && !(flags & TAMIS_CHECK_DEVICE); r++) {
        most = tamis_row_length(rows, r) > most ? tamis_row_length(rows, r) : most;
    }
    return most;
}

/* A device's kernels take a stride for the width of one row, too. */
static tamis_status check_bound(int64_t stride, int flags, const char *name, tamis_error *error) {
    TAMIS_NEED(!(flags & TAMIS_CHECK_DEVICE) || (stride >= 0 && stride <= INT32_MAX),
               TAMIS_ERROR_ARGUMENT, name, "0 .. 2^31-1", stride);
    return TAMIS_OK;
}

tamis_status tamis_check_mqa_logits(const tamis_mqa_logits_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_TRY(check_scoring(a->numerics, flags, &a->k, &a->rows, &a->query, error));
    int64_t length = widest(&a->rows, flags);
    TAMIS_NEED_POINTER(a->logits || a->block_max || a->rows.count == 0, "args.logits");
    if (a->logits) {
        TAMIS_TRY(tamis_check_type(a->logits_type, "args.logits_type", error));
        TAMIS_NEED(a->columns >= length && a->columns <= INT32_MAX, TAMIS_ERROR_ARGUMENT,
                   "args.columns", "every row's length or more, below 2^31", a->columns);
        TAMIS_TRY(tamis_check_stride(a->rows.count, a->logits_stride, a->columns,
                                     "args.logits_stride", error));
    }
    if (a->block_max) {
        TAMIS_TRY(tamis_check_block_size(a->block_size, error));
        TAMIS_TRY(tamis_check_stride(a->rows.count, a->block_max_stride,
                                     tamis_blocks_of(length, a->block_size),
                                     "args.block_max_stride", error));
        TAMIS_TRY(check_bound(a->block_max_stride, flags, "args.block_max_stride", error));
    }
    return TAMIS_OK;
}

tamis_status tamis_check_block_max(const tamis_block_max_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_TRY(tamis_check_block_size(a->block_size, error));
    TAMIS_TRY(tamis_check_type(a->logits_type, "args.logits_type", error));
    TAMIS_TRY(tamis_check_intervals(&a->rows, flags, error));
    int64_t length = widest(&a->rows, flags);
    TAMIS_NEED_POINTER(a->logits || length == 0, "args.logits");
    TAMIS_NEED_POINTER(a->block_max || length == 0, "args.block_max");
    TAMIS_TRY(
        tamis_check_stride(a->rows.count, a->logits_stride, length, "args.logits_stride", error));
    TAMIS_TRY(check_bound(a->logits_stride, flags, "args.logits_stride", error));
    TAMIS_TRY(check_bound(a->block_max_stride, flags, "args.block_max_stride", error));
    return tamis_check_stride(a->rows.count, a->block_max_stride,
                              tamis_blocks_of(length, a->block_size), "args.block_max_stride",
                              error);
}

static tamis_status check_topk_blocks(int32_t topk_blocks, tamis_error *error) {
    TAMIS_NEED(topk_blocks >= 1 && topk_blocks <= TAMIS_MAX_BLOCKS, TAMIS_ERROR_ARGUMENT,
               "args.topk_blocks", "1 .. 4096", topk_blocks);
    return TAMIS_OK;
}

tamis_status tamis_check_publish(const tamis_publish_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_TRY(tamis_check_block_size(a->block_size, error));
    TAMIS_TRY(check_topk_blocks(a->topk_blocks, error));
    TAMIS_TRY(tamis_check_intervals(&a->rows, flags, error));
    int64_t length = widest(&a->rows, flags);
    TAMIS_NEED_POINTER(a->block_max || length == 0, "args.block_max");
    TAMIS_NEED_POINTER(a->blocks || a->rows.count == 0, "args.blocks");
    TAMIS_TRY(check_bound(a->block_max_stride, flags, "args.block_max_stride", error));
    TAMIS_TRY(tamis_check_stride(a->rows.count, a->block_max_stride,
                                 tamis_blocks_of(length, a->block_size), "args.block_max_stride",
                                 error));
    return tamis_check_stride(a->rows.count, a->blocks_stride, a->topk_blocks, "args.blocks_stride",
                              error);
}

tamis_status tamis_check_expand(const tamis_expand_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_TRY(tamis_check_block_size(a->block_size, error));
    TAMIS_NEED(a->candidate_size >= a->block_size && a->candidate_size <= 128 &&
                   a->candidate_size % a->block_size == 0,
               TAMIS_ERROR_ARGUMENT, "args.candidate_size", "a multiple of block_size, at most 128",
               a->candidate_size);
    TAMIS_NEED((a->flags & ~(TAMIS_EXPAND_KEEP_DUPLICATES | TAMIS_EXPAND_FIXED_WIDTH)) == 0,
               TAMIS_ERROR_ARGUMENT, "args.flags", "TAMIS_EXPAND_* alone", a->flags);
    TAMIS_NEED(a->width >= 0 && a->width <= TAMIS_MAX_BLOCKS, TAMIS_ERROR_ARGUMENT, "args.width",
               "0 .. 4096", a->width);
    TAMIS_TRY(tamis_check_intervals(&a->rows, flags, error));
    int64_t out = a->width * (a->candidate_size / a->block_size);
    TAMIS_NEED_POINTER(a->candidates || a->rows.count == 0, "args.candidates");
    TAMIS_NEED_POINTER(a->blocks || a->rows.count == 0, "args.blocks");
    TAMIS_TRY(tamis_check_stride(a->rows.count, a->candidates_stride, a->width,
                                 "args.candidates_stride", error));
    return tamis_check_stride(a->rows.count, a->blocks_stride, out, "args.blocks_stride", error);
}

/* One row's list with its physical blocks: ascending visible blocks, then -1 alone. */
static tamis_status check_placed_row(const int32_t *blocks, const int32_t *physical, int64_t n,
                                     int64_t end, int64_t limit, tamis_error *error) {
    int64_t last = -1;
    for (int64_t i = 0; i < n; i++) {
        int tail = i > 0 && blocks[i - 1] == -1;
        TAMIS_NEED(blocks[i] == -1 || (!tail && blocks[i] > last && blocks[i] < end),
                   TAMIS_ERROR_ARGUMENT, "args.blocks",
                   "ascending visible blocks, then -1: physical is given", blocks[i]);
        if (blocks[i] != -1) {
            TAMIS_NEED(physical[i] >= 0 && physical[i] < limit, TAMIS_ERROR_ARGUMENT,
                       "args.physical", "a block of the pool", physical[i]);
            last = blocks[i];
        }
    }
    return TAMIS_OK;
}

/* Lists that come with their physical blocks are trusted by kernels, so they are read here. */
static tamis_status check_physical(const tamis_k_cache *k, const tamis_rows *rows,
                                   int32_t block_size, const int32_t *blocks, int64_t blocks_stride,
                                   int64_t width, const int32_t *counts, const int32_t *physical,
                                   int64_t stride, int flags, tamis_error *error) {
    int64_t limit = k->size * (k->page_size / block_size);
    if (physical == NULL) {
        return TAMIS_OK;
    }
    TAMIS_NEED(k->layout == TAMIS_K_MXFP4_PAGE && rows->ks == NULL, TAMIS_ERROR_LAYOUT,
               "args.physical", "NULL but for PAGE with rows.ks NULL", k->layout);
    TAMIS_TRY(tamis_check_stride(rows->count, stride, width, "args.physical_stride", error));
    for (int64_t r = 0; r < rows->count && !(flags & TAMIS_CHECK_DEVICE); r++) {
        TAMIS_TRY(check_placed_row(
            blocks + r * blocks_stride, physical + r * stride, counts ? counts[r] : width,
            tamis_blocks_of(tamis_row_length(rows, r), block_size), limit, error));
    }
    return TAMIS_OK;
}

tamis_status tamis_check_sparse_mqa_logits(const tamis_sparse_mqa_logits_args *a, int flags,
                                           tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_TRY(check_scoring(a->numerics, flags, &a->k, &a->rows, &a->query, error));
    TAMIS_TRY(check_paged_blocks(&a->k, a->block_size, error));
    TAMIS_TRY(tamis_check_type(a->logits_type, "args.logits_type", error));
    TAMIS_NEED(a->width >= 0 && a->width <= 65536, TAMIS_ERROR_ARGUMENT, "args.width", "0 .. 65536",
               a->width);
    TAMIS_NEED_POINTER(a->blocks || a->rows.count == 0, "args.blocks");
    TAMIS_NEED_POINTER(a->logits || a->rows.count == 0, "args.logits");
    TAMIS_TRY(tamis_check_counts(a->counts, a->rows.count, a->width, flags, "args.counts", error));
    TAMIS_TRY(
        tamis_check_stride(a->rows.count, a->blocks_stride, a->width, "args.blocks_stride", error));
    TAMIS_TRY(tamis_check_stride(a->rows.count, a->logits_stride, a->width * a->block_size,
                                 "args.logits_stride", error));
    return check_physical(&a->k, &a->rows, a->block_size, a->blocks, a->blocks_stride, a->width,
                          a->counts, a->physical, a->physical_stride, flags, error);
}

/* Slots of topk go through a page table whose pool is not known: lengths and requests are checked.
 */
static tamis_status check_topk_pages(const tamis_topk_args *a, int flags, tamis_error *error) {
    const tamis_rows *rows = &a->rows;
    if (!a->selection.slots || !rows->page_table) {
        return TAMIS_OK;
    }
    TAMIS_NEED(a->page_size >= 8 && a->page_size % 8 == 0, TAMIS_ERROR_LAYOUT, "args.page_size",
               "a positive multiple of 8", a->page_size);
    TAMIS_NEED_POINTER(rows->ke || rows->count == 0, "rows.ke");
    TAMIS_TRY(tamis_check_paging(rows, error));
    if (flags & TAMIS_CHECK_DEVICE) {
        TAMIS_NEED(rows->requests >= 1 || rows->count == 0, TAMIS_ERROR_ARGUMENT, "rows.requests",
                   "1 or more", rows->requests);
        return TAMIS_OK;
    }
    for (int64_t r = 0; r < rows->count; r++) {
        int64_t request = rows->request ? rows->request[r] : 0;
        TAMIS_NEED(request >= 0 && request < rows->requests, TAMIS_ERROR_ARGUMENT, "rows.request",
                   "a row of page_table", request);
        TAMIS_NEED(tamis_row_length(rows, r) == 0 ||
                       rows->ke[r] <= rows->page_table_width * a->page_size,
                   TAMIS_ERROR_LENGTH, "rows.ke", "positions that page_table has", rows->ke[r]);
    }
    return TAMIS_OK;
}

tamis_status tamis_check_topk(const tamis_topk_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_NEED_RESERVED(a->reserved2, "args.reserved2");
    TAMIS_TRY(tamis_check_type(a->logits_type, "args.logits_type", error));
    TAMIS_NEED(a->width >= 0 && a->width <= INT32_MAX, TAMIS_ERROR_ARGUMENT, "args.width",
               "0 .. 2^31-1", a->width);
    if (a->rows.ke || a->blocks) {
        TAMIS_TRY(tamis_check_intervals(&a->rows, flags, error));
    }
    TAMIS_NEED(a->rows.count >= 0, TAMIS_ERROR_ARGUMENT, "rows.count", "0 or more", a->rows.count);
    TAMIS_NEED_POINTER(a->logits || a->rows.count == 0, "args.logits");
    TAMIS_TRY(
        tamis_check_stride(a->rows.count, a->logits_stride, a->width, "args.logits_stride", error));
    TAMIS_TRY(
        tamis_check_counts(a->columns, a->rows.count, a->width, flags, "args.columns", error));
    if (a->blocks) {
        TAMIS_TRY(tamis_check_block_size(a->block_size, error));
        TAMIS_NEED(a->width % a->block_size == 0, TAMIS_ERROR_ARGUMENT, "args.width",
                   "a multiple of block_size", a->width);
        TAMIS_TRY(tamis_check_stride(a->rows.count, a->blocks_stride, a->width / a->block_size,
                                     "args.blocks_stride", error));
    }
    TAMIS_TRY(check_topk_pages(a, flags, error));
    return tamis_check_selection(&a->selection, a->rows.count, error);
}

/* Lists of published ids, as consume and dense take them. */
static tamis_status check_lists(const tamis_k_cache *k, const tamis_rows *rows, int32_t block_size,
                                const int32_t *blocks, int64_t width, int64_t stride,
                                const int32_t *counts, int flags, tamis_error *error) {
    TAMIS_TRY(check_paged_blocks(k, block_size, error));
    TAMIS_NEED(width >= 0 && width <= TAMIS_MAX_BLOCKS, TAMIS_ERROR_ARGUMENT, "args.width",
               "0 .. 4096", width);
    TAMIS_NEED_POINTER(blocks || rows->count == 0, "args.blocks");
    TAMIS_TRY(tamis_check_stride(rows->count, stride, width, "args.blocks_stride", error));
    return tamis_check_counts(counts, rows->count, width, flags, "args.counts", error);
}

tamis_status tamis_check_consume(const tamis_consume_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_TRY(check_scoring(a->numerics, flags, &a->k, &a->rows, &a->query, error));
    TAMIS_TRY(check_lists(&a->k, &a->rows, a->block_size, a->blocks, a->width, a->blocks_stride,
                          a->counts, flags, error));
    TAMIS_TRY(check_physical(&a->k, &a->rows, a->block_size, a->blocks, a->blocks_stride, a->width,
                             a->counts, a->physical, a->physical_stride, flags, error));
    return tamis_check_selection(&a->selection, a->rows.count, error);
}

tamis_status tamis_check_source(const tamis_source_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_TRY(check_scoring(a->numerics, flags, &a->k, &a->rows, &a->query, error));
    TAMIS_TRY(check_paged_blocks(&a->k, a->block_size, error));
    if (a->blocks) {
        TAMIS_TRY(check_topk_blocks(a->topk_blocks, error));
        TAMIS_TRY(tamis_check_stride(a->rows.count, a->blocks_stride, a->topk_blocks,
                                     "args.blocks_stride", error));
    }
    return tamis_check_selection(&a->selection, a->rows.count, error);
}

tamis_status tamis_check_dense(const tamis_dense_args *a, int flags, tamis_error *error) {
    TAMIS_NEED_SIZE(a);
    TAMIS_NEED_RESERVED(a->reserved, "args.reserved");
    TAMIS_TRY(check_scoring(a->numerics, flags, &a->k, &a->rows, &a->query, error));
    if (a->blocks) {
        TAMIS_TRY(check_lists(&a->k, &a->rows, a->block_size, a->blocks, a->width, a->blocks_stride,
                              a->counts, flags, error));
    }
    return tamis_check_selection(&a->selection, a->rows.count, error);
}
