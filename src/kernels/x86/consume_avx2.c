/* SPDX-License-Identifier: MIT */
/*
 * consume_avx2.c: each row's best positions inside its published blocks (spec 5.3).
 * Expand, score and select a row before the next one, so that its scores stay in the cache.
 */
#include "kernels/kernels.h"
#include "kernels/rows.h"

void tamis_consume_avx2(const tamis_consume_args *args, int32_t ith, int32_t nth) {
    tamis_consume_scratch scratch = tamis_consume_scratch_at(args, ith);
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        int32_t count = 0;
        tamis_expand_args expand = tamis_expand_of_consume(args, r, scratch.blocks, &count);
        tamis_expand_ref(&expand, 0, 1);
        tamis_sparse_mqa_logits_args score = tamis_score_of_consume(args, r, scratch, count);
        tamis_sparse_mqa_logits_avx2(&score, 0, 1);
        tamis_topk_args topk = tamis_topk_of_consume(args, r, scratch, count);
        tamis_topk_avx2(&topk, 0, 1);
    }
}
