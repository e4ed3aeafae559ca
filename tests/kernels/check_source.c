/* SPDX-License-Identifier: MIT */
/* check_source.c: all positions scored, blocks published, the row's own best selected (spec 5). */
#include "levels.h"

static tamis_source_args make(const scene *s, int32_t numerics, int32_t block, int32_t topk_blocks,
                              int32_t topk) {
    tamis_source_args a;
    tamis_source_args_default(&a);
    a.numerics = numerics;
    a.k = s->k;
    a.rows = s->rows;
    a.query = s->query;
    a.block_size = block;
    a.topk_blocks = topk_blocks;
    a.blocks_stride = topk_blocks + 2;
    a.blocks = fresh(s->rows_count * a.blocks_stride * 4);
    a.counts = fresh(s->rows_count * 4);
    selection_make(&a.selection, s->rows_count, topk);
    a.workspace_bytes = tamis_source_workspace(&a, 3);
    assert_true(a.workspace_bytes >= 0);
    a.workspace = fresh(a.workspace_bytes);
    return a;
}

static void check(const scene *s, const tamis_source_args *a) {
    int32_t want[TAMIS_MAX_TOPK];
    for (int64_t r = 0; r < s->rows_count; r++) {
        float *scores = scene_scores(s, a->numerics, r);
        int64_t n = scene_len(s, r), count;
        if (a->blocks) {
            const int32_t *row = a->blocks + r * a->blocks_stride;
            count = oracle_publish(scores, n, a->block_size, a->topk_blocks, want);
            same_ints(row, want, a->topk_blocks, "blocks");
            untouched(row, a->topk_blocks, a->blocks_stride, 4, "blocks");
            assert_int_equal(a->counts[r], count);
        }
        if (a->selection.positions) {
            count = oracle_topk(scores, n, a->selection.topk, want);
            selection_same(s, &a->selection, r, want, count, scores);
        }
    }
}

/* Blocks and selection, or either alone; fewer blocks than top-k and more. */
static void every_class(void **state) {
    static const int32_t topk_blocks[] = {1, 2, 4, 9, 64, 700};
    (void)state;
    seed(35);
    for (int i = 0; i < SCENES; i++) {
        scene s = level_scene(i);
        tamis_source_args a =
            make(&s, i % 4 + 1, i % 5 < 2 ? 16 : 8, topk_blocks[i / 3 % 6], level_topk(i));
        if (i % 7 == 5) {
            a.blocks = NULL;
            a.counts = NULL;
        } else if (i % 7 == 6) {
            a.selection.positions = NULL;
            a.selection.slots = NULL;
            a.selection.scores = NULL;
            a.selection.counts = NULL;
        }
        RUN(source, &a);
        check(&s, &a);
        release();
    }
}

static void big_contexts(void **state) {
    static const int32_t topk[] = {1, 8, 512, 1024, 2048, 4096};
    static const int32_t blocks[] = {1, 64, 512, 600, 2048, 4096};
    (void)state;
    seed(36);
    for (int i = 0; i < COUNT(topk) * COUNT(blocks); i++) {
        scene s = big_scene(i);
        tamis_source_args a = make(&s, i % 2 + 1, i % 5 ? 8 : 16, blocks[i / 6], topk[i % 6]);
        RUN(source, &a);
        check(&s, &a);
        release();
    }
}

/* Score and merge, any number of slices each: what source gives. */
static void split(void **state) {
    (void)state;
    seed(42);
    for (int i = 0; i < SCENES; i += 3) {
        scene s = level_scene(i);
        tamis_source_args a = make(&s, i % 4 + 1, i % 5 < 2 ? 16 : 8, i % 70 + 1, level_topk(i));
        a.workspace_bytes = tamis_source_split_workspace(&a, 3);
        assert_true(a.workspace_bytes >= 0);
        a.workspace = fresh(a.workspace_bytes);
        RUN_SPLIT(source, &a, i / 3 % 3 + 1);
        check(&s, &a);
        release();
    }
}

static void refusals(void **state) {
    static const int32_t negative[LEVEL_ROWS] = {1, -1}, beyond[LEVEL_ROWS] = {1, 1, 1000};
    (void)state;
    seed(37);
    scene s = level_scene(0);
    tamis_source_args good = make(&s, TAMIS_NUMERICS_EXACT, 8, 9, 16);
    watch_none();
    selection_watch(&good.selection, s.rows_count);
    watch(good.blocks, s.rows_count * good.blocks_stride * 4);
    watch(good.counts, s.rows_count * 4);
    REFUSE_LEVEL(source);
    REFUSE(source, a.block_size = 12, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(source, a.topk_blocks = 0, TAMIS_ERROR_ARGUMENT, "topk_blocks");
    REFUSE(source, a.topk_blocks = 4097, TAMIS_ERROR_ARGUMENT, "topk_blocks");
    REFUSE(source, a.blocks_stride = 8, TAMIS_ERROR_ARGUMENT, "blocks_stride");
    assert_true(tamis_source_workspace(&good, 0) == -1);
    good.selection.topk = 0;
    assert_true(tamis_source_workspace(&good, 1) == -1);
    good.selection.topk = 16;
    REFUSE_COMMON(source);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class),
        cmocka_unit_test(big_contexts),
        cmocka_unit_test(split),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
