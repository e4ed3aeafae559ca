/* SPDX-License-Identifier: MIT */
/*
 * properties.c: what holds on the GPU beyond equal bytes for valid arguments. gpu_properties NAME
 * runs one of: graph, far_pool, tiles, many_rows, live_length, quiet, errors.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "levels_on.h"
#include "require.h"

static test_device device;
/* The trial's outputs as they are after a pull, held to results of the CPU. */
static void require_results(const scene *s, const trial *t, const results *want, const char *what) {
    results got = trial_results(t);
    level_equal(s, want, &got, what);
    results_free(&got);
}

static tamis_backend *cpu(void) {
    tamis_backend *backend;
    tamis_error error;
    REQUIRE_OK(tamis_backend_create("auto", &backend, &error), error);
    return backend;
}

/* ---- graph: captured at length 10, replayed at 100,000 and at 0 ---- */

enum { GRAPH_ROWS = 3, GRAPH_CONTEXT = 100000 };

/* Replays with other lengths and holds the outputs to the CPU's. */
static void replay_at(const mirror *m, void *exec, const tamis_rows *rows, int number,
                      const int64_t *lengths, block_lists lists, const char *what) {
    static const placement where = {.layout = TAMIS_K_MXFP4_PAGE};
    tamis_backend *backend = cpu();
    scene s;
    int32_t ke[GRAPH_ROWS];
    results want;
    rows_of(&s, SCENE_MIXED, GRAPH_CONTEXT, lengths, GRAPH_ROWS, 5);
    for (int i = 0; i < GRAPH_ROWS; i++)
        ke[i] = (int32_t)lengths[i];
    device_write(&device, mirror_at(m, rows->ke), ke, sizeof ke);
    device_replay(&device, exec);
    memcpy((void *)(uintptr_t)rows->ke, ke, sizeof ke); /* inputs are compared by the pull */
    mirror_pull(m);
    if (number == STAGE_source)
        want = level_source(backend, &s, flash, &where, level_whole);
    else
        want = level_consume(backend, &s, flash, lists, &where, level_whole);
    require_results(&s, m->t, &want, what);
    results_free(&want);
    scene_free(&s);
    tamis_backend_destroy(backend);
}

static void graph_of(int number, block_lists lists) {
    static const int64_t captured[GRAPH_ROWS] = {10, 10, 10}, none[GRAPH_ROWS] = {0, 0, 0},
                         replayed[GRAPH_ROWS] = {GRAPH_CONTEXT, 99993, 16385};
    placement where = {.layout = TAMIS_K_MXFP4_PAGE};
    scene s;
    trial t;
    mirror m;
    rows_of(&s, SCENE_MIXED, GRAPH_CONTEXT, captured, GRAPH_ROWS, 5);
    if (number == STAGE_source)
        source_trial(&t, &s, flash, &where);
    else if (number == STAGE_consume)
        consume_trial(&t, &s, flash, lists, &where);
    else
        dense_trial(&t, &s, flash, lists, &where);
    const tamis_rows *rows = number == STAGE_source    ? &t.args.source.rows
                             : number == STAGE_consume ? &t.args.consume.rows
                                                       : &t.args.dense.rows;
    mirror_new(&m, &device, &t, number, 0);
    void *exec = device_capture(&device, number, &m.args);
    replay_at(&m, exec, rows, number, captured, lists, "replay at 10");
    replay_at(&m, exec, rows, number, replayed, lists, "replay at 100,000");
    replay_at(&m, exec, rows, number, none, lists, "replay at 0");
    replay_at(&m, exec, rows, number, replayed, lists, "replay at 100,000 again");
    device.exec_destroy(exec);
    mirror_free(&m);
    trial_free(&t);
    scene_free(&s);
}

static void test_graph(void) {
    int32_t *ids = calloc((size_t)GRAPH_ROWS * 2048, sizeof *ids);
    REQUIRE(ids, "out of memory");
    for (int64_t i = 0; i < (int64_t)GRAPH_ROWS * 2048; i++)
        ids[i] = (int32_t)((i * 6) % 12500); /* visible ones, ones past the shorter rows' ends */
    block_lists lists = {ids, 2048, NULL};
    graph_of(STAGE_source, lists);
    graph_of(STAGE_consume, lists);
    graph_of(STAGE_dense, lists);
    free(ids);
    printf("gpu: graphs captured at 10 positions replay at 100,000 and at 0\n");
}

