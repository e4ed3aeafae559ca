/* SPDX-License-Identifier: MIT */
/*
 * score_fast.cuh: one query row of 32 heads x 128 against four blocks of 8 positions at a time, by
 * one warp: the bits of score.cuh for rows and positions whose four exponents span at most 3.
 *
 * Codes become bytes already raised by 3 - depth of their group, so one chain of mma.sync adds all
 * four groups: K as unsigned bytes around 96, q signed. PRMT looks a code up with its sign bit: a
 * set one replicates the sign of the byte found, which is 0. So twice that, and 96 less the
 * magnitude, is the byte, by one IMAD, off the pipe that is busiest. The order of dims inside a dot
 * is free: lane 4 r + c takes the 16 bytes of group c, which are one load and one raise.
 *
 * The accumulator starts as the float 6, whose unit is 2^-21: 6 + dot then is its bits' float, and
 * one saturating add takes away 6 and the bias of 96 and clamps below at 0, exactly (|dot| <
 * 2^20.2). What was scaled is put back into the weights where that is exact; rows where it is not,
 * wide rows, and steps with a wide position go through score_tile.
 */
#ifndef TAMIS_CUDA_SCORE_FAST_CUH
#define TAMIS_CUDA_SCORE_FAST_CUH

#include "listed.cuh"
#include "score.cuh"

