/* SPDX-License-Identifier: MIT */
/* check_dense.c: everything scored, masked by published blocks or not (spec 5.1, 5.3, 7.1). */
#include "levels.h"

static tamis_dense_args make(const scene *s, int32_t numerics, int32_t block, int32_t topk,
                             int64_t width) {
    tamis_dense_args a;
    tamis_dense_args_default(&a);
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
    a.workspace_bytes = tamis_dense_workspace(&a, 3);
    assert_true(a.workspace_bytes >= 0);
    a.workspace = fresh(a.workspace_bytes);
    return a;
}

static void check(const scene *s, const tamis_dense_args *a) {
    int32_t want[TAMIS_MAX_TOPK];
    for (int64_t r = 0; r < s->rows_count; r++) {
        float *scores = scene_scores(s, a->numerics, r);
        int64_t n = scene_len(s, r), width = a->counts ? a->counts[r] : a->width;
        int64_t count =
            a->blocks ? oracle_consume(scores, n, a->block_size, a->blocks + r * a->blocks_stride,
                                       width, a->selection.topk, want)
                      : oracle_topk(scores, n, a->selection.topk, want);
        selection_same(s, &a->selection, r, want, count, scores);
    }
}

static void every_class(void **state) {
    (void)state;
    seed(38);
    for (int i = 0; i < SCENES; i++) {
        scene s = level_scene(i);
        tamis_dense_args a =
            make(&s, i % 4 + 1, i % 5 < 2 ? 16 : 8, level_topk(i), random_below(30));
        a.counts = i % 3 ? a.counts : NULL;
        if (i % 4 == 3) {
            a.blocks = NULL;
            a.counts = NULL;
        }
        RUN(dense, &a);
        check(&s, &a);
        release();
    }
}

static void big_contexts(void **state) {
    static const int32_t topk[] = {1, 8, 512, 1024, 2048, 4096};
    (void)state;
    seed(39);
    for (int i = 0; i < 2 * COUNT(topk); i++) {
        scene s = big_scene(i);
        tamis_dense_args a = make(&s, i % 2 + 1, i % 3 ? 8 : 16, topk[i / 2], 400);
        if (i % 2) {
            a.blocks = NULL;
            a.counts = NULL;
        }
        RUN(dense, &a);
        check(&s, &a);
        release();
    }
}

static void refusals(void **state) {
    static const int32_t negative[LEVEL_ROWS] = {1, -1}, beyond[LEVEL_ROWS] = {1, 1, 1000};
    (void)state;
    seed(40);
    scene s = level_scene(0);
    tamis_dense_args good = make(&s, TAMIS_NUMERICS_EXACT, 8, 16, 9);
    watch_none();
    selection_watch(&good.selection, s.rows_count);
    REFUSE_LEVEL(dense);
    REFUSE(dense, a.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(dense, a.block_size = 12, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(dense, a.width = -1, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(dense, a.blocks_stride = 8, TAMIS_ERROR_ARGUMENT, "blocks_stride");
    REFUSE(dense, a.counts = negative, TAMIS_ERROR_LENGTH, "counts[1]");
    assert_true(tamis_dense_workspace(&good, 0) == -1);
    REFUSE_COMMON(dense);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class),
        cmocka_unit_test(big_contexts),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
