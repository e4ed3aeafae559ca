/* SPDX-License-Identifier: MIT */
/* test_layers.c: what every layer of a step selects, held to the oracle in every mode and split. */
#include "plan_tests.h"

/* Decode with and without drafts, chunks, a whole prefill and requests without new tokens. */
static const request mixed[] = {{150, 1}, {70, 0},  {203, 4}, {1, 1},   {37, 37},
                                {301, 3}, {96, 20}, {0, 0},   {130, 2}, {64, 9}};

/* Published blocks above topk (the source selects from them) and below (a list of its own). */
static const shape shapes[] = {
    {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 24, 8, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_PAGE, 64, 4, 64, 40, 6, 8, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_PAGE, 48, 8, 64, 12, 13, 16, 2, TAMIS_NUMERICS_BF16},
    {TAMIS_K_MXFP4_PAGE, 32, 12, 128, 60, 5, 16, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 4, 4, 8, 1,
     TAMIS_NUMERICS_EXACT}, /* the pinned block's place */
    {TAMIS_K_MXFP4_SPLIT, 0, 4, 64, 16, 24, 8, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_SPLIT, 0, 4, 128, 40, 6, 8, 2, TAMIS_NUMERICS_BF16},
    {TAMIS_K_MXFP4_ROW, 0, 4, 64, 12, 13, 16, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_ROW, 0, 8, 64, 56, 8, 8, 2, TAMIS_NUMERICS_EXACT},
};

/* The scene that tier functions run, and what has to come out of each layer. */
static struct {
    layers *l;
    outcome want[LAYERS];
    int32_t sparse_logits;
    int64_t rows;
    tamis_pool *pool;
} now;

static void prepare(shape s, const request *requests, int32_t count, int64_t padding, uint64_t of) {
    seed(of);
    now.l = layers_make(s, requests, count);
    now.rows = now.l->batch.tokens + padding;
    now.l->batch.padded_rows = padding ? now.rows : 0;
    now.sparse_logits = TAMIS_SPARSE_ON;
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            now.want[layer] = layers_expect(now.l, layer, now.rows);
        }
    }
}

static void run_all_layers(tamis_plan *plan, const tamis_step *step, const char *tier, way how) {
    char text[120];
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            outcome got = outcome_make(now.l, layer, now.rows);
            layers_run(plan, step, now.l, layer, how, &got);
            snprintf(text, sizeof text, "%s, mode %d, layer %d, %d slices%s", tier,
                     now.sparse_logits, layer, how.nth, how.split ? ", split" : "");
            outcome_same(&got, &now.want[layer], text);
        }
    }
}

static void in_ways(const char *tier, const way *ways, int32_t count) {
    tamis_indexer *indexer = layers_indexer(now.l, tier, now.sparse_logits);
    tamis_plan *plan = layers_plan(now.l, indexer, 80, now.rows);
    assert_string_equal(tamis_indexer_tier(indexer), tier);
    for (int32_t i = 0; i < count; i++) {
        tamis_step step = layers_step(plan, &now.l->batch);
        run_all_layers(plan, &step, tier, ways[i]);
    }
    tamis_indexer_destroy(indexer);
}

static void briefly(const char *tier) {
    static const way ways[] = {{1, 0, NULL}, {3, 0, NULL}, {7, 1, NULL}};
    in_ways(tier, ways, COUNT(ways));
}

static void on_shapes(int32_t first, int32_t last, int32_t sparse_logits) {
    for (int32_t i = first; i < last; i++) {
        prepare(shapes[i], mixed, COUNT(mixed), 0, 20 + (uint64_t)i);
        now.sparse_logits = sparse_logits;
        each_tier(briefly);
        release();
    }
}

void plan_pages(void **state) {
    (void)state;
    on_shapes(0, 5, TAMIS_SPARSE_ON);
}

void plan_split_and_row(void **state) {
    (void)state;
    on_shapes(5, COUNT(shapes), TAMIS_SPARSE_ON);
}

void plan_dense(void **state) {
    (void)state;
    on_shapes(0, COUNT(shapes), TAMIS_SPARSE_OFF);
}

