/* SPDX-License-Identifier: MIT */
/*
 * levels.h: the two levels over scenes: the library's results and the oracle's, in one form.
 *
 * A results struct holds dense arrays by the numbers below, as place.h's trials return them.
 */
#ifndef TAMIS_TESTS_LEVELS_H
#define TAMIS_TESTS_LEVELS_H

#include "place.h"

enum {
    LEVEL_POSITIONS = 0,   /* i32 [rows][topk] */
    LEVEL_SLOTS = 1,       /* i64 [rows][topk] */
    LEVEL_SCORES = 2,      /* f32 [rows][topk] */
    LEVEL_COUNTS = 3,      /* i32 [rows] */
    LEVEL_BLOCKS = 4,      /* i32 [rows][topk_blocks], source only */
    LEVEL_BLOCK_COUNTS = 5 /* i32 [rows], source only */
};

typedef struct level {
    int numerics, block_size, topk, topk_blocks;
} level;

/* Lists of blocks for consumers: [rows][width]; counts may be NULL. */
typedef struct block_lists {
    const int32_t *ids;
    int64_t width;
    const int32_t *counts;
} block_lists;

results level_source(const tamis_backend *backend, const scene *s, level l, const placement *p,
                     slicing how);
results level_consume(const tamis_backend *backend, const scene *s, level l, block_lists lists,
                      const placement *p, slicing how);
/* lists.ids NULL: no mask. */
results level_dense(const tamis_backend *backend, const scene *s, level l, block_lists lists,
                    const placement *p, slicing how);

/* The same from the oracle: positions, scores, counts, and for the source blocks. */
results oracle_source(const scene *s, level l);
results oracle_consumer(const scene *s, level l, block_lists lists);

/* Plain settings: PAGE, tight, one slice. A program may run the same tests over another layout. */
extern placement level_plain;
extern const slicing level_whole;

/* Requires that the arrays present in both are equal, naming row and rank. */
void level_equal(const scene *s, const results *want, const results *got, const char *what);
/* Requires ids ascending and unique within 0..limit-1, -1 in the tail, counts right. */
void level_well_formed(const int32_t *ids, const int32_t *counts, int64_t rows, int64_t width,
                       const scene *s, int64_t unit);

/* A consumer's scene: rows and K of `source`, its own q and weights. */
void scene_consumer(scene *s, const scene *source, int hazard, uint64_t seed);
/* The rows of `from` that `rows` lists, in that order, over the same K. */
void scene_pick(scene *s, const scene *from, const int32_t *rows, int64_t count);

#endif
