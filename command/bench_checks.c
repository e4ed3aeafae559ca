/* SPDX-License-Identifier: MIT */
/*
 * bench_checks.c: three questions that no cell answers. Does the cost follow the live length, and
 * not the limits? How much workspace does a large source take? What do two threads gain?
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "command.h"

enum { MILLION = 1 << 20 };

static bench_shape plain_shape(const char *name, int64_t positions, int64_t rows) {
    bench_shape shape = {.decode = 1,
                         .positions = positions,
                         .rows = rows,
                         .heads = 32,
                         .dim = 128,
                         .topk = 512,
                         .blocks = 2048,
                         .block_size = 8,
                         .lists = LISTS_LOCAL};
    snprintf(shape.name, sizeof shape.name, "%s", name);
    return shape;
}

/* ---- live length -------------------------------------------------------------------------------
 */

/* The medians of one stage on two scenes, in turns. */
static int two_scenes(const bench_options *o, int stage, const bench_scene scenes[2],
                      summary out[2]) {
    contestant *c = calloc(2, sizeof *c);
    bench_job jobs[2];
    int status = c ? STATUS_GOOD : fail("no memory for a contest"), made = 0;
    for (; status == STATUS_GOOD && made < 2; made++) {
        bench_job *job = &jobs[made];
        status = job_make(job, stage, &scenes[made], LISTS_LOCAL, scenes[made].shape.rows,
                          o->backend, o->pool);
        if (status != STATUS_GOOD)
            break;
        c[made] = (contestant){.run = job_run,
                               .cpu_seconds = job_cpu_seconds,
                               .context = job,
                               .rows = job->rows,
                               .footprint = job->k_bytes};
    }
    if (status == STATUS_GOOD)
        status = contest_run(c, 2, &o->rules);
    for (int i = 0; status == STATUS_GOOD && i < 2; i++)
        out[i] = contest_summary(&c[i]);
    while (made > 0)
        job_free(&jobs[--made]);
    free(c);
    return status;
}

static void report_live(int stage, const summary times[2], json_t *checks) {
    double ratio = times[0].ns / times[1].ns;
    if (checks)
        json_array_append_new(
            json_object_get(checks, "live_length"),
            json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f}", "stage", stage_name(stage),
                      "positions", 2048, "limit_positions", MILLION, "small_limit_positions", 4096,
                      "ns_per_row", times[0].ns, "small_ns_per_row", times[1].ns, "ratio", ratio));
    else
        printf("live length: %s of 2,048 positions, limits of 1,048,576 against 4,096: %s and %s "
               "ns/row, ratio %.2f\n",
               stage_name(stage), grouped((int64_t)times[0].ns), grouped((int64_t)times[1].ns),
               ratio);
}

static int check_live_length(const bench_options *o, json_t *checks) {
    static const int stages[] = {STAGE_source, STAGE_consume};
    bench_shape shape = plain_shape("live-length", 2048, 4);
    bench_scene scenes[2];
    summary times[2];
    int status = scene_make(&shape, LISTS_LOCAL, MILLION, &scenes[0]);
    if (status != STATUS_GOOD)
        return status;
    status = scene_make(&shape, LISTS_LOCAL, 4096, &scenes[1]);
    for (int i = 0; status == STATUS_GOOD && i < 2; i++) {
        status = two_scenes(o, stages[i], scenes, times);
        if (status == STATUS_GOOD)
            report_live(stages[i], times, checks);
    }
    scene_free(&scenes[0]);
    scene_free(&scenes[1]);
    return status;
}

/* ---- workspace ---------------------------------------------------------------------------------
 */

/* The size needs lengths and layout only: K is named, never read. */
static int check_workspace(const bench_options *o, json_t *checks) {
    enum { ROWS = 512 };
    static int32_t ke[ROWS], positions[1];
    static uint8_t bytes[64];
    static float weights[1];
    int32_t threads = tamis_pool_threads(o->pool);
    for (int r = 0; r < ROWS; r++)
        ke[r] = MILLION - ROWS + 1 + r;
    tamis_source_args a;
    tamis_source_args_default(&a);
    a.numerics = TAMIS_NUMERICS_EXACT;
    a.k = (tamis_k_cache){.layout = TAMIS_K_MXFP4_SPLIT,
                          .head_dim = 128,
                          .size = MILLION,
                          .stride = 64,
                          .scales_stride = 4,
                          .codes = bytes,
                          .scales = bytes};
    a.rows.count = ROWS;
    a.rows.ke = ke;
    a.query = (tamis_query){32, 128, TAMIS_F32, 0, bytes, bytes, weights, 2048, 64, 128, 4, 32};
    a.block_size = 8;
    a.topk_blocks = 2048;
    a.blocks = positions;
    a.blocks_stride = 2048;
    a.selection = (tamis_selection){.topk = 512, .positions = positions, .positions_stride = 512};
    int64_t size = tamis_source_workspace(&a, threads);
    if (size < 0)
        return fail("tamis_source_workspace refused 512 rows of 1,048,576 positions");
    if (checks)
        json_object_set_new(checks, "source_workspace",
                            json_pack("{s:i, s:i, s:i, s:I}", "rows", ROWS, "positions", MILLION,
                                      "threads", threads, "bytes", (json_int_t)size));
    else
        printf("workspace: source of 512 rows at 1,048,576 positions, %d thread%s: %s KiB (its "
               "scores would be 2,097,152)\n",
               threads, threads == 1 ? "" : "s", grouped((size + 1023) >> 10));
    return STATUS_GOOD;
}

