/* SPDX-License-Identifier: MIT */
/*
 * indexer.c: the properties of tests/indexer on the GPU. gpu_indexer NAME runs one three times:
 * with every trial as a stage's call over pages, then with the two levels' trials as layers of a
 * plan, over pages and over K in rows.
 */
#include <stdio.h>
#include <string.h>

#include "levels.h"
#include "levels_plan.h"
#include "properties.h"
#include "require.h"

static test_device device;
static struct {
    int plans, turn;               /* whether the two levels go through plans */
    long long by_plan, by_call[2]; /* trials; [plans] */
} run;

static void call_trial(const trial *t, int stage) {
    mirror m;
    mirror_new(&m, &device, t, stage, 0);
    if (run.turn % 2) {
        void *exec = device_capture(&device, stage, &m.args);
        device_replay(&device, exec);
        device.exec_destroy(exec);
    } else {
        device_run(&device, stage, &m.args);
    }
    mirror_pull(&m);
    mirror_free(&m);
}

static void on_device(const trial *t) {
    int stage = trial_stage(t);
    int levels = stage == STAGE_source || stage == STAGE_consume || stage == STAGE_dense;
    run.turn++;
    if (run.plans && levels && plan_trial(&device, t, run.turn)) {
        run.by_plan++;
        return;
    }
    call_trial(t, stage);
    run.by_call[run.plans]++;
}

static void run_property(const suite_test *test) {
    static const int layouts[] = {TAMIS_K_MXFP4_PAGE, TAMIS_K_MXFP4_PAGE, TAMIS_K_MXFP4_SPLIT};
    trial_elsewhere = on_device;
    for (int i = 0; i < 3; i++) {
        run.plans = i > 0;
        level_plain.layout = layouts[i];
        test->run(NULL); /* nothing may fall back to the CPU */
    }
    REQUIRE(run.by_plan > 0 && run.by_call[0] > 0, "%lld trials by plans, %lld by calls",
            run.by_plan, run.by_call[0]);
    printf("gpu: %s: %lld trials by calls; %lld by plans, %lld that no plan takes\n", test->name,
           run.by_call[0], run.by_plan, run.by_call[1]);
}

int main(int argc, char **argv) {
    for (int i = 0; i < indexer_property_count && argc == 2; i++)
        if (strcmp(indexer_properties[i].name, argv[1]) == 0) {
            test_catch_faults();
            device_open(&device);
            run_property(&indexer_properties[i]);
            device_close(&device);
            return 0;
        }
    fprintf(stderr, "usage: gpu_indexer NAME\n");
    return 2;
}
