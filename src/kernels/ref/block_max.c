/* SPDX-License-Identifier: MIT */
/* block_max.c: the largest score of each block, from scores. */
#include "cache/address.h"
#include "kernels/kernels.h"
#include "kernels/order.h"

static float largest(const void *logits, int32_t type, int64_t first, int64_t last) {
    float best = tamis_load_float(logits, type, first);
    for (int64_t i = first + 1; i < last; i++) {
        float score = tamis_load_float(logits, type, i);
        best = tamis_order_key(score) > tamis_order_key(best) ? score : best;
    }
    return tamis_canonical(best);
}

void tamis_block_max_ref(const tamis_block_max_args *args, int32_t ith, int32_t nth) {
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        int64_t length = tamis_row_length(&args->rows, r), from = r * args->logits_stride;
        for (int64_t first = 0; first < length; first += args->block_size) {
            int64_t last = first + args->block_size < length ? first + args->block_size : length;
            args->block_max[r * args->block_max_stride + first / args->block_size] =
                largest(args->logits, args->logits_type, from + first, from + last);
        }
    }
}
