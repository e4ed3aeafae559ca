/* SPDX-License-Identifier: MIT */
/*
 * main.c: harness STAGE TIER holds one tier's kernel to ref, byte for byte.
 *
 * Every case of a stage is placed in many ways (layouts, strides, guard sides), run under many
 * slicings, and compared with ref on the tightest placement in one slice. With TIER = ref that
 * holds ref to itself. A tier that this machine or build lacks is skipped with the reason.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/kernels/kernels.h"
#include "require.h"
#include "stages.h"

static const stage *const stages[] = {
    &stage_q_prepare, &stage_k_insert, &stage_k_gather, &stage_mqa_logits,
    &stage_block_max, &stage_publish,  &stage_expand,   &stage_sparse_mqa_logits,
    &stage_topk,      &stage_consume,  &stage_source,   &stage_dense,
};
enum { STAGES = sizeof stages / sizeof *stages, REPEATS = 30 };

static const char *const kernel_list[][2] = {
#define TAMIS_KERNEL(stage, tier, note) {#stage, #tier},
#include "../../src/kernels/kernels.inc"
#undef TAMIS_KERNEL
};

typedef struct run {
    const stage *stage;
    const problem *problem;
    int index;
    const char *tier;
    const tamis_backend *backend, *ref;
    results want; /* ref on the plainest placement, one slice */
    int64_t calls;
} run;

/* ---- one case ---- */

static slicing slicing_of(int64_t i) {
    static const int32_t slices[] = {1, 2, 3, 7, 16};
    static const uint8_t poison[] = {0xA5, 0x00, 0x5A, 0xFF};
    return (slicing){.nth = slices[i % 5],
                     .order = (int)(i / 5 % 3),
                     .hostile_fp = (int)(i % 2),
                     .poison = poison[i % 4],
                     .seed = (uint64_t)i};
}

static placement placement_of(int64_t i, int index) {
    return (placement){.layout = TAMIS_K_MXFP4_PAGE + (int)(i % 3),
                       .stride = (int)(i / 3 % STRIDE_KINDS),
                       .side = (int)((i / 9 + i) % 2),
                       .omit = (int)((i * 7 + index) % 16),
                       .split = (int)((i + index) % 2),
                       .seed = (uint64_t)(i * 31 + index)};
}

static void say_context(const run *r, const placement *p, slicing s) {
    test_context("%s on %s, case %d (%s); layout %d, stride %d, side %d, omit %d, split %d, "
                 "seed %llu; %d slices, order %d, hostile %d, poison %02x",
                 r->stage->name, r->tier, r->index, r->problem->text, p->layout, p->stride, p->side,
                 p->omit, p->split, (unsigned long long)p->seed, s.nth, s.order, s.hostile_fp,
                 s.poison);
}

static results run_once(run *r, trial *t, const tamis_backend *backend, slicing s) {
    say_context(r, &t->place, s);
    trial_run(t, backend, s);
    if (r->stage->verify)
        r->stage->verify(t, r->problem);
    r->calls++;
    return trial_results(t);
}

/* Builds one placement, runs it under `count` slicings from `first` and compares all of them. */
static void run_placement(run *r, const placement *p, int64_t first, int64_t count) {
    trial t;
    trial_new(&t, p);
    r->stage->build(&t, r->problem);
    results here;
    for (int64_t i = 0; i < count; i++) {
        results got = run_once(r, &t, r->backend, slicing_of(first + i));
        results_equal(&t, &r->want, &got, 1, "against ref");
        if (i > 0)
            results_equal(&t, &here, &got, 0, "against the first run");
        if (i > 0)
            results_free(&here);
        here = got;
    }
    results_free(&here);
    trial_free(&t);
}

static void run_repeats(run *r, const placement *p) {
    trial t;
    trial_new(&t, p);
    r->stage->build(&t, r->problem);
    results first = run_once(r, &t, r->backend, slicing_of(r->index));
    for (int i = 1; i < REPEATS; i++) {
        results again = run_once(r, &t, r->backend, slicing_of(r->index));
        results_equal(&t, &first, &again, 0, "repeated");
        results_free(&again);
    }
    results_free(&first);
    trial_free(&t);
}

static void run_case(run *r) {
    placement plain = {.layout = TAMIS_K_MXFP4_SPLIT};
    trial t;
    problem p;
    memset(&p, 0, sizeof p);
    r->problem = &p;
    r->stage->make(&p, r->index);
    trial_new(&t, &plain);
    r->stage->build(&t, &p);
    r->want = run_once(r, &t, r->ref, slicing_of(0));
    trial_free(&t);
    int64_t placements = p.heavy ? 4 : 9;
    for (int64_t i = 0; i < placements; i++) {
        placement where = placement_of(i + (p.heavy ? r->index : 0), r->index);
        run_placement(r, &where, r->index * placements + i, 1);
    }
    placement where = placement_of(r->index % 18, r->index);
    where.omit = 0;
    if (r->index % 4 == 0 && !p.heavy)
        run_placement(r, &where, 0, 15);
    if (r->index % 8 == 2 && !p.heavy)
        run_repeats(r, &where);
    results_free(&r->want);
    problem_free(&p);
}

/* ---- tiers ---- */

static int kernel_listed(const char *name, const char *tier) {
    int any = 0;
    for (size_t i = 0; i < sizeof kernel_list / sizeof *kernel_list; i++)
        if (strcmp(kernel_list[i][1], tier) == 0) {
            any = 1;
            if (strcmp(kernel_list[i][0], name) == 0)
                return 1;
        }
    return any && (strcmp(name, "source") == 0 || strcmp(name, "dense") == 0);
}

static void require_tier(const char *name, const char *tier) {
    int32_t supported = 0;
    if (!kernel_listed(name, tier))
        test_skip("this build has no %s kernel for %s", tier, name);
    for (int32_t i = 0; tamis_tier_name(i, &supported); i++)
        if (strcmp(tamis_tier_name(i, &supported), tier) == 0) {
            if (!supported)
                test_skip("this machine does not run tier %s", tier);
            return;
        }
    test_fail(__FILE__, __LINE__, "tier %s is in kernels.inc but not in tamis_tier_name", tier);
}

static tamis_backend *backend_of(const char *tier) {
    tamis_error error;
    tamis_backend *backend;
    REQUIRE_OK(tamis_backend_create(tier, &backend, &error), error);
    REQUIRE(strcmp(tamis_backend_tier(backend), tier) == 0, "asked for tier %s, got %s", tier,
            tamis_backend_tier(backend));
    return backend;
}

int main(int argc, char **argv) {
    run r;
    memset(&r, 0, sizeof r);
    for (int i = 0; i < STAGES && argc == 3; i++)
        if (strcmp(stages[i]->name, argv[1]) == 0)
            r.stage = stages[i];
    if (!r.stage) {
        fprintf(stderr, "usage: harness STAGE TIER\n");
        return 2;
    }
    r.tier = argv[2];
    require_tier(argv[1], r.tier);
    test_catch_faults();
    tamis_backend *ref = backend_of("ref"), *tier = backend_of(r.tier);
    r.ref = ref;
    r.backend = tier;
    int is_ref = strcmp(r.tier, "ref") == 0;
    int cases = r.stage->cases + (is_ref ? r.stage->judged : 0);
    for (r.index = 0; r.index < cases; r.index++)
        run_case(&r);
    printf("tier %s: %s: %d cases, %lld runs, every byte as ref's\n", r.tier, r.stage->name, cases,
           (long long)r.calls);
    tamis_backend_destroy(ref);
    tamis_backend_destroy(tier);
    return 0;
}
