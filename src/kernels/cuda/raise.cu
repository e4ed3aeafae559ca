/* SPDX-License-Identifier: MIT */
/* raise.cu: K of requests decoded into signed bytes, once (raised_k.h). Included after
 * source_smxx.cu. */
#include "kernels/cuda/raised_k.h"
#include "source.cuh"

namespace tamis {

/* Position j of request i, group c of it: lanes 4 r + c have neighbouring positions, the first
 * even. Whole warp. */
__device__ inline void raise_group(const tamis_raise_args &a, int64_t i, int32_t j, uint32_t c) {
    const int64_t at = (int64_t)a.to.first[i] + j;
    uint32_t out[8] = {};
    float scale = 0.0f;
    if (j < a.to.length[i]) {
        const tamis_k_row row = key_at(a.k, a.page_table + i * a.page_table_stride, j);
        const Scales s = scales_of<4>(load32(row.scales));
        const uint32_t depth = s.depth >> (8 * c) & 255u;
        decode_chunk(load_chunk(row.codes + 16 * c), 8u >> min(depth, (uint32_t)kFastSpan), out);
        scale = tamis_ue8m0(s.largest);
        scale = s.nan ? __uint_as_float(TAMIS_NAN_BITS) : s.span > kFastSpan ? -scale : scale;
    }
    uint4 *to = (uint4 *)(a.to.codes + (at & ~1) * 128);
    const bool odd = at & 1;
#pragma unroll
    for (int step = 0; step < 2; step++) { /* a lane of an even position writes steps 0 and 1 */
        const uint32_t first = odd ? out[2 * step] : out[2 * step + 4];
        const uint32_t second = odd ? out[2 * step + 1] : out[2 * step + 5];
        const uint32_t low = __shfl_xor_sync(kAll, first, 4);
        const uint32_t high = __shfl_xor_sync(kAll, second, 4);
        to[4 * (odd ? step + 2 : step) + c] =
            odd ? make_uint4(low, out[2 * step + 4], high, out[2 * step + 5])
                : make_uint4(out[2 * step], low, out[2 * step + 1], high);
    }
    if (c == 0) {
        a.to.scales[at] = scale;
    }
}

} // namespace tamis

extern "C" __global__ void __launch_bounds__(256)
    tamis_raise_k_smxx(const __grid_constant__ tamis_raise_args a) {
    const int32_t lane = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x) / 4;
    const int32_t lanes = (int32_t)(gridDim.x * blockDim.x) / 4;
    for (int64_t i = 0; i < a.requests; i++) {
        const int32_t end =
            a.to.first[i] < 0 ? 0 : (a.to.length[i] + TAMIS_RAISED_TILE - 1) & -TAMIS_RAISED_TILE;
        for (int32_t j = lane; j < end; j += lanes) {
            tamis::raise_group(a, i, j, threadIdx.x & 3);
        }
    }
}
