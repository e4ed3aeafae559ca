/* SPDX-License-Identifier: MIT */
/*
 * picks.cuh: the best `topk` of a row's scores, ascending as they lie, by one CTA: of decode.cu's
 * rows and of topk.cu's. A CPU can run it (tests/cuda/emulated_selection.cpp).
 *
 * The CTA's time is waits and instructions of 16 warps, so few of either: a bound that somewhat
 * more than topk scores lie above, found while half of them are still on their way; a thread's own
 * above it stay in registers; one count of how far they lie above the bound finds the cut. All else
 * (more scores at the cut than can be ranked, a bound that too few reach) is done with all keys.
 */
#ifndef TAMIS_CUDA_PICKS_CUH
#define TAMIS_CUDA_PICKS_CUH

#include "cut.cuh"

namespace tamis {

constexpr int kPickThreads = 512, kPickWarps = kPickThreads / 32;
/* Thread t has the columns t, t + 512, .., so that good blocks, which lie together, meet in no
 * thread. */
constexpr int kOwnColumns = 32, kPickColumns = kOwnColumns * kPickThreads;
constexpr int kPicks = 7; /* of a thread above the bound: more are rare */

/* What a warp knows of its scores, */
struct WarpBound {
    uint32_t bound, high; /* a float; the best's key */
};

/* and what the CTA that selects has of the row. */
struct PickRow {
    uint32_t bins[kRangeBins + 32]; /* the last are not counted */
    WarpBound bounds[kPickWarps];
    alignas(16) uint8_t counts[kOwnColumns][kPickWarps]; /* of 32 columns: those that are in */
    Item few[kFew];                                      /* those of the cut's bin */
    uint32_t sums[kPickWarps], in_bin;
    uint32_t cut, rest, members; /* the cut's bin, wanted there, there at all */
    bool last;
};

union PickLists {
    Pool<kPickThreads> pool;
    uint16_t order[kPickColumns]; /* columns that are in, ascending */
};

/*
 * Where scores come from, for these functions: `columns` of them;
 *   load(x)          the thread's own, a NaN where a column has none;
 *   key(column)      0 where it has none;
 *   scores(bits, to) again, of the own columns that the bits stand for; any where a bit is 0.
 */

/* Whole CTA, before anything else; the next barrier orders it. */
__device__ inline void select_begin(PickRow &s) {
#pragma unroll
    for (int i = 0; i < kRangeBins / kPickThreads; i++) {
        s.bins[i * kPickThreads + (int)threadIdx.x] = 0;
    }
}

__device__ inline int own_column(int i) {
    return i * kPickThreads + (int)threadIdx.x;
}

/* The place of the only bit, -1 if there is none. */
__device__ inline int index_of(uint32_t bit) {
#ifdef __CUDA_ARCH__
    int i;
    asm("bfind.u32 %0,%1;" : "=r"(i) : "r"(bit));
    return i;
#else
    return 31 - __clz((int)bit);
#endif
}

/* Predicates, not branches: a warp's stores go out together. */
__device__ inline void put_if(uint16_t *to, int column, bool yes) {
#ifdef __CUDA_ARCH__
    asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; @p st.shared.u16 [%0],%1;}" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "h"((uint16_t)column), "r"((uint32_t)yes)
                 : "memory");
#else
    if (yes) {
        *to = (uint16_t)column;
    }
#endif
}

/* The compiler keeps no predicate that it had of x. */
__device__ inline void forget(uint32_t &x) {
#ifdef __CUDA_ARCH__
    asm("" : "+r"(x));
#else
    (void)x;
#endif
}

/* Bit i of lane j for bit j of lane i. Whole warp. */
__device__ inline uint32_t transpose(uint32_t x) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 4; n >= 0; n--) {
        constexpr uint32_t kLower[5] = {0x55555555u, 0x33333333u, 0x0F0F0F0Fu, 0x00FF00FFu,
                                        0x0000FFFFu};
        const int by = 1 << n;
        const uint32_t keep = lane & by ? ~kLower[n] : kLower[n];
        const uint32_t other = __shfl_xor_sync(kAll, x, by);
        const int turn = lane & by ? 32 - by : by;
        x = (x & keep) | (__funnelshift_l(other, other, turn) & ~keep);
    }
    return x;
}

/*
 * word: which of the columns 512 lane + 32 warp .. + 31 are marked. How many are before them.
 * Whole CTA; between two of these lies a barrier.
 */
