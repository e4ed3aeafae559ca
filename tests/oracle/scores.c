/* SPDX-License-Identifier: MIT */
/*
 * scores.c: scores of the four numerics classes (spec 4.1, 4.2).
 * Rows are decoded once to doubled whole numbers. Where the four exponents of a dot are close its
 * sum fits 53 bits and one conversion rounds it; everywhere else number.c sums it exactly.
 */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

#include "number.h"

typedef struct row { /* one K row or one q head */
    int16_t v[128];  /* doubled values */
    int e[4];        /* exponents of the groups */
    int top;         /* the largest of them */
    int nan;         /* a scale byte was 255 */
} row;

static void decode(row *r, int groups, const uint8_t *codes, const uint8_t *scales) {
    static const int16_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int i = 0; i < groups * 16; i++) {
        r->v[2 * i] = doubled[codes[i] & 15];
        r->v[2 * i + 1] = doubled[codes[i] >> 4];
    }
    r->nan = 0;
    r->top = -127;
    for (int g = 0; g < groups; g++) {
        r->e[g] = scales[g] - 127;
        r->top = r->e[g] > r->top ? r->e[g] : r->top;
        r->nan |= scales[g] == 255;
    }
}

/* f32 of the exact dot times 2^shift. */
static float dot(const row *q, const row *k, int groups, int shift) {
    int sums[4], e[4], low = 1000, high = -1000;
    for (int g = 0; g < groups; g++) {
        const int16_t *a = q->v + 32 * g, *b = k->v + 32 * g;
        int sum = 0;
        for (int i = 0; i < 32; i++) {
            sum += a[i] * b[i];
        }
        sums[g] = sum;
        e[g] = q->e[g] + k->e[g];
        low = e[g] < low ? e[g] : low;
        high = e[g] > high ? e[g] : high;
    }
    if (high - low <= 36) { /* 4 * 4608 * 2^36 < 2^53 */
        int64_t total = 0;
        for (int g = 0; g < groups; g++) {
            total += sums[g] * ((int64_t)1 << (e[g] - low));
        }
        return (float)((double)total * oracle_pow2(low - 2 + shift));
    }
    oracle_term terms[4];
    for (int g = 0; g < groups; g++) {
        terms[g] = (oracle_term){sums[g], e[g] - 2 + shift};
    }
    return oracle_round_f32(terms, groups);
}

static float relu(float x) {
    return x > 0 ? x : 0.0f;
}

static float to_bf16(float x) {
    return oracle_bf16_of_double((double)x);
}

static float exact_score(const row *q, const row *k, int heads, int groups, const float *weights) {
    float p[4] = {0, 0, 0, 0};
    for (int h = 0; h < heads; h++) {
        float d = relu(dot(q + h, k, groups, -(q[h].top + k->top)));
        p[h % 8 / 2] = fmaf(weights[h], d, p[h % 8 / 2]);
    }
    float left = p[0] + p[1], right = p[2] + p[3], sum = left + right;
    return (float)((double)sum * oracle_pow2(k->top));
}

static float dg_score(const row *q, const row *k, int heads, int groups, const float *weights) {
    float c[4] = {0, 0, 0, 0};
    for (int h = 0; h < heads; h++) {
        float d = to_bf16(relu(dot(q + h, k, groups, 0)));
        c[h % 4] = oracle_bf16_fma(d, weights[h], c[h % 4]);
    }
    float even = to_bf16(c[0] + c[2]), odd = to_bf16(c[1] + c[3]);
    return to_bf16(even + odd);
}

static float ref_score(const row *q, const row *k, int heads, int groups, const float *weights) {
    float sum = 0;
    for (int h = 0; h < heads; h++) {
        float d = relu(to_bf16(dot(q + h, k, groups, 0)));
        sum = sum + oracle_bf16_of_double((double)d * (double)weights[h]);
    }
    return to_bf16(sum);
}

/* Weights as the class takes them: rounded to bf16, or times the head's largest scale. */
static void class_weights(int numerics, int heads, const row *q, const float *weights, float *out) {
    for (int h = 0; h < heads; h++) {
        float w = numerics == ORACLE_EXACT ? weights[h] : to_bf16(weights[h]);
        int factored = numerics == ORACLE_EXACT || numerics == ORACLE_BF16;
        out[h] = factored ? (float)((double)w * oracle_pow2(q[h].top)) : w;
    }
}

static float score(int numerics, const row *q, const row *k, int heads, int groups,
                   const float *weights) {
    switch (numerics) {
    case ORACLE_EXACT:
        return exact_score(q, k, heads, groups, weights);
    case ORACLE_BF16:
        return to_bf16(exact_score(q, k, heads, groups, weights));
    case ORACLE_DG_BF16:
        return dg_score(q, k, heads, groups, weights);
    default:
        return ref_score(q, k, heads, groups, weights);
    }
}

void oracle_scores(int numerics, int heads, int d, const uint8_t *q_codes, const uint8_t *q_scales,
                   const float *weights, const uint8_t *k_codes, int64_t k_codes_stride,
                   const uint8_t *k_scales, int64_t k_scales_stride, int64_t n, float *scores) {
    int groups = d / 32, nan = 0;
    row *q = oracle_alloc((size_t)heads, sizeof *q), k;
    float *w = oracle_alloc((size_t)heads, sizeof *w);
    for (int h = 0; h < heads; h++) {
        decode(q + h, groups, q_codes + h * (d / 2), q_scales + h * groups);
        nan |= q[h].nan || isnan(weights[h]);
    }
    class_weights(numerics, heads, q, weights, w);
    for (int64_t j = 0; j < n; j++) {
        decode(&k, groups, k_codes + j * k_codes_stride, k_scales + j * k_scales_stride);
        float s = nan || k.nan ? NAN : score(numerics, q, &k, heads, groups, w);
        scores[j] = oracle_canonical(s);
    }
    free(q);
    free(w);
}
