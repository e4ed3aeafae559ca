/* SPDX-License-Identifier: MIT */
/* check_parts.h: checks that stages share. */
#ifndef TAMIS_KERNELS_CHECK_PARTS_H
#define TAMIS_KERNELS_CHECK_PARTS_H

#include "fail.h"
#include "kernels/kernels.h"

#define TAMIS_NEED_SIZE(args)                                                                      \
    TAMIS_NEED((args)->struct_size == sizeof *(args), TAMIS_ERROR_STRUCT_SIZE, "args.struct_size", \
               "the size that _args_default sets", (args)->struct_size)
#define TAMIS_NEED_RESERVED(value, name)                                                           \
    TAMIS_NEED((value) == 0, TAMIS_ERROR_STRUCT_SIZE, name, "0", value)
#define TAMIS_NEED_POINTER(condition, name)                                                        \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return tamis_fail(error, TAMIS_ERROR_ARGUMENT, name, "a pointer", "NULL");             \
        }                                                                                          \
    } while (0)

/* Fails about element r of an array: "rows.ke[3]". */
tamis_status tamis_fail_at(tamis_error *error, tamis_status status, const char *array, int64_t r,
                           const char *required, int64_t found);

tamis_status tamis_check_type(int32_t type, const char *name, tamis_error *error);
tamis_status tamis_check_geometry(int32_t heads, int32_t head_dim, const char *heads_name,
                                  const char *head_dim_name, tamis_error *error);
tamis_status tamis_check_numerics(int32_t numerics, int flags, tamis_error *error);
tamis_status tamis_check_block_size(int32_t block_size, tamis_error *error);

/* A stride of elements over a width, where more than one row makes it matter. */
tamis_status tamis_check_stride(int64_t rows, int64_t stride, int64_t width, const char *name,
                                tamis_error *error);

/* ks and ke of every row: 0 <= ks, 0 <= ke. */
tamis_status tamis_check_intervals(const tamis_rows *rows, int flags, tamis_error *error);

/* Width, stride and rows of a page table. */
tamis_status tamis_check_paging(const tamis_rows *rows, tamis_error *error);

/* Intervals, and every position they see, within K and its page table. Checks k as well. */
tamis_status tamis_check_rows(const tamis_rows *rows, const tamis_k_cache *k, tamis_error *error);

/* The part of it that reads no array, the device's pointers being none of the host's. */
tamis_status tamis_check_device_rows(const tamis_rows *rows, const tamis_k_cache *k,
                                     tamis_error *error);

tamis_status tamis_check_query(const tamis_query *query, const tamis_k_cache *k, int64_t rows,
                               tamis_error *error);
tamis_status tamis_check_rope(const tamis_rope *rope, tamis_error *error);
tamis_status tamis_check_positions(const int64_t *positions, int64_t count, int64_t limit,
                                   int flags, tamis_error *error);
tamis_status tamis_check_counts(const int32_t *counts, int64_t rows, int64_t limit, int flags,
                                const char *name, tamis_error *error);
tamis_status tamis_check_selection(const tamis_selection *selection, int64_t rows,
                                   tamis_error *error);

#endif
