/* SPDX-License-Identifier: MIT */
/*
 * plan_guard.c: what a device plan guards where no host can look: stamps, rows of other steps,
 * hostile lengths, graphs replayed with other lengths, tables and contents, and that runs only
 * launch. gpu_plan_guard NAME runs one of: stamps, other_rows, graph, hostile, quiet,
 * events.
 */
#include "plan_device.h"

static const request some[] = {{150, 1}, {203, 4}, {96, 20}, {1, 1}, {64, 9}};
static const shape small = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};
/* Whose consumers are one kernel that does the gate's work, where all rows are listed. */
static const shape fast = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 16, 8, 8, 1, TAMIS_NUMERICS_EXACT};

static int does_gate(const scene *s, int32_t layer) {
    return layers_consumes(s->l, layer) && s->l->shape.heads == fast.heads &&
           s->indexer->sparse_logits == TAMIS_SPARSE_ON;
}

/* The layer wrote -1 alone, and the status says why, until it is cleared. */
static void nothing(scene *s, int32_t layer, uint32_t fault, const char *what) {
    outcome want = outcome_nothing(s->l, layer, s->rows);
    scene_holds(s, layer, &want, what);
    assert_int_equal(tamis_cuda_plan_status(s->plan), fault | (uint32_t)layer << 8);
    tamis_cuda_plan_clear(s->plan);
    assert_int_equal(tamis_cuda_plan_status(s->plan), 0);
}

static void stale(scene *s, const tamis_step *step, const char *what) {
    scene_run(s, step, LAYER_CONSUMER);
    nothing(s, LAYER_CONSUMER, TAMIS_CUDA_PLAN_STALE_BLOCKS, what);
}

static void good(scene *s, const tamis_step *step, const outcome *want, const char *what) {
    scene_run(s, step, LAYER_CONSUMER + 1);
    scene_holds(s, LAYER_CONSUMER + 1, &want[LAYER_CONSUMER + 1], what);
    assert_int_equal(tamis_cuda_plan_status(s->plan), 0);
}

/* A stamp forged on the device, put back afterwards. */
static void forged(scene *s, const tamis_step *step, const tamis_device_stamp *stamp,
                   const char *what) {
    tamis_device_stamp kept;
    gpu_read(&kept, s->plan->stamp, sizeof kept);
    gpu_write(s->plan->stamp, stamp, sizeof *stamp);
    stale(s, step, what);
    gpu_write(s->plan->stamp, &kept, sizeof kept);
}

static void forgeries(scene *s, const tamis_step *step) {
    tamis_device_stamp stamp, other;
    gpu_read(&stamp, s->plan->stamp, sizeof stamp);
    other = stamp;
    other.layer = LAYER_FULL;
    forged(s, step, &other, "blocks of another layer");
    other = stamp;
    other.rows--;
    forged(s, step, &other, "blocks of other rows");
    other = stamp;
    other.serial--;
    forged(s, step, &other, "blocks of another step");
    other = stamp;
    other.k_size++;
    forged(s, step, &other, "blocks of a larger cache");
}

static void stamps_in(shape sizes, int32_t mode) {
    outcome want[LAYERS];
    seed(7);
    scene s = scene_make(layers_make(sizes, some, COUNT(some)), 3, mode, 0);
    scene_expect(&s, s.l, &s.l->batch, want);
    tamis_step step = twin_step(s.plan, &s.t);
    stale(&s, &step, "before the publish");
    scene_run(&s, &step, LAYER_FULL);
    stale(&s, &step, "after a full layer");
    scene_run(&s, &step, LAYER_SOURCE);
    good(&s, &step, want, "after the publish");
    forgeries(&s, &step);
    good(&s, &step, want, "with its own stamp again");
    step = twin_step(s.plan, &s.t);
    stale(&s, &step, "after a new step");
    scene_run(&s, &step, LAYER_SOURCE);
    good(&s, &step, want, "after its publish");
    scene_run(&s, &step, LAYER_SOURCE);
    assert_int_equal(tamis_cuda_plan_status(s.plan),
                     TAMIS_CUDA_PLAN_PUBLISHED_TWICE | LAYER_SOURCE << 8);
    scene_run(&s, &step, LAYER_CONSUMER); /* the first fault stays */
    assert_int_equal(tamis_cuda_plan_status(s.plan),
                     TAMIS_CUDA_PLAN_PUBLISHED_TWICE | LAYER_SOURCE << 8);
    tamis_cuda_plan_clear(s.plan);
    stale(&s, &step, "after a second publish");
    step = twin_step(s.plan, &s.t);
    scene_run(&s, &step, LAYER_SOURCE);
    good(&s, &step, want, "in a good step again");
    scene_end(&s);
}

