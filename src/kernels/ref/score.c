/* SPDX-License-Identifier: MIT */
/* score.c: see score.h. */
#include <math.h>

#include "score.h"

/* One K row, decoded. */
typedef struct ref_key {
    int8_t doubled[TAMIS_MAX_HEAD_DIM];
    int32_t exponent; /* e_j: the largest of the row */
    int32_t shift[TAMIS_MAX_GROUPS];
} ref_key;

/* Largest exponent of a row's groups and each group's distance to it. Returns 1 on a NaN byte. */
static int load_scales(const uint8_t *scales, int groups, int32_t *exponent, int32_t *shift) {
    int largest = 0, nan = 0;
    for (int g = 0; g < groups; g++) {
        largest = scales[g] > largest ? scales[g] : largest;
        nan |= scales[g] == TAMIS_SCALE_NAN;
    }
    for (int g = 0; g < groups; g++) {
        shift[g] = largest - scales[g];
    }
    *exponent = largest - 127;
    return nan;
}

void tamis_ref_query_load(tamis_ref_query *q, const tamis_query *query, int32_t numerics,
                          int64_t r) {
    const uint8_t *codes = query->codes + r * query->codes_row_stride;
    const uint8_t *scales = query->scales + r * query->scales_row_stride;
    q->heads = query->heads;
    q->head_dim = query->head_dim;
    q->groups = query->head_dim / TAMIS_GROUP;
    q->numerics = numerics;
    q->nan = 0;
    for (int h = 0; h < q->heads; h++) {
        float w = tamis_load_float(query->weights, query->weights_type,
                                   r * query->weights_row_stride + h);
        tamis_mxfp4_decode(codes + h * query->codes_head_stride, q->head_dim, q->doubled[h]);
        q->nan |= load_scales(scales + h * query->scales_head_stride, q->groups, &q->exponent[h],
                              q->shift[h]);
        q->nan |= tamis_is_nan(w);
        q->weight[h] = numerics == TAMIS_NUMERICS_EXACT ? w : tamis_round_bf16(w);
        q->scaled[h] = ldexpf(q->weight[h], q->exponent[h]);
    }
}

/* The dot of head h and the key times 2^-(e_j + e_rh) * 2^exponent, exact, rounded once. */
static float dot(const tamis_ref_query *q, const ref_key *k, int h, int exponent) {
    int32_t integers[TAMIS_MAX_GROUPS], shifts[TAMIS_MAX_GROUPS];
    for (int g = 0; g < q->groups; g++) {
        const int8_t *a = q->doubled[h] + TAMIS_GROUP * g, *b = k->doubled + TAMIS_GROUP * g;
        int32_t sum = 0;
        for (int i = 0; i < TAMIS_GROUP; i++) {
            sum += a[i] * b[i];
        }
        integers[g] = sum;
        shifts[g] = q->shift[h][g] + k->shift[g];
    }
    return tamis_dot_round(integers, shifts, q->groups, exponent);
}

static float relu(float x) {
    return x > 0 ? x : 0.0f;
}

/* Classes exact and bf16: the factored form, four chains of FMA. */
static float score_exact(const tamis_ref_query *q, const ref_key *k) {
    float p[4] = {0, 0, 0, 0};
    for (int h = 0; h < q->heads; h++) {
        int t = h % 8 / 2;
        p[t] = fmaf(q->scaled[h], relu(dot(q, k, h, 0)), p[t]);
    }
    return ((p[0] + p[1]) + (p[2] + p[3])) * tamis_ue8m0((uint32_t)(k->exponent + 127));
}

/* a * b + c of bf16 values, exact, rounded once to bf16: rounded to odd in double on the way. */
static float bf16_fma(float a, float b, float c) {
    double product = (double)a * b; /* 16 bits: exact */
    double sum = product + c;
    double part = sum - product;
    double error = (product - (sum - part)) + (c - part);
    uint64_t bits;
    if (!(sum - sum == 0)) {
        return (float)sum;
    }
    memcpy(&bits, &sum, sizeof bits);
    if (error != 0 && (bits & 1u) == 0) {
        sum = nextafter(sum, error > 0 ? INFINITY : -INFINITY);
    }
    return tamis_round_bf16_from_double(sum);
}

/* The DeepGEMM family's sparse kernels: bf16 chains by h mod 4. */
static float score_dg(const tamis_ref_query *q, const ref_key *k) {
    float c[4] = {0, 0, 0, 0};
    for (int h = 0; h < q->heads; h++) {
        float d = dot(q, k, h, q->exponent[h] + k->exponent);
        c[h % 4] = bf16_fma(tamis_round_bf16(relu(d)), q->weight[h], c[h % 4]);
    }
    float even = bf16_fma(c[0], 1.0f, c[2]), odd = bf16_fma(c[1], 1.0f, c[3]);
    return bf16_fma(even, 1.0f, odd);
}

/* The released reference: bf16 dots and products, f32 sum over heads. */
static float score_released(const tamis_ref_query *q, const ref_key *k) {
    float sum = 0;
    for (int h = 0; h < q->heads; h++) {
        float d = tamis_round_bf16(dot(q, k, h, q->exponent[h] + k->exponent));
        sum += tamis_round_bf16(relu(d) * q->weight[h]);
    }
    return tamis_round_bf16(sum);
}

float tamis_ref_score(const tamis_ref_query *q, tamis_k_row row) {
    float nan = tamis_f32_of_bits(TAMIS_NAN_BITS), score;
    ref_key k;
    if (load_scales(row.scales, q->groups, &k.exponent, k.shift) || q->nan) {
        return nan;
    }
    tamis_mxfp4_decode(row.codes, q->head_dim, k.doubled);
    switch (q->numerics) {
    case TAMIS_NUMERICS_DG_BF16:
        score = score_dg(q, &k);
        break;
    case TAMIS_NUMERICS_REF_BF16:
        score = score_released(q, &k);
        break;
    case TAMIS_NUMERICS_BF16:
        score = tamis_round_bf16(score_exact(q, &k));
        break;
    default:
        score = score_exact(q, &k);
    }
    return tamis_is_nan(score) ? nan : score;
}
