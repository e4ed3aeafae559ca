/* SPDX-License-Identifier: MIT */
/*
 * cut.cuh: where the cut of the best keys lies, and the best of a list in shared memory, by one
 * CTA; 0 is no key.
 *
 * A cut is found by counting keys in 2,048 bins of the range that it can lie in, not of their
 * leading bits: scores share those, and a bin that all threads meet in is slow. A pass narrows the
 * range 2,048 times; when at most 32 keys are left in it they are ranked. Three passes at most.
 */
#ifndef TAMIS_CUDA_CUT_CUH
#define TAMIS_CUDA_CUT_CUH

#include "common.cuh"

namespace tamis {

constexpr int kRangeBins = 2048, kFew = 32;

/* What a warp knows of its keys. */
struct Spread {
    uint32_t high, bound; /* the best, and the warp's bound less 1 */
    uint32_t sure;        /* keys that reach it */
};

template <int THREADS> struct Pool {
    uint32_t bins[kRangeBins]; /* zero between passes */
    Spread warp[THREADS / 32];
    uint32_t sum[THREADS / 32], least[THREADS / 32];
    uint32_t above[THREADS / 32], tied[THREADS / 32];
    uint32_t few[kFew], listed;
    uint32_t bin, rest, members; /* of a pass: where the cut lies, wanted there, there at all */
};

/* Keys above `key` are taken, and the first `rest` of those equal to it: `want` in all. */
struct Cut {
    uint32_t key, rest, want;
};

/* A key, and whose. */
struct Item {
    uint32_t key, id;
};

/* 1 + tamis_order_key of a score, without branches. */
__device__ inline uint32_t pool_key(float score) {
    const uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f)); /* -0 becomes +0 */
    const uint32_t key = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
    return score != score ? 1 : key + 1;
}

/* Adds 1 where `yes`: a predicate, not a branch. Elsewhere than on a GPU threads take turns. */
__device__ inline void count_if(uint32_t *bin, bool yes) {
#ifdef __CUDA_ARCH__
    asm volatile(
        "{.reg .pred p; setp.ne.u32 p,%0,0; @p red.shared.add.u32 [%1],1;}" ::"r"((uint32_t)yes),
        "r"((uint32_t)__cvta_generic_to_shared(bin))
        : "memory");
#else
    *bin += yes;
#endif
}

/* Whole CTA, once before anything else; the next barrier orders it. */
template <int THREADS> __device__ inline void pool_begin(Pool<THREADS> &s) {
    for (int i = threadIdx.x; i < kRangeBins; i += THREADS) {
        s.bins[i] = 0;
    }
}

/* Sum of lower threads' counts; *total of all. Whole CTA. */
template <int THREADS>
__device__ inline uint32_t scan_counts(uint32_t (&sums)[THREADS / 32], uint32_t count,
                                       uint32_t *total) {
    constexpr int kWarps = THREADS / 32;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t sum = sum_to_lane<uint32_t>(count);
    if (lane == 31) {
        sums[warp] = sum;
    }
    __syncthreads();
    const uint32_t all = lane < kWarps ? sums[lane] : 0;
    *total = __reduce_add_sync(kAll, all);
    return sum - count + __reduce_add_sync(kAll, lane < warp ? all : 0);
}

/* How many keys there are, and the least of them less 1. */
template <int THREADS, int QUADS, class Quad>
__device__ inline uint32_t count_keys(Pool<THREADS> &s, int quads, Quad quad, uint32_t *least) {
    constexpr int kWarps = THREADS / 32;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t valid = 0, low = kAll;
#pragma unroll(QUADS ? QUADS : 4)
    for (int i = 0; i < (QUADS ? QUADS : quads); i++) {
        if (i < quads) {
            const uint4 k = quad(i);
            valid += min(k.x, 1u) + min(k.y, 1u) + min(k.z, 1u) + min(k.w, 1u);
            low = min(low, min(min(k.x - 1u, k.y - 1u), min(k.z - 1u, k.w - 1u)));
        }
    }
    valid = __reduce_add_sync(kAll, valid);
    low = __reduce_min_sync(kAll, low);
    if (lane == 0) {
        s.sum[warp] = valid;
        s.least[warp] = low;
    }
    __syncthreads();
    *least = __reduce_min_sync(kAll, lane < kWarps ? s.least[lane] : kAll);
    return __reduce_add_sync(kAll, lane < kWarps ? s.sum[lane] : 0);
}

