/* SPDX-License-Identifier: MIT */
/*
 * opponents_blas.c: scores as heads x positions products of sgemm, tile by tile so that they stay
 * in cache, then ReLU, weights and the sum over heads; the selection is the library's own topk, so
 * that only the scoring differs.
 */
#include <string.h>

#include <cblas.h>

#include "opponents.h"

/* A code pair's two values, side by side. */
static float pairs[256][2];

static void fill_pairs(void) {
    static const float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int byte = 0; byte < 256; byte++) {
        pairs[byte][0] = (byte & 8 ? -1.0f : 1.0f) * magnitudes[byte & 7];
        pairs[byte][1] = (byte & 128 ? -1.0f : 1.0f) * magnitudes[byte >> 4 & 7];
    }
}

void opponent_vector(const uint8_t *codes, const uint8_t *scales, int32_t dim, float *out) {
    if (pairs[1][0] == 0.0f)
        fill_pairs();
    for (int32_t i = 0; i < dim / 2; i++)
        memcpy(out + 2 * i, pairs[codes[i]], sizeof pairs[0]);
    for (int32_t g = 0; g < dim / 32; g++) {
        uint32_t bits = (uint32_t)scales[g] << 23;
        float scale;
        memcpy(&scale, &bits, sizeof scale);
        for (int32_t i = 0; i < 32; i++)
            out[32 * g + i] *= scale;
    }
}

void opponent_position(const bench_scene *s, int64_t j, float *out) {
    const int32_t *table =
        s->rows.page_table + s->rows.request[s->shape.rows - 1] * s->rows.page_table_stride;
    const uint8_t *page = s->k.codes + table[j / BENCH_PAGE] * s->k.stride;
    int64_t slot = j % BENCH_PAGE, codes = s->k.head_dim / 2, scales = s->k.head_dim / 32;
    opponent_vector(page + slot * codes, page + BENCH_PAGE * codes + slot * scales, s->k.head_dim,
                    out);
}

/* Heads are a multiple of 8 here, so that eight sums run side by side. */
static float score_of(const float *restrict dots, const float *restrict weights, int heads) {
    float sums[8] = {0};
    for (int h = 0; h < heads; h += 8)
        for (int i = 0; i < 8; i++)
            sums[i] += weights[h + i] * (dots[h + i] > 0.0f ? dots[h + i] : 0.0f);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

static void score_tile(const opponent *o, const float *k, int64_t count, float *scores) {
    const int heads = o->scene->shape.heads, dim = o->scene->shape.dim, n = (int)count;
    const float *weights =
        (const float *)o->scene->query.weights + (o->scene->shape.rows - 1) * heads;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, heads, dim, 1.0f, k, dim, o->q, dim,
                0.0f, o->products, heads);
    for (int64_t j = 0; j < count; j++)
        scores[j] = score_of(o->products + j * heads, weights, heads);
}

void blas_score_all(void *context) {
    const opponent *o = context;
    int64_t positions = o->scene->shape.positions, dim = o->scene->shape.dim;
    for (int64_t at = 0; at < positions; at += OPPONENT_TILE) {
        int64_t count = positions - at < OPPONENT_TILE ? positions - at : OPPONENT_TILE;
        const float *k = o->k ? o->k + at * dim : o->tile;
        for (int64_t j = 0; !o->k && j < count; j++)
            opponent_position(o->scene, at + j, o->tile + j * dim);
        score_tile(o, k, count, o->scores + at);
    }
}

/* The pool is a whole number of tiles and each block has all its positions: opponents.c sees to it.
 */
void blas_score_pool(void *context) {
    const opponent *o = context;
    int64_t size = o->scene->shape.block_size, dim = o->scene->shape.dim;
    for (int64_t i = 0; i < o->scene->shape.blocks; i += OPPONENT_TILE / size) {
        for (int64_t j = 0; j < OPPONENT_TILE; j++) {
            int64_t position = o->list[i + j / size] * size + j % size;
            if (o->k)
                memcpy(o->tile + j * dim, o->k + position * dim, (size_t)dim * sizeof *o->tile);
            else
                opponent_position(o->scene, position, o->tile + j * dim);
        }
        score_tile(o, o->tile, OPPONENT_TILE, o->packed + i * size);
    }
}

static void choose(const opponent *o, const float *scores, int64_t width, const int32_t *blocks) {
    const bench_scene *s = o->scene;
    tamis_topk_args a;
    tamis_topk_args_default(&a);
    a.logits_type = TAMIS_F32;
    a.rows = s->rows;
    a.rows.count = 1;
    a.rows.ke += s->shape.rows - 1;
    a.rows.request += s->shape.rows - 1;
    a.logits = scores;
    a.width = a.logits_stride = width;
    a.block_size = s->shape.block_size;
    a.blocks = blocks;
    a.blocks_stride = s->shape.blocks;
    a.selection.topk = s->shape.topk;
    a.selection.positions = o->chosen;
    a.selection.positions_stride = s->shape.topk;
    tamis_topk(o->backend, &a, 0, 1, NULL);
}

void blas_full_layer(void *context) {
    const opponent *o = context;
    blas_score_all(context);
    choose(o, o->scores, o->scene->shape.positions, NULL);
}

void blas_masked_layer(void *context) {
    const opponent *o = context;
    int64_t size = o->scene->shape.block_size, blocks = o->scene->shape.blocks;
    blas_score_all(context);
    for (int64_t i = 0; i < blocks; i++)
        memcpy(o->packed + i * size, o->scores + o->list[i] * size, (size_t)size * 4);
    choose(o, o->packed, blocks * size, o->list);
}

void blas_pool_consumer(void *context) {
    const opponent *o = context;
    blas_score_pool(context);
    choose(o, o->packed, o->scene->shape.blocks * o->scene->shape.block_size, o->list);
}
