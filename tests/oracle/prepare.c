/* SPDX-License-Identifier: MIT */
/*
 * prepare.c: quantising, and preparing q, weights and k (spec 2 and 3).
 * The code of a value is found by measuring its distance to all eight magnitudes.
 */
#include "oracle.h"

#include <math.h>

#include "number.h"

static const double magnitudes[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};

/* Nearest of the eight, the even code where two are equally near. */
static uint8_t nearest(double x) {
    int best = 0;
    for (int m = 1; m < 8; m++) {
        double d = fabs(fabs(x) - magnitudes[m]), least = fabs(fabs(x) - magnitudes[best]);
        if (d < least || (d == least && m % 2 == 0)) {
            best = m;
        }
    }
    return (uint8_t)(best | (signbit(x) ? 8 : 0));
}

void oracle_mxfp4(const float x[32], uint8_t codes[16], uint8_t *scale) {
    double amax = 6 * oracle_pow2(-126);
    int finite = 1;
    for (int i = 0; i < 32; i++) {
        finite = finite && isfinite(x[i]);
        amax = fabs((double)x[i]) > amax ? fabs((double)x[i]) : amax;
        codes[i / 2] = 0;
    }
    *scale = 255;
    if (!finite) {
        return;
    }
    /* f32(1/6) is 11184811 * 2^-26; the product of two f32 is exact in double and rounded here. */
    float least = (float)(amax * (11184811 * oracle_pow2(-26)));
    int e = 0;
    while (oracle_pow2(e - 127) < (double)least) {
        e++;
    }
    *scale = (uint8_t)e;
    for (int i = 0; i < 32; i++) {
        uint8_t code = nearest((double)x[i] * oracle_pow2(127 - e));
        codes[i / 2] = (uint8_t)(codes[i / 2] | code << (i % 2 * 4));
    }
}

/* The last 64 dims turned in adjacent pairs; everything rounded to bf16. */
static void rotate(float *x, int d, const float *cos_sin) {
    for (int i = 0; i < 32; i++) {
        float *pair = x + d - 64 + 2 * i;
        float c = cos_sin[i], s = cos_sin[32 + i];
        float ec = pair[0] * c, os = pair[1] * s, oc = pair[1] * c, es = pair[0] * s;
        pair[0] = oracle_from_bf16(oracle_bf16(ec - os));
        pair[1] = oracle_from_bf16(oracle_bf16(oc + es));
    }
}

static void quantise(const float *x, int d, uint8_t *codes, uint8_t *scales) {
    for (int g = 0; g < d / 32; g++) {
        oracle_mxfp4(x + 32 * g, codes + 16 * g, scales + g);
    }
}

void oracle_q_prepare(const uint16_t *x, int d, const float *cos_sin, uint8_t *codes,
                      uint8_t *scales) {
    float y[128];
    for (int i = 0; i < d; i++) {
        y[i] = oracle_from_bf16(x[i]);
    }
    rotate(y, d, cos_sin);
    quantise(y, d, codes, scales);
}

float oracle_weight(float w, int heads, int d) {
    float factor = (float)(1.0 / sqrt((double)(d * heads)));
    return (float)((double)w * (double)factor);
}

void oracle_k_prepare(const uint16_t *x, int d, const float *g, float eps, const float *cos_sin,
                      uint8_t *codes, uint8_t *scales) {
    float y[128], p[32];
    for (int i = 0; i < d; i++) {
        y[i] = oracle_from_bf16(x[i]);
    }
    for (int i = 0; i < 32; i++) {
        p[i] = y[i] * y[i];
        for (int j = i + 32; j < d; j += 32) {
            float square = y[j] * y[j];
            p[i] = p[i] + square;
        }
    }
    for (int n = 16; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            p[i] = p[i] + p[i + n];
        }
    }
    float mean = p[0] / (float)d, root = sqrtf(mean + eps), r = 1 / root;
    for (int i = 0; i < d; i++) {
        float scaled = y[i] * r;
        y[i] = oracle_from_bf16(oracle_bf16(scaled * g[i]));
    }
    rotate(y, d, cos_sin);
    quantise(y, d, codes, scales);
}
