/* SPDX-License-Identifier: MIT */
/*
 * check_topk.c: the best columns of each row (spec 4.3, 5.1, 5.5), of plain logits and of logits
 * whose columns stand for blocks.
 */
#include "common.h"

#include <math.h>

#include "logits.h"
#include "scene.h"

enum { ROWS = 4 };

static const int32_t all_topk[] = {1, 8, 512, 1024, 2048, 4096};

static tamis_topk_args make(int32_t topk, int64_t width, int32_t type, int kind) {
    tamis_topk_args a;
    tamis_topk_args_default(&a);
    a.logits_type = type;
    a.width = width;
    a.logits_stride = width + 3;
    void *logits = fresh(ROWS * a.logits_stride * 4);
    random_logits(logits, ROWS * a.logits_stride, type, kind);
    a.logits = logits;
    a.rows.count = ROWS;
    selection_make(&a.selection, ROWS, topk);
    return a;
}

/* Columns, intervals, both or neither: `which` has a bit for each. */
static void give_lengths(tamis_topk_args *a, int which) {
    int32_t *ks = fresh(ROWS * 4), *ke = fresh(ROWS * 4), *columns = fresh(ROWS * 4);
    for (int r = 0; r < ROWS; r++) {
        ks[r] = (int32_t)random_below(100);
        ke[r] = (int32_t)(ks[r] + random_below(a->width + 1));
        ke[r] = r == 3 ? ks[r] / 2 : ke[r];
        columns[r] = (int32_t)(r == 1 ? 0 : random_below(a->width + 1));
    }
    a->rows.ks = which & 1 ? ks : NULL;
    a->rows.ke = which & 1 ? ke : NULL;
    a->columns = which & 2 ? columns : NULL;
}

static int64_t row_start(const tamis_topk_args *a, int r) {
    return a->rows.ks ? a->rows.ks[r] : 0;
}

/* Scores, slots and counts of row r, given the positions and the score of each position. */
static void check_row(const tamis_topk_args *a, int r, const int32_t *want, int64_t count,
                      const float *scores) {
    scene s = {.layout = TAMIS_K_MXFP4_ROW};
    s.rows.ks = a->rows.ks;
    s.rows.ke = a->rows.ke;
    selection_same(&s, &a->selection, r, want, count, scores);
}

static void check(const tamis_topk_args *a) {
    int32_t *want = fresh(a->selection.topk * (int64_t)4);
    for (int r = 0; r < ROWS; r++) {
        int64_t n = a->columns ? a->columns[r] : a->width;
        if (a->rows.ke) {
            int64_t len = a->rows.ke[r] - row_start(a, r);
            n = len < 0 ? 0 : len < n ? len : n;
        }
        const uint8_t *row =
            (const uint8_t *)a->logits + r * a->logits_stride * element_bytes(a->logits_type);
        float *scores = logits_as_f32(row, n, a->logits_type);
        check_row(a, r, want, oracle_topk(scores, n, a->selection.topk, want), scores);
    }
}

static void every_size(void **state) {
    static const int64_t widths[] = {0, 1, 7, 8, 9, 511, 512, 513, 2500, 5000};
    (void)state;
    seed(26);
    for (int i = 0; i < COUNT(all_topk) * COUNT(widths) * LOGITS_KINDS * 4; i++) {
        int j = i / 4;
        tamis_topk_args a = make(all_topk[j % COUNT(all_topk)], widths[j / 6 % COUNT(widths)],
                                 i % 7 < 4 ? TAMIS_F32 : TAMIS_BF16, j / 6 / COUNT(widths));
        give_lengths(&a, i % 4);
        RUN(topk, &a);
        check(&a);
        release();
    }
}

/* More equal scores than any bin holds, the cut in the middle of them. */
static void many_ties(void **state) {
    (void)state;
    seed(27);
    for (int i = 0; i < COUNT(all_topk) * 3; i++) {
        int kinds[] = {LOGITS_EQUAL, LOGITS_TIES, LOGITS_NAN};
        tamis_topk_args a = make(all_topk[i / 3], 20000, TAMIS_F32, kinds[i % 3]);
        RUN(topk, &a);
        check(&a);
        release();
    }
}

