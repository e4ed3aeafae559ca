/* SPDX-License-Identifier: MIT */
/* plan_device.c: memory, copies and runs of the device plans' tests. */
#include "plan_device.h"

#include <dlfcn.h>

enum { SKIPPED = 77, MAX_BUFFERS = 4096 };

gpu device;
static void *buffers[MAX_BUFFERS];
static int buffer_count;

static void find(const char *symbol, void *field) {
    void *found = dlsym(device.cuda->driver.library, symbol);
    assert_non_null(found);
    memcpy(field, &found, sizeof found);
}

void gpu_open(void) {
    tamis_error error = {0};
    tamis_status status = tamis_cuda_create_on(0, &device.cuda, &error);
    if (status == TAMIS_ERROR_TIER) {
        printf("SKIPPED: %s: %s needed, found %s\n", error.argument, error.required, error.found);
        exit(SKIPPED);
    }
    succeeded(status, &error, __LINE__);
    succeeded(tamis_cuda_stream_create(device.cuda, &device.stream, &error), &error, __LINE__);
    find("cuStreamBeginCapture_v2", &device.capture_begin);
    find("cuStreamEndCapture", &device.capture_end);
    find("cuGraphInstantiateWithFlags", &device.instantiate);
    find("cuGraphLaunch", &device.graph_launch);
    find("cuGraphDestroy", &device.graph_destroy);
    find("cuGraphExecDestroy", &device.exec_destroy);
    find("cuMemGetInfo_v2", &device.memory_info);
}

void gpu_close(void) {
    tamis_cuda_stream_destroy(device.cuda, device.stream, NULL);
    tamis_cuda_destroy(device.cuda);
}

void gpu_call(int result, const char *what) {
    if (result != 0) {
        fail_msg("%s: %s", what, tamis_cuda_result_text(device.cuda, result));
    }
}

void gpu_capture_begin(void) {
    enum { GLOBAL = 0 }; /* refuses what could wait or allocate anywhere in the process */
    gpu_call(device.capture_begin(device.stream, GLOBAL), "begin capture");
}

void *gpu_capture_end(void) {
    void *graph = NULL, *exec = NULL;
    gpu_call(device.capture_end(device.stream, &graph), "end capture");
    gpu_call(device.instantiate(&exec, graph, 0), "instantiate");
    device.graph_destroy(graph);
    return exec;
}

void gpu_sync(void) {
    tamis_error error = {0};
    succeeded(tamis_cuda_stream_sync(device.cuda, device.stream, &error), &error, __LINE__);
}

void *gpu_new(int64_t bytes) {
    tamis_error error = {0};
    void *memory;
    assert_true(buffer_count < MAX_BUFFERS);
    succeeded(tamis_cuda_alloc(device.cuda, bytes > 0 ? bytes : 1, &memory, &error), &error,
              __LINE__);
    buffers[buffer_count++] = memory;
    return memory;
}

void gpu_write(void *to, const void *from, int64_t bytes) {
    tamis_error error = {0};
    succeeded(tamis_cuda_copy_in(device.cuda, to, from, bytes, device.stream, &error), &error,
              __LINE__);
    gpu_sync();
}

void gpu_read(void *to, const void *from, int64_t bytes) {
    tamis_error error = {0};
    succeeded(tamis_cuda_copy_out(device.cuda, to, from, bytes, device.stream, &error), &error,
              __LINE__);
    gpu_sync();
}

void *gpu_copy(const void *host, int64_t bytes) {
    if (host == NULL) {
        return NULL;
    }
    void *memory = gpu_new(bytes);
    gpu_write(memory, host, bytes);
    return memory;
}

void gpu_release(void) {
    while (buffer_count > 0) {
        tamis_cuda_free(device.cuda, buffers[--buffer_count], NULL);
    }
}

/* ---- K and queries whose scales lie close together, but for some ---- */

