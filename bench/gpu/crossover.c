/* SPDX-License-Identifier: MIT */
/*
 * crossover.c: where the dense route of a consumer stops paying on one GPU: layers of device plans
 * with indexer_sparse_logits on, off and auto over rows of one length, the same bytes first, then
 * times. The bands of plan_cuda.c are set from it: docs/benchmarks-gpu.md, "The crossover of auto".
 *
 *   crossover [ROWS POSITIONS ROWS_OF_A_REQUEST]...: of whole requests
 *
 * Medians of seven CUDA-event times; 512 MiB are written before each, so that nothing is in L2.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"

enum {
    PAGE = 64,
    LAYERS = 2,
    RUNS = 7,
    CONTEXT = 1 << 20 /* a server's: no plan knows lengths */
};

/* What is compared. A table as wide as the rows are long says that they are no
 * longer. */
typedef struct way {
    const char *name;
    int32_t mode;
    int wide;  /* a page table of CONTEXT, else of the positions that there are */
    int exact; /* a plan for these positions, else for CONTEXT */
} way;

static const way ways[] = {{"dense", TAMIS_SPARSE_OFF, 0, 1},
                           {"dense of the large plan", TAMIS_SPARSE_OFF, 0, 0},
                           {"listed", TAMIS_SPARSE_ON, 0, 0},
                           {"auto", TAMIS_SPARSE_AUTO, 0, 0},
                           {"by a wide table", TAMIS_SPARSE_AUTO, 1, 0}};
enum { WAYS = sizeof ways / sizeof *ways };

/* One shape on the device. */
typedef struct scene {
    int64_t rows, positions, each; /* each: rows of a request */
    tamis_k_cache k;
    tamis_query query[LAYERS];
    tamis_batch batch;
    tamis_plan_limits limits;
    int32_t *ends; /* on the host: every row sees `positions` */
} scene;

/* Pages in random order; requests that see `positions`, with `each` new tokens.
 * Nobody reads a row of the table beyond those: there any page stands. */
static void make_batch(bench *b, scene *s) {
    const int64_t requests = s->rows / s->each, width = (s->positions + PAGE - 1) / PAGE;
    const int64_t pages = requests * width, stride = CONTEXT / PAGE;
    int64_t *context = host(requests * 8);
    int32_t *starts = host((requests + 1) * 4), *ids = host(pages * 4),
            *table = host(requests * stride * 4);
    for (int64_t i = 0; i < requests; i++) {
        context[i] = s->positions;
        starts[i + 1] = (int32_t)((i + 1) * s->each);
    }
    shuffle(ids, pages);
    for (int64_t i = 0; i < requests; i++) {
        memcpy(table + i * stride, ids + i * width, (size_t)width * 4);
    }
    free(ids);
    s->k = make_k(PAGE, pages);
    s->k.codes = send(b, (void *)(uintptr_t)s->k.codes, pages * s->k.stride);
    tamis_batch_default(&s->batch);
    s->batch.requests = (int32_t)requests;
    s->batch.tokens = s->rows;
    s->batch.context = send(b, context, requests * 8);
    s->batch.query_start = send(b, starts, (requests + 1) * 4);
    s->batch.page_table[0] = send(b, table, requests * stride * 4);
    s->batch.page_table_stride[0] = stride;
    s->batch.page_table_width[0] = width;
}

static scene make_scene(bench *b, int64_t rows, int64_t positions, int64_t each) {
    scene s = {.rows = rows, .positions = positions, .each = each};
    make_batch(b, &s);
    for (int i = 0; i < LAYERS; i++) {
        tamis_query query = make_query(rows);
        s.query[i] = send_query(b, &query, rows);
        free_query(&query);
    }
    s.ends = host(rows * 4);
    for (int64_t r = 0; r < rows; r++) {
        s.ends[r] = (int32_t)positions;
    }
    tamis_plan_limits_default(&s.limits);
    s.limits.max_requests = s.batch.requests;
    s.limits.max_batched_tokens = (int32_t)rows;
    s.limits.max_context = CONTEXT;
    return s;
}

