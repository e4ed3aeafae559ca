/* SPDX-License-Identifier: MIT */
/*
 * plan_fake.c: what device plans refuse, how much memory they take and what they launch, on a
 * driver that runs nothing.
 */
#include <dlfcn.h>

#include "counting.h"
#include "fake_driver.h"
#include "plan_device.h"

enum { ROWS = 130, SKIPPED = 77 };
static const shape sizes = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};
static const request some[] = {{150, 1}, {203, 4}, {96, 20}};

static fake_machine *machine;
static tamis_cuda *cuda;
/* Nobody follows these on such a driver. */
static void *const far = (void *)4096;

static tamis_cuda_plan *plan_of(const layers *l, const tamis_indexer *indexer, void *memory) {
    tamis_plan_limits limits = twin_limits(l, ROWS);
    tamis_error e = {0};
    tamis_cuda_plan *plan;
    int64_t bytes = tamis_cuda_plan_bytes(indexer, &limits, &e);
    succeeded(tamis_cuda_plan_create(cuda, indexer, &limits, memory, bytes, NULL, &plan, &e), &e,
              __LINE__);
    return plan;
}

static void refuse(tamis_status status, tamis_status want, const tamis_error *e, const char *name) {
    if (status != want || strstr(e->argument, name) == NULL) {
        fail_msg("status %d about %s (required %s, found %s), not %d about %s", status, e->argument,
                 e->required, e->found, want, name);
    }
}

static void creation(void **state) {
    (void)state;
    seed(1);
    layers *l = layers_make(sizes, some, COUNT(some));
    tamis_indexer *indexer = layers_indexer(l, "auto", TAMIS_SPARSE_ON);
    tamis_plan_limits limits = twin_limits(l, ROWS), bad = limits;
    tamis_cuda_plan *plan;
    tamis_error e = {0};
    int64_t bytes = tamis_cuda_plan_bytes(indexer, &limits, &e);
    bad.max_requests = 0;
#define REFUSE_PLAN(code, name, ...)                                                               \
    plan = far;                                                                                    \
    refuse(tamis_cuda_plan_create(__VA_ARGS__, NULL, &plan, &e), code, &e, name);                  \
    assert_null(plan)
    REFUSE_PLAN(TAMIS_ERROR_ARGUMENT, "cuda", NULL, indexer, &limits, far, bytes);
    REFUSE_PLAN(TAMIS_ERROR_ARGUMENT, "indexer", cuda, NULL, &limits, far, bytes);
    REFUSE_PLAN(TAMIS_ERROR_LIMIT, "max_requests", cuda, indexer, &bad, far, bytes);
    REFUSE_PLAN(TAMIS_ERROR_WORKSPACE, "bytes", cuda, indexer, &limits, far, bytes - 1);
    REFUSE_PLAN(TAMIS_ERROR_WORKSPACE, "memory", cuda, indexer, &limits, NULL, bytes);
    REFUSE_PLAN(TAMIS_ERROR_WORKSPACE, "memory", cuda, indexer, &limits, (void *)4160, bytes);
    assert_int_equal(tamis_cuda_plan_create(cuda, indexer, &limits, far, bytes, NULL, NULL, &e),
                     TAMIS_ERROR_ARGUMENT);
    assert_int_equal(tamis_cuda_plan_bytes(NULL, &limits, &e), -1);
    assert_int_equal(tamis_cuda_plan_bytes(indexer, &bad, &e), -1);
    tamis_cuda_plan_destroy(NULL);
    tamis_indexer_destroy(indexer);
}

/* A plan of at most `rows` rows. */
static tamis_cuda_plan *plan_for(const layers *l, const tamis_indexer *indexer, int64_t rows,
                                 int64_t max_context) {
    tamis_plan_limits limits = twin_limits(l, rows);
    tamis_cuda_plan *plan;
    tamis_error e = {0};
    limits.max_context = max_context;
    succeeded(tamis_cuda_plan_create(cuda, indexer, &limits, far,
                                     tamis_cuda_plan_bytes(indexer, &limits, &e), NULL, &plan, &e),
              &e, __LINE__);
    return plan;
}

/* Every kind of tile, with decoded K and a source's lists beside it, inside 256 MiB; those of the
 * dense route inside the plan's scratch, however short the host knows their rows to be. */