static void put_scales(uint8_t *scales, int odd) {
    const int base = 118 + (int)random_below(6);
    for (int g = 0; g < 4; g++) {
        scales[g] = (uint8_t)(base + random_below(4));
    }
    if (random_below(odd) == 0) { /* a wide one, a NaN, or the smallest there is */
        const uint8_t far[] = {255, 0, 60, 200};
        scales[random_below(4)] = far[random_below(4)];
    }
}

uint8_t *page_scales(const tamis_k_cache *c, int64_t slot) {
    uint8_t *page = c->codes + slot / c->page_size * c->stride;
    return page + c->page_size * 64 + slot % c->page_size * 4;
}

static layers *scaled_layers(shape s, const request *requests, int32_t count, int odd) {
    layers *l = layers_make(s, requests, count);
    for (int k = 0; k < 2; k++) {
        const tamis_k_cache *c = &l->keys[k].cache;
        for (int64_t i = 0; i < c->size * c->page_size; i++) {
            put_scales(page_scales(c, i), odd);
        }
    }
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        tamis_query *q = &l->query[layer];
        for (int64_t i = 0; layers_selects(layer) && i < l->batch.tokens * s.heads; i++) {
            uint8_t *row = (uint8_t *)(uintptr_t)q->scales + i / s.heads * q->scales_row_stride;
            put_scales(row + i % s.heads * q->scales_head_stride, 600);
        }
    }
    return l;
}

layers *close_layers(shape s, const request *requests, int32_t count) {
    return scaled_layers(s, requests, count, 90);
}

layers *closer_layers(shape s, const request *requests, int32_t count) {
    return scaled_layers(s, requests, count, 1 << 24);
}

/* ---- twins ---- */

/* Calls copy(host, bytes, place) for each array of the layers and the twin's pointer to it. */
static void each_array(twin *t, const layers *l,
                       void (*copy)(const void *host, int64_t bytes, void *place)) {
    int64_t requests = l->batch.requests, tokens = l->batch.tokens;
    copy(l->batch.context, requests * 8, &t->batch.context);
    copy(l->batch.query_start, (requests + 1) * 4, &t->batch.query_start);
    for (int k = 0; k < 2; k++) {
        const tamis_k_cache *c = &l->keys[k].cache;
        copy(l->batch.k_start[k], requests * 4, &t->batch.k_start[k]);
        copy(l->batch.page_table[k], requests * l->batch.page_table_stride[k] * 4,
             &t->batch.page_table[k]);
        copy(c->codes, c->size * c->stride, &t->cache[k].codes);
        copy(c->scales, c->size * c->scales_stride, &t->cache[k].scales);
    }
    for (int32_t i = 0; i < LAYERS; i++) {
        const tamis_query *q = &l->query[i];
        copy(q->codes, tokens * q->codes_row_stride, &t->query[i].codes);
        copy(q->scales, tokens * q->scales_row_stride, &t->query[i].scales);
        copy(q->weights, tokens * q->weights_row_stride * 4, &t->query[i].weights);
    }
}

static void make_array(const void *host, int64_t bytes, void *place) {
    void *made = gpu_copy(host, bytes);
    memcpy(place, &made, sizeof made);
}

static void fill_array(const void *host, int64_t bytes, void *place) {
    void *to;
    memcpy(&to, place, sizeof to);
    if (host != NULL) {
        gpu_write(to, host, bytes);
    }
}

twin twin_make(const layers *l) {
    twin t = {.l = l, .batch = l->batch};
    for (int k = 0; k < 2; k++) {
        t.cache[k] = l->keys[k].cache;
    }
    memcpy(t.query, l->query, sizeof t.query);
    each_array(&t, l, make_array);
    return t;
}

void twin_fill(twin *t, const layers *l) {
    t->l = l;
    each_array(t, l, fill_array);
}

tamis_plan_limits twin_limits(const layers *l, int64_t rows) {
    tamis_plan_limits limits;
    tamis_plan_limits_default(&limits);
    limits.max_requests = MAX_TEST_REQUESTS;
    limits.max_batched_tokens = (int32_t)(l->batch.tokens > 1 ? l->batch.tokens : 1);
    limits.draft_tokens = DRAFTS;
    limits.largest_graph = (int32_t)rows;
    limits.max_context = 1;
    for (int32_t i = 0; i < l->batch.requests; i++) {
        limits.max_context =
            l->context[i] > limits.max_context ? l->context[i] : limits.max_context;
    }
    return limits;
}

