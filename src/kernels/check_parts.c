/* SPDX-License-Identifier: MIT */
/* check_parts.c: checks that stages share. */
#include <stddef.h>
#include <stdio.h>

#include "cache/address.h"
#include "kernels/check.h"
#include "kernels/check_parts.h"

tamis_status tamis_check_type(int32_t type, const char *name, tamis_error *error) {
    TAMIS_NEED(type == TAMIS_F32 || type == TAMIS_BF16, TAMIS_ERROR_ARGUMENT, name,
               "TAMIS_F32 or TAMIS_BF16", type);
    return TAMIS_OK;
}

tamis_status tamis_check_geometry(int32_t heads, int32_t head_dim, const char *heads_name,
                                  const char *head_dim_name, tamis_error *error) {
    TAMIS_NEED(heads >= 4 && heads <= TAMIS_MAX_HEADS && heads % 4 == 0, TAMIS_ERROR_GEOMETRY,
               heads_name, "4 .. 64, a multiple of 4", heads);
    TAMIS_NEED(head_dim == 64 || head_dim == 128, TAMIS_ERROR_GEOMETRY, head_dim_name, "64 or 128",
               head_dim);
    return TAMIS_OK;
}

tamis_status tamis_check_numerics(int32_t numerics, int flags, tamis_error *error) {
    TAMIS_NEED(numerics >= TAMIS_NUMERICS_EXACT && numerics <= TAMIS_NUMERICS_REF_BF16,
               TAMIS_ERROR_NUMERICS, "args.numerics", "one of TAMIS_NUMERICS_*", numerics);
    TAMIS_NEED((flags & TAMIS_CHECK_JUDGING) || numerics <= TAMIS_NUMERICS_BF16,
               TAMIS_ERROR_NUMERICS, "args.numerics",
               "exact or bf16: the classes that judge other engines are in tier ref alone",
               numerics);
    return TAMIS_OK;
}

tamis_status tamis_check_block_size(int32_t block_size, tamis_error *error) {
    TAMIS_NEED(block_size == 8 || block_size == 16, TAMIS_ERROR_ARGUMENT, "args.block_size",
               "8 or 16", block_size);
    return TAMIS_OK;
}

tamis_status tamis_check_stride(int64_t rows, int64_t stride, int64_t width, const char *name,
                                tamis_error *error) {
    TAMIS_NEED(rows <= 1 || stride >= width, TAMIS_ERROR_ARGUMENT, name,
               "at least the width of a row", stride);
    TAMIS_NEED(rows <= 1 || stride <= INT64_MAX / 8 / rows, TAMIS_ERROR_ARGUMENT, name,
               "an array that fits 64 bits", stride);
    return TAMIS_OK;
}

tamis_status tamis_fail_at(tamis_error *error, tamis_status status, const char *array, int64_t r,
                           const char *required, int64_t found) {
    char argument[60];
    snprintf(argument, sizeof argument, "%s[%lld]", array, (long long)r);
    return tamis_fail(error, status, argument, required, "%lld", (long long)found);
}

/* Fails about element r, which had to lie in low .. high. */
static tamis_status fail_range(tamis_error *error, tamis_status status, const char *array,
                               int64_t r, int64_t low, int64_t high, int64_t found) {
    char required[60];
    snprintf(required, sizeof required, "%lld .. %lld", (long long)low, (long long)high);
    return tamis_fail_at(error, status, array, r, required, found);
}

tamis_status tamis_check_intervals(const tamis_rows *rows, int flags, tamis_error *error) {
    TAMIS_NEED(rows->count >= 0, TAMIS_ERROR_ARGUMENT, "rows.count", "0 or more", rows->count);
    TAMIS_NEED_POINTER(rows->ke || rows->count == 0, "rows.ke");
    for (int64_t r = 0; r < rows->count && !(flags & TAMIS_CHECK_DEVICE); r++) {
        if (rows->ks && rows->ks[r] < 0) {
            return tamis_fail_at(error, TAMIS_ERROR_LENGTH, "rows.ks", r, "0 or more", rows->ks[r]);
        }
        if (rows->ke[r] < 0) {
            return tamis_fail_at(error, TAMIS_ERROR_LENGTH, "rows.ke", r, "0 or more", rows->ke[r]);
        }
    }
    return TAMIS_OK;
}

