/* SPDX-License-Identifier: MIT */
/*
 * plan_tiles.c: sources in tiles and stretches of rows, in rooms far smaller than a plan's own, so
 * that few rows take many: the bytes of plans on the CPU, whatever the rows' lengths are and a
 * graph's replays make of them. And lists of rows so long that their best blocks are guessed from a
 * sample. gpu_plan_tiles NAME runs one of: small, stretches, mixed, far, graph, guesses.
 */
#include "plan_device.h"

/* What a plan has room for, in rows; maxima: of the longest. */
typedef struct room {
    int64_t rows, lists, maxima;
} room;

static const room rooms[] = {{8192, 16384, 16}, {640, 700, 17}, {300, 600, 40}, {24, 48, 23}};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void shrink(scene *s, room to) {
    tamis_source_room *own = &s->plan->room;
    const int32_t block = tamis_model_block_size(&s->indexer->model);
    own->rows = least(own->rows, to.rows);
    own->lists = least(own->lists, to.lists);
    own->maxima = least(own->maxima, to.maxima * tamis_maxima_units(s->plan->longest, block) *
                                         TAMIS_MAXIMA_UNIT);
}

static void hold(scene *s, const tamis_step *step, const outcome *want, const char *what) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            scene_run(s, step, layer);
            scene_holds(s, layer, &want[layer], what);
        }
    }
}

/* Tiles that the device cut for the source that ran last: whole runs of rows, which lie apart
 * inside the buffer. */
static void check_tiles(const scene *s) {
    const tamis_source_room *own = &s->plan->room;
    const int64_t rows = (s->rows - 1) % own->rows + 1, first = s->rows - rows; /* of a stretch */
    const int32_t k = s->l->shape.source_ratio - 1, block = s->l->shape.block;
    const int64_t width = s->l->batch.page_table_width[k] * s->l->shape.page_size;
    if (rows * tamis_maxima_units(least(width, s->plan->longest), block) * TAMIS_MAXIMA_UNIT <=
        own->maxima) {
        return; /* they fit */
    }
    int32_t *starts = fresh((rows / TAMIS_TILE_RUN + 2) * 4), *ks = fresh(rows * 4),
            *ke = fresh(rows * 4);
    uint32_t *at = fresh(rows * 4);
    gpu_read(starts, s->plan->tile_starts, (rows / TAMIS_TILE_RUN + 2) * 4);
    gpu_read(at, s->plan->tile_at, rows * 4);
    gpu_read(ks, s->plan->ks[k] + first, rows * 4);
    gpu_read(ke, s->plan->gated[0] + first, rows * 4);
    assert_int_equal(starts[0], 0);
    for (int tile = 0; starts[tile] < rows; tile++) {
        int64_t next = 0;
        assert_true(starts[tile] % TAMIS_TILE_RUN == 0 && starts[tile + 1] >= starts[tile]);
        for (int32_t r = starts[tile]; r < starts[tile + 1]; r++) {
            assert_int_equal(at[r], next);
            next += tamis_maxima_units(ke[r] - ks[r], block);
        }
        assert_true(next * TAMIS_MAXIMA_UNIT <= own->maxima);
    }
}

static void compare(layers *l, int64_t max_context, room to, const char *what) {
    outcome want[LAYERS];
    scene s = scene_make(l, 3, TAMIS_SPARSE_ON, max_context);
    shrink(&s, to);
    scene_expect(&s, l, &l->batch, want);
    for (int turn = 0; turn < 2; turn++) {
        tamis_step step = twin_step(s.plan, &s.t);
        hold(&s, &step, want, what);
        if (l->shape.page_size) {
            check_tiles(&s);
        }
    }
    assert_int_equal(tamis_cuda_plan_status(s.plan), TAMIS_CUDA_PLAN_GOOD);
    scene_end(&s);
}

/* Few enough for compute-sanitizer's tools. */
static void small(void **state) {
    static const request few[] = {{150, 1}, {203, 4}, {96, 20}, {0, 0}, {30, 30}};
    static const shape sizes = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};
    (void)state;
    for (int i = 0; i < COUNT(rooms); i++) {
        seed(295 + (uint64_t)i);
        compare(layers_make(sizes, few, COUNT(few)), 0, rooms[i], "small");
    }
}

