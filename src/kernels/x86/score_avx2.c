/* SPDX-License-Identifier: MIT */
/*
 * score_avx2.c: exact scores of eight positions by integer arithmetic (spec 4.2, exact and bf16).
 *
 * K is decoded by table to doubled values + 12 (0..24, unsigned) and meets q (-12..12) in
 * vpmaddubsw; the bias is taken off by starting each sum at -12 * sum(q). A lane's sum over a group
 * stays within 4608 + 4608. Exponents that differ cost nothing in the bytes: a group's sum is
 * shifted when it becomes 32 bits wide, by vpmaddwd with 2^(span of q - depth of the head's group)
 * and a shift by K's. Spans of q (at most 14) and K together at most 16 keep the total below
 * 4 * 4608 * 2^16 < 2^31. Wider positions go one by one, through doubles (up to 38) or
 * format/dot.h.
 */
#include <math.h>

#include "format/dot.h"
#include "score_avx2.h"

enum {
    ROW_SPAN = 14,    /* 2^14 is the largest power of two in int16 */
    TOTAL_SPAN = 16,  /* 4 * 4608 << 16 < 2^31 */
    DOUBLE_SPAN = 38, /* 4 * 4608 << 38 < 2^53 */
    STEPS = 8         /* of four dims, in a group */
};

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Place of a head among a row's lanes. */
static inline int lane_of(int head) {
    return (head & ~7) + (head & 7) / 2 + (head & 1) * 4;
}

/* Byte of a decoded row where step s of group g starts; see decode(). */
static inline int step_offset(int g, int s) {
    return 64 * (g / 2) + 32 * (s / 4) + 16 * (g % 2) + 4 * (s % 4);
}

/*
 * Values of 32 code bytes by table: 32 low nibbles, then 32 high ones. That order of dims is the
 * order of every dot here; q and K are permuted alike and a group's 32 dims stay together.
 */
static inline void decode(const uint8_t *codes, __m256i table, void *out) {
    __m256i mask = _mm256_set1_epi8(15);
    __m256i x = _mm256_loadu_si256((const __m256i *)codes);
    __m256i low = _mm256_and_si256(x, mask);
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), mask);
    _mm256_store_si256((__m256i *)out, _mm256_shuffle_epi8(table, low));
    _mm256_store_si256((__m256i *)out + 1, _mm256_shuffle_epi8(table, high));
}

static inline void decode_row(const uint8_t *codes, int groups, __m256i table, uint8_t *out) {
    for (int half = 0; half < groups / 2; half++) {
        decode(codes + 32 * half, table, out + 64 * half);
    }
}

static inline __m256i signed_table(void) {
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
}

/* The same plus 12: unsigned, for vpmaddubsw. */
static inline __m256i biased_table(void) {
    return _mm256_add_epi8(signed_table(), _mm256_set1_epi8(12));
}

/* ---- a row ---------------------------------------------------------------------------------- */

/* Values of one head, dealt to its lane, and their biases. */
static void row_head_codes(const uint8_t *codes, int head, tamis_score_row *row) {
    _Alignas(32) int8_t values[TAMIS_MAX_HEAD_DIM];
    int lanes = row->registers * 8, lane = lane_of(head);
    decode_row(codes, row->groups, signed_table(), (uint8_t *)values);
    for (int g = 0; g < row->groups; g++) {
        int sum = 0;
        for (int s = 0; s < STEPS; s++) {
            const int8_t *four = values + step_offset(g, s);
            memcpy(row->q + ((g * STEPS + s) * lanes + lane) * 4, four, 4);
            sum += four[0] + four[1] + four[2] + four[3];
        }
        row->bias[(g * lanes + lane) * 2] = (int16_t)(-12 * sum);
    }
}

/* Exponents of one head; returns its largest scale byte. */
static int row_head_scales(const uint8_t *scales, int head, tamis_score_row *row) {
    int lane = lane_of(head), top = 0;
    for (int g = 0; g < row->groups; g++) {
        top = scales[g] > top ? scales[g] : top;
    }
    for (int g = 0; g < row->groups; g++) {
        int depth = top - scales[g];
        row->depth[g][lane] = (uint8_t)depth;
        row->span = depth > row->span ? depth : row->span;
    }
    row->nan |= top == TAMIS_SCALE_NAN;
    return top;
}

