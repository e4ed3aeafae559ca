/* SPDX-License-Identifier: MIT */
/*
 * consume_row.cuh: a consumer's row by a CTA of warpgroups, around what scores its blocks: the
 * query as the B matrix of wgmma, and the best candidates as the row's selection. For rows of the
 * exact class whose spans are at most 3.
 */
#ifndef TAMIS_CUDA_CONSUME_ROW_CUH
#define TAMIS_CUDA_CONSUME_ROW_CUH

#include "candidates.cuh"
#include "kernels/cuda/consume_args.h"
#include "raised.cuh"
#include "wgmma.cuh"

namespace tamis {
namespace hopper {

constexpr int kTurn = 16; /* blocks of a turn: four a warp, in two products of two */
constexpr int kMaxColumns = kBlock * TAMIS_CONSUME_MAX_WIDTH;

static_assert(kMaxTopk == TAMIS_CONSUME_MAX_TOPK, "consume_args.h");

/* What a row takes of the CTA's dynamic shared memory, which has no other, at its beginning. */
template <int kWarps> struct alignas(16) RowShared {
    union {
        uint32_t codes[32][32]; /* as FastQuery's, in the 128-byte swizzle */
        struct {                /* once the row is scored: its columns as bits */
            uint32_t bits[kMaxColumns / 32];
            uint16_t before[kMaxColumns / 32];
        } marks;
    };
    RowPool<kWarps> pool;
    float weights[4][8]; /* of chain c: heads 2 c, 2 c + 1, 8 + 2 c, .. */
    alignas(16) uint32_t sums[2][kWarps];
};

/* Heads 8 t .. 8 t + 7 of row r. Whether they are fast, to the lane. Whole warp. */
template <int kWarps>
__device__ inline bool load_heads(RowShared<kWarps> &s, const tamis_query &view, int64_t r, int t) {
    const int lane = threadIdx.x & 31, c = lane & 3;
    const QueryRow row = query_row(view, r);
    const int h = 8 * t + lane / 4;
    const Scales k = scales_of<4>(load32(row.scales + h * view.scales_head_stride));
    const uint32_t raise = kFastSpan - min(k.depth >> (8 * c) & 255u, (uint32_t)kFastSpan);
    bool fast = k.span <= kFastSpan && !k.nan;
    const uint4 x = __ldg((const uint4 *)(row.codes + h * view.codes_head_stride) + c);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        s.codes[h][4 * (j ^ (h & 7)) + c] =
            decode4_signed(kLow << raise, kHigh << raise, words[j / 2] >> (16 * (j % 2)));
    }
    if (lane < 8) {
        const int own = 8 * t + lane;
        const Scales o = scales_of<4>(load32(row.scales + own * view.scales_head_stride));
        const float w = __fmul_rn(weight_of(view, row.weights, own, false), tamis_ue8m0(o.largest));
        const float weight = __fmul_rn(w, kWeightUnit);
        fast &= __fmul_rn(weight, 1.0f / kWeightUnit) == w; /* false for NaN */
        s.weights[lane / 2][2 * t + (lane & 1)] = weight;
    }
    return fast;
}

/* Row r, by the first warpgroup; whether it is fast. Whole CTA; leaves at a barrier. */
template <int kWarps>
__device__ inline bool load_row_query(RowShared<kWarps> &s, const tamis_query &view, int64_t r) {
    const int warp = threadIdx.x / 32;
    const bool fast = (kWarps > kGroupWarps && warp >= kGroupWarps) || load_heads(s, view, r, warp);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    return __syncthreads_and(fast);
}

/* The pool's columns as bits, and how many lie before each word. Whole CTA; leaves at a barrier. */
template <int kWarps>
__device__ inline void mark_columns(RowShared<kWarps> &s, uint32_t count, int32_t blocks) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const uint32_t words = (uint32_t)(blocks + 3) / 4;
    for (uint32_t i = threadIdx.x; i < words; i += 32 * kWarps) {
        s.marks.bits[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = lane; i < count; i += 32) {
        const uint32_t column = s.pool.items[warp][i].y;
        atomicOr(&s.marks.bits[column / 32], 1u << column % 32);
    }
    __syncthreads();
    const uint32_t each = (words + 32 * kWarps - 1) / (32 * kWarps); /* of a thread, in a row */
    const uint32_t first = each * threadIdx.x, end = min(first + each, words);
    uint32_t own = 0;
    for (uint32_t i = first; i < end; i++) {
        own += (uint32_t)__popc(s.marks.bits[i]);
    }
    uint32_t sum = sum_to_lane<uint32_t>(own);
    if (lane == 31) {
        s.sums[0][warp] = sum;
    }
    __syncthreads();
    uint32_t before = sum - own;
    for (uint32_t w = 0; w < warp; w++) {
        before += s.sums[0][w];
    }
    for (uint32_t i = first; i < end; i++) {
        s.marks.before[i] = (uint16_t)before;
        before += (uint32_t)__popc(s.marks.bits[i]);
    }
    __syncthreads();
}

/* Row r: its pool, of `all` columns, ascending. Whole CTA; from a barrier. */
template <int kWarps>
__device__ inline void write_row(RowShared<kWarps> &s, uint32_t count, uint32_t all,
                                 const tamis_selection &out, int64_t r, const Listed &list,
                                 int32_t page_size) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    if (all > 0) {
        mark_columns(s, count, list.count);
    }
    for (uint32_t i = lane; i < count; i += 32) {
        const uint2 item = s.pool.items[warp][i];
        const uint32_t word = item.y / 32, lower = (1u << item.y % 32) - 1;
        const uint32_t rank = s.marks.before[word] + (uint32_t)__popc(s.marks.bits[word] & lower);
        const int64_t j = (int64_t)list.blocks[item.y / kBlock] * kBlock + item.y % kBlock;
        write_entry(out, r, rank, j, out.slots ? tamis_slot_of(list.pages, page_size, j) : 0,
                    tamis_canonical(__uint_as_float(item.x)));
    }
    for (int64_t i = all + threadIdx.x; i < out.topk; i += 32 * kWarps) {
        write_entry(out, r, i, -1, -1, -INFINITY);
    }
    if (out.counts && threadIdx.x == 0) {
        out.counts[r] = (int32_t)all;
    }
}

