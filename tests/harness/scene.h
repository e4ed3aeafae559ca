/* SPDX-License-Identifier: MIT */
/*
 * scene.h: one indexer problem as plain dense arrays, before it is placed in memory.
 *
 * A scene says what K, the queries and the rows are; place.h says where they lie. Every placement
 * of one scene must give the same results, and the oracle reads the dense arrays directly.
 */
#ifndef TAMIS_TESTS_SCENE_H
#define TAMIS_TESTS_SCENE_H

#include <stdint.h>

#include <tamis/tamis.h>

#include "guard.h"

/* What is unusual about the numbers of a scene; the text is for messages. */
#define SCENE_HAZARDS(X)                                                                           \
    X(PLAIN, "plain numbers, exponents within 3 of each other")                                    \
    X(FLAT, "one exponent for all groups")                                                         \
    X(SPAN_STEP, "spans of K 0..40 against spans of q 0..15: every limit of a fast path")          \
    X(SPAN_LARGEST, "the same spans with the largest codes, so that sums reach their bounds")      \
    X(STICKY, "dots at an f32 tie that a bit far below decides")                                   \
    X(EDGES, "exponent bytes 0..3 and 251..254, each against each")                                \
    X(WIDE, "exponent bytes 0..254 in q and K")                                                    \
    X(MIXED, "fast and wide spans side by side in each tile of 8 positions")                       \
    X(BITS, "random bits in codes, scales and weights")                                            \
    X(TIES, "all scores of a request equal")                                                       \
    X(FEW, "few distinct scores, ties at every cut")                                               \
    X(NEGATIVE, "all dots negative: all scores zero")                                              \
    X(ZEROS, "codes 0 and 8 nearly everywhere")                                                    \
    X(NAN_K, "NaN scale bytes in some K rows")                                                     \
    X(NAN_ALL, "NaN scale bytes in every K row")                                                   \
    X(NAN_Q, "NaN scale bytes in some q heads")                                                    \
    X(NAN_W, "NaN, infinite and huge weights")                                                     \
    X(LAST_BIT, "scores that differ in the last bit only")                                         \
    X(HUGE_TINY, "huge and tiny magnitudes together")                                              \
    X(SUBNORMAL, "scores in and around the subnormal range")                                       \
    X(OVERFLOW, "scores at and beyond infinity")

enum {
#define SCENE_HAZARD(name, text) SCENE_##name,
    SCENE_HAZARDS(SCENE_HAZARD)
#undef SCENE_HAZARD
        SCENE_HAZARD_COUNT
};
const char *scene_hazard_text(int hazard);

typedef struct scene {
    int heads, d, hazard, weights_type;
    int64_t rows, requests;
    int64_t *context;  /* [requests] positions */
    int64_t *base;     /* [requests] first K row of each */
    int64_t positions; /* K rows of all requests */
    int32_t *request;  /* [rows] */
    int32_t *ks, *ke;  /* [rows] within the request; ke < ks is an empty row */
    uint8_t *k_codes;  /* [positions][d/2] */
    uint8_t *k_scales; /* [positions][d/32] */
    uint8_t *q_codes;  /* [rows][heads][d/2] */
    uint8_t *q_scales; /* [rows][heads][d/32] */
    float *weights;    /* [rows][heads]; bf16 values when weights_type says so */
} scene;

/* An empty scene: fill request, ks and ke of every row, then call scene_numbers. */
void scene_new(scene *s, int heads, int d, int64_t requests, const int64_t *context, int64_t rows);
/* Fills q, weights and K. */
void scene_numbers(scene *s, int hazard, int weights_type, uint64_t seed);
void scene_free(scene *s);

static inline int64_t scene_length(const scene *s, int64_t row) {
    return s->ke[row] > s->ks[row] ? s->ke[row] - s->ks[row] : 0;
}
int64_t scene_longest(const scene *s);

/* Decode rows, one to a request and as long as it: rows[i] sees 0 .. lengths[i]-1. */
void scene_decode(scene *s, int heads, int d, const int64_t *lengths, int64_t rows);
/* One request; row i sees 0 .. lengths[i]-1 of its `context` positions. */
void scene_prefill(scene *s, int heads, int d, int64_t context, const int64_t *lengths,
                   int64_t rows);
/* Lengths around the tiles, starts at every residue mod 16, three requests, empty rows. */
void scene_around_tiles(scene *s, int heads, int d, uint64_t seed);

/* The oracle's scores of one row: scores[length]. */
void scene_scores(const scene *s, int numerics, int64_t row, float *scores);

#endif
