/* SPDX-License-Identifier: MIT */
/* publish.c: the best blocks of each row, the newest always among them (spec 5.2). */
#include "cache/address.h"
#include "kernels/kernels.h"
#include "kernels/order.h"
#include "kernels/ref/cut.h"

typedef struct blocks_of_row {
    const float *block_max;
    int64_t pinned;
} blocks_of_row;

static uint32_t block_key(const void *context, int64_t block) {
    const blocks_of_row *row = context;
    return block == row->pinned ? TAMIS_KEY_PINNED : tamis_order_key(row->block_max[block]);
}

static int64_t publish_row(const blocks_of_row *row, int64_t n, int64_t want, int32_t *out) {
    int64_t count = 0;
    if (want == 0) {
        return 0;
    }
    tamis_cut cut = tamis_cut_of(block_key, row, n, want);
    for (int64_t b = 0; b < n; b++) {
        if (tamis_cut_take(&cut, block_key(row, b))) {
            out[count++] = (int32_t)b;
        }
    }
    return count;
}

void tamis_publish_ref(const tamis_publish_args *args, int32_t ith, int32_t nth) {
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        int64_t n = tamis_blocks_of(tamis_row_length(&args->rows, r), args->block_size);
        blocks_of_row row = {args->block_max + r * args->block_max_stride, n - 1};
        int32_t *out = args->blocks + r * args->blocks_stride;
        int64_t count = publish_row(&row, n, n < args->topk_blocks ? n : args->topk_blocks, out);
        for (int64_t i = count; i < args->topk_blocks; i++) {
            out[i] = -1;
        }
        if (args->counts) {
            args->counts[r] = (int32_t)count;
        }
    }
}
