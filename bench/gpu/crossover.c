/* SPDX-License-Identifier: MIT */
/*
 * crossover.c: where the dense route of a consumer stops paying on one GPU: layers of device plans
 * with indexer_sparse_logits on, off and auto over rows of one length, the same bytes first, then
 * times. TAMIS_CUDA_AUTO_ROWS, _SHARE and _QUARTERS are set from it: docs/benchmarks-gpu.md, "The
 * crossover of auto". Here auto has both routes however few the rows are.
 *
 *   crossover [ROWS POSITIONS ROWS_OF_A_REQUEST]...
 *
 * Medians of seven CUDA-event times; 512 MiB are written before each, so that nothing is in L2.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/address.h"
#include "kernels/cuda/plan_cuda.h"

enum { HEADS = 32, DIM = 128, TOPK = 512, BLOCKS = 2048, BLOCK = 8, PAGE = 64, LAYERS = 2 };
enum { MODES = 3, RUNS = 7, MAX_BUFFERS = 64 };
static const int64_t flush_bytes = (int64_t)512 << 20;

typedef struct bench {
    tamis_cuda *cuda;
    void *stream, *from, *to, *flush;
    tamis_error error;
    void *memory[MAX_BUFFERS];
    int buffers;
} bench;

/* One shape on the device. */
typedef struct scene {
    int64_t rows, positions, each; /* each: rows of a request */
    tamis_k_cache k;
    tamis_query query[LAYERS];
    tamis_batch batch;
    tamis_plan_limits limits;
    int32_t *ends; /* on the host: every row sees `positions` */
} scene;

static void good(const bench *b, tamis_status status) {
    if (status != TAMIS_OK) {
        printf("FAILED: %s: required %s, found %s\n", b->error.argument, b->error.required,
               b->error.found);
        exit(1);
    }
}

static void *device(bench *b, int64_t bytes) {
    void *memory = NULL;
    if (b->buffers == MAX_BUFFERS) {
        abort();
    }
    good(b, tamis_cuda_alloc(b->cuda, bytes, &memory, &b->error));
    b->memory[b->buffers++] = memory;
    return memory;
}

static void release(bench *b) {
    while (b->buffers > 0) {
        tamis_cuda_free(b->cuda, b->memory[--b->buffers], NULL);
    }
}

static void *host(int64_t bytes) {
    void *memory = calloc(1, (size_t)bytes + 1);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static void copy(bench *b, void *to, const void *from, int64_t bytes) {
    good(b, tamis_cuda_copy_in(b->cuda, to, from, bytes, b->stream, &b->error));
    good(b, tamis_cuda_stream_sync(b->cuda, b->stream, &b->error));
}

/* Copies to the device; frees the host's. */
static void *send(bench *b, void *from, int64_t bytes) {
    void *memory = device(b, bytes);
    copy(b, memory, from, bytes);
    free(from);
    return memory;
}

static uint32_t random_bits(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 20);
}

static uint8_t *random_codes(int64_t bytes) {
    uint8_t *codes = host(bytes);
    for (int64_t i = 0; i < bytes; i++) {
        codes[i] = (uint8_t)random_bits();
    }
    return codes;
}

/* Exponents as close together as those of trained tensors. */
static void fill_scales(uint8_t *scales, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++) {
        scales[i] = (uint8_t)(120 + random_bits() % 3);
    }
}

static tamis_query make_query(bench *b, int64_t rows) {
    int64_t codes = HEADS * (DIM / 2), scales = HEADS * (DIM / 32);
    uint8_t *exponents = host(rows * scales);
    float *weights = host(rows * HEADS * 4);
    fill_scales(exponents, rows * scales);
    for (int64_t i = 0; i < rows * HEADS; i++) {
        weights[i] = (float)(int)(random_bits() % 2001) / 1000 - 0.5f;
    }
    return (tamis_query){.heads = HEADS,
                         .head_dim = DIM,
                         .weights_type = TAMIS_F32,
                         .codes = send(b, random_codes(rows * codes), rows * codes),
                         .scales = send(b, exponents, rows * scales),
                         .weights = send(b, weights, rows * HEADS * 4),
                         .codes_row_stride = codes,
                         .codes_head_stride = DIM / 2,
                         .scales_row_stride = scales,
                         .scales_head_stride = DIM / 32,
                         .weights_row_stride = HEADS};
}

static void make_k(bench *b, scene *s, int64_t pages) {
    int64_t stride = tamis_k_page_stride(PAGE, DIM, 16);
    uint8_t *pool = random_codes(pages * stride);
    for (int64_t p = 0; p < pages; p++) {
        fill_scales(pool + p * stride + PAGE * (DIM / 2), PAGE * (DIM / 32));
    }
    s->k = (tamis_k_cache){.layout = TAMIS_K_MXFP4_PAGE,
                           .head_dim = DIM,
                           .page_size = PAGE,
                           .size = pages,
                           .stride = stride,
                           .codes = send(b, pool, pages * stride)};
}

