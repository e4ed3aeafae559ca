/* SPDX-License-Identifier: MIT */
/*
 * types.h: the views that calls take. All memory is the caller's; strides are explicit; structs
 * hold fixed-width integers and pointers only, so that ctypes and cffi can mirror them.
 *
 * Words: a *row* is one query token; a *position* is one compressed position of a request's
 * context; a *block* is block_size consecutive positions; a *slot* is a place in a page.
 */
#ifndef TAMIS_TYPES_H
#define TAMIS_TYPES_H

#include <stdint.h>

#include <tamis/status.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { /* element types of float arrays */
       TAMIS_F32 = 1,
       TAMIS_BF16 = 2
};

enum { /* index-K layouts; D = head_dim */
       /* A page holds page_size slots: page_size * D/2 code bytes, slot-major, then page_size *
        * D/32 scale bytes. The servers' layout and the default. */
       TAMIS_K_MXFP4_PAGE = 1,
       /* Codes [rows][D/2] and scales [rows][D/32] behind two pointers ("ragged"). */
       TAMIS_K_MXFP4_SPLIT = 2,
       /* Rows of D/2 code bytes followed by D/32 scale bytes: 68 bytes at D = 128. */
       TAMIS_K_MXFP4_ROW = 3
};

enum { /* numerics classes */
       TAMIS_NUMERICS_EXACT = 1,
       TAMIS_NUMERICS_BF16 = 2,
       /* To judge other engines; the ref tier alone has them. */
       TAMIS_NUMERICS_DG_BF16 = 3,
       TAMIS_NUMERICS_REF_BF16 = 4
};

enum { /* limits of every tier */
       TAMIS_MAX_HEADS = 64,
       TAMIS_MAX_HEAD_DIM = 128,
       TAMIS_MAX_TOPK = 4096,
       TAMIS_MAX_BLOCKS = 4096
};

/* Index-K memory. Read-only to every call but tamis_k_insert. */
typedef struct tamis_k_cache {
    int32_t layout;    /* TAMIS_K_* */
    int32_t head_dim;  /* D: 64 or 128 */
    int32_t page_size; /* PAGE: slots per page, a multiple of 8; else 0 */
    int32_t reserved;  /* 0 */
    int64_t size;      /* PAGE: pages in the pool; SPLIT, ROW: rows */
    int64_t stride;    /* bytes. PAGE: page to page, >= page_size * (D/2 + D/32), multiple of 16;
                          SPLIT: code row to code row; ROW: row to row */
    int64_t scales_stride; /* bytes, SPLIT: scale row to scale row; else 0 */
    uint8_t *codes;        /* PAGE, ROW: the base of everything; SPLIT: codes. Any alignment */
    uint8_t *scales;       /* SPLIT: scales; else NULL */
} tamis_k_cache;

/*
 * The rows of a call and where each finds its K. Row r sees the len = max(ke[r] - ks[r], 0)
 * positions ks[r] .. ke[r]-1: of its request through the page table (PAGE), or of the K rows
 * themselves (SPLIT, ROW). Its *local* position j is ks[r] + j there. Lengths outside what K holds
 * are refused, never wrapped.
 */
typedef struct tamis_rows {
    int64_t count;             /* R >= 0 */
    const int32_t *ks;         /* [R] or NULL: all 0 */
    const int32_t *ke;         /* [R] */
    const int32_t *request;    /* [R] row of page_table, or NULL: all 0 */
    const int32_t *page_table; /* PAGE: [requests][page_table_stride] page ids, NULL only where no
                                  row sees anything; else NULL, or refused */
    int64_t page_table_stride; /* elements */
    int64_t page_table_width;  /* entries of a page-table row that may be read */
    int64_t requests;          /* rows of page_table */
} tamis_rows;

/* Prepared queries: MXFP4 codes [R][heads][D/2], scales [R][heads][D/32], weights [R][heads]. */
typedef struct tamis_query {
    int32_t heads;              /* 4..64, a multiple of 4 */
    int32_t head_dim;           /* D: 64 or 128 */
    int32_t weights_type;       /* TAMIS_F32 or TAMIS_BF16 */
    int32_t reserved;           /* 0 */
    const uint8_t *codes;       /* any alignment */
    const uint8_t *scales;      /* any alignment */
    const void *weights;        /* aligned to its element */
    int64_t codes_row_stride;   /* bytes */
    int64_t codes_head_stride;  /* bytes */
    int64_t scales_row_stride;  /* bytes */
    int64_t scales_head_stride; /* bytes */
    int64_t weights_row_stride; /* elements */
} tamis_query;

/*
 * Where selections go. Each output may be NULL. A row's positions are local (0 = its first visible
 * position), ascending, leading-valid: the unused tail holds -1 (scores: -inf).
 */
typedef struct tamis_selection {
    int32_t topk;             /* 1..4096 */
    int32_t reserved;         /* 0 */
    int32_t *positions;       /* [R][topk] */
    int64_t positions_stride; /* elements */
    int64_t *slots;           /* [R][topk] PAGE: page * page_size + slot; SPLIT, ROW: K row */
    int64_t slots_stride;     /* elements */
    float *scores;            /* [R][topk]; NaN as 0x7FC00000, -0 as +0 */
    int64_t scores_stride;    /* elements */
    int32_t *counts;          /* [R] valid entries */
} tamis_selection;

#ifdef __cplusplus
}
#endif
#endif
