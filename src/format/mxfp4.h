/* SPDX-License-Identifier: MIT */
/*
 * mxfp4.h: E2M1 codes, UE8M0 scales and the quantiser (spec 2), one group at a time.
 *
 * Values are handled as *doubled* E2M1 (0, 1, 2, 3, 4, 6, 8, 12): small whole numbers, so that a
 * dot of 32 elements is an integer of at most 4,608.
 */
#ifndef TAMIS_FORMAT_MXFP4_H
#define TAMIS_FORMAT_MXFP4_H

#include "bf16.h"

enum {
    TAMIS_GROUP = 32,    /* elements that share a scale */
    TAMIS_MAX_GROUPS = 4 /* of a head: 128 / 32 */
};

#define TAMIS_SCALE_NAN 255
#define TAMIS_NAN_BITS  0x7FC00000u

/* Doubled value of a code: sign << 3 | magnitude. Code 8 is -0: zero here. */
TAMIS_INLINE int8_t tamis_e2m1_doubled(uint32_t code) {
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return doubled[code & 15u];
}

/* 2^(byte - 127). Byte 0 is 2^-127, a subnormal f32; byte 255 is NaN. */
TAMIS_INLINE float tamis_ue8m0(uint32_t byte) {
    if (byte == TAMIS_SCALE_NAN) {
        return tamis_f32_of_bits(TAMIS_NAN_BITS);
    }
    return tamis_f32_of_bits(byte == 0 ? 0x00400000u : byte << 23);
}

/* Code of a value already divided by its scale: to nearest, ties to the even code, at most 6. */
TAMIS_INLINE uint8_t tamis_e2m1_from_f32(float x) {
    float a = fabsf(x);
    uint32_t sign = tamis_f32_bits(x) >> 31 << 3;
    uint32_t m = (uint32_t)(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                 (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)(sign | m);
}

/* Scale byte of a group whose largest magnitude is amax (finite). */
TAMIS_INLINE uint8_t tamis_scale_from_amax(float amax) {
    float least = 6.0f * 0x1p-126f;
    float sixth = (amax > least ? amax : least) * (1.0f / 6.0f);
    return (uint8_t)((tamis_f32_bits(sixth) + 0x7FFFFFu) >> 23);
}

/*
 * Quantises 32 values: element 2i in the low nibble of codes[i]. A NaN or infinity makes the scale
 * NaN and the codes 0, so that the row scores NaN.
 */
TAMIS_INLINE void tamis_mxfp4_quantise(const float x[TAMIS_GROUP], uint8_t codes[TAMIS_GROUP / 2],
                                       uint8_t *scale) {
    uint32_t amax = 0; /* bits of a magnitude order as the magnitude does */
    for (int i = 0; i < TAMIS_GROUP; i++) {
        uint32_t bits = tamis_f32_bits(x[i]) & 0x7FFFFFFFu;
        amax = bits > amax ? bits : amax;
    }
    if (amax >= 0x7F800000u) {
        memset(codes, 0, TAMIS_GROUP / 2);
        *scale = TAMIS_SCALE_NAN;
        return;
    }
    *scale = tamis_scale_from_amax(tamis_f32_of_bits(amax));
    /* The byte is 1..253, so its inverse is normal; a product that underflows is far below .25. */
    float inverse = tamis_f32_of_bits((254u - *scale) << 23);
    for (int i = 0; i < TAMIS_GROUP / 2; i++) {
        uint32_t low = tamis_e2m1_from_f32(x[2 * i] * inverse);
        uint32_t high = tamis_e2m1_from_f32(x[2 * i + 1] * inverse);
        codes[i] = (uint8_t)(low | high << 4);
    }
}

/* Doubled values of a row of d codes. */
TAMIS_INLINE void tamis_mxfp4_decode(const uint8_t *codes, int d, int8_t *doubled) {
    for (int i = 0; i < d / 2; i++) {
        doubled[2 * i] = tamis_e2m1_doubled(codes[i]);
        doubled[2 * i + 1] = tamis_e2m1_doubled((uint32_t)codes[i] >> 4);
    }
}

#endif