static void check_tiles(const tamis_cuda_plan *plan) {
    const tamis_indexer *indexer = plan->indexer;
    const tamis_plan_limits *limits = &plan->limits;
    const int64_t longest = tamis_cuda_dense_longest(indexer, limits);
    const int64_t own = indexer->model.index_topk + 1;
    const tamis_source_room room = tamis_cuda_source_room(indexer, limits);
    const tamis_tiling tilings[] = {tamis_cuda_sparse_tiling(indexer, limits, 2048),
                                    tamis_cuda_sparse_tiling(indexer, limits, own),
                                    tamis_cuda_group_tiling(indexer, limits),
                                    tamis_cuda_dense_tiling(plan, longest)};
    const int64_t beside =
        tamis_cuda_raised_capacity(indexer, limits) * 132 + room.lists * own * 4 + room.rows * 4;
    for (int i = 0; i < COUNT(tilings); i++) {
        assert_true(tilings[i].each * tilings[i].rows + beside <= 256 << 20);
        assert_true(tilings[i].rows % 8 == 0 || tilings[i].rows == tamis_plan_max_rows(limits));
    }
    assert_true(room.maxima + beside <= 256 << 20);
    assert_in_range(room.rows, 1, room.lists);
    assert_true(plan->work_bytes + beside <= 256 << 20);
    for (int64_t shorter = longest; shorter >= 0; shorter -= 31) {
        tamis_tiling t = tamis_cuda_dense_tiling(plan, shorter);
        assert_true(t.each * t.rows <= plan->work_bytes && t.each >= shorter * 4 && t.rows >= 1);
    }
}

/* Positions that a plan can decode. */
static int64_t capacity(shape like, int64_t rows, int64_t max_context) {
    layers *l = layers_make(like, some, COUNT(some));
    tamis_indexer *indexer = layers_indexer(l, "auto", TAMIS_SPARSE_ON);
    tamis_plan_limits limits = twin_limits(l, rows);
    limits.max_context = max_context;
    int64_t positions = tamis_cuda_raised_capacity(indexer, &limits);
    tamis_indexer_destroy(indexer);
    return positions;
}

static void decoded(void **state) {
    const shape fast = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 16, 8, 8, 1, TAMIS_NUMERICS_EXACT};
    shape s = fast;
    (void)state;
    assert_int_equal(capacity(fast, 128, 1000), 1024);
    assert_int_equal(capacity(fast, 128, 1024), 1024);
    assert_int_equal(capacity(fast, 128, 1 << 20), 1 << 20);
    assert_int_equal(capacity(fast, 128, 1 << 22), 1 << 20);
    assert_int_equal(capacity(fast, 128, 1 << 25), 0);
    assert_int_equal(capacity(fast, 127, 1000), 0);
#define WITHOUT(change)                                                                            \
    s = fast;                                                                                      \
    change;                                                                                        \
    assert_int_equal(capacity(s, 128, 1000), 0)
    WITHOUT(s.heads = 64);
    WITHOUT(s.dim = 64);
    WITHOUT(s.page_size = 48);
    WITHOUT(s.layout = TAMIS_K_MXFP4_ROW; s.page_size = 0);
    WITHOUT(s.layout = TAMIS_K_MXFP4_SPLIT; s.page_size = 0);
#undef WITHOUT
}

/* A source of 16,384 rows at a million positions: its scores would be 64 GiB. */
static void workspace(void **state) {
    (void)state;
    shape s = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 512, 2048, 8, 1, TAMIS_NUMERICS_EXACT};
    layers *l = layers_make(s, some, COUNT(some));
    for (int32_t mode = TAMIS_SPARSE_OFF; mode <= TAMIS_SPARSE_AUTO; mode++) {
        tamis_indexer *indexer = layers_indexer(l, "auto", mode);
        tamis_plan_limits limits = twin_limits(l, 16384);
        limits.max_context = 1 << 20;
        /* token, request, ks, ke, gated, done, taken, counts: 11 words a row; blocks, placed: 2
         * lists. */
        int64_t arrays = (int64_t)16384 * (11 * 4 + 2 * 2048 * 4) + 4096;
        int64_t bytes = tamis_cuda_plan_bytes(indexer, &limits, NULL);
        assert_true(bytes > arrays + tamis_cuda_raised_capacity(indexer, &limits) * 132);
        assert_true(bytes <= arrays + (256 << 20));
        tamis_cuda_plan *plan = plan_for(l, indexer, 16384, limits.max_context);
        check_tiles(plan);
        tamis_cuda_plan_destroy(plan);
        tamis_indexer_destroy(indexer);
    }
}

