/* SPDX-License-Identifier: MIT */
/* test_refusals.c: what steps and runs refuse, by name, with nothing changed (spec 6.2, 7.7). */
#include "plan_tests.h"

static const request mixed[] = {{40, 4}, {9, 0}, {33, 1}, {50, 20}};

static shape shape_of(int32_t layout) {
    return (shape){.layout = layout,
                   .page_size = layout == TAMIS_K_MXFP4_PAGE ? 16 : 0,
                   .heads = 4,
                   .dim = 64,
                   .topk = 4,
                   .topk_blocks = 3,
                   .block = 8,
                   .source_ratio = 1,
                   .numerics = TAMIS_NUMERICS_EXACT};
}

/* A plan with a step, all of whose bytes are watched. */
typedef struct subject {
    layers *l;
    tamis_indexer *indexer;
    tamis_plan *plan;
    tamis_step step;
} subject;

static subject subject_make(int32_t layout) {
    subject s;
    seed(3);
    s.l = layers_make(shape_of(layout), mixed, COUNT(mixed));
    s.indexer = layers_indexer(s.l, "ref", TAMIS_SPARSE_ON);
    s.plan = layers_plan(s.l, s.indexer, 2, 30);
    s.step = layers_step(s.plan, &s.l->batch);
    watch_none();
    return s;
}

static void watch_step(const subject *s) {
    int64_t bytes = s->step.counts->rows * 4;
    watch(s->step.counts, sizeof *s->step.counts);
    watch(s->step.token, bytes);
    watch(s->step.request, bytes);
    for (int k = 0; k < 2; k++) {
        watch(s->step.ks[k], bytes);
        watch(s->step.ke[k], bytes);
    }
}

/* `change` is made to a copy `b` of the batch and its arrays. */
#define REFUSE_STEP(change, code, name)                                                            \
    do {                                                                                           \
        tamis_batch b = s.l->batch;                                                                \
        int64_t context[COUNT(mixed)];                                                             \
        int32_t starts[COUNT(mixed) + 1], rows[COUNT(mixed)] = {0};                                \
        tamis_error e_ = {0};                                                                      \
        tamis_step out_;                                                                           \
        memset(&out_, POISON, sizeof out_);                                                        \
        memcpy(context, s.l->context, sizeof context);                                             \
        memcpy(starts, s.l->query_start, sizeof starts);                                           \
        b.context = context;                                                                       \
        b.query_start = starts;                                                                    \
        (void)rows;                                                                                \
        change;                                                                                    \
        uint64_t before_ = watched();                                                              \
        refused(tamis_step_make(s.plan, &b, &out_, &e_), code, &e_, name, before_, __LINE__);      \
        untouched(&out_, 0, sizeof out_, 1, name);                                                 \
    } while (0)

