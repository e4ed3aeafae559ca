/* SPDX-License-Identifier: MIT */
/*
 * merge.cuh: the best of a row whose keys were made by many CTAs; 0 is no key.
 *
 * A warp lists those of its keys that reach a bound of its own, at most as many as it has slots
 * for, and says which bound. The best `topk` of all lists are the best of the row where enough
 * keys reach the highest bound: no list leaves out a key that does. Else, as where many keys are
 * equal, all keys are read. Lists have no order: columns are marked as bits, which have one.
 */
#ifndef TAMIS_CUDA_MERGE_CUH
#define TAMIS_CUDA_MERGE_CUH

#include "pool.cuh"
#include "split_args.h"

namespace tamis {

constexpr int kSplitThreads = 32 * TAMIS_SPLIT_WARPS;

/* A row's lists in its scratch, after its keys. */
struct Lists {
    uint2 *items;    /* keys and their columns; unused slots have key 0 */
    uint32_t *least; /* of a list: it leaves out no key that reaches this */
};

/* What a CTA that merges shares. */
struct Merge {
    Pool<kSplitThreads> pool;
    uint32_t bits[kSplitThreads]; /* columns that are taken, a word a thread */
    Item few[kFew];
    uint32_t listed, sums[TAMIS_SPLIT_WARPS], lows[TAMIS_SPLIT_WARPS];
};

__device__ inline void merge_begin(Merge &s) {
    static_assert(kRangeBins == 4 * kSplitThreads, "a vector a thread");
    ((uint4 *)s.pool.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    s.bits[threadIdx.x] = 0;
    s.listed = 0;
}

/* ---- a warp's list ---- */

/* Bit 4 j + e: key e of the lane's quad j is at least `by`. */
__device__ inline uint32_t reach(const uint4 *mine, int quads, uint32_t by) {
    uint32_t marks = 0;
#pragma unroll 1
    for (int j = 0; j < quads; j++) {
        const uint4 k = mine[32 * j];
        const uint32_t four = (k.x >= by ? 1u : 0) | (k.y >= by ? 2u : 0) | (k.z >= by ? 4u : 0) |
                              (k.w >= by ? 8u : 0);
        marks |= four << (4 * j);
    }
    return marks;
}

/*
 * A bound that at most `slots` of the warp's keys reach, and no fewer than 5/8 of them or all
 * keys, and *marks of the lane's that do. Halves the way from the least score to the best, after
 * a first guess where it is; kAll where eight steps do not find it.
 */
__device__ inline uint32_t list_bound(const uint4 *mine, int quads, uint32_t slots, float guess,
                                      uint32_t *marks) {
    uint32_t high = 0, low = kAll, bound = kAll, by = 1;
#pragma unroll 1
    for (int j = 0; j < quads; j++) {
        const uint4 k = mine[32 * j];
        high = max(high, most_of(k));
        low = min(low, min(min(k.x - 1u, k.y - 1u), min(k.z - 1u, k.w - 1u)));
    }
    high = __reduce_max_sync(kAll, high);
    low = __reduce_min_sync(kAll, low);
    float from = score_of_key(low), range = score_of_key(high - 1u) - from, part = 0.0f;
    *marks = 0;
#pragma unroll 1
    for (int i = 0; i <= 8; i++) {
        const uint32_t those = reach(mine, quads, by);
        const uint32_t n = __reduce_add_sync(kAll, (uint32_t)__popc(those));
        if (n <= slots) {
            bound = by;
            *marks = those;
            if (by == 1 || n >= slots - slots * 3 / 8) {
                break;
            }
            range = part;
        } else {
            range -= part;
            from += part;
        }
        part = range * (i ? 0.5f : guess);
        by = max(pool_key(from + part), 1u);
    }
    return bound;
}

/* The list of this warp's keys; column(i) is that of its key i. */
template <class Column>
__device__ inline void make_list(const uint32_t *keys, const tamis_split &split, uint2 *items,
                                 uint32_t *least, Column column) {
    const int lane = threadIdx.x & 31;
    const uint32_t slots = (uint32_t)split.slots;
    uint32_t marks = 0, bound = 1;
    if (slots < 128u * (uint32_t)split.quads) {
        bound = list_bound((const uint4 *)keys + lane, split.quads, slots, split.guess, &marks);
    } else {
        marks = reach((const uint4 *)keys + lane, split.quads, 1);
    }
    if (lane == 0) {
        *least = bound;
    }
    uint32_t rank = (uint32_t)__popc(marks), total = rank;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(kAll, total, d);
        total += lane >= d ? other : 0;
    }
    rank = total - rank;
    total = __shfl_sync(kAll, total, 31);
#pragma unroll 1
    for (; marks; marks &= marks - 1) {
        const int bit = __ffs((int)marks) - 1, i = bit / 4 * 128 + 4 * lane + bit % 4;
        items[rank++] = make_uint2(keys[i], (uint32_t)column(i));
    }
#pragma unroll 1
    for (uint32_t i = total + lane; i < slots; i += 32) {
        items[i] = make_uint2(0, 0);
    }
}

/* ---- the row's best ---- */

/* Finds the bin that holds the rest-th best of the keys counted, and clears bins. Returns how
 * many were counted: where they are fewer than `rest`, nothing is found. */
__device__ inline uint32_t find_bin(Pool<kSplitThreads> &s, uint32_t rest) {
    constexpr int kEach = kRangeBins / kSplitThreads;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint4 *mine = (uint4 *)s.bins + threadIdx.x;
    const uint4 b = *mine;
    *mine = make_uint4(0, 0, 0, 0);
    const uint32_t bins[kEach] = {b.x, b.y, b.z, b.w}, sum = b.x + b.y + b.z + b.w;
    uint32_t from = sum; /* keys of this lane's bins and above */
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        uint32_t other = __shfl_down_sync(kAll, from, d);
        from += lane + d < 32 ? other : 0;
    }
    if (lane == 0) {
        s.sum[warp] = from;
    }
    __syncthreads();
    const uint32_t total = lane < TAMIS_SPLIT_WARPS ? s.sum[lane] : 0;
    uint32_t above = from - sum + __reduce_add_sync(kAll, lane > warp ? total : 0);
    const uint32_t all = __reduce_add_sync(kAll, total);
    if (above < rest && above + sum >= rest) { /* one thread */
#pragma unroll
        for (int i = kEach - 1; i >= 0; i--) {
            if (above < rest && above + bins[i] >= rest) {
                s.bin = threadIdx.x * kEach + i;
                s.rest = rest - above;
                s.members = bins[i];
            }
            above += bins[i];
        }
    }
    __syncthreads();
    return all;
}

