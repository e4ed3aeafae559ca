/* SPDX-License-Identifier: MIT */
/*
 * chain.c: a whole step of the two levels on one GPU, as an engine runs it on a plan made for a
 * million positions and 8,192 rows: the step's arrays, the source layer, four consumers with
 * queries of their own over the K that they share. Prefill is queued, decode (a row a request) is a
 * captured graph. The last rows of every shape are first held to a plan on the CPU.
 *
 *   chain [on|off|auto] [POSITIONS ROWS REQUESTS]...
 *
 * Every request has pages of its own, which lie all over the pool; what they hold is one request's,
 * so that 256 requests of a million positions need no more from the host than one. Runs take turns
 * between two sets of queries and of pages. The floor is that of the larger of MMA (1,720 TOP/s)
 * and of K read once a layer at 4.8 TB/s, layer by layer.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"

enum { LAYERS = 5, PAGE = 128, SETS = 2, CHECKED = 2, SAMPLE = 64 };
enum { SOURCE, WHOLE, PARTS }; /* what is timed: the first layer alone, all */
enum { MOST = 1 << 20, PAGES = MOST / PAGE, REQUESTS = 256, ROWS = 8192 };

typedef int capture_begin(void *stream, int mode);
typedef int capture_end(void *stream, void **graph);
typedef int instantiate(void **exec, void *graph, unsigned long long flags);
typedef int launch(void *exec, void *stream);
typedef int destroy(void *graph);
typedef int copy_within(tamis_cu_pointer to, tamis_cu_pointer from, size_t bytes, void *stream);

typedef struct chain {
    bench b;
    tamis_indexer *indexer;
    tamis_cuda_plan *plan;
    tamis_k_cache k, host_k; /* REQUESTS copies; one */
    int32_t *slot, *turn;    /* [PAGES] of a page of positions: its place in a copy; which copy the
                                first request has */
    tamis_query query[SETS][LAYERS], host_query[LAYERS]; /* of set 0 */
    int32_t *selected[LAYERS], *published;
} chain;

/* One shape. */
typedef struct run {
    chain *c;
    int64_t rows, requests, positions;
    tamis_batch batch[SETS];
    void *exec[PARTS][SETS]; /* captured graphs, or NULL */
    int part;                /* that is run */
} run;

static void *found(chain *c, const char *symbol) {
    void *function = dlsym(c->b.cuda->driver.library, symbol);
    if (function == NULL) {
        printf("FAILED: the driver has no %s\n", symbol);
        exit(1);
    }
    return function;
}