static void stamps(void **state) {
    (void)state;
    for (int32_t mode = TAMIS_SPARSE_OFF; mode <= TAMIS_SPARSE_AUTO; mode++) {
        stamps_in(small, mode);
    }
    stamps_in(fast, TAMIS_SPARSE_ON);
}

/* ---- graphs ---- */

/* Layers captured without their step, replayed under one of fewer rows. */
static void other_rows_in(shape sizes) {
    outcome want[LAYERS];
    seed(8);
    scene s = scene_make(layers_make(sizes, some, COUNT(some)), 5, TAMIS_SPARSE_ON, 0);
    scene_expect(&s, s.l, &s.l->batch, want);
    tamis_step step = twin_step(s.plan, &s.t);
    gpu_capture_begin();
    scene_queue(&s, &step);
    void *exec = gpu_capture_end();
    scene_replay(&s, exec);
    scene_holds(&s, LAYER_CONSUMER, &want[LAYER_CONSUMER], "under its own step");
    s.t.batch.padded_rows -= 2;
    twin_step(s.plan, &s.t);
    scene_replay(&s, exec);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            outcome none = outcome_nothing(s.l, layer, s.rows);
            scene_holds(&s, layer, &none, "under a step of other rows");
        }
    }
    nothing(&s, LAYER_FULL, TAMIS_CUDA_PLAN_OTHER_ROWS, "the first layer is named");
    s.t.batch.padded_rows += 2;
    step = twin_step(s.plan, &s.t);
    scene_replay(&s, exec);
    scene_holds(&s, LAYER_CONSUMER, &want[LAYER_CONSUMER], "under a step of its rows again");
    device.exec_destroy(exec);
    scene_end(&s);
}

static void other_rows(void **state) {
    (void)state;
    other_rows_in(small);
    other_rows_in(fast);
}

/* What a consumer's rows see on each route: all of it on one, by the length of the batch. */
static void check_routes(const scene *s, const layers *l, const tamis_batch *batch) {
    const shape *sizes = &l->shape;
    int64_t border = s->plan->longest, bytes = s->rows * 4;
    int32_t k = sizes->source_ratio - 1, *ks = fresh(bytes), *sparse = fresh(bytes),
            *dense = fresh(bytes);
    if (does_gate(s, LAYER_CONSUMER)) {
        return;
    }
    if (s->indexer->sparse_logits == TAMIS_SPARSE_AUTO) {
        border = (int64_t)sizes->topk_blocks * sizes->block / TAMIS_CUDA_AUTO_PARTS * BORDER;
    }
    gpu_read(ks, s->plan->ks[k], bytes);
    gpu_read(sparse, s->plan->gated[0], bytes);
    gpu_read(dense, s->plan->gated[1], bytes);
    for (int32_t i = 0; i < batch->requests; i++) {
        for (int32_t r = batch->query_start[i]; r < batch->query_start[i + 1]; r++) {
            int64_t tokens = batch->context[i] - (batch->query_start[i + 1] - r) + 1;
            int64_t visible = tokens / sizes->source_ratio;
            int is_dense = s->indexer->sparse_logits != TAMIS_SPARSE_ON && visible <= border;
            assert_int_equal(sparse[r] - ks[r], is_dense ? 0 : visible);
            if (s->indexer->sparse_logits != TAMIS_SPARSE_ON) {
                assert_int_equal(dense[r] - ks[r], is_dense ? visible : 0);
            }
        }
    }
}

