/* SPDX-License-Identifier: MIT */
/*
 * opponents_naive.c: the loop found in programs that took the model up first: every position scored
 * by scalar dots, then k passes, each over all scores with a search among those already chosen.
 */
#include "opponents.h"

void naive_score_all(void *context) {
    const opponent *o = context;
    const bench_shape *s = &o->scene->shape;
    const float *weights = (const float *)o->scene->query.weights + (s->rows - 1) * s->heads;
    for (int64_t j = 0; j < s->positions; j++) {
        float score = 0;
        for (int32_t h = 0; h < s->heads; h++) {
            float dot = 0;
            for (int32_t i = 0; i < s->dim; i++)
                dot += o->q[h * s->dim + i] * o->k[j * s->dim + i];
            if (dot > 0)
                score += weights[h] * dot;
        }
        o->scores[j] = score;
    }
}

static int is_chosen(const opponent *o, int32_t count, int64_t j) {
    for (int32_t i = 0; i < count; i++)
        if (o->chosen[i] == j)
            return 1;
    return 0;
}

void naive_full_layer(void *context) {
    const opponent *o = context;
    naive_score_all(context);
    for (int32_t count = 0; count < o->scene->shape.topk; count++) {
        int64_t best = -1;
        for (int64_t j = 0; j < o->scene->shape.positions; j++)
            if (!is_chosen(o, count, j) && (best < 0 || o->scores[j] > o->scores[best]))
                best = j;
        o->chosen[count] = (int32_t)best;
    }
}
