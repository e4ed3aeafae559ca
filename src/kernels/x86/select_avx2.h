/* SPDX-License-Identifier: MIT */
/* select_avx2.h: the best of n scores, in linear time whatever the scores are. */
#ifndef TAMIS_KERNELS_SELECT_AVX2_H
#define TAMIS_KERNELS_SELECT_AVX2_H

#include <stdint.h>

/*
 * Writes the indices of the best `want` of n scores (f32 or bf16, in the order of spec 4.3) to
 * out[want], ascending. 0 <= want <= n < 2^31.
 */
void tamis_select_avx2(const void *scores, int32_t type, int64_t n, int64_t want, int32_t *out);

#endif