/* ---- threads -----------------------------------------------------------------------------------
 */

static void report_scaling(const bench_scene *s, int stage, const summary times[2],
                           json_t *checks) {
    if (checks)
        json_array_append_new(
            json_object_get(checks, "scaling"),
            json_pack("{s:s, s:s, s:I, s:I, s:[i,i], s:[f,f], s:[f,f], s:f}", "shape",
                      s->shape.name, "stage", stage_name(stage), "rows", (json_int_t)s->shape.rows,
                      "positions", (json_int_t)s->shape.positions, "threads", 1, 2, "ns_per_row",
                      times[0].ns, times[1].ns, "spread", times[0].spread, times[1].spread, "ratio",
                      times[0].ns / times[1].ns));
    else
        printf("scaling: %s, %s: 1 thread %s, 2 threads %s ns/row, ratio %.2f (spread %.0f%%, "
               "%.0f%%)\n",
               s->shape.name, stage_name(stage), grouped((int64_t)times[0].ns),
               grouped((int64_t)times[1].ns), times[0].ns / times[1].ns, 100 * times[0].spread,
               100 * times[1].spread);
}

static int scale_stage(const bench_options *o, const bench_scene *s, int stage,
                       tamis_pool *pools[2], json_t *checks) {
    contestant *c = calloc(2, sizeof *c);
    bench_job jobs[2];
    int made = 0, status = c ? STATUS_GOOD : fail("no memory for a contest");
    for (; status == STATUS_GOOD && made < 2; made++) {
        int64_t rows = rows_for(stage, s, LISTS_LOCAL, o->backend, pools[0], o->rules.seconds / 8);
        rows = rows > 0 && rows % 2 && rows > 1 ? rows - 1 : rows;
        status = rows < 0
                     ? STATUS_BAD
                     : job_make(&jobs[made], stage, s, LISTS_LOCAL, rows, o->backend, pools[made]);
        if (status != STATUS_GOOD)
            break;
        c[made] = (contestant){.run = job_run,
                               .cpu_seconds = job_cpu_seconds,
                               .context = &jobs[made],
                               .rows = jobs[made].rows,
                               .footprint = jobs[made].k_bytes};
    }
    if (status == STATUS_GOOD)
        status = contest_run(c, 2, &o->rules);
    if (status == STATUS_GOOD) {
        summary times[2] = {contest_summary(&c[0]), contest_summary(&c[1])};
        report_scaling(s, stage, times, checks);
    }
    while (made > 0)
        job_free(&jobs[--made]);
    free(c);
    return status;
}

static int check_scaling(const bench_options *o, json_t *checks) {
    common_options threads[2] = {{.threads = 1}, {.threads = 2}};
    tamis_pool *pools[2] = {NULL, NULL};
    bench_shape shapes[2] = {plain_shape("decode-256k-1", 262144, 1),
                             plain_shape("prefill-256k-64", 262144, 64)};
    shapes[1].decode = 0;
    int status = open_pool(&threads[0], &pools[0]);
    if (status == STATUS_GOOD)
        status = open_pool(&threads[1], &pools[1]);
    for (int i = 0; status == STATUS_GOOD && i < 2; i++) {
        bench_scene scene;
        status = scene_make(&shapes[i], LISTS_LOCAL, 0, &scene);
        if (status != STATUS_GOOD)
            break;
        status = scale_stage(o, &scene, STAGE_source, pools, checks);
        if (status == STATUS_GOOD)
            status = scale_stage(o, &scene, STAGE_consume, pools, checks);
        scene_free(&scene);
    }
    for (int i = 0; i < 2; i++)
        if (pools[i])
            tamis_pool_destroy(pools[i]);
    return status;
}

int bench_checks(const bench_options *options, json_t *checks) {
    if (checks) {
        json_object_set_new(checks, "live_length", json_array());
        json_object_set_new(checks, "scaling", json_array());
    } else {
        printf("\n");
    }
    int status = check_live_length(options, checks);
    if (status == STATUS_GOOD)
        status = check_workspace(options, checks);
    if (status == STATUS_GOOD && options->scaling)
        status = check_scaling(options, checks);
    return status;
}