/* Pages in random order; requests that see `positions`, with `each` new tokens. */
static void make_batch(bench *b, scene *s) {
    int64_t requests = s->rows / s->each, width = (s->positions + PAGE - 1) / PAGE;
    int64_t pages = requests * width, *context = host(requests * 8);
    int32_t *starts = host((requests + 1) * 4), *table = host(pages * 4);
    for (int64_t i = 0; i < requests; i++) {
        context[i] = s->positions;
        starts[i + 1] = (int32_t)((i + 1) * s->each);
    }
    for (int64_t p = 0; p < pages; p++) {
        int64_t other = random_bits() % (uint32_t)(p + 1);
        table[p] = table[other];
        table[other] = (int32_t)p;
    }
    make_k(b, s, pages);
    tamis_batch_default(&s->batch);
    s->batch.requests = (int32_t)requests;
    s->batch.tokens = s->rows;
    s->batch.context = send(b, context, requests * 8);
    s->batch.query_start = send(b, starts, (requests + 1) * 4);
    s->batch.page_table[0] = send(b, table, pages * 4);
    s->batch.page_table_stride[0] = s->batch.page_table_width[0] = width;
}

static scene make_scene(bench *b, int64_t rows, int64_t positions, int64_t each) {
    scene s = {.rows = rows, .positions = positions, .each = each};
    make_batch(b, &s);
    for (int i = 0; i < LAYERS; i++) {
        s.query[i] = make_query(b, rows);
    }
    s.ends = host(rows * 4);
    for (int64_t r = 0; r < rows; r++) {
        s.ends[r] = (int32_t)positions;
    }
    tamis_plan_limits_default(&s.limits);
    s.limits.max_requests = s.batch.requests;
    s.limits.max_batched_tokens = (int32_t)rows;
    s.limits.max_context = 1 << 20; /* a server's: no plan may know that its rows are short */
    return s;
}

static tamis_indexer *make_indexer(bench *b, int32_t sparse_logits) {
    static const int32_t ratios[LAYERS] = {1, 1}, sources[LAYERS] = {0, 1};
    tamis_model model = {.struct_size = sizeof model,
                         .num_layers = LAYERS,
                         .compress_ratios = ratios,
                         .kv_source_layer_ids = sources,
                         .index_source_layer_ids = sources,
                         .num_kv_sources = 1,
                         .num_index_sources = LAYERS,
                         .candidate_source_layer_id = 0,
                         .candidate_topk_blocks = BLOCKS,
                         .candidate_block_size = BLOCK,
                         .index_n_heads = HEADS,
                         .index_head_dim = DIM,
                         .index_topk = TOPK};
    tamis_settings settings;
    tamis_indexer_options options;
    tamis_indexer *indexer = NULL;
    tamis_settings_default(&settings);
    settings.indexer_sparse_logits = sparse_logits;
    tamis_indexer_options_default(&options);
    options.model = &model;
    options.settings = &settings;
    options.page_size = PAGE;
    good(b, tamis_indexer_create(&options, &indexer, &b->error));
    return indexer;
}

static tamis_cuda_plan *make_plan(bench *b, const scene *s, const tamis_indexer *indexer) {
    tamis_cuda_plan *plan = NULL;
    tamis_plan_limits limits = s->limits;
    if (indexer->sparse_logits == TAMIS_SPARSE_OFF) {
        limits.max_context = s->positions; /* its scratch is that of the longest row */
    }
    int64_t bytes = tamis_cuda_plan_bytes(indexer, &limits, &b->error);
    good(b, tamis_cuda_plan_create(b->cuda, indexer, &limits, device(b, bytes), bytes, b->stream,
                                   &plan, &b->error));
    plan->auto_rows = plan->auto_share = 1;
    return plan;
}

/* ---- one mode ---- */

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float time_consumer(bench *b, tamis_cuda_plan *plan, const tamis_step *step,
                           const tamis_layer_args *args) {
    float times[RUNS];
    for (int i = -1; i < RUNS; i++) { /* the first warms up */
        float elapsed = 0;
        b->cuda->driver.memory_set((tamis_cu_pointer)(uintptr_t)b->flush, (unsigned char)i,
                                   (size_t)flush_bytes, b->stream);
        good(b, tamis_cuda_event_record(b->cuda, b->from, b->stream, &b->error));
        good(b, tamis_cuda_consumer_run(plan, step, args, b->stream, &b->error));
        good(b, tamis_cuda_event_record(b->cuda, b->to, b->stream, &b->error));
        good(b, tamis_cuda_event_elapsed(b->cuda, b->from, b->to, &elapsed, &b->error));
        times[i < 0 ? 0 : i] = elapsed;
    }
    qsort(times, RUNS, sizeof *times, by_size);
    return times[RUNS / 2];
}

