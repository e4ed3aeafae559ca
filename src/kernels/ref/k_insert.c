/* SPDX-License-Identifier: MIT */
/* k_insert.c: keys normalised, rotated, quantised and stored in their slots (spec 3). */
#include <math.h>

#include "cache/address.h"
#include "kernels/kernels.h"
#include "kernels/ref/prepare.h"

/* 1 / sqrt(mean square + eps), the sum in the order that the specification fixes. */
static float inverse_rms(const float *x, int d, float eps) {
    float p[TAMIS_GROUP];
    for (int i = 0; i < TAMIS_GROUP; i++) {
        p[i] = x[i] * x[i];
        for (int j = i + TAMIS_GROUP; j < d; j += TAMIS_GROUP) {
            p[i] += x[j] * x[j];
        }
    }
    for (int n = TAMIS_GROUP / 2; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            p[i] += p[i + n];
        }
    }
    return 1.0f / sqrtf(p[0] / (float)d + eps);
}

static void insert(const tamis_k_insert_args *args, int64_t t) {
    int d = args->k.head_dim;
    float x[TAMIS_MAX_HEAD_DIM];
    for (int i = 0; i < d; i++) {
        x[i] = tamis_f32_from_bf16(args->x[t * args->x_stride + i]);
    }
    float r = inverse_rms(x, d, *args->eps);
    for (int i = 0; i < d; i++) {
        float g = tamis_load_float(args->norm_weight, args->norm_weight_type, i);
        x[i] = tamis_round_bf16((x[i] * r) * g);
    }
    tamis_ref_rotate(x, d, &args->rope, args->positions[t] / args->ratio * args->ratio);
    tamis_k_row row = tamis_k_at_slot(&args->k, args->slots[t]);
    tamis_ref_store_row(x, d, row.codes, row.scales);
}

void tamis_k_insert_ref(const tamis_k_insert_args *args, int32_t ith, int32_t nth) {
    int64_t t, end;
    tamis_slice(args->tokens, ith, nth, &t, &end);
    for (; t < end; t++) {
        if (args->slots[t] >= 0 && (args->positions[t] + 1) % args->ratio == 0) {
            insert(args, t);
        }
    }
}