static void steps(void **state) {
    (void)state;
    seed(2);
    layers *l = layers_make(sizes, some, COUNT(some));
    tamis_indexer *indexer = layers_indexer(l, "auto", TAMIS_SPARSE_ON);
    tamis_cuda_plan *plan = plan_of(l, indexer, far);
    tamis_batch b = l->batch;
    tamis_step step;
    tamis_error e = {0};
    int launches = machine->launches;
#define REFUSE_STEP(change, code, name)                                                            \
    b = l->batch;                                                                                  \
    change;                                                                                        \
    refuse(tamis_cuda_step_make(plan, &b, &step, NULL, &e), code, &e, name)
    REFUSE_STEP(b.struct_size = 1, TAMIS_ERROR_STRUCT_SIZE, "struct_size");
    REFUSE_STEP(b.requests = MAX_TEST_REQUESTS + 1, TAMIS_ERROR_LIMIT, "requests");
    REFUSE_STEP(b.requests = 0, TAMIS_ERROR_ARGUMENT, "tokens");
    REFUSE_STEP(b.tokens = ROWS + 1, TAMIS_ERROR_LIMIT, "tokens");
    REFUSE_STEP(b.padded_rows = ROWS + 1, TAMIS_ERROR_LIMIT, "padded_rows");
    REFUSE_STEP(b.padded_rows = b.tokens - 1, TAMIS_ERROR_ARGUMENT, "padded_rows");
    REFUSE_STEP(b.context = NULL, TAMIS_ERROR_ARGUMENT, "context");
    REFUSE_STEP(b.query_start = NULL, TAMIS_ERROR_ARGUMENT, "context");
    REFUSE_STEP(b.page_table[0] = NULL, TAMIS_ERROR_ARGUMENT, "page_table");
    REFUSE_STEP(b.page_table_width[1] = -1, TAMIS_ERROR_ARGUMENT, "page_table_width");
    REFUSE_STEP(b.page_table_stride[1] = 1, TAMIS_ERROR_ARGUMENT, "page_table_stride");
    refuse(tamis_cuda_step_make(NULL, &l->batch, &step, NULL, &e), TAMIS_ERROR_ARGUMENT, &e,
           "plan");
    refuse(tamis_cuda_step_make(plan, &l->batch, NULL, NULL, &e), TAMIS_ERROR_ARGUMENT, &e, "step");
    assert_int_equal(machine->launches, launches);
    counting_reset();
    counting_begin();
    tamis_status status = tamis_cuda_step_make(plan, &l->batch, &step, far, &e);
    counting_end();
    succeeded(status, &e, __LINE__);
    assert_int_equal(counting_calls(), 0);
    assert_int_equal(machine->launches, launches + 1); /* one CTA has all rows */
    assert_ptr_equal(machine->stream, far);
    tamis_cuda_plan_destroy(plan);
    tamis_indexer_destroy(indexer);
}

/* One kernel where a CTA has all rows, or where there are none. */
static void step_kernels(void **state) {
    static const int64_t rows[][2] = {{0, 1}, {1, 1}, {256, 1}, {257, 2}, {600, 2}};
    (void)state;
    seed(6);
    layers *l = layers_make(sizes, some, COUNT(some));
    tamis_indexer *indexer = layers_indexer(l, "auto", TAMIS_SPARSE_ON);
    tamis_cuda_plan *plan = plan_for(l, indexer, 600, 300);
    for (int i = 0; i < COUNT(rows); i++) {
        tamis_batch b = l->batch;
        tamis_step step;
        tamis_error e = {0};
        int launches = machine->launches;
        b.tokens = rows[i][0];
        succeeded(tamis_cuda_step_make(plan, &b, &step, NULL, &e), &e, __LINE__);
        assert_int_equal(machine->launches, launches + rows[i][1]);
    }
    tamis_cuda_plan_destroy(plan);
    tamis_indexer_destroy(indexer);
}

typedef tamis_status run_call(tamis_cuda_plan *plan, const tamis_step *step,
                              const tamis_layer_args *args, void *stream, tamis_error *error);