/* The item that this thread lists is among the best `rest` of them. */
__device__ inline void take_few(Merge &s, uint32_t members, uint32_t rest) {
    if (threadIdx.x < members) {
        const Item mine = s.few[threadIdx.x];
        uint32_t better = 0;
#pragma unroll 1
        for (uint32_t e = 0; e < members; e++) {
            const Item other = s.few[e];
            better += other.key > mine.key || (other.key == mine.key && other.id < mine.id);
        }
        if (better < rest) {
            atomicOr(&s.bits[mine.id / 32], 1u << mine.id % 32);
        }
    }
}

/*
 * Marks of columns 32 * threadIdx.x .. that are among the best `topk` of a row's lists, of which
 * there are at most kEach items a thread; *want: how many in all, or -1: that is not to be had
 * from them. Bins are of scores, which spread better than keys where they cross 0. Whole CTA,
 * after merge_begin.
 */
template <int kEach>
__device__ inline uint32_t take_from_lists(Merge &s, const Lists &lists, uint32_t made,
                                           uint32_t slots, uint32_t topk, int *want) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const uint32_t used = made * slots;
    uint32_t key[kEach], column[kEach], high = 0, low = kAll;
#pragma unroll
    for (int i = 0; i < kEach; i += 2) {
        const uint32_t at = 2 * threadIdx.x + (uint32_t)i * kSplitThreads;
        uint4 two = make_uint4(0, 0, 0, 0);
        if (at < used) {
            two = __ldcg((const uint4 *)(lists.items + at));
        }
        key[i] = two.x;
        column[i] = two.y;
        key[i + 1] = two.z;
        column[i + 1] = two.w;
    }
    uint32_t bound = threadIdx.x < made ? __ldcg(lists.least + threadIdx.x) : 1;
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        high = max(high, key[i]);
        low = min(low, key[i] - 1u);
    }
    high = __reduce_max_sync(kAll, high);
    low = __reduce_min_sync(kAll, low);
    bound = __reduce_max_sync(kAll, bound);
    if (lane == 0) {
        s.pool.above[warp] = high;
        s.pool.tied[warp] = bound;
        s.lows[warp] = low;
    }
    __syncthreads();
    high = __reduce_max_sync(kAll, s.pool.above[lane % TAMIS_SPLIT_WARPS]);
    bound = __reduce_max_sync(kAll, s.pool.tied[lane % TAMIS_SPLIT_WARPS]);
    low = __reduce_min_sync(kAll, s.lows[lane % TAMIS_SPLIT_WARPS]) + 1u;
    *want = high == 0 && bound == 1 ? 0 : -1;
    low = max(low, bound);
    const float base = score_of_key(low - 1u), range = score_of_key(high - 1u) - base;
    const float scale = __fdividef((float)(kRangeBins - 1), range); /* need not be exact */
    /* Not so for NaN: some of the best is one, or all are, or not finite, or equal. */
    if (!(high > low && range < INFINITY && scale < INFINITY)) {
        return 0;
    }
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        if (key[i] >= low) {
            const float at = (score_of_key(key[i] - 1u) - base) * scale;
            const uint32_t bin = min((uint32_t)at, (uint32_t)kRangeBins - 1);
            atomicAdd(&s.pool.bins[bin], 1u);
            column[i] |= (bin + 1) << 16; /* 0: not in */
        }
    }
    __syncthreads();
    const uint32_t all = find_bin(s.pool, topk);
    uint32_t cut = 0, rest = 0, members = 0;
    if (all >= topk) {
        cut = s.pool.bin;
        rest = s.pool.rest;
        members = s.pool.members;
    }
    const bool some = rest < members; /* of the cut's bin */
    if (all < topk ? bound > 1 : some && members > kFew) {
        return 0;
    }
    *want = (int)min(all, topk);
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        const uint32_t bin = column[i] >> 16, own = column[i] & 0xFFFFu; /* bin: 1 more */
        if (bin > cut + some) {
            atomicOr(&s.bits[own / 32], 1u << own % 32);
        }
        if (some && bin == cut + 1) {
            s.few[atomicAdd(&s.listed, 1u)] = {key[i], own};
        }
    }
    if (some) {
        __syncthreads();
        take_few(s, members, rest);
    }
    __syncthreads();
    return s.bits[threadIdx.x];
}

