/* SPDX-License-Identifier: MIT */
/*
 * dot.h: the exact dot of an MXFP4 query head and key, rounded once to f32 (spec 4.2).
 *
 * A group's dot in doubled values is an integer I_g, |I_g| <= 4,608; the dot is
 * sum_g I_g * 2^(-shift_g) * 2^(exponent - 2), where shift_g >= 0 says how far the group's two
 * scales lie below the largest of their rows (0..508). Close exponents fit an int64; any others are
 * summed in fixed point over all bits and rounded with a sticky bit.
 */
#ifndef TAMIS_FORMAT_DOT_H
#define TAMIS_FORMAT_DOT_H

#include "mxfp4.h"

enum {
    TAMIS_DOT_SPAN = 48,       /* largest shift of the int64 path: 4 * 4608 << 48 < 2^63 */
    TAMIS_DOT_MAX_SHIFT = 508, /* 254 of q and 254 of K */
    TAMIS_DOT_LIMBS = 17       /* of 32 bits: 508 + 13 + 2 bits and a sign */
};

/* Bits [from, from + 24] of a magnitude as an integer; bits past its end are 0. */
TAMIS_INLINE uint32_t tamis_dot_bits(const uint32_t *limbs, int from) {
    uint64_t window = 0;
    for (int i = 0; i < 2; i++) {
        int limb = from / 32 + i;
        window |= (uint64_t)(limb < TAMIS_DOT_LIMBS ? limbs[limb] : 0) << (32 * i);
    }
    return (uint32_t)(window >> (from % 32)) & 0x1FFFFFFu;
}

TAMIS_INLINE int tamis_dot_any_below(const uint32_t *limbs, int bit) {
    for (int i = 0; i < TAMIS_DOT_LIMBS && 32 * i < bit; i++) {
        uint32_t mask = bit - 32 * i >= 32 ? 0xFFFFFFFFu : (1u << (bit - 32 * i)) - 1u;
        if (limbs[i] & mask) {
            return 1;
        }
    }
    return 0;
}

/* Adds I * 2^bit in two's complement. */
TAMIS_INLINE void tamis_dot_add(uint32_t *limbs, int32_t integer, int bit) {
    int64_t term = (int64_t)integer * (INT64_C(1) << (bit % 32));
    uint64_t carry = 0;
    for (int i = bit / 32, k = 0; i < TAMIS_DOT_LIMBS; i++, k++) {
        uint32_t part = k < 2 ? (uint32_t)((uint64_t)term >> (32 * k)) : (term < 0 ? ~0u : 0u);
        carry += (uint64_t)limbs[i] + part;
        limbs[i] = (uint32_t)carry;
        carry >>= 32;
    }
}

/* Makes limbs their magnitude; returns whether they were negative. */
TAMIS_INLINE int tamis_dot_magnitude(uint32_t *limbs) {
    int negative = limbs[TAMIS_DOT_LIMBS - 1] >> 31 != 0;
    uint64_t carry = 1;
    for (int i = 0; negative && i < TAMIS_DOT_LIMBS; i++) {
        carry += (uint32_t)~limbs[i];
        limbs[i] = (uint32_t)carry;
        carry >>= 32;
    }
    return negative;
}

/* The exact dot by fixed point, unit 2^(exponent - 510), rounded once: ties to even. */
TAMIS_INLINE float tamis_dot_wide(const int32_t *integers, const int32_t *shifts, int groups,
                                  int exponent) {
    uint32_t limbs[TAMIS_DOT_LIMBS] = {0};
    int unit = exponent - 2 - TAMIS_DOT_MAX_SHIFT, top = TAMIS_DOT_LIMBS * 32 - 1;
    for (int g = 0; g < groups; g++) {
        tamis_dot_add(limbs, integers[g], TAMIS_DOT_MAX_SHIFT - shifts[g]);
    }
    int negative = tamis_dot_magnitude(limbs);
    while (top >= 0 && !(limbs[top / 32] >> (top % 32) & 1u)) {
        top--;
    }
    if (top < 0) {
        return 0.0f;
    }
    /* The lowest bit kept: 24 bits down from the top, but none below 2^-149. */
    int low = top - 23 > -149 - unit ? top - 23 : -149 - unit;
    low = low < 0 ? 0 : low;
    if (low > top + 1) {
        return 0.0f; /* below half of the least subnormal */
    }
    uint32_t mantissa = tamis_dot_bits(limbs, low) & 0xFFFFFFu;
    if (low > 0) {
        uint32_t half = tamis_dot_bits(limbs, low - 1) & 1u;
        uint32_t sticky = (uint32_t)tamis_dot_any_below(limbs, low - 1);
        mantissa += half & (sticky | (mantissa & 1u));
    }
    float magnitude = ldexpf((float)mantissa, unit + low);
    return negative ? -magnitude : magnitude;
}

/* f32(sum_g integers[g] * 2^(exponent - 2 - shifts[g])), rounded once. */
TAMIS_INLINE float tamis_dot_round(const int32_t *integers, const int32_t *shifts, int groups,
                                   int exponent) {
    int64_t sum = 0;
    int span = 0;
    for (int g = 0; g < groups; g++) {
        span = shifts[g] > span ? shifts[g] : span;
    }
    /* Between 2^(-64 - 50) and 2^(64 + 13) nothing is subnormal and nothing overflows. */
    if (span > TAMIS_DOT_SPAN || exponent < -64 || exponent > 64) {
        return tamis_dot_wide(integers, shifts, groups, exponent);
    }
    for (int g = 0; g < groups; g++) {
        sum += integers[g] * (INT64_C(1) << (TAMIS_DOT_SPAN - shifts[g]));
    }
    return (float)sum * tamis_f32_of_bits((uint32_t)(exponent - TAMIS_DOT_SPAN - 2 + 127) << 23);
}

#endif