#define CALL(c, type, symbol, ...)                                                                 \
    do {                                                                                           \
        void *from_driver = found(c, symbol);                                                      \
        type *function;                                                                            \
        memcpy(&function, &from_driver, sizeof function);                                          \
        if (function(__VA_ARGS__) != 0) {                                                          \
            printf("FAILED: %s\n", symbol);                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- inputs ---- */

static void make_pool(chain *c) {
    c->host_k = c->k = make_k(PAGE, PAGES);
    int64_t bytes = PAGES * c->k.stride;
    uint8_t *pool = device(&c->b, REQUESTS * bytes);
    copy(&c->b, pool, c->host_k.codes, bytes);
    for (int64_t i = 1; i < REQUESTS; i++) {
        CALL(c, copy_within, "cuMemcpyDtoDAsync_v2",
             (tamis_cu_pointer)(uintptr_t)(pool + i * bytes), (tamis_cu_pointer)(uintptr_t)pool,
             (size_t)bytes, c->b.stream);
    }
    c->k.codes = pool;
    c->k.size = REQUESTS * PAGES;
    c->slot = host(PAGES * 4);
    c->turn = host(PAGES * 4);
    shuffle(c->slot, PAGES);
    for (int64_t p = 0; p < PAGES; p++) {
        c->turn[p] = (int32_t)(random_bits() % REQUESTS);
    }
}

static void make_queries(chain *c) {
    for (int set = SETS - 1; set >= 0; set--) {
        for (int i = 0; i < LAYERS; i++) {
            free_query(&c->host_query[i]);
            c->host_query[i] = make_query(ROWS);
            c->query[set][i] = send_query(&c->b, &c->host_query[i], ROWS);
        }
    }
}

static void make_plan(chain *c) {
    tamis_plan_limits limits;
    tamis_plan_limits_default(&limits);
    limits.max_requests = REQUESTS;
    limits.max_batched_tokens = ROWS;
    limits.max_context = MOST;
    int64_t bytes = tamis_cuda_plan_bytes(c->indexer, &limits, &c->b.error);
    good(&c->b, tamis_cuda_plan_create(c->b.cuda, c->indexer, &limits, device(&c->b, bytes), bytes,
                                       c->b.stream, &c->plan, &c->b.error));
    printf("plan %.0f MiB for %d rows, of them %.0f MiB for the block maxima of a tile\n",
           (double)bytes / (1 << 20), ROWS, (double)c->plan->room.maxima / (1 << 20));
}

/* Request i has copy (turn + i) of every page; another set other pages. Tables are as wide as the
 * plan's longest context, as an engine's are, so that the host does not know lengths by them. */
static int32_t *make_table(const chain *c, int64_t first, int64_t requests, int64_t copies) {
    int32_t *table = host(requests * PAGES * 4);
    for (int64_t i = 0; i < requests; i++) {
        for (int64_t p = 0; p < PAGES; p++) {
            int64_t which = (c->turn[p] + first + i) % copies;
            table[i * PAGES + p] = (int32_t)(which * PAGES + c->slot[p]);
        }
    }
    return table;
}

/* Of equal requests: arrays on the device, or, with one copy of K, on the host. */
static tamis_batch make_batch(chain *c, int64_t tokens, int64_t requests, int64_t positions,
                              int set, int on_device) {
    int64_t *context = host(requests * 8);
    int32_t *starts = host((requests + 1) * 4);
    int32_t *table = make_table(c, 37 * set, requests, on_device ? REQUESTS : 1);
    tamis_batch batch;
    for (int64_t i = 0; i < requests; i++) {
        context[i] = positions;
        starts[i + 1] = (int32_t)((i + 1) * (tokens / requests));
    }
    tamis_batch_default(&batch);
    batch.requests = (int32_t)requests;
    batch.tokens = tokens;
    batch.context = on_device ? send(&c->b, context, requests * 8) : context;
    batch.query_start = on_device ? send(&c->b, starts, (requests + 1) * 4) : starts;
    batch.page_table[0] = on_device ? send(&c->b, table, requests * PAGES * 4) : table;
    batch.page_table_stride[0] = batch.page_table_width[0] = PAGES;
    return batch;
}

/* ---- a step ---- */

static void queue(run *r, int set, int layers, int32_t *published) {
    chain *c = r->c;
    bench *b = &c->b;
    tamis_step step;
    tamis_layer_args args;
    good(b, tamis_cuda_step_make(c->plan, &r->batch[set], &step, b->stream, &b->error));
    for (int i = 0; i < layers; i++) {
        tamis_layer_args_default(&args);
        args.layer = i;
        args.k = c->k;
        args.query = c->query[set][i];
        args.selection.positions = c->selected[i];
        args.selection.positions_stride = TOPK;
        args.blocks = i == 0 ? published : NULL;
        args.blocks_stride = BLOCKS;
        good(b, (i == 0 ? tamis_cuda_source_run : tamis_cuda_consumer_run)(c->plan, &step, &args,
                                                                           b->stream, &b->error));
    }
}

static int layers_of(int part) {
    return part == SOURCE ? 1 : LAYERS;
}

static void capture(run *r) {
    void *graph = NULL, *stream = r->c->b.stream;
    for (int i = 0; i < PARTS * SETS; i++) {
        int part = i / SETS, set = i % SETS;
        CALL(r->c, capture_begin, "cuStreamBeginCapture_v2", stream, 0);
        queue(r, set, layers_of(part), NULL);
        CALL(r->c, capture_end, "cuStreamEndCapture", stream, &graph);
        CALL(r->c, instantiate, "cuGraphInstantiateWithFlags", &r->exec[part][set], graph, 0);
        CALL(r->c, destroy, "cuGraphDestroy", graph);
    }
}

static void run_step(void *context, int i) {
    run *r = context;
    void *exec = r->exec[r->part][i % SETS];
    if (exec) {
        CALL(r->c, launch, "cuGraphLaunch", exec, r->c->b.stream);
    } else {
        queue(r, i % SETS, layers_of(r->part), NULL);
    }
}

/* Microseconds of the source, of all, and of the consumers: in turns, since the same source was up
 * to a quarter slower a moment later. */
static void time_parts(run *r, double *source, double *whole, double *consumers) {
    int graph = r->rows == r->requests, runs = r->rows * r->positions > (int64_t)1 << 31 ? 4 : 8;
    float times[PARTS + 1][MAX_RUNS];
    if (graph) {
        capture(r);
    }
    for (int i = -1; i < runs; i++) { /* the first warms up */
        int at = i < 0 ? 0 : i;
        for (r->part = 0; r->part < PARTS; r->part++) {
            times[r->part][at] = 1e3f * time_once(&r->c->b, run_step, r, at);
        }
        times[PARTS][at] = times[WHOLE][at] - times[SOURCE][at];
    }
    *source = median_of(times[SOURCE], runs);
    *whole = median_of(times[WHOLE], runs);
    *consumers = median_of(times[PARTS], runs);
    for (int i = 0; graph && i < PARTS * SETS; i++) {
        CALL(r->c, destroy, "cuGraphExecDestroy", r->exec[i / SETS][i % SETS]);
        r->exec[i / SETS][i % SETS] = NULL;
    }
}

/* ---- the same on the CPU ---- */

/* The last rows of a shape by a plan in host memory; selected: [LAYERS][CHECKED][TOPK]. */
static void run_host(chain *c, tamis_batch *batch, int64_t first, int32_t *selected) {
    bench *b = &c->b;
    tamis_plan *plan;
    tamis_step step;
    tamis_layer_args args;
    tamis_plan_limits limits;
    tamis_plan_limits_default(&limits);
    limits.max_requests = limits.max_batched_tokens = CHECKED;
    limits.max_context = MOST;
    int64_t bytes = tamis_plan_bytes(c->indexer, &limits, &b->error);
    uint8_t *memory = host(bytes + 64), *aligned = memory + (64 - (uintptr_t)memory % 64);
    good(b, tamis_plan_init(c->indexer, &limits, aligned, bytes, &plan, &b->error));
    good(b, tamis_step_make(plan, batch, &step, &b->error));
    for (int i = 0; i < LAYERS; i++) {
        tamis_query *q = &args.query;
        tamis_layer_args_default(&args);
        args.layer = i;
        args.k = c->host_k;
        *q = c->host_query[i];
        q->codes = (const uint8_t *)q->codes + first * q->codes_row_stride;
        q->scales = (const uint8_t *)q->scales + first * q->scales_row_stride;
        q->weights = (const float *)q->weights + first * q->weights_row_stride;
        args.selection.positions = selected + (int64_t)i * CHECKED * TOPK;
        args.selection.positions_stride = TOPK;
        good(b,
             (i == 0 ? tamis_source_run : tamis_consumer_run)(plan, &step, &args, 0, 1, &b->error));
    }
    free(memory);
}

static void check(run *r) {
    chain *c = r->c;
    int64_t rows = r->rows < CHECKED ? r->rows : CHECKED, first = r->rows - rows;
    int64_t requests = r->requests < r->rows ? 1 : rows, bytes = rows * TOPK * 4;
    int32_t *want = host((int64_t)LAYERS * CHECKED * TOPK * 4), *got = host(bytes);
    tamis_batch batch = make_batch(c, rows, requests, r->positions, 0, 0);
    run_host(c, &batch, first, want);
    for (int i = 0; i < LAYERS; i++) {
        copy_back(&c->b, got, c->selected[i] + first * TOPK, bytes);
        if (memcmp(got, want + (int64_t)i * CHECKED * TOPK, (size_t)bytes) != 0 || got[0] < 0) {
            printf("FAILED: layer %d selects otherwise than on the CPU\n", i);
            exit(1);
        }
    }
    uint32_t status = tamis_cuda_plan_status(c->plan);
    if (status != TAMIS_CUDA_PLAN_GOOD) {
        printf("FAILED: status %x\n", (unsigned)status);
        exit(1);
    }
    free((void *)(uintptr_t)batch.context);
    free((void *)(uintptr_t)batch.query_start);
    free((void *)(uintptr_t)batch.page_table[0]);
    free(want);
    free(got);
}

/* ---- lines ---- */

static int64_t in_common(const int32_t *a, const int32_t *b) {
    int64_t i = 0, j = 0, both = 0;
    while (i < BLOCKS && j < BLOCKS && a[i] >= 0 && b[j] >= 0) {
        both += a[i] == b[j];
        int32_t x = a[i], y = b[j];
        i += x <= y;
        j += y <= x;
    }
    return both;
}

/* Of the last rows' blocks: the share that is in the list `distance` rows on. */
static double kept(const run *r, int distance) {
    int64_t bytes = (int64_t)SAMPLE * BLOCKS * 4, both = 0;
    int32_t *lists = host(bytes);
    copy_back(&r->c->b, lists, r->c->published + (r->rows - SAMPLE) * BLOCKS, bytes);
    for (int i = 0; i + distance < SAMPLE; i++) {
        both += in_common(lists + i * BLOCKS, lists + (i + distance) * BLOCKS);
    }
    free(lists);
    return (double)both / (SAMPLE - distance) / BLOCKS;
}

/* Microseconds that scoring so many positions, of so much K, takes at least. */
static double floor_of(double scored, double read, int *memory) {
    double multiply = scored * 2 * HEADS * DIM / 1720e6, load = read * (DIM / 2 + DIM / 32) / 4.8e6;
    *memory = load > multiply;
    return fmax(multiply, load);
}

static void line(run *r) {
    double rows = (double)r->rows, each = rows / (double)r->requests;
    double seen = (double)r->positions - (each - 1) / 2;
    double all = (double)r->requests * (double)r->positions, pool = fmin(seen, POOL);
    int memory[2];
    double source_floor = floor_of(rows * seen, all, &memory[0]);
    double floors =
        source_floor + (LAYERS - 1) * floor_of(rows * pool, fmin(all, rows * pool), &memory[1]);
    double source, whole, consumers;
    time_parts(r, &source, &whole, &consumers);
    printf("%-7s %5lld %8lld %10.1f %10.1f %10.1f %10.3f %10.1f %4.0f%% %4.0f%% %s/%s",
           r->rows > r->requests ? "prefill" : "decode", (long long)r->rows,
           (long long)r->positions, whole, source, consumers, whole / rows, floors,
           100 * floors / whole, 100 * source_floor / source, memory[0] ? "HBM" : "MMA",
           memory[1] ? "HBM" : "MMA");
    if (r->requests == 1 && r->rows >= SAMPLE) {
        printf("  %.2f %.2f %.2f", kept(r, 1), kept(r, 4), kept(r, 16));
    }
    printf("\n");
    fflush(stdout);
}

static void measure(chain *c, int64_t positions, int64_t rows, int64_t requests) {
    run r = {.c = c, .rows = rows, .requests = requests, .positions = positions};
    int kept_buffers = c->b.buffers;
    if (positions < 1 || positions > MOST || rows < 1 || rows > ROWS || requests < 1 ||
        requests > REQUESTS || rows % requests != 0 || rows / requests > positions ||
        (rows > requests && rows / requests < CHECKED)) {
        printf("FAILED: required up to %d positions, %d rows, %d equal requests\n", MOST, ROWS,
               REQUESTS);
        exit(1);
    }
    for (int set = 0; set < SETS; set++) {
        r.batch[set] = make_batch(c, rows, requests, positions, set, 1);
    }
    queue(&r, 0, LAYERS, c->published);
    check(&r);
    line(&r);
    release(&c->b, kept_buffers);
}

int main(int argc, char **argv) {
    static const char *const modes[] = {"off", "on", "auto"}; /* TAMIS_SPARSE_* */
    static const int64_t lengths[] = {16384, 65536, 262144, MOST}, decode[] = {1, 8, 64, 256};
    int32_t mode = TAMIS_SPARSE_ON;
    chain c = {0};
    int at = 1;
    for (int32_t i = 0; i < 3 && argc > 1; i++) {
        if (strcmp(argv[1], modes[i]) == 0) {
            mode = i;
            at = 2;
        }
    }
    tamis_cuda_device card = {0};
    bench_begin(&c.b);
    tamis_cuda_devices(&card, 1);
    printf("%s, indexer_sparse_logits %s\n", card.name, modes[mode]);
    c.indexer = make_indexer(&c.b, LAYERS, PAGE, mode);
    make_plan(&c);
    make_pool(&c);
    make_queries(&c);
    c.published = device(&c.b, (int64_t)ROWS * BLOCKS * 4);
    for (int i = 0; i < LAYERS; i++) {
        c.selected[i] = device(&c.b, (int64_t)ROWS * TOPK * 4);
    }
    printf("%-7s %5s %8s %10s %10s %10s %10s %10s %5s %5s %s\n", "", "rows", "context", "us",
           "source", "consumers", "us a row", "floor", "share", "of it",
           "floors: source/consumers"
           "; blocks kept 1, 4, 16 rows on");
    for (int i = at; i + 2 < argc; i += 3) {
        measure(&c, atoll(argv[i]), atoll(argv[i + 1]), atoll(argv[i + 2]));
    }
    for (int i = 0; i < 4 && argc == at; i++) {
        measure(&c, lengths[i], 512, 1);
        measure(&c, lengths[i], ROWS, 1);
        for (int j = 0; j < 4; j++) {
            measure(&c, lengths[i], decode[j], decode[j]);
        }
    }
    tamis_cuda_plan_destroy(c.plan);
    tamis_indexer_destroy(c.indexer);
    bench_end(&c.b);
    return 0;
}