static void refuse_common(const subject *with) {
    subject s = *with;
    tamis_error e = {0};
    tamis_step out;
    uint64_t before = watched();
    refused(tamis_step_make(NULL, &s.l->batch, &out, &e), TAMIS_ERROR_ARGUMENT, &e, "plan", before,
            __LINE__);
    refused(tamis_step_make(s.plan, NULL, &out, &e), TAMIS_ERROR_ARGUMENT, &e, "batch", before,
            __LINE__);
    refused(tamis_step_make(s.plan, &s.l->batch, NULL, &e), TAMIS_ERROR_ARGUMENT, &e, "step",
            before, __LINE__);
    REFUSE_STEP(b.struct_size++, TAMIS_ERROR_STRUCT_SIZE, "batch.struct_size");
    REFUSE_STEP(b.requests = -1, TAMIS_ERROR_LIMIT, "batch.requests");
    REFUSE_STEP(b.requests = MAX_TEST_REQUESTS + 1, TAMIS_ERROR_LIMIT, "batch.requests");
    REFUSE_STEP(b.tokens = -1, TAMIS_ERROR_LIMIT, "batch.tokens");
    REFUSE_STEP(b.tokens = 49, TAMIS_ERROR_LIMIT, "batch.tokens");
    REFUSE_STEP(b.tokens = INT64_MAX, TAMIS_ERROR_LIMIT, "batch.tokens");
    REFUSE_STEP(b.padded_rows = -1, TAMIS_ERROR_LIMIT, "batch.padded_rows");
    REFUSE_STEP(b.padded_rows = 49, TAMIS_ERROR_LIMIT, "batch.padded_rows");
    REFUSE_STEP(b.padded_rows = 24, TAMIS_ERROR_ARGUMENT, "batch.padded_rows");
    REFUSE_STEP(b.context = NULL, TAMIS_ERROR_ARGUMENT, "batch.context");
    REFUSE_STEP(b.query_start = NULL, TAMIS_ERROR_ARGUMENT, "batch.context");
    REFUSE_STEP(b.requests = 0, TAMIS_ERROR_ARGUMENT, "batch.tokens");
    REFUSE_STEP(starts[0] = 1, TAMIS_ERROR_ARGUMENT, "batch.query_start[0]");
    REFUSE_STEP(b.tokens = 24, TAMIS_ERROR_ARGUMENT, "batch.query_start[requests]");
    REFUSE_STEP(starts[2] = 3, TAMIS_ERROR_ARGUMENT, "batch.query_start[2]");
    REFUSE_STEP(starts[1] = INT32_MIN, TAMIS_ERROR_ARGUMENT, "batch.query_start[1]");
    REFUSE_STEP(context[0] = 3, TAMIS_ERROR_LENGTH, "batch.context[0]");
    REFUSE_STEP(context[1] = -1, TAMIS_ERROR_LENGTH, "batch.context[1]");
    REFUSE_STEP(context[2] = INT64_MIN, TAMIS_ERROR_LENGTH, "batch.context[2]");
    REFUSE_STEP(context[3] = 51, TAMIS_ERROR_LIMIT, "batch.context[3]");
    REFUSE_STEP(context[1] = INT64_MAX, TAMIS_ERROR_LIMIT, "batch.context[1]");
}

static void refuse_pages(const subject *with) {
    subject s = *with;
    for (int k = 0; k < 2; k++) {
        REFUSE_STEP(b.page_table[k] = NULL, TAMIS_ERROR_ARGUMENT, "batch.page_table");
        REFUSE_STEP(b.page_table_width[k] = -1, TAMIS_ERROR_ARGUMENT, "batch.page_table_width");
        REFUSE_STEP(b.page_table_width[k] = INT64_MAX, TAMIS_ERROR_ARGUMENT,
                    "batch.page_table_width");
        REFUSE_STEP(b.page_table_width[k] = (b.page_table_width[k] - 1), TAMIS_ERROR_LENGTH,
                    "batch.context[");
        REFUSE_STEP(b.page_table_stride[k] = b.page_table_width[k] - 1, TAMIS_ERROR_ARGUMENT,
                    "batch.page_table_stride");
    }
}

static void refuse_starts(const subject *with) {
    subject s = *with;
    for (int k = 0; k < 2; k++) {
        REFUSE_STEP((rows[2] = -1, b.k_start[k] = rows), TAMIS_ERROR_LENGTH, "batch.k_start[2]");
        REFUSE_STEP((rows[3] = INT32_MAX - (k ? 24 : 49), b.k_start[k] = rows), TAMIS_ERROR_LENGTH,
                    "batch.k_start[3]");
    }
}

void plan_step_refusals(void **state) {
    (void)state;
    for (int32_t layout = TAMIS_K_MXFP4_PAGE; layout <= TAMIS_K_MXFP4_ROW; layout++) {
        subject s = subject_make(layout);
        watch_step(&s);
        refuse_common(&s);
        if (layout == TAMIS_K_MXFP4_PAGE) {
            refuse_pages(&s);
        } else {
            refuse_starts(&s);
        }
        watch_none();
        tamis_indexer_destroy(s.indexer);
        release();
    }
}