static const tamis_auto_band both = {.to = BORDER, .mixed = 1};

tamis_cuda_plan *twin_plan(const twin *t, const tamis_indexer *indexer, int64_t rows,
                           int64_t max_context) {
    tamis_plan_limits limits = twin_limits(t->l, rows);
    limits.max_context = max_context ? max_context : limits.max_context;
    tamis_error error = {0};
    tamis_cuda_plan *plan;
    int64_t bytes = tamis_cuda_plan_bytes(indexer, &limits, &error);
    assert_true(bytes > 0);
    void *memory = gpu_copy(fresh(bytes), bytes);
    succeeded(tamis_cuda_plan_create(device.cuda, indexer, &limits, memory, bytes, device.stream,
                                     &plan, &error),
              &error, __LINE__);
    plan->band = &both;
    return plan;
}

tamis_step twin_step(tamis_cuda_plan *plan, const twin *t) {
    tamis_step step;
    tamis_error error = {0};
    succeeded(tamis_cuda_step_make(plan, &t->batch, &step, device.stream, &error), &error,
              __LINE__);
    return step;
}

/* ---- outcomes ---- */

outcome gpu_outcome(const layers *l, int32_t layer, int64_t rows) {
    outcome o = outcome_make(l, layer, rows);
    tamis_selection *s = &o.selection;
    s->positions = gpu_copy(s->positions, rows * s->positions_stride * 4);
    s->slots = gpu_copy(s->slots, rows * s->slots_stride * 8);
    s->scores = gpu_copy(s->scores, rows * s->scores_stride * 4);
    s->counts = gpu_copy(s->counts, rows * 4);
    o.blocks = gpu_copy(o.blocks, rows * o.blocks_stride * 4);
    return o;
}

void gpu_poison(const layers *l, int32_t layer, const outcome *o) {
    outcome host = outcome_make(l, layer, o->rows);
    const tamis_selection *s = &o->selection;
    gpu_write(s->positions, host.selection.positions, o->rows * s->positions_stride * 4);
    gpu_write(s->slots, host.selection.slots, o->rows * s->slots_stride * 8);
    gpu_write(s->scores, host.selection.scores, o->rows * s->scores_stride * 4);
    gpu_write(s->counts, host.selection.counts, o->rows * 4);
    if (o->blocks) {
        gpu_write(o->blocks, host.blocks, o->rows * o->blocks_stride * 4);
    }
}

outcome gpu_pull(const layers *l, int32_t layer, const outcome *o) {
    outcome host = outcome_make(l, layer, o->rows);
    tamis_selection *s = &host.selection;
    gpu_read(s->positions, o->selection.positions, o->rows * s->positions_stride * 4);
    gpu_read(s->slots, o->selection.slots, o->rows * s->slots_stride * 8);
    gpu_read(s->scores, o->selection.scores, o->rows * s->scores_stride * 4);
    gpu_read(s->counts, o->selection.counts, o->rows * 4);
    if (o->blocks) {
        gpu_read(host.blocks, o->blocks, o->rows * host.blocks_stride * 4);
    }
    return host;
}

outcome outcome_nothing(const layers *l, int32_t layer, int64_t rows) {
    outcome o = outcome_make(l, layer, rows);
    tamis_selection *s = &o.selection;
    for (int64_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < s->topk; c++) {
            s->positions[r * s->positions_stride + c] = -1;
            s->slots[r * s->slots_stride + c] = -1;
            s->scores[r * s->scores_stride + c] = float_of(0xFF800000u);
        }
        s->counts[r] = 0;
        for (int32_t c = 0; o.blocks && c < l->shape.topk_blocks; c++) {
            o.blocks[r * o.blocks_stride + c] = -1;
        }
    }
    return o;
}

