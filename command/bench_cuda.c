/* SPDX-License-Identifier: MIT */
/*
 * bench_cuda.c: the two levels on a GPU against scoring everything, on the shapes of `tamis bench`.
 *
 * The scene is the CPU's, copied to the device once. Times are the device's, between two events
 * around enough calls that reading them costs nothing; the opponents take turns. Every row of the
 * shape is run. K is warm where the device's cache holds it, as in a server that does nothing else.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "bench_cuda.h"
#include "command.h"

enum { CELLS = 6 };

typedef struct gpu_scene {
    const bench_options *options;
    tamis_cuda *cuda;
    void *stream, *from, *to;
    const bench_scene *host;
    tamis_k_cache k;
    tamis_rows rows;
    tamis_query query;
    tamis_selection selection;
    int32_t *lists[3], *published;
    void *workspace;
    int64_t workspace_bytes;
    void *memory[32];
    int buffers;
    tamis_error error;
} gpu_scene;

typedef struct gpu_job {
    gpu_scene *scene;
    int stage;
    int32_t lists;
    bench_args args;
} gpu_job;

/* ---- the scene on the device ---- */

static int good(const gpu_scene *s) {
    return s->error.status == TAMIS_OK;
}

/* Device memory; NULL after any failure, which error keeps. */
static void *take(gpu_scene *s, int64_t bytes) {
    void *memory = NULL;
    if (good(s) && tamis_cuda_alloc(s->cuda, bytes > 0 ? bytes : 1, &memory, &s->error) == TAMIS_OK)
        s->memory[s->buffers++] = memory;
    return memory;
}

static void *copy(gpu_scene *s, const void *host, int64_t bytes) {
    void *memory = host ? take(s, bytes) : NULL;
    if (memory)
        tamis_cuda_copy_in(s->cuda, memory, host, bytes, s->stream, &s->error);
    return memory;
}

static void copy_inputs(gpu_scene *s) {
    const bench_scene *h = s->host;
    int64_t rows = h->shape.rows, requests = h->rows.requests;
    s->k = h->k;
    s->k.codes = copy(s, h->k.codes, h->pool_bytes);
    s->rows = h->rows;
    s->rows.ke = copy(s, h->rows.ke, rows * 4);
    s->rows.request = copy(s, h->rows.request, rows * 4);
    s->rows.page_table = copy(s, h->rows.page_table,
                              requests * h->rows.page_table_stride * (int64_t)sizeof(int32_t));
    s->query = h->query;
    s->query.codes = copy(s, h->query.codes, rows * h->query.codes_row_stride);
    s->query.scales = copy(s, h->query.scales, rows * h->query.scales_row_stride);
    s->query.weights = copy(s, h->query.weights, rows * h->query.weights_row_stride * 4);
    for (int32_t kind = LISTS_LOCAL; kind <= LISTS_RANDOM; kind++)
        s->lists[kind] = copy(s, scene_lists(h, kind), rows * h->shape.blocks * 4);
}

static void make_outputs(gpu_scene *s) {
    int64_t rows = s->host->shape.rows, topk = s->host->shape.topk;
    s->selection = (tamis_selection){.topk = s->host->shape.topk, .positions_stride = topk};
    s->selection.positions = take(s, rows * topk * 4);
    s->selection.counts = take(s, rows * 4);
    s->published = take(s, rows * s->host->shape.blocks * 4);
}

/* ---- jobs ---- */

static void fill_job(gpu_job *job, gpu_scene *s, int stage, int32_t lists) {
    const bench_shape *shape = &s->host->shape;
    *job = (gpu_job){.scene = s, .stage = stage, .lists = lists};
#define FILL(name)                                                                                 \
    tamis_##name##_args_default(&job->args.name);                                                  \
    job->args.name.numerics = TAMIS_NUMERICS_EXACT;                                                \
    job->args.name.k = s->k;                                                                       \
    job->args.name.rows = s->rows;                                                                 \
    job->args.name.query = s->query;                                                               \
    job->args.name.selection = s->selection;                                                       \
    job->args.name.block_size = shape->block_size;                                                 \
    job->args.name.blocks_stride = shape->blocks
    if (stage == STAGE_source) {
        FILL(source);
        job->args.source.topk_blocks = shape->blocks;
        job->args.source.blocks = s->published;
    } else if (stage == STAGE_consume) {
        FILL(consume);
        job->args.consume.width = shape->blocks;
        job->args.consume.blocks = s->lists[lists];
    } else {
        FILL(dense);
        job->args.dense.width = shape->blocks;
        job->args.dense.blocks = lists ? s->lists[lists] : NULL;
    }
#undef FILL
}