/* One pass: the bin that holds the rest-th best of the keys counted; bin 0 is not counted, it has
 * those that others leave. Bins are clear afterwards. */
template <int THREADS> __device__ inline void find_range(Pool<THREADS> &s, uint32_t rest) {
    constexpr int kWarps = THREADS / 32, kEach = kRangeBins / THREADS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t bins[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        bins[i] = s.bins[threadIdx.x * kEach + i];
        sum += bins[i];
    }
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        s.bins[threadIdx.x * kEach + i] = 0;
    }
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
    uint32_t total = lane < kWarps ? s.sum[lane] : 0;
    uint32_t above = from - sum + __reduce_add_sync(kAll, lane > warp ? total : 0);
    total = __reduce_add_sync(kAll, total);
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
    if (threadIdx.x == 0 && total < rest) {
        s.bin = 0;
        s.rest = rest - total;
        s.members = kAll; /* unknown */
    }
    __syncthreads();
}

/* The rest-th best of the few keys from `low` to `high`. */
template <int THREADS, int QUADS, class Quad>
__device__ inline Cut rank_few(Pool<THREADS> &s, int quads, uint32_t low, uint32_t high,
                               uint32_t members, Cut cut, Quad quad) {
    const int lane = threadIdx.x & 31;
    auto list = [&](uint32_t key) {
        if (key - low <= high - low) {
            s.few[atomicAdd(&s.listed, 1u)] = key;
        }
    };
#pragma unroll(QUADS ? QUADS : 4)
    for (int i = 0; i < (QUADS ? QUADS : quads); i++) {
        if (i < quads) {
            const uint4 k = quad(i);
            list(k.x);
            list(k.y);
            list(k.z);
            list(k.w);
        }
    }
    __syncthreads();
    const uint32_t other = lane < (int)members ? s.few[lane] : 0;         /* 0: less than all */
    for (uint32_t i = threadIdx.x / 32; i < members; i += THREADS / 32) { /* a warp each */
        const uint32_t key = s.few[i], equal = __ballot_sync(kAll, other == key);
        const uint32_t better = (uint32_t)__popc(__ballot_sync(kAll, other > key));
        const bool is_cut = better < cut.rest && better + __popc(equal) >= cut.rest;
        if (is_cut && lane == 0 && __ffs((int)equal) == (int)i + 1) { /* the first of equal ones */
            s.bin = key;
            s.rest = cut.rest - better;
        }
    }
    __syncthreads();
    cut.key = s.bin;
    cut.rest = s.rest;
    return cut;
}

/* The cut of the best `want` keys, which lies from `low` to `high`. */
template <int THREADS, int QUADS, class Quad>
__device__ inline Cut narrow(Pool<THREADS> &s, int quads, uint32_t low, uint32_t high,
                             uint32_t want, Quad quad) {
    Cut cut = {low, want, want};
    if (threadIdx.x == 0) {
        s.listed = 0;
    }
    for (;;) {
        cut.key = low;
        const uint32_t span = high - low;
        if (span == 0) {
            return cut;
        }
        const int shift = max(0, 21 - __clz((int)span));
        const uint32_t one = 1u << shift;
        auto count = [&](uint32_t key) {
            const uint32_t from = key - low; /* in the range, but not in bin 0: */
            count_if(&s.bins[from >> shift & (kRangeBins - 1)], from - one <= span - one);
        };
#pragma unroll(QUADS ? QUADS : 4)
        for (int i = 0; i < (QUADS ? QUADS : quads); i++) {
            if (i < quads) {
                const uint4 k = quad(i);
                count(k.x);
                count(k.y);
                count(k.z);
                count(k.w);
            }
        }
        __syncthreads();
        find_range(s, cut.rest);
        const uint32_t members = s.members;
        low += s.bin << shift;
        high = low + min(one - 1u, high - low);
        cut.rest = s.rest;
        if (members <= kFew && high != low) {
            return rank_few<THREADS, QUADS>(s, quads, low, high, members, cut, quad);
        }
    }
}