/* Blocks as expand writes them: unique ascending ids, -1 or repeats of the last behind. */
static void give_blocks(tamis_topk_args *a, int32_t block, int fixed) {
    int64_t width = a->width / block;
    int32_t *ks = fresh(ROWS * 4), *ke = fresh(ROWS * 4), *columns = fresh(ROWS * 4);
    int32_t *ids = fresh(width * 4);
    a->block_size = block;
    a->blocks_stride = width + 1;
    int32_t *blocks = fresh(ROWS * a->blocks_stride * 4);
    for (int r = 0; r < ROWS; r++) {
        int64_t valid, len = random_below(2 * a->width + 1);
        ks[r] = (int32_t)random_below(5 * block);
        ke[r] = r == 2 ? ks[r] : (int32_t)(ks[r] + len);
        for (int64_t i = 0; i < width; i++) {
            ids[i] = (int32_t)random_below(2 * width + 2) - 1;
        }
        oracle_expand(ids, width, block, block, ks[r], ke[r], 0, fixed,
                      blocks + r * a->blocks_stride, &valid);
        columns[r] = (int32_t)valid;
    }
    a->rows.ks = ks;
    a->rows.ke = ke;
    a->blocks = blocks;
    a->columns = fixed || random_below(2) ? columns : NULL;
}

/* Scores scattered to the positions that their columns stand for; the rest cannot be chosen. */
static void check_blocks(const tamis_topk_args *a) {
    int32_t s = a->block_size, *want = fresh(a->selection.topk * (int64_t)4);
    for (int r = 0; r < ROWS; r++) {
        int64_t ks = row_start(a, r), n = a->rows.ke[r] - ks, pool = 0;
        int64_t columns = a->columns ? a->columns[r] : a->width;
        float *scores = fresh(n * 4), *of_pool = fresh(columns * 4);
        int64_t *positions = fresh(columns * 8);
        const uint8_t *row =
            (const uint8_t *)a->logits + r * a->logits_stride * element_bytes(a->logits_type);
        for (int64_t c = 0; c < columns; c++) {
            int64_t id = a->blocks[r * a->blocks_stride + c / s], j = (id - ks / s) * s + c % s;
            if (j >= 0 && j < n) {
                positions[pool] = j;
                of_pool[pool++] = scores[j] = get(row, c, a->logits_type);
            }
        }
        int64_t count = oracle_topk(of_pool, pool, a->selection.topk, want);
        for (int64_t i = 0; i < count; i++) {
            want[i] = (int32_t)positions[want[i]];
        }
        check_row(a, r, want, count, scores);
    }
}

static void blocks_of_columns(void **state) {
    (void)state;
    seed(28);
    for (int i = 0; i < COUNT(all_topk) * LOGITS_KINDS * 2 * 8; i++) {
        int32_t block = i % 2 ? 8 : 16;
        int64_t width = block * random_below(i % 3 ? 40 : 300);
        tamis_topk_args a = make(all_topk[i / 2 % COUNT(all_topk)], width,
                                 i % 5 < 3 ? TAMIS_F32 : TAMIS_BF16, i / 12 % LOGITS_KINDS);
        give_blocks(&a, block, i % 4 < 2);
        RUN(topk, &a);
        check_blocks(&a);
        release();
    }
}

/* Slots through a page table, and outputs that are not wanted. */
static void pages_and_absent_outputs(void **state) {
    (void)state;
    seed(29);
    for (int i = 0; i < 32; i++) {
        scene s = {.layout = TAMIS_K_MXFP4_PAGE, .heads = 4, .head_dim = 64, .rows_count = ROWS};
        s.weights_type = TAMIS_F32;
        s.positions = 200;
        scene_make(&s);
        tamis_topk_args a = make(32, s.positions, TAMIS_F32, LOGITS_TIES);
        int32_t want[32];
        tamis_selection all = a.selection;
        a.rows = s.rows;
        a.page_size = s.page_size;
        RUN(topk, &a);
        for (int r = 0; r < ROWS; r++) {
            const float *scores = (const float *)a.logits + r * a.logits_stride;
            int64_t count = oracle_topk(scores, scene_len(&s, r), 32, want);
            selection_same(&s, &a.selection, r, want, count, scores);
        }
        selection_make(&a.selection, ROWS, 32);
        tamis_selection some = a.selection;
        a.selection.positions = i & 1 ? some.positions : NULL;
        a.selection.slots = i & 2 ? some.slots : NULL;
        a.selection.scores = i & 4 ? some.scores : NULL;
        a.selection.counts = i & 8 || i % 8 == 0 ? some.counts : NULL;
        RUN(topk, &a);
        for (int r = 0; r < ROWS; r++) {
            if (a.selection.slots) {
                same_bytes(some.slots + r * some.slots_stride, all.slots + r * all.slots_stride,
                           32 * 8, "slots alone");
            }
            if (a.selection.positions) {
                same_ints(some.positions + r * some.positions_stride,
                          all.positions + r * all.positions_stride, 32, "positions alone");
            }
        }
        release();
    }
}

