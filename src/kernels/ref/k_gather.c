/* SPDX-License-Identifier: MIT */
/* k_gather.c: paged K of intervals copied to contiguous rows (spec 7.6). */
#include <string.h>

#include "cache/address.h"
#include "kernels/kernels.h"

void tamis_k_gather_ref(const tamis_k_gather_args *args, int32_t ith, int32_t nth) {
    int64_t i, end;
    size_t codes = (size_t)args->k.head_dim / 2, scales = (size_t)args->k.head_dim / 32;
    tamis_slice(args->rows.count, ith, nth, &i, &end);
    for (; i < end; i++) {
        const int32_t *page_row = tamis_page_row(&args->rows, i);
        int64_t start = tamis_row_start(&args->rows, i);
        int64_t length = tamis_row_length(&args->rows, i);
        for (int64_t j = 0; j < length; j++) {
            tamis_k_row row =
                tamis_k_at_slot(&args->k, tamis_slot_of(page_row, args->k.page_size, start + j));
            memcpy(args->codes + (args->start[i] + j) * args->codes_stride, row.codes, codes);
            memcpy(args->scales + (args->start[i] + j) * args->scales_stride, row.scales, scales);
        }
    }
}