/* ---- far_pool: pages beyond 4 GiB ---- */

/* Moves the trial's pages behind `skip` pages of nobody; ids move alike. */
static uint8_t *move_pages(mirror *m, tamis_k_cache *k, const tamis_rows *rows, int64_t skip) {
    void *pool;
    tamis_error error;
    int64_t bytes = (skip + k->size) * k->stride;
    REQUIRE_OK(tamis_cuda_alloc(device.cuda, bytes, &pool, &error), error);
    device_write(&device, (uint8_t *)pool + skip * k->stride, k->codes,
                 (k->size - 1) * k->stride +
                     (int64_t)k->page_size * tamis_k_row_bytes(k->head_dim));
    int32_t *table = (int32_t *)(uintptr_t)rows->page_table;
    for (int64_t i = 0; i < rows->requests; i++)
        for (int64_t p = 0; p < rows->page_table_width; p++) {
            int32_t *page = table + i * rows->page_table_stride + p;
            *page = *page >= 0 && *page < k->size ? *page + (int32_t)skip : *page;
        }
    device_write(&device, mirror_at(m, table), table,
                 ((rows->requests - 1) * rows->page_table_stride + rows->page_table_width) * 4);
    return pool;
}

static void test_far_pool(void) {
    enum { ROWS = 4, SKIP = 1300000 }; /* 64-slot pages: 5.6 GB */
    static const int64_t lengths[ROWS] = {3000, 17, 2999, 1024};
    placement where = {.layout = TAMIS_K_MXFP4_PAGE, .page_size = 64};
    tamis_backend *backend = cpu();
    level l = flash;
    scene s;
    trial t;
    mirror m;
    l.topk = 64;
    l.topk_blocks = 100;
    rows_of(&s, SCENE_MIXED, 3000, lengths, ROWS, 9);
    results want = level_source(backend, &s, l, &where, level_whole);
    source_trial(&t, &s, l, &where);
    mirror_new(&m, &device, &t, STAGE_source, 0);
    uint8_t *pool = move_pages(&m, &t.args.source.k, &t.args.source.rows, SKIP);
    m.args.source.k.codes = pool;
    m.args.source.k.size += SKIP;
    device_run(&device, STAGE_source, &m.args);
    mirror_pull(&m);
    const tamis_selection *out = &t.args.source.selection;
    for (int64_t i = 0; i < (int64_t)ROWS * l.topk; i++)
        if (out->slots[i] >= 0)
            out->slots[i] -= (int64_t)SKIP * 64;
    require_results(&s, &t, &want, "pages behind 4 GiB");
    results_free(&want);
    REQUIRE_OK(tamis_cuda_free(device.cuda, pool, NULL), (tamis_error){0});
    mirror_free(&m);
    trial_free(&t);
    scene_free(&s);
    tamis_backend_destroy(backend);
    printf("gpu: pages 5.6 GB into a pool are read where they lie\n");
}

/* ---- tiles: more rows than the workspace holds at once ---- */

static void test_tiles(void) {
    enum { ROWS = 200 };
    placement where = {.layout = TAMIS_K_MXFP4_PAGE, .page_size = 64};
    tamis_backend *backend = cpu();
    level l = flash;
    scene s;
    trial t;
    mirror m;
    int64_t lengths[ROWS];
    for (int i = 0; i < ROWS; i++)
        lengths[i] = i * 7 % 601;
    l.topk = 16;
    l.topk_blocks = 24;
    rows_of(&s, SCENE_MIXED, 600, lengths, ROWS, 3);
    results want = level_source(backend, &s, l, &where, level_whole);
    source_trial(&t, &s, l, &where);
    t.args.source.rows.page_table_width = 131072; /* 8 M positions, of which rows see few */
    mirror_new(&m, &device, &t, STAGE_source, 0);
    REQUIRE(m.workspace_bytes <= (int64_t)256 << 20 && m.workspace_bytes > (int64_t)200 << 20,
            "a workspace of %lld bytes", (long long)m.workspace_bytes);
    device_run(&device, STAGE_source, &m.args);
    mirror_pull(&m);
    require_results(&s, &t, &want, "tiles");
    results_free(&want);
    mirror_free(&m);
    trial_free(&t);
    scene_free(&s);
    tamis_backend_destroy(backend);
    printf("gpu: 200 rows in tiles of %lld bytes\n", (long long)m.workspace_bytes);
}

