/* SPDX-License-Identifier: MIT */
/*
 * check_mutants.c: inputs that tell faults apart which random ones let through, on every tier that
 * this machine runs. Each fault was once planted in a kernel and passed all other tests.
 */
#include "common.h"

#include <math.h>

#include "scene.h"

enum { ROWS = 2, N = 24, BLOCK = 8, BLOCKS = N / BLOCK };

static const tamis_backend *next_tier(int32_t *i) {
    static tamis_backend *open[16];
    int32_t supported = 0;
    while (*i < COUNT(open) && tamis_tier_name(*i, &supported) && !supported) {
        ++*i;
    }
    const char *name = *i < COUNT(open) ? tamis_tier_name(*i, &supported) : NULL;
    tamis_error error = {0};
    if (name && !open[*i]) {
        succeeded(tamis_backend_create(name, &open[*i], &error), &error, __LINE__);
    }
    return name ? open[(*i)++] : NULL;
}

#define EACH_TIER(backend)                                                                         \
    int32_t tier_ = 0;                                                                             \
    for (const tamis_backend *backend; (backend = next_tier(&tier_)) != NULL;)

#define CALL(stage, backend, args)                                                                 \
    do {                                                                                           \
        tamis_error error_ = {0};                                                                  \
        succeeded(tamis_##stage(backend, args, 0, 1, &error_), &error_, __LINE__);                 \
    } while (0)

/* ---- scores ------------------------------------------------------------------------ */

/* Rows that see all of N positions, of ordinary data to be overwritten. */
static scene make_scene(int32_t heads) {
    scene s = {.layout = TAMIS_K_MXFP4_SPLIT, .heads = heads, .head_dim = 128};
    s.data = DATA_ORDINARY;
    s.weights_type = TAMIS_F32;
    s.rows_count = ROWS;
    s.positions = N;
    scene_make(&s);
    s.rows.ks = NULL;
    for (int r = 0; r < ROWS; r++) {
        s.ke[r] = N;
    }
    return s;
}

static void set_k(scene *s, int64_t j, const uint8_t codes[64], const uint8_t scales[4]) {
    memcpy(s->k_codes + j * 64, codes, 64);
    memcpy(s->k_scales + j * 4, scales, 4);
    memcpy(cache_codes(&s->k, j), codes, 64);
    memcpy(cache_scales(&s->k, j), scales, 4);
}

static void set_q(scene *s, int64_t r, int64_t h, const uint8_t codes[64], const uint8_t scales[4],
                  float w) {
    const tamis_query *q = &s->query;
    uint8_t *to_codes = (uint8_t *)(uintptr_t)q->codes;
    uint8_t *to_scales = (uint8_t *)(uintptr_t)q->scales;
    memcpy(to_codes + r * q->codes_row_stride + h * q->codes_head_stride, codes, 64);
    memcpy(to_scales + r * q->scales_row_stride + h * q->scales_head_stride, scales, 4);
    put((void *)(uintptr_t)q->weights, r * q->weights_row_stride + h, TAMIS_F32, w);
}

static tamis_mqa_logits_args dense_args(const scene *s, int32_t numerics) {
    tamis_mqa_logits_args a;
    tamis_mqa_logits_args_default(&a);
    a.numerics = numerics;
    a.k = s->k;
    a.rows = s->rows;
    a.query = s->query;
    a.logits_type = TAMIS_F32;
    a.columns = a.logits_stride = N;
    a.logits = fresh(ROWS * N * 4);
    return a;
}

static tamis_sparse_mqa_logits_args sparse_args(const scene *s, int32_t numerics) {
    static const int32_t all[ROWS * BLOCKS] = {0, 1, 2, 0, 1, 2};
    tamis_sparse_mqa_logits_args a;
    tamis_sparse_mqa_logits_args_default(&a);
    a.numerics = numerics;
    a.k = s->k;
    a.rows = s->rows;
    a.query = s->query;
    a.block_size = BLOCK;
    a.logits_type = TAMIS_F32;
    a.width = BLOCKS;
    a.blocks = all;
    a.blocks_stride = BLOCKS;
    a.logits_stride = N;
    a.logits = fresh(ROWS * N * 4);
    return a;
}

/* Both ways of scoring, in both classes, on every tier. Returns the exact score of row 0. */
static float check_scores(const scene *s) {
    float *want[2][ROWS];
    for (int32_t numerics = TAMIS_NUMERICS_EXACT; numerics <= TAMIS_NUMERICS_BF16; numerics++) {
        for (int r = 0; r < ROWS; r++) {
            want[numerics - 1][r] = scene_scores(s, numerics, r);
        }
        EACH_TIER(backend) {
            tamis_mqa_logits_args dense = dense_args(s, numerics);
            tamis_sparse_mqa_logits_args sparse = sparse_args(s, numerics);
            CALL(mqa_logits, backend, &dense);
            CALL(sparse_mqa_logits, backend, &sparse);
            for (int r = 0; r < ROWS; r++) {
                const float *row = want[numerics - 1][r];
                same_floats((float *)dense.logits + r * N, row, N, tamis_backend_tier(backend));
                same_floats((float *)sparse.logits + r * N, row, N, tamis_backend_tier(backend));
            }
        }
    }
    return want[0][0][0];
}

/* Scale bytes 0 are 2^-127, a subnormal f32, and not nothing: of K, of q, of both. */
static void least_scales(void **state) {
    static const int32_t heads[] = {4, 12, 32, 64};
    static const uint8_t bytes[][2] = {{0, 254}, {0, 200}, {254, 0}, {127, 0}, {0, 127}, {0, 0}};
    (void)state;
    seed(51);
    for (int i = 0; i < COUNT(heads) * COUNT(bytes); i++) {
        scene s = make_scene(heads[i / COUNT(bytes)]);
        uint8_t codes[64], k_scales[4], q_scales[4];
        memset(codes, 0x22, sizeof codes); /* every element 1: the dot is 128 */
        memset(k_scales, bytes[i % COUNT(bytes)][0], 4);
        memset(q_scales, bytes[i % COUNT(bytes)][1], 4);
        for (int64_t j = 0; j < N; j += 2) { /* odd rows stay ordinary: both in one tile */
            set_k(&s, j, codes, k_scales);
        }
        for (int64_t h = 0; h < ROWS * s.heads; h++) {
            set_q(&s, h / s.heads, h % s.heads, codes, q_scales, q_scales[0] ? 0x1p-4f : 0x1p100f);
        }
        float score = check_scores(&s);
        assert_true(score > 0 || (k_scales[0] == 0 && q_scales[0] == 0));
        release();
    }
}

/*
 * Group dots 4096, 1 and 1 (doubled values, so 1024, 1/4 and 1/4) at depths 0, 12 and s: half an
 * ulp of 1024 and something below it, which must round up however far below it lies.
 */
static void far_below_a_tie(void **state) {
    static const int32_t heads[] = {4, 12, 32};
    uint8_t codes[64] = {0}, flat[4] = {127, 127, 127, 127}, zeros[64] = {0};
    (void)state;
    seed(52);
    memset(codes, 0x77, 14);
    codes[14] = 0x06;
    codes[16] = codes[32] = 0x01;
    for (int i = 0; i < COUNT(heads) * 3 * 58; i++) {
        scene s = make_scene(heads[i % COUNT(heads)]);
        int depth = 13 + i / 9, way = i / 3 % 3; /* depths in K, in q, in both */
        int q12 = way == 0   ? 0
                  : way == 1 ? 12
                             : 5,
            q_depth = way == 0   ? 0
                      : way == 1 ? depth
                                 : depth / 2;
        uint8_t q[4] = {127, (uint8_t)(127 - q12), (uint8_t)(127 - q_depth), 127};
        uint8_t k[4] = {127, (uint8_t)(127 - 12 + q12), (uint8_t)(127 - depth + q_depth), 127};
        for (int64_t j = 0; j < N; j += 2) {
            set_k(&s, j, codes, k);
        }
        for (int64_t h = 0; h < ROWS * s.heads; h++) {
            int one = h % s.heads == 0;
            set_q(&s, h / s.heads, h % s.heads, one ? codes : zeros, one ? q : flat, 1);
        }
        assert_true(check_scores(&s) == 1024 + 0x1p-13f);
        release();
    }
}

/*
 * Products that underflow leave -0 in every chain, and then in the score. Heads that a kernel adds
 * to fill its registers must not make +0 of it.
 */
static void negative_zero(void **state) {
    uint8_t codes[64] = {0}, scales[4] = {127, 67, 127, 127};
    (void)state;
    seed(53);
    codes[16] = 0x02; /* 1 in group 1, 2^-60 below the largest scale */
    for (int32_t heads = 4; heads <= 64; heads += 4) {
        scene s = make_scene(heads);
        for (int64_t j = 0; j < N; j++) {
            set_k(&s, j, codes, scales);
        }
        for (int64_t h = 0; h < ROWS * heads; h++) {
            set_q(&s, h / heads, h % heads, codes, scales, h / heads ? 0x1p-60f : -0x1p-60f);
        }
        /* Chains 2 and 3 of 4 heads have none: +0. */
        assert_int_equal(bits_of(check_scores(&s)), heads > 4 ? 0x80000000 : 0);
        release();
    }
}

/* ---- topk -------------------------------------------------------------------------- */

enum { WIDTH = 12, STARTS = 11 };

/* Ascending visible blocks with `holes` of another kind among them: none, before, or past the row.
 */
static void list_with_holes(int32_t *ids, int32_t anchor, int32_t blocks, int kind) {
    int32_t next = anchor;
    for (int i = 0; i < WIDTH; i++) {
        int hole = i == 0 || random_below(3) == 0;
        if (hole || next >= anchor + blocks) {
            int32_t odd[] = {-1, anchor - 1, anchor + blocks, INT32_MAX, INT32_MIN};
            ids[i] = odd[kind];
        } else {
            ids[i] = next;
            next += 1 + (int32_t)random_below(2);
        }
    }
}

/* topk of one row of a list. Columns that cannot be chosen score best. */
static void check_list(const int32_t *ids, int32_t ks, int32_t ke, int32_t topk) {
    float logits[WIDTH * BLOCK], of_pool[WIDTH * BLOCK];
    int32_t want[WIDTH * BLOCK], anchor = ks / BLOCK;
    int64_t positions[WIDTH * BLOCK], pool = 0;
    tamis_topk_args a;
    for (int64_t c = 0; c < WIDTH * BLOCK; c++) {
        int64_t j = ((int64_t)ids[c / BLOCK] - anchor) * BLOCK + c % BLOCK;
        int visible = j >= 0 && j < ke - ks;
        logits[c] = visible ? (float)random_below(6) : 100;
        if (visible) {
            positions[pool] = j;
            of_pool[pool++] = logits[c];
        }
    }
    tamis_topk_args_default(&a);
    a.logits_type = TAMIS_F32;
    a.block_size = BLOCK;
    a.rows = (tamis_rows){.count = 1, .ks = &ks, .ke = &ke};
    a.logits = logits;
    a.logits_stride = a.width = WIDTH * BLOCK;
    a.blocks = ids;
    a.blocks_stride = WIDTH;
    selection_make(&a.selection, 1, topk);
    int64_t count = oracle_topk(of_pool, pool, topk, want);
    for (int64_t n = 0; n < count; n++) {
        want[n] = (int32_t)positions[want[n]];
    }
    EACH_TIER(backend) {
        CALL(topk, backend, &a);
        same_ints(a.selection.positions, want, topk, tamis_backend_tier(backend));
        assert_int_equal(a.selection.counts[0], count);
    }
}

/* Blocks that cannot be chosen before ones that can: columns are not the first n that count. */
static void holes_in_a_block_list(void **state) {
    static const int32_t topk[] = {1, 8, 33, WIDTH * BLOCK};
    (void)state;
    seed(54);
    for (int i = 0; i < 5 * COUNT(topk) * STARTS; i++) {
        int32_t ids[WIDTH], ks = i / 20 * 3, length = 60 + (int32_t)random_below(8);
        list_with_holes(ids, ks / BLOCK, (length + BLOCK - 1) / BLOCK, i % 5);
        check_list(ids, ks, ks + length, topk[i / 5 % COUNT(topk)]);
        release();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_scales),
        cmocka_unit_test(far_below_a_tie),
        cmocka_unit_test(negative_zero),
        cmocka_unit_test(holes_in_a_block_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
