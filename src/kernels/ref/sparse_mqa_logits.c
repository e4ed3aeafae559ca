/* SPDX-License-Identifier: MIT */
/* sparse_mqa_logits.c: scores of the positions inside listed blocks. */
#include "kernels/ref/score.h"
#include "kernels/kernels.h"

/* Slot of column c, whose position is absolute: by its physical block or through the page table. */
static int64_t slot_of(const tamis_sparse_mqa_logits_args *args, int64_t r, int64_t c,
                       const int32_t *page_row, int64_t position) {
    int64_t size = args->block_size;
    if (args->physical) {
        return args->physical[r * args->physical_stride + c / size] * size + c % size;
    }
    return tamis_slot_of(page_row, args->k.page_size, position);
}

static void score_row(const tamis_sparse_mqa_logits_args *args, const tamis_ref_query *q, int64_t r,
                      int64_t first, int64_t last) {
    const int32_t *page_row = tamis_page_row(&args->rows, r);
    const int32_t *blocks = args->blocks + r * args->blocks_stride;
    int64_t length = tamis_row_length(&args->rows, r), start = tamis_row_start(&args->rows, r);
    int64_t size = args->block_size, valid = args->counts ? args->counts[r] : args->width;
    for (int64_t c = first; c < last; c++) {
        float score = tamis_f32_of_bits(0xFF800000u); /* -inf */
        int64_t j = -1;
        if (c / size < valid) {
            j = (blocks[c / size] - start / size) * size + c % size;
        }
        if (j >= 0 && j < length) {
            int64_t slot = slot_of(args, r, c, page_row, start + j);
            score = tamis_ref_score(q, tamis_k_at_slot(&args->k, slot));
        }
        tamis_store_float(args->logits, args->logits_type, r * args->logits_stride + c, score);
    }
}

void tamis_sparse_mqa_logits_ref(const tamis_sparse_mqa_logits_args *args, int32_t ith,
                                 int32_t nth) {
    int64_t r, end, first, last;
    tamis_ref_query q;
    tamis_slice_rows(args->rows.count, ith, nth, &r, &end);
    tamis_slice_columns(args->rows.count, args->width * args->block_size, ith, nth, &first, &last);
    for (; r < end; r++) {
        tamis_ref_query_load(&q, &args->query, args->numerics, r);
        score_row(args, &q, r, first, last);
    }
}