static void by_hand(void **state) {
    static const float logits[] = {NAN, -INFINITY, 1, -0.0f, 0, 3, 3, 3};
    static const int32_t best[6][8] = {{5, 6}, {2, 5, 6, 7}, {2, 3, 5, 6, 7}};
    static const int32_t topk[] = {2, 4, 5};
    (void)state;
    for (int i = 0; i < 3; i++) {
        int32_t got[8];
        tamis_topk_args a;
        tamis_topk_args_default(&a);
        a.logits_type = TAMIS_F32;
        a.rows.count = 1;
        a.logits = logits;
        a.logits_stride = a.width = 8;
        a.selection.topk = topk[i];
        a.selection.positions = got;
        a.selection.positions_stride = 8;
        RUN(topk, &a);
        same_ints(got, best[i], topk[i], "by hand");
    }
}

static void refusals(void **state) {
    static const int32_t negative[ROWS] = {1, -1}, wide[ROWS] = {0, 0, 101};
    (void)state;
    seed(30);
    tamis_topk_args good = make(16, 100, TAMIS_F32, LOGITS_RANDOM);
    give_lengths(&good, 3);
    watch_none();
    selection_watch(&good.selection, ROWS);
    REFUSE(topk, a.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(topk, a.reserved2 = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved2");
    REFUSE(topk, a.selection.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "selection.reserved");
    REFUSE(topk, a.logits_type = 0, TAMIS_ERROR_ARGUMENT, "logits_type");
    REFUSE(topk, a.logits = NULL, TAMIS_ERROR_ARGUMENT, "logits");
    REFUSE(topk, a.logits_stride = 99, TAMIS_ERROR_ARGUMENT, "logits_stride");
    REFUSE(topk, a.width = -1, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(topk, a.width = INT64_C(1) << 31, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(topk, a.columns = negative, TAMIS_ERROR_LENGTH, "columns[1]");
    REFUSE(topk, a.columns = wide, TAMIS_ERROR_LENGTH, "columns[2]");
    REFUSE(topk, (a.blocks = wide, a.blocks_stride = 12), TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(topk, a.selection.topk = 0, TAMIS_ERROR_ARGUMENT, "selection.topk");
    REFUSE(topk, a.selection.topk = 4097, TAMIS_ERROR_ARGUMENT, "selection.topk");
    REFUSE(topk, a.selection.positions_stride = 15, TAMIS_ERROR_ARGUMENT,
           "selection.positions_stride");
    REFUSE(topk, a.selection.slots_stride = 15, TAMIS_ERROR_ARGUMENT, "selection.slots_stride");
    REFUSE(topk, a.selection.scores_stride = 15, TAMIS_ERROR_ARGUMENT, "selection.scores_stride");
    REFUSE(topk, a.rows.count = -1, TAMIS_ERROR_ARGUMENT, "rows.count");
    REFUSE(topk, a.rows.ke = negative, TAMIS_ERROR_LENGTH, "rows.ke[1]");
    REFUSE(topk, a.rows.ks = negative, TAMIS_ERROR_LENGTH, "rows.ks[1]");
    REFUSE_COMMON(topk);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(every_size),
        cmocka_unit_test(many_ties),
        cmocka_unit_test(blocks_of_columns),
        cmocka_unit_test(pages_and_absent_outputs),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