/* Every route of a layer's own selection: by groups and not, from pages and from decoded K. */
static void stretches(void **state) {
    static const request many[] = {{1500, 700}, {333, 60}, {40, 1}, {0, 0}, {900, 250}, {8, 8}};
    static const shape shapes[] = {
        {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 48, 40, 8, 1, TAMIS_NUMERICS_EXACT},
        {TAMIS_K_MXFP4_PAGE, 16, 32, 128, 60, 40, 16, 2, TAMIS_NUMERICS_BF16},
        {TAMIS_K_MXFP4_PAGE, 48, 4, 64, 12, 13, 8, 1, TAMIS_NUMERICS_EXACT},
        {TAMIS_K_MXFP4_SPLIT, 0, 32, 128, 20, 30, 8, 1, TAMIS_NUMERICS_EXACT},
    };
    (void)state;
    for (int i = 0; i < 8; i++) {
        const shape *s = &shapes[i / 2];
        seed(300 + (uint64_t)i);
        layers *l =
            i < 4 ? close_layers(*s, many, COUNT(many)) : layers_make(*s, many, COUNT(many));
        compare(l, 2048 + 2048 * (i % 2), rooms[(i + i / 4) % COUNT(rooms)], "stretches");
    }
}

/* Long and short rows in one step, and many that see nothing. */
static void mixed(void **state) {
    static const request first_long[] = {{30000, 3},  {200, 200}, {0, 0}, {64, 64},
                                         {16000, 20}, {9, 9},     {1, 1}},
                         last_long[] = {{2, 1}, {260, 260}, {40, 12}, {0, 0}, {20000, 40}};
    static const shape sizes = {TAMIS_K_MXFP4_PAGE,  64, 32, 128, 48, 40, 8, 1,
                                TAMIS_NUMERICS_EXACT};
    (void)state;
    for (int i = 0; i < 4; i++) {
        seed(320 + (uint64_t)i);
        layers *l = i % 2 ? close_layers(sizes, first_long, COUNT(first_long))
                          : close_layers(sizes, last_long, COUNT(last_long));
        compare(l, i < 2 ? 0 : 1 << 17, rooms[i], "mixed");
    }
}

/* Rows so long that K does not stay in L2: CTAs then begin inside their shares (source.cuh). */
static void far(void **state) {
    static const request pages[] = {{270000, 24}}, decoded[] = {{263000, 128}};
    static const shape sizes = {TAMIS_K_MXFP4_PAGE,  64, 32, 128, 48, 40, 8, 1,
                                TAMIS_NUMERICS_EXACT};
    (void)state;
    seed(330);
    compare(close_layers(sizes, pages, 1), 0, rooms[0], "far, from pages");
    compare(close_layers(sizes, decoded, 1), 0, rooms[2], "far, decoded");
}

/* ---- graphs ---- */

static void *capture(scene *s) {
    gpu_capture_begin();
    tamis_step step = twin_step(s->plan, &s->t);
    scene_queue(s, &step);
    return gpu_capture_end();
}

static void replay_as(scene *s, void *exec, const tamis_batch *batch, const char *what) {
    outcome want[LAYERS];
    scene_expect(s, s->l, batch, want);
    scene_replay(s, exec);
    scene_holds_all(s, want, what);
}

