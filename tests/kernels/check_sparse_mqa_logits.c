/* SPDX-License-Identifier: MIT */
/* check_sparse_mqa_logits.c: scores inside listed blocks, at every ks % S (spec 4, 5.4). */
#include "common.h"

#include <math.h>

#include "scene.h"

enum { ROWS = 5, N = 130, WIDTH = 11 };

static scene make_scene(int32_t layout, int32_t heads, int32_t d, int32_t data, int32_t weights) {
    scene s = {.layout = layout, .heads = heads, .head_dim = d, .data = data};
    s.weights_type = weights;
    s.rows_count = ROWS;
    s.positions = N;
    scene_make(&s);
    return s;
}

/* Anchored ids: mostly of visible blocks, also of blocks before, past and far away. */
static int32_t random_block(const scene *s, int r, int32_t block) {
    int64_t first = s->ks[r] / block, blocks = scene_len(s, r) / block + 2;
    switch (random_below(10)) {
    case 0:
        return -1;
    case 1:
        return (int32_t)random64();
    case 2:
        return (int32_t)(first - 1 - random_below(3));
    default:
        return (int32_t)(first + random_below(blocks));
    }
}

static tamis_sparse_mqa_logits_args make(const scene *s, int32_t numerics, int32_t type,
                                         int32_t block) {
    tamis_sparse_mqa_logits_args a;
    tamis_sparse_mqa_logits_args_default(&a);
    a.numerics = numerics;
    a.k = s->k;
    a.rows = s->rows;
    a.query = s->query;
    a.block_size = block;
    a.logits_type = type;
    a.width = WIDTH;
    a.blocks_stride = WIDTH + 2;
    int32_t *blocks = fresh(ROWS * a.blocks_stride * 4), *counts = fresh(ROWS * 4);
    for (int r = 0; r < ROWS; r++) {
        counts[r] = (int32_t)random_below(WIDTH + 1);
        for (int i = 0; i < WIDTH; i++) {
            blocks[r * a.blocks_stride + i] = random_block(s, r, block);
        }
    }
    a.blocks = blocks;
    a.counts = counts;
    a.logits_stride = WIDTH * block + 3;
    a.logits = fresh(ROWS * a.logits_stride * 4);
    return a;
}

static void check(const scene *s, const tamis_sparse_mqa_logits_args *a) {
    int64_t size = element_bytes(a->logits_type), block = a->block_size;
    for (int r = 0; r < ROWS; r++) {
        float *scores = scene_scores(s, a->numerics, r);
        int64_t ks = s->rows.ks ? s->rows.ks[r] : 0, n = scene_len(s, r);
        int64_t count = a->counts ? a->counts[r] : WIDTH;
        uint8_t *row = (uint8_t *)a->logits + r * a->logits_stride * size;
        for (int64_t c = 0; c < WIDTH * block; c++) {
            int64_t id = a->blocks[r * a->blocks_stride + c / block];
            int64_t local = id * block + ks % block + c % block - ks;
            int visible = c / block < count && local >= 0 && local < n;
            same_element(row, c, a->logits_type, visible ? scores[local] : -INFINITY, "logits");
        }
        untouched(row, WIDTH * block, a->logits_stride, size, "logits");
    }
}

static void every_class(void **state) {
    static const int32_t heads[] = {4, 8, 12, 32, 64};
    (void)state;
    seed(23);
    for (int i = 0; i < 4 * 3 * 5 * 2 * DATA_KINDS * 2; i++) {
        int turn = i % 9;
        scene s = make_scene(i / 4 % 3 + 1, heads[i / 12 % 5], i / 60 % 2 ? 64 : 128,
                             i / 120 % DATA_KINDS, turn % 2 ? TAMIS_BF16 : TAMIS_F32);
        tamis_sparse_mqa_logits_args a =
            make(&s, i % 4 + 1, turn % 3 ? TAMIS_F32 : TAMIS_BF16, turn % 4 < 2 ? 8 : 16);
        if (i % 7 == 6) {
            a.counts = NULL;
        }
        RUN(sparse_mqa_logits, &a);
        check(&s, &a);
        release();
    }
}

