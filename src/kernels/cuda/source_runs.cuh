/* SPDX-License-Identifier: MIT */
/*
 * source_runs.cuh: which rows a source scores together, and how CTAs share the work. A run is
 * neighbouring rows of one request and start, inside an aligned 32; its tiles are counted by
 * live length where the lengths are, on the device, by every CTA for itself.
 */
#ifndef TAMIS_CUDA_SOURCE_RUNS_CUH
#define TAMIS_CUDA_SOURCE_RUNS_CUH

#include "common.cuh"

namespace tamis {

constexpr int kRunRows = 8; /* of a run, at most */
constexpr int kFewRows = 2; /* runs up to this are scored row by row */
constexpr int kSourceThreads = 256, kSourceWarps = 8;
constexpr int kSourceTile = 64;  /* positions */
constexpr int kWaveRows = 16384; /* shared out at a time */
/* Units that a tile of a run costs, and one of a row: for scores and for block maxima. */
template <bool kLogits> constexpr int kManyCost = kLogits ? 5 : 4;
template <bool kLogits> constexpr int kRowCost = kLogits ? 2 : 1;
/* Units of a row, on average, whose K does not stay in L2: 2^18 positions, in whole runs. */
template <bool kLogits>
constexpr int64_t kFarUnits = (1 << 18) / kSourceTile *kManyCost<kLogits> / kRunRows;

/* Of a tile of `count` rows. */
template <bool kLogits> __device__ inline int cost_of(int count) {
    return count > kFewRows ? kManyCost<kLogits> : kRowCost<kLogits> * count;
}

/* Neighbouring rows of one request and start. */
struct Run {
    int64_t row;
    int32_t count, longest, start;
    const int32_t *pages;
};

/* What a CTA shares. codes: 128 bytes a head, in the order of the A fragments (word j of group c:
 * its low half at 32 j + 4 c, its high half 16 on), 16 bytes swizzled by line % 8: the layout that
 * wgmma calls 128-byte swizzle. Line of a head: line_of. */
struct alignas(1024) SourceShared {
    uint32_t codes[kRunRows * 32][32];
    float weights[kRunRows][36];    /* w' * kSourceUnit; 36: lanes lie in different banks */
    int64_t before[kSourceThreads]; /* units of rows before, among those scanned together */
    int32_t longest[kSourceThreads];
    int32_t units[kSourceThreads]; /* of the run that starts there, or 0 */
    int32_t count[kSourceThreads];
    int32_t length[kRunRows]; /* of the run's rows */
    int64_t sums[kSourceWarps];
    uint32_t chunks[kWaveRows / 32]; /* units of 32 rows each; 64 * 2^25 at most */
    uint32_t slow;                   /* rows of the run that are not fast, one bit each */
    TileRows rows;                   /* of the call */
    /* Of scores. */
    int64_t stride;
    int64_t line[kRunRows]; /* where those of the run's rows begin */
};

__device__ inline int64_t source_limit(const tamis_mqa_logits_args &a) {
    int64_t limit = positions_of(a.rows, a.k);
    if (a.logits) {
        limit = min(limit, a.columns); /* columns >= every length, or lengths are clamped */
    }
    return a.block_max ? min(limit, a.block_max_stride * a.block_size) : limit;
}

/* Visible positions of row r that have a place in the outputs. */
__device__ inline int32_t source_length(const tamis_mqa_logits_args &a, int64_t r) {
    return (int32_t)min(row_of(a.rows, r, positions_of(a.rows, a.k)).length, source_limit(a));
}

/* The run of at most kMost rows before `end` that starts at row r, its rows and longest length;
 * false: none starts there. Lanes have neighbouring rows, the first a multiple of 32 rows after the
 * tile's. */
template <int kMost>
__device__ inline bool run_at(const tamis_mqa_logits_args &a, int64_t end, int64_t r,
                              int32_t &count, int32_t &longest) {
    const int lane = threadIdx.x & 31;
    const bool in = r < end;
    const int32_t length = in ? source_length(a, r) : 0;
    /* A row that sees nothing may be padding, which has no query to load. */
    const int32_t request = length == 0 ? -1 : a.rows.request ? max(a.rows.request[r], 0) : 0;
    const int32_t start = in && a.rows.ks ? a.rows.ks[r] : 0;
    int32_t request_before = __shfl_up_sync(kAll, request, 1);
    int32_t start_before = __shfl_up_sync(kAll, start, 1);
    const uint32_t parts =
        __ballot_sync(kAll, lane == 0 || request != request_before || start != start_before);
    const int place = lane - (31 - __clz((int)(parts & kAll >> (31 - lane))));
    const uint32_t later = parts >> lane >> 1;
    count = min(kMost, later ? __ffs((int)later) : 32 - lane);
    longest = length;
#pragma unroll
    for (int i = 1; i < kMost; i++) {
        int32_t other = __shfl_down_sync(kAll, length, (unsigned)i);
        longest = i < count ? max(longest, other) : longest;
    }
    return in && place % kMost == 0;
}

/* The run that starts at row r, if one does: units, rows and longest length. */
template <bool kLogits>
__device__ inline void scan_row(const tamis_mqa_logits_args &a, int64_t end, int64_t r,
                                int32_t &units, int32_t &count, int32_t &longest) {
    const bool starts = run_at<kRunRows>(a, end, r, count, longest);
    int32_t tiles = (int32_t)((longest + (int64_t)kSourceTile - 1) / kSourceTile);
    units = starts ? tiles * cost_of<kLogits>(count) : 0;
}

/* Units of the rows from `wave` on, kWaveRows at most: of each 32 to s.chunks; returns their sum.
 */
template <bool kLogits>
__device__ inline int64_t scan_wave(const tamis_mqa_logits_args &a, int64_t wave, SourceShared &s) {
    const int rows = (int)min(s.rows.end - wave, (int64_t)kWaveRows), chunks = (rows + 31) / 32;
#pragma unroll 4
    for (int i = (int)threadIdx.x / 32; i < chunks; i += kSourceWarps) {
        int32_t units, count, longest;
        scan_row<kLogits>(a, s.rows.end, wave + 32 * i + (threadIdx.x & 31), units, count, longest);
        uint32_t sum = __reduce_add_sync(kAll, (uint32_t)units);
        if ((threadIdx.x & 31) == 0) {
            s.chunks[i] = sum;
        }
    }
    __syncthreads();
    int64_t all = 0;
    for (int i = 0; i < chunks; i++) {
        all += s.chunks[i];
    }
    return all;
}

/* Fills s.before, units, count and longest for the rows from `base` on. */
template <bool kLogits>
__device__ inline void scan_rows(const tamis_mqa_logits_args &a, int64_t base, SourceShared &s) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    int32_t units, count, longest;
    scan_row<kLogits>(a, s.rows.end, base + threadIdx.x, units, count, longest);
    int64_t sum = sum_to_lane<int64_t>(units);
    if (lane == 31) {
        s.sums[warp] = sum;
    }
    s.units[threadIdx.x] = units;
    s.count[threadIdx.x] = count;
    s.longest[threadIdx.x] = longest;
    __syncthreads();
    for (int i = 0; i < warp; i++) {
        sum += s.sums[i];
    }
    s.before[threadIdx.x] = sum - units;
    __syncthreads();
}

} // namespace tamis

#endif
