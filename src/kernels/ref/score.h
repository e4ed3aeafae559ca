/* SPDX-License-Identifier: MIT */
/*
 * score.h: the score of one query row and one position (spec 4), in every numerics class.
 * The row is decoded once; every product and rounding stands where the specification has it.
 */
#ifndef TAMIS_KERNELS_REF_SCORE_H
#define TAMIS_KERNELS_REF_SCORE_H

#include "cache/address.h"
#include "format/dot.h"
#include "kernels/order.h"

/* One query row, decoded. */
typedef struct tamis_ref_query {
    int32_t heads, head_dim, groups, numerics;
    int32_t nan; /* a NaN scale byte or weight in the row */
    int8_t doubled[TAMIS_MAX_HEADS][TAMIS_MAX_HEAD_DIM];
    int32_t exponent[TAMIS_MAX_HEADS];                /* e_rh: the largest of the head */
    int32_t shift[TAMIS_MAX_HEADS][TAMIS_MAX_GROUPS]; /* e_rh - the group's exponent */
    float weight[TAMIS_MAX_HEADS];                    /* as given, or rounded to bf16 */
    float scaled[TAMIS_MAX_HEADS];                    /* w' = f32(w * 2^e_rh) */
} tamis_ref_query;

void tamis_ref_query_load(tamis_ref_query *q, const tamis_query *query, int32_t numerics,
                          int64_t r);

/* score(row, K row) as f32; NaN is TAMIS_NAN_BITS. */
float tamis_ref_score(const tamis_ref_query *q, tamis_k_row k);

#endif
