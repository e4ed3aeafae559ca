/* SPDX-License-Identifier: MIT */
/* block_max.cu: the largest score of each block, from scores. One thread a block. */
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    tamis_block_max_smxx(const __grid_constant__ tamis_block_max_args a) {
    for (int64_t r = blockIdx.y; r < a.rows.count; r += gridDim.y) {
        int64_t limit = min(a.logits_stride, a.block_max_stride * a.block_size);
        int64_t length = min(tamis::row_of(a.rows, r, INT32_MAX).length, limit);
        int64_t blocks = tamis_blocks_of(length, a.block_size);
        int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
        for (int64_t b = first; b < blocks; b += (int64_t)gridDim.x * blockDim.x) {
            uint32_t best = 0;
            for (int64_t i = b * a.block_size; i < min((b + 1) * a.block_size, length); i++) {
                best = max(best, tamis_order_key(tamis_load_float(a.logits, a.logits_type,
                                                                  r * a.logits_stride + i)));
            }
            a.block_max[r * a.block_max_stride + b] = tamis::score_of_key(best);
        }
    }
}