static void runs(void **state) {
    (void)state;
    seed(3);
    layers *l = layers_make(sizes, some, COUNT(some));
    tamis_indexer *indexer = layers_indexer(l, "auto", TAMIS_SPARSE_ON);
    tamis_cuda_plan *plan = plan_of(l, indexer, far);
    tamis_cuda_plan *other = plan_of(l, indexer, (void *)8192);
    tamis_step step, old, its;
    tamis_error e = {0};
    succeeded(tamis_cuda_step_make(plan, &l->batch, &old, NULL, &e), &e, __LINE__);
    succeeded(tamis_cuda_step_make(plan, &l->batch, &step, NULL, &e), &e, __LINE__);
    succeeded(tamis_cuda_step_make(other, &l->batch, &its, NULL, &e), &e, __LINE__);
    int launches = machine->launches;
    outcome out = outcome_make(l, LAYER_SOURCE, ROWS);
    tamis_layer_args good = layers_args(l, LAYER_SOURCE, &out), a = good;
    run_call *source = tamis_cuda_source_run, *consumer = tamis_cuda_consumer_run;
#define REFUSE_RUN(call, of, change, code, name)                                                   \
    a = good;                                                                                      \
    change;                                                                                        \
    refuse(call(plan, of, &a, NULL, &e), code, &e, name)
    REFUSE_RUN(source, &old, (void)0, TAMIS_ERROR_STAMP, "serial");
    REFUSE_RUN(consumer, &old, a.layer = LAYER_CONSUMER, TAMIS_ERROR_STAMP, "serial");
    REFUSE_RUN(source, NULL, (void)0, TAMIS_ERROR_ARGUMENT, "step");
    REFUSE_RUN(source, &step, a.struct_size++, TAMIS_ERROR_STRUCT_SIZE, "struct_size");
    REFUSE_RUN(source, &step, a.layer = LAYERS, TAMIS_ERROR_ARGUMENT, "layer");
    REFUSE_RUN(source, &step, a.layer = LAYER_CONSUMER;
               a.blocks = NULL, TAMIS_ERROR_ARGUMENT, "layer");
    REFUSE_RUN(consumer, &step, (void)0, TAMIS_ERROR_ARGUMENT, "layer");
    REFUSE_RUN(source, &step, a.layer = LAYER_REUSE;
               a.blocks = NULL, TAMIS_ERROR_ARGUMENT, "layer");
    REFUSE_RUN(source, &step, a.layer = LAYER_FULL, TAMIS_ERROR_ARGUMENT, "blocks");
    REFUSE_RUN(source, &step, a.blocks_stride = 5, TAMIS_ERROR_ARGUMENT, "blocks_stride");
    REFUSE_RUN(source, &step, a.k.layout = TAMIS_K_MXFP4_ROW, TAMIS_ERROR_LAYOUT, "layout");
    REFUSE_RUN(source, &step, a.k.page_size = 32, TAMIS_ERROR_LAYOUT, "page_size");
    REFUSE_RUN(source, &step, a.k.codes = NULL, TAMIS_ERROR_LAYOUT, "codes");
    REFUSE_RUN(source, &step, a.query.heads = 8, TAMIS_ERROR_GEOMETRY, "heads");
    REFUSE_RUN(source, &step, a.query.codes = NULL, TAMIS_ERROR_ARGUMENT, "codes");
    REFUSE_RUN(source, &step, a.selection.topk = 8, TAMIS_ERROR_ARGUMENT, "topk");
    REFUSE_RUN(source, &step, a.selection.slots_stride = 1, TAMIS_ERROR_ARGUMENT, "slots_stride");
    refuse(source(plan, &its, &good, NULL, &e), TAMIS_ERROR_STAMP, &e, "step");
    refuse(source(NULL, &step, &good, NULL, &e), TAMIS_ERROR_ARGUMENT, &e, "plan");
    refuse(source(plan, &step, NULL, NULL, &e), TAMIS_ERROR_ARGUMENT, &e, "args");
    assert_int_equal(machine->launches, launches);
    /* gate; scores, publish, scores, topk. gate; scores, topk. */
    counting_reset();
    counting_begin();
    tamis_status status = source(plan, &step, &good, NULL, &e);
    counting_end();
    succeeded(status, &e, __LINE__);
    assert_int_equal(machine->launches, launches + 5);
    out.blocks = NULL;
    good = layers_args(l, LAYER_CONSUMER, &out);
    counting_begin();
    status = consumer(plan, &step, &good, NULL, &e);
    counting_end();
    succeeded(status, &e, __LINE__);
    assert_int_equal(counting_calls(), 0);
    assert_int_equal(machine->launches, launches + 8);
    tamis_cuda_plan_destroy(plan);
    tamis_cuda_plan_destroy(other);
    tamis_indexer_destroy(indexer);
}

/* What launched gives its plan. */
static const tamis_auto_band both = {.to = 12, .mixed = 1}, nearer = {.to = 10, .mixed = 1},
                             farther = {.from = 6, .to = 10, .mixed = 1}, apart = {.to = 10},
                             none = {.rows = 1}, *band = &both;

/* Of a layer of one step. */
static int launches_of(tamis_cuda_plan *plan, const layers *l, int32_t layer, int64_t rows) {
    tamis_step step;
    tamis_error e = {0};
    succeeded(tamis_cuda_step_make(plan, &l->batch, &step, NULL, &e), &e, __LINE__);
    int before = machine->launches;
    outcome out = outcome_make(l, layer, rows);
    tamis_layer_args args = layers_args(l, layer, &out);
    succeeded((layers_consumes(l, layer) ? tamis_cuda_consumer_run
                                         : tamis_cuda_source_run)(plan, &step, &args, NULL, &e),
              &e, __LINE__);
    return machine->launches - before;
}

/* Launches of a layer of one step: the routes that its plan may need, scores and selection in one
 * kernel where the shape allows. */
