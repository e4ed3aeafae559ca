/* SPDX-License-Identifier: MIT */
/*
 * bench_cells.c: a cell is a stage of a shape with one kind of lists and one state of the caches.
 * Each is one contest: the stage, its dense opponent, the same stage of the ref tier when tiers are
 * compared, and, beside consume, topk over the same pools.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command.h"

typedef struct cell {
    const bench_options *options;
    const bench_scene *scene;
    int stage, cold;
    int32_t lists;
    int count;
    bench_job jobs[CONTEST_MOST];
    contestant contestants[CONTEST_MOST];
} cell;

enum { RUNS_WANTED = 9 }; /* of a contestant whose rows can be chosen */

/* Adds a job to a cell; returns its index, or -1 when it could not be made. */
static int add_job(cell *c, int stage, int32_t lists, const tamis_backend *backend) {
    const contest_rules *rules = &c->options->rules;
    double each = rules->seconds / RUNS_WANTED / (c->cold ? 1 : 2);
    int64_t rows = rows_for(stage, c->scene, lists, backend, c->options->pool, each);
    bench_job *job = &c->jobs[c->count];
    if (rows < 0 ||
        job_make(job, stage, c->scene, lists, rows, backend, c->options->pool) != STATUS_GOOD)
        return -1;
    c->contestants[c->count] = (contestant){.run = job_run,
                                            .cpu_seconds = job_cpu_seconds,
                                            .context = job,
                                            .rows = job->rows,
                                            .footprint = job->k_bytes};
    return c->count++;
}

static void fill_result(const cell *c, const int at[CONTEST_MOST], bench_result *r) {
    const bench_job *own = &c->jobs[0];
    *r = (bench_result){
        .shape = &c->scene->shape,
        .stage = c->stage,
        .cold = c->cold,
        .split = own->split,
        .lists = c->lists,
        .threads = tamis_pool_threads(c->options->pool),
        .tier = tamis_backend_tier(c->options->backend),
        .rows_timed = own->rows,
        .repeats = c->contestants[0].runs,
        .positions = (double)own->positions / (double)own->rows,
        .k_bytes = (double)own->k_bytes / (double)own->rows,
        .own = contest_summary(&c->contestants[0]),
    };
    if (at[1] > 0) {
        r->dense = contest_summary(&c->contestants[at[1]]);
        r->dense_rows_timed = c->jobs[at[1]].rows;
    }
    if (at[2] > 0)
        r->ref = contest_summary(&c->contestants[at[2]]);
    if (at[3] > 0)
        r->topk = contest_summary(&c->contestants[at[3]]);
}

static int measure(cell *c, json_t *results) {
    const bench_options *o = c->options;
    int opponent = stage_opponent(c->stage), status = STATUS_BAD;
    /* Those that follow have an index above 0 when they take part. */
    int at[CONTEST_MOST] = {add_job(c, c->stage, c->lists, o->backend), 0, 0, 0};
    int32_t against = c->stage == STAGE_topk ? LISTS_NONE : c->lists;
    if (at[0] == 0 && opponent >= 0)
        at[1] = add_job(c, opponent, against, o->backend);
    if (at[0] == 0 && at[1] >= 0 && o->lower)
        at[2] = add_job(c, c->stage, c->lists, o->lower);
    if (at[0] == 0 && at[1] >= 0 && at[2] >= 0 && c->stage == STAGE_consume)
        at[3] = add_job(c, STAGE_topk, c->lists, o->backend);
    if (at[0] == 0 && at[1] >= 0 && at[2] >= 0 && at[3] >= 0) {
        contest_rules rules = o->rules;
        rules.cold = c->cold;
        status = contest_run(c->contestants, c->count, &rules);
    }
    if (status == STATUS_GOOD) {
        bench_result result;
        fill_result(c, at, &result);
        if (results)
            json_array_append_new(results, report_json(&result));
        else
            report_line(&result);
    }
    for (int i = 0; i < c->count; i++)
        job_free(&c->jobs[i]);
    return status;
}

/* Whether a cell is part of the run: cold caches by default only where decode gathers K. */
static int wanted(const bench_options *o, const bench_shape *shape, int stage, int32_t lists,
                  int cold) {
    if (!(o->stages & 1 << stage))
        return 0;
    if (stage_has_lists(stage) ? lists == LISTS_NONE || !(lists & o->lists & shape->lists)
                               : lists != LISTS_NONE)
        return 0;
    if (!cold)
        return o->warm;
    return o->cold < 0 ? shape->decode && stage == STAGE_consume : o->cold;
}

static int measure_all(cell *c, json_t *results) {
    int status = STATUS_GOOD;
    for (int stage = 0; stage < STAGES; stage++)
        for (int32_t lists = LISTS_NONE; lists <= LISTS_RANDOM; lists++)
            for (int cold = 0; cold < 2; cold++) {
                if (!wanted(c->options, &c->scene->shape, stage, lists, cold))
                    continue;
                c->stage = stage;
                c->lists = lists;
                c->cold = cold;
                c->count = 0;
                status = measure(c, results);
                if (status != STATUS_GOOD)
                    return status;
            }
    return status;
}

int bench_cells(const bench_options *options, const bench_shape *shape, json_t *results,
                json_t *inputs) {
    bench_scene scene;
    bench_shape asked = *shape;
    cell *c = calloc(1, sizeof *c);
    asked.huge_pages = options->huge_pages;
    int status = c ? scene_make(&asked, options->lists & shape->lists, 0, &scene)
                   : fail("no memory for a contest");
    if (status == STATUS_GOOD) {
        c->options = options;
        c->scene = &scene;
        if (results)
            json_array_append_new(inputs, report_inputs(&scene));
        else
            report_shape(&scene, options->verbose);
        status = measure_all(c, results);
        scene_free(&scene);
    }
    free(c);
    return status;
}