/* Of all keys, at most 65,535 of them, without a list. */
template <int THREADS, int QUADS, class Quad>
__device__ inline Cut cut_of_all(Pool<THREADS> &s, int quads, uint32_t high, uint32_t topk,
                                 Quad quad) {
    uint32_t low, valid = count_keys<THREADS, QUADS>(s, quads, quad, &low);
    if (valid <= topk) {
        return {0, 0, valid};
    }
    return narrow<THREADS, QUADS>(s, quads, low + 1, high, topk, quad);
}

/* Ids of the best `want` of the list's items, ascending as they lie, to order; their keys reach
 * from `low` to `high`. Whole CTA, after a barrier; order may lie on the list. */
template <int THREADS, int QUADS, class Id>
__device__ inline void best_of_list(Pool<THREADS> &s, const Item *list, uint32_t items,
                                    uint32_t low, uint32_t high, uint32_t want, Id *order) {
    constexpr int kWarps = THREADS / 32;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int each = (int)((items + THREADS - 1) / THREADS), quads = (each + 3) / 4;
    Item held[4 * QUADS];
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++) {
        const uint32_t at = threadIdx.x * (uint32_t)each + (uint32_t)i;
        held[i] = {0, 0};
        if (i < each && at < items) {
            held[i] = list[at];
        }
    }
    auto quad = [&](int i) {
        return make_uint4(held[4 * i].key, held[4 * i + 1].key, held[4 * i + 2].key,
                          held[4 * i + 3].key);
    };
    Cut cut = {0, 0, items};
    if (want < items) {
        cut = narrow<THREADS, QUADS>(s, quads, low, high, want, quad);
    }
    uint32_t own = 0; /* above the cut in the low half, equal in the high one */
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++) {
        own += (held[i].key > cut.key ? 1u : 0) + (held[i].key == cut.key ? 1u << 16 : 0);
    }
    uint32_t sum = sum_to_lane<uint32_t>(own);
    if (lane == 31) {
        s.above[warp] = sum;
    }
    __syncthreads();
    sum += __reduce_add_sync(kAll, lane < warp && lane < kWarps ? s.above[lane] : 0) - own;
    uint32_t above = sum & 0xFFFFu, tied = sum >> 16;
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++) {
        const bool is_above = held[i].key > cut.key, is_tied = held[i].key == cut.key;
        if (is_above || (is_tied && tied < cut.rest)) {
            order[above + min(tied, cut.rest)] = (Id)held[i].id;
        }
        above += is_above;
        tied += is_tied;
    }
    __syncthreads();
}

/* Bit 4 i + k: element k of quad i is above `key`. */
template <int QUADS, class Quad>
__device__ inline void marks_above(uint32_t key, int quads, Quad quad,
                                   uint32_t (&marks)[(QUADS + 7) / 8]) {
#pragma unroll
    for (int w = 0; w < (QUADS + 7) / 8; w++) {
        marks[w] = 0;
    }
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        if (i < quads) {
            const uint4 k = quad(i);
            const int at = 4 * (i % 8);
            marks[i / 8] |= (k.x > key ? 1u << at : 0) | (k.y > key ? 2u << at : 0) |
                            (k.z > key ? 4u << at : 0) | (k.w > key ? 8u << at : 0);
        }
    }
}

} // namespace tamis

#endif
