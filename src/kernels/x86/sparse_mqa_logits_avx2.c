/* SPDX-License-Identifier: MIT */
/*
 * sparse_mqa_logits_avx2.c: scores of the positions inside listed blocks.
 * Blocks lie anywhere in K, so the K of later ones is asked for ahead of its use.
 */
#include "kernels/kernels.h"
#include "score_avx2.h"

enum { AHEAD = 3 }; /* tiles; one takes about 600 cycles, as long as a miss to memory */

/* Local position of the tile at column c (a multiple of 8); negative when it names none. */
static inline int64_t tile_position(const tamis_sparse_mqa_logits_args *args, const int32_t *blocks,
                                    int64_t start, int64_t c) {
    int64_t size = args->block_size;
    return (blocks[c / size] - start / size) * size + c % size;
}

/* Columns [first, last) of row r; both are multiples of the tile. */
static void score_columns(const tamis_sparse_mqa_logits_args *args, const tamis_score_row *row,
                          int64_t r, int64_t first, int64_t last) {
    const __m256 below = _mm256_set1_ps(-__builtin_inff());
    const int32_t *page_row = tamis_page_row(&args->rows, r);
    const int32_t *blocks = args->blocks + r * args->blocks_stride;
    int64_t length = tamis_row_length(&args->rows, r), start = tamis_row_start(&args->rows, r);
    int64_t valid = (args->counts ? args->counts[r] : args->width) * args->block_size;
    valid = valid < last ? valid : last;
    for (int64_t c = first; c < last; c += TAMIS_TILE) {
        __m256 score = below;
        int64_t ahead = c + AHEAD * TAMIS_TILE;
        int64_t j = c < valid ? tile_position(args, blocks, start, c) : -1;
        int64_t next = ahead < valid ? tile_position(args, blocks, start, ahead) : -1;
        if (next >= 0 && next < length) {
            tamis_score_prefetch(&args->k, page_row, start + next);
        }
        if (j >= 0 && j < length) {
            int64_t n = length - j < TAMIS_TILE ? length - j : TAMIS_TILE;
            tamis_score_tile tile;
            tamis_score_tile_at(&args->k, page_row, start + j, (int)n, &tile);
            score = _mm256_blendv_ps(below, tamis_score8_avx2(row, &tile), tamis_score_lanes(n));
        }
        tamis_score_store8(args->logits, args->logits_type, r * args->logits_stride + c, score);
    }
}

void tamis_sparse_mqa_logits_avx2(const tamis_sparse_mqa_logits_args *args, int32_t ith,
                                  int32_t nth) {
    int64_t r, end, first, last;
    tamis_score_row row;
    tamis_slice_rows(args->rows.count, ith, nth, &r, &end);
    tamis_slice_columns(args->rows.count, args->width * args->block_size, ith, nth, &first, &last);
    for (; r < end && first < last; r++) {
        tamis_score_row_avx2(&args->query, r, args->numerics, &row);
        score_columns(args, &row, r, first, last);
    }
}
