/* SPDX-License-Identifier: MIT */
/*
 * harness.c: gpu_harness STAGE [few] holds a stage on the GPU to ref on the CPU, byte for byte,
 * over the cases and placements of the CPU's harness: layouts, strides, poisoned padding, outputs
 * left out. Every second placement runs as a captured graph. "few" is for slow checkers: one
 * placement a case, no filled workspace.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "device.h"
#include "require.h"
#include "stages.h"

static const stage *const stages[] = {
    &stage_q_prepare, &stage_k_insert, &stage_k_gather, &stage_mqa_logits,
    &stage_block_max, &stage_publish,  &stage_expand,   &stage_sparse_mqa_logits,
    &stage_topk,      &stage_consume,  &stage_source,   &stage_dense,
};
enum {
    STAGES = sizeof stages / sizeof *stages,
    PLACEMENTS = 9,
    HEAVY_PLACEMENTS = 3,
    REPEATS = 30
};

static struct {
    test_device device;
    const stage *stage;
    int number, few, as_graph, repeats;
    long long calls;
} run;

/* A stage_call: trial_run has poisoned the outputs and looks at the padding afterwards. */
static tamis_status on_device(const tamis_backend *backend, const void *args, int32_t ith,
                              int32_t nth, tamis_error *error) {
    const trial *t = (const trial *)(const void *)((const uint8_t *)args - offsetof(trial, args));
    mirror m;
    (void)backend;
    (void)ith;
    (void)nth;
    (void)error;
    mirror_new(&m, &run.device, t, run.number, run.few);
    if (run.as_graph) {
        void *exec = device_capture(&run.device, run.number, &m.args);
        for (int i = 0; i < run.repeats; i++)
            device_replay(&run.device, exec);
        run.device.exec_destroy(exec);
    } else {
        for (int i = 0; i < run.repeats; i++)
            device_run(&run.device, run.number, &m.args);
    }
    mirror_pull(&m);
    mirror_free(&m);
    run.calls++;
    return TAMIS_OK;
}

static placement placement_of(int64_t i, int index) {
    return (placement){.layout = TAMIS_K_MXFP4_PAGE + (int)(i % 3),
                       .stride = (int)(i / 3 % STRIDE_KINDS),
                       .side = (int)((i / 9 + i) % 2),
                       .omit = (int)((i * 7 + index) % 16),
                       .seed = (uint64_t)(i * 31 + index)};
}

static results run_ref(const tamis_backend *ref, const problem *p) {
    placement plain = {.layout = TAMIS_K_MXFP4_SPLIT};
    slicing whole = {.nth = 1, .poison = 0xA5};
    trial t;
    trial_new(&t, &plain);
    run.stage->build(&t, p);
    trial_run(&t, ref, whole);
    results want = trial_results(&t);
    trial_free(&t);
    return want;
}

static void run_placement(const problem *p, const results *want, const placement *where,
                          int index) {
    static const uint8_t poison[] = {0xA5, 0x00, 0x5A, 0xFF};
    slicing whole = {.nth = 1, .poison = poison[(where->seed + (uint64_t)index) % 4]};
    trial t;
    trial_new(&t, where);
    run.stage->build(&t, p);
    t.phases[0] = on_device;
    t.phases[1] = NULL;
    t.workspace = NULL;
    test_context("%s on the GPU, case %d (%s); layout %d, stride %d, side %d, omit %d, seed %llu; "
                 "%s, poison %02x",
                 run.stage->name, index, p->text, where->layout, where->stride, where->side,
                 where->omit, (unsigned long long)where->seed, run.as_graph ? "graph" : "stream",
                 whole.poison);
    trial_run(&t, NULL, whole);
    if (run.stage->verify)
        run.stage->verify(&t, p);
    results got = trial_results(&t);
    results_equal(&t, want, &got, 1, "against ref");
    results_free(&got);
    trial_free(&t);
}

static void run_case(const tamis_backend *ref, int index) {
    problem p;
    memset(&p, 0, sizeof p);
    run.stage->make(&p, index);
    test_context("%s, case %d (%s), ref", run.stage->name, index, p.text);
    results want = run_ref(ref, &p);
    int64_t count = run.few ? 1 : p.heavy ? HEAVY_PLACEMENTS : PLACEMENTS;
    for (int64_t i = 0; i < count; i++) {
        placement where = placement_of(i + (count < PLACEMENTS ? index : 0), index);
        run.as_graph = !run.few && (i + index) % 2;
        run.repeats = !run.few && !p.heavy && i == 0 && index % 8 == 2 ? REPEATS : 1;
        run_placement(&p, &want, &where, index);
    }
    results_free(&want);
    problem_free(&p);
}

int main(int argc, char **argv) {
    tamis_error error;
    tamis_backend *ref;
    for (int i = 0; i < STAGES && argc >= 2; i++)
        if (strcmp(stages[i]->name, argv[1]) == 0)
            run.stage = stages[i];
    if (!run.stage || argc > 3 || (argc == 3 && strcmp(argv[2], "few") != 0)) {
        fprintf(stderr, "usage: gpu_harness STAGE [few]\n");
        return 2;
    }
    run.few = argc == 3;
    run.number = stage_number(run.stage->name);
    test_catch_faults();
    device_open(&run.device);
    REQUIRE_OK(tamis_backend_create("ref", &ref, &error), error);
    int step = run.few ? 3 : 1, cases = 0;
    for (int i = 0; i < run.stage->cases; i += step, cases++)
        run_case(ref, i);
    printf("gpu: %s: %d cases, %lld runs, every byte as ref's\n", run.stage->name, cases,
           run.calls);
    tamis_backend_destroy(ref);
    device_close(&run.device);
    return 0;
}
