/* SPDX-License-Identifier: MIT */
/*
 * topk_avx2.c: the best columns of each row, ascending, as positions, slots and scores.
 *
 * The columns that count are nearly always the first n; a list of blocks with holes among its
 * columns (a block that is not visible before one that is) goes to ref/.
 */
#include "cache/address.h"
#include "kernels/kernels.h"
#include "kernels/order.h"
#include "kernels/rows.h"
#include "select_avx2.h"

typedef struct topk_row {
    const tamis_topk_args *args;
    int64_t r, start, length, columns;
    const int32_t *blocks; /* of the row, or NULL */
} topk_row;

/* Visible positions of block b of the list. */
static int64_t visible_of(const topk_row *row, int64_t b) {
    int64_t size = row->args->block_size;
    int64_t first = (row->blocks[b] - row->start / size) * size;
    int64_t visible = first < 0 ? 0 : row->length - first;
    return visible < 0 ? 0 : visible < size ? visible : size;
}

/* Whether the first n blocks of the list are visible as a whole. */
static int all_full(const topk_row *row, int64_t n) {
    int64_t size = row->args->block_size;
    uint32_t base = (uint32_t)(row->start / size), full = (uint32_t)(row->length / size), bad = 0;
    for (int64_t b = 0; b < n; b++) { /* length < 2^31: no id wraps into the range */
        bad |= (uint32_t)row->blocks[b] - base >= full;
    }
    return !bad;
}

/* n when the columns that count are 0 .. n-1, else -1. */
static int64_t leading_columns(const topk_row *row) {
    int64_t size = row->args->block_size, n = 0;
    if (!row->blocks) {
        return row->columns < row->length ? row->columns : row->length;
    }
    int64_t listed = tamis_blocks_of(row->columns, row->args->block_size), b = 0;
    if (listed > 0 && row->args->rows.ke && all_full(row, listed - 1)) {
        b = listed - 1;
        n = b * size;
    }
    for (; b < listed; b++) {
        int64_t left = row->columns - b * size, visible = visible_of(row, b);
        visible = visible < left ? visible : left;
        if (visible > 0 && n != b * size) {
            return -1;
        }
        n += visible;
    }
    return n;
}

static void write_positions(const topk_row *row, const int32_t *columns, int64_t count,
                            int32_t *positions) {
    int64_t size = row->args->block_size, anchor = row->blocks ? row->start / size : 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t c = columns[i];
        positions[i] = !row->blocks ? columns[i]
                                    : (int32_t)((row->blocks[c / size] - anchor) * size + c % size);
    }
}

static void write_slots(const topk_row *row, const int32_t *positions, int64_t count,
                        int64_t *slots) {
    const int32_t *page_row = tamis_page_row(&row->args->rows, row->r);
    for (int64_t i = 0; i < count; i++) {
        slots[i] = tamis_slot_of(page_row, row->args->page_size, row->start + positions[i]);
    }
}

/* Writes the selection of the row: columns[count], then the tail. */
static void write_row(const topk_row *row, const int32_t *columns, int64_t count) {
    const tamis_selection *out = &row->args->selection;
    int32_t positions[TAMIS_MAX_TOPK];
    int64_t r = row->r, topk = out->topk;
    write_positions(row, columns, count, positions);
    if (out->positions) {
        int32_t *to = out->positions + r * out->positions_stride;
        memcpy(to, positions, (size_t)count * sizeof *to);
        for (int64_t i = count; i < topk; i++) {
            to[i] = -1;
        }
    }
    if (out->slots) {
        int64_t *to = out->slots + r * out->slots_stride;
        write_slots(row, positions, count, to);
        for (int64_t i = count; i < topk; i++) {
            to[i] = -1;
        }
    }
    if (out->scores) {
        float *to = out->scores + r * out->scores_stride;
        for (int64_t i = 0; i < count; i++) {
            to[i] = tamis_canonical(tamis_load_float(row->args->logits, row->args->logits_type,
                                                     r * row->args->logits_stride + columns[i]));
        }
        for (int64_t i = count; i < topk; i++) {
            to[i] = -__builtin_inff();
        }
    }
    if (out->counts) {
        out->counts[r] = (int32_t)count;
    }
}

static void select_by_ref(const topk_row *row) {
    const tamis_topk_args *args = row->args;
    int64_t bytes = args->logits_type == TAMIS_BF16 ? 2 : 4, r = row->r;
    tamis_topk_args one = *args;
    one.rows.count = 1;
    one.rows.ks = args->rows.ks ? args->rows.ks + r : NULL;
    one.rows.ke = args->rows.ke ? args->rows.ke + r : NULL;
    one.rows.request = args->rows.request ? args->rows.request + r : NULL;
    one.logits = (const uint8_t *)args->logits + r * args->logits_stride * bytes;
    one.columns = args->columns ? args->columns + r : NULL;
    one.blocks = row->blocks;
    one.selection = tamis_selection_at(&args->selection, r);
    tamis_topk_ref(&one, 0, 1);
}

static void select_row(const topk_row *row) {
    const tamis_topk_args *args = row->args;
    int32_t columns[TAMIS_MAX_TOPK];
    int64_t bytes = args->logits_type == TAMIS_BF16 ? 2 : 4, n = leading_columns(row);
    if (n < 0) {
        select_by_ref(row);
        return;
    }
    int64_t count = n < args->selection.topk ? n : args->selection.topk;
    tamis_select_avx2((const uint8_t *)args->logits + row->r * args->logits_stride * bytes,
                      args->logits_type, n, count, columns);
    write_row(row, columns, count);
}

void tamis_topk_avx2(const tamis_topk_args *args, int32_t ith, int32_t nth) {
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        topk_row row = {args, r, tamis_row_start(&args->rows, r), INT64_MAX, args->width, NULL};
        if (args->rows.ke) {
            row.length = tamis_row_length(&args->rows, r);
        }
        if (args->columns) {
            row.columns = args->columns[r];
        }
        if (args->blocks) {
            row.blocks = args->blocks + r * args->blocks_stride;
        }
        select_row(&row);
    }
}
