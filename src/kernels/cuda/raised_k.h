/* SPDX-License-Identifier: MIT */
/*
 * raised_k.h: K of a step's requests with many rows, decoded once for all rows and layers.
 *
 * A position is 128 signed bytes, doubled codes raised by 3 - depth of their group below the
 * largest; 16 bytes h of group c lie at 16 * (4 * h + c), so that lane c of four reads its A
 * fragments of an integer MMA by two aligned loads that coalesce. Its scale is that of the largest
 * group: NaN where a group's is, negative where the span exceeds 3 (the bytes are then anything).
 * Positions of a request lie one after another, those up to the next multiple of 64 are zeros.
 */
#ifndef TAMIS_CUDA_RAISED_K_H
#define TAMIS_CUDA_RAISED_K_H

#include <tamis/tamis.h>

enum { TAMIS_RAISED_TILE = 64, TAMIS_RAISED_BYTES = 128 + 4 /* a position */ };

typedef struct tamis_raised_k {
    uint8_t *codes; /* NULL: nothing is decoded */
    float *scales;
    int32_t *first;  /* [requests] position of its first, a multiple of 64, or -1: not here */
    int32_t *length; /* [requests] positions */
} tamis_raised_k;

typedef struct tamis_raise_args {
    tamis_raised_k to;
    tamis_k_cache k; /* 32 x 128, pages */
    const int32_t *page_table;
    int64_t page_table_stride, requests;
} tamis_raise_args;

#endif