/* Page ids first .. last of a request. */
static tamis_status check_pages(const tamis_rows *rows, const tamis_k_cache *k, int64_t request,
                                int64_t first, int64_t last, tamis_error *error) {
    const int32_t *pages = rows->page_table + request * rows->page_table_stride;
    char array[60];
    for (int64_t p = first; p <= last; p++) {
        if (pages[p] < 0 || pages[p] >= k->size) {
            snprintf(array, sizeof array, "rows.page_table[%lld]", (long long)request);
            return fail_range(error, TAMIS_ERROR_LENGTH, array, p, 0, k->size - 1, pages[p]);
        }
    }
    return TAMIS_OK;
}

/* Request ids and page ids behind each row. Rows of one request mostly differ by a position: pages
 * that the row before has checked are not checked again. */
static tamis_status check_page_table(const tamis_rows *rows, const tamis_k_cache *k,
                                     tamis_error *error) {
    int64_t checked_request = -1, checked_from = 0, checked_to = 0;
    for (int64_t r = 0; r < rows->count; r++) {
        int64_t request = rows->request ? rows->request[r] : 0, start = tamis_row_start(rows, r);
        if (tamis_row_length(rows, r) == 0) {
            continue;
        }
        if (request < 0 || request >= rows->requests) {
            return fail_range(error, TAMIS_ERROR_ARGUMENT, "rows.request", r, 0, rows->requests - 1,
                              request);
        }
        int64_t first = start / k->page_size, last = (rows->ke[r] - 1) / k->page_size;
        if (request == checked_request && first >= checked_from && last <= checked_to) {
            continue;
        }
        int extends = request == checked_request && first == checked_from && last > checked_to;
        TAMIS_TRY(check_pages(rows, k, request, extends ? checked_to + 1 : first, last, error));
        checked_request = request;
        checked_from = first;
        checked_to = last;
    }
    return TAMIS_OK;
}

/* Fields of the page table of paged K. */
tamis_status tamis_check_paging(const tamis_rows *rows, tamis_error *error) {
    TAMIS_NEED(rows->page_table_width >= 0 && rows->page_table_width <= INT32_MAX,
               TAMIS_ERROR_ARGUMENT, "rows.page_table_width", "0 .. 2^31-1",
               rows->page_table_width);
    TAMIS_NEED(rows->requests >= 0, TAMIS_ERROR_ARGUMENT, "rows.requests", "0 or more",
               rows->requests);
    return tamis_check_stride(rows->requests, rows->page_table_stride, rows->page_table_width,
                              "rows.page_table_stride", error);
}

/* Kernels take a page table as the sign of pages. */
static tamis_status check_unpaged(const tamis_rows *rows, const tamis_k_cache *k,
                                  tamis_error *error) {
    if (k->layout != TAMIS_K_MXFP4_PAGE && rows->page_table != NULL) {
        return tamis_fail(error, TAMIS_ERROR_LAYOUT, "rows.page_table",
                          "NULL: the layout has no pages", "a page table");
    }
    return TAMIS_OK;
}

tamis_status tamis_check_device_rows(const tamis_rows *rows, const tamis_k_cache *k,
                                     tamis_error *error) {
    TAMIS_TRY(tamis_k_cache_check(k, error));
    TAMIS_TRY(tamis_check_intervals(rows, TAMIS_CHECK_DEVICE, error));
    TAMIS_TRY(check_unpaged(rows, k, error));
    if (k->layout == TAMIS_K_MXFP4_PAGE && rows->count > 0) {
        TAMIS_TRY(tamis_check_paging(rows, error));
        TAMIS_NEED_POINTER(rows->page_table || rows->page_table_width == 0, "rows.page_table");
        TAMIS_NEED(rows->requests >= 1, TAMIS_ERROR_ARGUMENT, "rows.requests", "1 or more",
                   rows->requests);
    }
    return TAMIS_OK;
}

tamis_status tamis_check_rows(const tamis_rows *rows, const tamis_k_cache *k, tamis_error *error) {
    int paged = k->layout == TAMIS_K_MXFP4_PAGE;
    int64_t limit = k->size;
    TAMIS_TRY(tamis_k_cache_check(k, error));
    TAMIS_TRY(tamis_check_intervals(rows, 0, error));
    TAMIS_TRY(check_unpaged(rows, k, error));
    if (paged) {
        TAMIS_TRY(tamis_check_paging(rows, error));
        limit = rows->page_table_width * k->page_size;
    }
    for (int64_t r = 0; r < rows->count; r++) {
        if (tamis_row_length(rows, r) > 0 && rows->ke[r] > limit) {
            return fail_range(error, TAMIS_ERROR_LENGTH, "rows.ke", r, 0, limit, rows->ke[r]);
        }
        if (tamis_row_length(rows, r) > 0 && paged) {
            TAMIS_NEED_POINTER(rows->page_table, "rows.page_table");
        }
    }
    return paged ? check_page_table(rows, k, error) : TAMIS_OK;
}

