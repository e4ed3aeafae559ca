/* SPDX-License-Identifier: MIT */
/* pitfalls.h: the tests of pitfalls.inc and what they share. */
#ifndef TAMIS_TESTS_PITFALLS_H
#define TAMIS_TESTS_PITFALLS_H

#include "levels.h"
#include "require.h"

#define PITFALL(number, words) void pitfall_##number##_##words(const tamis_backend *backend);
#include "pitfalls.inc"
#undef PITFALL

static inline const int32_t *result_i32(const results *r, int i) {
    return (const int32_t *)(const void *)r->bytes[i];
}
static inline block_lists published_lists(const results *source, level l) {
    return (block_lists){result_i32(source, LEVEL_BLOCKS), l.topk_blocks,
                         result_i32(source, LEVEL_BLOCK_COUNTS)};
}

/* Source and consumer of one scene against the oracle, well formed; both on `where`. */
void check_levels(const tamis_backend *backend, const scene *s, level l, const placement *where,
                  uint64_t seed);
/* topk over one row of scores. Returns the count; out[topk]. */
int32_t topk_row(const tamis_backend *backend, const float *scores, int64_t n, int32_t topk,
                 int32_t *out);
/* The same against the oracle. */
void check_topk(const tamis_backend *backend, const float *scores, int64_t n, int32_t topk);
void *test_memory(int64_t count, int64_t size);

#endif
