/* SPDX-License-Identifier: MIT */
/*
 * levels_plan.c: a model of a source and a consumer around the arguments of a trial. The consumer's
 * lists are the trial's: they take the place of what its source published in the plan.
 */
#include "levels_plan.h"

#include <stdlib.h>
#include <string.h>

#include "cache/address.h"
#include "kernels/cuda/plan_cuda.h"
#include "kernels/rows.h"
#include "require.h"

enum { LAYER_SOURCE, LAYER_CONSUMER, MODEL_LAYERS, MAX_ARRAYS = 8 };

/* What the three stages' arguments have in common, on the host. */
typedef struct level_args {
    int stage, numerics;
    tamis_k_cache k;
    tamis_rows rows;
    tamis_query query;
    tamis_selection selection;
    int32_t block_size, width; /* width 0: one level */
    const int32_t *lists, *list_counts;
    int64_t lists_stride;
} level_args;

typedef struct plan_run {
    const test_device *device;
    const trial *t;
    level_args a;
    mirror m;
    int32_t sparse_logits;
    tamis_model model;
    tamis_indexer *indexer;
    tamis_cuda_plan *plan;
    tamis_batch batch;
    tamis_step step;
    void *arrays[MAX_ARRAYS];
    int array_count;
} plan_run;

static level_args level_args_of(const stage_args *args, int stage) {
    level_args l = {.stage = stage};
    if (stage == STAGE_source) {
        const tamis_source_args *s = &args->source;
        l = (level_args){stage,
                         s->numerics,
                         s->k,
                         s->rows,
                         s->query,
                         s->selection,
                         s->block_size,
                         s->blocks ? s->topk_blocks : 0,
                         NULL,
                         NULL,
                         0};
    } else if (stage == STAGE_consume) {
        const tamis_consume_args *c = &args->consume;
        l = (level_args){
            stage,         c->numerics,       c->k,      c->rows,   c->query,        c->selection,
            c->block_size, (int32_t)c->width, c->blocks, c->counts, c->blocks_stride};
    } else {
        const tamis_dense_args *d = &args->dense;
        l = (level_args){stage,
                         d->numerics,
                         d->k,
                         d->rows,
                         d->query,
                         d->selection,
                         d->block_size,
                         d->blocks ? (int32_t)d->width : 0,
                         d->blocks,
                         d->counts,
                         d->blocks_stride};
    }
    l.block_size = l.width ? l.block_size : 8;
    return l;
}

static int paged(const level_args *a) {
    return a->k.layout == TAMIS_K_MXFP4_PAGE;
}

/* Ids of row r's list before its tail; -1 when no source publishes such a list. */
static int32_t listed(const level_args *a, int64_t r) {
    const int32_t *ids = a->lists + r * a->lists_stride;
    int64_t most = tamis_blocks_of(tamis_row_length(&a->rows, r), a->block_size);
    int32_t count = 0, last = -1;
    int32_t width = a->list_counts ? a->list_counts[r] : a->width;
    while (count < width && ids[count] != -1) {
        if (ids[count] <= last || ids[count] >= most)
            return -1;
        last = ids[count++];
    }
    return count;
}

static int fits_a_plan(const level_args *a) {
    for (int64_t r = 0; r < a->rows.count; r++) {
        if ((paged(a) && a->rows.ks && a->rows.ks[r]) || (a->lists && listed(a, r) < 0))
            return 0;
    }
    return a->rows.count > 0;
}

/* ---- the indexer, the plan, the step ---- */

static int make_indexer(plan_run *p) {
    static const int32_t ratios[MODEL_LAYERS] = {1, 1}, sources[MODEL_LAYERS] = {0, 1};
    const level_args *a = &p->a;
    tamis_settings settings;
    tamis_indexer_options options;
    tamis_error error;
    p->model = (tamis_model){.struct_size = sizeof p->model,
                             .num_layers = MODEL_LAYERS,
                             .compress_ratios = ratios,
                             .kv_source_layer_ids = sources,
                             .index_source_layer_ids = sources,
                             .num_kv_sources = 1,
                             .num_index_sources = MODEL_LAYERS,
                             .candidate_source_layer_id = a->width ? LAYER_SOURCE : -1,
                             .candidate_topk_blocks = a->width,
                             .candidate_block_size = a->width ? a->block_size : 0,
                             .index_n_heads = a->query.heads,
                             .index_head_dim = a->query.head_dim,
                             .index_topk = a->selection.topk};
    tamis_settings_default(&settings);
    settings.indexer_sparse_logits = p->sparse_logits;
    settings.numerics = a->numerics == TAMIS_NUMERICS_BF16 ? "bf16" : "exact";
    tamis_indexer_options_default(&options);
    options.model = &p->model;
    options.settings = &settings;
    options.k_layout = a->k.layout;
    options.page_size = a->k.page_size;
    options.page_stride = paged(a) ? a->k.stride : 0;
    if (tamis_indexer_supported(&options, NULL, 0) > 0)
        return 0;
    REQUIRE_OK(tamis_indexer_create(&options, &p->indexer, &error), error);
    return 1;
}