void plan_automatic(void **state) {
    (void)state;
    on_shapes(0, COUNT(shapes), TAMIS_SPARSE_AUTO);
}

/* 32 heads of 128 dims, the geometry that tiers make fast. */
void plan_released_geometry(void **state) {
    static const request few[] = {{300, 2}, {90, 1}, {40, 6}};
    shape s = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 64, 16, 8, 1, TAMIS_NUMERICS_EXACT};
    (void)state;
    for (int i = 0; i < 3; i++) {
        s.layout = TAMIS_K_MXFP4_PAGE + i;
        s.page_size = i ? 0 : 64;
        prepare(s, few, COUNT(few), 0, 40 + (uint64_t)i);
        each_tier(briefly);
        release();
    }
}

/* One below, at and above what the published blocks hold, in every mode. */
void plan_lengths_around_the_pool(void **state) {
    shape s = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};
    (void)state;
    for (int i = 0; i < 6; i++) {
        s.topk_blocks = i % 2 ? 6 : 18;
        s.source_ratio = 1 + i % 2;
        int64_t pool = s.topk_blocks * s.block * s.source_ratio;
        const request near[] = {
            {pool - 1, 1}, {pool, 1}, {pool + 1, 1}, {pool + 2, 1}, {pool + 9, 25}};
        prepare(s, near, COUNT(near), 0, 60 + (uint64_t)i);
        now.sparse_logits = i / 2;
        each_tier(briefly);
        release();
    }
}

/* Without the candidate keys every layer that selects is full, those after the source's too. */
void plan_one_level(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        shape s = shapes[i];
        s.topk_blocks = s.block = 0;
        prepare(s, mixed, COUNT(mixed), i, 100 + (uint64_t)i);
        now.sparse_logits = i % 3;
        each_tier(briefly);
        release();
    }
}

/* Every subset of the outputs, none among them: what is asked for is the same. */
static void in_subsets(const char *tier) {
    tamis_indexer *indexer = layers_indexer(now.l, tier, now.sparse_logits);
    tamis_plan *plan = layers_plan(now.l, indexer, 80, now.rows);
    for (int subset = 0; subset < 32; subset++) {
        tamis_step step = layers_step(plan, &now.l->batch);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            if (!layers_selects(layer)) {
                continue;
            }
            outcome got = outcome_make(now.l, layer, now.rows);
            got.selection.positions = subset & 1 ? got.selection.positions : NULL;
            got.selection.slots = subset & 2 ? got.selection.slots : NULL;
            got.selection.scores = subset & 4 ? got.selection.scores : NULL;
            got.selection.counts = subset & 8 ? got.selection.counts : NULL;
            got.blocks = subset & 16 ? got.blocks : NULL;
            got.selection.topk = subset & 1 ? 0 : got.selection.topk; /* 0: the model's */
            layers_run(plan, &step, now.l, layer, (way){2 + subset, subset % 2, NULL}, &got);
            outcome_same(&got, &now.want[layer], tier);
        }
    }
    tamis_indexer_destroy(indexer);
}

void plan_some_outputs(void **state) {
    static const request few[] = {{150, 1}, {203, 4}, {96, 20}};
    (void)state;
    for (int i = 0; i < 6; i++) {
        prepare(shapes[i], few, COUNT(few), 0, 110 + (uint64_t)i);
        now.sparse_logits = i % 3;
        each_tier(in_subsets);
        release();
    }
}

static void in_slices(const char *tier) {
    static const int32_t slices[] = {1, 2, 3, 8, 79};
    for (int i = 0; i < COUNT(slices); i++) {
        const way ways[] = {{slices[i], 0, NULL}, {slices[i], 1, NULL}};
        in_ways(tier, ways, COUNT(ways));
    }
}

/* A few rows on many slices, long enough to be cut over positions (units of 512); many rows on few.
 */
