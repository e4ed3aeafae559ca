/* SPDX-License-Identifier: MIT */
/* q_prepare_avx2.c: queries rotated and quantised, weights scaled (spec 3). */
#include <math.h>

#include "kernels/kernels.h"
#include "prepare_avx2.h"

static void prepare_head(const tamis_q_prepare_args *args, int64_t t, int h) {
    const uint16_t *q = args->q + t * args->q_token_stride + h * args->q_head_stride;
    float x[TAMIS_MAX_HEAD_DIM];
    for (int i = 0; i < args->head_dim; i += 8) {
        _mm256_storeu_ps(x + i, tamis_load8(q, TAMIS_BF16, i));
    }
    tamis_rotate_avx2(x, args->head_dim, &args->rope, args->positions[t]);
    tamis_store_row_avx2(x, args->head_dim,
                         args->codes + t * args->codes_row_stride + h * args->codes_head_stride,
                         args->scales + t * args->scales_row_stride + h * args->scales_head_stride);
}

void tamis_q_prepare_avx2(const tamis_q_prepare_args *args, int32_t ith, int32_t nth) {
    float scale = (float)(1.0 / sqrt((double)args->head_dim * args->heads));
    int64_t t, end;
    tamis_slice(args->tokens, ith, nth, &t, &end);
    for (; t < end; t++) {
        for (int h = 0; h < args->heads; h++) {
            prepare_head(args, t, h);
        }
        for (int h = 0; args->weights_in && h < args->heads; h++) {
            float w = tamis_load_float(args->weights_in, args->weights_in_type,
                                       t * args->weights_in_stride + h);
            tamis_store_float(args->weights_out, args->weights_out_type,
                              t * args->weights_out_stride + h, w * scale);
        }
    }
}
