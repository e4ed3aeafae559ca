/* SPDX-License-Identifier: MIT */
/*
 * split_select.cuh: how a row of decode.cu is selected by one CTA once its keys are made, and how
 * it is written. Apart from scoring, so that a CPU can run it (tests/cuda/emulated_selection.cpp).
 */
#ifndef TAMIS_CUDA_SPLIT_SELECT_CUH
#define TAMIS_CUDA_SPLIT_SELECT_CUH

#include "listed.cuh"
#include "pool.cuh"

namespace tamis {

/* One CTA a multiprocessor: 128 registers, and as many threads as that leaves to select. */
constexpr int kSplitThreads = 512, kSplitWarps = kSplitThreads / 32;
constexpr int kSplitColumns = 32 * kSplitThreads; /* 8 quads of keys a thread */

/* What the CTA that selects has of the row, */
struct SplitRow {
    Pool<kSplitThreads> pool;
    Item few[kFew];               /* those of the cut's bin */
    uint32_t bits[kSplitThreads]; /* the row's columns: those that are in */
    uint32_t listed, in_bin;
    bool last;
};

/* and where the row was scored. */
union SplitLists {
    struct { /* quads with keys that reach the bound, and their first columns */
        uint4 quads[kSplitColumns / 4];
        uint16_t columns[kSplitColumns / 4];
    };
    uint16_t order[kSplitColumns]; /* columns that are in, when quads are no more asked for */
};

/* ---- selection: thread t has the quads t, t + 512, .. of the row's keys ---- */

__device__ inline int own_column(int quad) {
    return 4 * (quad * kSplitThreads + (int)threadIdx.x);
}

__device__ inline void load_keys(const uint32_t *keys, int columns, uint4 (&held)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        held[i] = make_uint4(0, 0, 0, 0);
        if (own_column(i) < columns) {
            held[i] = *(const uint4 *)(keys + own_column(i));
        }
    }
}

/* Marks of the thread's keys as bits of columns. */
__device__ inline void put_marks(uint32_t *bits, uint32_t marks) {
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        const uint32_t four = marks >> (4 * i) & 15u;
        if (four) {
            atomicOr(&bits[own_column(i) / 32], four << own_column(i) % 32);
        }
    }
}

/* The row's best as bits of columns, however its keys lie. Whole CTA; apart, since it is rare. */
__device__ __noinline__ void take_any(SplitRow &s, const uint32_t *keys, int columns,
                                      uint32_t topk) {
    uint4 held[8];
    uint32_t marks[1], reach[1], total;
    load_keys(keys, columns, held);
    auto quad = [&](int i) { return held[i]; };
    const Cut cut = cut_of_all<kSplitThreads, 8>(s.pool, 8, kAll, topk, quad);
    marks_above<8>(cut.key, 8, quad, marks);
    put_marks(s.bits, marks[0]);
    if (cut.rest) {
        marks_above<8>(cut.key - 1u, 8, quad, reach);
        put_marks(s.pool.bins, reach[0] ^ marks[0]); /* zero, since the cut is found */
        __syncthreads();
        uint32_t tied = s.pool.bins[threadIdx.x];
        uint32_t rank = scan_counts<kSplitThreads>(s.pool.tied, (uint32_t)__popc(tied), &total);
        for (; tied && rank < cut.rest; tied &= tied - 1, rank++) {
            s.bits[threadIdx.x] |= tied & (0u - tied);
        }
    }
}

/* Of the cut's bin, the best `rest`. Whole CTA; from a barrier. */
__device__ inline void take_few(SplitRow &s, uint32_t members, uint32_t rest) {
    const uint32_t lane = threadIdx.x & 31;
    const Item other = lane < members ? s.few[lane] : Item{0, 0};
#pragma unroll 1
    for (uint32_t i = threadIdx.x / 32; i < members; i += kSplitWarps) {
        const Item mine = s.few[i];
        const bool better = other.key > mine.key || (other.key == mine.key && other.id < mine.id);
        if ((uint32_t)__popc(__ballot_sync(kAll, better)) < rest && lane == 0) {
            atomicOr(&s.bits[mine.id / 32], 1u << mine.id % 32);
        }
    }
}