/* After a refused step the last one still runs, and selects what it has to. */
void plan_step_keeps_the_last(void **state) {
    (void)state;
    subject s = subject_make(TAMIS_K_MXFP4_PAGE);
    tamis_error e = {0};
    tamis_step out;
    int64_t rows = s.l->batch.tokens;
    outcome got = outcome_make(s.l, LAYER_SOURCE, rows),
            want = layers_expect(s.l, LAYER_SOURCE, rows);
    layers_run(s.plan, &s.step, s.l, LAYER_SOURCE, (way){.nth = 1}, &got);
    tamis_batch b = s.l->batch;
    b.tokens = 24;
    assert_int_equal(tamis_step_make(s.plan, &b, &out, &e), TAMIS_ERROR_ARGUMENT);
    outcome_same(&got, &want, "source");
    got = outcome_make(s.l, LAYER_CONSUMER, rows);
    want = layers_expect(s.l, LAYER_CONSUMER, rows);
    layers_run(s.plan, &s.step, s.l, LAYER_CONSUMER, (way){.nth = 2}, &got);
    outcome_same(&got, &want, "consumer after a refused step");
    tamis_indexer_destroy(s.indexer);
}

/* ---- runs -------------------------------------------------------------------------- */

static void watch_outcome(const outcome *o) {
    const tamis_selection *s = &o->selection;
    watch(s->positions, o->rows * s->positions_stride * 4);
    watch(s->slots, o->rows * s->slots_stride * 8);
    watch(s->scores, o->rows * s->scores_stride * 4);
    watch(s->counts, o->rows * 4);
    if (o->blocks) {
        watch(o->blocks, o->rows * o->blocks_stride * 4);
    }
}

typedef tamis_status run_call(tamis_plan *, const tamis_step *, const tamis_layer_args *, int32_t,
                              int32_t, tamis_error *);

#define REFUSE_RUN(change, code, name)                                                             \
    do {                                                                                           \
        tamis_layer_args a = good;                                                                 \
        tamis_plan *plan = s->plan;                                                                \
        tamis_step own = s->step, *step = &own;                                                    \
        const tamis_layer_args *args = &a;                                                         \
        int32_t ith = 0, nth = 1;                                                                  \
        tamis_error e_ = {0};                                                                      \
        change;                                                                                    \
        uint64_t before_ = watched();                                                              \
        refused(call(plan, step, args, ith, nth, &e_), code, &e_, name, before_, __LINE__);        \
    } while (0)

