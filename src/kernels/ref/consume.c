/* SPDX-License-Identifier: MIT */
/*
 * consume.c: expand, score, select: the three stages one after another for each row (spec 5.3).
 *
 * expand anchors its ids at ks / block_size, which sparse_mqa_logits and topk undo with the same
 * interval, so ks % block_size needs no care here.
 */
#include "kernels/kernels.h"
#include "kernels/rows.h"

void tamis_consume_ref(const tamis_consume_args *args, int32_t ith, int32_t nth) {
    tamis_consume_scratch scratch = tamis_consume_scratch_at(args, ith);
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        int32_t count = 0;
        tamis_expand_args expand = tamis_expand_of_consume(args, r, scratch.blocks, &count);
        tamis_expand_ref(&expand, 0, 1);
        tamis_sparse_mqa_logits_args score = tamis_score_of_consume(args, r, scratch, count);
        tamis_sparse_mqa_logits_ref(&score, 0, 1);
        tamis_topk_args topk = tamis_topk_of_consume(args, r, scratch, count);
        tamis_topk_ref(&topk, 0, 1);
    }
}
