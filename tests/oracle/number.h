/* SPDX-License-Identifier: MIT */
/*
 * number.h: exact numbers of the oracle. A number is a sum of terms m * 2^e, never stored as one
 * float; it is rounded by asking a wide integer on which side of a midpoint it lies.
 */
#ifndef TAMIS_ORACLE_NUMBER_H
#define TAMIS_ORACLE_NUMBER_H

#include <stddef.h>
#include <stdint.h>

typedef struct oracle_term {
    int64_t m; /* |m| < 2^62 */
    int e;     /* -512 .. 300 */
} oracle_term;

/* The sum of n <= 4 terms rounded once, ties to even, to f32 or to bf16; +0 when it is zero. */
float oracle_round_f32(const oracle_term *terms, int n);
float oracle_round_bf16(const oracle_term *terms, int n);

/* A double rounded once to bf16. Exact: subnormals, overflow and the sign of zero included. */
float oracle_bf16_of_double(double x);

/* bf16(a * b + c), rounded once. */
float oracle_bf16_fma(float a, float b, float c);

/* 2^e for -1022 <= e <= 1023. */
double oracle_pow2(int e);

/* The NaN that scores are stored as when x is NaN, else x. */
float oracle_canonical(float x);

/* malloc that ends the program when there is no memory: the oracle has no other way to say so. */
void *oracle_alloc(size_t count, size_t size);

#endif