/* Marks of columns 32 * threadIdx.x .. that are among the best `topk` of all. Whole CTA. */
__device__ inline uint32_t take_all_keys(Merge &s, const uint32_t *keys, int columns,
                                         uint32_t topk) {
    const int first = 32 * (int)threadIdx.x;
    uint4 held[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        held[i] = make_uint4(0, 0, 0, 0);
        if (first < columns) {
            held[i] = __ldcg((const uint4 *)(keys + first) + i);
        }
    }
    auto quad = [&](int i) { return held[i]; };
    pool_begin(s.pool);
    __syncthreads();
    const Cut cut = cut_of_all<kSplitThreads, 8>(s.pool, 8, kAll, topk, quad);
    uint32_t marks[1], total;
    marks_above<8>(cut.key, 8, quad, marks);
    if (cut.rest) {
        uint32_t tied[1];
        marks_above<8>(cut.key - 1u, 8, quad, tied);
        tied[0] ^= marks[0];
        uint32_t rank = scan_counts<kSplitThreads>(s.pool.tied, (uint32_t)__popc(tied[0]), &total);
        for (uint32_t left = tied[0]; left && rank < cut.rest; left &= left - 1, rank++) {
            marks[0] |= left & (0u - left);
        }
    }
    return marks[0];
}

} // namespace tamis

#endif
