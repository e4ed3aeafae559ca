/* SPDX-License-Identifier: MIT */
/* mqa_logits.c: dense scores of every visible position, and their block maxima. */
#include "kernels/ref/score.h"
#include "kernels/kernels.h"

/* Columns [first, last) of row r. first and last lie on block borders or at the row's end. */
static void score_row(const tamis_mqa_logits_args *args, const tamis_ref_query *q, int64_t r,
                      int64_t first, int64_t last) {
    const int32_t *page_row = tamis_page_row(&args->rows, r);
    int64_t length = tamis_row_length(&args->rows, r), start = tamis_row_start(&args->rows, r);
    uint32_t best = 0;
    for (int64_t j = first; j < last; j++) {
        float score = tamis_f32_of_bits(0xFF800000u); /* -inf */
        if (j < length) {
            int64_t slot = tamis_slot_of(page_row, args->k.page_size, start + j);
            score = tamis_ref_score(q, tamis_k_at_slot(&args->k, slot));
        }
        if (args->logits) {
            tamis_store_float(args->logits, args->logits_type, r * args->logits_stride + j, score);
        }
        if (args->block_max && j < length) {
            float *block = args->block_max + r * args->block_max_stride + j / args->block_size;
            uint32_t key = tamis_order_key(score);
            if (j % args->block_size == 0 || key > best) {
                *block = tamis_canonical(score);
                best = key;
            }
        }
    }
}

void tamis_mqa_logits_ref(const tamis_mqa_logits_args *args, int32_t ith, int32_t nth) {
    int64_t r, end;
    tamis_ref_query q;
    tamis_slice_rows(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        int64_t columns = tamis_row_length(&args->rows, r), first, last;
        if (args->logits && args->columns > columns) {
            columns = args->columns;
        }
        tamis_slice_columns(args->rows.count, columns, ith, nth, &first, &last);
        tamis_ref_query_load(&q, &args->query, args->numerics, r);
        score_row(args, &q, r, first, last);
    }
}
