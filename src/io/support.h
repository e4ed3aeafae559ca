/* SPDX-License-Identifier: MIT */
/*
 * support.h: what every file of src/io/ leans on: texts for errors, and memory that goes at once.
 *
 * Names and values in an error come from a file that may be hostile, so io_fail keeps printable
 * ASCII alone: an error is one line that can be shown on a terminal and put into JSON.
 */
#ifndef TAMIS_IO_SUPPORT_H
#define TAMIS_IO_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

#include <tamis/status.h>

/* A short text made in place: io_format("k.%d", layer).text lives to the end of the expression. */
typedef struct io_text {
    char text[128];
} io_text;

__attribute__((format(printf, 1, 2))) io_text io_format(const char *format, ...);

/* Fills *error (may be NULL) and returns status. */
tamis_status io_fail(tamis_error *error, tamis_status status, const char *argument,
                     const char *required, const char *found);

/* The same for lack of memory while making `argument`. */
tamis_status io_no_memory(tamis_error *error, const char *argument);

/* Blocks that are freed together. Zeroed is empty. */
typedef struct io_arena {
    struct io_block *last;
} io_arena;

/* count * size bytes, not cleared, aligned to 16, never NULL for 0; NULL when they cannot be had.
 */
void *io_arena_alloc(io_arena *arena, int64_t count, int64_t size);
void io_arena_free(io_arena *arena);

#endif
