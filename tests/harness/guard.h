/* SPDX-License-Identifier: MIT */
/*
 * guard.h: memory whose neighbours fault, and random bits to fill it with.
 *
 * Every buffer is a mapping between two PROT_NONE pages. It ends exactly at the second (AFTER) or
 * begins exactly behind the first (BEFORE), so that one byte read or written too far is a fault.
 */
#ifndef TAMIS_TESTS_GUARD_H
#define TAMIS_TESTS_GUARD_H

#include <stdint.h>

enum { GUARD_AFTER = 0, GUARD_BEFORE = 1 };

typedef struct guard_arena guard_arena;

/* The readable part of a mapping: the buffer and the slack that page rounding leaves. */
typedef struct guard_body {
    uint8_t *base;
    int64_t bytes;
} guard_body;

guard_arena *guard_new(void);
void guard_free(guard_arena *arena); /* unmaps everything */

/*
 * Maps `bytes` (0 allowed: any access faults), aligned to `align` (a power of two up to a page; an
 * AFTER buffer whose size is no multiple of it ends up to align - 1 bytes early). The whole body
 * holds random bits. body may be NULL.
 */
void *guard_map(guard_arena *arena, int64_t bytes, int64_t align, int side, guard_body *body);
/* How many buffers were mapped so far, and the body of one. */
int64_t guard_count(const guard_arena *arena);
guard_body guard_at(const guard_arena *arena, int64_t i);
/* Makes everything mapped so far read-only. */
void guard_seal(guard_arena *arena);

/* splitmix64: the tests' only source of random numbers. */
static inline uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static inline int64_t random_below(uint64_t *state, int64_t limit) {
    return (int64_t)((random_next(state) >> 11) % (uint64_t)limit);
}
/* Uniform in [-1, 1). */
static inline float random_float(uint64_t *state) {
    return (float)random_below(state, 1 << 24) / (float)(1 << 23) - 1.0f;
}
void random_fill(uint64_t *state, void *bytes, int64_t size);
/* A random permutation of 0..n-1. */
void random_permutation(uint64_t *state, int32_t *out, int64_t n);

#endif