static void *keep(plan_run *p, int64_t bytes) {
    tamis_error error;
    void *memory;
    REQUIRE(p->array_count < MAX_ARRAYS, "test: too many arrays");
    REQUIRE_OK(tamis_cuda_alloc(p->device->cuda, bytes, &memory, &error), error);
    p->arrays[p->array_count++] = memory;
    return memory;
}

static void *fresh(int64_t count, int64_t size) {
    void *memory = calloc((size_t)count + 1, (size_t)size);
    REQUIRE(memory, "out of memory");
    return memory;
}

/* Moves a host array to the device; the host's is freed. */
static void *send(plan_run *p, void *host, int64_t bytes) {
    void *memory = keep(p, bytes);
    device_write(p->device, memory, host, bytes);
    free(host);
    return memory;
}

/* A request a row: its length, its first K row, its row of the page table. */
static void make_batch(plan_run *p, int64_t *longest) {
    const level_args *a = &p->a;
    int64_t rows = a->rows.count, *context = fresh(rows, 8);
    int32_t *query_start = fresh(rows + 1, 4), *k_start = fresh(rows, 4);
    *longest = 1;
    for (int64_t r = 0; r < rows; r++) {
        context[r] = tamis_row_length(&a->rows, r);
        *longest = context[r] > *longest ? context[r] : *longest;
        query_start[r + 1] = (int32_t)r + 1;
        k_start[r] = context[r] > 0 ? (int32_t)tamis_row_start(&a->rows, r) : 0;
    }
    tamis_batch_default(&p->batch);
    p->batch.requests = (int32_t)rows;
    p->batch.tokens = rows;
    p->batch.context = send(p, context, rows * 8);
    p->batch.query_start = send(p, query_start, (rows + 1) * 4);
    p->batch.k_start[0] = send(p, k_start, rows * 4);
    if (paged(a)) {
        int64_t width = a->rows.page_table_width;
        int32_t *table = fresh(rows * width, 4);
        for (int64_t r = 0; r < rows; r++)
            memcpy(table + r * width, tamis_page_row(&a->rows, r), (size_t)width * 4);
        p->batch.page_table[0] = send(p, table, rows * width * 4 + 4);
        p->batch.page_table_stride[0] = p->batch.page_table_width[0] = width;
    }
}

/* Both routes, however few the rows are. */
static const tamis_auto_band both = {.to = 12, .mixed = 1};

static void make_plan(plan_run *p) {
    tamis_plan_limits limits;
    tamis_error error;
    int64_t longest;
    make_batch(p, &longest);
    tamis_plan_limits_default(&limits);
    limits.max_requests = limits.max_batched_tokens = (int32_t)p->a.rows.count;
    limits.max_context = longest;
    int64_t bytes = tamis_cuda_plan_bytes(p->indexer, &limits, &error);
    REQUIRE(bytes > 0, "%s: required %s", error.argument, error.required);
    REQUIRE_OK(tamis_cuda_plan_create(p->device->cuda, p->indexer, &limits, keep(p, bytes), bytes,
                                      p->device->stream, &p->plan, &error),
               error);
    p->plan->band = &both;
}

static void make_step(plan_run *p) {
    tamis_error error;
    REQUIRE_OK(tamis_cuda_step_make(p->plan, &p->batch, &p->step, p->device->stream, &error),
               error);
}

/* ---- layers ---- */

static void queue_layer(plan_run *p, int32_t layer, const tamis_selection *selection,
                        int32_t *blocks, int64_t blocks_stride) {
    tamis_layer_args args;
    tamis_error error;
    level_args on_device = level_args_of(&p->m.args, p->a.stage);
    tamis_layer_args_default(&args);
    args.layer = layer;
    args.k = on_device.k;
    args.query = on_device.query;
    args.selection = *selection;
    args.blocks = blocks;
    args.blocks_stride = blocks_stride;
    REQUIRE_OK((layer == LAYER_CONSUMER ? tamis_cuda_consumer_run : tamis_cuda_source_run)(
                   p->plan, &p->step, &args, p->device->stream, &error),
               error);
}

static void begin_capture(const plan_run *p) {
    enum { CAPTURE_GLOBAL = 0 };
    REQUIRE(p->device->capture_begin(p->device->stream, CAPTURE_GLOBAL) == 0, "begin capture");
}

