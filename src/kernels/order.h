/* SPDX-License-Identifier: MIT */
/*
 * order.h: the total order of scores (spec 4.3) as unsigned keys: a better score has a larger key.
 * NaN is 0, below -inf; both zeros share a key; the key of +inf is 0xFF800000, which leaves room
 * above it for a block that comes first by rule.
 */
#ifndef TAMIS_KERNELS_ORDER_H
#define TAMIS_KERNELS_ORDER_H

#include <tamis/types.h>

#include "format/mxfp4.h"

#define TAMIS_KEY_PINNED 0xFFFFFFFFu

TAMIS_INLINE uint32_t tamis_order_key(float score) {
    uint32_t bits = tamis_f32_bits(score);
    if (tamis_is_nan(score)) {
        return 0;
    }
    if (bits == 0x80000000u) {
        bits = 0;
    }
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* A score as it is handed out: one NaN, one zero. */
TAMIS_INLINE float tamis_canonical(float score) {
    if (tamis_is_nan(score)) {
        return tamis_f32_of_bits(TAMIS_NAN_BITS);
    }
    return score + 0.0f; /* -0 becomes +0 */
}

/* Element i of an array of f32 or bf16, as f32. */
TAMIS_INLINE float tamis_load_float(const void *array, int32_t type, int64_t i) {
    return type == TAMIS_BF16 ? tamis_f32_from_bf16(((const uint16_t *)array)[i])
                              : ((const float *)array)[i];
}

TAMIS_INLINE void tamis_store_float(void *array, int32_t type, int64_t i, float value) {
    if (type == TAMIS_BF16) {
        ((uint16_t *)array)[i] = tamis_bf16_from_f32(value);
    } else {
        ((float *)array)[i] = value;
    }
}

#endif
