/* SPDX-License-Identifier: MIT */
/*
 * candidates.cuh: a row's best columns out of a stream of them, by a CTA of four warps.
 *
 * Each warp adds the keys that are not below the row's floor to a segment of its own, without
 * atomics. Before a segment can overflow, the pool is thinned to the best, which raises the floor:
 * of 16,384 columns in any order about one in six is ever stored. Columns come in any order, and
 * equal keys go to the lowest ones.
 */
#ifndef TAMIS_CUDA_CANDIDATES_CUH
#define TAMIS_CUDA_CANDIDATES_CUH

#include "common.cuh"

namespace tamis {
namespace hopper {

constexpr int kGroupThreads = 128, kGroupWarps = 4;
constexpr int kSegment = 384; /* candidates of a warp and row */
constexpr int kRound = 4;     /* turns of 32 columns a warp between two looks at the segments */
/* Thinned to at most 5/4 topk, a segment has room for a round: topk is at most this. */
constexpr int kMaxTopk = (kSegment - 32 * kRound) * kGroupWarps * 3 / 4;

struct alignas(16) RowPool {
    uint32_t keys[kGroupWarps][kSegment];
    uint16_t columns[kGroupWarps][kSegment];
};

/* Sums over the CTA, in all threads; leaves at a barrier. Calls alternate `which`. */
__device__ inline uint32_t sum_of_cta(uint32_t (&sums)[kGroupWarps][2], uint32_t value, int which) {
    const uint32_t sum = __reduce_add_sync(kAll, value);
    if ((threadIdx.x & 31) == 0) {
        sums[threadIdx.x / 32][which] = sum;
    }
    __syncthreads();
    return sums[0][which] + sums[1][which] + sums[2][which] + sums[3][which];
}

__device__ inline uint32_t ordered_key(float score) {
    uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f)); /* -0 becomes +0 */
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

/* What may still be among a row's best: count of the warp's segment, and the least key that can. */
struct Best {
    uint32_t count, floor;
};

constexpr int kEach = kSegment / 32;

/*
 * Thins the pool to its best `want` at least and at most `most`, and spreads them over the
 * segments. Keys are at least 1, so that 0 is none. Whole CTA, from a barrier to a barrier.
 */
__device__ inline void thin(uint32_t (&sums)[kGroupWarps][2], RowPool &pool, Best &best,
                            uint32_t want, uint32_t most) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t keys[kEach], top = 0, which = 1;
    uint16_t columns[kEach];
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        const bool in = lane + 32 * i < best.count;
        keys[i] = in ? pool.keys[warp][lane + 32 * i] : 0;
        columns[i] = in ? pool.columns[warp][lane + 32 * i] : 0;
        top = max(top, keys[i]);
    }
    top = __reduce_max_sync(kAll, top);
    if (lane == 0) {
        sums[warp][0] = top;
    }
    __syncthreads();
    top = max(max(sums[0][0], sums[1][0]), max(sums[2][0], sums[3][0]));
    uint32_t all = sum_of_cta(sums, lane == 0 ? best.count : 0, which);
    /* Entries: all at or above bottom, `above` above top; fewer than `want` are above the cut. */
    uint32_t bottom = best.floor, above = 0;
#pragma unroll 1
    while (bottom < top && all > most) {
        const uint32_t middle = bottom + (top - bottom) / 2;
        uint32_t n = 0;
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            n += keys[i] > middle;
        }
        n = sum_of_cta(sums, n, which ^= 1);
        if (n < want) {
            top = middle;
            above = n;
        } else {
            bottom = middle + 1;
            all = n;
        }
    }
    uint32_t last = 0xFFFFu; /* of those equal to the cut, columns up to this one */
    if (all > most) {
        uint32_t first = 0;
#pragma unroll 1
        while (first < last) {
            const uint32_t middle = (first + last) / 2;
            uint32_t n = 0;
#pragma unroll
            for (int i = 0; i < kEach; i++) {
                n += keys[i] == bottom && columns[i] <= middle;
            }
            n = sum_of_cta(sums, n, which ^= 1);
            if (n < want - above) {
                first = middle + 1;
            } else {
                last = middle;
            }
        }
    }
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        kept += keys[i] > bottom || (keys[i] == bottom && columns[i] <= last);
    }
    all = sum_of_cta(sums, kept, which ^= 1);
    uint32_t at = 0;
    for (uint32_t w = 0; w < warp; w++) {
        at += sums[w][which];
    }
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        const bool keep = keys[i] > bottom || (keys[i] == bottom && columns[i] <= last);
        const uint32_t lanes = __ballot_sync(kAll, keep);
        const uint32_t rank = at + (uint32_t)__popc(lanes & ((1u << lane) - 1));
        if (keep) {
            pool.keys[rank % kGroupWarps][rank / kGroupWarps] = keys[i];
            pool.columns[rank % kGroupWarps][rank / kGroupWarps] = columns[i];
        }
        at += (uint32_t)__popc(lanes);
    }
    best.count = (all + kGroupWarps - 1 - warp) / kGroupWarps;
    best.floor = bottom;
    __syncthreads();
}

} // namespace hopper
} // namespace tamis

#endif
