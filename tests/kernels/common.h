/* SPDX-License-Identifier: MIT */
/*
 * common.h: what every stage's check needs: a seeded generator, the ref backend, a way to run a
 * call in slices, comparison by bits, and the form of a refused call.
 */
#ifndef TAMIS_TESTS_KERNELS_COMMON_H
#define TAMIS_TESTS_KERNELS_COMMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tamis/tamis.h>

#include "oracle.h"

enum { POISON = 0xA5 };
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* xorshift64*: one state, seeded by each test, so that a failure repeats. */
void seed(uint64_t value);
uint64_t random64(void);
int64_t random_below(int64_t limit); /* 0 .. limit-1 */
float random_unit(void);             /* -1 .. 1 */
void random_bytes(void *out, int64_t bytes);

/* Memory filled with POISON, freed all at once by release(). */
void *fresh(int64_t bytes);
void release(void);

float float_of(uint32_t bits);
uint32_t bits_of(float x);

/* The ref backend, made at first use. */
const tamis_backend *ref(void);

/* Fails, naming `what` and the first differing index, unless the arrays agree bit for bit. */
void same_floats(const float *got, const float *want, int64_t n, const char *what);
void same_ints(const int32_t *got, const int32_t *want, int64_t n, const char *what);
void same_bytes(const void *got, const void *want, int64_t n, const char *what);
/* One element of an f32 or bf16 array against the f32 score that it stands for. */
void same_element(const void *array, int64_t at, int32_t type, float want, const char *what);
/* Elements [from, to) of an output row still hold POISON. */
void untouched(const void *row, int64_t from, int64_t to, int64_t element, const char *what);

/* Stores an f32 value as an element of the type; reads it back. */
void put(void *array, int64_t at, int32_t type, float value);
float get(const void *array, int64_t at, int32_t type);
int64_t element_bytes(int32_t type);

/* Outputs that a refused call must leave alone. */
void watch_none(void);
void watch(const void *output, int64_t bytes);
uint64_t watched(void);
void refused(tamis_status status, tamis_status code, const tamis_error *error, const char *name,
             uint64_t before, int line);
void succeeded(tamis_status status, const tamis_error *error, int line);

/* Slices of the next call: 1, 2, 3 in turn. */
int32_t next_slices(void);

/* Runs all slices of a call, the last first. */
#define RUN(stage, args)                                                                           \
    do {                                                                                           \
        int32_t nth_ = next_slices();                                                              \
        for (int32_t ith_ = nth_ - 1; ith_ >= 0; ith_--) {                                         \
            tamis_error error_ = {0};                                                              \
            succeeded(tamis_##stage(ref(), (args), ith_, nth_, &error_), &error_, __LINE__);       \
        }                                                                                          \
    } while (0)

/* A call is refused with `code`, naming `name`, and no watched output changes. */
#define REFUSE_CALL(stage, backend, args, ith, nth, code, name)                                    \
    do {                                                                                           \
        tamis_error error_ = {0};                                                                  \
        uint64_t before_ = watched();                                                              \
        tamis_status status_ = tamis_##stage(backend, args, ith, nth, &error_);                    \
        refused(status_, code, &error_, name, before_, __LINE__);                                  \
    } while (0)

/* `good` with one change is refused. */
#define REFUSE(stage, change, code, name)                                                          \
    do {                                                                                           \
        tamis_##stage##_args a = good;                                                             \
        change;                                                                                    \
        REFUSE_CALL(stage, ref(), &a, 0, 1, code, name);                                           \
    } while (0)

/* What every call refuses: its size, its slice, no arguments, no backend. And good itself works. */
#define REFUSE_COMMON(stage)                                                                       \
    do {                                                                                           \
        tamis_error last_ = {0};                                                                   \
        uint64_t first_ = watched();                                                               \
        REFUSE(stage, a.struct_size = 0, TAMIS_ERROR_STRUCT_SIZE, "struct_size");                  \
        REFUSE(stage, a.struct_size += 8, TAMIS_ERROR_STRUCT_SIZE, "struct_size");                 \
        REFUSE_CALL(stage, ref(), &good, 1, 1, TAMIS_ERROR_ARGUMENT, "ith");                       \
        REFUSE_CALL(stage, ref(), &good, -1, 1, TAMIS_ERROR_ARGUMENT, "ith");                      \
        REFUSE_CALL(stage, ref(), &good, 0, 0, TAMIS_ERROR_ARGUMENT, "nth");                       \
        REFUSE_CALL(stage, ref(), NULL, 0, 1, TAMIS_ERROR_ARGUMENT, "args");                       \
        REFUSE_CALL(stage, NULL, &good, 0, 1, TAMIS_ERROR_ARGUMENT, "backend");                    \
        assert_true(tamis_##stage(ref(), &good, 1, 1, NULL) == TAMIS_ERROR_ARGUMENT);              \
        succeeded(tamis_##stage(ref(), &good, 0, 1, &last_), &last_, __LINE__);                    \
        assert_true(watched() != first_);                                                          \
    } while (0)

#endif
