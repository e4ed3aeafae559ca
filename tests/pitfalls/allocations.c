/* SPDX-License-Identifier: MIT */
/*
 * allocations.c: pitfall 28. Servers found hidden allocations outside their memory budget, one per
 * row. The allocator's entry points are interposed and counted: no call allocates, maps or frees.
 */
#include <stdlib.h>
#include <string.h>

#include "counting.h"
#include "require.h"
#include "stages.h"
#include "suite.h"

/* ---- every call, counted ---- */

static const stage *const stages[] = {
    &stage_q_prepare, &stage_k_insert, &stage_k_gather, &stage_mqa_logits,
    &stage_block_max, &stage_publish,  &stage_expand,   &stage_sparse_mqa_logits,
    &stage_topk,      &stage_consume,  &stage_source,   &stage_dense,
};

/* The calls of the trial that runs; the counted ones stand in for them. */
static stage_call *original[2];

static tamis_status counted(int phase, const tamis_backend *backend, const void *args, int32_t ith,
                            int32_t nth, tamis_error *error) {
    counting_begin();
    tamis_status status = original[phase](backend, args, ith, nth, error);
    counting_end();
    return status;
}
static tamis_status counted_first(const tamis_backend *backend, const void *args, int32_t ith,
                                  int32_t nth, tamis_error *error) {
    return counted(0, backend, args, ith, nth, error);
}
static tamis_status counted_second(const tamis_backend *backend, const void *args, int32_t ith,
                                   int32_t nth, tamis_error *error) {
    return counted(1, backend, args, ith, nth, error);
}

static void count_trial(const tamis_backend *backend, const stage *of, const problem *p,
                        const placement *where) {
    tamis_error error;
    trial t;
    trial_new(&t, where);
    of->build(&t, p);
    original[0] = t.phases[0];
    original[1] = t.phases[1];
    t.phases[0] = counted_first;
    t.phases[1] = original[1] ? counted_second : NULL;
    test_context("pitfall 28: %s, %s, split %d", of->name, p->text, where->split);
    counting_reset();
    trial_run(&t, backend, (slicing){.nth = 3, .poison = 0xA5});
    REQUIRE(counting_calls() == 0, "%lld calls of the allocator", (long long)counting_calls());
    t.args.struct_size = 1; /* nor does a call that fails */
    REQUIRE(counted_first(backend, &t.args, 0, 1, &error) == TAMIS_ERROR_STRUCT_SIZE, "was taken");
    REQUIRE(counting_calls() == 0, "%lld calls of the allocator on an error",
            (long long)counting_calls());
    trial_free(&t);
}

static void calls_allocate_nothing(const tamis_backend *backend) {
    if (!counting_works())
        test_skip("the allocator cannot be interposed in this build");
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        for (int index = 0; index < stages[i]->cases; index += 3) {
            problem p;
            memset(&p, 0, sizeof p);
            stages[i]->make(&p, index);
            placement where = {.layout = TAMIS_K_MXFP4_PAGE + index % 3, .split = index / 3 % 2};
            count_trial(backend, stages[i], &p, &where);
            problem_free(&p);
        }
}

static const suite_test tests[] = {{"28_calls_allocate_nothing", calls_allocate_nothing}};

int main(int argc, char **argv) {
    return suite_main(argc, argv, tests, 1);
}
