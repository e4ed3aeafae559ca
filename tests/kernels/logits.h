/* SPDX-License-Identifier: MIT */
/*
 * logits.h: scores that make selections hard: ties, zeros of both signs, NaN, infinities, values
 * that differ in the last bit.
 */
#ifndef TAMIS_TESTS_KERNELS_LOGITS_H
#define TAMIS_TESTS_KERNELS_LOGITS_H

#include "common.h"

#include <math.h>

enum {
    LOGITS_RANDOM,
    LOGITS_TIES,
    LOGITS_EQUAL,
    LOGITS_NAN,
    LOGITS_CLOSE,
    LOGITS_BITS,
    LOGITS_KINDS
};

static inline float random_logit(int kind) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1.0f, -1.0f, -NAN};
    switch (kind) {
    case LOGITS_TIES:
        return (float)(random_below(5) - 2) * 0.5f;
    case LOGITS_EQUAL:
        return random_below(2) ? 0.0f : -0.0f;
    case LOGITS_NAN:
        return odd[random_below(COUNT(odd))];
    case LOGITS_CLOSE:
        return float_of(0x3F800000u + (uint32_t)random_below(200));
    case LOGITS_BITS:
        return float_of((uint32_t)random64());
    default:
        return random_unit();
    }
}

/* n elements of the type; reading them back gives the scores to select by. */
static inline void random_logits(void *array, int64_t n, int32_t type, int kind) {
    for (int64_t i = 0; i < n; i++) {
        put(array, i, type, random_logit(kind));
    }
}

/* Elements [0, n) as f32, in memory of their own. */
static inline float *logits_as_f32(const void *array, int64_t n, int32_t type) {
    float *x = fresh(n * 4);
    for (int64_t i = 0; i < n; i++) {
        x[i] = get(array, i, type);
    }
    return x;
}

#endif
