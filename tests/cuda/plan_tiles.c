/* SPDX-License-Identifier: MIT */
/*
 * plan_tiles.c: sources in tiles and stretches of rows, in rooms far smaller than a plan's own, so
 * that few rows take many: the bytes of plans on the CPU, whatever the rows' lengths are and a
 * graph's replays make of them. gpu_plan_tiles NAME runs one of: stretches, mixed, graph.
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
    own->maxima = least(own->maxima, to.maxima * tamis_cuda_maxima_bytes(s->plan->longest, block));
}

static void hold(scene *s, const tamis_step *step, const outcome *want, const char *what) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            scene_run(s, step, layer);
            scene_holds(s, layer, &want[layer], what);
        }
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
    }
    assert_int_equal(tamis_cuda_plan_status(s.plan), TAMIS_CUDA_PLAN_GOOD);
    scene_end(&s);
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

/* ---- graphs ---- */

static void queue_all(scene *s, const tamis_step *step) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            twin_queue(s->plan, step, &s->t, layer, &s->out[layer]);
        }
    }
}

static void *capture(scene *s) {
    enum { GLOBAL = 0 };
    void *graph = NULL, *exec = NULL;
    gpu_call(device.capture_begin(device.stream, GLOBAL), "begin capture");
    tamis_step step = twin_step(s->plan, &s->t);
    queue_all(s, &step);
    gpu_call(device.capture_end(device.stream, &graph), "end capture");
    gpu_call(device.instantiate(&exec, graph, 0), "instantiate");
    device.graph_destroy(graph);
    return exec;
}

static void replay_as(scene *s, void *exec, const tamis_batch *batch, const char *what) {
    outcome want[LAYERS];
    scene_expect(s, s->l, batch, want);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            gpu_poison(s->l, layer, &s->out[layer]);
        }
    }
    gpu_call(device.graph_launch(exec, device.stream), "graph launch");
    gpu_sync();
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            scene_holds(s, layer, &want[layer], what);
        }
    }
    assert_int_equal(tamis_cuda_plan_status(s->plan), TAMIS_CUDA_PLAN_GOOD);
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

static const struct CMUnitTest list[] = {cmocka_unit_test(stretches), cmocka_unit_test(mixed),
                                         cmocka_unit_test(graph)};

int main(int argc, char **argv) {
    return gpu_main(list, COUNT(list), "gpu_plan_tiles", argc, argv);
}
