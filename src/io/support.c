/* SPDX-License-Identifier: MIT */
/* support.c: see support.h. */
#include "support.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

io_text io_format(const char *format, ...) {
    io_text out;
    va_list list;
    va_start(list, format);
    vsnprintf(out.text, sizeof out.text, format, list);
    va_end(list);
    return out;
}

/* Copies with a cut shown as "..." and everything but printable ASCII as '?'. */
static void put(char *to, size_t size, const char *from) {
    size_t n = 0;
    for (; from[n] && n + 1 < size; n++) {
        unsigned char c = (unsigned char)from[n];
        to[n] = (char)(c >= 0x20 && c < 0x7f ? c : '?');
    }
    to[n] = '\0';
    if (from[n]) {
        memcpy(to + n - 3, "...", 3);
    }
}

tamis_status io_fail(tamis_error *error, tamis_status status, const char *argument,
                     const char *required, const char *found) {
    if (error) {
        memset(error, 0, sizeof *error);
        error->status = status;
        put(error->argument, sizeof error->argument, argument[0] ? argument : "\"\"");
        put(error->required, sizeof error->required, required);
        put(error->found, sizeof error->found, found);
    }
    return status;
}

tamis_status io_no_memory(tamis_error *error, const char *argument) {
    return io_fail(error, TAMIS_ERROR_MEMORY, argument, "memory to hold it", "none left");
}

struct io_block {
    struct io_block *before;
    _Alignas(16) uint8_t bytes[];
};

void *io_arena_alloc(io_arena *arena, int64_t count, int64_t size) {
    int64_t bytes;
    if (count < 0 || size < 0 || __builtin_mul_overflow(count, size, &bytes) ||
        bytes > INT64_MAX - (int64_t)sizeof(struct io_block)) {
        return NULL;
    }
    struct io_block *block = malloc(sizeof *block + (size_t)bytes);
    if (!block) {
        return NULL;
    }
    block->before = arena->last;
    arena->last = block;
    return block->bytes;
}

void io_arena_free(io_arena *arena) {
    while (arena->last) {
        struct io_block *block = arena->last;
        arena->last = block->before;
        free(block);
    }
}
