/* SPDX-License-Identifier: MIT */
/* prepare.h: rotation and quantisation of one head, shared by q_prepare and k_insert (spec 3). */
#ifndef TAMIS_KERNELS_REF_PREPARE_H
#define TAMIS_KERNELS_REF_PREPARE_H

#include "format/mxfp4.h"
#include "kernels/order.h"

enum { TAMIS_ROPE_DIMS = 64, TAMIS_ROPE_PAIRS = 32 };

/* Rotates the last 64 of d values in place: each product and sum rounded, never contracted. */
static inline void tamis_ref_rotate(float *x, int d, const tamis_rope *rope, int64_t position) {
    float *pair = x + d - TAMIS_ROPE_DIMS;
    for (int i = 0; i < TAMIS_ROPE_PAIRS; i++, pair += 2) {
        int64_t at = position * rope->row_stride + i;
        float c = tamis_load_float(rope->table, rope->type, at);
        float s = tamis_load_float(rope->table, rope->type, at + TAMIS_ROPE_PAIRS);
        float e = pair[0], o = pair[1];
        pair[0] = e * c - o * s;
        pair[1] = o * c + e * s;
    }
}

/* Rounds d values to bf16 and quantises them. */
static inline void tamis_ref_store_row(const float *x, int d, uint8_t *codes, uint8_t *scales) {
    for (int g = 0; g < d / TAMIS_GROUP; g++) {
        float group[TAMIS_GROUP];
        for (int i = 0; i < TAMIS_GROUP; i++) {
            group[i] = tamis_round_bf16(x[TAMIS_GROUP * g + i]);
        }
        tamis_mxfp4_quantise(group, codes + TAMIS_GROUP / 2 * g, scales + g);
    }
}

#endif
