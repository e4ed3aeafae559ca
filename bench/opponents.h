/* SPDX-License-Identifier: MIT */
/*
 * opponents.h: what others do for one row, in f32 on one thread: scores by OpenBLAS sgemm over
 * dequantised K, or by the plain scalar loop. Inputs are a scene of `tamis bench`.
 */
#ifndef TAMIS_BENCH_OPPONENTS_H
#define TAMIS_BENCH_OPPONENTS_H

#include "bench.h"

enum { OPPONENT_TILE = 512 }; /* positions: a tile of f32 K is 256 KiB, its products 64 KiB */

typedef struct opponent {
    const bench_scene *scene; /* its last row is the one measured */
    const tamis_backend *backend;
    const int32_t *list; /* [blocks] of that row */
    float *q;            /* [heads][dim] */
    float *k;            /* [positions][dim], dequantised ahead; NULL: tile by tile */
    float *tile;         /* [OPPONENT_TILE][dim] */
    float *products;     /* [OPPONENT_TILE][heads] */
    float *scores;       /* [positions + block] */
    float *packed;       /* [blocks * block_size] scores of the pool */
    int32_t *chosen;     /* [topk] */
} opponent;

/* Takes memory for a scene; 0 when there is none. `ahead` dequantises all of K now. */
int opponent_make(opponent *o, const bench_scene *scene, const tamis_backend *backend, int ahead);
void opponent_free(opponent *o);

/* Position j of the last row's request as dim floats. */
void opponent_position(const bench_scene *scene, int64_t j, float *out);
void opponent_vector(const uint8_t *codes, const uint8_t *scales, int32_t dim, float *out);

/* Each takes an opponent, so that a contest can run it. */
void blas_score_all(void *opponent);
void blas_score_pool(void *opponent);
void blas_full_layer(void *opponent);    /* score all, topk */
void blas_masked_layer(void *opponent);  /* score all, keep the listed blocks, topk */
void blas_pool_consumer(void *opponent); /* score the pool, topk */
void naive_score_all(void *opponent);
void naive_full_layer(void *opponent); /* score all, k times the best that is not chosen yet */

#endif
