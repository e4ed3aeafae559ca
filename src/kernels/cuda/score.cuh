/* SPDX-License-Identifier: MIT */
/*
 * score.cuh: one query row against sixteen positions, by one warp, in exact arithmetic.
 *
 * mma.sync m16n8k32 on s8 multiplies one scale group (32 dims) of sixteen positions and eight
 * heads: its integer result is the group's dot. Groups are then added at their exponents' distance,
 * so any spans whose sum is at most 14 stay exact in int32; wider ones go through the fixed-point
 * sum of dot.h, the whole warp on one position. The accumulator gives lane 4 r + c the heads 8 t +
 * 2 c and 8 t + 2 c + 1 of position r: the links of chain c, in order.
 */
#ifndef TAMIS_CUDA_SCORE_CUH
#define TAMIS_CUDA_SCORE_CUH

#include "common.cuh"

namespace tamis {

constexpr int kTile = 16;    /* positions of a warp's tile */
constexpr int kMaxSpan = 14; /* 4 * 4608 << 14 < 2^31 */

/* Bytes of the doubled magnitudes of codes 0..3 and 4..7, and their negatives. */
constexpr uint32_t kLow = 0x03020100u, kHigh = 0x0C080604u;
constexpr uint32_t kNegLow = 0xFDFEFF00u, kNegHigh = 0xF4F8FAFCu;

/* Four codes (nibbles of the low half of x) as four signed bytes. */
__device__ inline uint32_t decode4(uint32_t x) {
    uint32_t magnitude = x & 0x7777u, sign = x >> 3 & 0x1111u;
    uint32_t mask = __byte_perm(0x0000FF00u, 0, sign);
    return (__byte_perm(kLow, kHigh, magnitude) & ~mask) |
           (__byte_perm(kNegLow, kNegHigh, magnitude) & mask);
}

__device__ inline void mma(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint32_t b0, uint32_t b1) {
    const int32_t zero = 0;
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(zero));
}

/* Largest byte of a word of scales, and each byte's distance to it. */
struct Scales {
    uint32_t largest, depth, span; /* depth: one byte a group */
    bool nan;
};

template <int GROUPS> __device__ inline Scales scales_of(uint32_t word) {
    Scales s;
    s.largest = 0;
    s.depth = 0;
    s.span = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        s.largest = max(s.largest, word >> (8 * g) & 255u);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        uint32_t depth = s.largest - (word >> (8 * g) & 255u);
        s.depth |= depth << (8 * g);
        s.span = max(s.span, depth);
    }
    s.nan = s.largest == TAMIS_SCALE_NAN;
    return s;
}

/* A query row spread over a warp. HEADS is a multiple of 8; missing heads have zero codes, weight
 * -0. */
template <int HEADS, int GROUPS> struct Query {
    static constexpr int kTiles = HEADS / 8;
    uint32_t code[kTiles][GROUPS][2]; /* of head 8 t + lane / 4 */
    uint32_t raise[kTiles][2];        /* span - depth of heads 8 t + 2 c, + 1: one byte a group */
    float weight[kTiles][2];          /* w' of the same heads */
    uint32_t span;                    /* the row's largest; above kMaxSpan nothing is fast */
    bool nan, round;
};

/* Where a query row lies: what the wide path reads, so that it holds no registers of the fast one.
 */
struct QueryRow {
    const uint8_t *codes, *scales;
    const void *weights;
};

__device__ inline QueryRow query_row(const tamis_query &view, int64_t r) {
    int64_t bytes = view.weights_type == TAMIS_BF16 ? 2 : 4;
    return {view.codes + r * view.codes_row_stride, view.scales + r * view.scales_row_stride,
            (const uint8_t *)view.weights + r * view.weights_row_stride * bytes};
}

/* The row's weight of head h, in the class's rounding. */
__device__ inline float weight_of(const tamis_query &q, const void *row, int h, bool round) {
    float w = tamis_load_float(row, q.weights_type, h);
    return round ? tamis_round_bf16(w) : w;
}

