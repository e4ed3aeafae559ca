/* SPDX-License-Identifier: MIT */
/*
 * raised_k.h: K of a step's requests with many rows, decoded once for all rows and layers.
 *
 * A position is 128 signed bytes, doubled codes raised by 3 - depth of their group below the
 * largest. Two neighbouring positions are interleaved, so that a lane reads an A fragment of an
 * integer MMA by one load, and a warp whole lines: of the 1,024 bytes of eight positions, 16 from
 * 256 * j + 64 * p + 16 * c on are step j of lane c of four, positions 2 * p and 2 * p + 1: in turn
 * four bytes of either, dims 32 * c + 8 * j on, then four dims on. A position's scale is that of
 * its largest group: NaN where a group's is, negative where the span exceeds 3 (the bytes are then
 * anything). Positions of a request lie one after another, those up to the next multiple of 64 are
 * zeros.
 *
 * It belongs to a stamp: the step, and the K and page table that it was decoded from. A consumer's
 * gate compares the stamp on the device and otherwise hides what is there, since graphs of layers
 * may be replayed in any order.
 */
#ifndef TAMIS_CUDA_RAISED_K_H
#define TAMIS_CUDA_RAISED_K_H

#include <tamis/tamis.h>

enum {
    TAMIS_RAISED_TILE = 64,
    TAMIS_RAISED_BYTES = 128 + 4, /* a position */
    /* Of a request, for its K to be decoded: at 128 rows a source measured 12 us less at 65,536
     * positions and 2 us more at 16,384, an H200's launches included. */
    TAMIS_RAISED_ROWS = 128,
    TAMIS_RAISED_MOST = 1 << 20 /* positions that a plan has room for */
};

typedef struct tamis_raised_k {
    uint8_t *codes; /* NULL: nothing is decoded */
    float *scales;
    int32_t *first;       /* [requests] position of its first, a multiple of 64, or -1: not here */
    int32_t *length;      /* [requests] positions */
    const int32_t *dense; /* [rows] of a consumer: above 0 in rows of the dense route; or NULL */
} tamis_raised_k;

/* Which K, as the layer that decodes it sees it. */
typedef struct tamis_raised_from {
    const uint8_t *codes;
    const int32_t *page_table;
    int64_t page_table_stride, requests;
    int64_t limit; /* positions of a request at most */
    int32_t owner; /* the layer whose K it is */
    int32_t reserved;
} tamis_raised_from;

typedef struct tamis_raised_stamp {
    uint64_t serial; /* of the step; 0: nothing whole is there */
    tamis_raised_from from;
} tamis_raised_stamp;

/* Chooses the requests and their places: the first ones whose positions fit, by their rows that see
 * anything, from the end of the room down, so that what is left of it lies behind the plan's
 * scratch. */
typedef struct tamis_place_args {
    tamis_raised_k to;
    tamis_raised_stamp *stamp; /* emptied */
    const int32_t *request, *ke;
    int32_t *count; /* [most] scratch */
    int64_t rows, requests;
    int64_t most;     /* requests of the plan: those past `requests` have no place */
    int64_t capacity; /* positions, a multiple of TAMIS_RAISED_TILE */
} tamis_place_args;

typedef struct tamis_raise_args {
    tamis_raised_k to;
    tamis_k_cache k; /* 32 x 128, pages */
    const int32_t *page_table;
    int64_t page_table_stride, requests;
    /* What is written when it is done; stamp NULL: nothing. */
    tamis_raised_stamp *stamp;
    const tamis_step_counts *counts;
    tamis_raised_from from;
} tamis_raise_args;

#endif
