/* SPDX-License-Identifier: MIT */
/*
 * pitfalls.c: faults that others shipped, on the GPU. gpu_pitfalls NAME runs a pitfall of
 * tests/pitfalls with every trial sent to the device, or one of those below.
 */
#include "pitfalls.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "levels_on.h"

static test_device device;

/* ---- trials on the device ---- */

/* By turns as a call and as a captured graph. */
static void on_device(const trial *t) {
    static int turn;
    int number = trial_stage(t);
    mirror m;
    mirror_new(&m, &device, t, number, 0);
    if (turn++ % 2) {
        void *exec = device_capture(&device, number, &m.args);
        device_replay(&device, exec);
        device.exec_destroy(exec);
    } else {
        device_run(&device, number, &m.args);
    }
    mirror_pull(&m);
    mirror_free(&m);
}

static tamis_backend *cpu(void) {
    tamis_backend *backend;
    tamis_error error;
    REQUIRE_OK(tamis_backend_create("auto", &backend, &error), error);
    return backend;
}

static void require_cpu(const scene *s, const trial *t, const results *want, const char *what) {
    results got = trial_results(t);
    level_equal(s, want, &got, what);
    results_free(&got);
}

/* ---- 11: negative numbers, which no host sees ---- */

enum { LENGTH, START, REQUEST, LIST_COUNT, FIELDS };
enum { NEGATIVE_ROWS = 3, NEGATIVE_WIDTH = 6 };

typedef struct fields {
    const int32_t *of[FIELDS]; /* NULL: the stage has none */
} fields;

static fields fields_of(const trial *t, int number) {
    const stage_args *a = &t->args;
    const tamis_rows *rows = number == STAGE_source    ? &a->source.rows
                             : number == STAGE_consume ? &a->consume.rows
                                                       : &a->dense.rows;
    const int32_t *counts = number == STAGE_source    ? NULL
                            : number == STAGE_consume ? a->consume.counts
                                                      : a->dense.counts;
    return (fields){{rows->ke, rows->ks, rows->request, counts}};
}

static void new_trial(trial *t, int number, const scene *s, level l, block_lists lists) {
    if (number == STAGE_source)
        source_trial(t, s, l, &level_plain);
    else
        (number == STAGE_consume ? consume_trial : dense_trial)(t, s, l, lists, &level_plain);
}

static results on_cpu(const tamis_backend *backend, int number, const scene *s, level l,
                      block_lists lists) {
    if (number == STAGE_source)
        return level_source(backend, s, l, &level_plain, level_whole);
    return (number == STAGE_consume ? level_consume : level_dense)(backend, s, l, lists,
                                                                   &level_plain, level_whole);
}

/* Row 1 with one number below zero: what the CPU says of the row with 0 in its place. */
static void negative_field(const tamis_backend *backend, int number, int field, int32_t value) {
    static const int64_t lengths[NEGATIVE_ROWS] = {90, 80, 70};
    static const int32_t ids[NEGATIVE_ROWS * NEGATIVE_WIDTH] = {0, 2, 4, 5, 7, 9, 1, 2, 3,
                                                                6, 8, 9, 0, 1, 3, 4, 6, 8};
    int32_t counts[NEGATIVE_ROWS] = {6, 5, 6};
    level l = {TAMIS_NUMERICS_EXACT, 8, 20, 5};
    block_lists lists = {ids, NEGATIVE_WIDTH, counts};
    scene s;
    trial t;
    mirror m;
    test_context("pitfall 11: stage %d, field %d is %d", number, field, value);
    rows_of(&s, SCENE_PLAIN, 90, lengths, NEGATIVE_ROWS, 11);
    new_trial(&t, number, &s, l, lists);
    const int32_t *at = fields_of(&t, number).of[field];
    if (at) {
        mirror_new(&m, &device, &t, number, 0);
        ((int32_t *)(uintptr_t)at)[1] = value;
        device_write(&device, mirror_at(&m, at), at, NEGATIVE_ROWS * 4);
        device_run(&device, number, &m.args);
        mirror_pull(&m);
        s.ke[1] = field == LENGTH ? 0 : s.ke[1];
        counts[1] = field == LIST_COUNT ? 0 : counts[1];
        results want = on_cpu(backend, number, &s, l, lists);
        require_cpu(&s, &t, &want, "as 0");
        results_free(&want);
        mirror_free(&m);
    }
    trial_free(&t);
    scene_free(&s);
}

static void negative_numbers_are_zero(void) {
    static const int stages[] = {STAGE_source, STAGE_consume, STAGE_dense};
    static const int32_t bad[] = {-1, -64, INT32_MIN, INT32_MIN + 1};
    tamis_backend *backend = cpu();
    for (int i = 0; i < 3; i++)
        for (int field = 0; field < FIELDS; field++)
            for (int v = 0; v < 4; v++)
                negative_field(backend, stages[i], field, bad[v]);
    tamis_backend_destroy(backend);
}

/* ---- 19: 16,384 rows over a table for a million positions ---- */

static void memory_is_bounded(void) {
    enum { ROWS = 16384, PAGE = 64, BOUND = 256 << 20 };
    placement where = {.layout = TAMIS_K_MXFP4_PAGE, .page_size = PAGE};
    tamis_backend *backend = cpu();
    level l = {TAMIS_NUMERICS_EXACT, 8, 16, 24};
    int64_t *lengths = test_memory(ROWS, 8);
    size_t before = 0, after = 0, total = 0;
    scene s;
    trial t;
    mirror m;
    test_context("pitfall 19");
    for (int i = 0; i < ROWS; i++)
        lengths[i] = i * 7 % 301;
    rows_of(&s, SCENE_MIXED, 300, lengths, ROWS, 19);
    results want = level_source(backend, &s, l, &where, level_whole);
    source_trial(&t, &s, l, &where);
    t.args.source.rows.page_table_width = (1 << 20) / PAGE;
    mirror_new(&m, &device, &t, STAGE_source, 0);
    REQUIRE(m.workspace_bytes <= BOUND, "a workspace of %lld bytes", (long long)m.workspace_bytes);
    device.memory_info(&before, &total);
    device_run(&device, STAGE_source, &m.args);
    device.memory_info(&after, &total);
    REQUIRE(before == after, "the call took %lld bytes of device memory",
            (long long)before - (long long)after);
    mirror_pull(&m);
    require_cpu(&s, &t, &want, "in bounded memory");
    results_free(&want);
    mirror_free(&m);
    trial_free(&t);
    scene_free(&s);
    free(lengths);
    tamis_backend_destroy(backend);
}

/* ---- running one ---- */

static const struct {
    const char *name;
    void (*run)(void);
} own[] = {{"11_negative_numbers_are_zero", negative_numbers_are_zero},
           {"19_memory_is_bounded", memory_is_bounded}};

static const struct {
    const char *name;
    void (*run)(const tamis_backend *backend);
} shared[] = {
#define PITFALL(number, words) {#number "_" #words, pitfall_##number##_##words},
#include "pitfalls.inc"
#undef PITFALL
};

static int run(const char *name) {
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(own[i].name, name) == 0) {
            own[i].run();
            return 1;
        }
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (strcmp(shared[i].name, name) == 0) {
            trial_elsewhere = on_device;
            shared[i].run(NULL); /* nothing may fall back to the CPU */
            return 1;
        }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: gpu_pitfalls NAME\n");
        return 2;
    }
    test_catch_faults();
    device_open(&device);
    int known = run(argv[1]);
    device_close(&device);
    return known ? 0 : 2;
}
