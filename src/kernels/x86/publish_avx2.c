/* SPDX-License-Identifier: MIT */
/* publish_avx2.c: the best blocks of each row, the newest always among them (spec 5.2). */
#include "cache/address.h"
#include "kernels/kernels.h"
#include "select_avx2.h"

void tamis_publish_avx2(const tamis_publish_args *args, int32_t ith, int32_t nth) {
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        int64_t n = tamis_blocks_of(tamis_row_length(&args->rows, r), args->block_size);
        int64_t count = n < args->topk_blocks ? n : args->topk_blocks;
        int32_t *out = args->blocks + r * args->blocks_stride;
        if (count > 0) { /* the newest block is the last one: it comes first and stands last */
            tamis_select_avx2(args->block_max + r * args->block_max_stride, TAMIS_F32, n - 1,
                              count - 1, out);
            out[count - 1] = (int32_t)(n - 1);
        }
        for (int64_t i = count; i < args->topk_blocks; i++) {
            out[i] = -1;
        }
        if (args->counts) {
            args->counts[r] = (int32_t)count;
        }
    }
}
