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

/* Rows of slice ith of nth: contiguous, sizes differ by at most one, empty slices allowed. */
static inline void tamis_slice(int64_t count, int32_t ith, int32_t nth, int64_t *first,
                               int64_t *last) {
    int64_t each = count / nth, more = count % nth;
    *first = each * ith + (ith < more ? ith : more);
    *last = *first + each + (ith < more ? 1 : 0);
}

#endif
