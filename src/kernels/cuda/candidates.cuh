/* SPDX-License-Identifier: MIT */
/*
 * candidates.cuh: a row's best columns out of a stream of them, by a CTA of kWarps warps: four
 * for each warpgroup.
 *
 * Each warp adds the scores that are not below the row's floor to a segment of its own, without
 * atomics. Before a segment can overflow, the pool is thinned to the best, which raises the floor.
 * Columns come in any order, and equal scores go to the lowest ones. NaN is never stored.
 *
 * How many a thinning keeps is a guess from the part of the columns that came: of 16,384 a tenth of
 * the first 1,024, and about one in eight is stored after them. Whoever asked for the best topk and
 * ends with fewer, because the later columns are worse, starts again without a guess.
 */
#ifndef TAMIS_CUDA_CANDIDATES_CUH
#define TAMIS_CUDA_CANDIDATES_CUH

#include "common.cuh"

namespace tamis {
namespace hopper {

constexpr int kGroupWarps = 4, kGroupThreads = 32 * kGroupWarps;
constexpr int kSegment = 384; /* candidates of a warp */
constexpr int kRound = 4;     /* turns of 32 columns a warp between two looks at the segments */
constexpr int kFew = 8;       /* keys a thread where a pool is not full */
constexpr int kSample = 1024; /* columns of the CTA, after which the floor is first raised */
/* Thinned to at most 5/4 topk, a segment has room for a round: topk is at most this. */
constexpr int kMaxTopk = (kSegment - 32 * kRound) * kGroupWarps * 3 / 4;

template <int kWarps> struct alignas(16) RowPool {
    uint2 items[kWarps][kSegment]; /* a score's bits, its column */
};

/* Sums over the CTA, in all threads; leaves at a barrier. Calls alternate `which`. Each line of
 * sums is 16-byte aligned. */
template <int kWarps>
__device__ inline uint32_t sum_of_cta(uint32_t (&sums)[2][kWarps], uint32_t value, int which) {
    uint32_t sum = __reduce_add_sync(kAll, value);
    if ((threadIdx.x & 31) == 0) {
        sums[which][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; i += 4) {
        const uint4 four = *(const uint4 *)&sums[which][i];
        sum += four.x + four.y + four.z + four.w;
    }
    return sum;
}

__device__ inline uint32_t ordered_key(float score) {
    uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f)); /* -0 becomes +0 */
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

/* What may still be among a row's best. */
struct Best {
    uint32_t count;   /* of the warp's segment */
    float floor;      /* the least such score */
    uint32_t columns; /* in all; 0: keep topk in every thinning */
    bool guessed;     /* fewer were kept, so fewer may be left */
};

/*
 * How many of the columns so far are enough, if the best are spread over all: their share of topk
 * and twelve times what that varies by were they independent. They are not: of a trained indexer's
 * rows 1 in 200 ends with too few at eight times, and none in 448 at twelve.
 */
__device__ inline uint32_t share_of(uint32_t topk, uint32_t seen, uint32_t columns) {
    const float share = (float)topk * __fdividef((float)seen, (float)columns);
    return min(topk, (uint32_t)(share + 12.0f * sqrtf(share)));
}

static_assert(kSample <= 32 * kFew * kGroupWarps, "make_room");

/* The same of CTAs that have more columns between two looks. */
template <int kWarps>
constexpr int kSampleOf = 32 * kRound *kWarps > kSample ? 32 * kRound *kWarps : kSample;

/* Where a warp's next candidate goes, in shared memory. */
struct Segment {
    uint32_t start, to;

    template <int kWarps> __device__ explicit Segment(const RowPool<kWarps> &pool) {
        start = (uint32_t)__cvta_generic_to_shared(pool.items[threadIdx.x / 32]);
        to = start;
    }
    /* Whole warp; below: bits of lower lanes. */
    __device__ void offer(float score, uint32_t column, float floor, uint32_t below) {
        const bool pass = score >= floor;
        const uint32_t lanes = __ballot_sync(kAll, pass);
        if (pass) {
#ifdef __CUDA_ARCH__
            asm volatile("st.shared.v2.u32 [%0],{%1,%2};" ::"r"(to + 8 * __popc(lanes & below)),
                         "r"(__float_as_uint(score)), "r"(column)
                         : "memory");
#else
            *(uint2 *)__cvta_shared_to_generic(to + 8 * __popc(lanes & below)) =
                make_uint2(__float_as_uint(score), column);
#endif
        }
        to += 8 * (uint32_t)__popc(lanes);
    }
    __device__ uint32_t count() const {
        return (to - start) / 8;
    }
    __device__ void restart(uint32_t count) {
        to = start + 8 * count;
    }
    __device__ bool lacks_a_round() const {
        return to > start + 8 * (kSegment - 32 * kRound);
    }
};

/* A thread's share of its warp's segment, of up to 32 kEach: keys of at least 1, 0 is none. */
template <int kEach> struct Share {
    uint32_t keys[kEach];
    uint16_t columns[kEach];

    template <int kWarps> __device__ Share(const RowPool<kWarps> &pool, uint32_t count) {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            const bool in = lane + 32 * i < count;
            const uint2 item = in ? pool.items[warp][lane + 32 * i] : make_uint2(0, 0);
            keys[i] = in ? ordered_key(__uint_as_float(item.x)) : 0;
            columns[i] = (uint16_t)item.y;
        }
    }
    __device__ uint32_t top() const {
        uint32_t top = 0;
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            top = max(top, keys[i]);
        }
        return top;
    }
    __device__ uint32_t above(uint32_t key) const {
        uint32_t n = 0;
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            n += keys[i] > key;
        }
        return n;
    }
    /* Equal ones up to a column. */
    __device__ uint32_t equal(uint32_t key, uint32_t column) const {
        uint32_t n = 0;
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            n += keys[i] == key && columns[i] <= column;
        }
        return n;
    }
};

