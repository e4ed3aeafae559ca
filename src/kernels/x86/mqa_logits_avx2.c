/* SPDX-License-Identifier: MIT */
/*
 * mqa_logits_avx2.c: dense scores of every visible position, and their block maxima.
 * Each row is prepared once and meets K eight positions at a time.
 */
#include "kernels/kernels.h"
#include "score_avx2.h"

/* The largest of a block's scores so far. */
typedef struct best_of_block {
    __m256 score; /* NaN counts as -inf here */
    int ordered;  /* some score is not NaN */
} best_of_block;

static inline __m256 infinity_below(void) {
    return _mm256_set1_ps(-__builtin_inff());
}

/* Adds the first n of eight scores. */
static inline void best_add(best_of_block *best, __m256 score, int64_t n) {
    __m256 ordered = _mm256_cmp_ps(score, score, _CMP_ORD_Q);
    ordered = _mm256_and_ps(ordered, tamis_score_lanes(n));
    score = _mm256_add_ps(score, _mm256_setzero_ps()); /* -0 becomes +0 */
    score = _mm256_blendv_ps(infinity_below(), score, ordered);
    best->score = _mm256_max_ps(best->score, score);
    best->ordered |= _mm256_movemask_ps(ordered);
}

static inline float best_largest(const best_of_block *best) {
    __m128 x =
        _mm_max_ps(_mm256_castps256_ps128(best->score), _mm256_extractf128_ps(best->score, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    x = _mm_max_ss(x, _mm_movehdup_ps(x));
    return best->ordered ? _mm_cvtss_f32(x) : tamis_f32_of_bits(TAMIS_NAN_BITS);
}

static void fill(const tamis_mqa_logits_args *args, int64_t r, int64_t first, int64_t last) {
    if (args->logits) {
        for (int64_t j = first; j < last; j++) {
            tamis_store_float(args->logits, args->logits_type, r * args->logits_stride + j,
                              -__builtin_inff());
        }
    }
}

/* Stores `columns` (1..8) scores of which n are visible; the others become -inf. */
static inline void store(const tamis_mqa_logits_args *args, int64_t at, __m256 score, int64_t n,
                         int64_t columns) {
    score = _mm256_blendv_ps(infinity_below(), score, tamis_score_lanes(n));
    if (columns == TAMIS_TILE) {
        tamis_score_store8(args->logits, args->logits_type, at, score);
        return;
    }
    float part[TAMIS_TILE];
    _mm256_storeu_ps(part, score);
    for (int64_t i = 0; i < columns; i++) {
        tamis_store_float(args->logits, args->logits_type, at + i, part[i]);
    }
}

/* Columns [first, last) of row r; first is a multiple of every block size. */
static void score_columns(const tamis_mqa_logits_args *args, const tamis_score_row *row, int64_t r,
                          int64_t first, int64_t last) {
    const int32_t *page_row = tamis_page_row(&args->rows, r);
    int64_t length = tamis_row_length(&args->rows, r), start = tamis_row_start(&args->rows, r);
    best_of_block best = {infinity_below(), 0};
    int64_t end = last < length ? last : length, j = first;
    for (; j < end; j += TAMIS_TILE) {
        int64_t n = end - j < TAMIS_TILE ? end - j : TAMIS_TILE, next = j + TAMIS_TILE;
        tamis_score_tile tile;
        tamis_score_tile_at(&args->k, page_row, start + j, (int)n, &tile);
        __m256 score = tamis_score8_avx2(row, &tile);
        if (args->logits) {
            store(args, r * args->logits_stride + j, score, n, last < next ? last - j : TAMIS_TILE);
        }
        if (args->block_max) {
            best_add(&best, score, n);
            if (next >= end || next % args->block_size == 0) {
                args->block_max[r * args->block_max_stride + j / args->block_size] =
                    best_largest(&best);
                best = (best_of_block){infinity_below(), 0};
            }
        }
    }
    fill(args, r, j, last);
}

void tamis_mqa_logits_avx2(const tamis_mqa_logits_args *args, int32_t ith, int32_t nth) {
    int64_t r, end;
    tamis_score_row row;
    tamis_slice_rows(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        int64_t columns = tamis_row_length(&args->rows, r), first, last;
        if (args->logits && args->columns > columns) {
            columns = args->columns;
        }
        tamis_slice_columns(args->rows.count, columns, ith, nth, &first, &last);
        if (first < last) {
            tamis_score_row_avx2(&args->query, r, args->numerics, &row);
            score_columns(args, &row, r, first, last);
        }
    }
}