/* exact: its scratch and its decoded K are those of the rows that there are. */
static tamis_cuda_plan *make_plan(bench *b, const scene *s, const tamis_indexer *indexer,
                                  int exact) {
    tamis_cuda_plan *plan = NULL;
    tamis_plan_limits limits = s->limits;
    if (exact) {
        limits.max_context = s->positions;
    }
    int64_t bytes = tamis_cuda_plan_bytes(indexer, &limits, &b->error);
    good(b, tamis_cuda_plan_create(b->cuda, indexer, &limits, device(b, bytes), bytes, b->stream,
                                   &plan, &b->error));
    return plan;
}

/* ---- one mode ---- */

typedef struct consumer {
    bench *b;
    tamis_cuda_plan *plan;
    tamis_step step;
    tamis_layer_args args;
} consumer;

static void run_consumer(void *context, int run) {
    consumer *c = context;
    bench *b = c->b;
    (void)run;
    good(b, tamis_cuda_consumer_run(c->plan, &c->step, &c->args, b->stream, &b->error));
}

/* Milliseconds of the consumer in one way; what it selected to
 * positions[rows][TOPK]. */
static float run_way(bench *b, const scene *s, way w, int32_t *positions) {
    int first = b->buffers;
    tamis_indexer *indexer = make_indexer(b, LAYERS, PAGE, w.mode);
    consumer c = {.b = b, .plan = make_plan(b, s, indexer, w.exact)};
    int64_t bytes = s->rows * TOPK * 4;
    tamis_batch batch = s->batch;
    batch.page_table_width[0] = w.wide ? CONTEXT / PAGE : batch.page_table_width[0];
    good(b, tamis_cuda_step_make(c.plan, &batch, &c.step, b->stream, &b->error));
    copy(b, c.step.ke[0], s->ends, s->rows * 4);
    tamis_layer_args_default(&c.args);
    c.args.k = s->k;
    c.args.query = s->query[0];
    good(b, tamis_cuda_source_run(c.plan, &c.step, &c.args, b->stream, &b->error));
    c.args.layer = 1;
    c.args.query = s->query[1];
    c.args.selection.positions = device(b, bytes);
    c.args.selection.positions_stride = TOPK;
    float elapsed = median_time(b, RUNS, run_consumer, &c);
    copy_back(b, positions, c.args.selection.positions, bytes);
    if (tamis_cuda_plan_status(c.plan) != TAMIS_CUDA_PLAN_GOOD || positions[0] < 0) {
        printf("FAILED: status %x\n", (unsigned)tamis_cuda_plan_status(c.plan));
        exit(1);
    }
    tamis_cuda_plan_destroy(c.plan);
    tamis_indexer_destroy(indexer);
    release(b, first);
    return elapsed;
}

static void measure(bench *b, int64_t rows, int64_t positions, int64_t each) {
    rows -= rows % each;
    scene s = make_scene(b, rows, positions, each);
    int32_t *selected[WAYS];
    float ns[WAYS];
    for (int i = 0; i < WAYS; i++) {
        selected[i] = host(rows * TOPK * 4);
        ns[i] = 1e6f / (float)rows * run_way(b, &s, ways[i], selected[i]);
        if (memcmp(selected[i], selected[0], (size_t)(rows * TOPK) * 4) != 0) {
            printf("FAILED: %s selects otherwise\n", ways[i].name);
            exit(1);
        }
    }
    printf("%6lld rows, %4lld a request, %6lld positions, ns a row:", (long long)rows,
           (long long)each, (long long)positions);
    for (int i = 0; i < WAYS; i++) {
        printf("%s %s %.1f", i ? "," : "", ways[i].name, ns[i]);
    }
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < WAYS; i++) {
        free(selected[i]);
    }
    free(s.ends);
    release(b, 0);
}

int main(int argc, char **argv) {
    static const int64_t lengths[] = {4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768};
    bench b = {0};
    bench_begin(&b);
    for (int i = 1; i + 2 < argc; i += 3) {
        measure(&b, atoll(argv[i]), atoll(argv[i + 1]), atoll(argv[i + 2]));
    }
    for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths) && argc == 1; i++) {
        measure(&b, 128, lengths[i], 128);
        measure(&b, 256, lengths[i], 256);
        measure(&b, 512, lengths[i], 512);
        measure(&b, 8192, lengths[i], 8192);
    }
    bench_end(&b);
    return 0;
}
