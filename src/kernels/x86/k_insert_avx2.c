/* SPDX-License-Identifier: MIT */
/* k_insert_avx2.c: keys normalised, rotated, quantised and stored in their slots (spec 3). */
#include <math.h>

#include "cache/address.h"
#include "kernels/kernels.h"
#include "prepare_avx2.h"

/* 1 / sqrt(mean square + eps): squares 32 apart in order, then the fixed tree of halves. */
static float inverse_rms(const float *x, int d, float eps) {
    __m256 p[4];
    for (int i = 0; i < 4; i++) {
        __m256 v = _mm256_loadu_ps(x + 8 * i);
        p[i] = _mm256_mul_ps(v, v);
        for (int j = TAMIS_GROUP; j < d; j += TAMIS_GROUP) {
            v = _mm256_loadu_ps(x + 8 * i + j);
            p[i] = _mm256_add_ps(p[i], _mm256_mul_ps(v, v));
        }
    }
    __m256 eight = _mm256_add_ps(_mm256_add_ps(p[0], p[2]), _mm256_add_ps(p[1], p[3]));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    float sum = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    return 1.0f / sqrtf(sum / (float)d + eps);
}

static void insert(const tamis_k_insert_args *args, int64_t t) {
    int d = args->k.head_dim;
    float x[TAMIS_MAX_HEAD_DIM];
    for (int i = 0; i < d; i += 8) {
        _mm256_storeu_ps(x + i, tamis_load8(args->x, TAMIS_BF16, t * args->x_stride + i));
    }
    __m256 r = _mm256_set1_ps(inverse_rms(x, d, *args->eps));
    for (int i = 0; i < d; i += 8) {
        __m256 g = tamis_load8(args->norm_weight, args->norm_weight_type, i);
        __m256 y = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), r), g);
        _mm256_storeu_ps(x + i, tamis_round8_bf16(y));
    }
    tamis_rotate_avx2(x, d, &args->rope, args->positions[t] / args->ratio * args->ratio);
    tamis_k_row row = tamis_k_at_slot(&args->k, args->slots[t]);
    tamis_store_row_avx2(x, d, row.codes, row.scales);
}

void tamis_k_insert_avx2(const tamis_k_insert_args *args, int32_t ith, int32_t nth) {
    int64_t t, end;
    tamis_slice(args->tokens, ith, nth, &t, &end);
    for (; t < end; t++) {
        if (args->slots[t] >= 0 && (args->positions[t] + 1) % args->ratio == 0) {
            insert(args, t);
        }
    }
}