static int launched(const layers *l, int32_t mode, int64_t max_context, int32_t layer) {
    tamis_indexer *indexer = layers_indexer(l, "auto", mode);
    tamis_cuda_plan *plan = plan_for(l, indexer, ROWS, max_context);
    assert_null(plan->band);
    plan->band = band;
    int launches = launches_of(plan, l, layer, ROWS);
    tamis_cuda_plan_destroy(plan);
    tamis_indexer_destroy(indexer);
    return launches;
}

static void routes(void **state) {
    static const request one[] = {{203, 40}};
    static const shape fast = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 16, 8, 8, 1, TAMIS_NUMERICS_EXACT};
    int64_t border = 6 * 8 / TAMIS_CUDA_AUTO_PARTS * both.to;
    (void)state;
    seed(4);
    layers *l = layers_make(sizes, some, COUNT(some));
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_CONSUMER), 3);
    assert_int_equal(launched(l, TAMIS_SPARSE_OFF, 300, LAYER_CONSUMER), 3);
    assert_int_equal(launched(l, TAMIS_SPARSE_AUTO, 300, LAYER_CONSUMER), 5);
    assert_int_equal(launched(l, TAMIS_SPARSE_AUTO, border + 1, LAYER_CONSUMER), 5);
    assert_int_equal(launched(l, TAMIS_SPARSE_AUTO, border, LAYER_CONSUMER), 3);
    band = &none;
    assert_int_equal(launched(l, TAMIS_SPARSE_AUTO, 300, LAYER_CONSUMER), 3);
    band = &both;
    assert_int_equal(launched(l, TAMIS_SPARSE_AUTO, 300, LAYER_SOURCE), 5);
    l = layers_make(fast, one, COUNT(one)); /* rows enough for the machine's 8 multiprocessors */
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_CONSUMER), 1); /* gate and all */
    assert_int_equal(launched(l, TAMIS_SPARSE_AUTO, 300, LAYER_CONSUMER), 4);
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_SOURCE), 4);
}

/* From here on the machine counts a kernel's launches, and shows them to `look`. */
static void watch_kernel(int kernel, void (*look)(void **parameters)) {
    machine->watched = cuda->kernels[kernel] = (void *)machine; /* which no other is */
    machine->look = look;
    machine->seen = 0;
}

static void unwatch_kernel(int kernel) {
    machine->watched = cuda->kernels[kernel] = NULL;
    machine->look = NULL;
}

/* The routes of a consumer whose plan may have rows of both, when its page tables bound lengths to
 * `pages` pages. */
static void narrow(layers *l, int32_t mode, int64_t pages, int sparse, int dense) {
    l->batch.page_table_width[0] = l->batch.page_table_width[1] = pages;
    watch_kernel(TAMIS_CUDA_sparse_mqa_logits_smxx_h32_d64, NULL);
    int launches = launched(l, mode, 300, LAYER_CONSUMER);
    unwatch_kernel(TAMIS_CUDA_sparse_mqa_logits_smxx_h32_d64);
    assert_int_equal(machine->seen, sparse);
    assert_int_equal(launches, 1 + 2 * sparse + 2 * dense);
}

static void widths(void **state) {
    const int64_t part = 6 * 8 / TAMIS_CUDA_AUTO_PARTS, border = part * both.to,
                  page = sizes.page_size;
    (void)state;
    seed(8);
    layers *l = layers_make(sizes, some, COUNT(some));
    assert_true(l->batch.page_table_stride[0] * page > border + page);
    narrow(l, TAMIS_SPARSE_AUTO, border / page, 0, 1);
    narrow(l, TAMIS_SPARSE_AUTO, border / page + 1, 1, 1);
    narrow(l, TAMIS_SPARSE_AUTO, 0, 1, 0);
    band = &nearer;
    narrow(l, TAMIS_SPARSE_AUTO, part * nearer.to / page, 0, 1);
    narrow(l, TAMIS_SPARSE_AUTO, part * nearer.to / page + 1, 1, 1);
    band = &farther; /* rows that are short, too, take the dense route where all would else */
    narrow(l, TAMIS_SPARSE_AUTO, part * farther.from / page, 1, 0);
    narrow(l, TAMIS_SPARSE_AUTO, part * farther.from / page + 1, 0, 1);
    narrow(l, TAMIS_SPARSE_AUTO, part * farther.to / page, 0, 1);
    narrow(l, TAMIS_SPARSE_AUTO, part * farther.to / page + 1, 1, 1);
    band = &apart;
    narrow(l, TAMIS_SPARSE_AUTO, part * apart.to / page, 0, 1);
    narrow(l, TAMIS_SPARSE_AUTO, part * apart.to / page + 1, 1, 0);
    band = &both;
    narrow(l, TAMIS_SPARSE_ON, border / page, 1, 0);
    narrow(l, TAMIS_SPARSE_ON, 0, 1, 0);
    narrow(l, TAMIS_SPARSE_OFF, border / page + 1, 0, 1);
    l->batch.page_table[0] = l->batch.page_table[1] = NULL;
    l->batch.tokens = l->batch.requests = 0; /* padding alone, which reads no table */
    l->batch.padded_rows = ROWS;
    narrow(l, TAMIS_SPARSE_AUTO, 0, 1, 0);
}

