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

/* Units of rows first .. first + TAMIS_TILE_RUN - 1; returns their sum. */
__device__ inline uint32_t units_of_run(const tamis_tile_args &a, int64_t first,
                                        uint32_t (&units)[TAMIS_TILE_RUN], uint32_t &longest) {
    uint32_t sum = 0;
    longest = 0;
#pragma unroll
    for (int i = 0; i < TAMIS_TILE_RUN; i++) {
        const int64_t r = first + i;
        int64_t length = 0;
        if (r < a.rows) {
            length = clamp((int64_t)a.ke[r] - (a.ks ? a.ks[r] : 0), 0, a.limit);
        }
        units[i] = (uint32_t)tamis_maxima_units(length, a.block_size);
        longest = max(longest, units[i]);
        sum += units[i];
    }
    return sum;
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
    const uint32_t own = units_of_run(a, first, units, longest);
    uint32_t sum = own;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const uint32_t left = __shfl_up_sync(kAll, sum, i);
        sum += lane >= i ? left : 0;
    }
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
    for (uint32_t t = tile + 1; run == kTileThreads - 1 && t <= a.tiles; t++) {
        a.starts[t] = (int32_t)a.rows;
    }
    __syncthreads();
    before -= s.before[tile];
#pragma unroll
    for (int i = 0; i < TAMIS_TILE_RUN; i++) {
        if (first + i < a.rows) {
            a.at[first + i] = before;
        }
        before += units[i];
    }
}
