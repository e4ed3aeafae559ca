/* SPDX-License-Identifier: MIT */
/* number.c: exact sums and their single rounding. */
#include "number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

enum { LIMBS = 29, UNIT = 520, INFINITY_BITS = 0x7F800000 };

double oracle_pow2(int e) {
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

float oracle_canonical(float x) {
    return x != x ? from_bits(0x7FC00000u) : x;
}

void *oracle_alloc(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) {
        abort();
    }
    return p;
}

/* Adds m * 2^e to a number of 32-bit digits (kept in 64 bits, carries pending) in units of 2^-520.
 */
static void add_term(int64_t *digits, int64_t m, int e) {
    int shift = e + UNIT, at = shift / 32;
    unsigned __int128 wide = (unsigned __int128)(m < 0 ? -m : m) << (shift % 32);
    int64_t sign = m < 0 ? -1 : 1;
    for (int i = 0; i < 3; i++) {
        digits[at + i] += sign * (int64_t)(uint32_t)(wide >> (32 * i));
    }
}

static int sign_of(const int64_t *digits) {
    int64_t carry = 0, any = 0;
    for (int i = 0; i < LIMBS; i++) {
        int64_t v = digits[i] + carry;
        carry = v >> 32;
        any |= v & 0xFFFFFFFF;
    }
    return carry < 0 ? -1 : (any != 0 || carry != 0);
}

/* A positive f32 pattern as a term; the pattern of infinity reads as 2^128, as rounding wants it.
 */
static oracle_term term_of(uint32_t bits) {
    int exponent = (int)(bits >> 23);
    int64_t m = bits & 0x7FFFFF;
    return (oracle_term){exponent ? m | 0x800000 : m, (exponent ? exponent : 1) - 150};
}

/* Whether |sum| rounds to a pattern above `bits`, where patterns are `step` apart. */
static int rounds_above(const oracle_term *terms, int n, int sign, uint32_t bits, uint32_t step) {
    int64_t digits[LIMBS] = {0};
    for (int i = 0; i < n; i++) {
        add_term(digits, sign * terms[i].m, terms[i].e + 1);
    }
    oracle_term low = term_of(bits), high = term_of(bits + step);
    add_term(digits, -low.m, low.e);
    add_term(digits, -high.m, high.e);
    int side = sign_of(digits);
    return side > 0 || (side == 0 && (bits / step) % 2 == 1);
}

/* The answer is the lowest pattern that the sum does not round above: a guess, else bisection. */
static float round_to(const oracle_term *terms, int n, uint32_t step) {
    int64_t digits[LIMBS] = {0};
    double guess = 0;
    for (int i = 0; i < n; i++) {
        add_term(digits, terms[i].m, terms[i].e);
        guess += (double)terms[i].m * oracle_pow2(terms[i].e);
    }
    int sign = sign_of(digits);
    if (sign == 0) {
        return 0;
    }
    uint32_t bits = to_bits((float)fabs(guess)) / step * step;
    for (int i = 0; i < 2 && bits + step <= INFINITY_BITS; i++, bits += step) {
        if ((bits == 0 || rounds_above(terms, n, sign, bits - step, step)) &&
            !rounds_above(terms, n, sign, bits, step)) {
            return (float)sign * from_bits(bits);
        }
    }
    uint32_t low = 0, high = INFINITY_BITS / step;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (rounds_above(terms, n, sign, middle * step, step)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return (float)sign * from_bits(low * step);
}

float oracle_round_f32(const oracle_term *terms, int n) {
    return round_to(terms, n, 1);
}

float oracle_round_bf16(const oracle_term *terms, int n) {
    return round_to(terms, n, 0x10000);
}

/* x in units of its last bf16 place (never finer than the smallest subnormal), to a whole number.
 */
float oracle_bf16_of_double(double x) {
    if (!isfinite(x)) {
        return (float)x;
    }
    int exponent;
    (void)frexp(x, &exponent);
    int place = exponent - 8 < -133 ? -133 : exponent - 8;
    return (float)(nearbyint(x * oracle_pow2(-place)) * oracle_pow2(place));
}

/* 0 <= |x| finite as a signed term. */
static oracle_term signed_term(float x) {
    oracle_term t = term_of(to_bits(fabsf(x)));
    t.m = x < 0 ? -t.m : t.m;
    return t;
}

/* a * b is exact in double and so are the sum s and its error together. s rounds as the sum does,
 * except where s is inexact and falls on a midpoint: those go the wide way. */
float oracle_bf16_fma(float a, float b, float c) {
    double p = (double)a * (double)b, s = p + (double)c;
    if (!isfinite(s)) {
        return (float)s;
    }
    double part = s - p, error = (p - (s - part)) + ((double)c - part);
    if (error == 0) {
        return oracle_bf16_of_double(s);
    }
    oracle_term ta = signed_term(a), tb = signed_term(b);
    oracle_term terms[2] = {{ta.m * tb.m, ta.e + tb.e}, signed_term(c)};
    return oracle_round_bf16(terms, 2);
}

uint16_t oracle_bf16(float x) {
    return (uint16_t)(to_bits(oracle_canonical(oracle_bf16_of_double(x))) >> 16);
}

float oracle_from_bf16(uint16_t x) {
    return from_bits((uint32_t)x << 16);
}
