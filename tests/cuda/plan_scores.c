/* SPDX-License-Identifier: MIT */
/*
 * plan_scores.c: consumers by page tables wider than the border of `auto`, where only the device
 * knows whether rows take the dense route, how long those are and how many share the scratch of
 * their scores: the bytes of plans on the CPU, whatever a graph's replays make of them. In scratch
 * far smaller than a plan's own few rows take many tiles. gpu_plan_scores NAME runs one of: few,
 * pages, general, rows, between, graph.
 */
#include "plan_device.h"

enum { REQUESTS = 4 };

static const request largest[REQUESTS] = {{3000, 300}, {3000, 200}, {3000, 160}, {3000, 140}},
                     small[REQUESTS] = {{700, 20}, {700, 12}, {700, 6}, {700, 2}};

/* Lengths of a step. All requests have rows enough for decoded K, or none has. */
typedef struct lengths {
    int64_t context[REQUESTS];
    int32_t starts[REQUESTS + 1];
} lengths;

/* The border is at 480 positions. */
static const lengths steps[] = {
    {{300, 200, 160, 140}, {0, 300, 500, 660, 800}},     /* short */
    {{100, 99, 127, 40}, {0, 100, 199, 326, 366}},       /* without decoded K */
    {{3000, 3000, 3000, 3000}, {0, 300, 500, 660, 800}}, /* all listed */
    {{0}, {0}},                                          /* nothing */
    {{700, 480, 160, 500}, {0, 300, 500, 660, 800}},     /* across the border */
    {{480, 20, 9, 127}, {0, 1, 21, 30, 157}},            /* one long row of the dense route */
    {{2000, 0, 90, 130}, {0, 3, 3, 90, 200}},            /* one request listed, others short */
};

/* Few enough for compute-sanitizer's tools. */
static const lengths few_steps[] = {
    {{30, 20, 10, 5}, {0, 20, 32, 38, 40}},
    {{490, 480, 20, 2}, {0, 20, 32, 38, 40}},
    {{0}, {0}},
    {{700, 12, 9, 700}, {0, 3, 15, 15, 17}},
};

/* Scratch of `rows` rows that are as long as any of the dense route, and room for the decoded K of
 * one or two requests, which few scores fit beside. */
static void shrink(scene *s, int64_t rows) {
    enum { DECODED = 512 };
    const int64_t longest = tamis_cuda_dense_longest(s->indexer, &s->plan->limits);
    const int64_t bytes = tamis_cuda_dense_tiling(s->plan, longest).each * rows;
    assert_true(bytes <= s->plan->work_bytes);
    s->plan->work_bytes = bytes;
    s->plan->raised_capacity = tamis_least(s->plan->raised_capacity, DECODED);
}

/* Positions at the end of their room that hold decoded K of a layer that sees every 2^shift-th. */
static uint32_t decoded_of(const scene *s, const lengths *of, int32_t shift) {
    int64_t end = 0, placed = 0;
    for (int i = 0; i < REQUESTS; i++) {
        const int64_t fresh_rows = of->starts[i + 1] - of->starts[i];
        const int64_t blind = shift - (of->context[i] - fresh_rows); /* rows that see nothing */
        const int64_t padded = ((of->context[i] >> shift) + 63) / 64 * 64;
        if (fresh_rows - (blind > 0 ? blind : 0) >= TAMIS_RAISED_ROWS &&
            padded <= s->plan->raised_capacity) {
            end += padded;
            placed = end <= s->plan->raised_capacity ? end : placed;
        }
    }
    return s->plan->raised.codes ? (uint32_t)placed : 0;
}

/* What the gates of the step's consumers had to find. */
static void check_routes(const scene *s, const lengths *of) {
    const tamis_dense_rows rows = tamis_cuda_dense_rows(s->plan, 0, INT32_MAX);
    tamis_routes want = {0}, got;
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (!layers_selects(layer) || !layers_consumes(s->l, layer)) {
            continue;
        }
        const int32_t shift = s->l->ratios[layer] - 1;
        const uint32_t decoded = decoded_of(s, of, shift);
        want.decoded = decoded > want.decoded ? decoded : want.decoded;
        for (int i = 0; i < REQUESTS; i++) {
            const int32_t fresh_rows = of->starts[i + 1] - of->starts[i];
            for (int32_t r = 0; r < fresh_rows; r++) {
                const int64_t length = (of->context[i] - fresh_rows + r + 1) >> shift;
                const int dense = length <= rows.most && (length == 0 || length > rows.above);
                want.longest = dense && length > want.longest ? (uint32_t)length : want.longest;
                want.listed |= !dense;
            }
        }
    }
    gpu_read(&got, s->plan->routes, sizeof got);
    assert_int_equal(got.longest, want.longest);
    assert_int_equal(got.listed, want.listed);
    assert_int_equal(got.decoded, want.decoded);
}

