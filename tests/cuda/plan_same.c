/* SPDX-License-Identifier: MIT */
/*
 * plan_same.c: device plans against plans on the CPU: the same bytes from every layer, padding of
 * rows included. gpu_plan_same NAME runs one of: pages, rows, one_level, dense, pool, routes,
 * padding, released, tiles.
 */
#include "plan_device.h"

static const request mixed[] = {{150, 1}, {70, 0},  {203, 4}, {1, 1},   {37, 37},
                                {301, 3}, {96, 20}, {0, 0},   {130, 2}, {64, 9}};

static const shape shapes[] = {
    {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 24, 8, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_PAGE, 64, 4, 64, 40, 6, 8, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_PAGE, 48, 8, 64, 12, 13, 16, 2, TAMIS_NUMERICS_BF16},
    {TAMIS_K_MXFP4_PAGE, 32, 12, 128, 60, 5, 16, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 4, 4, 8, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_PAGE, 32, 64, 128, 8, 3, 8, 2, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_SPLIT, 0, 4, 64, 16, 24, 8, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_SPLIT, 0, 4, 128, 40, 6, 8, 2, TAMIS_NUMERICS_BF16},
    {TAMIS_K_MXFP4_ROW, 0, 4, 64, 12, 13, 16, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_ROW, 0, 36, 64, 56, 8, 8, 2, TAMIS_NUMERICS_EXACT},
};
enum { PAGED = 6 }; /* of the shapes */

static void compare_layer(tamis_plan *cpu, const tamis_step *cpu_step, tamis_cuda_plan *plan,
                          const tamis_step *step, const twin *t, int32_t layer, int64_t rows,
                          const char *what) {
    static const way whole = {1, 0, NULL};
    char text[120];
    outcome want = outcome_make(t->l, layer, rows), on_device = gpu_outcome(t->l, layer, rows);
    layers_run(cpu, cpu_step, t->l, layer, whole, &want);
    twin_queue(plan, step, t, layer, &on_device);
    gpu_sync();
    outcome got = gpu_pull(t->l, layer, &on_device);
    snprintf(text, sizeof text, "%s, layer %d", what, layer);
    outcome_same(&got, &want, text);
}

/* Two steps of one plan, every layer; consumers by page tables of `narrower` fewer entries. */
static void compare_in(layers *l, int64_t padding, int32_t sparse_logits, int64_t max_context,
                       int64_t narrower, const char *what) {
    int64_t rows = l->batch.tokens + padding;
    l->batch.padded_rows = padding ? rows : 0;
    tamis_indexer *indexer = layers_indexer(l, "auto", sparse_logits);
    tamis_plan *cpu = layers_plan(l, indexer, 1, rows);
    twin t = twin_make(l);
    tamis_cuda_plan *plan = twin_plan(&t, indexer, rows, max_context);
    for (int turn = 0; turn < 2; turn++) {
        tamis_step cpu_step = layers_step(cpu, &l->batch), step = twin_step(plan, &t);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            const int64_t less = layers_selects(layer) && layers_consumes(l, layer) ? narrower : 0;
            tamis_step its = step;
            its.page_table_width[0] -= less;
            its.page_table_width[1] -= less;
            if (layers_selects(layer)) {
                compare_layer(cpu, &cpu_step, plan, &its, &t, layer, rows, what);
            }
        }
    }
    assert_int_equal(tamis_cuda_plan_status(plan), TAMIS_CUDA_PLAN_GOOD);
    tamis_cuda_plan_destroy(plan);
    tamis_indexer_destroy(indexer);
    gpu_release();
    release();
}

static void compare(layers *l, int64_t padding, int32_t sparse_logits, const char *what) {
    compare_in(l, padding, sparse_logits, 0, 0, what);
}

static void on_shapes(int first, int last, int32_t sparse_logits) {
    char text[60];
    for (int i = first; i < last; i++) {
        seed(20 + (uint64_t)i);
        snprintf(text, sizeof text, "shape %d, mode %d", i, sparse_logits);
        compare(layers_make(shapes[i], mixed, COUNT(mixed)), 0, sparse_logits, text);
    }
}

static void pages(void **state) {
    (void)state;
    on_shapes(0, PAGED, TAMIS_SPARSE_ON);
    on_shapes(0, PAGED, TAMIS_SPARSE_AUTO);
}

static void rows(void **state) {
    (void)state;
    on_shapes(PAGED, COUNT(shapes), TAMIS_SPARSE_ON);
    on_shapes(PAGED, COUNT(shapes), TAMIS_SPARSE_AUTO);
}

static void dense(void **state) {
    (void)state;
    on_shapes(0, COUNT(shapes), TAMIS_SPARSE_OFF);
}

static void one_level(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        shape s = shapes[i];
        s.topk_blocks = s.block = 0;
        seed(40 + (uint64_t)i);
        compare(layers_make(s, mixed, COUNT(mixed)), i % 3, i % 3, "one level");
    }
}

