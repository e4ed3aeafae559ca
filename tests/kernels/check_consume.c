/* SPDX-License-Identifier: MIT */
/* check_consume.c: the best positions inside published blocks (spec 5.3), of lists of any kind. */
#include "levels.h"

static tamis_consume_args make(const scene *s, int32_t numerics, int32_t block, int32_t topk,
                               int64_t width) {
    tamis_consume_args a;
    tamis_consume_args_default(&a);
    a.numerics = numerics;
    a.k = s->k;
    a.rows = s->rows;
    a.query = s->query;
    a.block_size = block;
    a.width = width;
    a.blocks_stride = width + 2;
    a.blocks = random_lists(s, block, width, a.blocks_stride);
    a.counts = random_counts(s, width);
    selection_make(&a.selection, s->rows_count, topk);
    a.workspace_bytes = tamis_consume_workspace(&a, 3);
    assert_true(a.workspace_bytes >= 0);
    a.workspace = fresh(a.workspace_bytes);
    return a;
}

static void check(const scene *s, const tamis_consume_args *a) {
    int32_t want[TAMIS_MAX_TOPK];
    for (int64_t r = 0; r < s->rows_count; r++) {
        float *scores = scene_scores(s, a->numerics, r);
        int64_t width = a->counts ? a->counts[r] : a->width;
        int64_t count =
            oracle_consume(scores, scene_len(s, r), a->block_size, a->blocks + r * a->blocks_stride,
                           width, a->selection.topk, want);
        selection_same(s, &a->selection, r, want, count, scores);
    }
}

static void every_class(void **state) {
    (void)state;
    seed(31);
    for (int i = 0; i < SCENES; i++) {
        scene s = level_scene(i);
        tamis_consume_args a =
            make(&s, i % 4 + 1, i % 5 < 2 ? 16 : 8, level_topk(i), random_below(30));
        a.counts = i % 3 ? a.counts : NULL;
        RUN(consume, &a);
        check(&s, &a);
        release();
    }
}

/* Every ks % S, the last block partly visible. */
static void every_start(void **state) {
    (void)state;
    seed(32);
    for (int32_t i = 0; i < 17 * 3 * 2; i++) {
        scene s = level_scene(4 * (i % 3));
        for (int r = 0; r < s.rows_count; r++) {
            s.ks[r] = i / 6 + 16 * r;
            s.ke[r] = (int32_t)(s.positions - random_below(20));
        }
        tamis_consume_args a = make(&s, TAMIS_NUMERICS_EXACT, i / 3 % 2 ? 8 : 16, 24, 9);
        RUN(consume, &a);
        check(&s, &a);
        release();
    }
}

/* A pool of thousands, lists as published: ascending, unique, the newest block last. */
static void big_pools(void **state) {
    static const int32_t topk[] = {1, 8, 512, 1024, 2048, 4096};
    (void)state;
    seed(33);
    for (int i = 0; i < 2 * COUNT(topk); i++) {
        int32_t block = i % 2 ? 8 : 16;
        scene s = big_scene(i);
        tamis_consume_args a = make(&s, i % 2 + 1, block, topk[i / 2], i % 4 ? 300 : 4096);
        int32_t *blocks = (int32_t *)(uintptr_t)a.blocks;
        for (int r = 0; r < s.rows_count; r++) {
            oracle_publish(scene_scores(&s, TAMIS_NUMERICS_EXACT, r), scene_len(&s, r), block,
                           a.width, blocks + r * a.blocks_stride);
        }
        a.counts = NULL;
        RUN(consume, &a);
        check(&s, &a);
        release();
    }
}

/* Score and merge, any number of slices each: what consume gives. */
static void split(void **state) {
    (void)state;
    seed(41);
    for (int i = 0; i < SCENES; i += 3) {
        scene s = level_scene(i);
        tamis_consume_args a =
            make(&s, i % 4 + 1, i % 5 < 2 ? 16 : 8, level_topk(i), random_below(30));
        a.workspace_bytes = tamis_consume_split_workspace(&a, 3);
        assert_true(a.workspace_bytes >= 0);
        a.workspace = fresh(a.workspace_bytes);
        RUN_SPLIT(consume, &a, i / 3 % 3 + 1);
        check(&s, &a);
        release();
    }
}

static void refusals(void **state) {
    static const int32_t negative[LEVEL_ROWS] = {1, -1}, beyond[LEVEL_ROWS] = {1, 1, 1000};
    (void)state;
    seed(34);
    scene s = level_scene(0);
    tamis_consume_args good = make(&s, TAMIS_NUMERICS_EXACT, 8, 16, 9);
    good.counts = NULL;
    watch_none();
    selection_watch(&good.selection, s.rows_count);
    REFUSE_LEVEL(consume);
    REFUSE(consume, a.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(consume, a.block_size = 12, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(consume, a.width = -1, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(consume, a.width = 4097, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(consume, a.blocks = NULL, TAMIS_ERROR_ARGUMENT, "blocks");
    REFUSE(consume, a.blocks_stride = 8, TAMIS_ERROR_ARGUMENT, "blocks_stride");
    REFUSE(consume, a.counts = negative, TAMIS_ERROR_LENGTH, "counts[1]");
    good.block_size = 0;
    assert_true(tamis_consume_workspace(&good, 1) == -1);
    good.block_size = 8;
    assert_true(tamis_consume_workspace(&good, 0) == -1);
    REFUSE_COMMON(consume);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class), cmocka_unit_test(every_start), cmocka_unit_test(big_pools),
        cmocka_unit_test(split),       cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