namespace tamis {

/* Blocks of a warp's step: lane 4 r + c ends with position r of block c. */
constexpr int kStepBlocks = 4;
constexpr int kMaxSteps = 8; /* of a group: 32 blocks, one a lane */
constexpr int kFastSpan = 3; /* 12 << 3 fits a signed byte */
constexpr uint32_t kBias = 0x60606060u;
constexpr uint32_t kSix = 0x40C00000u; /* 6.0f: the accumulator's zero */
constexpr float kUnit = 8192.0f;       /* 2^21 of the accumulator / 2^8 of doubled, raised codes */

/* Hides where p comes from, so that it stays one register pair. */
template <class T> __device__ inline T *opaque(T *p) {
    asm("" : "+l"(p));
    return p;
}

/* Volatile, so that a load stays where it was put: ahead of a multiplication that takes long. */
__device__ inline uint32_t load_word(const void *p) {
    uint32_t x;
    asm volatile("ld.global.nc.b32 %0,[%1];" : "=r"(x) : "l"(p));
    return x;
}

__device__ inline uint4 load_chunk(const void *p) {
    uint4 x;
    asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3},[%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
}

__device__ inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t d;
    asm("prmt.b32 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

/* Magnitudes raised, and 96 less them. */
struct Table {
    uint32_t low, high, less_low, less_high;
};

__device__ inline Table table_of(uint32_t factor) {
    Table t;
    t.low = kLow * factor;
    t.high = kHigh * factor;
    t.less_low = kBias + (0u - kLow) * factor;
    t.less_high = kBias + (0u - kHigh) * factor;
    return t;
}

/* Four codes of the low half of x as bytes of 96 + raised value: twice the positive part and 96
 * less the magnitude. bare = x & 0x7777. */
__device__ inline uint32_t decode4_biased(const Table &t, uint32_t x, uint32_t bare) {
    return 2 * prmt(t.low, t.high, x) + prmt(t.less_low, t.less_high, bare);
}

/* Four codes of the low half of x as signed bytes: around 128 first, then around 0. low, high: the
 * raised magnitudes. */
__device__ inline uint32_t decode4_signed(uint32_t low, uint32_t high, uint32_t x) {
    const uint32_t code = prmt(low, high, x) + 0x80808080u - prmt(low, high, x ^ 0x8888u);
    return code ^ 0x80808080u;
}

__device__ inline void mma_add(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_start(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                 uint32_t start) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}

/* max(0, x + y) for sums below 1. */
__device__ inline float add_clamped(float x, float y) {
    float d;
    asm("add.rn.sat.f32 %0,%1,%2;" : "=f"(d) : "f"(x), "f"(y));
    return d;
}

/* Of heads 8 t + 2 c and the next, in shared memory: w' * kUnit, and what to add for the bare dot:
 * -6 and the bias. */
struct alignas(16) FastHeads {
    float weight0, less0, weight1, less1;
};

/*
 * A query row in shared memory. codes: 128 raised bytes a head, in the order of the A fragments
 * (word j of group c: its low half at 32 j + 4 c, its high half 16 on), 16 bytes swizzled by head %
 * 8, so that lanes lie in different banks.
 */
struct alignas(16) FastQuery {
    uint32_t codes[32][32];
    FastHeads heads[16];
};

/* Word 2 j + half of the lane's group, of head 8 t + lane / 4. */
__device__ inline uint32_t &query_word(FastQuery &q, int t, int j) {
    const int lane = threadIdx.x & 31, r = lane / 4;
    return q.codes[8 * t + r][4 * (j ^ r) + (lane & 3)];
}

/* What a thread of kThreads loads of the row: words of eight codes, 16 a head, one after another
 * over the threads; their heads' scales; w' of a head for its first word. */
template <int kThreads> struct QueryBits {
    static constexpr int kWords = 32 * 16 / kThreads;
    uint32_t codes[kWords], scales[kWords], weight[kWords]; /* as they lie: none is waited for */
    int32_t weights_type, numerics;

    __device__ const QueryBits &words() const { /* as decode.cu's query has, which waits here */
        return *this;
    }
};

/* A weight from its bits. */
__device__ inline float weight_of_bits(uint32_t bits, int32_t type, int32_t numerics) {
    const float w = __uint_as_float(type == TAMIS_BF16 ? bits << 16 : bits);
    return numerics == TAMIS_NUMERICS_BF16 ? tamis_round_bf16(w) : w;
}

template <int kThreads>
__device__ inline QueryBits<kThreads> load_query_bits(const tamis_query &view, int64_t r,
                                                      int32_t numerics) {
    const int i = threadIdx.x % 16;
    const QueryRow row = query_row(view, r);
    QueryBits<kThreads> bits;
    bits.weights_type = view.weights_type;
    bits.numerics = numerics;
#pragma unroll
    for (int k = 0; k < QueryBits<kThreads>::kWords; k++) {
        const int h = (k * kThreads + (int)threadIdx.x) / 16;
        bits.codes[k] = __ldg((const uint32_t *)(row.codes + h * view.codes_head_stride) + i);
        bits.scales[k] = load32(row.scales + h * view.scales_head_stride);
        bits.weight[k] = 0;
        if (i == 0) {
            bits.weight[k] = view.weights_type == TAMIS_BF16
                                 ? __ldg((const uint16_t *)row.weights + h)
                                 : __ldg((const uint32_t *)row.weights + h);
        }
    }
    return bits;
}

/* Whole CTA. Whether the row is fast; else nothing of q may be used. Leaves at a barrier, before
 * which it calls `before`. */
template <int kThreads, class Before>
__device__ inline bool store_fast_query(FastQuery &q, const QueryBits<kThreads> &bits,
                                        Before before) {
    const int i = threadIdx.x % 16, c = i / 4;
    bool fast = true;
#pragma unroll
    for (int k = 0; k < QueryBits<kThreads>::kWords; k++) {
        const int h = (k * kThreads + (int)threadIdx.x) / 16;
        const Scales s = scales_of<4>(bits.scales[k]);
        const uint32_t raise = kFastSpan - min(s.depth >> (8 * c) & 255u, (uint32_t)kFastSpan);
        const float w = __fmul_rn(weight_of_bits(bits.weight[k], bits.weights_type, bits.numerics),
                                  tamis_ue8m0(s.largest));
        const float weight = __fmul_rn(w, kUnit);
        int32_t bias = 0;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t code =
                decode4_signed(kLow << raise, kHigh << raise, bits.codes[k] >> (16 * e));
            q.codes[h][4 * ((2 * (i % 4) + e) ^ (h & 7)) + c] = code;
            bias = __dp4a((int32_t)code, (int32_t)kBias, bias);
        }
#pragma unroll
        for (int d = 1; d < 16; d *= 2) {
            bias += __shfl_xor_sync(kAll, bias, d);
        }
        fast &=
            s.span <= kFastSpan && !s.nan && __fmul_rn(weight, 1.0f / kUnit) == w; /* NaN: not */
        if (i == 0) {
            float2 *to = (float2 *)&q.heads[h / 2] + h % 2;
            *to = make_float2(weight, -__uint_as_float(kSix + (uint32_t)bias));
        }
    }
    before();
    return __syncthreads_and(fast);
}

template <int kThreads>
__device__ inline bool store_fast_query(FastQuery &q, const QueryBits<kThreads> &bits) {
    return store_fast_query(q, bits, [] {});
}

/* The A fragments of sixteen positions: a lane's 16 bytes of positions r and 8 + r. */
struct Tile {
    uint32_t a[4][4];
};

__device__ inline Tile decode_tile(uint4 x, uint4 y, uint32_t factor_x, uint32_t factor_y) {
    const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
    const Table tx = table_of(factor_x), ty = table_of(factor_y);
    Tile tile;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t bx = xs[j] & 0x77777777u, by = ys[j] & 0x77777777u;
        tile.a[j][0] = decode4_biased(tx, xs[j], bx);
        tile.a[j][1] = decode4_biased(ty, ys[j], by);
        tile.a[j][2] = decode4_biased(tx, xs[j] >> 16, bx >> 16);
        tile.a[j][3] = decode4_biased(ty, ys[j] >> 16, by >> 16);
    }
    return tile;
}