static void row_multipliers(tamis_score_row *row) {
    int lanes = row->registers * 8;
    for (int g = 0; g < row->groups; g++) {
        for (int lane = 0; lane < lanes; lane++) {
            int16_t scale = (int16_t)(1 << (row->span - row->depth[g][lane]));
            row->scale[(g * lanes + lane) * 2] = scale;
            row->scale[(g * lanes + lane) * 2 + 1] = scale;
        }
    }
}

void tamis_score_row_avx2(const tamis_query *query, int64_t r, int32_t numerics,
                          tamis_score_row *row) {
    int heads = query->heads;
    row->groups = query->head_dim / TAMIS_GROUP;
    row->fast = heads == 32 && query->head_dim == 128;
    row->registers = (heads + 15) / 16 * 2; /* an even number: the generic kernel takes pairs */
    row->round = numerics == TAMIS_NUMERICS_BF16;
    row->span = 0;
    row->nan = 0;
    int lanes = row->registers * 8;
    memset(row->q, 0, (size_t)(lanes * row->groups * TAMIS_GROUP));
    memset(row->bias, 0, (size_t)(row->groups * lanes) * 2 * sizeof row->bias[0]);
    memset(row->depth, 0, sizeof row->depth);
    for (int lane = 0; lane < lanes; lane++) {
        row->weight[lane] = -0.0f; /* fma(-0, +0, p) is p, whatever p's sign */
    }
    for (int h = 0; h < heads; h++) {
        const uint8_t *codes =
            query->codes + r * query->codes_row_stride + h * query->codes_head_stride;
        const uint8_t *scales =
            query->scales + r * query->scales_row_stride + h * query->scales_head_stride;
        float w = tamis_load_float(query->weights, query->weights_type,
                                   r * query->weights_row_stride + h);
        row_head_codes(codes, h, row);
        int top = row_head_scales(scales, h, row);
        row->nan |= tamis_is_nan(w);
        row->weight[lane_of(h)] =
            (row->round ? tamis_round_bf16(w) : w) * tamis_ue8m0((uint32_t)top);
    }
    if (row->span <= ROW_SPAN) {
        row_multipliers(row);
    }
}

/* ---- a tile --------------------------------------------------------------------------------- */

/* What a tile's scale bytes come to. */
typedef struct tile_scales {
    _Alignas(32) int32_t shift[TAMIS_MAX_GROUPS][TAMIS_TILE]; /* scale byte - the row's least */
    _Alignas(32) float factor[TAMIS_TILE];                    /* 2^-(all spans + 2) */
    __m256i top;                                              /* largest scale byte */
    int nan;                                                  /* bit per position */
    int wide;                                                 /* bit per position */
} tile_scales;

static inline __m256i load_scales(const tamis_score_tile *tile, int groups) {
    _Alignas(32) uint32_t words[TAMIS_TILE];
    for (int i = 0; i < TAMIS_TILE; i++) {
        uint16_t pair;
        if (groups == 4) {
            memcpy(&words[i], tile->scales[i], 4);
        } else {
            memcpy(&pair, tile->scales[i], 2);
            words[i] = pair * 0x10001u; /* two copies: the same largest and least */
        }
    }
    return _mm256_load_si256((const __m256i *)words);
}

static inline void read_scales(const tamis_score_tile *tile, int groups, int row_span,
                               tile_scales *out) {
    __m256i byte = _mm256_set1_epi32(255), x = load_scales(tile, groups);
    __m256i top = _mm256_max_epu8(x, _mm256_srli_epi32(x, 16));
    __m256i least = _mm256_min_epu8(x, _mm256_srli_epi32(x, 16));
    top = _mm256_and_si256(_mm256_max_epu8(top, _mm256_srli_epi32(top, 8)), byte);
    least = _mm256_and_si256(_mm256_min_epu8(least, _mm256_srli_epi32(least, 8)), byte);
    for (int g = 0; g < groups; g++) {
        __m256i scale = _mm256_and_si256(_mm256_srli_epi32(x, 8 * g), byte);
        _mm256_store_si256((__m256i *)out->shift[g], _mm256_sub_epi32(scale, least));
    }
    __m256i span = _mm256_sub_epi32(top, least);
    __m256i exponent = _mm256_sub_epi32(_mm256_set1_epi32(127 - 2 - row_span), span);
    _mm256_store_si256((__m256i *)out->factor, _mm256_slli_epi32(exponent, 23));
    out->top = top;
    out->nan = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(top, byte)));
    out->wide = _mm256_movemask_ps(
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(span, _mm256_set1_epi32(TOTAL_SPAN - row_span))));
}

