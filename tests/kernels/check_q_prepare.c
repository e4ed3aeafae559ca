/* SPDX-License-Identifier: MIT */
/* check_q_prepare.c: q_prepare (spec 3) against the oracle, for every geometry and type. */
#include "common.h"

#include <math.h>

#include "prepare.h"

static tamis_q_prepare_args make(int32_t heads, int32_t d, int kind, int32_t rope_type,
                                 int32_t in_type, int32_t out_type) {
    enum { T = 9 };
    tamis_q_prepare_args a;
    tamis_q_prepare_args_default(&a);
    a.heads = heads;
    a.head_dim = d;
    a.weights_in_type = in_type;
    a.weights_out_type = out_type;
    a.tokens = T;
    a.q_head_stride = d + 3;
    a.q_token_stride = heads * (d + 3) + 1;
    uint16_t *q = fresh(T * a.q_token_stride * 2);
    for (int64_t i = 0; i < T * a.q_token_stride; i++) {
        q[i] = random_input(kind);
    }
    a.q = q;
    a.rope = make_rope(rope_type, 50);
    a.positions = make_positions(T, 50);
    a.weights_in_stride = heads + 2;
    void *weights = fresh(T * a.weights_in_stride * 4);
    for (int64_t i = 0; i < T * a.weights_in_stride; i++) {
        put(weights, i, in_type, oracle_from_bf16(random_input(kind)) * 1.2345f);
    }
    a.weights_in = weights;
    a.codes_head_stride = d / 2 + 1;
    a.codes_row_stride = heads * a.codes_head_stride + 5;
    a.scales_head_stride = d / 32 + 1;
    a.scales_row_stride = heads * a.scales_head_stride + 2;
    a.weights_out_stride = heads + 1;
    a.codes = fresh(T * a.codes_row_stride);
    a.scales = fresh(T * a.scales_row_stride);
    a.weights_out = fresh(T * a.weights_out_stride * 4);
    return a;
}

/* The outputs as they should be, padding included. */
static void check(const tamis_q_prepare_args *a) {
    uint8_t *codes = fresh(a->tokens * a->codes_row_stride);
    uint8_t *scales = fresh(a->tokens * a->scales_row_stride);
    for (int64_t t = 0; t < a->tokens; t++) {
        float cos_sin[64];
        rope_row(&a->rope, a->positions[t], cos_sin);
        for (int h = 0; h < a->heads; h++) {
            oracle_q_prepare(a->q + t * a->q_token_stride + h * a->q_head_stride, a->head_dim,
                             cos_sin, codes + t * a->codes_row_stride + h * a->codes_head_stride,
                             scales + t * a->scales_row_stride + h * a->scales_head_stride);
        }
    }
    same_bytes(a->codes, codes, a->tokens * a->codes_row_stride, "codes");
    same_bytes(a->scales, scales, a->tokens * a->scales_row_stride, "scales");
}

static void check_weights(const tamis_q_prepare_args *a) {
    int64_t size = element_bytes(a->weights_out_type);
    for (int64_t t = 0; t < a->tokens; t++) {
        uint8_t *row = (uint8_t *)a->weights_out + t * a->weights_out_stride * size;
        for (int64_t h = 0; h < a->heads; h++) {
            float w = get(a->weights_in, t * a->weights_in_stride + h, a->weights_in_type);
            float want = oracle_weight(w, a->heads, a->head_dim);
            if (isnan(want)) {
                assert_true(isnan(get(row, h, a->weights_out_type)));
            } else {
                same_element(row, h, a->weights_out_type, want, "weights");
            }
        }
        untouched(row, a->heads, a->weights_out_stride, size, "weights");
    }
}

static void every_geometry(void **state) {
    static const int32_t heads[] = {4, 8, 12, 32, 64};
    (void)state;
    seed(2);
    for (int i = 0; i < COUNT(heads) * 2 * INPUT_KINDS * 8; i++) {
        int32_t types = i % 8;
        tamis_q_prepare_args a = make(
            heads[i / 8 % 5], i / 40 % 2 ? 64 : 128, i / 80, types & 1 ? TAMIS_BF16 : TAMIS_F32,
            types & 2 ? TAMIS_BF16 : TAMIS_F32, types & 4 ? TAMIS_BF16 : TAMIS_F32);
        RUN(q_prepare, &a);
        check(&a);
        check_weights(&a);
        release();
    }
}

static void without_weights(void **state) {
    (void)state;
    seed(3);
    tamis_q_prepare_args a = make(8, 128, INPUT_ORDINARY, TAMIS_F32, TAMIS_F32, TAMIS_F32);
    a.weights_in = a.weights_out = NULL;
    RUN(q_prepare, &a);
    check(&a);
    a.tokens = 0;
    RUN(q_prepare, &a);
    release();
}

/* 32 heads of 128: the factor is 2^-6; cos 1, sin 0 leaves everything as it was. */
static void by_hand(void **state) {
    (void)state;
    assert_true(oracle_weight(3.0f, 32, 128) == 3.0f / 64);
    seed(4);
    tamis_q_prepare_args a = make(32, 128, INPUT_ORDINARY, TAMIS_F32, TAMIS_F32, TAMIS_F32);
    float *table = fresh(50 * a.rope.row_stride * 4);
    for (int64_t i = 0; i < 50 * a.rope.row_stride; i++) {
        table[i] = i % a.rope.row_stride < 32 ? 1.0f : 0.0f;
    }
    a.rope.table = table;
    RUN(q_prepare, &a);
    for (int h = 0; h < 32; h++) {
        float x[32];
        uint8_t codes[16], scale;
        for (int i = 0; i < 32; i++) {
            x[i] = oracle_from_bf16(a.q[h * a.q_head_stride + 96 + i]);
        }
        oracle_mxfp4(x, codes, &scale);
        same_bytes(a.codes + h * a.codes_head_stride + 48, codes, 16, "unturned");
        assert_true(((float *)a.weights_out)[h] == ((const float *)a.weights_in)[h] / 64);
    }
    release();
}