static void end_capture(const plan_run *p) {
    void *graph = NULL, *exec = NULL;
    REQUIRE(p->device->capture_end(p->device->stream, &graph) == 0, "end capture");
    REQUIRE(p->device->instantiate(&exec, graph, 0) == 0, "instantiate");
    p->device->graph_destroy(graph);
    device_replay(p->device, exec);
    p->device->exec_destroy(exec);
}

/* What consumers read: the trial's lists, and where their blocks lie. */
static void write_lists(const plan_run *p) {
    const level_args *a = &p->a;
    int64_t cells = a->rows.count * a->width;
    int32_t *ids = fresh(cells, 4), *placed = fresh(cells, 4), *counts = fresh(a->rows.count, 4);
    memset(ids, 0xFF, (size_t)cells * 4);
    memset(placed, 0xFF, (size_t)cells * 4);
    for (int64_t r = 0; r < a->rows.count; r++) {
        const int32_t *list = a->lists + r * a->lists_stride;
        counts[r] = listed(a, r);
        for (int32_t i = 0; i < counts[r]; i++) {
            int64_t at = tamis_row_start(&a->rows, r) / a->block_size + list[i];
            if (paged(a))
                at = tamis_slot_of(tamis_page_row(&a->rows, r), a->k.page_size,
                                   (int64_t)list[i] * a->block_size) /
                     a->block_size;
            ids[r * a->width + i] = list[i];
            placed[r * a->width + i] = (int32_t)at;
        }
    }
    device_write(p->device, p->plan->blocks, ids, cells * 4);
    device_write(p->device, p->plan->placed, placed, cells * 4);
    device_write(p->device, p->plan->blocks_count, counts, a->rows.count * 4);
    free(ids);
    free(placed);
    free(counts);
}

/* The published counts are the plan's own; the trial gets them from there. */
static void send_counts(const plan_run *p) {
    int64_t bytes = p->a.rows.count * 4;
    int32_t *counts = fresh(p->a.rows.count, 4);
    tamis_error error;
    if (p->m.args.source.counts) {
        REQUIRE_OK(tamis_cuda_copy_out(p->device->cuda, counts, p->plan->blocks_count, bytes,
                                       p->device->stream, &error),
                   error);
        device_sync(p->device);
        device_write(p->device, p->m.args.source.counts, counts, bytes);
    }
    free(counts);
}

static void run_source(plan_run *p, int as_graph) {
    const tamis_source_args *source = &p->m.args.source;
    level_args on_device = level_args_of(&p->m.args, p->a.stage);
    int publishes = p->a.stage == STAGE_source && p->a.width;
    if (as_graph)
        begin_capture(p);
    make_step(p);
    queue_layer(p, LAYER_SOURCE, &on_device.selection, publishes ? source->blocks : NULL,
                publishes ? source->blocks_stride : 0);
    if (as_graph)
        end_capture(p);
    device_sync(p->device);
    if (publishes)
        send_counts(p);
}

static void run_consumer(plan_run *p, int as_graph) {
    tamis_selection none = {0};
    level_args on_device = level_args_of(&p->m.args, p->a.stage);
    make_step(p);
    queue_layer(p, LAYER_SOURCE, &none, NULL, 0);
    device_sync(p->device);
    write_lists(p);
    if (as_graph)
        begin_capture(p);
    queue_layer(p, LAYER_CONSUMER, &on_device.selection, NULL, 0);
    if (as_graph)
        end_capture(p);
    device_sync(p->device);
}

int plan_trial(const test_device *device, const trial *t, int turn) {
    plan_run p = {.device = device, .t = t};
    p.a = level_args_of(&t->args, trial_stage(t));
    p.sparse_logits = p.a.stage == STAGE_dense ? TAMIS_SPARSE_OFF
                      : turn / 2 % 2           ? TAMIS_SPARSE_AUTO
                                               : TAMIS_SPARSE_ON;
    if (!fits_a_plan(&p.a) || !make_indexer(&p))
        return 0;
    mirror_new(&p.m, device, t, p.a.stage, 0);
    make_plan(&p);
    if (p.a.lists)
        run_consumer(&p, turn % 2);
    else
        run_source(&p, turn % 2);
    REQUIRE(tamis_cuda_plan_status(p.plan) == TAMIS_CUDA_PLAN_GOOD, "the plan's status is %x",
            (unsigned)tamis_cuda_plan_status(p.plan));
    mirror_pull(&p.m);
    mirror_free(&p.m);
    tamis_cuda_plan_destroy(p.plan);
    tamis_indexer_destroy(p.indexer);
    while (p.array_count > 0)
        tamis_cuda_free(device->cuda, p.arrays[--p.array_count], NULL);
    return 1;
}