/* Every ks % S; row 0 starts at 0, and one pass without ks at all. */
static void every_start(void **state) {
    (void)state;
    seed(24);
    for (int i = 0; i < 3 * 2 * 33; i++) {
        int32_t start = i / 6;
        scene s = make_scene(i % 3 + 1, 8, 128, DATA_ORDINARY, TAMIS_F32);
        for (int r = 0; r < ROWS; r++) {
            s.ks[r] = start + 16 * r;
            s.ke[r] = (int32_t)(s.ks[r] + random_below(N - s.ks[r] + 1));
        }
        s.ke[1] = N;
        if (start == 32) {
            s.rows.ks = NULL;
            memset(s.ks, 0, ROWS * 4);
        }
        tamis_sparse_mqa_logits_args a =
            make(&s, TAMIS_NUMERICS_EXACT, TAMIS_F32, i / 3 % 2 ? 8 : 16);
        RUN(sparse_mqa_logits, &a);
        check(&s, &a);
        release();
    }
}

static void refusals(void **state) {
    static const int32_t negative[ROWS] = {1, -1}, beyond[ROWS] = {1, 1, 1, N + 20};
    static const int32_t wide[ROWS] = {0, 0, WIDTH + 1};
    (void)state;
    seed(25);
    scene s = make_scene(TAMIS_K_MXFP4_PAGE, 8, 128, DATA_ORDINARY, TAMIS_F32);
    tamis_sparse_mqa_logits_args good = make(&s, TAMIS_NUMERICS_EXACT, TAMIS_F32, 8);
    watch_none();
    watch(good.logits, ROWS * good.logits_stride * 4);
    REFUSE(sparse_mqa_logits, a.numerics = 9, TAMIS_ERROR_NUMERICS, "numerics");
    REFUSE(sparse_mqa_logits, a.query.heads = 2, TAMIS_ERROR_GEOMETRY, "query.heads");
    REFUSE(sparse_mqa_logits, a.query.head_dim = 64, TAMIS_ERROR_GEOMETRY, "head_dim");
    REFUSE(sparse_mqa_logits, a.query.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "query.reserved");
    REFUSE(sparse_mqa_logits, a.query.weights = NULL, TAMIS_ERROR_ARGUMENT, "query.weights");
    REFUSE(sparse_mqa_logits, a.k.layout = 9, TAMIS_ERROR_LAYOUT, "k.layout");
    REFUSE(sparse_mqa_logits, a.k.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "k.reserved");
    REFUSE(sparse_mqa_logits, a.block_size = 24, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(sparse_mqa_logits, a.logits_type = 0, TAMIS_ERROR_ARGUMENT, "logits_type");
    REFUSE(sparse_mqa_logits, a.width = -1, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(sparse_mqa_logits, a.width = 65537, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(sparse_mqa_logits, a.blocks = NULL, TAMIS_ERROR_ARGUMENT, "blocks");
    REFUSE(sparse_mqa_logits, a.blocks_stride = WIDTH - 1, TAMIS_ERROR_ARGUMENT, "blocks_stride");
    REFUSE(sparse_mqa_logits, a.counts = negative, TAMIS_ERROR_LENGTH, "counts[1]");
    REFUSE(sparse_mqa_logits, a.counts = wide, TAMIS_ERROR_LENGTH, "counts[2]");
    REFUSE(sparse_mqa_logits, a.logits = NULL, TAMIS_ERROR_ARGUMENT, "logits");
    REFUSE(sparse_mqa_logits, a.logits_stride = WIDTH * 8 - 1, TAMIS_ERROR_ARGUMENT,
           "logits_stride");
    REFUSE(sparse_mqa_logits, a.rows.count = -1, TAMIS_ERROR_ARGUMENT, "rows.count");
    REFUSE(sparse_mqa_logits, a.rows.ke = NULL, TAMIS_ERROR_ARGUMENT, "rows.ke");
    REFUSE(sparse_mqa_logits, a.rows.ke = negative, TAMIS_ERROR_LENGTH, "rows.ke[1]");
    REFUSE(sparse_mqa_logits, a.rows.ke = beyond, TAMIS_ERROR_LENGTH, "rows.ke[3]");
    REFUSE(sparse_mqa_logits, a.rows.ks = negative, TAMIS_ERROR_LENGTH, "rows.ks[1]");
    REFUSE_COMMON(sparse_mqa_logits);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_class),
        cmocka_unit_test(every_start),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
