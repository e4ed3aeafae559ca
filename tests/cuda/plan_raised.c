/* SPDX-License-Identifier: MIT */
/*
 * plan_raised.c: K that device plans decode once (raised_k.h): its places and bytes against the
 * definition, the selections against plans on the CPU, and that K of another step, layer or table
 * is never read. gpu_plan_raised NAME runs one of: bytes, same, released, falling, ties, order,
 * forged, graphs.
 */
#include <math.h>

#include "plan_device.h"

static const shape two_level = {TAMIS_K_MXFP4_PAGE,  64, 32, 128, 48, 40, 8, 1,
                                TAMIS_NUMERICS_EXACT};
/* Below, at and above the rows from which K is decoded, and those between that are not. */
static const request mixed[] = {{1500, 400}, {40, 1}, {900, 200}, {333, 127},
                                {300, 128},  {0, 0},  {2000, 2},  {129, 129}};

/* ---- a plan and its twin ---- */

static void scene_good_end(scene *s) {
    assert_int_equal(tamis_cuda_plan_status(s->plan), TAMIS_CUDA_PLAN_GOOD);
    scene_end(s);
}

static void good(scene *s, const tamis_step *step, int32_t layer, const outcome *want,
                 const char *what) {
    scene_run(s, step, layer);
    scene_holds(s, layer, &want[layer], what);
}

static void all_good(scene *s, const tamis_step *step, const outcome *want, const char *what) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            good(s, step, layer, want, what);
        }
    }
}

/* ---- places and bytes ---- */

/* Dim d of position j of what was decoded: raised_k.h. */
static int32_t byte_of(const uint8_t *codes, int64_t j, int d) {
    int step = d % 32 / 8, pair = (int)(j % 8 / 2), half = d % 8 / 4;
    int64_t at = 256 * step + 64 * pair + 16 * (d / 32) + 8 * half + 4 * (j % 2) + d % 4;
    return (int8_t)codes[j / 8 * 1024 + at];
}

/* K of plain row r: its scale, and dim d doubled and raised. */
static float scale_of(const keys *k, int64_t r, int *most) {
    const uint8_t *s = page_scales(&k->cache, k->slot[r]);
    int least = 255;
    *most = 0;
    for (int g = 0; g < 4; g++) {
        *most = s[g] > *most ? s[g] : *most;
        least = s[g] < least ? s[g] : least;
    }
    float scale = ldexpf(1.0f, *most - 127);
    return *most == 255 ? NAN : *most - least > 3 ? -scale : scale;
}

static int32_t raised_dim(const keys *k, int64_t r, int d, int most) {
    static const int doubled[] = {0, 1, 2, 3, 4, 6, 8, 12};
    const uint8_t *page = k->cache.codes + k->slot[r] / k->cache.page_size * k->cache.stride;
    int64_t at = k->slot[r] % k->cache.page_size;
    int code = page[at * 64 + d / 2] >> (d % 2 * 4) & 15;
    int value = doubled[code & 7] << (3 - (most - page_scales(&k->cache, k->slot[r])[d / 32]));
    return code & 8 ? -value : value;
}

static void check_request(const keys *k, int64_t i, int64_t length, const uint8_t *codes,
                          const float *scales) {
    for (int64_t j = 0; j < (length + 63) / 64 * 64; j++) {
        int most = 0;
        float scale = j < length ? scale_of(k, k->start[i] + j, &most) : 0.0f;
        if (isnan(scale) != isnan(scales[j]) || (!isnan(scale) && scale != scales[j])) {
            fail_msg("request %d, position %d: scale %g, not %g", (int)i, (int)j, scales[j], scale);
        }
        for (int d = 0; d < 128 && scale >= 0; d++) {
            int32_t want = j < length ? raised_dim(k, k->start[i] + j, d, most) : 0;
            if (byte_of(codes, j, d) != want) {
                fail_msg("request %d, position %d of %d, dim %d: %d, not %d", (int)i, (int)j,
                         (int)length, d, byte_of(codes, j, d), want);
            }
        }
    }
}

