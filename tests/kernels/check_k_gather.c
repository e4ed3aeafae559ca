/* SPDX-License-Identifier: MIT */
/* check_k_gather.c: k_gather (spec 7.6): destinations compared whole, other rows included. */
#include "common.h"

#include "scene.h"

enum { ROWS = 5, N = 70, GAP = 3 };

static tamis_k_gather_args make(const scene *s) {
    tamis_k_gather_args a;
    tamis_k_gather_args_default(&a);
    int64_t *start = fresh(ROWS * 8), cb = s->head_dim / 2, sb = s->head_dim / 32;
    a.k = s->k;
    a.rows = s->rows;
    a.size = GAP;
    for (int r = ROWS - 1; r >= 0; r--) {
        start[r] = a.size;
        a.size += scene_len(s, r) + GAP;
    }
    a.start = start;
    a.codes_stride = cb + 9;
    a.scales_stride = sb + 1;
    a.codes = fresh(a.size * a.codes_stride);
    a.scales = fresh(a.size * a.scales_stride);
    return a;
}

static void check(const scene *s, const tamis_k_gather_args *a) {
    int64_t cb = s->head_dim / 2, sb = s->head_dim / 32;
    uint8_t *codes = fresh(a->size * a->codes_stride), *scales = fresh(a->size * a->scales_stride);
    for (int r = 0; r < ROWS; r++) {
        for (int64_t j = 0; j < scene_len(s, r); j++) {
            int64_t to = a->start[r] + j;
            memcpy(codes + to * a->codes_stride, scene_k_codes(s, r, j), (size_t)cb);
            memcpy(scales + to * a->scales_stride, scene_k_scales(s, r, j), (size_t)sb);
        }
    }
    same_bytes(a->codes, codes, a->size * a->codes_stride, "codes");
    same_bytes(a->scales, scales, a->size * a->scales_stride, "scales");
}

static scene make_scene(int32_t layout, int32_t d) {
    scene s = {.layout = layout, .heads = 4, .head_dim = d, .data = DATA_BITS};
    s.weights_type = TAMIS_F32;
    s.rows_count = ROWS;
    s.positions = N;
    scene_make(&s);
    return s;
}

static void every_layout(void **state) {
    (void)state;
    seed(9);
    for (int i = 0; i < 60; i++) {
        scene s = make_scene(i % 3 + 1, i / 3 % 2 ? 64 : 128);
        tamis_k_gather_args a = make(&s);
        if (i % 4 == 3) {
            s.rows.ks = a.rows.ks = NULL;
            a = make(&s);
        }
        RUN(k_gather, &a);
        check(&s, &a);
        release();
    }
}

static void refusals(void **state) {
    static const int64_t before[ROWS] = {-1}, late[ROWS] = {0, 1 << 20};
    static const int32_t negative[ROWS] = {1, -7}, long_ke[ROWS] = {1, 1, 1000};
    static const int32_t requests[ROWS] = {0, 1, 2, 3, 0};
    (void)state;
    seed(10);
    scene s = make_scene(TAMIS_K_MXFP4_PAGE, 128);
    for (int r = 0; r < ROWS; r++) {
        s.ks[r] = 0;
        s.ke[r] = 10 + r;
    }
    tamis_k_gather_args good = make(&s);
    watch_none();
    watch(good.codes, good.size * good.codes_stride);
    watch(good.scales, good.size * good.scales_stride);
    REFUSE(k_gather, a.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(k_gather, a.start = NULL, TAMIS_ERROR_ARGUMENT, "start");
    REFUSE(k_gather, a.start = before, TAMIS_ERROR_LENGTH, "start[0]");
    REFUSE(k_gather, a.start = late, TAMIS_ERROR_LENGTH, "start[1]");
    REFUSE(k_gather, a.size = -1, TAMIS_ERROR_ARGUMENT, "size");
    REFUSE(k_gather, a.codes = NULL, TAMIS_ERROR_ARGUMENT, "codes");
    REFUSE(k_gather, a.scales = NULL, TAMIS_ERROR_ARGUMENT, "scales");
    REFUSE(k_gather, a.codes_stride = 63, TAMIS_ERROR_ARGUMENT, "codes_stride");
    REFUSE(k_gather, a.scales_stride = 3, TAMIS_ERROR_ARGUMENT, "scales_stride");
    REFUSE(k_gather, a.rows.count = -1, TAMIS_ERROR_ARGUMENT, "rows.count");
    REFUSE(k_gather, a.rows.ke = NULL, TAMIS_ERROR_ARGUMENT, "rows.ke");
    REFUSE(k_gather, a.rows.ke = negative, TAMIS_ERROR_LENGTH, "rows.ke[1]");
    REFUSE(k_gather, a.rows.ks = negative, TAMIS_ERROR_LENGTH, "rows.ks[1]");
    REFUSE(k_gather, a.rows.ke = long_ke, TAMIS_ERROR_LENGTH, "rows.ke[2]");
    REFUSE(k_gather, a.rows.request = requests, TAMIS_ERROR_ARGUMENT, "rows.request[3]");
    REFUSE(k_gather, a.rows.page_table = NULL, TAMIS_ERROR_ARGUMENT, "rows.page_table");
    REFUSE(k_gather, a.k.layout = 0, TAMIS_ERROR_LAYOUT, "k.layout");
    REFUSE_COMMON(k_gather);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
