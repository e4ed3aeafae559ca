/* SPDX-License-Identifier: MIT */
/*
 * score_avx2.h: one prepared query row against eight positions of K, in exact arithmetic.
 *
 * Positions come as eight pointers, so one kernel serves every layout, page border and interval. A
 * short tile repeats its last valid pointer: nothing outside K is read.
 */
#ifndef TAMIS_KERNELS_SCORE_AVX2_H
#define TAMIS_KERNELS_SCORE_AVX2_H

#include <immintrin.h>

#include "cache/address.h"
#include "kernels/order.h"

enum {
    TAMIS_TILE = 8,                       /* positions scored at once */
    TAMIS_REGISTERS = TAMIS_MAX_HEADS / 8 /* of eight heads */
};

/*
 * A query row as the kernel wants it. Lane l of register r holds head 8 r + 2 l (l < 4) or
 * 8 r + 2 (l - 4) + 1, so that the low and the high half are successive links of the four chains.
 * Arrays are packed for the row's own number of registers: [..][registers][lane].
 */
typedef struct tamis_score_row {
    _Alignas(32) int8_t q[TAMIS_MAX_HEADS * TAMIS_MAX_HEAD_DIM]; /* [group][step][r][lane][4] */
    _Alignas(32) int16_t bias[TAMIS_MAX_GROUPS * TAMIS_MAX_HEADS * 2];  /* [group][r][lane][2] */
    _Alignas(32) int16_t scale[TAMIS_MAX_GROUPS * TAMIS_MAX_HEADS * 2]; /* the same */
    _Alignas(32) float weight[TAMIS_MAX_HEADS];                         /* w', [r][lane] */
    _Alignas(
        32) uint8_t depth[TAMIS_MAX_GROUPS][TAMIS_MAX_HEADS]; /* e_rh - e_g, [group][r][lane] */
    int32_t groups;
    int32_t registers;
    int32_t span;  /* largest depth of any head */
    int32_t nan;   /* every score of the row is NaN */
    int32_t round; /* scores are rounded to bf16 */
    int32_t fast;  /* 32 heads of 128 dims */
} tamis_score_row;

typedef struct tamis_score_tile {
    const uint8_t *codes[TAMIS_TILE];
    const uint8_t *scales[TAMIS_TILE];
} tamis_score_tile;

/* Row r of a query, in the class `numerics` (exact or bf16). */
void tamis_score_row_avx2(const tamis_query *query, int64_t r, int32_t numerics,
                          tamis_score_row *row);

/* Scores of a tile's positions: the bits of ref/, NaN as 0x7FC00000. */
__m256 tamis_score8_avx2(const tamis_score_row *row, const tamis_score_tile *tile);

/* Step between successive positions of a page, or of all K, in bytes. */
static inline int64_t tamis_score_code_step(const tamis_k_cache *k) {
    return k->layout == TAMIS_K_MXFP4_PAGE ? k->head_dim / 2 : k->stride;
}

static inline int64_t tamis_score_scale_step(const tamis_k_cache *k) {
    return k->layout == TAMIS_K_MXFP4_PAGE    ? k->head_dim / 32
           : k->layout == TAMIS_K_MXFP4_SPLIT ? k->scales_stride
                                              : k->stride;
}

/*
 * K of a place, and how many positions from it on lie a step apart (at most 8). A place is an
 * absolute position, or, when page_row is NULL, a slot whose block lies in one page.
 */
static inline int tamis_score_run(const tamis_k_cache *k, const int32_t *page_row, int64_t place,
                                  tamis_k_row *row) {
    if (page_row == NULL) {
        *row = tamis_k_at_slot(k, place);
        return TAMIS_TILE;
    }
    uint32_t size = (uint32_t)k->page_size; /* 32 bits: a division that costs a third */
    uint32_t at = (uint32_t)place % size;
    uint8_t *page = k->codes + page_row[(uint32_t)place / size] * k->stride;
    row->codes = page + at * (int64_t)(k->head_dim / 2);
    row->scales = page + k->page_size * (int64_t)(k->head_dim / 2) + at * (k->head_dim / 32);
    return size - at < TAMIS_TILE ? (int)(size - at) : TAMIS_TILE;
}

/* Pointers of n (1..8) successive positions from a place on. */
static inline void tamis_score_tile_at(const tamis_k_cache *k, const int32_t *page_row,
                                       int64_t place, int n, tamis_score_tile *tile) {
    int64_t code_step = tamis_score_code_step(k), scale_step = tamis_score_scale_step(k);
    for (int i = 0; i < n;) {
        tamis_k_row row;
        int run = tamis_score_run(k, page_row, place + i, &row);
        for (int j = 0; j < run && i < n; j++, i++) {
            tile->codes[i] = row.codes + j * code_step;
            tile->scales[i] = row.scales + j * scale_step;
        }
    }
    for (int i = n; i < TAMIS_TILE; i++) {
        tile->codes[i] = tile->codes[n - 1];
        tile->scales[i] = tile->scales[n - 1];
    }
}

/* Scores rounded to bf16, ties to even; the one NaN there is keeps its bits. */
static inline __m256 tamis_score_round_bf16(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0xFFFF0000u)));
}

/* All ones in lanes 0 .. n-1. */
static inline __m256 tamis_score_lanes(int64_t n) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
}

/* Stores eight scores at elements i .. i + 7 of logits. */
static inline void tamis_score_store8(void *logits, int32_t type, int64_t i, __m256 score) {
    if (type == TAMIS_F32) {
        _mm256_storeu_ps((float *)logits + i, score);
        return;
    }
    __m256i bits = _mm256_srli_epi32(_mm256_castps_si256(tamis_score_round_bf16(score)), 16);
    __m128i half =
        _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    _mm_storeu_si128((__m128i *)((uint16_t *)logits + i), half);
}

#endif
