/* SPDX-License-Identifier: MIT */
/*
 * kernels.h: the table of kernels that a tier fills.
 *
 * A kernel gets arguments that were checked (src/kernels/check.c) and does slice ith of nth. It
 * cannot fail, allocates nothing, keeps nothing. It clamps nothing on the host but drops block ids
 * that name no visible block. MXCSR is already round-to-nearest with subnormals on. Every tier
 * returns the bits of ref/. docs/kernels.md has each stage's contract; stages.h has the arguments.
 */
#ifndef TAMIS_SRC_KERNELS_H
#define TAMIS_SRC_KERNELS_H

#include <tamis/tamis.h>

/* The stages that tiers implement. source and dense are composed of these in src/indexer/. */
#define TAMIS_KERNEL_STAGES(X)                                                                     \
    X(q_prepare)                                                                                   \
    X(k_insert)                                                                                    \
    X(k_gather)                                                                                    \
    X(mqa_logits)                                                                                  \
    X(block_max)                                                                                   \
    X(publish)                                                                                     \
    X(expand)                                                                                      \
    X(sparse_mqa_logits)                                                                           \
    X(topk)                                                                                        \
    X(consume)

typedef struct tamis_kernels {
#define TAMIS_KERNEL_FIELD(stage)                                                                  \
    void (*stage)(const tamis_##stage##_args *args, int32_t ith, int32_t nth);
    TAMIS_KERNEL_STAGES(TAMIS_KERNEL_FIELD)
#undef TAMIS_KERNEL_FIELD
} tamis_kernels;

/* Every kernel, declared from kernels.inc: tamis_<stage>_<tier>. */
#define TAMIS_KERNEL(stage, tier, note)                                                            \
    void tamis_##stage##_##tier(const tamis_##stage##_args *args, int32_t ith, int32_t nth);
#include "kernels.inc"
#undef TAMIS_KERNEL

/*
 * Scratch that one slice of consume uses, from its share of args->workspace: the scores of one
 * row's pool, then its expanded blocks.
 */
typedef struct tamis_consume_scratch {
    float *scores;   /* [width * block_size] */
    int32_t *blocks; /* [width] */
} tamis_consume_scratch;

static inline int64_t tamis_round_up(int64_t bytes, int64_t align) {
    return (bytes + align - 1) / align * align;
}

static inline int64_t tamis_consume_scratch_bytes(int64_t width, int32_t block_size) {
    /* At least a line, so that a workspace is never NULL. */
    return tamis_round_up(width * block_size * 4, 64) + tamis_round_up(width * 4 + 1, 64);
}

static inline tamis_consume_scratch tamis_consume_scratch_at(const tamis_consume_args *args,
                                                             int32_t ith) {
    tamis_consume_scratch scratch;
    uint8_t *base = (uint8_t *)args->workspace +
                    ith * tamis_consume_scratch_bytes(args->width, args->block_size);
    scratch.scores = (float *)(void *)base;
    scratch.blocks =
        (int32_t *)(void *)(base + tamis_round_up(args->width * args->block_size * 4, 64));
    return scratch;
}

/* Rows of slice ith of nth: contiguous, sizes differ by at most one, empty slices allowed. */
static inline void tamis_slice(int64_t count, int32_t ith, int32_t nth, int64_t *first,
                               int64_t *last) {
    int64_t each = count / nth, more = count % nth;
    *first = each * ith + (ith < more ? ith : more);
    *last = *first + each + (ith < more ? 1 : 0);
}

/*
 * The columns of each row that a scoring slice does. Rows are split when there are enough; else
 * every row is split over its positions, in units that hold whole blocks. Outputs are disjoint.
 */
static inline void tamis_slice_columns(int64_t rows, int64_t columns, int32_t ith, int32_t nth,
                                       int64_t *first, int64_t *last) {
    enum { UNIT = 512 };
    *first = 0;
    *last = columns;
    if (rows < nth) {
        tamis_slice((columns + UNIT - 1) / UNIT, ith, nth, first, last);
        *first = *first * UNIT < columns ? *first * UNIT : columns;
        *last = *last * UNIT < columns ? *last * UNIT : columns;
    }
}

static inline void tamis_slice_rows(int64_t rows, int32_t ith, int32_t nth, int64_t *first,
                                    int64_t *last) {
    *first = 0;
    *last = rows;
    if (rows >= nth) {
        tamis_slice(rows, ith, nth, first, last);
    }
}

#endif
