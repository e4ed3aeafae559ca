/* SPDX-License-Identifier: MIT */
/* address.h: where a position's K lies (spec 2). All arithmetic is 64-bit. */
#ifndef TAMIS_CACHE_ADDRESS_H
#define TAMIS_CACHE_ADDRESS_H

#include <stddef.h>

#include <tamis/types.h>

#include "format/inline.h"

typedef struct tamis_k_row {
    uint8_t *codes;  /* D/2 bytes */
    uint8_t *scales; /* D/32 bytes */
} tamis_k_row;

/* K of a slot: PAGE: page * page_size + slot; SPLIT, ROW: a row. */
TAMIS_INLINE tamis_k_row tamis_k_at_slot(const tamis_k_cache *k, int64_t slot) {
    tamis_k_row row;
    int64_t bytes = k->head_dim / 2;
    if (k->layout == TAMIS_K_MXFP4_PAGE) {
        uint8_t *page = k->codes + slot / k->page_size * k->stride;
        int64_t place = slot % k->page_size;
        row.codes = page + place * bytes;
        row.scales = page + k->page_size * bytes + place * (k->head_dim / 32);
    } else {
        row.codes = k->codes + slot * k->stride;
        row.scales = k->layout == TAMIS_K_MXFP4_ROW ? row.codes + bytes
                                                    : k->scales + slot * k->scales_stride;
    }
    return row;
}

/* The page-table row of row r, or NULL for layouts without pages. */
TAMIS_INLINE const int32_t *tamis_page_row(const tamis_rows *rows, int64_t r) {
    if (rows->page_table == NULL) {
        return NULL;
    }
    return rows->page_table + (rows->request ? rows->request[r] : 0) * rows->page_table_stride;
}

/* Slot of an absolute position (ks + local) through a page-table row. */
TAMIS_INLINE int64_t tamis_slot_of(const int32_t *page_row, int32_t page_size, int64_t position) {
    if (page_row == NULL || page_size == 0) {
        return position;
    }
    return (int64_t)page_row[position / page_size] * page_size + position % page_size;
}

TAMIS_INLINE int64_t tamis_row_start(const tamis_rows *rows, int64_t r) {
    return rows->ks ? rows->ks[r] : 0;
}

/* Visible positions of row r. */
TAMIS_INLINE int64_t tamis_row_length(const tamis_rows *rows, int64_t r) {
    int64_t length = (int64_t)rows->ke[r] - tamis_row_start(rows, r);
    return length > 0 ? length : 0;
}

TAMIS_INLINE int64_t tamis_blocks_of(int64_t length, int32_t block_size) {
    return (length + block_size - 1) / block_size;
}

#endif
