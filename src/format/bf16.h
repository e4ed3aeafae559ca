/* SPDX-License-Identifier: MIT */
/* bf16.h: bfloat16 as its 16 bits. Rounding is to nearest, ties to even; NaN becomes 0x7FC0. */
#ifndef TAMIS_FORMAT_BF16_H
#define TAMIS_FORMAT_BF16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "inline.h"

TAMIS_INLINE uint32_t tamis_f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TAMIS_INLINE float tamis_f32_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TAMIS_INLINE int tamis_is_nan(float x) {
    return (tamis_f32_bits(x) & 0x7FFFFFFFu) > 0x7F800000u;
}

TAMIS_INLINE float tamis_f32_from_bf16(uint16_t x) {
    return tamis_f32_of_bits((uint32_t)x << 16);
}

TAMIS_INLINE uint16_t tamis_bf16_from_f32(float x) {
    uint32_t bits = tamis_f32_bits(x);
    if (tamis_is_nan(x)) {
        return 0x7FC0;
    }
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/* An f32 rounded to bf16 and widened again. */
TAMIS_INLINE float tamis_round_bf16(float x) {
    return tamis_f32_from_bf16(tamis_bf16_from_f32(x));
}

/* A finite or infinite double rounded once to bf16 precision: quantum 2^-133 at the least. */
TAMIS_INLINE float tamis_round_bf16_from_double(double x) {
    int exponent;
    if (!(x - x == 0) || x == 0) {
        return (float)x;
    }
    frexp(x, &exponent); /* |x| in [2^(exponent-1), 2^exponent): 8 bits down from there */
    int quantum = exponent - 8 < -133 ? -133 : exponent - 8;
    return (float)ldexp(nearbyint(ldexp(x, -quantum)), quantum);
}

#endif
