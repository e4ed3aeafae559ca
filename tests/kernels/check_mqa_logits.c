/* SPDX-License-Identifier: MIT */
/* check_mqa_logits.c: dense scores of every class against the oracle, to the bit (spec 4). */
#include "common.h"

#include <math.h>

#include "scene.h"

enum { ROWS = 5, N = 45, COLUMNS = 51 };

static const int32_t all_heads[] = {4, 8, 12, 32, 64};

static scene make_scene(int32_t layout, int32_t heads, int32_t d, int32_t data, int32_t weights) {
    scene s = {.layout = layout, .heads = heads, .head_dim = d, .data = data};
    s.weights_type = weights;
    s.rows_count = ROWS;
    s.positions = N;
    scene_make(&s);
    return s;
}

static tamis_mqa_logits_args make(const scene *s, int32_t numerics, int32_t type, int32_t block) {
    tamis_mqa_logits_args a;
    tamis_mqa_logits_args_default(&a);
    a.numerics = numerics;
    a.k = s->k;
    a.rows = s->rows;
    a.query = s->query;
    a.logits_type = type;
    a.columns = COLUMNS;
    a.logits_stride = COLUMNS + 4;
    a.logits = fresh(ROWS * a.logits_stride * 4);
    a.block_size = block;
    a.block_max_stride = 9;
    a.block_max = fresh(ROWS * a.block_max_stride * 4);
    return a;
}

static void check(const scene *s, const tamis_mqa_logits_args *a) {
    int64_t size = element_bytes(a->logits_type), n;
    for (int r = 0; r < ROWS; r++) {
        float *scores = scene_scores(s, a->numerics, r), best[N];
        n = scene_len(s, r);
        if (a->logits) {
            uint8_t *row = (uint8_t *)a->logits + r * a->logits_stride * size;
            for (int64_t j = 0; j < COLUMNS; j++) {
                same_element(row, j, a->logits_type, j < n ? scores[j] : -INFINITY, "logits");
            }
            untouched(row, COLUMNS, a->logits_stride, size, "logits");
        }
        if (a->block_max) {
            int64_t blocks = (n + a->block_size - 1) / a->block_size;
            oracle_block_max(scores, n, a->block_size, best);
            same_floats(a->block_max + r * a->block_max_stride, best, blocks, "block_max");
            untouched(a->block_max + r * a->block_max_stride, blocks, a->block_max_stride, 4,
                      "block_max");
        }
    }
}

/* Every class, layout, geometry and kind of data, in every pair of types over the turns. */
static void every_class(void **state) {
    (void)state;
    seed(11);
    for (int i = 0; i < 4 * 3 * 5 * 2 * DATA_KINDS * 4; i++) {
        int numerics = i % 4 + 1, layout = i / 4 % 3 + 1, heads = all_heads[i / 12 % 5];
        int turn = i / 480; /* 0..3: the pairs of types */
        scene s = make_scene(layout, heads, i / 60 % 2 ? 64 : 128, i / 120 % DATA_KINDS,
                             turn & 1 ? TAMIS_BF16 : TAMIS_F32);
        tamis_mqa_logits_args a =
            make(&s, numerics, turn & 2 ? TAMIS_BF16 : TAMIS_F32, i % 7 < 4 ? 8 : 16);
        if (i % 5 == 3) {
            a.block_max = NULL;
        } else if (i % 5 == 4) {
            a.logits = NULL;
        }
        RUN(mqa_logits, &a);
        check(&s, &a);
        release();
    }
}