void twin_queue(tamis_cuda_plan *plan, const tamis_step *step, const twin *t, int32_t layer,
                const outcome *on_device) {
    tamis_error error = {0};
    tamis_layer_args args = layers_args(t->l, layer, on_device);
    args.k = t->cache[t->l->ratios[layer] - 1];
    args.query = t->query[layer];
    if (layers_consumes(t->l, layer)) {
        succeeded(tamis_cuda_consumer_run(plan, step, &args, device.stream, &error), &error,
                  __LINE__);
    } else {
        succeeded(tamis_cuda_source_run(plan, step, &args, device.stream, &error), &error,
                  __LINE__);
    }
}

/* ---- a plan and its twin ---- */

scene scene_make(layers *l, int64_t padding, int32_t sparse_logits, int64_t max_context) {
    scene s = {.l = l, .rows = l->batch.tokens + padding};
    l->batch.padded_rows = s.rows;
    s.indexer = layers_indexer(l, "auto", sparse_logits);
    s.cpu = layers_plan(l, s.indexer, 1, s.rows);
    s.t = twin_make(l);
    s.plan = twin_plan(&s.t, s.indexer, s.rows, max_context);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            s.out[layer] = gpu_outcome(l, layer, s.rows);
        }
    }
    return s;
}

void scene_end(scene *s) {
    tamis_cuda_plan_destroy(s->plan);
    tamis_indexer_destroy(s->indexer);
    gpu_release();
    release();
}

void scene_expect(const scene *s, const layers *l, const tamis_batch *batch, outcome *want) {
    static const way whole = {1, 0, NULL};
    tamis_step step = layers_step(s->cpu, batch);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            want[layer] = outcome_make(l, layer, s->rows);
            layers_run(s->cpu, &step, l, layer, whole, &want[layer]);
        }
    }
}

void scene_run(scene *s, const tamis_step *step, int32_t layer) {
    gpu_poison(s->l, layer, &s->out[layer]);
    twin_queue(s->plan, step, &s->t, layer, &s->out[layer]);
    gpu_sync();
}

void scene_holds(const scene *s, int32_t layer, const outcome *want, const char *what) {
    char text[100];
    outcome got = gpu_pull(s->l, layer, &s->out[layer]);
    snprintf(text, sizeof text, "%s, layer %d", what, layer);
    outcome_same(&got, want, text);
}

void scene_queue(const scene *s, const tamis_step *step) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            twin_queue(s->plan, step, &s->t, layer, &s->out[layer]);
        }
    }
}

void scene_poison(const scene *s) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            gpu_poison(s->l, layer, &s->out[layer]);
        }
    }
}

void scene_replay(const scene *s, void *exec) {
    scene_poison(s);
    gpu_call(device.graph_launch(exec, device.stream), "graph launch");
    gpu_sync();
}

void scene_holds_all(const scene *s, const outcome *want, const char *what) {
    gpu_sync();
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            scene_holds(s, layer, &want[layer], what);
        }
    }
    assert_int_equal(tamis_cuda_plan_status(s->plan), TAMIS_CUDA_PLAN_GOOD);
}

tamis_batch scene_lengths(scene *s, const int64_t *context, const int32_t *query_start) {
    tamis_batch batch = s->l->batch;
    gpu_write((void *)(uintptr_t)s->t.batch.context, context, batch.requests * 8);
    gpu_write((void *)(uintptr_t)s->t.batch.query_start, query_start, (batch.requests + 1) * 4);
    batch.context = context;
    batch.query_start = query_start;
    batch.tokens = query_start[batch.requests];
    return batch;
}

int gpu_main(const struct CMUnitTest *list, int count, const char *program, int argc, char **argv) {
    for (int i = 0; argc == 2 && i < count; i++) {
        if (strcmp(list[i].name, argv[1]) == 0) {
            const struct CMUnitTest one[] = {list[i]};
            gpu_open();
            int failed = cmocka_run_group_tests(one, NULL, NULL);
            gpu_close();
            return failed;
        }
    }
    fprintf(stderr, "usage: %s NAME\n", program);
    return 2;
}