/*
 * As bound_of, by halves of scores, of which few lie around 0, where most keys do; a third of the
 * way first, where scores that are normal have the share that is asked for. Eight steps at most:
 * then more keys reach it.
 */
__device__ inline Spread bound_of_scores(Pool<kSplitThreads> &s, uint32_t even, uint32_t odd,
                                         uint32_t quota) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const float x = score_of_key(even - 1u), y = score_of_key(odd - 1u); /* NaN: none */
    auto reached = [&](float by) {
        return (uint32_t)(__popc(__ballot_sync(kAll, x >= by)) +
                          __popc(__ballot_sync(kAll, y >= by)));
    };
    Spread mine;
    mine.high = __reduce_max_sync(kAll, max(even, odd));
    float low = score_of_key(__reduce_min_sync(kAll, min(even - 1u, odd - 1u)));
    float top = score_of_key(mine.high - 1u), part = 1.0f / 3;
    uint32_t count = reached(low);
    const bool enough = count >= quota;
#pragma unroll 1
    for (int i = 0; i < 8 && enough && count > quota + quota / 2; i++) {
        const float middle = __fmaf_rn(__fsub_rn(top, low), part, low);
        const uint32_t found = reached(middle);
        low = found >= quota ? middle : low;
        top = found >= quota ? top : middle;
        count = found >= quota ? found : count;
        part = 0.5f;
    }
    mine.bound = enough ? pool_key(low) - 1u : kAll;
    mine.sure = enough ? quota : 0;
    if (lane == 0) {
        s.warp[warp] = mine;
    }
    __syncthreads();
    const Spread none = {0, kAll, 0};
    return reduce(lane < kSplitWarps ? s.warp[lane] : none);
}

/* Lists the quads that have a key which reaches a bound that enough keys do. Returns how many, from
 * a barrier on, or 0: there is no such bound. Whole CTA. */
__device__ inline uint32_t list_quads(SplitRow &s, SplitLists &lists, const uint32_t *keys,
                                      int columns, uint32_t topk, Spread &spread) {
    uint4 held[8];
    uint32_t best[8], even = 0, odd = 0, own = 0;
    load_keys(keys, columns, held);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        best[i] = most_of(held[i]);
        even = max(even, i % 2 ? 0 : best[i]);
        odd = max(odd, i % 2 ? best[i] : 0);
    }
    const uint32_t full = (uint32_t)min(columns / 128, kSplitWarps);
    spread = bound_of_scores(s.pool, even, odd, full ? (topk + full - 1) / full : topk);
    if (spread.sure < topk) {
        return 0;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        own += best[i] > spread.bound;
    }
    const uint32_t sum = sum_to_lane<uint32_t>(own);
    uint32_t at = (threadIdx.x & 31) == 31 ? atomicAdd(&s.listed, sum) : 0;
    at = __shfl_sync(kAll, at, 31) + sum - own;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (best[i] > spread.bound) {
            lists.quads[at] = held[i];
            lists.columns[at++] = (uint16_t)own_column(i);
        }
    }
    __syncthreads();
    return s.listed;
}

/*
 * The row's best `topk` as bits of columns. Those above a bound are counted in bins of how far
 * their score lies above the bound's, as floats have it: 128 bins for each halving of that
 * distance, so that neither scores around 0 nor a few far above the others meet in one bin. What is
 * in the cut's bin is ranked. Whole CTA; leaves at a barrier.
 */