static int64_t workspace_of(const gpu_job *job) {
    const tamis_cuda *cuda = job->scene->cuda;
    return job->stage == STAGE_source    ? tamis_cuda_source_workspace(cuda, &job->args.source)
           : job->stage == STAGE_consume ? tamis_cuda_consume_workspace(cuda, &job->args.consume)
                                         : tamis_cuda_dense_workspace(cuda, &job->args.dense);
}

/* Jobs run one after the other, so that one workspace serves all. */
static void give_workspace(gpu_job *jobs, int count) {
    gpu_scene *s = jobs[0].scene;
    for (int i = 0; i < count; i++) {
        int64_t bytes = workspace_of(&jobs[i]);
        s->workspace_bytes = bytes > s->workspace_bytes ? bytes : s->workspace_bytes;
    }
    s->workspace = take(s, s->workspace_bytes);
    for (int i = 0; i < count; i++) {
#define GIVE(name)                                                                                 \
    job->args.name.workspace = s->workspace;                                                       \
    job->args.name.workspace_bytes = s->workspace_bytes
        gpu_job *job = &jobs[i];
        if (job->stage == STAGE_source) {
            GIVE(source);
        } else if (job->stage == STAGE_consume) {
            GIVE(consume);
        } else {
            GIVE(dense);
        }
#undef GIVE
    }
}

static void queue_job(gpu_job *job) {
    gpu_scene *s = job->scene;
    if (!good(s))
        return;
    if (job->stage == STAGE_source)
        tamis_cuda_source(s->cuda, &job->args.source, s->stream, &s->error);
    else if (job->stage == STAGE_consume)
        tamis_cuda_consume(s->cuda, &job->args.consume, s->stream, &s->error);
    else
        tamis_cuda_dense(s->cuda, &job->args.dense, s->stream, &s->error);
}

/* Milliseconds of `calls` calls. */
static double time_job(gpu_job *job, int calls) {
    gpu_scene *s = job->scene;
    float elapsed = 0;
    if (good(s))
        tamis_cuda_event_record(s->cuda, s->from, s->stream, &s->error);
    for (int i = 0; i < calls; i++)
        queue_job(job);
    if (good(s) && tamis_cuda_event_record(s->cuda, s->to, s->stream, &s->error) == TAMIS_OK)
        tamis_cuda_event_elapsed(s->cuda, s->from, s->to, &elapsed, &s->error);
    return elapsed;
}

/* In turns, as bench_contest.c does it on the CPU. */
static void contest(gpu_job *jobs, contestant *contestants, int count, const contest_rules *rules) {
    enum { AT_LEAST = 3 };
    const double enough = 2.0; /* milliseconds of a timed run */
    for (int i = 0; i < count; i++) {
        time_job(&jobs[i], 1);
        double each = time_job(&jobs[i], 1);
        contestants[i] = (contestant){.rows = jobs[i].scene->host->shape.rows, .calls = 1};
        if (each > 0 && each < enough)
            contestants[i].calls = (int)(enough / each) + 1;
    }
    double end = seconds_now() + rules->seconds * count;
    for (int round = 0; round < CONTEST_RUNS && good(jobs[0].scene); round++) {
        if (rules->repeats > 0 ? round >= rules->repeats
                               : round >= AT_LEAST && seconds_now() >= end)
            break;
        for (int i = 0; i < count; i++) {
            contestant *c = &contestants[i];
            c->ns[c->runs++] = time_job(&jobs[i], c->calls) * 1e6 / (double)(c->rows * c->calls);
        }
    }
}

/* ---- lines ---- */

static double positions_of(const gpu_job *job) {
    const bench_shape *shape = &job->scene->host->shape;
    double all = (double)shape->positions, pool = (double)shape->blocks * shape->block_size;
    return job->stage == STAGE_consume && pool < all ? pool : all;
}

static void head(const bench_scene *scene) {
    const bench_shape *s = &scene->shape;
    printf("\n%s: %s %s, %s positions, %d x %d, top %d of %s blocks of %d%s\n", s->name,
           grouped(s->rows), s->decode ? "requests" : "rows of one prompt", grouped(s->positions),
           s->heads, s->dim, s->topk, grouped(s->blocks), s->block_size,
           scene->pages_shared ? " (requests share pages)" : "");
    printf("  %-8s %-6s %12s %12s %6s %10s %14s %7s\n", "stage", "lists", "us/call", "ns/row",
           "spread", "G pos/s", "dense ns/row", "ratio");
}

static void line(const gpu_job *job, const contestant *own, const contestant *dense) {
    summary a = contest_summary(own), b = contest_summary(dense);
    printf("  %-8s %-6s %12s %12s %5.0f%% %10.2f %14s %7.2f\n", stage_name(job->stage),
           lists_name(job->lists), grouped((int64_t)(a.ns * (double)own->rows / 1000 + 0.5)),
           grouped((int64_t)(a.ns + 0.5)), 100 * a.spread, positions_of(job) / a.ns,
           grouped((int64_t)(b.ns + 0.5)), b.ns / a.ns);
    fflush(stdout);
}

