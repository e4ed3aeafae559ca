/* SPDX-License-Identifier: MIT */
/*
 * chunks.c: rows of a prefill chunk within a budget of logits (spec 7.4). Offered to engines that
 * cut one chunk for dense and sparse layers; the kernels here stream and need no bound.
 */
#include <tamis/plan.h>

enum { F32_BYTES = 4 };

int64_t tamis_chunk_rows_dense(int64_t budget_bytes, int64_t positions) {
    if (budget_bytes < 1 || positions < 1) {
        return -1;
    }
    int64_t rows = budget_bytes / F32_BYTES / positions;
    return rows > 1 ? rows : 1;
}

int64_t tamis_chunk_rows_sparse(int64_t budget_bytes, int64_t positions, int64_t columns) {
    if (positions < 1 || columns < 1) {
        return -1;
    }
    int64_t least = columns / 2 + columns % 2; /* (columns * 2 + 3) / 4 without its overflow */
    return tamis_chunk_rows_dense(budget_bytes, positions > least ? positions : least);
}