/* After a layer of this ratio: every request has its place, and there its K. Returns how many. */
static int check_decoded(const scene *s, int32_t ratio) {
    enum { ROOM = MAX_TEST_REQUESTS };
    int64_t capacity = s->plan->raised_capacity, next = 0;
    int32_t first[ROOM], length[ROOM], there = 0;
    uint8_t *codes = fresh(capacity * 128);
    float *scales = fresh(capacity * 4);
    gpu_read(first, s->plan->raised.first, sizeof first);
    gpu_read(length, s->plan->raised.length, sizeof length);
    gpu_read(codes, s->plan->raised.codes, capacity * 128);
    gpu_read(scales, s->plan->raised.scales, capacity * 4);
    for (int32_t i = 0; i < ROOM; i++) {
        int64_t positions = i < s->l->batch.requests ? s->l->context[i] / ratio : 0;
        int64_t rows = i < s->l->batch.requests ? layers_fresh(s->l, i) : 0;
        int64_t blind = ratio - 1 - (s->l->context[i] - rows); /* rows that see nothing yet */
        int64_t padded = (positions + 63) / 64 * 64;
        int many = rows - (blind > 0 ? blind : 0) >= TAMIS_RAISED_ROWS && padded <= capacity;
        int64_t place = many && next + padded <= capacity ? capacity - next - padded : -1;
        assert_int_equal(first[i], place);
        next += many ? padded : 0;
        if (place >= 0) {
            there++;
            assert_int_equal(length[i], positions);
            check_request(&s->l->keys[ratio - 1], i, positions, codes + place * 128,
                          scales + place);
        }
    }
    return there;
}

static int decodes(const scene *s) {
    if (s->plan->raised.codes == NULL) {
        printf("no kernel of this device reads decoded K\n");
    }
    return s->plan->raised.codes != NULL;
}

/* Room for all, for some, for the first alone, and for all but the first. */
static void bytes(void **state) {
    static const request long_first[] = {{70000, 128}, {600, 128}, {128, 128}};
    (void)state;
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        shape sizes = two_level;
        sizes.source_ratio = ratio;
        seed(200 + (uint64_t)ratio);
        scene s = scene_make(close_layers(sizes, mixed, COUNT(mixed)), 5, TAMIS_SPARSE_ON, 4096);
        if (decodes(&s)) {
            tamis_step step = twin_step(s.plan, &s.t);
            scene_run(&s, &step, LAYER_SOURCE);
            assert_int_equal(check_decoded(&s, ratio), 4);
            scene_run(&s, &step, LAYER_FULL);
            assert_int_equal(check_decoded(&s, 3 - ratio), 4);
        }
        scene_good_end(&s);
        seed(210 + (uint64_t)ratio);
        s = scene_make(close_layers(sizes, mixed, COUNT(mixed)), 0, TAMIS_SPARSE_ON, 0);
        if (decodes(&s)) { /* 2,048 positions */
            tamis_step step = twin_step(s.plan, &s.t);
            scene_run(&s, &step, LAYER_SOURCE);
            assert_int_equal(check_decoded(&s, ratio), ratio == 1 ? 1 : 4);
        }
        scene_good_end(&s);
    }
    seed(220);
    scene s = scene_make(close_layers(two_level, long_first, 3), 0, TAMIS_SPARSE_ON, 0);
    if (decodes(&s)) {
        tamis_step step = twin_step(s.plan, &s.t);
        scene_run(&s, &step, LAYER_SOURCE);
        assert_int_equal(check_decoded(&s, 1), 1);
        s.plan->raised_capacity = 704;
        scene_run(&s, &step, LAYER_FULL);
        assert_int_equal(check_decoded(&s, 2), 1);
        s.plan->raised_capacity = 256; /* 320 of 600 / 2 */
        scene_run(&s, &step, LAYER_FULL);
        assert_int_equal(check_decoded(&s, 2), 0);
    }
    scene_good_end(&s);
}

/* ---- selections ---- */

static void compare_layers(layers *l, int32_t mode, int64_t max_context, const char *what) {
    outcome want[LAYERS];
    scene s = scene_make(l, 3, mode, max_context);
    scene_expect(&s, s.l, &s.l->batch, want);
    for (int turn = 0; turn < 2; turn++) {
        tamis_step step = twin_step(s.plan, &s.t);
        all_good(&s, &step, want, what);
    }
    scene_good_end(&s);
}

static void compare(shape sizes, const request *requests, int32_t count, int32_t mode,
                    int64_t max_context, const char *what) {
    compare_layers(close_layers(sizes, requests, count), mode, max_context, what);
}

