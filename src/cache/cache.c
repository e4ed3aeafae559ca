/* SPDX-License-Identifier: MIT */
/* cache.c: sizes and checks of index-K memory. */
#include <stddef.h>

#include <tamis/cache.h>

#include "fail.h"

int64_t tamis_k_row_bytes(int32_t head_dim) {
    return head_dim == 64 || head_dim == 128 ? head_dim / 2 + head_dim / 32 : 0;
}

int64_t tamis_k_page_stride(int32_t page_size, int32_t head_dim, int64_t align) {
    int64_t row = tamis_k_row_bytes(head_dim);
    if (row == 0 || page_size < 8 || page_size % 8 != 0 || align < 16 ||
        (align & (align - 1)) != 0) {
        return 0;
    }
    int64_t bytes = page_size * row; /* below 2^31 * 68 */
    if (bytes > INT64_MAX - (align - 1)) {
        return 0;
    }
    return (bytes + align - 1) / align * align;
}

static tamis_status check_page(const tamis_k_cache *k, tamis_error *error) {
    int64_t row = tamis_k_row_bytes(k->head_dim);
    TAMIS_NEED(k->page_size >= 8 && k->page_size % 8 == 0, TAMIS_ERROR_LAYOUT, "k.page_size",
               "a positive multiple of 8", k->page_size);
    TAMIS_NEED(k->stride >= k->page_size * row && k->stride % 16 == 0, TAMIS_ERROR_LAYOUT,
               "k.stride", "at least page_size * (D/2 + D/32) bytes and a multiple of 16",
               k->stride);
    TAMIS_NEED(k->scales == NULL && k->scales_stride == 0, TAMIS_ERROR_LAYOUT, "k.scales",
               "NULL and stride 0: a page holds its scales", k->scales_stride);
    TAMIS_NEED(k->size <= INT64_MAX / k->page_size, TAMIS_ERROR_LAYOUT, "k.size",
               "slots that fit 64 bits", k->size);
    return TAMIS_OK;
}

static tamis_status check_ragged(const tamis_k_cache *k, tamis_error *error) {
    int split = k->layout == TAMIS_K_MXFP4_SPLIT;
    TAMIS_NEED(k->page_size == 0, TAMIS_ERROR_LAYOUT, "k.page_size", "0: the layout has no pages",
               k->page_size);
    TAMIS_NEED(k->stride >= (split ? k->head_dim / 2 : tamis_k_row_bytes(k->head_dim)),
               TAMIS_ERROR_LAYOUT, "k.stride", "at least the bytes of a row", k->stride);
    if (split) {
        TAMIS_NEED(k->scales != NULL || k->size == 0, TAMIS_ERROR_LAYOUT, "k.scales", "a pointer",
                   0);
        TAMIS_NEED(k->scales_stride >= k->head_dim / 32, TAMIS_ERROR_LAYOUT, "k.scales_stride",
                   "at least D/32 bytes", k->scales_stride);
        TAMIS_NEED(k->size <= INT64_MAX / k->scales_stride, TAMIS_ERROR_LAYOUT, "k.scales_stride",
                   "scales that fit 64 bits", k->scales_stride);
    } else {
        TAMIS_NEED(k->scales == NULL && k->scales_stride == 0, TAMIS_ERROR_LAYOUT, "k.scales",
                   "NULL and stride 0: a row holds its scales", k->scales_stride);
    }
    return TAMIS_OK;
}

tamis_status tamis_k_cache_check(const tamis_k_cache *k, tamis_error *error) {
    TAMIS_NEED(k != NULL, TAMIS_ERROR_ARGUMENT, "k", "a tamis_k_cache", 0);
    TAMIS_NEED(k->layout >= TAMIS_K_MXFP4_PAGE && k->layout <= TAMIS_K_MXFP4_ROW,
               TAMIS_ERROR_LAYOUT, "k.layout", "TAMIS_K_MXFP4_PAGE, _SPLIT or _ROW", k->layout);
    TAMIS_NEED(tamis_k_row_bytes(k->head_dim) > 0, TAMIS_ERROR_GEOMETRY, "k.head_dim", "64 or 128",
               k->head_dim);
    TAMIS_NEED(k->reserved == 0, TAMIS_ERROR_STRUCT_SIZE, "k.reserved", "0", k->reserved);
    TAMIS_NEED(k->size >= 0, TAMIS_ERROR_LAYOUT, "k.size", "0 or more", k->size);
    TAMIS_NEED(k->codes != NULL || k->size == 0, TAMIS_ERROR_LAYOUT, "k.codes", "a pointer", 0);
    TAMIS_TRY(k->layout == TAMIS_K_MXFP4_PAGE ? check_page(k, error) : check_ragged(k, error));
    TAMIS_NEED(k->size <= INT64_MAX / k->stride, TAMIS_ERROR_LAYOUT, "k.stride",
               "a cache that fits 64 bits", k->stride);
    return TAMIS_OK;
}
