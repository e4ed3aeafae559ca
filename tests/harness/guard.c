/* SPDX-License-Identifier: MIT */
/* guard.c: guarded mappings and random fills. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "guard.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "require.h"

typedef struct mapping {
    uint8_t *map;
    int64_t total;
    guard_body body;
} mapping;

struct guard_arena {
    mapping *mappings;
    int64_t count, capacity;
    uint64_t random;
};

guard_arena *guard_new(void) {
    guard_arena *arena = calloc(1, sizeof *arena);
    REQUIRE(arena, "out of memory");
    arena->random = 77;
    return arena;
}

void guard_free(guard_arena *arena) {
    for (int64_t i = 0; i < arena->count; i++)
        munmap(arena->mappings[i].map, (size_t)arena->mappings[i].total);
    free(arena->mappings);
    free(arena);
}

static mapping *add_mapping(guard_arena *arena) {
    if (arena->count == arena->capacity) {
        arena->capacity = arena->capacity ? 2 * arena->capacity : 32;
        arena->mappings =
            realloc(arena->mappings, (size_t)arena->capacity * sizeof *arena->mappings);
        REQUIRE(arena->mappings, "out of memory");
    }
    return &arena->mappings[arena->count++];
}

void *guard_map(guard_arena *arena, int64_t bytes, int64_t align, int side, guard_body *body) {
    int64_t page = sysconf(_SC_PAGESIZE);
    int64_t inside = (bytes + align - 1 + page - 1) / page * page;
    if (bytes == 0)
        inside = 0;
    mapping *m = add_mapping(arena);
    m->total = inside + 2 * page;
    m->map = mmap(NULL, (size_t)m->total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(m->map != MAP_FAILED, "mmap of %lld bytes failed", (long long)m->total);
    m->body = (guard_body){m->map + page, inside};
    if (inside) {
        int rc = mprotect(m->body.base, (size_t)inside, PROT_READ | PROT_WRITE);
        REQUIRE(rc == 0, "mprotect failed");
        random_fill(&arena->random, m->body.base, inside);
    }
    if (body)
        *body = m->body;
    if (side == GUARD_BEFORE)
        return m->body.base;
    return m->body.base + (inside - bytes) / align * align;
}

int64_t guard_count(const guard_arena *arena) {
    return arena->count;
}

guard_body guard_at(const guard_arena *arena, int64_t i) {
    return arena->mappings[i].body;
}

void guard_seal(guard_arena *arena) {
    for (int64_t i = 0; i < arena->count; i++) {
        guard_body body = arena->mappings[i].body;
        if (body.bytes)
            mprotect(body.base, (size_t)body.bytes, PROT_READ);
    }
}

void random_fill(uint64_t *state, void *bytes, int64_t size) {
    uint8_t *out = bytes;
    while (size > 0) {
        uint64_t word = random_next(state);
        int64_t part = size < 8 ? size : 8;
        memcpy(out, &word, (size_t)part);
        out += part;
        size -= part;
    }
}

void random_permutation(uint64_t *state, int32_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int64_t j = random_below(state, i + 1);
        out[i] = out[j];
        out[j] = (int32_t)i;
    }
}