template <int HEADS, int GROUPS>
__device__ inline Query<HEADS, GROUPS> load_query(const tamis_query &view, int64_t r,
                                                  int32_t numerics) {
    Query<HEADS, GROUPS> q;
    int lane = threadIdx.x & 31;
    const QueryRow row = query_row(view, r);
    q.round = numerics == TAMIS_NUMERICS_BF16;
    uint32_t span = 0;
    bool nan = false;
    for (int h = lane; h < view.heads; h += 32) {
        Scales s = scales_of<GROUPS>(load_scales<GROUPS>(row.scales + h * view.scales_head_stride));
        span = max(span, s.span);
        nan |= s.nan || tamis_is_nan(weight_of(view, row.weights, h, false));
    }
    q.span = __reduce_max_sync(kAll, span);
    q.nan = __any_sync(kAll, nan);
#pragma unroll
    for (int t = 0; t < HEADS / 8; t++) {
        int h = 8 * t + lane / 4;
        const uint8_t *codes = row.codes + h * view.codes_head_stride + 4 * (lane & 3);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            uint32_t x = h < view.heads ? load32(codes + 16 * g) : 0;
            q.code[t][g][0] = decode4(x);
            q.code[t][g][1] = decode4(x >> 16);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int own = 8 * t + 2 * (lane & 3) + i;
            q.raise[t][i] = 0;
            q.weight[t][i] = -0.0f;
            if (own < view.heads) {
                uint32_t word = load_scales<GROUPS>(row.scales + own * view.scales_head_stride);
                Scales s = scales_of<GROUPS>(word);
#pragma unroll
                for (int g = 0; g < GROUPS; g++) {
                    uint32_t depth = s.depth >> (8 * g) & 255u;
                    q.raise[t][i] |= (min(q.span, (uint32_t)kMaxSpan + 1) - min(depth, 15u) & 15u)
                                     << (8 * g);
                }
                q.weight[t][i] =
                    __fmul_rn(weight_of(view, row.weights, own, q.round), tamis_ue8m0(s.largest));
            }
        }
    }
    return q;
}

/* One position by the whole warp: any spans. Returns the score before its NaN rule. */
template <int HEADS, int GROUPS>
__device__ __noinline__ float score_wide(const tamis_query &view, int64_t r, bool round,
                                         const uint8_t *codes, const uint8_t *scales) {
    constexpr int kEach = HEADS > 32 ? 2 : 1;
    const int lane = threadIdx.x & 31;
    const QueryRow row = query_row(view, r);
    float dot[kEach], weight[kEach];
    Scales k = scales_of<GROUPS>(load_scales<GROUPS>(scales));
#pragma unroll
    for (int e = 0; e < kEach; e++) {
        int h = lane + 32 * e;
        dot[e] = 0.0f;
        weight[e] = -0.0f;
        if (h >= view.heads) {
            continue;
        }
        const uint8_t *head = row.codes + h * view.codes_head_stride;
        Scales s = scales_of<GROUPS>(load_scales<GROUPS>(row.scales + h * view.scales_head_stride));
        int32_t integers[GROUPS], shifts[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
            int32_t sum = 0;
            for (int i = 16 * g; i < 16 * g + 16; i++) {
                uint32_t a = head[i], b = codes[i];
                sum += tamis_e2m1_doubled(a) * tamis_e2m1_doubled(b) +
                       tamis_e2m1_doubled(a >> 4) * tamis_e2m1_doubled(b >> 4);
            }
            integers[g] = sum;
            shifts[g] = (int32_t)((s.depth >> (8 * g) & 255u) + (k.depth >> (8 * g) & 255u));
        }
        dot[e] = tamis_dot_round(integers, shifts, GROUPS, 0);
        dot[e] = dot[e] > 0 ? dot[e] : 0.0f; /* +0, never -0 */
        weight[e] = __fmul_rn(weight_of(view, row.weights, h, round), tamis_ue8m0(s.largest));
    }
    float p[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float d = __shfl_sync(kAll, dot[h / 32], h % 32);
        float w = __shfl_sync(kAll, weight[h / 32], h % 32);
        p[h % 8 / 2] = __fmaf_rn(w, d, p[h % 8 / 2]);
    }
    return __fadd_rn(__fadd_rn(p[0], p[1]), __fadd_rn(p[2], p[3]));
}

/* A lane's two positions of a tile: 4 lanes share position lane / 4 and 8 + lane / 4. */
struct Keys {
    const uint8_t *codes[2], *scales[2]; /* NULL: no position */
};

