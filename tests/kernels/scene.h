/* SPDX-License-Identifier: MIT */
/*
 * scene.h: random K and queries behind the views that the calls take, and their scores by the
 * oracle. K is made as plain rows per request first and then laid out, with padded strides and
 * shuffled pages, so that the layout and the arithmetic are tested apart.
 */
#ifndef TAMIS_TESTS_KERNELS_SCENE_H
#define TAMIS_TESTS_KERNELS_SCENE_H

#include "common.h"

enum {                /* kinds of data */
       DATA_ORDINARY, /* scales within 2^6 of each other */
       DATA_WIDE,     /* scale bytes 0..254 everywhere: overflow, underflow, wide spans */
       DATA_BITS,     /* random bits, NaN scales among them, any f32 weights */
       DATA_WEIGHTS,  /* ordinary with infinite, NaN, zero and huge weights now and then */
       DATA_KINDS
};

typedef struct scene {
    int32_t layout, heads, head_dim, data, weights_type;
    int32_t page_size;
    int64_t rows_count, positions; /* positions of each request */
    int64_t requests;              /* 3 for pages, else 1 */
    uint8_t *k_codes, *k_scales;   /* plain: [requests][positions][D/2], [..][D/32] */
    int32_t *ks, *ke, *request, *page_table;
    int64_t k_bytes; /* of k.codes, all of it */
    tamis_k_cache k;
    tamis_rows rows;
    tamis_query query;
} scene;

/* Fields up to positions are the caller's; makes the rest. Rows see random intervals; row 0 all. */
void scene_make(scene *s);

int64_t scene_len(const scene *s, int64_t r);
/* Oracle scores of row r's interval, in memory of its own. */
float *scene_scores(const scene *s, int32_t numerics, int64_t r);
/* Where local position j of row r lies: what selection.slots holds. */
int64_t scene_slot(const scene *s, int64_t r, int64_t j);
/* Bytes of one plain K row of row r at its local position j. */
const uint8_t *scene_k_codes(const scene *s, int64_t r, int64_t j);
const uint8_t *scene_k_scales(const scene *s, int64_t r, int64_t j);
/* Address in the laid-out cache of K slot (PAGE: page * page_size + slot). */
uint8_t *cache_codes(const tamis_k_cache *k, int64_t slot);
uint8_t *cache_scales(const tamis_k_cache *k, int64_t slot);
/* An empty cache of that many slots, poisoned, with padded strides. Returns its bytes. */
int64_t cache_make(tamis_k_cache *k, int32_t layout, int32_t head_dim, int32_t page_size,
                   int64_t slots);

/* A selection of all outputs with padded rows. */
void selection_make(tamis_selection *selection, int64_t rows, int32_t topk);
void selection_watch(const tamis_selection *selection, int64_t rows);
/* Row r of a selection holds want[topk] (count of them valid), their slots and scores. */
void selection_same(const scene *s, const tamis_selection *selection, int64_t r,
                    const int32_t *want, int64_t count, const float *scores);

#endif
