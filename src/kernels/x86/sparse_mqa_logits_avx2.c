/* SPDX-License-Identifier: MIT */
/*
 * sparse_mqa_logits_avx2.c: scores of the positions inside listed blocks.
 *
 * Blocks lie anywhere in K, so the K of later ones is asked for ahead of its use: eight tiles at
 * once, into L2, pages first. A prefetch retires only when its page is translated, so page walks of
 * single prefetches stop the scoring between them one by one; those of a burst run side by side.
 * Random blocks of a million positions, cold, took 211 TSC cycles a position with one tile ahead in
 * L1 and take 123 (Zen 4 in a virtual machine; 157 and 102 warm with K in huge pages).
 */
#include "kernels/kernels.h"
#include "score_avx2.h"

enum { BURST = 8 }; /* tiles */

/* A row of the call. */
typedef struct sparse_row {
    const tamis_sparse_mqa_logits_args *args;
    const int32_t *blocks;
    const int32_t *physical; /* of the row, or NULL */
    const int32_t *page_row; /* NULL with physical: places are slots then */
    int64_t start, length;
    int64_t valid; /* columns of the blocks that count */
} sparse_row;

static sparse_row row_of(const tamis_sparse_mqa_logits_args *args, int64_t r) {
    sparse_row row = {.args = args,
                      .blocks = args->blocks + r * args->blocks_stride,
                      .start = tamis_row_start(&args->rows, r),
                      .length = tamis_row_length(&args->rows, r)};
    row.valid = (args->counts ? args->counts[r] : args->width) * args->block_size;
    if (args->physical) {
        row.physical = args->physical + r * args->physical_stride;
    } else {
        row.page_row = tamis_page_row(&args->rows, r);
    }
    return row;
}

/* Visible positions (0..8) of the tile at column c, a multiple of 8, and its *place. */
static inline int tile_of(const sparse_row *row, int64_t c, int64_t *place) {
    int64_t size = row->args->block_size;
    if (c >= row->valid) {
        return 0;
    }
    int64_t j = (row->blocks[c / size] - row->start / size) * size + c % size;
    if (j < 0 || j >= row->length) {
        return 0;
    }
    *place = row->physical ? row->physical[c / size] * size + c % size : row->start + j;
    return row->length - j < TAMIS_TILE ? (int)(row->length - j) : TAMIS_TILE;
}

/* By assembly: gcc 12 takes a function that only prefetches for a pure one and drops its calls. */
static inline void prefetch(const uint8_t *line) {
    __asm__ volatile("prefetcht1 %0" : : "m"(*line));
}

/* Asks for the tiles of columns [c, c + BURST tiles) that lie before last. */
static void prefetch_burst(const sparse_row *row, int64_t c, int64_t last) {
    const tamis_k_cache *k = &row->args->k;
    tamis_k_row keys[BURST];
    int n = 0;
    for (int i = 0; i < BURST && c < last; i++, c += TAMIS_TILE) {
        int64_t place;
        if (tile_of(row, c, &place) > 0) {
            (void)tamis_score_run(k, row->page_row, place, &keys[n]);
            prefetch(keys[n].codes);
            prefetch(keys[n].scales);
            n++;
        }
    }
    for (int i = 0; i < n; i++) {
        for (int64_t line = 64; line < TAMIS_TILE * tamis_score_code_step(k); line += 64) {
            prefetch(keys[i].codes + line);
        }
    }
}

/* Columns [first, last) of row r; both are multiples of the tile. */
static void score_columns(const tamis_sparse_mqa_logits_args *args, const tamis_score_row *query,
                          int64_t r, int64_t first, int64_t last) {
    const __m256 below = _mm256_set1_ps(-__builtin_inff());
    sparse_row row = row_of(args, r);
    prefetch_burst(&row, first, last);
    for (int64_t c = first; c < last; c += TAMIS_TILE) {
        __m256 score = below;
        int64_t place;
        if ((c - first) % (BURST * TAMIS_TILE) == 0) {
            prefetch_burst(&row, c + BURST * TAMIS_TILE, last);
        }
        int n = tile_of(&row, c, &place);
        if (n > 0) {
            tamis_score_tile tile;
            tamis_score_tile_at(&args->k, row.page_row, place, n, &tile);
            score = _mm256_blendv_ps(below, tamis_score8_avx2(query, &tile), tamis_score_lanes(n));
        }
        tamis_score_store8(args->logits, args->logits_type, r * args->logits_stride + c, score);
    }
}

void tamis_sparse_mqa_logits_avx2(const tamis_sparse_mqa_logits_args *args, int32_t ith,
                                  int32_t nth) {
    int64_t r, end, first, last;
    tamis_score_row query;
    tamis_slice_rows(args->rows.count, ith, nth, &r, &end);
    tamis_slice_columns(args->rows.count, args->width * args->block_size, ith, nth, &first, &last);
    for (; r < end && first < last; r++) {
        tamis_score_row_avx2(&args->query, r, args->numerics, &query);
        score_columns(args, &query, r, first, last);
    }
}