static void replay_as(scene *s, void *exec, const layers *l, const tamis_batch *batch,
                      const char *what) {
    outcome want[LAYERS];
    char text[80];
    scene_expect(s, l, batch, want);
    scene_replay(s, exec);
    check_routes(s, l, batch);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            snprintf(text, sizeof text, "%s, layer %d", what, layer);
            scene_holds(s, layer, &want[layer], text);
        }
    }
    assert_int_equal(tamis_cuda_plan_status(s->plan), 0);
}

/* A whole step in one graph: captured at 10 positions, with lengths of nothing, or over bits that
 * mean nothing; replayed at 100,000, at 0, and over other K, tables and queries. */
static void graph_in(shape sizes, int32_t mode, int from) {
    static const request long_ones[] = {{100000, 2}, {17000, 1}, {99989, 5}, {40, 4}};
    static const int64_t ten[] = {10, 10, 9, 10}, zero[4] = {0};
    static const int32_t ten_starts[] = {0, 2, 3, 8, 12}, zero_starts[5] = {0};
    enum { REQUESTS = 4 };
    seed(9);
    layers *first = layers_make(sizes, long_ones, REQUESTS);
    seed(10); /* the same sizes, other bits */
    layers *second = layers_make(sizes, long_ones, REQUESTS);
    second->batch.padded_rows = second->batch.tokens + 3;
    scene s = scene_make(first, 3, mode, 0);
    if (from == 10) {
        scene_lengths(&s, ten, ten_starts);
    } else if (from == 0) {
        scene_lengths(&s, zero, zero_starts);
    } else {
        int64_t context[REQUESTS];
        int32_t starts[REQUESTS + 1];
        random_bytes(context, sizeof context);
        random_bytes(starts, sizeof starts);
        scene_lengths(&s, context, starts);
    }
    gpu_capture_begin();
    tamis_step step = twin_step(s.plan, &s.t);
    scene_queue(&s, &step);
    void *exec = gpu_capture_end();
    tamis_batch batch = scene_lengths(&s, first->context, first->query_start);
    replay_as(&s, exec, first, &batch, "at 100,000");
    batch = scene_lengths(&s, ten, ten_starts);
    replay_as(&s, exec, first, &batch, "at 10");
    batch = scene_lengths(&s, zero, zero_starts);
    replay_as(&s, exec, first, &batch, "at 0");
    if (sizes.page_size) { /* without pages K has as many rows as the seed gave it */
        twin_fill(&s.t, second);
        replay_as(&s, exec, second, &second->batch, "other contents");
    }
    device.exec_destroy(exec);
    scene_end(&s);
}

static void graph(void **state) {
    shape s = {TAMIS_K_MXFP4_PAGE, 64, 4, 64, 64, 300, 8, 1, TAMIS_NUMERICS_EXACT};
    (void)state;
    graph_in(s, TAMIS_SPARSE_ON, 10);
    graph_in(s, TAMIS_SPARSE_OFF, 0);
    graph_in(s, TAMIS_SPARSE_AUTO, -1);
    graph_in(s, TAMIS_SPARSE_AUTO, 10);
    graph_in(fast, TAMIS_SPARSE_ON, -1);
    s.layout = TAMIS_K_MXFP4_SPLIT;
    s.page_size = 0;
    s.source_ratio = 2;
    graph_in(s, TAMIS_SPARSE_ON, -1);
    graph_in(s, TAMIS_SPARSE_AUTO, 0);
}

/* ---- hostile: any bits in contexts, query starts and K starts ---- */

static void well_formed(const scene *s, int32_t layer, const int32_t *lengths) {
    outcome got = gpu_pull(s->l, layer, &s->out[layer]);
    outcome clean = outcome_make(s->l, layer, s->rows);
    const tamis_selection *o = &got.selection;
    for (int64_t r = 0; r < s->rows; r++) {
        const int32_t *row = o->positions + r * o->positions_stride;
        assert_in_range(o->counts[r], 0, o->topk);
        for (int32_t c = 0; c < o->topk; c++) {
            if (c < o->counts[r]) {
                assert_true(row[c] > (c ? row[c - 1] : -1) && row[c] < lengths[r]);
            } else {
                assert_int_equal(row[c], -1);
            }
        }
        int64_t width = o->positions_stride - o->topk;
        assert_memory_equal(row + o->topk, clean.selection.positions, width * 4);
    }
}

