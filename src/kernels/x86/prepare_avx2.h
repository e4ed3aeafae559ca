/* SPDX-License-Identifier: MIT */
/*
 * prepare_avx2.h: rotation and quantisation of one head, shared by q_prepare and k_insert (spec 3).
 * Every product and sum is an instruction of its own, in the order of ref/: nothing is contracted.
 */
#ifndef TAMIS_KERNELS_PREPARE_AVX2_H
#define TAMIS_KERNELS_PREPARE_AVX2_H

#include <immintrin.h>

#include "kernels/order.h"

enum { TAMIS_ROPE_DIMS_AVX2 = 64 };

/* Eight elements from i on of an array of f32 or bf16, as f32. */
static inline __m256 tamis_load8(const void *array, int32_t type, int64_t i) {
    if (type == TAMIS_F32) {
        return _mm256_loadu_ps((const float *)array + i);
    }
    __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)array + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Rounded to bf16, ties to even; NaN stays NaN. */
static inline __m256 tamis_round8_bf16(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    bits = _mm256_and_si256(bits, _mm256_set1_epi32((int)0xFFFF0000u));
    return _mm256_blendv_ps(_mm256_castsi256_ps(bits), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* Each of four values twice: the cosines (or sines) of four pairs. */
static inline __m256 tamis_twice(__m128 x) {
    return _mm256_setr_m128(_mm_unpacklo_ps(x, x), _mm_unpackhi_ps(x, x));
}

/* Rotates the last 64 of d values at a position: pairs (e, o) -> (e c - o s, o c + e s). */
static inline void tamis_rotate_avx2(float *x, int d, const tamis_rope *rope, int64_t position) {
    int64_t row = position * rope->row_stride;
    float *pairs = x + d - TAMIS_ROPE_DIMS_AVX2;
    for (int i = 0; i < TAMIS_ROPE_DIMS_AVX2 / 2; i += 8, pairs += 16) {
        __m256 c = tamis_load8(rope->table, rope->type, row + i);
        __m256 s = tamis_load8(rope->table, rope->type, row + TAMIS_ROPE_DIMS_AVX2 / 2 + i);
        for (int half = 0; half < 2; half++) {
            __m256 c2 = tamis_twice(half ? _mm256_extractf128_ps(c, 1) : _mm256_castps256_ps128(c));
            __m256 s2 = tamis_twice(half ? _mm256_extractf128_ps(s, 1) : _mm256_castps256_ps128(s));
            __m256 eo = _mm256_loadu_ps(pairs + 8 * half);
            __m256 oe = _mm256_permute_ps(eo, 0xB1);
            _mm256_storeu_ps(pairs + 8 * half,
                             _mm256_addsub_ps(_mm256_mul_ps(eo, c2), _mm256_mul_ps(oe, s2)));
        }
    }
}

/* E2M1 codes, as dwords, of eight values already divided by their scale. */
static inline __m256i tamis_e2m1_codes8(__m256 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 a = _mm256_andnot_ps(sign, x);
    __m256i m = _mm256_srli_epi32(_mm256_castps_si256(_mm256_and_ps(sign, x)), 28);
#define TAMIS_COUNT(threshold, compare)                                                            \
    m = _mm256_sub_epi32(                                                                          \
        m, _mm256_castps_si256(_mm256_cmp_ps(a, _mm256_set1_ps(threshold), compare)))
    TAMIS_COUNT(0.25f, _CMP_GT_OQ); /* ties go to the even code */
    TAMIS_COUNT(0.75f, _CMP_GE_OQ);
    TAMIS_COUNT(1.25f, _CMP_GT_OQ);
    TAMIS_COUNT(1.75f, _CMP_GE_OQ);
    TAMIS_COUNT(2.5f, _CMP_GT_OQ);
    TAMIS_COUNT(3.5f, _CMP_GE_OQ);
    TAMIS_COUNT(5.0f, _CMP_GT_OQ);
#undef TAMIS_COUNT
    return m;
}

/* Packs the codes of 32 values, in order, two to a byte. */
static inline __m128i tamis_pack_codes(const __m256i codes[4]) {
    __m256i a = _mm256_packus_epi32(codes[0], codes[1]),
            b = _mm256_packus_epi32(codes[2], codes[3]);
    __m256i bytes = _mm256_packus_epi16(a, b); /* dwords 0 2 4 6 | 1 3 5 7 of four codes */
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001)); /* low + 16 high */
    return _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

/* Rounds 32 values to bf16 and quantises them, as tamis_mxfp4_quantise. */
static inline void tamis_store_group_avx2(const float *x, uint8_t *codes, uint8_t *scale) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256 value[4];
    __m256i code[4], most = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        value[i] = tamis_round8_bf16(_mm256_loadu_ps(x + 8 * i));
        most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(value[i]), magnitude));
    }
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    uint32_t amax = (uint32_t)_mm_cvtsi128_si32(m);
    if (amax >= 0x7F800000u) {
        _mm_storeu_si128((__m128i *)codes, _mm_setzero_si128());
        *scale = TAMIS_SCALE_NAN;
        return;
    }
    *scale = tamis_scale_from_amax(tamis_f32_of_bits(amax));
    __m256 inverse = _mm256_set1_ps(tamis_f32_of_bits((254u - *scale) << 23));
    for (int i = 0; i < 4; i++) {
        code[i] = tamis_e2m1_codes8(_mm256_mul_ps(value[i], inverse));
    }
    _mm_storeu_si128((__m128i *)codes, tamis_pack_codes(code));
}

static inline void tamis_store_row_avx2(const float *x, int d, uint8_t *codes, uint8_t *scales) {
    for (int g = 0; g < d / TAMIS_GROUP; g++) {
        tamis_store_group_avx2(x + TAMIS_GROUP * g, codes + TAMIS_GROUP / 2 * g, scales + g);
    }
}

#endif