/*
 * A pair whose first result, e cos - o sin, is 2.5 or the next bf16 above it, that is code 4 or 5
 * at scale 1, by whether the products are rounded or fused. Found by search near the midpoint.
 */
static void find_telling_pair(uint16_t *pair, float *c, float *s) {
    const float midpoint = 2.5078125f;
    for (;;) {
        float e = oracle_from_bf16(pair[0] = oracle_bf16(2.5f + random_unit()));
        float o = oracle_from_bf16(pair[1] = oracle_bf16(random_unit()));
        *s = random_unit() * 0.5f;
        *c = (midpoint + o * *s) / e;
        float ec = e * *c, os = o * *s, plain = ec - os;
        float fused = fmaf(e, *c, -os), other = fmaf(-o, *s, ec);
        int plain_up = oracle_bf16(plain) > 0x4020;
        if (plain_up != (oracle_bf16(fused) > 0x4020) &&
            plain_up != (oracle_bf16(other) > 0x4020)) {
            return;
        }
    }
}

static void never_contracted(void **state) {
    (void)state;
    seed(45);
    tamis_q_prepare_args a = make(4, 128, INPUT_TINY, TAMIS_F32, TAMIS_F32, TAMIS_F32);
    float *table = (float *)(uintptr_t)a.rope.table;
    uint16_t *q = (uint16_t *)(uintptr_t)a.q;
    int64_t position = 7, telling = 0;
    a.tokens = 1;
    a.positions = &position;
    for (int i = 0; i < 32; i++) {
        float *c = table + position * a.rope.row_stride + i, *s = c + 32;
        find_telling_pair(q + 64 + 2 * i, c, s);
        if (i % 16 == 0) { /* 4 in each group: scale 1 */
            q[64 + 2 * i] = 0x4080;
            q[65 + 2 * i] = 0;
            *c = 1;
            *s = 0;
        }
    }
    RUN(q_prepare, &a);
    check(&a);
    for (int i = 0; i < 32; i++) {
        telling += (a.codes[32 + i] & 15) == 4 || (a.codes[32 + i] & 15) == 5;
    }
    assert_int_equal(telling, 30);
    release();
}

static void refusals(void **state) {
    static const int64_t negative[9] = {0, 1, -1}, beyond[9] = {0, 50};
    (void)state;
    seed(5);
    tamis_q_prepare_args good = make(8, 128, INPUT_ORDINARY, TAMIS_F32, TAMIS_F32, TAMIS_F32);
    watch_none();
    watch(good.codes, good.tokens * good.codes_row_stride);
    watch(good.scales, good.tokens * good.scales_row_stride);
    watch(good.weights_out, good.tokens * good.weights_out_stride * 4);
    REFUSE(q_prepare, a.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(q_prepare, a.rope.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(q_prepare, a.heads = 0, TAMIS_ERROR_GEOMETRY, "heads");
    REFUSE(q_prepare, a.heads = 6, TAMIS_ERROR_GEOMETRY, "heads");
    REFUSE(q_prepare, a.heads = 68, TAMIS_ERROR_GEOMETRY, "heads");
    REFUSE(q_prepare, a.head_dim = 96, TAMIS_ERROR_GEOMETRY, "head_dim");
    REFUSE(q_prepare, a.tokens = -1, TAMIS_ERROR_ARGUMENT, "tokens");
    REFUSE(q_prepare, a.q = NULL, TAMIS_ERROR_ARGUMENT, "q");
    REFUSE(q_prepare, a.positions = NULL, TAMIS_ERROR_ARGUMENT, "positions");
    REFUSE(q_prepare, a.positions = negative, TAMIS_ERROR_LENGTH, "positions[2]");
    REFUSE(q_prepare, a.positions = beyond, TAMIS_ERROR_LENGTH, "positions[1]");
    REFUSE(q_prepare, a.rope.table = NULL, TAMIS_ERROR_ARGUMENT, "rope.table");
    REFUSE(q_prepare, a.rope.type = 0, TAMIS_ERROR_ARGUMENT, "rope.type");
    REFUSE(q_prepare, a.rope.row_stride = 63, TAMIS_ERROR_ARGUMENT, "rope.row_stride");
    REFUSE(q_prepare, a.codes = NULL, TAMIS_ERROR_ARGUMENT, "codes");
    REFUSE(q_prepare, a.scales = NULL, TAMIS_ERROR_ARGUMENT, "scales");
    REFUSE(q_prepare, a.weights_in = NULL, TAMIS_ERROR_ARGUMENT, "weights_in");
    REFUSE(q_prepare, a.weights_out = NULL, TAMIS_ERROR_ARGUMENT, "weights_out");
    REFUSE(q_prepare, a.weights_in_type = 3, TAMIS_ERROR_ARGUMENT, "weights_in_type");
    REFUSE(q_prepare, a.weights_out_type = 0, TAMIS_ERROR_ARGUMENT, "weights_out_type");
    REFUSE(q_prepare, a.codes_head_stride = 63, TAMIS_ERROR_ARGUMENT, "codes_head_stride");
    REFUSE(q_prepare, a.scales_row_stride = 1, TAMIS_ERROR_ARGUMENT, "scales_row_stride");
    REFUSE(q_prepare, a.weights_out_stride = 7, TAMIS_ERROR_ARGUMENT, "weights_out_stride");
    REFUSE_COMMON(q_prepare);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),         cmocka_unit_test(every_geometry),
        cmocka_unit_test(without_weights), cmocka_unit_test(never_contracted),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
