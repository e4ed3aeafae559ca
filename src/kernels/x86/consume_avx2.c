/* SPDX-License-Identifier: MIT */
/* consume_avx2.c: each row's best positions inside its published blocks, by this tier's stages. */
#include "kernels/kernels.h"
#include "kernels/rows.h"

void tamis_consume_avx2(const tamis_consume_args *args, int32_t ith, int32_t nth) {
    tamis_consume_rows(args, ith, nth, tamis_sparse_mqa_logits_avx2, tamis_topk_avx2);
}