/* The row as B fragments, in registers as long as the row lasts. */
struct Multiplier {
    uint32_t code[4][8];

    __device__ explicit Multiplier(FastQuery &q) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            code[i / 8][i % 8] = query_word(q, i / 8, i % 8);
        }
    }
    /* total[t]: 6 + dot + bias of heads 8 t + 2 c, + 1 at the lane's first and second position. */
    __device__ void multiply(const Tile &tile, uint32_t (&total)[4][4]) const {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t(&a)[4] = tile.a[j];
#pragma unroll
            for (int t = 0; t < 4; t++) {
                if (j == 0) {
                    mma_start(total[t], a, code[t][0], code[t][1], kSix);
                } else {
                    mma_add(total[t], a, code[t][2 * j], code[t][2 * j + 1]);
                }
            }
        }
    }
};

/* The lane's chain of both positions. */
__device__ inline void weigh(const FastHeads (&heads)[16], const uint32_t (&total)[4][4],
                             float &sum_x, float &sum_y) {
    sum_x = sum_y = 0.0f;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const float4 h = *(const float4 *)&heads[4 * t + (threadIdx.x & 3)];
        sum_x = __fmaf_rn(h.x, add_clamped(__uint_as_float(total[t][0]), h.y), sum_x);
        sum_y = __fmaf_rn(h.x, add_clamped(__uint_as_float(total[t][2]), h.y), sum_y);
        sum_x = __fmaf_rn(h.z, add_clamped(__uint_as_float(total[t][1]), h.w), sum_x);
        sum_y = __fmaf_rn(h.z, add_clamped(__uint_as_float(total[t][3]), h.w), sum_y);
    }
}

/* Chains of four positions, one a lane of each quad, added: lane c ends with position c's sum. */
__device__ inline float add_chains(const float (&p)[4]) {
    const int lane = threadIdx.x & 31;
    const bool odd = lane & 1, upper = lane & 2;
    float a = __fadd_rn(odd ? p[1] : p[0], __shfl_xor_sync(kAll, odd ? p[0] : p[1], 1));
    float b = __fadd_rn(odd ? p[3] : p[2], __shfl_xor_sync(kAll, odd ? p[2] : p[3], 1));
    return __fadd_rn(upper ? b : a, __shfl_xor_sync(kAll, upper ? a : b, 2));
}

/* A lane's own position: its scales as the fast path wants them. */
struct FastScales {
    uint32_t largest, factors; /* factors: 1 << raise of each group, one byte each */
    bool wide;
};

__device__ inline FastScales fast_scales(uint32_t word) {
    FastScales s;
    uint32_t pair = __vmaxu2(word & 0x00FF00FFu, word >> 8 & 0x00FF00FFu);
    s.largest = max(pair & 0xFFFFu, pair >> 16);
    uint32_t depth = s.largest * 0x01010101u - word;
    s.wide = (depth & 0xFCFCFCFCu) != 0 && s.largest != TAMIS_SCALE_NAN;
    s.factors = prmt(0x01020408u, 0, prmt(depth | depth >> 4, 0, 0x4420));
    return s;
}

/* 1 << raise of the lane's group at block b of the step. */
__device__ inline uint32_t own_factor(const FastScales &own, int b) {
    const int lane = threadIdx.x & 31;
    return prmt(__shfl_sync(kAll, own.factors, (lane & ~3) + b), 0, 0x4440u | (uint32_t)(lane & 3));
}

