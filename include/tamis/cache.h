/* SPDX-License-Identifier: MIT */
/* cache.h: the arithmetic of index-K memory. All of it is 64-bit: a pool is tens of gigabytes. */
#ifndef TAMIS_CACHE_H
#define TAMIS_CACHE_H

#include <tamis/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of one position's K: D/2 codes and D/32 scales (68 at D = 128); 0 for another D. */
TAMIS_API int64_t tamis_k_row_bytes(int32_t head_dim);

/*
 * The smallest page stride, in bytes, that holds page_size slots and is a multiple of `align`
 * (a power of two >= 16; 512 where a foreign kernel shares the cache). 0 when an argument is
 * invalid or the result leaves 64 bits.
 */
TAMIS_API int64_t tamis_k_page_stride(int32_t page_size, int32_t head_dim, int64_t align);

/*
 * What every call that takes K checks. TAMIS_ERROR_LAYOUT: the layout, page size, strides, size or
 * pointers; TAMIS_ERROR_GEOMETRY: head_dim; TAMIS_ERROR_STRUCT_SIZE: reserved is not 0;
 * TAMIS_ERROR_ARGUMENT: k is NULL.
 */
TAMIS_API tamis_status tamis_k_cache_check(const tamis_k_cache *k, tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