static void same(void **state) {
    shape s = two_level;
    (void)state;
    for (int i = 0; i < 12; i++) {
        s.source_ratio = 1 + i % 2;
        s.page_size = i % 3 ? 64 : 16;
        s.numerics = i == 5 ? TAMIS_NUMERICS_BF16 : TAMIS_NUMERICS_EXACT;
        s.block = i == 7 ? 16 : 8;
        seed(230 + (uint64_t)i);
        compare(s, mixed, COUNT(mixed), i % 4 == 3 ? i / 4 % 3 : TAMIS_SPARSE_ON, i % 2 ? 4096 : 0,
                "mixed requests");
    }
    static const request few[] = {{700, 128}}, some[] = {{700, 128}, {650, 5}},
                         one_more[] = {{700, 128}, {650, 1}}, wave[] = {{700, 255}, {650, 1}},
                         many[] = {{90, 1}, {5000, 640}};
    seed(250);
    compare(s, few, COUNT(few), TAMIS_SPARSE_ON, 0, "few rows");
    compare(s, one_more, COUNT(one_more), TAMIS_SPARSE_ON, 0, "few rows and another's");
    compare(s, wave, COUNT(wave), TAMIS_SPARSE_ON, 0, "a wave with another's row");
    compare(s, some, COUNT(some), TAMIS_SPARSE_ON, 0, "some rows");
    compare(s, many, COUNT(many), TAMIS_SPARSE_ON, 0, "one request");
    s.topk_blocks = 0;
    s.block = 0;
    compare(s, many, COUNT(many), TAMIS_SPARSE_ON, 0, "one level");
}

static void released(void **state) {
    static const request some[] = {{17500, 530}, {16400, 130}, {16500, 3}},
                         fewer[] = {{17000, 180}, {16400, 40}, {16500, 3}}, few[] = {{17000, 129}};
    shape s = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 512, 2048, 8, 1, TAMIS_NUMERICS_EXACT};
    (void)state;
    seed(260);
    compare(s, some, COUNT(some), TAMIS_SPARSE_ON, 40000, "released sizes");
    compare(s, fewer, COUNT(fewer), TAMIS_SPARSE_ON, 40000, "released sizes, fewer rows");
    compare(s, few, COUNT(few), TAMIS_SPARSE_ON, 40000, "released sizes, few rows");
}

/* Nearly all of the best are among the first positions, so that a floor guessed from those is too
 * high for the others. */
static void falling_rows(int32_t rows, int32_t blocks) {
    const request one[] = {{9000, rows}};
    enum { HIGH = 600 };
    shape s = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 200, blocks, 8, 1, TAMIS_NUMERICS_EXACT};
    seed(265 + (uint64_t)rows);
    layers *l = closer_layers(s, one, 1);
    for (int k = 0; k < 2; k++) {
        const keys *own = &l->keys[k];
        for (int64_t r = own->start[0] + HIGH; r < own->start[1]; r++) {
            uint8_t *scales = page_scales(&own->cache, own->slot[r]);
            for (int g = 0; g < 4; g++) {
                scales[g] = (uint8_t)(scales[g] - 24);
            }
        }
    }
    compare_layers(l, TAMIS_SPARSE_ON, 20000, "falling scores");
}

static void falling(void **state) {
    (void)state;
    falling_rows(400, 600);  /* a warpgroup a row */
    falling_rows(270, 600);  /* two, and a few rows by many, where there are 132 multiprocessors */
    falling_rows(200, 600);  /* two */
    falling_rows(140, 600);  /* four, and a few rows by many */
    falling_rows(128, 1100); /* four */
}

/* Most positions score 0, as many as the cut: the lowest of them are selected, however early a
 * floor is guessed. */
static void tied(const request *requests, int32_t count, int32_t topk, int32_t blocks) {
    shape s = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, topk, blocks, 8, 1, TAMIS_NUMERICS_EXACT};
    layers *l = closer_layers(s, requests, count);
    for (int k = 0; k < 2; k++) {
        const tamis_k_cache *c = &l->keys[k].cache;
        for (int64_t i = 0; i < c->size * c->page_size; i++) {
            if (random_below(50) != 0) {
                memset(c->codes + i / c->page_size * c->stride + i % c->page_size * 64, 0, 64);
            }
        }
    }
    compare_layers(l, TAMIS_SPARSE_ON, 20000, "ties");
}