/* ---- many_rows: as few and as many as kernels of their own score and select ---- */

/* A consumer's rows over pools of `width` blocks, of every hazard. The CPU takes most of the time,
 * so it works on several threads. */
static void require_rows(int64_t rows, int64_t width, int64_t context) {
    static const slicing threads = {.nth = 8, .order = ORDER_THREADS, .poison = 0xA5};
    placement where = {.layout = TAMIS_K_MXFP4_PAGE, .page_size = 64};
    tamis_backend *backend = cpu();
    int64_t *lengths = calloc((size_t)rows, sizeof *lengths);
    int32_t *ids = calloc((size_t)(rows * width), sizeof *ids);
    REQUIRE(lengths && ids, "out of memory");
    for (int64_t i = 0; i < rows; i++)
        lengths[i] = i % 5 == 4 ? i * 37 % 90 : context - i * 7 % 1801;
    for (int64_t i = 0; i < rows * width; i++)
        ids[i] = (int32_t)((i % width) * 2 + i / width % 3); /* some rows end before them */
    block_lists lists = {ids, width, NULL};
    for (int hazard = 0; hazard < SCENE_HAZARD_COUNT; hazard++) {
        level l = flash;
        scene s;
        trial t;
        mirror m;
        test_context("%lld rows, %lld blocks, %s", (long long)rows, (long long)width,
                     scene_hazard_text(hazard));
        l.topk = hazard % 2 ? 512 : 37;
        rows_of(&s, hazard, context, lengths, rows, (uint64_t)hazard + 11);
        results want = level_consume(backend, &s, l, lists, &where, threads);
        consume_trial(&t, &s, l, lists, &where);
        mirror_new(&m, &device, &t, STAGE_consume, 0);
        device_run(&device, STAGE_consume, &m.args);
        mirror_pull(&m);
        require_results(&s, &t, &want, "many rows");
        results_free(&want);
        mirror_free(&m);
        trial_free(&t);
        scene_free(&s);
    }
    free(ids);
    free(lengths);
    tamis_backend_destroy(backend);
    printf("gpu: %lld rows of each hazard, %lld blocks each\n", (long long)rows, (long long)width);
}

static void test_many_rows(void) {
    enum { MANY = 700 };
    REQUIRE(device.cuda->multiprocessors * 2 <= MANY, "a GPU larger than the test");
    require_rows(MANY, 301, 5003);
    require_rows(1100, 301, 5003); /* pairs of rows with everything and with nothing in common */
    require_rows(300, 1024, 9003); /* lists too long for a warpgroup each */
    require_rows(150, 301, 5003);
    require_rows(1, 2048, 40003);
    require_rows(2, 2047, 40003);
    require_rows(8, 2048, 40003);
    require_rows(64, 2048, 20003);
}

/* ---- live_length: cost follows what rows see, not what the table could hold ---- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Least time of a replay over many, in microseconds: other work of the machine only adds. */
static double replay_time(int number, const mirror *m) {
    enum { RUNS = 300 };
    void *exec = device_capture(&device, number, &m->args);
    double best = 1e9;
    for (int i = 0; i < RUNS; i++) {
        double start = seconds();
        device_replay(&device, exec);
        double took = 1e6 * (seconds() - start);
        best = took < best ? took : best;
    }
    device.exec_destroy(exec);
    return best;
}

