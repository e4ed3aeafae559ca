/* SPDX-License-Identifier: MIT */
/*
 * fuzz_expand.c: any bits as candidate lists and intervals, through the public call, on every tier
 * that this machine runs. An accepted call gives the oracle's blocks, counts and columns for every
 * split, and leaves the padding of its rows; a refused one writes nothing.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <tamis/tamis.h>

#include "oracle.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_ROWS = 6, MAX_WIDTH = 64, PADDING = 3, MAX_TIERS = 8, POISON = 0x5A5A5A5A };

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            __builtin_trap();                                                                      \
        }                                                                                          \
    } while (0)

static tamis_backend *backends[MAX_TIERS];
static int32_t backend_count;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    int32_t supported = 0;
    for (int32_t i = 0; tamis_tier_name(i, &supported); i++) {
        if (supported && backend_count < MAX_TIERS) {
            NEED(!tamis_backend_create(tamis_tier_name(i, NULL), &backends[backend_count++], NULL));
        }
    }
    NEED(backend_count > 0);
    return 0;
}

typedef struct bytes {
    const uint8_t *at;
    size_t left;
} bytes;

static int32_t take(bytes *in, size_t width) {
    uint32_t value = 0;
    size_t n = in->left < width ? in->left : width;
    memcpy(&value, in->at, n);
    in->at += n;
    in->left -= n;
    return (int32_t)value;
}

/* Ids near the row's blocks as often as any bits: far ones are all alike. */
static int32_t take_id(bytes *in) {
    int32_t kind = take(in, 1);
    return kind < 160 ? take(in, 1) - 2 : kind < 224 ? take(in, 2) : take(in, 4);
}

typedef struct scene {
    tamis_expand_args args;
    int32_t ks[MAX_ROWS], ke[MAX_ROWS];
    int32_t *candidates;
    int64_t out;     /* blocks a row */
    int64_t cells;   /* of one output array */
    int32_t *blocks; /* [cells], then counts and columns [MAX_ROWS] */
} scene;

static void read_scene(scene *s, bytes *in) {
    static const int32_t sizes[] = {8, 16, 24, 32, 64, 128, 12, 0};
    tamis_expand_args *a = &s->args;
    tamis_expand_args_default(a);
    int32_t shape = take(in, 1), kind = take(in, 1);
    a->flags = shape & 3;
    a->block_size = shape & 4 ? 16 : 8;
    a->candidate_size = sizes[shape >> 3 & 7];
    a->rows.count = kind % (MAX_ROWS + 1);
    a->width = take(in, 1) % (MAX_WIDTH + 1);
    for (int64_t r = 0; r < a->rows.count; r++) {
        int small = take(in, 1) & 1;
        s->ks[r] = take(in, small ? 1 : 4);
        s->ke[r] = take(in, small ? 2 : 4);
    }
    a->rows.ks = kind & 128 ? NULL : s->ks;
    a->rows.ke = s->ke;
    a->candidates_stride = a->width + (kind & 64 ? PADDING : 0);
    s->candidates = malloc((size_t)(MAX_ROWS * (MAX_WIDTH + PADDING)) * 4 + 4);
    /* The last row has no padding: reading past its ids is reading past the block. */
    size_t count = (size_t)(a->rows.count * a->candidates_stride);
    s->candidates = realloc(s->candidates, count * 4 + 4);
    for (size_t i = 0; i < count; i++) {
        s->candidates[i] = take_id(in);
    }
    s->out = a->candidate_size < a->block_size ? a->width
                                               : a->width * (a->candidate_size / a->block_size);
    a->blocks_stride = s->out + PADDING;
    s->cells = a->rows.count * a->blocks_stride;
    s->blocks = malloc((size_t)(s->cells + 2 * MAX_ROWS) * 4);
    a->counts = s->blocks + s->cells;
    a->columns = a->counts + MAX_ROWS;
    int32_t missing = take(in, 1); /* 0 where the input has ended */
    a->candidates = missing == 1 ? NULL : s->candidates;
    a->blocks = missing == 2 ? NULL : s->blocks;
}

static void poison(scene *s) {
    for (int64_t i = 0; i < s->cells + 2 * MAX_ROWS; i++) {
        s->blocks[i] = POISON;
    }
}

static void need_poison(const int32_t *cells, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        NEED(cells[i] == POISON);
    }
}

/* Whether the headers allow the call. */
static int is_valid(const scene *s) {
    const tamis_expand_args *a = &s->args;
    int valid = a->candidate_size > 0 && a->candidate_size % a->block_size == 0;
    /* Lists are never NULL with rows, however narrow. */
    valid &= a->rows.count == 0 || (a->candidates && a->blocks);
    for (int64_t r = 0; r < a->rows.count; r++) {
        valid &= (!a->rows.ks || s->ks[r] >= 0) && s->ke[r] >= 0;
    }
    return valid;
}

static void check_rows(const scene *s) {
    const tamis_expand_args *a = &s->args;
    int32_t expected[MAX_WIDTH * 16];
    for (int64_t r = 0; r < a->rows.count; r++) {
        const int32_t *row = s->blocks + r * a->blocks_stride;
        int64_t columns;
        int64_t n = oracle_expand(s->candidates + r * a->candidates_stride, a->width,
                                  a->candidate_size, a->block_size, a->rows.ks ? s->ks[r] : 0,
                                  s->ke[r], a->flags & TAMIS_EXPAND_KEEP_DUPLICATES,
                                  a->flags & TAMIS_EXPAND_FIXED_WIDTH, expected, &columns);
        NEED(a->counts[r] == n && a->columns[r] == columns);
        NEED(s->out == 0 || !memcmp(row, expected, (size_t)s->out * 4));
        need_poison(row + s->out, PADDING);
    }
    need_poison(a->counts + a->rows.count, MAX_ROWS - a->rows.count);
    need_poison(a->columns + a->rows.count, MAX_ROWS - a->rows.count);
}

static void run(const tamis_backend *backend, scene *s, int32_t slices) {
    int valid = is_valid(s);
    poison(s);
    for (int32_t i = slices - 1; i >= 0; i--) {
        tamis_error error = {0};
        tamis_status status = tamis_expand(backend, &s->args, i, slices, &error);
        NEED((status == TAMIS_OK) == valid && error.status == status);
    }
    if (valid) {
        check_rows(s);
    } else {
        need_poison(s->blocks, s->cells + 2 * MAX_ROWS);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes in = {data, size};
    scene s;
    read_scene(&s, &in);
    for (int32_t b = 0; b < backend_count; b++) {
        run(backends[b], &s, 1);
        run(backends[b], &s, 3);
    }
    free(s.candidates);
    free(s.blocks);
    return 0;
}
