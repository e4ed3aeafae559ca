/* SPDX-License-Identifier: MIT */
/*
 * test_stamps.c: pitfall 24. Consumers that shared scratch by the order of layers read another
 * step's blocks. Here every use of blocks or scores that are not this step's is refused.
 */
#include "plan_tests.h"

static const request requests[] = {{150, 1}, {203, 4}, {96, 20}};
static const request others[] = {{150, 1}, {203, 4}, {96, 19}};
static const shape plain = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 24, 8, 1, TAMIS_NUMERICS_EXACT};

typedef struct scene {
    layers *l;
    tamis_indexer *indexer;
    tamis_plan *plan;
    tamis_step step;
    outcome source, consumer, want;
} scene;

static scene scene_of(const char *tier, int32_t sparse_logits) {
    scene s;
    seed(7);
    s.l = layers_make(plain, requests, COUNT(requests));
    s.indexer = layers_indexer(s.l, tier, sparse_logits);
    s.plan = layers_plan(s.l, s.indexer, 40, 0);
    s.step = layers_step(s.plan, &s.l->batch);
    s.source = outcome_make(s.l, LAYER_SOURCE, s.l->batch.tokens);
    s.consumer = outcome_make(s.l, LAYER_CONSUMER, s.l->batch.tokens);
    s.want = layers_expect(s.l, LAYER_CONSUMER, s.l->batch.tokens);
    return s;
}

static void scene_end(scene *s) {
    watch_none();
    tamis_indexer_destroy(s->indexer);
    release();
}

typedef tamis_status run_call(tamis_plan *, const tamis_step *, const tamis_layer_args *, int32_t,
                              int32_t, tamis_error *);

/* A layer's call is refused by its stamp; nothing of its outputs is written. */
static void stale(run_call *call, tamis_plan *plan, const tamis_step *step, const layers *l,
                  int32_t layer, int32_t ith, int32_t nth, int line) {
    tamis_error e = {0};
    outcome out = outcome_make(l, layer, l->batch.tokens);
    tamis_layer_args args = layers_args(l, layer, &out);
    watch_none();
    watch(out.selection.positions, out.rows * out.selection.positions_stride * 4);
    watch(out.selection.slots, out.rows * out.selection.slots_stride * 8);
    watch(out.selection.scores, out.rows * out.selection.scores_stride * 4);
    watch(out.selection.counts, out.rows * 4);
    uint64_t before = watched();
    refused(call(plan, step, &args, ith, nth, &e), TAMIS_ERROR_STAMP, &e, "step", before, line);
    watch_none();
}

static void no_consumer(const scene *s, tamis_plan *plan, const tamis_step *step, int line) {
    stale(tamis_consumer_run, plan, step, s->l, LAYER_CONSUMER, 0, 1, line);
    stale(tamis_layer_score, plan, step, s->l, LAYER_CONSUMER, 0, 1, line);
    stale(tamis_layer_score, plan, step, s->l, LAYER_CONSUMER, 3, 40, line);
    stale(tamis_layer_merge, plan, step, s->l, LAYER_CONSUMER, 0, 1, line);
}

static void one_slice(scene *s, run_call *call, int32_t layer, int32_t ith, int32_t nth) {
    tamis_error e = {0};
    tamis_layer_args args =
        layers_args(s->l, layer, layer == LAYER_SOURCE ? &s->source : &s->consumer);
    succeeded(call(s->plan, &s->step, &args, ith, nth, &e), &e, __LINE__);
}

/* The consumer works, and selects what it has to. */
static void consumes(scene *s) {
    layers_run(s->plan, &s->step, s->l, LAYER_CONSUMER, (way){.nth = 2}, &s->consumer);
    outcome_same(&s->consumer, &s->want, "consumer");
}

static void before_and_after(const char *tier) {
    scene s = scene_of(tier, TAMIS_SPARSE_ON);
    tamis_step old = s.step;
    no_consumer(&s, s.plan, &s.step, __LINE__); /* before the publish */
    one_slice(&s, tamis_source_run, LAYER_FULL, 0, 1);
    no_consumer(&s, s.plan, &s.step, __LINE__); /* full layers publish nothing */
    one_slice(&s, tamis_source_run, LAYER_SOURCE, 0, 1);
    consumes(&s);
    s.step = layers_step(s.plan, &s.l->batch);
    no_consumer(&s, s.plan, &s.step, __LINE__); /* the table is the last step's */
    no_consumer(&s, s.plan, &old, __LINE__);    /* and that step has ended */
    stale(tamis_source_run, s.plan, &old, s.l, LAYER_SOURCE, 0, 1, __LINE__);
    stale(tamis_source_run, s.plan, &old, s.l, LAYER_FULL, 0, 1, __LINE__);
    one_slice(&s, tamis_source_run, LAYER_SOURCE, 0, 1);
    no_consumer(&s, s.plan, &old, __LINE__); /* another step's publish */
    consumes(&s);
    scene_end(&s);
}

static void slices_of_a_publish(const char *tier) {
    scene s = scene_of(tier, TAMIS_SPARSE_OFF);
    for (int32_t ith = 0; ith < 3; ith++) {
        one_slice(&s, tamis_source_run, LAYER_SOURCE, ith, 3);
        stale(tamis_source_run, s.plan, &s.step, s.l, LAYER_SOURCE, ith, 3, __LINE__);
        stale(tamis_source_run, s.plan, &s.step, s.l, LAYER_SOURCE, 0, 2, __LINE__);
        if (ith < 2) { /* incomplete */
            no_consumer(&s, s.plan, &s.step, __LINE__);
        }
    }
    stale(tamis_source_run, s.plan, &s.step, s.l, LAYER_SOURCE, 0, 1, __LINE__); /* a second one */
    stale(tamis_layer_merge, s.plan, &s.step, s.l, LAYER_SOURCE, 0, 1, __LINE__);
    consumes(&s);
    scene_end(&s);
}

