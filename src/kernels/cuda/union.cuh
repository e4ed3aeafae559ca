/* SPDX-License-Identifier: MIT */
/*
 * union.cuh: the union of two ascending lists of blocks, by a CTA of four warps: bitmaps of both in
 * shared memory, and ranks by counting bits.
 */
#ifndef TAMIS_CUDA_UNION_CUH
#define TAMIS_CUDA_UNION_CUH

#include "candidates.cuh"
#include "score_fast.cuh"

namespace tamis {
namespace hopper {

/* Blocks that the bitmaps span: from 524,288 positions on they cost what they save. */
constexpr int kMaxIds = 65536;
constexpr int kMaxColumns = 32768; /* of a group: ranks of positions fit 16 bits */

struct UnionSet {
    uint32_t bits[2][kMaxIds / 32];
    uint2 sums[kMaxIds / 1024];
};

/* What a group's blocks are listed by: the list of its row, or the entries of a union, ascending:
 * id << 2, and a bit for each row that has the block. Of these, `order` names first those of both
 * rows, then those of the first alone, then those of the second. */
struct Blocks {
    const uint32_t *entries; /* NULL: a list */
    const uint16_t *order;
    int32_t count, both, first;
};

/* Whether a quarter of x is in y, by a sample of a block a thread. Whole CTA. */
__device__ inline bool have_in_common(const Listed &x, const Listed &y) {
    const int32_t id = x.blocks[(int64_t)threadIdx.x * x.count / kGroupThreads];
    int32_t low = 0, high = y.count - 1; /* the first that is not below id, or the last */
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (y.blocks[middle] < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return __syncthreads_count(y.blocks[low] == id) >= kGroupThreads / 4;
}

/* The union of two lists, to `entries` and `order`. Nothing where it would not pay or a list does
 * not ascend. Warp w marks half w % 2 of list w / 2. Whole CTA; leaves at a barrier. */
__device__ inline Blocks make_union(UnionSet &set, const Listed (&lists)[2], uint32_t *entries,
                                    uint16_t *order) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int32_t longest = max(lists[0].length, lists[1].length);
    const int32_t words = (int32_t)(((uint32_t)longest + 255) / 256), groups = (words + 31) / 32;
    for (int i = threadIdx.x; i < groups * 32; i += kGroupThreads) {
        set.bits[0][i] = set.bits[1][i] = 0;
    }
    __syncthreads();
    const int place = warp / 2;
    const Listed &list = lists[place];
    const int32_t half = (list.count / 2 + 127) & ~127;
    const int32_t from = warp % 2 ? min(half, list.count) : 0;
    const int32_t end = warp % 2 ? list.count : min(half, list.count);
    bool good = true;
#pragma unroll 4
    for (int32_t i = from + lane; i < end; i += 32) {
        const int32_t id = __ldg(list.blocks + i), before = i ? __ldg(list.blocks + i - 1) : -1;
        const bool fine = id > before && id >= 0 && id <= (list.length - 1) / kBlock;
        good &= fine;
        if (fine) {
            atomicOr(&set.bits[place][id >> 5], 1u << (id & 31));
        }
    }
    good = __syncthreads_and(good);
    /* Of 32 words each, then of all before: blocks of both, and of either alone. */
    for (int g = warp; g < groups; g += kGroupWarps) {
        const uint32_t x = set.bits[0][32 * g + lane], y = set.bits[1][32 * g + lane];
        const uint32_t both = (uint32_t)__popc(x & y) | (uint32_t)__popc(x & ~y) << 16;
        const uint32_t sum = __reduce_add_sync(kAll, both);
        const uint32_t second = __reduce_add_sync(kAll, (uint32_t)__popc(y & ~x));
        if (lane == 0) {
            set.sums[g] = {sum, second};
        }
    }
    __syncthreads();
    uint2 all = {0, 0}, mine = {0, 0};
    for (int g = 0; g < groups; g++) {
        mine = g == (int)threadIdx.x ? all : mine;
        all.x += set.sums[g].x;
        all.y += set.sums[g].y;
    }
    __syncthreads();
    if ((int)threadIdx.x < groups) {
        set.sums[threadIdx.x] = mine;
    }
    __syncthreads();
    Blocks blocks = {entries, order, 0, (int32_t)(all.x & 0xFFFF), (int32_t)(all.x >> 16)};
    const int32_t count = blocks.both + blocks.first + (int32_t)all.y;
    if (!good || (int64_t)count * 8 > (int64_t)(lists[0].count + lists[1].count) * 7 ||
        count * kBlock > kMaxColumns) {
        return blocks;
    }
    blocks.count = count;
    for (int g = warp; g < groups; g += kGroupWarps) {
        const uint32_t x = set.bits[0][32 * g + lane], y = set.bits[1][32 * g + lane];
        const uint2 own = {(uint32_t)__popc(x & y) | (uint32_t)__popc(x & ~y) << 16,
                           (uint32_t)__popc(y & ~x)};
        uint2 sum = own;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const uint32_t ox = __shfl_up_sync(kAll, sum.x, d), oy = __shfl_up_sync(kAll, sum.y, d);
            sum.x += lane >= d ? ox : 0;
            sum.y += lane >= d ? oy : 0;
        }
        sum.x += set.sums[g].x - own.x;
        sum.y += set.sums[g].y - own.y;
        uint32_t to[4] = {0, (uint32_t)blocks.both + (sum.x >> 16),
                          (uint32_t)(blocks.both + blocks.first) + sum.y, sum.x & 0xFFFF};
        uint32_t rank = (sum.x & 0xFFFF) + (sum.x >> 16) + sum.y;
        for (uint32_t left = x | y; left; left &= left - 1) {
            const uint32_t bit = (uint32_t)__ffs((int)left) - 1;
            const uint32_t id = 32u * (uint32_t)(32 * g + lane) + bit;
            const bool in_x = x >> bit & 1, in_y = y >> bit & 1;
            entries[rank] = id << 2 | in_x | in_y << 1;
            order[in_x && in_y ? to[3]++ : in_x ? to[1]++ : to[2]++] = (uint16_t)rank;
            rank++;
        }
    }
    __syncthreads();
    return blocks;
}

} // namespace hopper
} // namespace tamis

#endif
