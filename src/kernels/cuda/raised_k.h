/* SPDX-License-Identifier: MIT */
/*
 * raised_k.h: K of a step's requests with many rows, decoded once for all rows and layers.
 *
 * A position is 128 signed bytes, doubled codes raised by 3 - depth of their group below the
 * largest. Two neighbouring positions are interleaved, so that a lane reads an A fragment of an
 * integer MMA by one load that coalesces: 16 bytes from 64 * j + 16 * c on of the 256 are step j of
 * lane c of four: in turn four bytes of the first and of the second, dims 32 * c + 8 * j on, then
 * four dims on. A position's scale is that of its largest group: NaN where a group's is, negative
 * where the span exceeds 3 (the bytes are then anything). Positions of a request lie one after
 * another, those up to the next multiple of 64 are zeros.
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