__device__ inline uint32_t marked_before(PickRow &s, uint32_t word) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    s.counts[lane][warp] = (uint8_t)__popc(word);
    __syncthreads();
    const uint4 row = *(const uint4 *)s.counts[lane];
    const uint32_t four[4] = {row.x, row.y, row.z, row.w};
    uint32_t all = 0, before = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int others = min(max(warp - 4 * i, 0), 4);
        all = __dp4a(four[i], 0x01010101u, all);
        before = __dp4a(four[i], (uint32_t)(0x01010101ull >> (8 * (4 - others))), before);
    }
    return before + sum_to_lane<uint32_t>(all) - all;
}

/* ---- with all keys ---- */

/* The row's best in lists.order, however its scores lie; returns how many. Whole CTA, from a
 * barrier to a barrier; apart, since it is rare. */
template <class Source>
__device__ __noinline__ uint32_t take_any(PickRow &s, PickLists &lists, const Source &source,
                                          uint32_t topk) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t keys[kOwnColumns], marks[1], reach[1];
#pragma unroll
    for (int i = 0; i < kOwnColumns; i++) {
        keys[i] = source.key(own_column(i));
    }
    auto quad = [&](int i) {
        return make_uint4(keys[4 * i], keys[4 * i + 1], keys[4 * i + 2], keys[4 * i + 3]);
    };
    pool_begin(lists.pool);
    __syncthreads();
    const Cut cut =
        cut_of_all<kPickThreads, kOwnColumns / 4>(lists.pool, kOwnColumns / 4, kAll, topk, quad);
    marks_above<kOwnColumns / 4>(cut.key, kOwnColumns / 4, quad, marks);
    uint32_t word = transpose(marks[0]);
    if (cut.rest) {
        marks_above<kOwnColumns / 4>(cut.key - 1u, kOwnColumns / 4, quad, reach);
        uint32_t tied = transpose(reach[0] ^ marks[0]);
        uint32_t rank = marked_before(s, tied);
        for (; tied && rank < cut.rest; tied &= tied - 1, rank++) {
            word |= tied & (0u - tied);
        }
        __syncthreads();
    }
    uint32_t rank = marked_before(s, word);
#pragma unroll 1
    for (; word; word &= word - 1) {
        lists.order[rank++] =
            (uint16_t)(kPickThreads * lane + 32 * warp + index_of(word & (0u - word)));
    }
    __syncthreads();
    return cut.want;
}

/* ---- with those above a bound ---- */

/* Below those that are looked at; and how far above it most lie at most, as a float's bits. */
struct Bound {
    float at;
    uint32_t reach;
};

/* The next lower float, of any but -infinity and NaN. */
__device__ inline float next_below(float x) {
    const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return __uint_as_float((int32_t)bits > 0 ? bits - 1u : bits ? bits + 1u : 0x80000001u);
}

/*
 * How many neighbouring lanes' best is one sample of 512 / 2^n, which set the bound: of n = 4 .. 0
 * about 150, 380, 950, 2,100 and 4,700 scores lie above it, fewer where a row is short.
 */
__device__ inline int lanes_together(int columns, uint32_t topk) {
    const int most = topk > 1300 ? 0 : topk > 600 ? 1 : topk > 220 ? 2 : topk > 80 ? 3 : 4;
    const int64_t wanted = topk;
    return columns < 2 * wanted ? 0 : columns < 4 * wanted ? min(most, 1) : most;
}

/*
 * A bound between the least of warps' own and their mean: those of one warp stray. best: of half of
 * the thread's scores. Whole CTA.
 */
__device__ inline Bound find_bound(PickRow &s, float best, int together) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    auto other_of = [](float x, int by) {
        return __uint_as_float(__shfl_xor_sync(kAll, __float_as_uint(x), by));
    };
    const uint32_t own = __reduce_max_sync(kAll, pool_key(best));
#pragma unroll
    for (int n = 0; n < 5; n++) {
        const float other = other_of(best, 1 << n);
        best = n < together ? fmaxf(best, other) : fminf(best, other); /* NaN: the other */
    }
    if (lane == 0) {
        s.bounds[warp] = {__float_as_uint(best), own};
    }
    __syncthreads();
    const WarpBound given = s.bounds[lane % kPickWarps];
    const uint32_t high = __reduce_max_sync(kAll, given.high);
    float least = __uint_as_float(given.bound), mean = 0.0f;
    const bool some = least > -INFINITY; /* warps may have no score */
    const uint32_t warps = (uint32_t)__popc(__ballot_sync(kAll, some)) / (32 / kPickWarps);
    mean = some ? __fdividef(least, (float)warps) : 0.0f;
    least = some ? least : INFINITY;
