/* SPDX-License-Identifier: MIT */
/*
 * select_avx2.c: exact selection by radix: three histograms over the bits of order-preserving keys
 * find the last key that is in and how many equal to it are; one more pass writes the indices.
 *
 * Four passes over the scores and 32 KiB of stack, for any scores: keys are made anew in each pass,
 * which costs less than storing them. Neighbouring scores count in four histograms by turns, so
 * that equal scores do not wait for each other's increments.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels/order.h"
#include "select_avx2.h"

enum { LANES = 8, TURNS = 4, DIGITS = 2048 };

typedef struct score_array {
    const void *scores;
    int32_t type;
    int64_t n;
} score_array;

/* Keys of order.h of eight scores. */
static inline __m256i keys_of(__m256 x) {
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i bits = _mm256_castps_si256(_mm256_add_ps(x, _mm256_setzero_ps())); /* -0 becomes +0 */
    __m256i flip = _mm256_or_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(INT32_MIN));
    return _mm256_andnot_si256(nan, _mm256_xor_si256(bits, flip));
}

static inline __m256 load8(const void *scores, int32_t type, int64_t i) {
    if (type == TAMIS_F32) {
        return _mm256_loadu_ps((const float *)scores + i);
    }
    __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)scores + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Keys of scores i .. i + 7; *valid has a bit for each that is not past the end. */
static inline __attribute__((always_inline)) __m256i load_keys(const score_array *a, int64_t i,
                                                               unsigned *valid) {
    int64_t left = a->n - i;
    *valid = 0xFF;
    if (left >= LANES) {
        return keys_of(load8(a->scores, a->type, i));
    }
    float part[LANES] = {0};
    for (int64_t j = 0; j < left; j++) {
        part[j] = tamis_load_float(a->scores, a->type, i + j);
    }
    *valid = (1u << left) - 1;
    return keys_of(_mm256_loadu_ps(part));
}

/* Counts the digit (key >> shift) % 2^bits of the keys whose bits above it are `prefix`. */
static inline __attribute__((always_inline)) void count_digits(const score_array *a,
                                                               uint32_t prefix, int shift, int bits,
                                                               uint32_t counts[TURNS][DIGITS]) {
    __m128i drop = _mm_cvtsi32_si128(shift + bits), move = _mm_cvtsi32_si128(shift);
    __m256i wanted = _mm256_set1_epi32((int32_t)prefix);
    __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
    for (int64_t i = 0; i < a->n; i += LANES) {
        _Alignas(32) uint32_t digit[LANES];
        unsigned in;
        __m256i keys = load_keys(a, i, &in);
        __m256i match = _mm256_cmpeq_epi32(_mm256_srl_epi32(keys, drop), wanted);
        __m256i digits = _mm256_and_si256(_mm256_srl_epi32(keys, move), mask);
        in &= (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(match));
        _mm256_store_si256((__m256i *)digit, digits);
        if (in == 0xFF) {
            for (int j = 0; j < LANES; j++) {
                counts[j % TURNS][digit[j]]++;
            }
            continue;
        }
        for (; in; in &= in - 1) {
            int j = __builtin_ctz(in);
            counts[j % TURNS][digit[j]]++;
        }
    }
}

/* The digit of the *want-th best key; *want becomes its rank among the keys with that digit. */
static uint32_t find_digit(uint32_t counts[TURNS][DIGITS], int bits, int64_t *want) {
    uint32_t digit = 1u << bits;
    for (uint32_t d = 0; d < digit; d++) {
        counts[0][d] += counts[1][d] + counts[2][d] + counts[3][d];
    }
    for (int64_t left = *want; left > 0; left -= counts[0][digit]) {
        *want = left;
        digit--;
    }
    return digit;
}

static inline __attribute__((always_inline)) uint32_t
next_digit(const score_array *a, uint32_t prefix, int shift, int bits, int64_t *want) {
    uint32_t counts[TURNS][DIGITS];
    for (int turn = 0; turn < TURNS; turn++) {
        memset(counts[turn], 0, sizeof counts[0][0] << bits);
    }
    count_digits(a, prefix, shift, bits, counts);
    return prefix << bits | find_digit(counts, bits, want);
}

/* The first `equal` set bits of a mask; *equal is lowered by those taken. */
static inline unsigned first_bits(unsigned mask, int64_t *equal) {
    int64_t bits = __builtin_popcount(mask);
    if (bits > *equal) {
        mask = _pdep_u32((1u << *equal) - 1, mask);
        bits = *equal;
    }
    *equal -= bits;
    return mask;
}

/* Indices of the keys above `last` and of the first `equal` ones that equal it. */
static inline __attribute__((always_inline)) void write_indices(const score_array *a, uint32_t last,
                                                                int64_t equal, int32_t *out) {
    __m256i bias = _mm256_set1_epi32(INT32_MIN); /* compares are signed */
    __m256i cut = _mm256_set1_epi32((int32_t)(last ^ 0x80000000u));
    for (int64_t i = 0; i < a->n; i += LANES) {
        unsigned valid;
        __m256i keys = _mm256_xor_si256(load_keys(a, i, &valid), bias);
        __m256i above = _mm256_cmpgt_epi32(keys, cut), same = _mm256_cmpeq_epi32(keys, cut);
        unsigned in = valid & (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(above));
        unsigned ties = valid & (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(same));
        if (ties) {
            in |= first_bits(ties, &equal);
        }
        for (; in; in &= in - 1) {
            *out++ = (int32_t)(i + __builtin_ctz(in));
        }
    }
}

static inline __attribute__((always_inline)) void select_typed(score_array a, int64_t want,
                                                               int32_t *out) {
    uint32_t key = next_digit(&a, 0, 22, 10, &want);
    key = next_digit(&a, key, 11, 11, &want);
    key = next_digit(&a, key, 0, 11, &want);
    write_indices(&a, key, want, out);
}

void tamis_select_avx2(const void *scores, int32_t type, int64_t n, int64_t want, int32_t *out) {
    if (want == n) {
        for (int64_t i = 0; i < n; i++) {
            out[i] = (int32_t)i;
        }
    } else if (want > 0 && type == TAMIS_F32) {
        select_typed((score_array){scores, TAMIS_F32, n}, want, out);
    } else if (want > 0) {
        select_typed((score_array){scores, TAMIS_BF16, n}, want, out);
    }
}
