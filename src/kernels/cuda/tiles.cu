/* SPDX-License-Identifier: MIT */
/* tiles.cu: rows cut into tiles by their lengths: tile_args.h. */
#include "common.cuh"

namespace tamis {

constexpr int kTileThreads = TAMIS_TILE_ROWS / TAMIS_TILE_RUN, kTileWarps = kTileThreads / 32;

struct TileShared {
    uint32_t sums[kTileWarps], longest[kTileWarps];
    uint32_t tile[kTileThreads];   /* of a run */
    uint32_t before[kTileThreads]; /* units before a tile */
};

/* A run's words of an array, of which `in` are there: the others become 0. */
__device__ inline void load_run(const int32_t *from, int in, int32_t (&to)[TAMIS_TILE_RUN]) {
    if (in == TAMIS_TILE_RUN && ((uintptr_t)from & 15) == 0) {
        const int4 low = __ldg((const int4 *)from), high = __ldg((const int4 *)from + 1);
        to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
        to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < TAMIS_TILE_RUN; i++) {
        to[i] = i < in ? __ldg(from + i) : 0;
    }
}

/* Units of the run's rows, of which `in` are there; returns their sum. */
__device__ inline uint32_t units_of_run(const tamis_tile_args &a, int64_t first, int in,
                                        uint32_t (&units)[TAMIS_TILE_RUN], uint32_t &longest) {
    int32_t start[TAMIS_TILE_RUN] = {}, end[TAMIS_TILE_RUN];
    uint32_t sum = 0;
    if (a.ks) {
        load_run(a.ks + first, in, start);
    }
    load_run(a.ke + first, in, end);
    longest = 0;
#pragma unroll
    for (int i = 0; i < TAMIS_TILE_RUN; i++) {
        const int64_t length = clamp((int64_t)end[i] - start[i], 0, a.limit);
        units[i] = (uint32_t)tamis_maxima_units(length, a.block_size);
        longest = max(longest, units[i]);
        sum += units[i];
    }
    return sum;
}

/* Where each row's maxima begin. */
__device__ inline void store_run(uint32_t *to, int in, uint32_t before,
                                 const uint32_t (&units)[TAMIS_TILE_RUN]) {
    uint32_t at[TAMIS_TILE_RUN];
#pragma unroll
    for (int i = 0; i < TAMIS_TILE_RUN; i++) {
        at[i] = before;
        before += units[i];
    }
    if (in == TAMIS_TILE_RUN) { /* the plan aligns its arrays */
        ((uint4 *)to)[0] = make_uint4(at[0], at[1], at[2], at[3]);
        ((uint4 *)to)[1] = make_uint4(at[4], at[5], at[6], at[7]);
        return;
    }
#pragma unroll
    for (int i = 0; i < TAMIS_TILE_RUN; i++) {
        if (i < in) {
            to[i] = at[i];
        }
    }
}

} // namespace tamis

/* One CTA, a run a thread. */
extern "C" __global__ void __launch_bounds__(tamis::kTileThreads)
    tamis_tile_rows_smxx(const __grid_constant__ tamis_tile_args a) {
    using namespace tamis;
    __shared__ TileShared s;
    const int run = (int)threadIdx.x, lane = run & 31, warp = run / 32;
    const int64_t first = (int64_t)run * TAMIS_TILE_RUN;
    uint32_t units[TAMIS_TILE_RUN], longest;
    const int in = (int)clamp(a.rows - first, 0, TAMIS_TILE_RUN);
    const uint32_t own = units_of_run(a, first, in, units, longest);
    uint32_t sum = sum_to_lane<uint32_t>(own);
    longest = __reduce_max_sync(kAll, longest);
    if (lane == 31) {
        s.sums[warp] = sum;
        s.longest[warp] = longest;
    }
    __syncthreads();
    static_assert(kTileWarps <= 32, "a warp sums up");
    const uint32_t of_warp = lane < kTileWarps ? s.sums[lane] : 0;
    const uint32_t total = __reduce_add_sync(kAll, of_warp);
    uint32_t before = sum - own + __reduce_add_sync(kAll, lane < warp ? of_warp : 0);
    longest = __reduce_max_sync(kAll, lane < kTileWarps ? s.longest[lane] : 0);
    const uint32_t tiles = (uint32_t)min(tamis_tiles_of(total, longest, a.units), (int64_t)a.tiles);
    const uint32_t tile = tamis_tile_of(before, total, tiles);
    s.tile[run] = tile;
    __syncthreads();
    for (uint32_t t = run > 0 ? s.tile[run - 1] + 1 : 0; t <= tile; t++) { /* begins here */
        a.starts[t] = (int32_t)min(first, a.rows);
        s.before[t] = before;
    }
    __syncthreads();
    for (uint32_t t = s.tile[kTileThreads - 1] + 1 + threadIdx.x; t <= a.tiles; t += kTileThreads) {
        a.starts[t] = (int32_t)a.rows;
    }
    store_run(a.at + first, in, before - s.before[tile], units);
}