static double time_of(int number, const scene *s, block_lists lists, int64_t positions) {
    placement where = {.layout = TAMIS_K_MXFP4_PAGE, .page_size = 64};
    trial t;
    mirror m;
    if (number == STAGE_source)
        source_trial(&t, s, flash, &where);
    else if (number == STAGE_consume)
        consume_trial(&t, s, flash, lists, &where);
    else
        dense_trial(&t, s, flash, lists, &where);
    tamis_rows *rows = number == STAGE_source    ? &t.args.source.rows
                       : number == STAGE_consume ? &t.args.consume.rows
                                                 : &t.args.dense.rows;
    rows->page_table_width = positions / 64;
    mirror_new(&m, &device, &t, number, 0);
    double took = replay_time(number, &m);
    mirror_free(&m);
    trial_free(&t);
    return took;
}

static void test_live_length(void) {
    enum { ROWS = 16, WIDTH = 256 };
    static const int stages[] = {STAGE_source, STAGE_consume, STAGE_dense};
    static const char *const names[] = {"source", "consume", "dense"};
    int64_t lengths[ROWS];
    int32_t ids[ROWS * WIDTH];
    scene s;
    for (int i = 0; i < ROWS; i++)
        lengths[i] = 2048 - i;
    for (int i = 0; i < ROWS * WIDTH; i++)
        ids[i] = i % WIDTH;
    rows_of(&s, SCENE_PLAIN, 2048, lengths, ROWS, 4);
    for (int i = 0; i < 3; i++) {
        block_lists lists = {ids, WIDTH, NULL};
        double small = time_of(stages[i], &s, lists, 4096),
               large = time_of(stages[i], &s, lists, 1 << 20);
        printf("gpu: %s, 16 rows at 2K: %.1f us planned for 4K, %.1f us for 1M\n", names[i], small,
               large);
        REQUIRE(large <= 1.2 * small, "%s: %.1f us planned for 1M, %.1f us for 4K", names[i], large,
                small);
    }
    scene_free(&s);
}

/* ---- quiet: stages call the driver for nothing but launches ---- */

static int noise;
static tamis_cu_result noisy(void) {
    noise++;
    return TAMIS_CU_SUCCESS;
}

/* Every entry of the driver's table but the two that stages may use counts its calls. */
static void count_calls(tamis_driver *driver) {
    tamis_cu_result (*counter)(void) = noisy;
#define COUNT_FIELD(field, symbol, arguments) memcpy(&driver->field, &counter, sizeof counter);
    tamis_driver kept = *driver;
    TAMIS_DRIVER_LIST(COUNT_FIELD)
    TAMIS_DRIVER_OPTIONAL_LIST(COUNT_FIELD)
#undef COUNT_FIELD
    driver->launch = kept.launch;
    driver->context_get = kept.context_get;
}

static void test_quiet(void) {
    static const int64_t lengths[] = {900, 30, 0};
    int32_t ids[3 * 20];
    placement where = {.layout = TAMIS_K_MXFP4_PAGE};
    tamis_driver *driver = &device.cuda->driver;
    tamis_driver kept = *driver;
    scene s;
    trial t[3];
    mirror m[3];
    size_t before = 0, after = 0, total = 0;
    block_lists lists = {ids, 20, NULL};
    for (int i = 0; i < 60; i++)
        ids[i] = i % 20 * 3;
    rows_of(&s, SCENE_MIXED, 900, lengths, 3, 6);
    source_trial(&t[0], &s, flash, &where);
    consume_trial(&t[1], &s, flash, lists, &where);
    dense_trial(&t[2], &s, flash, lists, &where);
    mirror_new(&m[0], &device, &t[0], STAGE_source, 0);
    mirror_new(&m[1], &device, &t[1], STAGE_consume, 0);
    mirror_new(&m[2], &device, &t[2], STAGE_dense, 0);
    device.memory_info(&before, &total);
    count_calls(driver);
    for (int i = 0; i < 3; i++) {
        static const int stages[] = {STAGE_source, STAGE_consume, STAGE_dense};
        tamis_error error;
        REQUIRE_OK(device_queue(&device, stages[i], &m[i].args, &error), error);
    }
    *driver = kept;
    device_sync(&device);
    device.memory_info(&after, &total);
    REQUIRE(noise == 0, "%d calls of the driver that are no launches", noise);
    REQUIRE(before == after, "the first calls took %lld bytes of device memory",
            (long long)before - (long long)after);
    for (int i = 0; i < 3; i++) {
        mirror_free(&m[i]);
        trial_free(&t[i]);
    }
    scene_free(&s);
    printf("gpu: the first calls allocate nothing, wait for nothing\n");
}