/* Page ids are trusted, so every entry of the tables has to be one. */
static void fill_tables(const scene *s) {
    for (int k = 0; k < 2; k++) {
        int64_t entries = s->t.batch.requests * s->t.batch.page_table_stride[k];
        int32_t *ids = fresh(entries * 4);
        for (int64_t i = 0; i < entries; i++) {
            ids[i] = (int32_t)random_below(s->t.cache[k].size);
        }
        gpu_write((void *)(uintptr_t)s->t.batch.page_table[k], ids, entries * 4);
    }
}

/* Positions that rows saw in the layer that ran, by the gate's arrays, or by the step's. */
static void lengths_of(const scene *s, int32_t layer, const int32_t *ks, int32_t *lengths) {
    const int k = s->l->ratios[layer] - 1;
    const int64_t limit = s->t.batch.page_table_width[k] * s->l->shape.page_size;
    int32_t *dense = fresh(s->rows * 4);
    if (does_gate(s, layer)) {
        gpu_read(lengths, s->plan->ke[k], s->rows * 4);
        for (int64_t r = 0; r < s->rows; r++) {
            lengths[r] = lengths[r] < limit ? lengths[r] : (int32_t)limit;
        }
        return;
    }
    gpu_read(lengths, s->plan->gated[0], s->rows * 4);
    gpu_read(dense, s->plan->gated[1], s->rows * 4);
    for (int64_t r = 0; r < s->rows; r++) {
        int32_t end = lengths[r];
        if (layers_consumes(s->l, layer) && s->indexer->sparse_logits != TAMIS_SPARSE_ON) {
            end = dense[r] > end ? dense[r] : end;
        }
        lengths[r] = end - ks[r];
    }
}

static void hostile_in(shape sizes, int32_t mode, int rounds) {
    seed(11);
    scene s = scene_make(layers_make(sizes, some, COUNT(some)), 4, mode, 0);
    int32_t *ks = fresh(s.rows * 4), *lengths = fresh(s.rows * 4);
    if (sizes.page_size) {
        fill_tables(&s);
    }
    for (int i = 0; i < rounds; i++) {
        int64_t context[COUNT(some)];
        int32_t starts[COUNT(some) + 1], k_start[COUNT(some)];
        random_bytes(context, sizeof context);
        random_bytes(starts, sizeof starts);
        random_bytes(k_start, sizeof k_start);
        for (int j = 0; j < COUNT(some) && i % 2; j++) { /* plausible ones, out of order */
            context[j] = random_below(400) - 50;
            starts[j] = (int32_t)random_below(50) - 5;
            k_start[j] = (int32_t)random_below(3000) - 100;
        }
        gpu_write((void *)(uintptr_t)s.t.batch.context, context, sizeof context);
        gpu_write((void *)(uintptr_t)s.t.batch.query_start, starts, sizeof starts);
        for (int k = 0; k < 2 && sizes.layout != TAMIS_K_MXFP4_PAGE; k++) {
            gpu_write((void *)(uintptr_t)s.t.batch.k_start[k], k_start, sizeof k_start);
        }
        tamis_step step = twin_step(s.plan, &s.t);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            if (layers_selects(layer)) {
                int k = s.l->ratios[layer] - 1;
                scene_run(&s, &step, layer);
                gpu_read(ks, s.plan->ks[k], s.rows * 4);
                lengths_of(&s, layer, ks, lengths);
                well_formed(&s, layer, lengths);
            }
        }
        assert_int_equal(tamis_cuda_plan_status(s.plan), 0);
    }
    scene_end(&s);
}