/* 2^(byte - 127) of eight scale bytes below 255. */
static inline __m256 powers(__m256i byte) {
    __m256i zero = _mm256_cmpeq_epi32(byte, _mm256_setzero_si256());
    __m256i least = _mm256_and_si256(zero, _mm256_set1_epi32(0x00400000));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(byte, 23), least));
}

/*
 * Holds a value in a register at this point of the program. Left alone, gcc 12 makes all products
 * of a group first and spills them: 144 TSC cycles a position instead of 92 (32 x 128, Zen 4).
 */
static inline void keep(__m256i *value) {
    __asm__("" : "+x"(*value));
}

static inline __m256i broadcast4(const uint8_t *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return _mm256_set1_epi32(word);
}

/*
 * Exact scaled dots of two positions with `count` registers of heads from `first`, as integers in
 * units of 2^-(all spans + 2). Two positions share each load of q.
 */
static inline __attribute__((always_inline)) void
dot_pair(const tamis_score_row *row, const uint8_t *const k[2], const tile_scales *scales,
         const int at[2], int first, int count, int registers, int groups, __m256i sums[2][4]) {
    const __m256i *q = (const __m256i *)row->q + first;
    const __m256i *bias = (const __m256i *)row->bias + first;
    const __m256i *scale = (const __m256i *)row->scale + first;
    for (int g = 0; g < groups; g++) {
        const uint8_t *ka = k[0] + step_offset(g, 0), *kb = k[1] + step_offset(g, 0);
        __m256i low[2][4];
        UNROLL for (int r = 0; r < count; r++) {
            low[0][r] = low[1][r] = bias[g * registers + r];
        }
        UNROLL for (int s = 0; s < STEPS; s++) {
            __m256i a = broadcast4(ka + step_offset(0, s)), b = broadcast4(kb + step_offset(0, s));
            UNROLL for (int r = 0; r < count; r++) {
                __m256i x = q[(g * STEPS + s) * registers + r];
                keep(&x);
                low[0][r] = _mm256_add_epi16(low[0][r], _mm256_maddubs_epi16(a, x));
                low[1][r] = _mm256_add_epi16(low[1][r], _mm256_maddubs_epi16(b, x));
                keep(&low[0][r]);
                keep(&low[1][r]);
            }
        }
        UNROLL for (int i = 0; i < 2; i++) {
            __m256i shift = _mm256_set1_epi32(scales->shift[g][at[i]]);
            UNROLL for (int r = 0; r < count; r++) {
                __m256i sum = _mm256_madd_epi16(low[i][r], scale[g * registers + r]);
                sum = _mm256_sllv_epi32(sum, shift);
                sums[i][r] = _mm256_add_epi32(sums[i][r], sum);
            }
        }
    }
}

/* max(0, d') of eight heads. */
static inline __m256 positive(__m256i sum, float factor) {
    __m256i part = _mm256_max_epi32(sum, _mm256_setzero_si256());
    return _mm256_mul_ps(_mm256_cvtepi32_ps(part), _mm256_set1_ps(factor));
}

/*
 * The four chains of positions a (low half) and a + 4 (high half) after every head. `count`
 * registers of heads at a time; 32 x 128 passes constants only.
 */