void plan_slices(void **state) {
    static const request few[] = {{3100, 1}, {1700, 2}, {5, 1}};
    shape s = {TAMIS_K_MXFP4_PAGE, 64, 4, 64, 64, 90, 8, 1, TAMIS_NUMERICS_EXACT};
    (void)state;
    for (int i = 0; i < 4; i++) {
        prepare(s, i < 3 ? few : mixed, i < 3 ? COUNT(few) : COUNT(mixed), 0, 80 + (uint64_t)i);
        now.sparse_logits = i % 3;
        each_tier(in_slices);
        release();
    }
}

static void in_threads(const char *tier) {
    for (int repeat = 0; repeat < 5; repeat++) {
        int32_t nth = tamis_pool_threads(now.pool);
        const way ways[] = {{nth, 0, now.pool}, {nth, 1, now.pool}};
        in_ways(tier, ways, COUNT(ways));
    }
}

void plan_threads(void **state) {
    static const request few[] = {{900, 1}, {650, 2}};
    tamis_error e = {0};
    (void)state;
    succeeded(tamis_pool_create(4, &now.pool, &e), &e, __LINE__);
    for (int i = 0; i < 4; i++) {
        prepare(shapes[i % 2], i < 2 ? few : mixed, i < 2 ? COUNT(few) : COUNT(mixed), i,
                90 + (uint64_t)i);
        each_tier(in_threads);
        release();
    }
    tamis_pool_destroy(now.pool);
    now.pool = NULL;
}

/* Padding rows, a step of padding alone, and a step of nothing: all -1, and no query is read. */
void plan_padding(void **state) {
    static const request idle[] = {{70, 0}, {3, 0}};
    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        prepare(shapes[i], mixed, COUNT(mixed), 13, 120 + (uint64_t)i);
        now.sparse_logits = i % 3;
        each_tier(briefly);
        release();
        prepare(shapes[i], idle, i % 2 ? COUNT(idle) : 0, i % 4 < 2 ? 7 : 0, 140 + (uint64_t)i);
        each_tier(briefly);
        release();
    }
}

static tamis_plan_counters count_of(const tamis_plan *plan) {
    tamis_plan_counters counters;
    tamis_plan_count(plan, &counters);
    return counters;
}

/* Four consumers, one expansion and translation of each row. */
static void counted(const char *tier) {
    tamis_indexer *indexer = layers_indexer(now.l, tier, now.sparse_logits);
    tamis_plan *plan = layers_plan(now.l, indexer, 4, now.rows);
    int64_t sparse = now.rows, pool = (int64_t)now.l->shape.topk_blocks * now.l->shape.block;
    for (int64_t i = 0; now.sparse_logits == TAMIS_SPARSE_AUTO && i < now.l->batch.requests; i++) {
        for (int64_t t = 1; t <= layers_fresh(now.l, i); t++) {
            sparse -= now.l->context[i] - layers_fresh(now.l, i) + t <= pool;
        }
    }
    sparse = now.sparse_logits == TAMIS_SPARSE_OFF ? 0 : sparse;
    for (uint64_t steps = 1; steps <= 3; steps++) {
        uint64_t rows = steps * (uint64_t)now.rows;
        tamis_step step = layers_step(plan, &now.l->batch);
        run_all_layers(plan, &step, tier, (way){steps == 2 ? 3 : 1, 0, NULL});
        tamis_plan_counters c = count_of(plan);
        assert_int_equal(c.steps, steps);
        assert_int_equal(c.expanded, rows);
        assert_int_equal(c.consumed, rows * CONSUMERS);
        assert_int_equal(c.sparse_rows, steps * (uint64_t)sparse * CONSUMERS);
        assert_int_equal(c.sparse_rows + c.dense_rows, c.consumed);
    }
    tamis_indexer_destroy(indexer);
}

void plan_expanded_once(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        prepare(shapes[i], mixed, COUNT(mixed), 0, 160 + (uint64_t)i);
        now.l->shape.source_ratio = shapes[i].source_ratio;
        now.sparse_logits = shapes[i].source_ratio == 1 ? i : TAMIS_SPARSE_ON;
        each_tier(counted);
        release();
    }
    prepare(shapes[0], mixed, COUNT(mixed), 0, 170);
    now.sparse_logits = TAMIS_SPARSE_AUTO;
    each_tier(counted);
}
