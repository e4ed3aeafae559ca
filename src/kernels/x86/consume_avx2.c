/* SPDX-License-Identifier: MIT */
/*
 * consume_avx2.c: each row's best positions inside its published blocks (spec 5.3).
 * Expand, score and select a row before the next one, so that its scores stay in the cache.
 */
#include "cache/address.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"

/* Copies a list that is as publish writes it: ascending, unique, visible, -1 tail. 0 otherwise. */
static int copy_published(const tamis_consume_args *args, int64_t r, int32_t *blocks,
                          int64_t *count) {
    const int32_t *ids = args->blocks + r * args->blocks_stride;
    int64_t n = args->counts ? args->counts[r] : args->width;
    int64_t limit = tamis_blocks_of(tamis_row_length(&args->rows, r), args->block_size);
    int32_t anchor = (int32_t)(tamis_row_start(&args->rows, r) / args->block_size), last = -1;
    while (n > 0 && ids[n - 1] == -1) {
        n--;
    }
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] <= last || ids[i] >= limit) {
            return 0;
        }
        last = ids[i];
        blocks[i] = last + anchor;
    }
    *count = n;
    return 1;
}

static int64_t expand_row(const tamis_consume_args *args, int64_t r, int32_t *blocks) {
    int64_t copied;
    int32_t count;
    if (copy_published(args, r, blocks, &copied)) {
        return copied;
    }
    tamis_expand_args expand = tamis_expand_of_consume(args, r, blocks, &count);
    tamis_expand_ref(&expand, 0, 1);
    return count;
}

void tamis_consume_avx2(const tamis_consume_args *args, int32_t ith, int32_t nth) {
    tamis_consume_scratch scratch = tamis_consume_scratch_at(args, ith);
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        int64_t count = expand_row(args, r, scratch.blocks);
        tamis_sparse_mqa_logits_args score = tamis_score_of_consume(args, r, scratch, count);
        tamis_sparse_mqa_logits_avx2(&score, 0, 1);
        tamis_topk_args topk = tamis_topk_of_consume(args, r, scratch, count);
        tamis_topk_avx2(&topk, 0, 1);
    }
}
