/* SPDX-License-Identifier: MIT */
/*
 * forge.h: safetensors files in memory, right or wrong in any one place.
 *
 * A forge holds tensors as texts and bytes; offsets follow from the order unless a test gives its
 * own. forge_trace starts from a small trace that opens, so that each hostile test changes one
 * thing alone.
 */
#ifndef TAMIS_TESTS_IO_FORGE_H
#define TAMIS_TESTS_IO_FORGE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trace.h"

enum { FORGE_TENSORS = 32 };

typedef struct forge_tensor {
    const char *name;    /* as it stands in JSON, escapes and all */
    const char *dtype;   /* JSON: "\"U8\"" is written "U8" here */
    const char *shape;   /* JSON: "[3, 4]" */
    const char *offsets; /* JSON, or NULL: where the data lies */
    const char *entry;   /* JSON of the whole entry, or NULL */
    uint8_t *data;       /* [bytes], freed by the forge */
    int64_t bytes;
} forge_tensor;

typedef struct forge {
    forge_tensor tensors[FORGE_TENSORS];
    int count;
    const char *format;    /* metadata, or NULL: left out */
    const char *model;     /* JSON object, put into a string by the forge; or NULL */
    const char *metadata;  /* JSON of all of __metadata__, or NULL */
    const char *header;    /* the whole header, or NULL */
    int64_t header_length; /* what the first 8 bytes say, or -1: the truth */
    int pad;               /* spaces after the header */
} forge;

/* A trace that opens: see forge.c for its values. */
void forge_trace(forge *f);
/* Nothing at all: header {} and no metadata. */
void forge_empty(forge *f);
void forge_free(forge *f);

forge_tensor *forge_get(forge *f, const char *name); /* fails the test when there is none */
void forge_remove(forge *f, const char *name);
/* Adds a tensor; data is copied, or a fixed pattern when NULL. */
forge_tensor *forge_add(forge *f, const char *name, const char *dtype, const char *shape,
                        const void *data, int64_t bytes);
/* Gives a tensor other elements. */
void forge_i32(forge *f, const char *name, int64_t index, int32_t value);

/* The file, in a block of exactly its size. The caller frees it. */
uint8_t *forge_bytes(const forge *f, int64_t *size);

/* Opens it as a trace, which must succeed; *bytes must outlive the trace. */
tamis_trace *forge_open(const forge *f, uint8_t **bytes);

/*
 * Opens it as a trace, which must fail with this status and argument, a `required` and a `found`
 * that hold these texts, and one line of printable text. Frees the forge.
 */
void forge_refused(forge *f, tamis_status status, const char *argument, const char *required,
                   const char *found);

#endif