static void ties(void **state) {
    static const request many[] = {{9000, 340}}, more[] = {{9000, 270}}, some[] = {{9000, 200}},
                         few[] = {{9000, 128}},
                         from_pages[] = {{9000, 70}, {8000, 70}, {9000, 70}, {7000, 70}},
                         long_lists[] = {{9000, 100}, {8500, 100}, {8400, 70}},
                         released[] = {{17000, 270}};
    (void)state;
    seed(268);
    tied(many, COUNT(many), 200, 600);
    tied(more, COUNT(more), 200, 600);
    tied(some, COUNT(some), 200, 600);
    tied(few, COUNT(few), 200, 1100);
    tied(from_pages, COUNT(from_pages), 200, 600);
    tied(long_lists, COUNT(long_lists), 200, 1024);
    tied(released, COUNT(released), 512, 2048);
}

/* ---- whose K it is ---- */

/* Other layers between a source and its consumers, each decoding K of its own over the source's. */
static void order(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        outcome want[LAYERS];
        shape sizes = two_level;
        sizes.source_ratio = 1 + i % 2;
        seed(270 + (uint64_t)i);
        scene s = scene_make(close_layers(sizes, mixed, COUNT(mixed)), 2,
                             i / 2 ? TAMIS_SPARSE_ON : TAMIS_SPARSE_OFF, 4096);
        scene_expect(&s, s.l, &s.l->batch, want);
        tamis_step step = twin_step(s.plan, &s.t);
        good(&s, &step, LAYER_SOURCE, want, "source");
        good(&s, &step, LAYER_CONSUMER, want, "after the source");
        good(&s, &step, LAYER_FULL, want, "full layer");
        good(&s, &step, LAYER_CONSUMER, want, "after a full layer");
        good(&s, &step, LAYER_CONSUMER + 1, want, "after a full layer");
        step = twin_step(s.plan, &s.t);
        good(&s, &step, LAYER_FULL, want, "full layer");
        good(&s, &step, LAYER_SOURCE, want, "source");
        good(&s, &step, LAYER_CONSUMER + 2, want, "after both");
        scene_good_end(&s);
    }
}

/* A consumer with this stamp over decoded bytes that are wrong: whether it read them. */
static int reads(scene *s, const tamis_step *step, const tamis_raised_stamp *stamp,
                 const outcome *want) {
    int64_t size = s->plan->raised_capacity * 128;
    tamis_raised_stamp kept;
    uint8_t *codes = fresh(size), *wrong = fresh(size);
    gpu_read(&kept, s->plan->raised_stamp, sizeof kept);
    gpu_read(codes, s->plan->raised.codes, size);
    random_bytes(wrong, size);
    gpu_write(s->plan->raised.codes, wrong, size);
    gpu_write(s->plan->raised_stamp, stamp, sizeof *stamp);
    scene_run(s, step, LAYER_CONSUMER);
    gpu_write(s->plan->raised_stamp, &kept, sizeof kept);
    gpu_write(s->plan->raised.codes, codes, size);
    outcome got = gpu_pull(s->l, LAYER_CONSUMER, &s->out[LAYER_CONSUMER]);
    const outcome *w = &want[LAYER_CONSUMER];
    return memcmp(got.selection.positions, w->selection.positions,
                  (size_t)(s->rows * w->selection.positions_stride * 4)) != 0;
}

static void forged_in(int32_t mode) {
    outcome want[LAYERS];
    seed(280);
    scene s = scene_make(close_layers(two_level, mixed, COUNT(mixed)), 2, mode, 4096);
    if (decodes(&s)) {
        scene_expect(&s, s.l, &s.l->batch, want);
        tamis_step step = twin_step(s.plan, &s.t);
        tamis_raised_stamp stamp, other;
        scene_run(&s, &step, LAYER_SOURCE);
        gpu_read(&stamp, s.plan->raised_stamp, sizeof stamp);
#define FORGED(change)                                                                             \
    other = stamp;                                                                                 \
    change;                                                                                        \
    assert_false(reads(&s, &step, &other, want))
        assert_true(reads(&s, &step, &stamp, want)); /* else nothing here is shown */
        FORGED(other.serial--);
        FORGED(other.serial = 0);
        FORGED(other.from.codes += 64);
        FORGED(other.from.page_table++);
        FORGED(other.from.page_table_stride++);
        FORGED(other.from.requests++);
        FORGED(other.from.limit--);
        FORGED(other.from.owner--);
#undef FORGED
        good(&s, &step, LAYER_CONSUMER, want, "with its own stamp again");
    }
    scene_good_end(&s);
}