/* One head and one K row at a time over all pairs of extreme bytes: q and K at once. */
static void extreme_bytes(void **state) {
    static const uint8_t bytes[] = {0, 1, 2, 100, 126, 127, 128, 150, 253, 254};
    (void)state;
    seed(12);
    for (int i = 0; i < 400; i++) {
        scene s = make_scene(TAMIS_K_MXFP4_ROW, 4, 128, DATA_ORDINARY, TAMIS_F32);
        uint8_t *q = (uint8_t *)(uintptr_t)s.query.scales;
        for (int64_t b = 0; b < ROWS * s.query.scales_row_stride; b++) {
            q[b] = bytes[random_below(COUNT(bytes))];
        }
        for (int64_t j = 0; j < N; j++) {
            for (int g = 0; g < 4; g++) {
                uint8_t e = bytes[random_below(COUNT(bytes))];
                cache_scales(&s.k, j)[g] = s.k_scales[j * 4 + g] = e;
            }
        }
        tamis_mqa_logits_args a = make(&s, i % 4 + 1, TAMIS_F32, 8);
        RUN(mqa_logits, &a);
        check(&s, &a);
        release();
    }
}

/* Every element +-6: dots as large as they get, at every distance between the groups' scales. */
static void largest_dots(void **state) {
    (void)state;
    seed(43);
    for (int i = 0; i < 300; i++) {
        scene s = make_scene(TAMIS_K_MXFP4_ROW, 4, i % 3 ? 128 : 64, DATA_ORDINARY, TAMIS_F32);
        int64_t cb = s.head_dim / 2, groups = s.head_dim / 32;
        uint8_t *q = (uint8_t *)(uintptr_t)s.query.codes;
        memset(q, 0x77, (size_t)(ROWS * s.query.codes_row_stride));
        for (int64_t j = 0; j < N; j++) {
            memset(s.k_codes + j * cb, random_below(3) ? 0x77 : 0xFF, (size_t)cb);
            for (int64_t g = 0; g < groups; g++) {
                s.k_scales[j * groups + g] = (uint8_t)(random_below(2) ? 130 : 130 - i / 4);
            }
            memcpy(cache_codes(&s.k, j), s.k_codes + j * cb, (size_t)cb);
            memcpy(cache_scales(&s.k, j), s.k_scales + j * groups, (size_t)groups);
        }
        tamis_mqa_logits_args a = make(&s, i % 4 + 1, TAMIS_F32, 8);
        RUN(mqa_logits, &a);
        check(&s, &a);
        release();
    }
}

/* Groups that cancel: q is K's own row in two groups with the signs of one turned, so that only
 * the small group far below is left. */
static void cancellation(void **state) {
    (void)state;
    seed(13);
    for (int i = 0; i < 200; i++) {
        scene s = make_scene(TAMIS_K_MXFP4_ROW, 4, 128, DATA_WIDE, TAMIS_F32);
        for (int64_t j = 0; j < N; j++) {
            uint8_t *codes = s.k_codes + j * 64, *scales = s.k_scales + j * 4;
            for (int b = 0; b < 16; b++) {
                codes[16 + b] = codes[b] ^ 0x88;
            }
            scales[1] = scales[0];
            memcpy(cache_codes(&s.k, j), codes, 64);
            memcpy(cache_scales(&s.k, j), scales, 4);
        }
        for (int64_t h = 0; h < ROWS * 4; h++) {
            const tamis_query *q = &s.query;
            int64_t at = h / 4 * q->codes_row_stride + h % 4 * q->codes_head_stride;
            uint8_t *codes = (uint8_t *)(uintptr_t)q->codes + at;
            at = h / 4 * q->scales_row_stride + h % 4 * q->scales_head_stride;
            uint8_t *scales = (uint8_t *)(uintptr_t)q->scales + at;
            memcpy(codes + 16, codes, 16);
            scales[1] = scales[0];
        }
        tamis_mqa_logits_args a = make(&s, i % 4 + 1, TAMIS_F32, 8);
        RUN(mqa_logits, &a);
        check(&s, &a);
        release();
    }
}