static inline __attribute__((always_inline)) __m256
chain_pair(const tamis_score_row *row, const uint8_t *k, const tile_scales *scales, int a,
           int count, int registers, int groups) {
    const uint8_t *const rows[2] = {k + a * TAMIS_MAX_HEAD_DIM, k + (a + 4) * TAMIS_MAX_HEAD_DIM};
    const int at[2] = {a, a + 4};
    __m256 chains = _mm256_setzero_ps();
    for (int first = 0; first < registers; first += count) {
        __m256i sums[2][4] = {{_mm256_setzero_si256()}};
        dot_pair(row, rows, scales, at, first, count, registers, groups, sums);
        UNROLL for (int r = 0; r < count; r++) {
            const float *w = row->weight + (first + r) * 8;
            __m256 x = positive(sums[0][r], scales->factor[at[0]]);
            __m256 y = positive(sums[1][r], scales->factor[at[1]]);
            chains = _mm256_fmadd_ps(_mm256_broadcast_ps((const __m128 *)w),
                                     _mm256_permute2f128_ps(x, y, 0x20), chains);
            chains = _mm256_fmadd_ps(_mm256_broadcast_ps((const __m128 *)(w + 4)),
                                     _mm256_permute2f128_ps(x, y, 0x31), chains);
        }
    }
    return chains;
}

/* (p0 + p1) + (p2 + p3) of eight positions. */
static inline __attribute__((always_inline)) __m256 sum_tile(const tamis_score_row *row,
                                                             const tamis_score_tile *tile,
                                                             const tile_scales *scales, int count,
                                                             int registers, int groups) {
    _Alignas(32) uint8_t k[TAMIS_TILE * TAMIS_MAX_HEAD_DIM];
    __m256i table = biased_table();
    __m256 chains[4];
    for (int i = 0; i < TAMIS_TILE; i++) {
        decode_row(tile->codes[i], groups, table, k + i * TAMIS_MAX_HEAD_DIM);
    }
    for (int i = 0; i < 4; i++) {
        chains[i] = chain_pair(row, k, scales, i, count, registers, groups);
    }
    return _mm256_hadd_ps(_mm256_hadd_ps(chains[0], chains[1]),
                          _mm256_hadd_ps(chains[2], chains[3]));
}

static __attribute__((noinline)) __m256 sum_tile_32x128(const tamis_score_row *row,
                                                        const tamis_score_tile *tile,
                                                        const tile_scales *scales) {
    return sum_tile(row, tile, scales, 4, 4, 4);
}

static __attribute__((noinline)) __m256
sum_tile_any(const tamis_score_row *row, const tamis_score_tile *tile, const tile_scales *scales) {
    return sum_tile(row, tile, scales, 2, row->registers, row->groups);
}

/* ---- positions whose exponents lie too far apart --------------------------------------------- */