/* What was measured, in eighths of the pool: `auto` costs no more than the cheaper route of plans
 * whose rows all see so much, but for what the document says. */
static void bands(void **state) {
    enum { PART = 6 * 8 / 8 };
    static const struct {
        int64_t rows, requests;
        int decoded, longest, above, border; /* above: -1 where no row is short */
    } cases[] = {
        {132, 1, 1, 8, -1, -1},   {133, 1, 1, 2, -1, -1},    {140, 1, 1, 3, -1, 9},
        {176, 1, 1, 8, -1, 9},    {176, 1, 1, 10, 2, 9},     {192, 1, 1, 6, -1, -1},
        {192, 1, 1, 8, -1, 8},    {192, 1, 1, 9, 6, 8},      {240, 1, 1, 8, -1, 8},
        {241, 1, 1, 8, -1, -1},   {264, 1, 1, 3, -1, -1},    {264, 1, 1, 9, -1, 9},
        {479, 3, 1, 4, -1, 9},    {480, 3, 1, 4, -1, -1},    {512, 4, 1, 8, -1, 8},
        {512, 1, 1, 64, -1, -1},  {528, 1, 1, 1, -1, -1},    {528, 1, 1, 2, -1, 12},
        {600, 1, 1, 64, 1, 12},   {896, 1, 1, 2, -1, -1},    {8192, 1, 1, 8, -1, 10},
        {8192, 64, 1, 64, 2, 10}, {132, 16, 0, 2, -1, -1},   {133, 16, 0, 8, -1, 10},
        {160, 20, 0, 11, 0, 10},  {200, 25, 0, 8, -1, 8},    {263, 8, 0, 9, 0, 8},
        {264, 33, 0, 9, -1, 10},  {264, 34, 0, 9, -1, -1},   {511, 8, 0, 64, 0, 10},
        {512, 64, 0, 14, -1, 14}, {512, 65, 0, 14, -1, -1},  {8192, 128, 0, 64, 0, 14},
        {900, 100, 0, 8, -1, -1}, {1200, 100, 0, 8, -1, 14}, {1700, 100, 0, 8, -1, -1},
        {8192, 0, 0, 2, -1, -1},
    };
    (void)state;
    layers *l = layers_make(sizes, some, COUNT(some));
    for (int32_t mode = TAMIS_SPARSE_OFF; mode <= TAMIS_SPARSE_AUTO; mode++) {
        tamis_indexer *indexer = layers_indexer(l, "auto", mode);
        tamis_cuda_plan *plan = plan_for(l, indexer, ROWS, 300);
        for (int i = 0; i < COUNT(cases); i++) {
            plan->rows = cases[i].rows;
            plan->requests = cases[i].requests;
            const int is_auto = mode == TAMIS_SPARSE_AUTO, off = mode == TAMIS_SPARSE_OFF;
            const int64_t above = cases[i].above < 0 ? -1 : PART * cases[i].above,
                          border = cases[i].border < 0 ? -1 : PART * cases[i].border;
            const tamis_dense_rows got =
                tamis_cuda_dense_rows(plan, cases[i].decoded, PART * cases[i].longest);
            assert_int_equal(got.above, is_auto ? above : -1);
            assert_int_equal(got.most, is_auto ? border : off ? INT32_MAX : -1);
            assert_true(!is_auto || border <= tamis_cuda_dense_longest(indexer, &plan->limits));
        }
        tamis_cuda_plan_destroy(plan);
        tamis_indexer_destroy(indexer);
    }
}

/* Of the lists that were queued, how many have a stamp, and which is the last of these. */
static int stamps, last_stamp;

static void look_at_lists(void **parameters) {
    const tamis_publish_job *job = parameters[0];
    stamps += job->stamp.stamp != NULL;
    last_stamp = job->stamp.stamp ? machine->seen : last_stamp;
}

/* Of a source whose plan has room for `rows` rows of a stretch and block maxima of `maxima`: its
 * last lists have the stamp, and no others. */
static int source_launches(const layers *l, int64_t rows, int64_t maxima, int64_t max_context) {
    tamis_indexer *indexer = layers_indexer(l, "auto", TAMIS_SPARSE_ON);
    tamis_cuda_plan *plan = plan_for(l, indexer, l->batch.tokens, max_context);
    plan->room.rows = rows;
    plan->room.maxima =
        maxima * tamis_maxima_units(plan->longest, l->shape.block) * TAMIS_MAXIMA_UNIT;
    stamps = last_stamp = 0;
    watch_kernel(TAMIS_CUDA_publish_smxx, look_at_lists);
    int launches = launches_of(plan, l, LAYER_SOURCE, l->batch.tokens);
    unwatch_kernel(TAMIS_CUDA_publish_smxx);
    assert_int_equal(stamps, 1);
    assert_int_equal(last_stamp, machine->seen);
    tamis_cuda_plan_destroy(plan);
    tamis_indexer_destroy(indexer);
    return launches;
}