/* One graph, whose every replay makes other tiles. */
static void graph(void **state) {
    enum { REQUESTS = 4 };
    static const request largest[] = {{3000, 300}, {3000, 200}, {3000, 160}, {3000, 140}};
    static const int64_t zero[REQUESTS] = {0}, one_long[] = {3000, 201, 160, 140},
                         last_long[] = {300, 200, 160, 2999}, all_short[] = {300, 200, 160, 140};
    static const int32_t no_rows[REQUESTS + 1] = {0}, all_rows[] = {0, 300, 500, 660, 800},
                                            few_rows[] = {0, 1, 201, 201, 341};
    static const shape sizes = {TAMIS_K_MXFP4_PAGE,  64, 32, 128, 48, 40, 8, 1,
                                TAMIS_NUMERICS_EXACT};
    (void)state;
    for (int i = 0; i < 2; i++) {
        seed(340 + (uint64_t)i);
        scene s =
            scene_make(close_layers(sizes, largest, REQUESTS), 3, TAMIS_SPARSE_ON, i ? 0 : 1 << 15);
        shrink(&s, rooms[i]);
        scene_lengths(&s, zero, no_rows);
        void *exec = capture(&s);
#define REPLAY(context, starts)                                                                    \
    do {                                                                                           \
        tamis_batch batch = scene_lengths(&s, context, starts);                                    \
        replay_as(&s, exec, &batch, #context ", " #starts);                                        \
    } while (0)
        REPLAY(s.l->context, all_rows);
        REPLAY(all_short, all_rows);
        REPLAY(one_long, few_rows);
        REPLAY(zero, no_rows);
        REPLAY(last_long, all_rows);
        REPLAY(s.l->context, few_rows);
#undef REPLAY
        device.exec_destroy(exec);
        scene_end(&s);
    }
}

/* ---- guesses ---- */

/* Block maxima for which a sample of sixteen in 128 says what is so, too little, too much, all too
 * much, and nothing. */
static float maximum_of(int kind, int64_t i) {
    const float any = (float)random_below(1 << 24) / (1 << 24);
    switch (kind) {
    case 0:
        return any;
    case 1:
        return any + (i % 128 < 16 ? 0.0f : 2.0f);
    case 2:
        return any + (i % 128 < 16 ? 2.0f : 0.0f);
    case 3:
        return (float)i;
    default:
        return random_below(8) ? 1.0f : float_of(0x7FC00000u);
    }
}

static void lists_of(tamis_backend *backend, tamis_publish_args a, const char *what) {
    tamis_error e = {0};
    const int64_t ids = a.rows.count * a.blocks_stride;
    int32_t *want = fresh(ids * 4), *got = fresh(ids * 4);
    a.blocks = want;
    succeeded(tamis_publish(backend, &a, 0, 1, &e), &e, __LINE__);
    a.rows.ke = gpu_copy(a.rows.ke, a.rows.count * 4);
    a.block_max = gpu_copy(a.block_max, a.rows.count * a.block_max_stride * 4);
    a.blocks = gpu_copy(got, ids * 4);
    succeeded(tamis_cuda_publish(device.cuda, &a, device.stream, &e), &e, __LINE__);
    gpu_sync();
    gpu_read(got, a.blocks, ids * 4);
    if (memcmp(got, want, (size_t)(ids * 4)) != 0) {
        fail_msg("%s, of %d blocks: other lists", what, a.topk_blocks);
    }
}

static void guesses(void **state) {
    enum { ROWS = 20, BLOCKS = 131072 }; /* more rows than clusters take */
    static const char *const kinds[] = {"as the sample", "outside of the sample", "inside it",
                                        "ascending", "equal and NaN"};
    tamis_error e = {0};
    tamis_backend *backend;
    (void)state;
    seed(360);
    succeeded(tamis_backend_create("auto", &backend, &e), &e, __LINE__);
    for (int kind = 0; kind < COUNT(kinds); kind++) {
        tamis_publish_args a;
        tamis_publish_args_default(&a);
        int32_t *ke = fresh(ROWS * 4);
        float *maxima = fresh((int64_t)ROWS * BLOCKS * 4);
        for (int64_t i = 0; i < (int64_t)ROWS * BLOCKS; i++) {
            maxima[i] = maximum_of(kind, i % BLOCKS);
        }
        for (int32_t r = 0; r < ROWS; r++) {
            ke[r] = r % 4 ? BLOCKS * 8 - r * r * 1000 : 32768 * 8 - 12 + r;
        }
        a.block_size = 8;
        a.rows.count = ROWS;
        a.rows.ke = ke;
        a.block_max = maxima;
        a.block_max_stride = BLOCKS;
        for (a.topk_blocks = 2048; a.topk_blocks > 0; a.topk_blocks /= 45) {
            a.blocks_stride = a.topk_blocks;
            lists_of(backend, a, kinds[kind]);
        }
        gpu_release();
    }
    tamis_backend_destroy(backend);
    release();
}

static const struct CMUnitTest list[] = {cmocka_unit_test(small), cmocka_unit_test(stretches),
                                         cmocka_unit_test(mixed), cmocka_unit_test(far),
                                         cmocka_unit_test(graph), cmocka_unit_test(guesses)};

int main(int argc, char **argv) {
    return gpu_main(list, COUNT(list), "gpu_plan_tiles", argc, argv);
}