/* Positions that a row's list names. Whole CTA; leaves at a barrier. */
template <int kWarps>
__device__ inline uint32_t listed_positions(RowShared<kWarps> &s, const Listed &list) {
    uint32_t seen = 0;
    for (int32_t i = threadIdx.x; i < list.count; i += 32 * kWarps) {
        const int32_t id = listed_id(list, i);
        seen += id < 0 ? 0 : (uint32_t)min(kBlock, list.length - id * kBlock);
    }
    return sum_of_cta(s.sums, seen, 1);
}

/*
 * Row r from its blocks to what it selects; whether it is done. score(best): the scores of its
 * blocks into the pool; whether the thread met a position that it cannot score. Whole CTA.
 */
template <int kWarps, class Score>
__device__ inline bool consume_row(RowShared<kWarps> &s, const tamis_sparse_mqa_logits_args &a,
                                   const tamis_selection &out, const Listed &list, int64_t r,
                                   Score score) {
    const uint32_t topk = (uint32_t)out.topk;
    Best best = {};
    uint32_t all = 0;
    if (list.count > 0) { /* else it may have no query */
        if ((uint32_t)__cvta_generic_to_shared(&s) != kSharedBase ||
            !load_row_query(s, a.query, r)) {
            return false;
        }
        uint32_t columns = (uint32_t)list.count * kBlock;
        do {
            best = {0, -INFINITY, columns, false};
            columns = 0; /* the second time */
            if (__syncthreads_or(score(best))) {
                return false;
            }
            all = sum_of_cta(s.sums, (threadIdx.x & 31) == 0 ? best.count : 0, 0);
        } while (all < topk && best.guessed);
        if (all > topk) {
            thin_to(s, best, topk);
            all = topk;
        } else if (all < topk && listed_positions(s, list) != all) {
            return false; /* some NaN is selected */
        }
    }
    write_row(s, best.count, all, out, r, list, a.k.page_size);
    return true;
}

} // namespace hopper
} // namespace tamis

#endif