/* gate; of a stretch: a cut where it is the device's, maxima and lists of each tile, then scores
 * and topk. Tables narrower than the plan's contexts bound lengths. */
static void tiles(void **state) {
    static const request one[] = {{400, 100}};
    (void)state;
    seed(7);
    layers *l = layers_make(sizes, one, 1);
    assert_int_equal(source_launches(l, 100, 100, 400), 1 + 2 + 2);
    assert_int_equal(source_launches(l, 100, 99, 400), 1 + 1 + 2 * 2 + 2);
    assert_int_equal(source_launches(l, 100, 28, 400), 1 + 1 + 2 * 5 + 2);
    assert_int_equal(source_launches(l, 100, 16, 400), 1 + 1 + 2 * 13 + 2);
    assert_int_equal(source_launches(l, 100, 15, 400), 1 + 2 * 13 + 2);
    assert_int_equal(source_launches(l, 100, 7, 400), 1 + 2 * 15 + 2);
    assert_int_equal(source_launches(l, 100, 1, 400), 1 + 2 * 100 + 2);
    assert_int_equal(source_launches(l, 40, 40, 400), 1 + 3 * 4);
    assert_int_equal(source_launches(l, 40, 28, 400), 1 + 2 * (1 + 2 * 2 + 2) + 4);
    assert_int_equal(source_launches(l, 100, 1, 1 << 20), 1 + 2 + 2);
}

/* Of a consumer whose plan has scratch for the scores of `fit` rows as long as any of the dense
 * route. */
static int dense_launches(const layers *l, int32_t mode, int64_t fit) {
    tamis_indexer *indexer = layers_indexer(l, "auto", mode);
    tamis_cuda_plan *plan = plan_for(l, indexer, l->batch.tokens, 400);
    plan->band = &both;
    const int64_t longest = tamis_cuda_dense_longest(indexer, &plan->limits);
    plan->work_bytes = tamis_cuda_dense_tiling(plan, longest).each * fit;
    int launches = launches_of(plan, l, LAYER_CONSUMER, l->batch.tokens);
    tamis_cuda_plan_destroy(plan);
    tamis_indexer_destroy(indexer);
    return launches;
}

/* gate; scores and topk of listed rows; then of as many tiles of dense ones as rows of the border's
 * length would need, or of what the page table holds. */
static void dense_tiles(void **state) {
    static const request one[] = {{400, 100}};
    (void)state;
    seed(9);
    layers *l = layers_make(sizes, one, 1);
    assert_int_equal(dense_launches(l, TAMIS_SPARSE_AUTO, 100), 1 + 2 + 2);
    assert_int_equal(dense_launches(l, TAMIS_SPARSE_AUTO, 99), 1 + 2 + 2 * 2);
    assert_int_equal(dense_launches(l, TAMIS_SPARSE_AUTO, 17), 1 + 2 + 2 * 7);
    assert_int_equal(dense_launches(l, TAMIS_SPARSE_AUTO, 7), 1 + 2 + 2 * 15);
    assert_int_equal(dense_launches(l, TAMIS_SPARSE_OFF, 100), 1 + 2);
    assert_int_equal(machine->grid_x, 100); /* of topk; where tiles may be empty, at most so many */
    assert_int_equal(dense_launches(l, TAMIS_SPARSE_OFF, 17), 1 + 2 * 7);
    assert_int_equal(machine->grid_x, 4 * cuda->multiprocessors);
    l->batch.page_table_width[0] = l->batch.page_table_width[1] = 2;       /* 32 positions */
    assert_int_equal(dense_launches(l, TAMIS_SPARSE_AUTO, 17), 1 + 2 * 3); /* 51 fit, and 34 */
    assert_int_equal(dense_launches(l, TAMIS_SPARSE_OFF, 17), 1 + 2);      /* 400 * 17 floats */
}

