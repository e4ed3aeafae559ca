/* SPDX-License-Identifier: MIT */
/*
 * bench_job.c: one call of a stage on a scene, by one thread or by a pool. With fewer rows than
 * threads source and consume take their split form, score | merge.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command.h"

static const char *const names[STAGES] = {
#define BENCH_NAME(name) #name,
    TAMIS_STAGE_LIST(BENCH_NAME)
#undef BENCH_NAME
};

const char *stage_name(int stage) {
    return names[stage];
}

int stage_of(const char *name) {
    for (int i = 0; i < STAGES; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

void *job_take(bench_job *job, int64_t bytes) {
    size_t rounded = ((size_t)bytes + 127) / 64 * 64;
    void *part = job->parts < JOB_PARTS ? aligned_alloc(64, rounded) : NULL;
    if (part)
        job->part[job->parts++] = memset(part, 0, rounded);
    else
        job->short_of_memory = 1;
    return part;
}

void job_free(bench_job *job) {
    while (job->parts > 0)
        free(job->part[--job->parts]);
}

static tamis_status call_whole(bench_job *job, int32_t ith, int32_t nth, tamis_error *error) {
    switch (job->stage) {
#define BENCH_CALL(name)                                                                           \
    case STAGE_##name:                                                                             \
        return tamis_##name(job->backend, &job->args.name, ith, nth, error);
        TAMIS_STAGE_LIST(BENCH_CALL)
#undef BENCH_CALL
    default:
        return TAMIS_ERROR_ARGUMENT;
    }
}

static void report(bench_job *job, tamis_status status, const tamis_error *error) {
    int first = 0;
    if (status != TAMIS_OK && atomic_compare_exchange_strong(&job->failed, &first, 1))
        job->error = *error;
}

static tamis_status call_score(bench_job *job, int32_t ith, int32_t nth, tamis_error *error) {
    return job->stage == STAGE_source
               ? tamis_source_score(job->backend, &job->args.source, ith, nth, error)
               : tamis_consume_score(job->backend, &job->args.consume, ith, nth, error);
}

static tamis_status call_merge(bench_job *job, int32_t ith, int32_t nth, tamis_error *error) {
    return job->stage == STAGE_source
               ? tamis_source_merge(job->backend, &job->args.source, ith, nth, error)
               : tamis_consume_merge(job->backend, &job->args.consume, ith, nth, error);
}

typedef struct phase {
    bench_job *job;
    tamis_status (*call)(bench_job *job, int32_t ith, int32_t nth, tamis_error *error);
} phase;

static void work(void *context, int32_t ith, int32_t nth) {
    phase *p = context;
    tamis_error error;
    double start = bench_seconds(1);
    report(p->job, p->call(p->job, ith, nth, &error), &error);
    p->job->slice[ith] = bench_seconds(1) - start;
}

/* A phase lasts as long as its slowest slice. */
static void run_phase(bench_job *job,
                      tamis_status (*call)(bench_job *, int32_t, int32_t, tamis_error *)) {
    phase p = {job, call};
    double slowest = 0;
    int32_t threads = tamis_pool_threads(job->pool);
    tamis_pool_run(job->pool, work, &p);
    for (int32_t i = 0; i < threads; i++)
        slowest = job->slice[i] > slowest ? job->slice[i] : slowest;
    job->cpu_seconds += slowest;
}

/* One slice needs no pool and no clock of its own: its cost would show in the shortest stages. */
void job_run(void *context) {
    bench_job *job = context;
    tamis_error error;
    if (job->split) {
        run_phase(job, call_score);
        run_phase(job, call_merge);
    } else if (tamis_pool_threads(job->pool) == 1) {
        report(job, call_whole(job, 0, 1, &error), &error);
    } else {
        run_phase(job, call_whole);
    }
}

double job_cpu_seconds(void *context) {
    bench_job *job = context;
    return tamis_pool_threads(job->pool) == 1 ? bench_seconds(1) : job->cpu_seconds;
}

static int64_t workspace_bytes(const bench_job *job, int32_t threads) {
    switch (job->stage) {
    case STAGE_consume:
        return job->split ? tamis_consume_split_workspace(&job->args.consume, threads)
                          : tamis_consume_workspace(&job->args.consume, threads);
    case STAGE_source:
        return job->split ? tamis_source_split_workspace(&job->args.source, threads)
                          : tamis_source_workspace(&job->args.source, threads);
    case STAGE_dense:
        return tamis_dense_workspace(&job->args.dense, threads);
    default:
        return 0;
    }
}

static void add_workspace(bench_job *job) {
    int64_t bytes = workspace_bytes(job, tamis_pool_threads(job->pool));
    void *workspace = bytes > 0 ? job_take(job, bytes) : NULL;
    if (job->stage == STAGE_consume) {
        job->args.consume.workspace = workspace;
        job->args.consume.workspace_bytes = bytes;
    } else if (job->stage == STAGE_source) {
        job->args.source.workspace = workspace;
        job->args.source.workspace_bytes = bytes;
    } else if (job->stage == STAGE_dense) {
        job->args.dense.workspace = workspace;
        job->args.dense.workspace_bytes = bytes;
    }
}

int job_make(bench_job *job, int stage, const bench_scene *scene, int32_t lists, int64_t rows,
             const tamis_backend *backend, tamis_pool *pool) {
    memset(job, 0, sizeof *job);
    job->stage = stage;
    job->rows = rows;
    job->backend = backend;
    job->pool = pool;
    job->split =
        rows < tamis_pool_threads(pool) && (stage == STAGE_source || stage == STAGE_consume);
    job->slice = job_take(job, tamis_pool_threads(pool) * (int64_t)sizeof *job->slice);
    stage_arguments(job, scene, lists);
    if (!job->short_of_memory)
        add_workspace(job);
    if (job->short_of_memory) {
        job_free(job);
        return fail("%s: no memory for the outputs of %s", scene->shape.name, stage_name(stage));
    }
    job_run(job); /* also touches every page of the outputs */
    if (!atomic_load(&job->failed))
        return STATUS_GOOD;
    job_free(job);
    return fail_error(stage_name(stage), &job->error);
}

int64_t rows_for(int stage, const bench_scene *scene, int32_t lists, const tamis_backend *backend,
                 tamis_pool *pool, double seconds) {
    int64_t most = stage_most_rows(stage, scene), threads = tamis_pool_threads(pool);
    int64_t few = most < threads ? most : threads;
    bench_job job;
    if (few == most)
        return most;
    if (job_make(&job, stage, scene, lists, few, backend, pool) != STATUS_GOOD)
        return -1;
    double least = INFINITY;
    for (int i = 0; i < 3 && (i == 0 || least < seconds); i++) {
        double start = seconds_now();
        job_run(&job);
        least = fmin(least, seconds_now() - start);
    }
    job_free(&job);
    int64_t rows = (int64_t)(seconds / least * (double)few);
    return rows > most ? most : rows < few ? few : rows;
}
