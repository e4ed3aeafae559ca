/* SPDX-License-Identifier: MIT */
/*
 * oracle.h: an independent computation of everything tamis selects.
 *
 * Written from the specification alone, in whole numbers or long double with full sorts: slow,
 * plain and without a line shared with src/. The tests hold ref/ to it and `tamis check` judges
 * results by it. Rows are plain arrays; every function does one row.
 */
#ifndef TAMIS_ORACLE_H
#define TAMIS_ORACLE_H

#include <stdint.h>

enum { ORACLE_EXACT = 1, ORACLE_BF16 = 2, ORACLE_DG_BF16 = 3, ORACLE_REF_BF16 = 4 };

/* bf16 rounding (ties to even) of an f32, as the 16 bits and as an f32. */
uint16_t oracle_bf16(float x);
float oracle_from_bf16(uint16_t x);

/* Quantises 32 f32 values: codes[16] (element 2i in the low nibble) and the scale byte. */
void oracle_mxfp4(const float x[32], uint8_t codes[16], uint8_t *scale);

/* q_prepare of one head: bf16 x[D] rotated by cos_sin[64] (32 cos, 32 sin), rounded, quantised. */
void oracle_q_prepare(const uint16_t *x, int d, const float *cos_sin, uint8_t *codes,
                      uint8_t *scales);
float oracle_weight(float w, int heads, int d);

/* k_insert of one token: x[D] normalised with g[D] and eps, rotated, rounded, quantised. */
void oracle_k_prepare(const uint16_t *x, int d, const float *g, float eps, const float *cos_sin,
                      uint8_t *codes, uint8_t *scales);

/*
 * Scores of one query row (codes [heads][D/2], scales [heads][D/32], weights as f32) against n K
 * rows given by strides in bytes, for one numerics class.
 */
void oracle_scores(int numerics, int heads, int d, const uint8_t *q_codes, const uint8_t *q_scales,
                   const float *weights, const uint8_t *k_codes, int64_t k_codes_stride,
                   const uint8_t *k_scales, int64_t k_scales_stride, int64_t n, float *scores);

/* The order of scores: < 0 when (a, position i) comes before (b, position j). */
int oracle_compare(float a, int64_t i, float b, int64_t j);

/* Full selection: the first min(n, topk), ascending, -1 tail in out[topk]. Returns the count. */
int64_t oracle_topk(const float *scores, int64_t n, int64_t topk, int32_t *out);

/* Largest score of each block; block_max[ceil(n/s)]. */
void oracle_block_max(const float *scores, int64_t n, int s, float *block_max);

/* Published blocks, ascending, -1 tail in out[topk_blocks]. Returns the count. */
int64_t oracle_publish(const float *scores, int64_t n, int s, int64_t topk_blocks, int32_t *out);

/* Consumer's selection from published (or any) ids. Returns the count. */
int64_t oracle_consume(const float *scores, int64_t n, int s, const int32_t *blocks, int64_t width,
                       int64_t topk, int32_t *out);

/*
 * Foreign candidate lists: out[width * size / s], anchored ids; *columns the valid columns. Returns
 * the number of blocks before the tail. With fixed the tail repeats the last id, else it is -1.
 */
int64_t oracle_expand(const int32_t *ids, int64_t width, int size, int s, int64_t ks, int64_t ke,
                      int keep_duplicates, int fixed, int32_t *out, int64_t *columns);

#endif