#pragma unroll
    for (int by = kPickWarps / 2; by; by /= 2) {
        mean = __fadd_rn(mean, other_of(mean, by));
        least = fminf(least, other_of(least, by));
    }
    Bound bound;
    bound.at = next_below(__fmaf_rn(least, 0.35f, __fmul_rn(mean, 0.65f)));
    bound.reach = __float_as_uint(__fsub_rn(score_of_key(high - 1u), bound.at));
    return bound;
}

/*
 * How far below the best a score above the bound lies: 128 steps for each halving of its distance
 * from the bound, so that neither scores around 0 nor a few far above the others share one.
 */
__device__ inline uint32_t down_of(float x, const Bound &bound) {
    const uint32_t up = min(__float_as_uint(__fsub_rn(x, bound.at)), bound.reach);
    return min((bound.reach - up) >> 16, kRangeBins - 1u);
}

/* A thread's scores above the bound. */
struct Picks {
    uint32_t bits[kPicks], downs[kPicks]; /* columns, of own_column; without one, 0 and kRangeBins
                                             or more */
    uint32_t more;                        /* columns that have no place here */
};

template <class Source> __device__ inline float score_of(const Source &source, uint32_t bit) {
    const uint32_t bits[1] = {bit};
    float score[1];
    source.scores(bits, score);
    return score[0];
}

/* visit(bit, down) for those without a place. */
template <class Source, class Visit>
__device__ inline void visit_more(const Picks &picks, const Source &source, const Bound &bound,
                                  Visit visit) {
#pragma unroll 1
    for (uint32_t left = picks.more; left; left &= left - 1) {
        const uint32_t bit = left & (0u - left);
        visit(bit, down_of(score_of(source, bit), bound));
    }
}

/* Picks what lies above the bound, and counts it. */
template <class Source>
__device__ inline void pick(PickRow &s, const float (&x)[kOwnColumns], const Source &source,
                            const Bound &bound, Picks &picks) {
    uint32_t above = 0;
#pragma unroll
    for (int i = kOwnColumns - 1; i >= 0; i--) { /* signs; NaN has none */
        above = __funnelshift_l(__float_as_uint(__fsub_rn(bound.at, x[i])), above, 1);
    }
#pragma unroll
    for (int k = 0; k < kPicks; k++) {
        picks.bits[k] = above & (0u - above);
        above ^= picks.bits[k];
    }
    picks.more = above;
    float held[kPicks];
    source.scores(picks.bits, held);
#pragma unroll
    for (int k = 0; k < kPicks; k++) {
        const uint32_t down = down_of(held[k], bound);
        picks.downs[k] = picks.bits[k] ? down : kRangeBins + (threadIdx.x & 31);
        atomicAdd(&s.bins[picks.downs[k]], 1u);
    }
    visit_more(picks, source, bound,
               [&](uint32_t, uint32_t down) { atomicAdd(&s.bins[down], 1u); });
}

/* The bin in which the topk-th best lies, to s; whether there is one. Bins are 0 then. Whole CTA,
 * from a barrier to a barrier. */
__device__ inline bool find_cut(PickRow &s, uint32_t topk) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const uint4 bins = ((const uint4 *)s.bins)[threadIdx.x];
    ((uint4 *)s.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    const uint32_t sum = bins.x + bins.y + bins.z + bins.w, all = __reduce_add_sync(kAll, sum);
    if (lane == 0) {
        s.sums[warp] = all;
    }
    __syncthreads();
    const uint32_t other = lane < kPickWarps ? s.sums[lane] : 0;
    const uint32_t total = __reduce_add_sync(kAll, other);
    uint32_t better = __reduce_add_sync(kAll, lane < warp ? other : 0);
    if (better < topk && better + all >= topk) { /* one warp */
        better += sum_to_lane<uint32_t>(sum) - sum;
        if (better < topk && better + sum >= topk) { /* one thread */
            const uint32_t four[4] = {bins.x, bins.y, bins.z, bins.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (better < topk && better + four[i] >= topk) {
                    s.cut = 4 * threadIdx.x + i;
                    s.rest = topk - better;
                    s.members = four[i];
                }
                better += four[i];
            }
        }
    }
    __syncthreads();
    return total >= topk;
}

