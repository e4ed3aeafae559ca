/* SPDX-License-Identifier: MIT */
/* test_faults.c: faults that others shipped, in steps: pitfalls 7, 9, 12 and 20. */
#include "plan_tests.h"

static const shape plain = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};

/* ---- 07: after a chunk or a resumed cache, only the last chunk was seen ------------ */

enum { PROMPT = 140 };

/* Runs tokens from..from+fresh-1 of the one request as a step, writing where one prefill would. */
static void run_chunk(const layers *l, tamis_plan *plan, int64_t from, int32_t fresh,
                      const outcome *all, way how) {
    int64_t context = from + fresh;
    int32_t starts[2] = {0, fresh};
    tamis_batch b = l->batch;
    b.context = &context;
    b.query_start = starts;
    b.tokens = fresh;
    tamis_step step = layers_step(plan, &b);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (!layers_selects(layer)) {
            continue;
        }
        layers part = *l;
        outcome out = all[layer];
        tamis_query *q = &part.query[layer];
        q->codes += from * q->codes_row_stride;
        q->scales += from * q->scales_row_stride;
        q->weights = (const uint8_t *)q->weights +
                     from * q->weights_row_stride * element_bytes(q->weights_type);
        out.selection.positions += from * out.selection.positions_stride;
        out.selection.slots += from * out.selection.slots_stride;
        out.selection.scores += from * out.selection.scores_stride;
        out.selection.counts += from;
        out.blocks = out.blocks ? out.blocks + from * out.blocks_stride : NULL;
        layers_run(plan, &step, &part, layer, how, &out);
    }
}

static void run_chunks(const layers *l, tamis_plan *plan, const int32_t *chunks,
                       const outcome *want, way how, const char *what) {
    outcome got[LAYERS];
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            got[layer] = outcome_make(l, layer, PROMPT);
        }
    }
    int64_t from = 0;
    for (int i = 0; from < PROMPT; i++) {
        run_chunk(l, plan, from, chunks[i], got, how);
        from += chunks[i];
    }
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            outcome_same(&got[layer], &want[layer], what);
        }
    }
}

static void chunked(const char *tier) {
    static const int32_t cuts[][7] = {
        {140}, {70, 70}, {1, 139}, {139, 1}, {17, 3, 40, 1, 1, 30, 48}, {47, 47, 46}};
    static const request prompt = {PROMPT, PROMPT};
    for (int i = 0; i < 6; i++) {
        shape s = plain;
        outcome want[LAYERS];
        s.layout = TAMIS_K_MXFP4_PAGE + i % 3;
        s.page_size = i % 3 ? 0 : 16;
        s.source_ratio = 1 + i % 2;
        seed(200 + (uint64_t)i);
        layers *l = layers_make(s, &prompt, 1);
        tamis_indexer *indexer = layers_indexer(l, tier, TAMIS_SPARSE_ON);
        tamis_plan *plan = layers_plan(l, indexer, 8, 0);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            if (layers_selects(layer)) {
                want[layer] = layers_expect(l, layer, PROMPT);
            }
        }
        for (int cut = 0; cut < COUNT(cuts); cut++) {
            run_chunks(l, plan, cuts[cut], want, (way){.nth = 1 + cut, .split = cut % 2}, tier);
        }
        /* A plan and an indexer that never saw the first chunks: the cache was restored. */
        tamis_plan *fresh_plan = layers_plan(l, indexer, 8, 0);
        run_chunk(l, fresh_plan, 100, PROMPT - 100, want, (way){.nth = 2});
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            if (layers_selects(layer)) {
                outcome again = layers_expect(l, layer, PROMPT);
                outcome_same(&want[layer], &again, "resumed");
            }
        }
        tamis_indexer_destroy(indexer);
        release();
    }
}

void pitfall_07_chunks_and_resumed_caches(void **state) {
    (void)state;
    each_tier(chunked);
}

/* ---- creation ---------------------------------------------------------------------- */

static tamis_settings settings;
static tamis_indexer_options options_of(const layers *l) {
    tamis_indexer_options options;
    tamis_settings_default(&settings);
    tamis_indexer_options_default(&options);
    options.model = &l->model;
    options.settings = &settings;
    options.page_size = l->shape.page_size;
    return options;
}

/* Creation is refused and the report names the requirement. */
static void not_created(const tamis_indexer_options *options, const char *id) {
    tamis_requirement failures[8];
    tamis_indexer *indexer = NULL;
    tamis_error e = {0};
    int32_t failed = tamis_indexer_supported(options, failures, COUNT(failures)), named = 0;
    assert_in_range(failed, 1, COUNT(failures));
    for (int32_t i = 0; i < failed; i++) {
        named |= strcmp(failures[i].id, id) == 0;
    }
    assert_true(named);
    assert_int_equal(tamis_indexer_create(options, &indexer, &e), TAMIS_ERROR_REQUIREMENT);
    assert_null(indexer);
    assert_string_equal(e.argument, failures[0].setting);
}