/* ---- errors ---- */

static void require_error(tamis_status status, const tamis_error *error, tamis_status want,
                          const char *argument) {
    REQUIRE(status == want && strcmp(error->argument, argument) == 0, "status %d about %s: %s, %s",
            status, error->argument, error->required, error->found);
}

static void test_errors(void) {
    tamis_error error;
    tamis_cuda *other = NULL;
    tamis_cuda_device found[8];
    tamis_topk_args topk;
    tamis_mqa_logits_args logits;
    void *memory;
    const char *name;
    REQUIRE(tamis_cuda_devices(found, 8) >= 1 && found[0].supported && found[0].name[0] != '\0',
            "no supported device is listed");
    REQUIRE(tamis_cuda_driver_version() / 1000 >= tamis_cuda_built() / 1000, "driver %d",
            tamis_cuda_driver_version());
    printf("gpu: %s, compute capability %d.%d, driver of CUDA %d, kernels of CUDA %d\n",
           found[0].name, found[0].major, found[0].minor, tamis_cuda_driver_version(),
           tamis_cuda_built());
    require_error(tamis_cuda_create_on(999, &other, &error), &error, TAMIS_ERROR_TIER, "device");
    require_error(tamis_cuda_create_on(-1, &other, &error), &error, TAMIS_ERROR_ARGUMENT, "device");
    REQUIRE_OK(tamis_cuda_create(&other, &error), error); /* in the context that is current */
    tamis_cuda_destroy(other);

    REQUIRE(tamis_cuda_result(device.cuda) == 0, "a result before any failure");
    require_error(tamis_cuda_alloc(device.cuda, (int64_t)1 << 50, &memory, &error), &error,
                  TAMIS_ERROR_MEMORY, "cuMemAlloc");
    name = tamis_cuda_result_text(device.cuda, tamis_cuda_result(device.cuda));
    REQUIRE(strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY") == 0, "the result is %s", name);
    REQUIRE(strcmp(tamis_cuda_result_text(device.cuda, 123456), "unknown") == 0, "a name for it");

    tamis_mqa_logits_args_default(&logits);
    logits.numerics = TAMIS_NUMERICS_DG_BF16;
    require_error(tamis_cuda_mqa_logits(device.cuda, &logits, device.stream, &error), &error,
                  TAMIS_ERROR_NUMERICS, "args.numerics");
    tamis_topk_args_default(&topk);
    topk.logits_type = TAMIS_F32;
    topk.selection.topk = 8;
    REQUIRE_OK(tamis_cuda_topk(device.cuda, &topk, device.stream, &error), error); /* no rows */
    device.cuda->driver.context_set(NULL);
    require_error(tamis_cuda_topk(device.cuda, &topk, device.stream, &error), &error,
                  TAMIS_ERROR_CUDA, "context");
    require_error(tamis_cuda_create(&other, &error), &error, TAMIS_ERROR_TIER, "context");
    REQUIRE(other == NULL, "an object from a failed creation");
    device.cuda->driver.context_set(device.cuda->context);
    printf("gpu: failures are named\n");
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"graph", test_graph},         {"far_pool", test_far_pool},       {"tiles", test_tiles},
    {"many_rows", test_many_rows}, {"live_length", test_live_length}, {"quiet", test_quiet},
    {"errors", test_errors}};

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < sizeof tests / sizeof *tests; i++)
        if (strcmp(tests[i].name, argv[1]) == 0) {
            test_context("%s", argv[1]);
            test_catch_faults();
            device_open(&device);
            tests[i].run();
            device_close(&device);
            return 0;
        }
    fprintf(stderr, "usage: gpu_properties NAME\n");
    return 2;
}