tamis_status tamis_check_query(const tamis_query *query, const tamis_k_cache *k, int64_t rows,
                               tamis_error *error) {
    TAMIS_TRY(tamis_check_geometry(query->heads, query->head_dim, "query.heads", "query.head_dim",
                                   error));
    TAMIS_NEED(query->head_dim == k->head_dim, TAMIS_ERROR_GEOMETRY, "query.head_dim", "k.head_dim",
               query->head_dim);
    TAMIS_TRY(tamis_check_type(query->weights_type, "query.weights_type", error));
    TAMIS_NEED_RESERVED(query->reserved, "query.reserved");
    TAMIS_NEED_POINTER(query->codes || rows == 0, "query.codes");
    TAMIS_NEED_POINTER(query->scales || rows == 0, "query.scales");
    TAMIS_NEED_POINTER(query->weights || rows == 0, "query.weights");
    TAMIS_TRY(tamis_check_stride(query->heads, query->codes_head_stride, query->head_dim / 2,
                                 "query.codes_head_stride", error));
    TAMIS_TRY(tamis_check_stride(query->heads, query->scales_head_stride, query->head_dim / 32,
                                 "query.scales_head_stride", error));
    TAMIS_TRY(tamis_check_stride(rows, query->codes_row_stride, query->head_dim / 2,
                                 "query.codes_row_stride", error));
    TAMIS_TRY(tamis_check_stride(rows, query->scales_row_stride, query->head_dim / 32,
                                 "query.scales_row_stride", error));
    return tamis_check_stride(rows, query->weights_row_stride, query->heads,
                              "query.weights_row_stride", error);
}

tamis_status tamis_check_rope(const tamis_rope *rope, tamis_error *error) {
    TAMIS_TRY(tamis_check_type(rope->type, "rope.type", error));
    TAMIS_NEED_RESERVED(rope->reserved, "rope.reserved");
    TAMIS_NEED(rope->positions >= 0, TAMIS_ERROR_ARGUMENT, "rope.positions", "0 or more",
               rope->positions);
    TAMIS_NEED_POINTER(rope->table || rope->positions == 0, "rope.table");
    return tamis_check_stride(rope->positions, rope->row_stride, 64, "rope.row_stride", error);
}

tamis_status tamis_check_positions(const int64_t *positions, int64_t count, int64_t limit,
                                   int flags, tamis_error *error) {
    TAMIS_NEED_POINTER(positions || count == 0, "args.positions");
    for (int64_t t = 0; t < count && !(flags & TAMIS_CHECK_DEVICE); t++) {
        if (positions[t] < 0 || positions[t] >= limit) {
            return fail_range(error, TAMIS_ERROR_LENGTH, "args.positions", t, 0, limit - 1,
                              positions[t]);
        }
    }
    return TAMIS_OK;
}

tamis_status tamis_check_counts(const int32_t *counts, int64_t rows, int64_t limit, int flags,
                                const char *name, tamis_error *error) {
    for (int64_t r = 0; counts && r < rows && !(flags & TAMIS_CHECK_DEVICE); r++) {
        if (counts[r] < 0 || counts[r] > limit) {
            return fail_range(error, TAMIS_ERROR_LENGTH, name, r, 0, limit, counts[r]);
        }
    }
    return TAMIS_OK;
}

tamis_status tamis_check_selection(const tamis_selection *selection, int64_t rows,
                                   tamis_error *error) {
    int64_t topk = selection->topk;
    TAMIS_NEED(topk >= 1 && topk <= TAMIS_MAX_TOPK, TAMIS_ERROR_ARGUMENT, "selection.topk",
               "1 .. 4096", topk);
    TAMIS_NEED_RESERVED(selection->reserved, "selection.reserved");
    if (selection->positions) {
        TAMIS_TRY(tamis_check_stride(rows, selection->positions_stride, topk,
                                     "selection.positions_stride", error));
    }
    if (selection->slots) {
        TAMIS_TRY(tamis_check_stride(rows, selection->slots_stride, topk, "selection.slots_stride",
                                     error));
    }
    if (selection->scores) {
        TAMIS_TRY(tamis_check_stride(rows, selection->scores_stride, topk,
                                     "selection.scores_stride", error));
    }
    return TAMIS_OK;
}