/*
 * Thins the pool to its best `want` at least and at most `most`, and spreads them over the
 * segments, which have up to 32 kEach. Of scores equal to the cut, which may be any number, it
 * keeps all that can be among the best topk: up to topk in all. want <= topk. Whole CTA, from a
 * barrier to a barrier.
 */
template <int kEach, int kWarps>
__device__ inline void thin(uint32_t (&sums)[2][kWarps], RowPool<kWarps> &pool, Best &best,
                            uint32_t want, uint32_t most, uint32_t topk) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const Share<kEach> share(pool, best.count);
    uint32_t which = 1, top = __reduce_max_sync(kAll, share.top());
    if (lane == 0) {
        sums[0][warp] = top;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; i++) {
        top = max(top, sums[0][i]);
    }
    uint32_t all = sum_of_cta(sums, lane == 0 ? best.count : 0, which);
    /* Entries: all at or above bottom, `above` above top; fewer than `want` are above the cut. */
    uint32_t bottom = ordered_key(best.floor), above = 0;
#pragma unroll 1
    while (bottom < top && all > most) {
        const uint32_t middle = bottom + (top - bottom) / 2;
        const uint32_t n = sum_of_cta(sums, share.above(middle), which ^= 1);
        if (n < want) {
            top = middle;
            above = n;
        } else {
            bottom = middle + 1;
            all = n;
        }
    }
    uint32_t last = 0xFFFFu; /* of those equal to the cut, columns up to this one */
    if (all > most && all > topk) {
        uint32_t first = 0;
#pragma unroll 1
        while (first < last) {
            const uint32_t middle = (first + last) / 2;
            const uint32_t n = sum_of_cta(sums, share.equal(bottom, middle), which ^= 1);
            if (n < topk - above) {
                first = middle + 1;
            } else {
                last = middle;
            }
        }
    }
    all = sum_of_cta(sums, share.above(bottom) + share.equal(bottom, last), which ^= 1);
    uint32_t at = 0;
    for (uint32_t w = 0; w < warp; w++) {
        at += sums[which][w];
    }
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        const uint32_t key = share.keys[i], column = share.columns[i];
        const bool keep = key > bottom || (key == bottom && column <= last);
        const uint32_t lanes = __ballot_sync(kAll, keep);
        const uint32_t rank = at + (uint32_t)__popc(lanes & ((1u << lane) - 1));
        if (keep) {
            pool.items[rank % kWarps][rank / kWarps] =
                make_uint2(__float_as_uint(score_of_key(key)), column);
        }
        at += (uint32_t)__popc(lanes);
    }
    best.count = (all + kWarps - 1 - warp) / kWarps;
    best.floor = score_of_key(bottom);
    __syncthreads();
}

/* Thins the pool of a row, which has sums beside it; `few`: no more than kFew keys a thread. As
 * `thin`. */
template <template <int> class Row, int kWarps>
__device__ inline void thin_row(Row<kWarps> &s, Best &best, bool few, uint32_t want, uint32_t most,
                                uint32_t topk) {
    if (few) {
        thin<kFew>(s.sums, s.pool, best, want, most, topk);
    } else {
        thin<kSegment / 32>(s.sums, s.pool, best, want, most, topk);
    }
}

/*
 * After `seen` columns: thins the pool where it is a sample of many, or a warp's segment has no
 * room for another round. Whole CTA.
 */
template <template <int> class Row, int kWarps>
__device__ inline void make_room(Row<kWarps> &s, Segment &segment, Best &best, uint32_t topk,
                                 uint32_t seen) {
    constexpr uint32_t kFirst = kSampleOf<kWarps>;
    const bool sample = seen == kFirst && best.columns >= 4 * kFirst;
    if (__syncthreads_or(sample || segment.lacks_a_round())) {
        const uint32_t want = best.columns ? share_of(topk, seen, best.columns) : topk;
        best.count = segment.count();
        best.guessed |= want < topk;
        thin_row(s, best, sample, want, want + want / 4, topk);
        segment.restart(best.count);
    }
}

/* The pool's best topk, of more. Whole CTA, from a barrier to a barrier. */
template <template <int> class Row, int kWarps>
__device__ inline void thin_to(Row<kWarps> &s, Best &best, uint32_t topk) {
    thin_row(s, best, !__syncthreads_or(best.count > 32 * kFew), topk, topk, topk);
}

} // namespace hopper
} // namespace tamis

#endif