static void created(const tamis_indexer_options *options) {
    tamis_indexer *indexer = NULL;
    tamis_error e = {0};
    succeeded(tamis_indexer_create(options, &indexer, &e), &e, __LINE__);
    tamis_indexer_destroy(indexer);
}

/* A ratio-2 source whose blocks a ratio-1 consumer read lost each block's tail. */
void pitfall_09_ratios_of_source_and_consumer(void **state) {
    static const request one = {9, 1};
    (void)state;
    for (int32_t source = 1; source <= 2; source++) {
        shape s = plain;
        s.source_ratio = source;
        layers *l = layers_make(s, &one, 1);
        tamis_indexer_options options = options_of(l);
        created(&options);
        for (int32_t consumer = 0; consumer < CONSUMERS; consumer++) {
            l->ratios[LAYER_CONSUMER + consumer] = 3 - source;
            not_created(&options, "consumer-ratio");
            l->ratios[LAYER_CONSUMER + consumer] = source;
        }
        created(&options);
        release();
    }
}

static void plan_of_ranks_is_refused(const layers *l) {
    tamis_indexer_options options = options_of(l);
    tamis_plan_limits limits = layers_limits(l, 1, 0);
    tamis_indexer *indexer = NULL;
    tamis_plan *plan = NULL;
    tamis_error e = {0};
    options.context_parallel = 2;
    options.limits = &limits;
    succeeded(tamis_indexer_create(&options, &indexer, &e), &e, __LINE__);
    assert_int_equal(tamis_plan_bytes(indexer, &limits, &e), -1);
    assert_int_equal(e.status, TAMIS_ERROR_REQUIREMENT);
    assert_string_equal(e.argument, "indexer.context_parallel");
    assert_int_equal(tamis_plan_init(indexer, &limits, fresh(1 << 20), 1 << 20, &plan, &e),
                     TAMIS_ERROR_REQUIREMENT);
    assert_null(plan);
    tamis_indexer_destroy(indexer);
}

/* Ranks' rows did not match their page tables: degrees that are not supported are refused, and a
 * plan, which takes K for all of it, is refused to an indexer of several ranks. tests/shards has
 * the ranks' own refusals. */
void pitfall_20_other_ranks_are_refused(void **state) {
    static const request one = {9, 1};
    static const int32_t degrees[] = {0, -1, 65, INT32_MAX}, shared[] = {0, -1, 2, INT32_MAX};
    (void)state;
    layers *l = layers_make(plain, &one, 1);
    for (int i = 0; i < COUNT(degrees); i++) {
        tamis_indexer_options options = options_of(l);
        created(&options);
        options.context_parallel = degrees[i];
        not_created(&options, "context-parallel");
        options = options_of(l);
        options.decode_parallel = shared[i];
        not_created(&options, "decode-parallel");
    }
    plan_of_ranks_is_refused(l);
}

/* ---- 12: the short-context shortcut was captured in a graph ------------------------ */

/* The same plan, buffers and arguments at length 10, then at 100,000, then at 10 again. */
static void short_then_long(const char *tier) {
    static const request both[] = {{10, 1}, {100000, 1}};
    static const int order[] = {0, 1, 0};
    seed(12);
    layers *l = layers_make(plain, both, COUNT(both));
    tamis_indexer *indexer = layers_indexer(l, tier, TAMIS_SPARSE_ON);
    tamis_plan *plan = layers_plan(l, indexer, 4, 0);
    outcome want[LAYERS];
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            want[layer] = layers_expect(l, layer, 2);
        }
    }
    for (int i = 0; i < COUNT(order); i++) {
        int only = order[i]; /* the other request has no new token in this step */
        int32_t starts[3] = {0, only == 0, 1};
        tamis_batch b = l->batch;
        b.query_start = starts;
        b.tokens = 1;
        tamis_step step = layers_step(plan, &b);
        assert_int_equal(tamis_step_is_short(&step, 1, plain.topk), only == 0);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            if (!layers_selects(layer)) {
                continue;
            }
            layers part = *l;
            tamis_query *q = &part.query[layer];
            q->codes += only * q->codes_row_stride;
            q->scales += only * q->scales_row_stride;
            q->weights = (const uint8_t *)q->weights +
                         only * q->weights_row_stride * element_bytes(q->weights_type);
            outcome got = outcome_make(l, layer, 1), one = want[layer];
            one.rows = 1;
            one.selection.positions += only * one.selection.positions_stride;
            one.selection.slots += only * one.selection.slots_stride;
            one.selection.scores += only * one.selection.scores_stride;
            one.selection.counts += only;
            one.blocks = one.blocks ? one.blocks + only * one.blocks_stride : NULL;
            layers_run(plan, &step, &part, layer, (way){.nth = 1 + i, .split = i % 2}, &got);
            outcome_same(&got, &one, only ? "long" : "short");
        }
    }
    tamis_indexer_destroy(indexer);
    release();
}

void pitfall_12_short_batches_are_not_baked_in(void **state) {
    (void)state;
    each_tier(short_then_long);
}