/* Integer dots of every head with each group of a decoded (biased) position, [group][lane]. */
static void group_dots(const tamis_score_row *row, const uint8_t *k, int32_t *dots) {
    const __m256i *q = (const __m256i *)row->q, *bias = (const __m256i *)row->bias;
    for (int g = 0; g < row->groups; g++) {
        for (int r = 0; r < row->registers; r++) {
            __m256i low = bias[g * row->registers + r];
            for (int s = 0; s < STEPS; s++) {
                __m256i x = q[(g * STEPS + s) * row->registers + r];
                low = _mm256_add_epi16(low,
                                       _mm256_maddubs_epi16(broadcast4(k + step_offset(g, s)), x));
            }
            _mm256_store_si256((__m256i *)dots + g * row->registers + r,
                               _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
        }
    }
}

/* The four chains of one position by doubles, exact while all spans together are DOUBLE_SPAN. */
static __m128 chains_double(const tamis_score_row *row, const int32_t *dots, const int32_t *depth) {
    __m128 p = _mm_setzero_ps();
    for (int lane = 0; lane < row->registers * 8; lane += 4) {
        __m256d sum = _mm256_setzero_pd();
        for (int g = 0; g < row->groups; g++) {
            __m256i exponent = _mm256_cvtepu8_epi64(_mm_loadu_si32(&row->depth[g][lane]));
            exponent = _mm256_sub_epi64(_mm256_set1_epi64x(1023 - 2 - depth[g]), exponent);
            __m256d power = _mm256_castsi256_pd(_mm256_slli_epi64(exponent, 52));
            const int32_t *four = dots + g * row->registers * 8 + lane;
            __m256d dot = _mm256_cvtepi32_pd(_mm_load_si128((const __m128i *)four));
            sum = _mm256_add_pd(sum, _mm256_mul_pd(dot, power));
        }
        __m128 d = _mm_max_ps(_mm256_cvtpd_ps(sum), _mm_setzero_ps());
        p = _mm_fmadd_ps(_mm_load_ps(row->weight + lane), d, p);
    }
    return p;
}

/* The same for any spans, every dot rounded by format/dot.h. */
static __m128 chains_any(const tamis_score_row *row, const int32_t *dots, const int32_t *depth) {
    _Alignas(16) float p[4] = {0, 0, 0, 0};
    int lanes = row->registers * 8;
    for (int lane = 0; lane < lanes; lane++) { /* lane % 4 is the chain, its links in order */
        int32_t integers[TAMIS_MAX_GROUPS], shifts[TAMIS_MAX_GROUPS];
        for (int g = 0; g < row->groups; g++) {
            integers[g] = dots[g * lanes + lane];
            shifts[g] = row->depth[g][lane] + depth[g];
        }
        float d = tamis_dot_round(integers, shifts, row->groups, 0);
        p[lane % 4] = fmaf(row->weight[lane], d > 0 ? d : 0.0f, p[lane % 4]);
    }
    return _mm_load_ps(p);
}

/* (p0 + p1) + (p2 + p3) of one position whose exponents lie too far apart for the tile. */
static float sum_wide(const tamis_score_row *row, const uint8_t *codes, const uint8_t *scales,
                      int top) {
    _Alignas(32) uint8_t k[TAMIS_MAX_HEAD_DIM];
    _Alignas(32) int32_t dots[TAMIS_MAX_GROUPS * TAMIS_MAX_HEADS];
    int32_t depth[TAMIS_MAX_GROUPS], span = 0;
    decode_row(codes, row->groups, biased_table(), k);
    group_dots(row, k, dots);
    for (int g = 0; g < row->groups; g++) {
        depth[g] = top - scales[g];
        span = depth[g] > span ? depth[g] : span;
    }
    __m128 p = row->span + span <= DOUBLE_SPAN ? chains_double(row, dots, depth)
                                               : chains_any(row, dots, depth);
    p = _mm_hadd_ps(p, p);
    return _mm_cvtss_f32(_mm_hadd_ps(p, p));
}

static __m256 replace_wide(const tamis_score_row *row, const tamis_score_tile *tile,
                           const tile_scales *scales, int wide, __m256 sums) {
    _Alignas(32) float sum[TAMIS_TILE];
    _Alignas(32) int32_t top[TAMIS_TILE];
    _mm256_store_ps(sum, sums);
    _mm256_store_si256((__m256i *)top, scales->top);
    for (; wide; wide &= wide - 1) {
        int i = __builtin_ctz((unsigned)wide);
        sum[i] = sum_wide(row, tile->codes[i], tile->scales[i], top[i]);
    }
    return _mm256_load_ps(sum);
}

/* ---- the score ------------------------------------------------------------------------------ */

__m256 tamis_score8_avx2(const tamis_score_row *row, const tamis_score_tile *tile) {
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)TAMIS_NAN_BITS));
    tile_scales scales;
    if (row->nan) {
        return nan;
    }
    int narrow_row = row->span <= ROW_SPAN;
    read_scales(tile, row->groups, narrow_row ? row->span : 0, &scales);
    int wide = (narrow_row ? scales.wide : (1 << TAMIS_TILE) - 1) & ~scales.nan;
    __m256 sums = _mm256_setzero_ps();
    if (narrow_row) {
        sums = row->fast ? sum_tile_32x128(row, tile, &scales) : sum_tile_any(row, tile, &scales);
    }
    if (wide) {
        sums = replace_wide(row, tile, &scales, wide, sums);
    }
    __m256 score = _mm256_mul_ps(sums, powers(scales.top));
    __m256 broken =
        _mm256_or_ps(_mm256_cmp_ps(score, score, _CMP_UNORD_Q),
                     _mm256_castsi256_ps(_mm256_cmpeq_epi32(scales.top, _mm256_set1_epi32(255))));
    score = _mm256_blendv_ps(score, nan, broken);
    return row->round ? tamis_score_round_bf16(score) : score;
}