static void forged(void **state) {
    (void)state;
    forged_in(TAMIS_SPARSE_OFF);
    forged_in(TAMIS_SPARSE_ON);
}

/* ---- graphs ---- */

static void *capture(scene *s, const tamis_step *step, int32_t layer) {
    gpu_capture_begin();
    if (step) {
        twin_queue(s->plan, step, &s->t, layer, &s->out[layer]);
    } else {
        twin_step(s->plan, &s->t);
    }
    return gpu_capture_end();
}

/* Each layer and the step graphs of their own. */
typedef struct graphs {
    void *step, *layer[LAYERS];
} graphs;

static void replay(scene *s, void *exec, int32_t layer) {
    if (layer >= 0) {
        gpu_poison(s->l, layer, &s->out[layer]);
    }
    gpu_call(device.graph_launch(exec, device.stream), "graph launch");
    gpu_sync();
}

static void replay_as(scene *s, const graphs *g, const layers *l, const tamis_batch *batch,
                      const char *what) {
    static const int32_t order_of[] = {LAYER_SOURCE, LAYER_CONSUMER, LAYER_FULL, LAYER_CONSUMER + 1,
                                       LAYER_CONSUMER};
    outcome want[LAYERS];
    scene_expect(s, l, batch, want);
    replay(s, g->step, -1);
    for (int i = 0; i < COUNT(order_of); i++) {
        replay(s, g->layer[order_of[i]], order_of[i]);
        scene_holds(s, order_of[i], &want[order_of[i]], what);
    }
}

/* Captured at lengths of nothing, replayed at others, over other K and tables, and again. */
static void graphs_of(int32_t ratio, int32_t mode) {
    static const request some[] = {{1400, 500}, {800, 190}, {500, 3}};
    static const int64_t zero[3] = {0}, shorter[] = {700, 800, 130};
    static const int32_t no_rows[4] = {0}, other_rows[] = {0, 127, 257, 387},
                         few[] = {0, 40, 80, 120};
    shape sizes = two_level;
    sizes.source_ratio = ratio;
    seed(290 + (uint64_t)ratio);
    layers *first = close_layers(sizes, some, COUNT(some));
    layers *second = close_layers(sizes, some, COUNT(some)); /* the same sizes, other bits */
    second->batch.padded_rows = second->batch.tokens + 3;
    scene s = scene_make(first, 3, mode, 2048);
    scene_lengths(&s, zero, no_rows);
    graphs g = {capture(&s, NULL, -1), {NULL}};
    tamis_step step = twin_step(s.plan, &s.t);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        g.layer[layer] = layers_selects(layer) ? capture(&s, &step, layer) : NULL;
    }
    tamis_batch batch = scene_lengths(&s, first->context, first->query_start);
    replay_as(&s, &g, first, &batch, "whole");
    batch = scene_lengths(&s, shorter, other_rows);
    replay_as(&s, &g, first, &batch, "other lengths");
    batch = scene_lengths(&s, shorter, few);
    replay_as(&s, &g, first, &batch, "few rows each");
    twin_fill(&s.t, second);
    replay_as(&s, &g, second, &second->batch, "other contents");
    batch = scene_lengths(&s, zero, no_rows);
    replay_as(&s, &g, second, &batch, "nothing");
    twin_fill(&s.t, first);
    replay_as(&s, &g, first, &first->batch, "the first contents again");
    device.exec_destroy(g.step);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (g.layer[layer]) {
            device.exec_destroy(g.layer[layer]);
        }
    }
    scene_good_end(&s);
}

static void graphs_replayed(void **state) {
    (void)state;
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        graphs_of(ratio, TAMIS_SPARSE_ON);
        graphs_of(ratio, TAMIS_SPARSE_OFF);
    }
}

static const struct CMUnitTest list[] = {
    cmocka_unit_test(bytes),    cmocka_unit_test(same),
    cmocka_unit_test(released), cmocka_unit_test(falling),
    cmocka_unit_test(ties),     cmocka_unit_test(order),
    cmocka_unit_test(forged),   {"graphs", graphs_replayed, NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    return gpu_main(list, COUNT(list), "gpu_plan_raised", argc, argv);
}