/* Milliseconds of the consumer in one mode; what it selected to positions[rows][TOPK]. */
static float run_mode(bench *b, const scene *s, int32_t mode, int32_t *positions) {
    int first = b->buffers;
    tamis_indexer *indexer = make_indexer(b, mode);
    tamis_cuda_plan *plan = make_plan(b, s, indexer);
    tamis_step step;
    tamis_layer_args args;
    int64_t bytes = s->rows * TOPK * 4;
    good(b, tamis_cuda_step_make(plan, &s->batch, &step, b->stream, &b->error));
    copy(b, step.ke[0], s->ends, s->rows * 4);
    tamis_layer_args_default(&args);
    args.k = s->k;
    args.query = s->query[0];
    good(b, tamis_cuda_source_run(plan, &step, &args, b->stream, &b->error));
    args.layer = 1;
    args.query = s->query[1];
    args.selection.positions = device(b, bytes);
    args.selection.positions_stride = TOPK;
    float elapsed = time_consumer(b, plan, &step, &args);
    good(b, tamis_cuda_copy_out(b->cuda, positions, args.selection.positions, bytes, b->stream,
                                &b->error));
    good(b, tamis_cuda_stream_sync(b->cuda, b->stream, &b->error));
    if (tamis_cuda_plan_status(plan) != TAMIS_CUDA_PLAN_GOOD || positions[0] < 0) {
        printf("FAILED: status %x\n", (unsigned)tamis_cuda_plan_status(plan));
        exit(1);
    }
    tamis_cuda_plan_destroy(plan);
    tamis_indexer_destroy(indexer);
    while (b->buffers > first) {
        tamis_cuda_free(b->cuda, b->memory[--b->buffers], NULL);
    }
    return elapsed;
}

static void measure(bench *b, int64_t rows, int64_t positions, int64_t each) {
    scene s = make_scene(b, rows, positions, each);
    int32_t *selected[MODES];
    float ms[MODES];
    for (int32_t mode = 0; mode < MODES; mode++) { /* TAMIS_SPARSE_OFF, ON, AUTO */
        selected[mode] = host(rows * TOPK * 4);
        ms[mode] = run_mode(b, &s, mode, selected[mode]);
        if (memcmp(selected[mode], selected[0], (size_t)(rows * TOPK) * 4) != 0) {
            printf("FAILED: mode %d selects otherwise\n", mode);
            exit(1);
        }
    }
    double each_row = 1e6 / (double)rows;
    printf("%6lld rows, %4lld a request, %6lld positions: sparse %8.1f, dense %8.1f, auto %8.1f ns "
           "a row; dense/sparse %.2f\n",
           (long long)rows, (long long)each, (long long)positions, ms[1] * each_row,
           ms[0] * each_row, ms[2] * each_row, (double)(ms[0] / ms[1]));
    fflush(stdout);
    for (int mode = 0; mode < MODES; mode++) {
        free(selected[mode]);
    }
    free(s.ends);
    release(b);
}

int main(int argc, char **argv) {
    static const int64_t lengths[] = {4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768};
    bench b = {0};
    good(&b, tamis_cuda_create_on(0, &b.cuda, &b.error));
    good(&b, tamis_cuda_stream_create(b.cuda, &b.stream, &b.error));
    good(&b, tamis_cuda_event_create(b.cuda, &b.from, &b.error));
    good(&b, tamis_cuda_event_create(b.cuda, &b.to, &b.error));
    good(&b, tamis_cuda_alloc(b.cuda, flush_bytes, &b.flush, &b.error));
    for (int i = 1; i + 2 < argc; i += 3) {
        measure(&b, atoll(argv[i]), atoll(argv[i + 1]), atoll(argv[i + 2]));
    }
    for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths) && argc == 1; i++) {
        measure(&b, 128, lengths[i], 128);
        measure(&b, 256, lengths[i], 256);
        measure(&b, 512, lengths[i], 512);
        measure(&b, 8192, lengths[i], 8192);
    }
    tamis_cuda_free(b.cuda, b.flush, NULL);
    tamis_cuda_event_destroy(b.cuda, b.from, NULL);
    tamis_cuda_event_destroy(b.cuda, b.to, NULL);
    tamis_cuda_stream_destroy(b.cuda, b.stream, NULL);
    tamis_cuda_destroy(b.cuda);
    return 0;
}