/* Of every scene; NULL: twin_plan's. */
static const tamis_auto_band *band;

static scene scene_of(shape sizes, const request *requests, int32_t mode, int64_t rows) {
    layers *l = sizes.heads == 32 && sizes.page_size ? close_layers(sizes, requests, REQUESTS)
                                                     : layers_make(sizes, requests, REQUESTS);
    scene s = scene_make(l, 3, mode, 1 << 15);
    shrink(&s, rows);
    s.plan->band = band ? band : s.plan->band;
    return s;
}

static void on(shape sizes, const request *requests, const lengths *list, int count, int64_t rows) {
    for (int32_t mode = TAMIS_SPARSE_OFF; mode <= TAMIS_SPARSE_AUTO;
         mode += TAMIS_SPARSE_AUTO - TAMIS_SPARSE_OFF) {
        seed(400 + (uint64_t)rows);
        scene s = scene_of(sizes, requests, mode, rows);
        for (int i = 0; i < count; i++) {
            outcome want[LAYERS];
            char text[60];
            tamis_batch batch = scene_lengths(&s, list[i].context, list[i].starts);
            scene_expect(&s, s.l, &batch, want);
            scene_poison(&s);
            tamis_step step = twin_step(s.plan, &s.t);
            scene_queue(&s, &step);
            snprintf(text, sizeof text, "mode %d, %d rows fit, lengths %d", mode, (int)rows, i);
            scene_holds_all(&s, want, text);
            check_routes(&s, &list[i]);
        }
        scene_end(&s);
    }
}

static void on_lengths(shape sizes, int64_t rows) {
    on(sizes, largest, steps, COUNT(steps), rows);
}

static void few(void **state) {
    static const shape sizes = {TAMIS_K_MXFP4_PAGE,  64, 32, 128, 48, 40, 8, 1,
                                TAMIS_NUMERICS_EXACT};
    (void)state;
    on(sizes, small, few_steps, COUNT(few_steps), 9);
}

/* Hopper's kernels where the device has them, and the portable fast ones. */
static void pages(void **state) {
    static const shape sizes = {TAMIS_K_MXFP4_PAGE,  64, 32, 128, 48, 40, 8, 1,
                                TAMIS_NUMERICS_EXACT};
    (void)state;
    on_lengths(sizes, 9);
    on_lengths(sizes, 150);
}

static void general(void **state) {
    static const shape sizes = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 20, 16, 2, TAMIS_NUMERICS_BF16};
    (void)state;
    on_lengths(sizes, 40);
}

static void rows(void **state) {
    static const shape sizes = {TAMIS_K_MXFP4_SPLIT, 0, 32, 128, 20, 40, 8, 1,
                                TAMIS_NUMERICS_EXACT};
    (void)state;
    on_lengths(sizes, 1);
}

/* Short rows take listed blocks, too: from 160 positions down. */
static void between(void **state) {
    static const shape sizes = {TAMIS_K_MXFP4_PAGE,  64, 32, 128, 48, 40, 8, 1,
                                TAMIS_NUMERICS_EXACT};
    static const tamis_auto_band longer = {.from = 4, .to = BORDER, .mixed = 1};
    (void)state;
    band = &longer;
    on_lengths(sizes, 60);
    band = NULL;
}

/* One graph, captured over no rows, whose every replay makes other tiles. */
static void graph(void **state) {
    static const shape sizes = {TAMIS_K_MXFP4_PAGE,  64, 32, 128, 48, 40, 8, 1,
                                TAMIS_NUMERICS_EXACT};
    static const lengths none = {{0}, {0}};
    (void)state;
    seed(420);
    scene s = scene_of(sizes, largest, TAMIS_SPARSE_AUTO, 60);
    scene_lengths(&s, none.context, none.starts);
    gpu_capture_begin();
    tamis_step step = twin_step(s.plan, &s.t);
    scene_queue(&s, &step);
    void *exec = gpu_capture_end();
    for (int i = 0; i < COUNT(steps); i++) {
        outcome want[LAYERS];
        char text[60];
        tamis_batch batch = scene_lengths(&s, steps[i].context, steps[i].starts);
        scene_expect(&s, s.l, &batch, want);
        scene_replay(&s, exec);
        snprintf(text, sizeof text, "replay over lengths %d", i);
        scene_holds_all(&s, want, text);
        check_routes(&s, &steps[i]);
    }
    device.exec_destroy(exec);
    scene_end(&s);
}

static const struct CMUnitTest list[] = {cmocka_unit_test(few),     cmocka_unit_test(pages),
                                         cmocka_unit_test(general), cmocka_unit_test(rows),
                                         cmocka_unit_test(between), cmocka_unit_test(graph)};

int main(int argc, char **argv) {
    return gpu_main(list, COUNT(list), "gpu_plan_scores", argc, argv);
}