static void hostile(void **state) {
    shape s = small;
    (void)state;
    hostile_in(s, TAMIS_SPARSE_ON, 12);
    hostile_in(s, TAMIS_SPARSE_OFF, 6);
    hostile_in(s, TAMIS_SPARSE_AUTO, 12);
    hostile_in(fast, TAMIS_SPARSE_ON, 12);
    s.layout = TAMIS_K_MXFP4_SPLIT;
    s.page_size = 0;
    hostile_in(s, TAMIS_SPARSE_ON, 12);
    hostile_in(s, TAMIS_SPARSE_AUTO, 12);
    s.layout = TAMIS_K_MXFP4_ROW;
    hostile_in(s, TAMIS_SPARSE_OFF, 6);
}

/* ---- quiet ---- */

static int noise;
static tamis_cu_result noisy(void) {
    noise++;
    return TAMIS_CU_SUCCESS;
}

/* Steps and runs use two entries of the driver; every other one counts its calls. */
static void quiet(void **state) {
    (void)state;
    seed(12);
    scene s = scene_make(layers_make(small, some, COUNT(some)), 0, TAMIS_SPARSE_ON, 0);
    tamis_driver *driver = &device.cuda->driver, kept = *driver;
    tamis_cu_result (*counter)(void) = noisy;
    size_t before = 0, after = 0, total = 0;
    gpu_sync();
    device.memory_info(&before, &total);
#define COUNT_FIELD(field, symbol, arguments) memcpy(&driver->field, &counter, sizeof counter);
    TAMIS_DRIVER_LIST(COUNT_FIELD)
    TAMIS_DRIVER_OPTIONAL_LIST(COUNT_FIELD)
#undef COUNT_FIELD
    driver->launch = kept.launch;
    driver->context_get = kept.context_get;
    tamis_step step = twin_step(s.plan, &s.t);
    scene_queue(&s, &step);
    *driver = kept;
    gpu_sync();
    device.memory_info(&after, &total);
    assert_int_equal(noise, 0);
    assert_int_equal(before, after);
    scene_end(&s);
}

/* The time between two marks is that of the work between them. */
static void events(void **state) {
    void *from, *to;
    float some_time = -1, none = -1;
    tamis_error e = {0};
    (void)state;
    seed(13);
    scene s = scene_make(layers_make(small, some, COUNT(some)), 0, TAMIS_SPARSE_ON, 0);
    succeeded(tamis_cuda_event_create(device.cuda, &from, &e), &e, __LINE__);
    succeeded(tamis_cuda_event_create(device.cuda, &to, &e), &e, __LINE__);
    succeeded(tamis_cuda_event_record(device.cuda, from, device.stream, &e), &e, __LINE__);
    succeeded(tamis_cuda_event_elapsed(device.cuda, from, from, &none, &e), &e, __LINE__);
    succeeded(tamis_cuda_event_record(device.cuda, from, device.stream, &e), &e, __LINE__);
    tamis_step step = twin_step(s.plan, &s.t);
    scene_queue(&s, &step);
    succeeded(tamis_cuda_event_record(device.cuda, to, device.stream, &e), &e, __LINE__);
    succeeded(tamis_cuda_event_elapsed(device.cuda, from, to, &some_time, &e), &e, __LINE__);
    assert_true(none == 0 && some_time > 0 && some_time < 10000);
    assert_int_equal(tamis_cuda_event_elapsed(device.cuda, from, to, NULL, &e),
                     TAMIS_ERROR_ARGUMENT);
    succeeded(tamis_cuda_event_destroy(device.cuda, from, &e), &e, __LINE__);
    succeeded(tamis_cuda_event_destroy(device.cuda, to, &e), &e, __LINE__);
    succeeded(tamis_cuda_event_destroy(device.cuda, NULL, &e), &e, __LINE__);
    scene_end(&s);
}

static const struct CMUnitTest list[] = {
    cmocka_unit_test(stamps),  cmocka_unit_test(other_rows), cmocka_unit_test(graph),
    cmocka_unit_test(hostile), cmocka_unit_test(quiet),      cmocka_unit_test(events),
};

int main(int argc, char **argv) {
    return gpu_main(list, COUNT(list), "gpu_plan_guard", argc, argv);
}