/* Hopper's kernels read K that a layer places and decodes, where a request can have rows for it. */
static void raises(void **state) {
    static const request many[] = {{203, 128}}, few[] = {{203, 127}},
                         others[] = {{203, 128}, {40, 1}},
                         spread[] = {{203, 124}, {40, 1}, {90, 3}};
    static const shape fast = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 16, 8, 8, 1, TAMIS_NUMERICS_EXACT};
    tamis_cu_handle *kernels = cuda->kernels;
    (void)state;
    seed(5);
    layers *l = layers_make(fast, many, COUNT(many));
    int source = launched(l, TAMIS_SPARSE_ON, 300, LAYER_SOURCE);
    int alone = launched(l, TAMIS_SPARSE_ON, 300, LAYER_CONSUMER);
    int consumer = alone + 1; /* a gate, which says whose K is decoded */
    kernels[TAMIS_CUDA_mqa_maxima_fast_sm90] = kernels[TAMIS_CUDA_mqa_logits_fast_sm90] = far;
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_SOURCE), source + 2);
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_CONSUMER), consumer);
    kernels[TAMIS_CUDA_consume_raised_sm90] = kernels[TAMIS_CUDA_consume_raised1_sm90] =
        kernels[TAMIS_CUDA_consume_raised2_sm90] = kernels[TAMIS_CUDA_consume_raised4_sm90] =
            kernels[TAMIS_CUDA_consume_rows_sm90] = far;
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_CONSUMER), consumer);
    band = NULL; /* of one wave of rows no other route pays */
    assert_int_equal(launched(l, TAMIS_SPARSE_AUTO, 300, LAYER_CONSUMER), consumer);
    band = &both; /* the dense route, too: scores, topk */
    assert_int_equal(launched(l, TAMIS_SPARSE_AUTO, 300, LAYER_CONSUMER), consumer + 2);
    assert_int_equal(machine->early, 0);
    cuda->early = 1; /* what follows the gate, scores, and what selects from them */
    assert_int_equal(launched(l, TAMIS_SPARSE_AUTO, 300, LAYER_CONSUMER), consumer + 2);
    assert_int_equal(machine->early, 3);
    assert_int_equal(launched(l, TAMIS_SPARSE_OFF, 300, LAYER_CONSUMER), 3);
    assert_int_equal(machine->early, 5);
    cuda->early = 0;
    const int32_t multiprocessors = cuda->multiprocessors;
    cuda->multiprocessors = 64; /* two rows of each */
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_CONSUMER), consumer);
    cuda->multiprocessors = 120; /* a wave, and 8 rows */
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_CONSUMER), consumer + 1);
    cuda->multiprocessors = multiprocessors;
    l = layers_make(fast, others, COUNT(others)); /* rows whose K is not decoded are left */
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_CONSUMER), consumer + 1);
    l = layers_make(fast, few, COUNT(few));
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_CONSUMER), alone);
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_SOURCE), source);
    l = layers_make(fast, spread, COUNT(spread));
    assert_int_equal(launched(l, TAMIS_SPARSE_ON, 300, LAYER_SOURCE), source);
    kernels[TAMIS_CUDA_mqa_maxima_fast_sm90] = kernels[TAMIS_CUDA_mqa_logits_fast_sm90] = NULL;
    kernels[TAMIS_CUDA_consume_raised_sm90] = kernels[TAMIS_CUDA_consume_raised1_sm90] =
        kernels[TAMIS_CUDA_consume_raised2_sm90] = kernels[TAMIS_CUDA_consume_raised4_sm90] =
            kernels[TAMIS_CUDA_consume_rows_sm90] = NULL;
}

static int after(void **state) {
    (void)state;
    release();
    return 0;
}

int main(void) {
    static const struct CMUnitTest list[] = {
        cmocka_unit_test_teardown(creation, after), cmocka_unit_test_teardown(workspace, after),
        cmocka_unit_test_teardown(steps, after),    cmocka_unit_test_teardown(step_kernels, after),
        cmocka_unit_test_teardown(runs, after),     cmocka_unit_test_teardown(decoded, after),
        cmocka_unit_test_teardown(raises, after),   cmocka_unit_test_teardown(routes, after),
        cmocka_unit_test_teardown(widths, after),   cmocka_unit_test_teardown(bands, after),
        cmocka_unit_test_teardown(tiles, after),    cmocka_unit_test_teardown(dense_tiles, after)};
    tamis_error e = {0};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    fake_machine *(*machine_of)(void) = NULL;
    void *found = library ? dlsym(library, "fake_machine_get") : NULL;
    memcpy(&machine_of, &found, sizeof found);
    if (machine_of == NULL || tamis_cuda_built() == 0) {
        printf("SKIPPED: %s\n", machine_of ? "a build without CUDA kernels" : "no fake driver");
        return SKIPPED;
    }
    machine = machine_of();
    *machine = (fake_machine){.version = 99000, .devices = 1, .major = 9, .context = 1};
    tamis_status status = tamis_cuda_create(&cuda, &e);
    if (status != TAMIS_OK) {
        printf("%s: required %s, found %s\n", e.argument, e.required, e.found);
        return 1;
    }
    int failed = cmocka_run_group_tests(list, NULL, NULL);
    tamis_cuda_destroy(cuda);
    return failed;
}