__device__ inline void take_best(SplitRow &s, SplitLists &lists, const uint32_t *keys, int columns,
                                 uint32_t topk) {
    Spread spread;
    const uint32_t quads = list_quads(s, lists, keys, columns, topk, spread);
    const float base = score_of_key(spread.bound);
    const uint32_t reach = __float_as_uint(__fsub_rn(score_of_key(spread.high - 1u), base));
    /* How far below the best a key lies. What is below the bound, and NaN, lies further than all
     * that reaches it, but where those are infinite: then all share a bin. */
    auto down_of = [&](uint32_t key) {
        const uint32_t order = key - 1u;
        const uint32_t flip = (uint32_t)((int32_t)~order >> 31) | 0x80000000u;
        return (reach - __float_as_uint(__fsub_rn(__uint_as_float(order ^ flip), base))) >> 16;
    };
    /* visit(keys, first column) for the quads. */
    auto visit_listed = [&](auto visit) {
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < quads; i += kSplitThreads) {
            const uint4 four = lists.quads[i];
            const uint32_t held[4] = {four.x, four.y, four.z, four.w};
            visit(held, (uint32_t)lists.columns[i]);
        }
    };
    visit_listed([&](const uint32_t(&four)[4], uint32_t) {
#pragma unroll
        for (int k = 0; k < 4; k++) { /* bin 0 is not counted */
            const uint32_t down = down_of(four[k]);
            count_if(s.pool.bins + kRangeBins - 1 - min(down, kRangeBins - 1u),
                     down < kRangeBins - 1u);
        }
    });
    __syncthreads();
    find_range(s.pool, topk);
    const uint32_t cut = kRangeBins - 1u - s.pool.bin, rest = s.pool.rest;
    const uint32_t members = s.pool.members, some = members > rest; /* of the bin */
    if (quads == 0 || (some && members > kFew)) {
        take_any(s, keys, columns, topk);
        __syncthreads();
        return;
    }
    visit_listed([&](const uint32_t(&four)[4], uint32_t column) {
        uint32_t in = 0, at_cut = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t down = down_of(four[k]);
            in |= down + some <= cut ? 1u << k : 0;
            at_cut |= down == cut ? some << k : 0;
        }
        if (in) {
            atomicOr(&s.bits[column / 32], in << column % 32);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (at_cut >> k & 1) {
                s.few[atomicAdd(&s.in_bin, 1u)] = {four[k], column + k};
            }
        }
    });
    __syncthreads();
    if (some) {
        take_few(s, members, rest);
        __syncthreads();
    }
}

/* ---- output ---- */

/* The entries of row r behind its `taken` positions. */
__device__ inline void write_none(const tamis_selection &out, int64_t r, uint32_t taken) {
#pragma unroll 1
    for (uint32_t i = taken + threadIdx.x; i < (uint32_t)out.topk; i += kSplitThreads) {
        write_entry(out, r, i, -1, -1, -INFINITY);
    }
    if (out.counts && threadIdx.x == 0) {
        out.counts[r] = (int32_t)taken;
    }
}

/* The columns that are in, ascending. Whole CTA, from a barrier. */
__device__ inline void write_taken(SplitRow &s, SplitLists &lists, const tamis_selection &out,
                                   int64_t r, const Listed &list, const uint32_t *keys) {
    uint32_t bits = s.bits[threadIdx.x], taken;
    uint32_t rank = scan_counts<kSplitThreads>(s.pool.above, (uint32_t)__popc(bits), &taken);
#pragma unroll 1
    for (; bits; bits &= bits - 1) {
        lists.order[rank++] = (uint16_t)(32 * threadIdx.x + (uint32_t)__ffs((int)bits) - 1);
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < taken; i += kSplitThreads) {
        const int32_t column = lists.order[i], id = __ldg(list.blocks + column / kBlock);
        int64_t slot = 0;
        if (out.slots) {
            const int64_t page = __ldg(list.pages + (id >> list.page_shift));
            const int32_t in_page = id & ((1 << list.page_shift) - 1);
            slot = ((page << list.page_shift) + in_page) * kBlock + column % kBlock;
        }
        write_entry(out, r, i, id * kBlock + column % kBlock, slot,
                    out.scores ? tamis_canonical(score_of_key(keys[column] - 1u)) : 0.0f);
    }
    write_none(out, r, taken);
}

} // namespace tamis

#endif