static void no_rows_and_no_starts(void **state) {
    (void)state;
    seed(14);
    scene s = make_scene(TAMIS_K_MXFP4_PAGE, 8, 128, DATA_ORDINARY, TAMIS_F32);
    s.rows.ks = NULL;
    tamis_mqa_logits_args a = make(&s, TAMIS_NUMERICS_EXACT, TAMIS_F32, 8);
    RUN(mqa_logits, &a);
    check(&s, &a);
    a = make(&s, TAMIS_NUMERICS_EXACT, TAMIS_F32, 8);
    a.rows.count = 0;
    RUN(mqa_logits, &a);
    untouched(a.logits, 0, ROWS * a.logits_stride, 4, "logits of no rows");
    release();
}

/* 4 heads, K = 1 in dim 0 with scale 2, q = 1, -1, .5, 6 there: 2w0 + 0 + w2 + 12w3. */
static void by_hand(void **state) {
    uint8_t k[68] = {2}, q[4][64] = {{2}, {10}, {1}, {7}}, scales[4][4];
    float w[4] = {1, 100, -4, 0.5f}, logits[1];
    int32_t ke[1] = {1};
    tamis_mqa_logits_args a;
    (void)state;
    memset(scales, 127, sizeof scales);
    memset(k + 64, 128, 4);
    tamis_mqa_logits_args_default(&a);
    a.k = (tamis_k_cache){TAMIS_K_MXFP4_ROW, 128, 0, 0, 1, 68, 0, k, NULL};
    a.rows = (tamis_rows){1, NULL, ke, NULL, NULL, 0, 0, 0};
    a.query = (tamis_query){4, 128, TAMIS_F32, 0, q[0], scales[0], w, 256, 64, 16, 4, 4};
    a.columns = a.logits_stride = 1;
    a.logits = logits;
    a.logits_type = TAMIS_F32;
    for (a.numerics = 1; a.numerics <= 4; a.numerics++) {
        RUN(mqa_logits, &a);
        assert_true(logits[0] == 2 - 4 + 6);
    }
    scales[3][3] = 255; /* a NaN scale of an all-zero group of a head still counts */
    a.numerics = TAMIS_NUMERICS_EXACT;
    RUN(mqa_logits, &a);
    assert_int_equal(bits_of(logits[0]), 0x7FC00000);
}

static void refuse_query_and_k(const tamis_mqa_logits_args *from) {
    tamis_mqa_logits_args good = *from;
    REFUSE(mqa_logits, a.query.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "query.reserved");
    REFUSE(mqa_logits, a.query.heads = 0, TAMIS_ERROR_GEOMETRY, "query.heads");
    REFUSE(mqa_logits, a.query.heads = 10, TAMIS_ERROR_GEOMETRY, "query.heads");
    REFUSE(mqa_logits, a.query.heads = 68, TAMIS_ERROR_GEOMETRY, "query.heads");
    REFUSE(mqa_logits, a.query.head_dim = 64, TAMIS_ERROR_GEOMETRY, "head_dim");
    REFUSE(mqa_logits, a.query.weights_type = 0, TAMIS_ERROR_ARGUMENT, "query.weights_type");
    REFUSE(mqa_logits, a.query.codes = NULL, TAMIS_ERROR_ARGUMENT, "query.codes");
    REFUSE(mqa_logits, a.query.scales = NULL, TAMIS_ERROR_ARGUMENT, "query.scales");
    REFUSE(mqa_logits, a.query.weights = NULL, TAMIS_ERROR_ARGUMENT, "query.weights");
    REFUSE(mqa_logits, a.k.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "k.reserved");
    REFUSE(mqa_logits, a.k.layout = 0, TAMIS_ERROR_LAYOUT, "k.layout");
    REFUSE(mqa_logits, a.k.head_dim = 127, TAMIS_ERROR_GEOMETRY, "k.head_dim");
    REFUSE(mqa_logits, a.k.page_size = 20, TAMIS_ERROR_LAYOUT, "k.page_size");
    REFUSE(mqa_logits, a.k.stride = 1072, TAMIS_ERROR_LAYOUT, "k.stride");
    REFUSE(mqa_logits, a.k.codes = NULL, TAMIS_ERROR_LAYOUT, "k.codes");
    REFUSE(mqa_logits, a.k.size = -1, TAMIS_ERROR_LAYOUT, "k.size");
}