/* One below, at and above what the published blocks hold. */
static void pool(void **state) {
    shape s = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};
    (void)state;
    for (int i = 0; i < 6; i++) {
        s.topk_blocks = i % 2 ? 6 : 18;
        s.source_ratio = 1 + i % 2;
        int64_t held = (int64_t)s.topk_blocks * s.block * s.source_ratio;
        const request near[] = {
            {held - 1, 1}, {held, 1}, {held + 1, 1}, {held + 2, 1}, {held + 9, 25}};
        seed(60 + (uint64_t)i);
        compare(layers_make(s, near, COUNT(near)), 0, i / 2, "around the pool");
        compare(layers_make(s, near, 2), 0, i / 2, "no row beyond the pool");
    }
}

/* Rows that all take the dense route: as page tables say, or as the device alone knows; or as a
 * consumer's tables say and its source's do not. */
static void inside(shape s, const request *requests, int32_t count, int64_t border) {
    enum { SPARE = 3 }; /* entries of page tables that nobody uses */
    for (int wider = 0; wider < (s.page_size ? 3 : 1); wider++) {
        layers *l = layers_make(s, requests, count);
        for (int k = 0; k < 2 && wider; k++) {
            l->batch.page_table_width[k] += SPARE;
        }
        compare_in(l, 5, TAMIS_SPARSE_AUTO, 2 * border, wider == 2 ? SPARE : 0,
                   wider ? "wide tables" : "narrow tables");
    }
}

/* Rows of both routes in one step, where few rows are and where scores and selection are one
 * kernel. */
static void routes(void **state) {
    static const shape two[] = {
        {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 64, 256, 8, 1, TAMIS_NUMERICS_EXACT},
        {TAMIS_K_MXFP4_SPLIT, 0, 32, 128, 300, 256, 8, 2, TAMIS_NUMERICS_BF16}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        const shape *s = &two[i / 2];
        int64_t border =
            (int64_t)s->topk_blocks * s->block * s->source_ratio / TAMIS_CUDA_AUTO_PARTS * BORDER;
        const request both[] = {{border + 70, 140}, {border, 1},     {border + 2, 3},
                                {2000, 130},        {2 * border, 4}, {40, 3}};
        seed(140 + (uint64_t)i);
        compare(layers_make(*s, both, COUNT(both) - i % 2), 0, TAMIS_SPARSE_AUTO, "both routes");
        compare(layers_make(*s, both + 1, 2), 3, TAMIS_SPARSE_AUTO, "few rows of both routes");
        const request short_ones[] = {{border, 140}, {border - 1, 3}, {0, 0}, {700, 130}};
        inside(*s, short_ones, COUNT(short_ones) - i % 2, border);
    }
}

/* Padding rows, requests without new tokens, and steps of nothing. */
static void padding(void **state) {
    static const request idle[] = {{70, 0}, {3, 0}};
    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        seed(80 + (uint64_t)i);
        compare(layers_make(shapes[i], mixed, COUNT(mixed)), 13, i % 3, "padded");
        compare(layers_make(shapes[i], idle, i % 2 ? COUNT(idle) : 0), i % 4 < 2 ? 7 : 0, i % 3,
                "idle");
    }
}

/* The released sizes, below and beyond their pool of 16,384. */
static void released(void **state) {
    static const request few[] = {{16384, 2}, {16389, 3}, {40000, 1}, {17000, 6}, {700, 4}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        shape s = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 512, 2048, 8, 1, TAMIS_NUMERICS_EXACT};
        s.layout = i == 2 ? TAMIS_K_MXFP4_SPLIT : i == 3 ? TAMIS_K_MXFP4_ROW : s.layout;
        s.page_size = i < 2 ? 64 : 0;
        seed(100 + (uint64_t)i);
        compare(layers_make(s, few, COUNT(few)), i, i == 1 ? TAMIS_SPARSE_OFF : TAMIS_SPARSE_ON,
                "released sizes");
        seed(104 + (uint64_t)i);
        compare(layers_make(s, few, COUNT(few)), i, TAMIS_SPARSE_AUTO, "released sizes, auto");
    }
}

/* More rows than a tile holds: about 490 of a source's and 63 of a dense row's at a million
 * positions. */
static void tiles(void **state) {
    static const request many[] = {{1500, 900}, {640, 1}, {700, 3}};
    shape s = {TAMIS_K_MXFP4_PAGE, 64, 4, 64, 16, 24, 8, 1, TAMIS_NUMERICS_EXACT};
    (void)state;
    for (int32_t mode = TAMIS_SPARSE_OFF; mode <= TAMIS_SPARSE_AUTO; mode++) {
        seed(120);
        compare_in(layers_make(s, many, COUNT(many)), 2, mode, 1 << 20, 0, "tiles");
    }
}

static const struct CMUnitTest list[] = {
    cmocka_unit_test(pages),     cmocka_unit_test(rows),     cmocka_unit_test(dense),
    cmocka_unit_test(one_level), cmocka_unit_test(pool),     cmocka_unit_test(routes),
    cmocka_unit_test(padding),   cmocka_unit_test(released), cmocka_unit_test(tiles),
};

int main(int argc, char **argv) {
    return gpu_main(list, COUNT(list), "gpu_plan_same", argc, argv);
}
