/* SPDX-License-Identifier: MIT */
/* raise.cu: K of requests decoded into signed bytes, once (raised_k.h), and where. Included after
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
    uint4 *to = (uint4 *)(a.to.codes + (at & ~7) * 128) + 2 * (at & 6) + c;
    const bool odd = at & 1;
#pragma unroll
    for (int step = 0; step < 2; step++) { /* a lane of an even position writes steps 0 and 1 */
        const uint32_t first = odd ? out[2 * step] : out[2 * step + 4];
        const uint32_t second = odd ? out[2 * step + 1] : out[2 * step + 5];
        const uint32_t low = __shfl_xor_sync(kAll, first, 4);
        const uint32_t high = __shfl_xor_sync(kAll, second, 4);
        to[16 * (odd ? step + 2 : step)] =
            odd ? make_uint4(low, out[2 * step + 4], high, out[2 * step + 5])
                : make_uint4(out[2 * step], low, out[2 * step + 1], high);
    }
    if (c == 0) {
        a.to.scales[at] = scale;
    }
}

/* Rows and the longest length of each request into a.count and a.to.length, which are 0. */
__device__ inline void count_rows(const tamis_place_args &a) {
    const int64_t rows = (a.rows + 31) / 32 * 32;
#pragma unroll 4
    for (int64_t r = threadIdx.x; r < rows; r += blockDim.x) {
        const int64_t at = min(r, a.rows - 1);
        const int32_t end = r < a.rows ? __ldg(a.ke + at) : 0;
        const int32_t own = (int32_t)clamp(__ldg(a.request + at), 0, a.requests - 1);
        const int32_t request = end > 0 ? own : -1;
        const uint32_t peers = __match_any_sync(kAll, request);
        const int32_t longest = __reduce_max_sync(peers, end);
        if (request >= 0 && (threadIdx.x & 31) + 1 == (uint32_t)__ffs((int)peers)) {
            atomicAdd(a.count + request, __popc(peers));
            atomicMax(a.to.length + request, longest);
        }
    }
}

/* The sum of x over threads up to this one, and over all. Whole CTA of 1,024. */
struct Sums {
    uint32_t here, all;
};

__device__ inline Sums sum_up(uint32_t x, uint32_t (&sums)[32]) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    x = sum_to_lane<uint32_t>(x);
    __syncthreads();
    if (lane == 31) {
        sums[warp] = x;
    }
    __syncthreads();
    Sums s = {x, 0};
    for (int i = 0; i < 32; i++) {
        s.here += i < warp ? sums[i] : 0;
        s.all += sums[i];
    }
    return s;
}

} // namespace tamis

/* One CTA: a few microseconds for thousands of rows. */
extern "C" __global__ void __launch_bounds__(1024)
    tamis_raise_place_smxx(const __grid_constant__ tamis_place_args a) {
    __shared__ uint32_t sums[32];
    const uint32_t room = (uint32_t)(a.capacity / TAMIS_RAISED_TILE);
    for (int64_t i = threadIdx.x; i < a.most; i += blockDim.x) {
        a.to.first[i] = -1;
        a.to.length[i] = a.count[i] = 0;
    }
    if (threadIdx.x == 0) {
        a.stamp->serial = 0;
    }
    __syncthreads();
    tamis::count_rows(a);
    __syncthreads();
    uint32_t before = 0; /* tiles of the requests before: 2^16 times 2^14 at most */
    for (int64_t base = 0; base < a.requests; base += blockDim.x) {
        const int64_t i = base + threadIdx.x;
        const bool many = i < a.requests && __ldcg(a.count + i) >= TAMIS_RAISED_ROWS;
        const uint32_t length = many ? (uint32_t)__ldcg(a.to.length + i) : 0;
        uint32_t tiles = (length + TAMIS_RAISED_TILE - 1) / TAMIS_RAISED_TILE;
        tiles = tiles > room ? 0 : tiles;
        const tamis::Sums s = tamis::sum_up(tiles, sums);
        if (tiles > 0 && before + s.here <= room) {
            a.to.first[i] = (int32_t)((room - before - s.here) * TAMIS_RAISED_TILE);
        }
        before += s.all;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    tamis_raise_k_smxx(const __grid_constant__ tamis_raise_args a) {
    const int32_t lane = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x) / 4;
    const int32_t lanes = (int32_t)(gridDim.x * blockDim.x) / 4;
    for (int64_t base = 0; base < a.requests; base += 32) { /* few of many have a place */
        const int64_t own = base + (threadIdx.x & 31);
        uint32_t placed =
            __ballot_sync(tamis::kAll, own < a.requests && __ldg(a.to.first + own) >= 0);
        for (; placed; placed &= placed - 1) {
            const int64_t i = base + __ffs((int)placed) - 1;
            const int32_t end = (a.to.length[i] + TAMIS_RAISED_TILE - 1) & -TAMIS_RAISED_TILE;
            for (int32_t j = lane; j < end; j += lanes) {
                tamis::raise_group(a, i, j, threadIdx.x & 3);
            }
        }
    }
    if (a.stamp && blockIdx.x == 0 && threadIdx.x == 0) {
        a.stamp->from = a.from;
        a.stamp->serial = a.counts->serial;
    }
}
