/* SPDX-License-Identifier: MIT */
/* check_block_max.c: the largest score of each block in the order of scores (spec 4.3, 5.2). */
#include "common.h"

#include <math.h>

#include "logits.h"

enum { ROWS = 7, N = 100 };

static tamis_block_max_args make(int32_t block, int32_t type, int kind) {
    tamis_block_max_args a;
    int32_t *ks = fresh(ROWS * 4), *ke = fresh(ROWS * 4);
    tamis_block_max_args_default(&a);
    a.block_size = block;
    a.logits_type = type;
    for (int r = 0; r < ROWS; r++) {
        ks[r] = (int32_t)random_below(1000);
        ke[r] = (int32_t)(ks[r] + random_below(N + 20) - 19);
        ke[r] = r == 0 ? ks[r] + N : ke[r] < 0 ? 0 : ke[r];
    }
    a.rows = (tamis_rows){ROWS, ks, ke, NULL, NULL, 0, 0, 0};
    a.logits_stride = N + 3;
    void *logits = fresh(ROWS * a.logits_stride * 4);
    random_logits(logits, ROWS * a.logits_stride, type, kind);
    a.logits = logits;
    a.block_max_stride = N / 8 + 3;
    a.block_max = fresh(ROWS * a.block_max_stride * 4);
    return a;
}

static void check(const tamis_block_max_args *a) {
    for (int r = 0; r < ROWS; r++) {
        int64_t len = a->rows.ke[r] - (a->rows.ks ? a->rows.ks[r] : 0);
        int64_t n = len > 0 ? len : 0, blocks = (n + a->block_size - 1) / a->block_size;
        const uint8_t *row =
            (const uint8_t *)a->logits + r * a->logits_stride * element_bytes(a->logits_type);
        float want[N];
        oracle_block_max(logits_as_f32(row, n, a->logits_type), n, a->block_size, want);
        same_floats(a->block_max + r * a->block_max_stride, want, blocks, "block_max");
        untouched(a->block_max + r * a->block_max_stride, blocks, a->block_max_stride, 4,
                  "block_max");
    }
}

static void every_kind(void **state) {
    (void)state;
    seed(16);
    for (int i = 0; i < 2 * 2 * LOGITS_KINDS * 10; i++) {
        tamis_block_max_args a =
            make(i % 2 ? 8 : 16, i / 2 % 2 ? TAMIS_F32 : TAMIS_BF16, i / 4 % LOGITS_KINDS);
        RUN(block_max, &a);
        check(&a);
        release();
    }
}

static void by_hand(void **state) {
    static const float logits[] = {-0.0f, -0.0f,    NAN, -1,  -2,  -3,  -INFINITY, -5,  /* +0 */
                                   NAN,   -NAN,     NAN, NAN, NAN, NAN, NAN,       NAN, /* NaN */
                                   NAN,   -INFINITY};                                   /* -inf */
    static const uint32_t want[] = {0, 0x7FC00000, 0xFF800000};
    static const int32_t ke[] = {18};
    float got[3];
    tamis_block_max_args a;
    (void)state;
    tamis_block_max_args_default(&a);
    a.block_size = 8;
    a.logits_type = TAMIS_F32;
    a.rows = (tamis_rows){1, NULL, ke, NULL, NULL, 0, 0, 0};
    a.logits = logits;
    a.logits_stride = 18;
    a.block_max = got;
    a.block_max_stride = 3;
    RUN(block_max, &a);
    for (int b = 0; b < 3; b++) {
        assert_int_equal(bits_of(got[b]), want[b]);
    }
}

static void refusals(void **state) {
    static const int32_t negative[ROWS] = {1, -1};
    (void)state;
    seed(17);
    tamis_block_max_args good = make(8, TAMIS_F32, LOGITS_RANDOM);
    watch_none();
    watch(good.block_max, ROWS * good.block_max_stride * 4);
    REFUSE(block_max, a.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(block_max, a.block_size = 0, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(block_max, a.block_size = 32, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(block_max, a.logits_type = 3, TAMIS_ERROR_ARGUMENT, "logits_type");
    REFUSE(block_max, a.logits = NULL, TAMIS_ERROR_ARGUMENT, "logits");
    REFUSE(block_max, a.logits_stride = N - 1, TAMIS_ERROR_ARGUMENT, "logits_stride");
    REFUSE(block_max, a.block_max = NULL, TAMIS_ERROR_ARGUMENT, "block_max");
    REFUSE(block_max, a.block_max_stride = 12, TAMIS_ERROR_ARGUMENT, "block_max_stride");
    REFUSE(block_max, a.rows.count = -1, TAMIS_ERROR_ARGUMENT, "rows.count");
    REFUSE(block_max, a.rows.ke = NULL, TAMIS_ERROR_ARGUMENT, "rows.ke");
    REFUSE(block_max, a.rows.ke = negative, TAMIS_ERROR_LENGTH, "rows.ke[1]");
    REFUSE(block_max, a.rows.ks = negative, TAMIS_ERROR_LENGTH, "rows.ks[1]");
    REFUSE_COMMON(block_max);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(every_kind),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
