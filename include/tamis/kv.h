/* SPDX-License-Identifier: MIT */
/*
 * kv.h: the bytes of paged KV memory when index K shares blocks with main K/V. Pure arithmetic in
 * 64 bits, refusing what would overflow. A *block* here is the engine's KV block: one page of every
 * layer of a group.
 *
 *   page of a spec  = states * row_bytes rounded up to page_alignment
 *   bytes_unaligned = max over groups of the sum of their pages
 *   alignment       = lcm of every block_stride_alignment
 *   bytes_per_block = bytes_unaligned rounded up to alignment
 *
 * Structs are made by their _default() and refused with TAMIS_ERROR_STRUCT_SIZE otherwise, outputs
 * too. Errors are TAMIS_ERROR_ARGUMENT, TAMIS_ERROR_GEOMETRY and, where a result leaves 64 bits,
 * TAMIS_ERROR_LENGTH; on an error no output was touched. Outputs may be inputs.
 */
#ifndef TAMIS_KV_H
#define TAMIS_KV_H

#include <tamis/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one layer stores in a block. Its main K/V and its index K are two specs. */
typedef struct tamis_kv_spec {
    uint32_t struct_size;
    int32_t group;          /* any id >= 0; layers of one group lie one after another in the order
                               given; groups alias from byte 0 */
    int64_t states;         /* states (positions) per page, >= 0 */
    int64_t row_bytes;      /* bytes of a state, >= 1 */
    int64_t page_alignment; /* bytes, >= 1: the page is rounded up to it */
    int64_t block_stride_alignment; /* bytes the block's size must be a multiple of; 0: none */
} tamis_kv_spec;

/* An empty page of group 0 without alignment: row_bytes is still to be set. */
TAMIS_API void tamis_kv_spec_default(tamis_kv_spec *spec);

/*
 * The spec of an index-K page, in group 0: row_bytes as tamis_k_row_bytes(head_dim) has them;
 * block_stride_alignment = lcm(512, page_alignment) when the sparse path is on, none when it is
 * off.
 */
TAMIS_API tamis_status tamis_kv_index_spec(int64_t states, int32_t head_dim, int64_t page_alignment,
                                           int32_t sparse, tamis_kv_spec *spec, tamis_error *error);

/*
 * Merges two specs of one kind (layers that share an allocation class): equal in all but group, or
 * refused by the field's name. In particular both or neither have a block_stride_alignment. The
 * merged spec is a, its group too.
 */
TAMIS_API tamis_status tamis_kv_merge(const tamis_kv_spec *a, const tamis_kv_spec *b,
                                      tamis_kv_spec *merged, tamis_error *error);

typedef struct tamis_kv_layout {
    uint32_t struct_size;
    int32_t groups; /* different ones */
    int64_t bytes_unaligned;
    int64_t alignment; /* 1: none */
    int64_t bytes_per_block;
    int64_t overhead_ppm; /* (bytes_per_block - bytes_unaligned) / bytes_unaligned, in parts per
                             million, to nearest; 0 of an empty block */
} tamis_kv_layout;

TAMIS_API void tamis_kv_layout_default(tamis_kv_layout *layout);

enum { TAMIS_KV_MAX_SPECS = 8192 }; /* of one layout */

/* Lays out a block of `count` specs. offsets[count] (or NULL) gets each spec's first byte in the
 * block. Errors name the spec: "specs[3].row_bytes". */
TAMIS_API tamis_status tamis_kv_lay_out(const tamis_kv_spec *specs, int32_t count, int64_t *offsets,
                                        tamis_kv_layout *layout, tamis_error *error);

/* Whole blocks that fit in memory_bytes; 0 when none does or a block holds nothing. */
TAMIS_API int64_t tamis_kv_blocks(const tamis_kv_layout *layout, int64_t memory_bytes);

/*
 * States per page, near `states` and never below, for which index pages in a pool of their own need
 * no padding: the smallest multiple of 8 with states * row_bytes a multiple of alignment. 128 for
 * 68-byte rows and 512. -1 when an argument is not positive or a page would leave 64 bits.
 */
TAMIS_API int64_t tamis_kv_states_without_overhead(int64_t states, int64_t row_bytes,
                                                   int64_t alignment);

#ifdef __cplusplus
}
#endif
#endif