static void refuse_runs(const subject *s, run_call *call, run_call *wrong, int32_t layer) {
    outcome out = outcome_make(s->l, layer, s->l->batch.tokens);
    tamis_layer_args good = layers_args(s->l, layer, &out);
    watch_none();
    watch_outcome(&out);
    REFUSE_RUN(plan = NULL, TAMIS_ERROR_ARGUMENT, "plan");
    REFUSE_RUN(step = NULL, TAMIS_ERROR_ARGUMENT, "step");
    REFUSE_RUN(step->struct_size++, TAMIS_ERROR_STRUCT_SIZE, "step.struct_size");
    REFUSE_RUN(step->nonce++, TAMIS_ERROR_STAMP, "step");
    REFUSE_RUN(step->serial--, TAMIS_ERROR_STAMP, "step");
    REFUSE_RUN(step->plan = NULL, TAMIS_ERROR_STAMP, "step");
    REFUSE_RUN(args = NULL, TAMIS_ERROR_ARGUMENT, "args");
    REFUSE_RUN(a.struct_size++, TAMIS_ERROR_STRUCT_SIZE, "args.struct_size");
    REFUSE_RUN(a.layer = -1, TAMIS_ERROR_ARGUMENT, "args.layer");
    REFUSE_RUN(a.layer = LAYERS, TAMIS_ERROR_ARGUMENT, "args.layer");
    REFUSE_RUN((a.layer = LAYER_NONE, a.blocks = NULL), TAMIS_ERROR_ARGUMENT, "args.layer");
    REFUSE_RUN((a.layer = LAYER_REUSE, a.blocks = NULL), TAMIS_ERROR_ARGUMENT, "args.layer");
    REFUSE_RUN(nth = 0, TAMIS_ERROR_LIMIT, "nth");
    REFUSE_RUN(nth = 3, TAMIS_ERROR_LIMIT, "nth");
    REFUSE_RUN(ith = 1, TAMIS_ERROR_ARGUMENT, "ith");
    REFUSE_RUN(ith = -1, TAMIS_ERROR_ARGUMENT, "ith");
    REFUSE_RUN(a.k.layout = TAMIS_K_MXFP4_ROW, TAMIS_ERROR_LAYOUT, "k.layout");
    REFUSE_RUN(a.k.head_dim = 128, TAMIS_ERROR_GEOMETRY, "k.head_dim");
    REFUSE_RUN(a.k.page_size = 8, TAMIS_ERROR_LAYOUT, "k.page_size");
    REFUSE_RUN(a.k.stride += 64, TAMIS_ERROR_LAYOUT, "k.stride");
    REFUSE_RUN(a.k.size = INT32_MAX, TAMIS_ERROR_LAYOUT, "k.size");
    REFUSE_RUN(a.k.codes = NULL, TAMIS_ERROR_LAYOUT, "k.codes");
    REFUSE_RUN(a.query.heads = 8, TAMIS_ERROR_GEOMETRY, "query.heads");
    REFUSE_RUN(a.query.head_dim = 128, TAMIS_ERROR_GEOMETRY, "query.head_dim");
    REFUSE_RUN(a.query.codes = NULL, TAMIS_ERROR_ARGUMENT, "query.codes");
    REFUSE_RUN(a.query.codes_row_stride = 1, TAMIS_ERROR_ARGUMENT, "query.codes_row_stride");
    REFUSE_RUN(a.selection.topk = 3, TAMIS_ERROR_ARGUMENT, "selection.topk");
    REFUSE_RUN(a.selection.positions_stride = 3, TAMIS_ERROR_ARGUMENT, "positions_stride");
    tamis_error e = {0};
    uint64_t before = watched();
    refused(wrong(s->plan, &s->step, &good, 0, 1, &e), TAMIS_ERROR_ARGUMENT, &e, "args.layer",
            before, __LINE__);
    watch_none();
}

/* Page ids that name no page, where a visible position needs them. */
static void refuse_pages_of_rows(const subject *s) {
    const int32_t bad[] = {-1, INT32_MIN, (int32_t)s->l->keys[0].cache.size, INT32_MAX};
    outcome out = outcome_make(s->l, LAYER_SOURCE, s->l->batch.tokens);
    tamis_layer_args good = layers_args(s->l, LAYER_SOURCE, &out);
    watch_outcome(&out);
    for (int i = 0; i < COUNT(bad); i++) {
        int32_t *entry = &s->l->keys[0].table[3 * s->l->keys[0].table_stride + 2], was = *entry;
        tamis_error e = {0};
        uint64_t before = watched();
        *entry = bad[i];
        refused(tamis_source_run(s->plan, &s->step, &good, 0, 1, &e), TAMIS_ERROR_LENGTH, &e,
                "rows.page_table[3][2]", before, __LINE__);
        *entry = was;
    }
    watch_none();
}

void plan_run_refusals(void **state) {
    (void)state;
    subject s = subject_make(TAMIS_K_MXFP4_PAGE);
    outcome published = outcome_make(s.l, LAYER_SOURCE, s.l->batch.tokens);
    refuse_runs(&s, tamis_source_run, tamis_consumer_run, LAYER_SOURCE);
    refuse_pages_of_rows(&s);
    layers_run(s.plan, &s.step, s.l, LAYER_SOURCE, (way){.nth = 1}, &published);
    refuse_runs(&s, tamis_consumer_run, tamis_source_run, LAYER_CONSUMER);
    tamis_indexer_destroy(s.indexer);
}