static void refusals(void **state) {
    static const int32_t negative[ROWS] = {1, 1, -2}, beyond[ROWS] = {1, 1, 1, 1, 49};
    static const int32_t huge[ROWS] = {INT32_MAX}, lowest[ROWS] = {INT32_MIN};
    (void)state;
    seed(15);
    scene s = make_scene(TAMIS_K_MXFP4_PAGE, 8, 128, DATA_ORDINARY, TAMIS_F32);
    s.ks[2] = 0;
    s.ke[2] = N; /* a row that sees nothing has no request to be wrong about */
    tamis_mqa_logits_args good = make(&s, TAMIS_NUMERICS_EXACT, TAMIS_F32, 8);
    watch_none();
    watch(good.logits, ROWS * good.logits_stride * 4);
    watch(good.block_max, ROWS * good.block_max_stride * 4);
    refuse_query_and_k(&good);
    REFUSE(mqa_logits, a.numerics = 0, TAMIS_ERROR_NUMERICS, "numerics");
    REFUSE(mqa_logits, a.numerics = 5, TAMIS_ERROR_NUMERICS, "numerics");
    REFUSE(mqa_logits, a.logits_type = 0, TAMIS_ERROR_ARGUMENT, "logits_type");
    REFUSE(mqa_logits, a.block_size = 12, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(mqa_logits, a.columns = N - 1, TAMIS_ERROR_ARGUMENT, "columns");
    REFUSE(mqa_logits, a.logits_stride = COLUMNS - 1, TAMIS_ERROR_ARGUMENT, "logits_stride");
    REFUSE(mqa_logits, a.block_max_stride = 5, TAMIS_ERROR_ARGUMENT, "block_max_stride");
    REFUSE(mqa_logits, a.rows.count = -1, TAMIS_ERROR_ARGUMENT, "rows.count");
    REFUSE(mqa_logits, a.rows.ke = NULL, TAMIS_ERROR_ARGUMENT, "rows.ke");
    REFUSE(mqa_logits, a.rows.ke = negative, TAMIS_ERROR_LENGTH, "rows.ke[2]");
    REFUSE(mqa_logits, a.rows.ke = beyond, TAMIS_ERROR_LENGTH, "rows.ke[4]");
    REFUSE(mqa_logits, a.rows.ke = huge, TAMIS_ERROR_LENGTH, "rows.ke[0]");
    REFUSE(mqa_logits, a.rows.ke = lowest, TAMIS_ERROR_LENGTH, "rows.ke[0]");
    REFUSE(mqa_logits, a.rows.ks = negative, TAMIS_ERROR_LENGTH, "rows.ks[2]");
    REFUSE(mqa_logits, a.rows.request = negative, TAMIS_ERROR_ARGUMENT, "rows.request[2]");
    REFUSE(mqa_logits, a.rows.page_table = NULL, TAMIS_ERROR_ARGUMENT, "rows.page_table");
    REFUSE_COMMON(mqa_logits);
    scene other = make_scene(TAMIS_K_MXFP4_SPLIT, 8, 128, DATA_ORDINARY, TAMIS_F32);
    good = make(&other, TAMIS_NUMERICS_EXACT, TAMIS_F32, 8);
    REFUSE(mqa_logits, a.rows.ke = beyond, TAMIS_ERROR_LENGTH, "rows.ke[4]");
    REFUSE(mqa_logits, a.k.scales = NULL, TAMIS_ERROR_LAYOUT, "k.scales");
    REFUSE(mqa_logits, a.k.scales_stride = 3, TAMIS_ERROR_LAYOUT, "k.scales_stride");
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),       cmocka_unit_test(every_class),
        cmocka_unit_test(extreme_bytes), cmocka_unit_test(cancellation),
        cmocka_unit_test(largest_dots),  cmocka_unit_test(no_rows_and_no_starts),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
