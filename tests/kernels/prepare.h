/* SPDX-License-Identifier: MIT */
/* prepare.h: inputs of q_prepare and k_insert: bf16 values of several kinds and rotary tables. */
#ifndef TAMIS_TESTS_KERNELS_PREPARE_H
#define TAMIS_TESTS_KERNELS_PREPARE_H

#include "common.h"

enum { /* kinds of bf16 input */
       INPUT_ORDINARY,
       INPUT_TINY, /* subnormals and zeros of both signs */
       INPUT_HUGE, /* near the largest bf16: rotation and norm overflow */
       INPUT_BITS, /* any finite bits, now and then NaN or infinity */
       INPUT_KINDS
};

static inline uint16_t random_input(int kind) {
    uint16_t bits = (uint16_t)random64();
    switch (kind) {
    case INPUT_TINY:
        return bits & 0x80FF;
    case INPUT_HUGE:
        return (uint16_t)((bits & 0x80FF) | 0x7E00);
    case INPUT_BITS:
        return (bits & 0x7F80) == 0x7F80 && random_below(4) ? (uint16_t)(bits & 0xBFFF) : bits;
    default:
        return oracle_bf16(random_unit() * 3.0f);
    }
}

/* A table of that many rows, padded, in [-1, 1]. */
static inline tamis_rope make_rope(int32_t type, int64_t positions) {
    tamis_rope rope = {NULL, type, 0, positions, 67};
    void *table = fresh(positions * rope.row_stride * 4);
    for (int64_t i = 0; i < positions * rope.row_stride; i++) {
        put(table, i, type, random_unit());
    }
    rope.table = table;
    return rope;
}

static inline int64_t *make_positions(int64_t tokens, int64_t limit) {
    int64_t *positions = fresh(tokens * 8);
    for (int64_t t = 0; t < tokens; t++) {
        positions[t] = random_below(limit);
    }
    return positions;
}

static inline void rope_row(const tamis_rope *rope, int64_t position, float *cos_sin) {
    for (int i = 0; i < 64; i++) {
        cos_sin[i] = get(rope->table, position * rope->row_stride + i, rope->type);
    }
}

#endif
