/* SPDX-License-Identifier: MIT */
/* consume.c: expand, score, select: the three stages one after another for each row (spec 5.3). */
#include "kernels/kernels.h"
#include "kernels/rows.h"

void tamis_consume_ref(const tamis_consume_args *args, int32_t ith, int32_t nth) {
    tamis_consume_rows(args, ith, nth, tamis_sparse_mqa_logits_ref, tamis_topk_ref);
}
