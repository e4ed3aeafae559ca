/* SPDX-License-Identifier: MIT */
/*
 * publish.cu: the best blocks of each row, the newest always among them. One CTA a row. Lengths are
 * clamped to `limit`, which block_max has maxima for.
 */
#include "select.cuh"

extern "C" __global__ void __launch_bounds__(tamis::kSelectThreads)
    tamis_publish_smxx(const __grid_constant__ tamis_publish_args a, int64_t limit) {
    __shared__ tamis::SelectShared shared;
    for (int64_t r = blockIdx.x; r < a.rows.count; r += gridDim.x) {
        tamis::Row row = tamis::row_of(a.rows, r, INT32_MAX);
        int64_t n = tamis_blocks_of(min(row.length, limit), a.block_size);
        uint32_t want = (uint32_t)min(n, (int64_t)a.topk_blocks);
        const float *maxima = a.block_max + r * a.block_max_stride;
        int32_t *out = a.blocks + r * a.blocks_stride;
        auto key = [&](int64_t i) {
            return i == n - 1 ? TAMIS_KEY_PINNED : tamis_order_key(maxima[i]);
        };
        tamis::select(shared, n, want, key,
                      [&](int64_t i, uint32_t rank) { out[rank] = (int32_t)i; });
        for (int64_t i = want + threadIdx.x; i < a.topk_blocks; i += blockDim.x) {
            out[i] = -1;
        }
        if (a.counts && threadIdx.x == 0) {
            a.counts[r] = (int32_t)want;
        }
        __syncthreads();
    }
}