static json_t *object(const gpu_job *job, const contestant *own, const contestant *dense) {
    const bench_shape *shape = &job->scene->host->shape;
    summary a = contest_summary(own), b = contest_summary(dense);
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:i}",
                     "shape", shape->name, "stage", stage_name(job->stage), "backend", "cuda",
                     "tier", "smxx", "rows", (json_int_t)shape->rows, "positions",
                     (json_int_t)shape->positions, "kind", shape->decode ? "decode" : "prefill",
                     "lists", job->lists == LISTS_NONE ? "none" : lists_name(job->lists),
                     "ns_per_row", a.ns, "dense_ns_per_row", b.ns, "ratio", b.ns / a.ns, "spread",
                     a.spread, "dense_spread", b.spread, "repeats", own->runs);
}

/* The jobs of a shape in pairs: one and its dense opponent. */
static int list_jobs(gpu_scene *s, gpu_job jobs[CELLS]) {
    int count = 0;
    if (s->options->stages & 1 << STAGE_source) {
        fill_job(&jobs[count++], s, STAGE_source, LISTS_NONE);
        fill_job(&jobs[count++], s, STAGE_dense, LISTS_NONE);
    }
    for (int32_t kind = LISTS_LOCAL; kind <= LISTS_RANDOM; kind++)
        if (s->options->stages & 1 << STAGE_consume && s->lists[kind]) {
            fill_job(&jobs[count++], s, STAGE_consume, kind);
            fill_job(&jobs[count++], s, STAGE_dense, kind);
        }
    return count;
}

static void measure(gpu_scene *s, json_t *results) {
    gpu_job jobs[CELLS];
    contestant *pair = calloc(2, sizeof *pair);
    int count = list_jobs(s, jobs);
    if (count)
        give_workspace(jobs, count);
    for (int i = 0; pair && i < count && good(s); i += 2) {
        contest(&jobs[i], pair, 2, &s->options->rules);
        if (good(s) && results)
            json_array_append_new(results, object(&jobs[i], &pair[0], &pair[1]));
        else if (good(s))
            line(&jobs[i], &pair[0], &pair[1]);
    }
    free(pair);
}

static int measure_shape(const bench_options *o, tamis_cuda *cuda, const bench_shape *shape,
                         json_t *results) {
    bench_scene host;
    gpu_scene s = {.options = o, .cuda = cuda, .host = &host};
    if (scene_make(shape, o->lists & shape->lists, 0, &host) != STATUS_GOOD)
        return STATUS_BAD;
    tamis_cuda_stream_create(cuda, &s.stream, &s.error);
    if (good(&s))
        tamis_cuda_event_create(cuda, &s.from, &s.error);
    if (good(&s))
        tamis_cuda_event_create(cuda, &s.to, &s.error);
    copy_inputs(&s);
    make_outputs(&s);
    if (!results)
        head(&host);
    measure(&s, results);
    while (s.buffers > 0)
        tamis_cuda_free(cuda, s.memory[--s.buffers], NULL);
    tamis_cuda_event_destroy(cuda, s.from, NULL);
    tamis_cuda_event_destroy(cuda, s.to, NULL);
    tamis_cuda_stream_destroy(cuda, s.stream, NULL);
    scene_free(&host);
    return good(&s) ? STATUS_GOOD : fail_error(shape->name, &s.error);
}

static json_t *device_json(const tamis_cuda_device *d) {
    return json_pack("{s:s, s:i, s:I}", "name", d->name, "multiprocessors", (int)d->multiprocessors,
                     "memory_bytes", (json_int_t)d->memory_bytes);
}

int bench_cuda(const bench_options *options, const bench_shape *shapes, int count) {
    tamis_cuda *cuda = NULL;
    tamis_error error = {0};
    tamis_cuda_device device = {0};
    if (tamis_cuda_create_on(0, &cuda, &error) != TAMIS_OK)
        return fail_error("--backend cuda", &error);
    json_t *results = options->json ? json_array() : NULL;
    int status = STATUS_GOOD;
    tamis_cuda_devices(&device, 1);
    if (!results) {
        machine_text();
        printf("on %s, %d multiprocessors; times are the device's\n", device.name,
               (int)device.multiprocessors);
    }
    for (int i = 0; status == STATUS_GOOD && i < count; i++)
        status = measure_shape(options, cuda, &shapes[i], results);
    if (results && status == STATUS_GOOD)
        print_json(json_pack("{s:o, s:o, s:o}", "machine", machine_json(), "device",
                             device_json(&device), "results", results));
    else
        json_decref(results);
    tamis_cuda_destroy(cuda);
    return status;
}