template <int HEADS, int GROUPS>
__device__ inline void score_fast(const Query<HEADS, GROUPS> &q, const Keys &keys,
                                  const Scales (&k)[2], float (&sum)[2]) {
    int lane = threadIdx.x & 31;
    int32_t total[HEADS / 8][4];
#pragma unroll
    for (int t = 0; t < HEADS / 8; t++) {
        total[t][0] = total[t][1] = total[t][2] = total[t][3] = 0;
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        uint32_t x = keys.codes[0] ? load32(keys.codes[0] + 16 * g + 4 * (lane & 3)) : 0;
        uint32_t y = keys.codes[1] ? load32(keys.codes[1] + 16 * g + 4 * (lane & 3)) : 0;
        uint32_t a0 = decode4(x), a2 = decode4(x >> 16), a1 = decode4(y), a3 = decode4(y >> 16);
        int raise0 = (int)(k[0].span - (k[0].depth >> (8 * g) & 255u));
        int raise1 = (int)(k[1].span - (k[1].depth >> (8 * g) & 255u));
#pragma unroll
        for (int t = 0; t < HEADS / 8; t++) {
            int32_t dot[4];
            mma(dot, a0, a1, a2, a3, q.code[t][g][0], q.code[t][g][1]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int raise = (int)(q.raise[t][i] >> (8 * g) & 255u);
                /* A wide position's sum is not used: keep its shift in range. */
                total[t][i] += (int32_t)((uint32_t)dot[i] << (raise + raise0 & 31));
                total[t][2 + i] += (int32_t)((uint32_t)dot[2 + i] << (raise + raise1 & 31));
            }
        }
    }
    float unit0 = __uint_as_float((125u - min(q.span + k[0].span, 64u)) << 23);
    float unit1 = __uint_as_float((125u - min(q.span + k[1].span, 64u)) << 23);
    float p0 = 0.0f, p1 = 0.0f;
#pragma unroll
    for (int t = 0; t < HEADS / 8; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float d0 = __fmul_rn(__int2float_rn(max(total[t][i], 0)), unit0);
            float d1 = __fmul_rn(__int2float_rn(max(total[t][2 + i], 0)), unit1);
            p0 = __fmaf_rn(q.weight[t][i], d0, p0);
            p1 = __fmaf_rn(q.weight[t][i], d1, p1);
        }
    }
    p0 = __fadd_rn(p0, __shfl_xor_sync(kAll, p0, 1));
    p1 = __fadd_rn(p1, __shfl_xor_sync(kAll, p1, 1));
    sum[0] = __fadd_rn(p0, __shfl_xor_sync(kAll, p0, 2));
    sum[1] = __fadd_rn(p1, __shfl_xor_sync(kAll, p1, 2));
}

/* Scores of the lane's two positions: the bits of ref/. Called by whole warps. */
template <int HEADS, int GROUPS>
__device__ inline void score_tile(const Query<HEADS, GROUPS> &q, const tamis_query &view, int64_t r,
                                  const Keys &keys, float (&score)[2]) {
    int lane = threadIdx.x & 31;
    Scales k[2];
    bool wide[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        k[i] = scales_of<GROUPS>(keys.scales[i] ? load_scales<GROUPS>(keys.scales[i]) : 0);
        wide[i] = keys.scales[i] && !q.nan && !k[i].nan && q.span + k[i].span > kMaxSpan;
    }
    score_fast(q, keys, k, score);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned pending = __ballot_sync(kAll, wide[i]) & 0x11111111u;
        while (pending) {
            int from = __ffs((int)pending) - 1;
            pending &= pending - 1;
            auto codes =
                (const uint8_t *)__shfl_sync(kAll, (unsigned long long)keys.codes[i], from);
            auto scales =
                (const uint8_t *)__shfl_sync(kAll, (unsigned long long)keys.scales[i], from);
            float sum = score_wide<HEADS, GROUPS>(view, r, q.round, codes, scales);
            score[i] = lane / 4 == from / 4 ? sum : score[i];
        }
        score[i] = __fmul_rn(score[i], tamis_ue8m0(k[i].largest));
        score[i] = q.round ? tamis_round_bf16(score[i]) : score[i];
        if (q.nan || k[i].nan || tamis_is_nan(score[i])) {
            score[i] = __uint_as_float(TAMIS_NAN_BITS);
        }
    }
}

} // namespace tamis

#endif