/* Where a block lies, in units of 16 bytes. */
struct Place {
    uint32_t codes, scales;
    int32_t visible; /* positions; 0: no block, and the places are any that can be read */
};

__device__ inline int32_t listed_id(const Listed &list, int32_t i) {
    int32_t id = i < list.count ? __ldg(list.blocks + i) : -1;
    return (uint32_t)id <= (uint32_t)(list.length - 1) / kBlock ? id : -1; /* length > 0 */
}

/* The block's place in memory, or (no `physical`) its page. */
__device__ inline uint32_t listed_where(const Listed &list, int32_t i, int32_t id) {
    if (id < 0) {
        return 0;
    }
    return (uint32_t)__ldg(list.physical ? list.physical + i
                                         : list.pages + ((uint32_t)id >> list.page_shift));
}

__device__ inline Place place_of(const tamis_k_cache &k, const Listed &list, int32_t id,
                                 uint32_t where) {
    uint32_t page = list.physical ? where >> list.page_shift : where;
    uint32_t block = (list.physical ? where : (uint32_t)id) & ((1u << list.page_shift) - 1);
    uint32_t base = page * (uint32_t)(k.stride / 16);
    Place p;
    p.visible = id < 0 ? 0 : min(kBlock, list.length - id * kBlock);
    p.codes = id < 0 ? 0 : base + block * 32;
    p.scales = id < 0 ? 0 : base + (32u << list.page_shift) + block * 2;
    return p;
}

/* The 16 bytes of the lane in block i of those that lanes placed. */
__device__ inline uint4 load_codes(const uint8_t *base, const Place &p, int i) {
    const uint8_t *own = base + (threadIdx.x & 31) * 16;
    return __ldg((const uint4 *)(own + (uint64_t)__shfl_sync(kAll, p.codes, i) * 16));
}

/* The scales of the lane's own position: block i + lane % 4, position lane / 4. */
__device__ inline uint32_t load_own_scales(const uint8_t *base, const Place &p, int i) {
    const int lane = threadIdx.x & 31;
    const uint8_t *own = base + lane / 4 * 4;
    uint32_t at = __shfl_sync(kAll, p.scales, i + (lane & 3));
    return __ldg((const uint32_t *)(own + (uint64_t)at * 16));
}

__device__ inline bool own_is_live(const Place &p, int i) {
    const int lane = threadIdx.x & 31;
    return lane / 4 < __shfl_sync(kAll, p.visible, i + (lane & 3));
}

/* The steps that the fast path leaves: all (a wide row), or those with a wide position. */
template <class Sink>
__device__ inline void score_left(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                  int64_t r, int first, int stride, int steps, bool all,
                                  Sink sink) {
    const int lane = threadIdx.x & 31, each = kStepBlocks * steps;
    auto q = load_query<32, 4>(a.query, r, a.numerics);
#pragma unroll 1
    for (int32_t at = first * each; at < list.count; at += stride * each) {
        int32_t id = listed_id(list, at + lane);
        const Place place = place_of(a.k, list, id, listed_where(list, at + lane, id));
#pragma unroll 1
        for (int i = 0; i < each && at + i < list.count; i += kStepBlocks) {
            bool live = own_is_live(place, i);
            FastScales own = fast_scales(load_own_scales(a.k.codes, place, i));
            if (!all && !__any_sync(kAll, live && own.wide)) {
                continue;
            }
#pragma unroll 1
            for (int pair = i; pair < i + kStepBlocks; pair += 2) {
                Keys keys;
                float score[2];
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    uint32_t codes = __shfl_sync(kAll, place.codes, pair + b);
                    uint32_t scales = __shfl_sync(kAll, place.scales, pair + b);
                    bool seen = lane / 4 < __shfl_sync(kAll, place.visible, pair + b);
                    keys.codes[b] =
                        seen ? a.k.codes + (uint64_t)codes * 16 + lane / 4 * 64 : nullptr;
                    keys.scales[b] =
                        seen ? a.k.codes + (uint64_t)scales * 16 + lane / 4 * 4 : nullptr;
                }
                score_tile(q, a.query, r, keys, score);
                if ((lane & 2) == pair - i) { /* the lanes that own the pair */
                    sink((at + i + (lane & 3)) * kBlock + lane / 4, live,
                         lane & 1 ? score[1] : score[0]);
                }
            }
        }
    }
}