static void foreign_steps(const char *tier) {
    scene s = scene_of(tier, TAMIS_SPARSE_ON);
    tamis_plan *twin = layers_plan(s.l, s.indexer, 40, 0);
    tamis_step its = layers_step(twin, &s.l->batch);
    one_slice(&s, tamis_source_run, LAYER_SOURCE, 0, 1);
    no_consumer(&s, twin, &its, __LINE__);    /* published into another plan */
    no_consumer(&s, twin, &s.step, __LINE__); /* a step of another plan */
    no_consumer(&s, s.plan, &its, __LINE__);
    s.step.counts->rows--; /* other rows than were published */
    no_consumer(&s, s.plan, &s.step, __LINE__);
    s.step.counts->rows++;
    consumes(&s);
    scene_end(&s);
}

/* The next step has other rows and publishes them; the last step's struct stays refused. */
static void other_rows(const char *tier) {
    scene s = scene_of(tier, TAMIS_SPARSE_ON);
    tamis_step old = s.step;
    int32_t starts[COUNT(others) + 1] = {0};
    tamis_batch fewer = s.l->batch;
    for (int i = 0; i < COUNT(others); i++) {
        starts[i + 1] = starts[i] + others[i].fresh;
    }
    fewer.query_start = starts;
    fewer.tokens = starts[COUNT(others)];
    one_slice(&s, tamis_source_run, LAYER_SOURCE, 0, 1);
    s.step = layers_step(s.plan, &fewer);
    one_slice(&s, tamis_source_run, LAYER_SOURCE, 0, 1);
    no_consumer(&s, s.plan, &old, __LINE__);
    scene_end(&s);
}

void pitfall_24_blocks_carry_a_stamp(void **state) {
    (void)state;
    each_tier(before_and_after);
    each_tier(slices_of_a_publish);
    each_tier(foreign_steps);
    each_tier(other_rows);
}

/* Every slice of score, then every slice of merge: anything less would select from stale scores. */
static void merge_needs_scores(const char *tier, int32_t layer) {
    enum { NTH = 40 }; /* more than rows: cut over positions */
    scene s = scene_of(tier, TAMIS_SPARSE_ON);
    if (layer >= LAYER_CONSUMER) {
        one_slice(&s, tamis_source_run, LAYER_SOURCE, 0, 1);
    }
    stale(tamis_layer_merge, s.plan, &s.step, s.l, layer, 0, NTH, __LINE__);
    for (int32_t ith = 0; ith < NTH - 1; ith++) {
        one_slice(&s, tamis_layer_score, layer, ith, NTH);
    }
    stale(tamis_layer_merge, s.plan, &s.step, s.l, layer, 0, NTH, __LINE__);
    one_slice(&s, tamis_layer_score, layer, NTH - 1, NTH);
    stale(tamis_layer_merge, s.plan, &s.step, s.l, layer, 0, NTH - 1, __LINE__);
    /* Until every slice has merged, nobody else may write the scores: not another layer, not at
     * another cut, not the same slice again, not a whole run. */
    for (int32_t ith = 0; ith < NTH; ith++) {
        stale(tamis_layer_score, s.plan, &s.step, s.l, LAYER_FULL, 2, NTH, __LINE__);
        stale(tamis_layer_score, s.plan, &s.step, s.l, layer, 0, NTH - 1, __LINE__);
        stale(tamis_layer_score, s.plan, &s.step, s.l, layer, 0, NTH, __LINE__);
        stale(tamis_source_run, s.plan, &s.step, s.l, LAYER_FULL, 0, 1, __LINE__);
        one_slice(&s, tamis_layer_merge, layer, ith, NTH);
        stale(tamis_layer_merge, s.plan, &s.step, s.l, layer, ith, NTH, __LINE__);
    }
    if (layer == LAYER_CONSUMER) {
        outcome_same(&s.consumer, &s.want, "consumer");
    }
    one_slice(&s, tamis_source_run, LAYER_FULL, 0, 1);
    scene_end(&s);
}

static void scores_of_every_role(const char *tier) {
    merge_needs_scores(tier, LAYER_SOURCE);
    merge_needs_scores(tier, LAYER_CONSUMER);
}

void pitfall_24_scores_carry_a_stamp(void **state) {
    (void)state;
    each_tier(scores_of_every_role);
}

/* Blocks were placed against the source's pool: a smaller one given to a consumer is refused. */
static void smaller_cache(const char *tier) {
    scene s = scene_of(tier, TAMIS_SPARSE_ON);
    tamis_error e = {0};
    tamis_layer_args args = layers_args(s.l, LAYER_CONSUMER, &s.consumer);
    one_slice(&s, tamis_source_run, LAYER_SOURCE, 0, 1);
    args.k.size--;
    watch_none();
    watch(s.consumer.selection.positions, s.consumer.rows * 4);
    uint64_t before = watched();
    refused(tamis_consumer_run(s.plan, &s.step, &args, 0, 1, &e), TAMIS_ERROR_LENGTH, &e, "k.size",
            before, __LINE__);
    refused(tamis_layer_score(s.plan, &s.step, &args, 0, 40, &e), TAMIS_ERROR_LENGTH, &e, "k.size",
            before, __LINE__);
    consumes(&s);
    scene_end(&s);
}

void pitfall_24_consumers_read_the_published_cache(void **state) {
    (void)state;
    each_tier(smaller_cache);
}
