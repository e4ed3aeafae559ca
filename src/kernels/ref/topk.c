/* SPDX-License-Identifier: MIT */
/* topk.c: the best columns of each row, ascending, as positions, slots and scores (spec 5.1, 5.5).
 */
#include "cache/address.h"
#include "kernels/kernels.h"
#include "kernels/order.h"
#include "kernels/ref/cut.h"

typedef struct columns_of_row {
    const tamis_topk_args *args;
    int64_t row, start, length; /* length: visible positions, or INT64_MAX where ke is NULL */
    int64_t columns;
} columns_of_row;

/* Local position of a column, or -1 when it is not a visible one. */
static int64_t position_of(const columns_of_row *row, int64_t column) {
    const tamis_topk_args *args = row->args;
    int64_t position = column;
    if (args->blocks) {
        int64_t block = args->blocks[row->row * args->blocks_stride + column / args->block_size];
        position =
            (block - row->start / args->block_size) * args->block_size + column % args->block_size;
    }
    return position >= 0 && position < row->length ? position : -1;
}

/* Column i's key plus one, so that 0 is left for columns that are not valid; +inf leaves room. */
static uint32_t column_key(const void *context, int64_t column) {
    const columns_of_row *row = context;
    const tamis_topk_args *args = row->args;
    if (position_of(row, column) < 0) {
        return 0;
    }
    return 1 + tamis_order_key(tamis_load_float(args->logits, args->logits_type,
                                                row->row * args->logits_stride + column));
}

static int64_t count_valid(const columns_of_row *row) {
    int64_t count = 0;
    for (int64_t c = 0; c < row->columns; c++) {
        count += position_of(row, c) >= 0;
    }
    return count;
}

/* Writes entry i of the row's selection; column < 0 writes the tail. */
static void write_entry(const columns_of_row *row, int64_t i, int64_t column) {
    const tamis_topk_args *args = row->args;
    const tamis_selection *out = &args->selection;
    int64_t r = row->row, position = column < 0 ? -1 : position_of(row, column);
    if (out->positions) {
        out->positions[r * out->positions_stride + i] = (int32_t)position;
    }
    if (out->slots) {
        out->slots[r * out->slots_stride + i] =
            column < 0 ? -1
                       : tamis_slot_of(tamis_page_row(&args->rows, r), args->page_size,
                                       row->start + position);
    }
    if (out->scores) {
        out->scores[r * out->scores_stride + i] =
            column < 0 ? tamis_f32_of_bits(0xFF800000u)
                       : tamis_canonical(tamis_load_float(args->logits, args->logits_type,
                                                          r * args->logits_stride + column));
    }
}

static void select_row(const columns_of_row *row) {
    int64_t valid = count_valid(row), topk = row->args->selection.topk, count = 0;
    int64_t want = valid < topk ? valid : topk;
    if (want > 0) {
        tamis_cut cut = tamis_cut_of(column_key, row, row->columns, want);
        for (int64_t c = 0; c < row->columns; c++) {
            if (tamis_cut_take(&cut, column_key(row, c))) {
                write_entry(row, count++, c);
            }
        }
    }
    if (row->args->selection.counts) {
        row->args->selection.counts[row->row] = (int32_t)count;
    }
    while (count < topk) {
        write_entry(row, count++, -1);
    }
}

void tamis_topk_ref(const tamis_topk_args *args, int32_t ith, int32_t nth) {
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        columns_of_row row = {args, r, tamis_row_start(&args->rows, r), INT64_MAX, args->width};
        if (args->rows.ke) {
            row.length = tamis_row_length(&args->rows, r);
        }
        if (args->columns) {
            row.columns = args->columns[r];
        }
        select_row(&row);
    }
}