/* Which of the few are in, as bits of their places. Whole warp. */
__device__ inline uint32_t best_of_few(const Item *few, uint32_t members, uint32_t rest) {
    const uint32_t lane = threadIdx.x & 31;
    const Item own = lane < members ? few[lane] : Item{0, 0};
    uint32_t better = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < members; i++) {
        const Item other = few[i];
        better += other.key > own.key || (other.key == own.key && other.id < own.id);
    }
    return __ballot_sync(kAll, lane < members && better < rest);
}

/* The picks above the cut, and the best at it, to lists.order. Whole CTA, from a barrier to a
 * barrier. */
template <class Source>
__device__ inline void order_picks(PickRow &s, PickLists &lists, Picks &picks, const Source &source,
                                   const Bound &bound) {
    const uint32_t lane = threadIdx.x & 31, cut = s.cut, rest = s.rest, members = s.members;
    const bool some = members > rest;             /* of those at the cut */
    const uint32_t limit = some ? cut : cut + 1u; /* what lies less far down is in */
    uint32_t in = 0, near = 0;
    auto mark = [&](uint32_t bit, uint32_t down) {
        in |= down < limit ? bit : 0;
        near |= down == cut ? bit : 0;
    };
#pragma unroll
    for (int k = 0; k < kPicks; k++) {
        mark(picks.bits[k], picks.downs[k]);
    }
    visit_more(picks, source, bound, mark);
#pragma unroll 1
    for (near = some ? near : 0; near; near &= near - 1) {
        const uint32_t bit = near & (0u - near);
        s.few[atomicAdd(&s.in_bin, 1u)] = {pool_key(score_of(source, bit)),
                                           (uint32_t)own_column(index_of(bit))};
    }
    const uint32_t word = transpose(in), before = marked_before(s, word);
    const uint32_t winners = some ? best_of_few(s.few, members, rest) : 0;
    auto rank_of = [&](uint32_t bit) {
        const int i = index_of(bit);
        const uint32_t others = __shfl_sync(kAll, word, i) & ((1u << lane) - 1);
        return __shfl_sync(kAll, before, i) + (uint32_t)__popc(others);
    };
    const uint32_t lost = some ? cut : kAll;
    uint32_t ranks[kPicks];
#pragma unroll
    for (int k = 0; k < kPicks; k++) {
        ranks[k] = rank_of(picks.bits[k]);
        forget(picks.downs[k]);
        picks.downs[k] += picks.downs[k] == lost ? kRangeBins : 0;
    }
#pragma unroll 1
    for (uint32_t left = winners; left; left &= left - 1) {
        const int column = (int)s.few[index_of(left & (0u - left))].id;
#pragma unroll
        for (int k = 0; k < kPicks; k++) {
            const int mine = own_column(index_of(picks.bits[k]));
            ranks[k] += mine > column;
            picks.downs[k] = mine == column ? 0 : picks.downs[k];
        }
    }
#pragma unroll
    for (int k = 0; k < kPicks; k++) {
        put_if(lists.order + ranks[k], own_column(index_of(picks.bits[k])), picks.downs[k] <= cut);
    }
#pragma unroll 1
    for (uint32_t left = picks.more; __any_sync(kAll, left != 0); left &= left - 1) {
        const uint32_t bit = left & (0u - left);
        const int mine = own_column(index_of(bit));
        uint32_t rank = rank_of(bit);
        bool taken = (in & bit) != 0;
        for (uint32_t others = winners; others; others &= others - 1) {
            const int column = (int)s.few[index_of(others & (0u - others))].id;
            rank += mine > column;
            taken |= mine == column;
        }
        put_if(lists.order + rank, mine, taken);
    }
    __syncthreads();
}

/* The columns of the row's best `topk`, ascending, in lists.order; returns how many. Whole CTA,
 * select_begin before the first row; leaves at a barrier. */
template <class Source>
__device__ inline uint32_t take_best(PickRow &s, PickLists &lists, const Source &source,
                                     uint32_t topk) {
    float x[kOwnColumns];
    source.load(x);
    s.in_bin = 0;
    float best = x[0];
#pragma unroll
    for (int i = 2; i < kOwnColumns; i += 2) {
        best = fmaxf(best, x[i]);
    }
    const Bound bound = find_bound(s, best, lanes_together(source.columns, topk));
    Picks picks;
    pick(s, x, source, bound, picks);
    __syncthreads();
    const bool found = find_cut(s, topk);
    if (!found || (s.members > s.rest && s.members > kFew)) {
        const Source copy = source; /* a reference would put it in memory for every row */
        return take_any(s, lists, copy, topk);
    }
    order_picks(s, lists, picks, source, bound);
    return topk;
}

} // namespace tamis

#endif
