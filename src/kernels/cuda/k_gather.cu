/* SPDX-License-Identifier: MIT */
/* k_gather.cu: paged K of intervals copied to contiguous rows. One warp a position. */
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    tamis_k_gather_smxx(const __grid_constant__ tamis_k_gather_args a) {
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32;
    const int codes = a.k.head_dim / 2, scales = a.k.head_dim / 32;
    for (int64_t i = blockIdx.y; i < a.rows.count; i += gridDim.y) {
        tamis::Row row = tamis::row_of(a.rows, i, tamis::positions_of(a.rows, a.k));
        int64_t start = a.start[i], first = (int64_t)blockIdx.x * warps + threadIdx.x / 32;
        for (int64_t j = first; j < row.length; j += (int64_t)gridDim.x * warps) {
            int64_t to = start + j;
            if (to < 0 || to >= a.size) {
                continue;
            }
            tamis_k_row key = tamis::key_at(a.k, row.pages, row.start + j);
            for (int b = lane; b < codes; b += 32) {
                a.codes[to * a.codes_stride + b] = key.codes[b];
            }
            if (lane < scales) {
                a.scales[to * a.scales_stride + lane] = key.scales[lane];
            }
        }
    }
}