/* A position's score from the sum of its chains and its largest scale. */
__device__ inline float finish_score(float sum, uint32_t largest, int32_t numerics) {
    float score = __fmul_rn(sum, tamis_ue8m0(largest));
    score = numerics == TAMIS_NUMERICS_BF16 ? tamis_round_bf16(score) : score;
    if (largest == TAMIS_SCALE_NAN || tamis_is_nan(score)) {
        score = __uint_as_float(TAMIS_NAN_BITS);
    }
    return score;
}

/*
 * Scores of the blocks of groups first, first + stride, ..: a group is 4 * steps blocks, steps at
 * most kMaxSteps. sink(column, live, score) for the lane's column of every step; rest(all) where a
 * warp leaves steps to score_left. Whole CTA, one row.
 */
template <class Bits, class Sink, class Rest>
__device__ inline void score_listed(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                    int64_t r, int first, int stride, int steps, FastQuery &query,
                                    const Bits &bits, int32_t id, uint32_t where, Sink sink,
                                    Rest rest) {
    const int lane = threadIdx.x & 31, c = lane & 3, each = kStepBlocks * steps;
    const uint8_t *const base = a.k.codes;
    int32_t at = first * each;
    const int32_t hop = stride * each;
    /* Ids run two groups ahead, places one; K is loaded again as soon as it was used. */
    Place now = place_of(a.k, list, id, where);
    id = listed_id(list, at + hop + lane);
    uint4 x = load_codes(base, now, 0), y = load_codes(base, now, 1);
    FastScales own = fast_scales(load_own_scales(base, now, 0));
    bool live = own_is_live(now, 0);
    const bool fast = store_fast_query(query, bits.words());
    const Multiplier multiplier(query);
    bool left = !fast;
    /* Tiles are decoded while the one before is multiplied. */
    Tile tile = decode_tile(x, y, own_factor(own, 0), own_factor(own, 1));
    x = load_codes(base, now, 2);
    y = load_codes(base, now, 3);
    for (; at < list.count && fast; at += hop) {
        uint32_t where = listed_where(list, at + hop + lane, id);
        int32_t id_after = listed_id(list, at + 2 * hop + lane);
#pragma unroll 1
        for (int i = 0; i < each && at + i < list.count; i += kStepBlocks) {
            float p[4];
            uint32_t total[4][4];
            int ahead = i + kStepBlocks;
            if (ahead == each) {
                now = place_of(a.k, list, id, where);
                ahead = 0;
            }
            multiplier.multiply(tile, total);
            tile = decode_tile(x, y, own_factor(own, 2), own_factor(own, 3));
            x = load_codes(base, now, ahead);
            y = load_codes(base, now, ahead + 1);
            const uint32_t scales = load_own_scales(base, now, ahead);
            weigh(query.heads, total, p[0], p[1]);
            const FastScales next = fast_scales(scales);
            const bool next_live = own_is_live(now, ahead);
            multiplier.multiply(tile, total);
            tile = decode_tile(x, y, own_factor(next, 0), own_factor(next, 1));
            x = load_codes(base, now, ahead + 2);
            y = load_codes(base, now, ahead + 3);
            weigh(query.heads, total, p[2], p[3]);
            const float score = finish_score(add_chains(p), own.largest, a.numerics);
            bool wide = __any_sync(kAll, live && own.wide);
            left |= wide;
            if (!wide) {
                sink((at + i + c) * kBlock + lane / 4, live, score);
            }
            own = next;
            live = next_live;
        }
        id = id_after;
    }
    if (left) {
        rest(!fast);
    }
}

/* The same, its first loads one after another. */
template <int kThreads, class Sink>
__device__ inline void score_listed(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                    int64_t r, int first, int stride, int steps, FastQuery &query,
                                    Sink sink) {
    const int32_t at = first * kStepBlocks * steps + (threadIdx.x & 31);
    const int32_t id = listed_id(list, at);
    const uint32_t where = listed_where(list, at, id);
    score_listed(a, list, r, first, stride, steps, query,
                 load_query_bits<kThreads>(a.query, r, a.numerics), id, where, sink,
                 [&](bool all) { score_left(a, list, r, first, stride, steps, all, sink); });
}

} // namespace tamis

#endif
