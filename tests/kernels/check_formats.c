/* SPDX-License-Identifier: MIT */
/*
 * check_formats.c: bf16, UE8M0, E2M1 and the quantiser (spec 2): every bf16 input against the
 * oracle, alone and among companions at many scales, and vectors worked out by hand.
 */
#include "common.h"

#include <math.h>

#include "format/bf16.h"
#include "format/mxfp4.h"

static void bf16_widens(void **state) {
    (void)state;
    for (uint32_t x = 0; x < 65536; x++) {
        assert_int_equal(bits_of(tamis_f32_from_bf16((uint16_t)x)), x << 16);
    }
}

/* Every bf16 value and the f32 values just around it, around its midpoint and just below the next.
 */
static void bf16_rounds(void **state) {
    static const uint32_t low[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    (void)state;
    for (uint32_t high = 0; high < 65536; high++) {
        for (int i = 0; i < COUNT(low); i++) {
            float x = float_of(high << 16 | low[i]);
            uint16_t got = tamis_bf16_from_f32(x);
            if (isnan(x)) {
                assert_true(isnan(tamis_f32_from_bf16(got)));
            } else {
                assert_int_equal(got, oracle_bf16(x));
            }
        }
    }
}

static void bf16_by_hand(void **state) {
    static const uint32_t f32[] = {0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF,
                                   0x80000000, 0x00008000, 0x00008001, 0x00018000, 0xFF800000};
    static const uint16_t want[] = {0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F80,
                                    0x8000, 0x0000, 0x0001, 0x0002, 0xFF80};
    (void)state;
    for (int i = 0; i < COUNT(f32); i++) {
        assert_int_equal(tamis_bf16_from_f32(float_of(f32[i])), want[i]);
        assert_int_equal(oracle_bf16(float_of(f32[i])), want[i]);
    }
}

static void same_group(const float *x, const char *what) {
    uint8_t got[17], want[17];
    tamis_mxfp4_quantise(x, got, got + 16);
    oracle_mxfp4(x, want, want + 16);
    same_bytes(got, want, 17, what);
}

static void every_bf16_alone(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float x[32] = {0};
        x[bits % 32] = float_of(bits << 16);
        same_group(x, "alone");
    }
}

/* The companion sets the scale: the value lands on every code and every tie of that scale. */
static void every_bf16_in_company(void **state) {
    static const float companions[] = {0x1p-133f, 0x1p-126f, 0x1.8p-124f, 1e-20f,     0.3f, 1.0f,
                                       3.0f,      6.0f,      7.0f,        0x1.8p100f, 3e38f};
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        for (int c = 0; c < COUNT(companions); c++) {
            float x[32];
            for (int i = 0; i < 32; i++) {
                x[i] = i % 3 ? companions[c] : -companions[c] / 4;
            }
            x[(bits + 7) % 32] = float_of(bits << 16);
            same_group(x, "in company");
        }
    }
}

static void random_f32(void **state) {
    (void)state;
    seed(1);
    for (int n = 0; n < 100000; n++) {
        float x[32];
        uint32_t exponent = (uint32_t)random_below(255);
        for (int i = 0; i < 32; i++) {
            uint32_t e = exponent > 6 ? exponent - (uint32_t)random_below(7) : exponent;
            uint32_t keep = n % 2 ? 0xFFFFFFFF : 0xFFF00000; /* few bits: many ties */
            x[i] = float_of(((uint32_t)random64() & 0x807FFFFF & keep) | e << 23);
        }
        same_group(x, "random f32");
    }
}

typedef struct vector {
    float x[8]; /* the rest of the group is 0 */
    uint8_t scale, codes[8];
} vector;

static const vector by_hand[] = {
    {{6, .25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5}, 127, {7, 0, 2, 2, 4, 4, 6, 6}},
    {{-6, -.25f, -.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5}, 127, {15, 8, 10, 10, 12, 12, 14, 14}},
    {{6, .5f, 1, 1.5f, 2, 3, 4, -.5f}, 127, {7, 1, 2, 3, 4, 5, 6, 9}},
    {{6, 0x1.000002p-2f, 0x1.fffffep-3f, 0x1.7ffffep-1f, 0x1.800002p-1f, 0x1.3ffffep2f,
      0x1.400002p2f, 0x1.bffffep1f},
     127,
     {7, 1, 0, 1, 2, 6, 7, 5}},
    {{0, -0.0f, 0, 0, 0, 0, 0, 0}, 1, {0, 8, 0, 0, 0, 0, 0, 0}},
    {{0x1p-127f, 0x1p-128f, 0x1.8p-128f, -0x1p-149f, 0x1p-126f, 0, 0, 0}, 1, {1, 0, 1, 8, 2}},
    {{0x1.8p-124f, 0, 0, 0, 0, 0, 0, 0}, 1, {7}},      /* 6 * 2^-126: the least amax */
    {{0x1.800002p-124f, 0, 0, 0, 0, 0, 0, 0}, 2, {5}}, /* just above: the next scale; 3 */
    {{0x1.800002p2f, 0, 0, 0, 0, 0, 0, 0}, 128, {5}},
    {{0x1.7ffffep2f, 0, 0, 0, 0, 0, 0, 0}, 127, {7}},
    {{1, .125f, .0625f, 0, 0, 0, 0, 0}, 125, {6, 1, 0}},
    {{3, 0, 0, 0, 0, 0, 0, 0}, 126, {7}},
    {{7, -7, 1, 0, 0, 0, 0, 0}, 128, {6, 14, 1}},             /* 3.5 ties to 4; .5 */
    {{0x1.fep127f, 0x1p127f, 0, 0, 0, 0, 0, 0}, 253, {6, 4}}, /* the largest bf16: 3.98, 2 */
    {{0x1.fffffep127f, 0, 0, 0, 0, 0, 0, 0}, 253, {6}},
    {{NAN, 1, 2, 3, 0, 0, 0, 0}, 255, {0}},
    {{1, -1, INFINITY, 6, 0, 0, 0, 0}, 255, {0}},
    {{1, -1, -INFINITY, -0.0f, 0, 0, 0, 0}, 255, {0}},
};

static void vectors_by_hand(void **state) {
    (void)state;
    for (int v = 0; v < COUNT(by_hand); v++) {
        float x[32] = {0};
        uint8_t got[17], want[17] = {0};
        memcpy(x, by_hand[v].x, sizeof by_hand[v].x);
        for (int i = 0; i < 8; i++) {
            want[i / 2] = (uint8_t)(want[i / 2] | by_hand[v].codes[i] << (i % 2 * 4));
        }
        want[16] = by_hand[v].scale;
        tamis_mxfp4_quantise(x, got, got + 16);
        same_bytes(got, want, 17, "by hand");
        oracle_mxfp4(x, got, got + 16);
        same_bytes(got, want, 17, "oracle by hand");
    }
}

static void codes_and_scales(void **state) {
    static const int doubled[] = {0, 1, 2, 3, 4, 6, 8, 12};
    (void)state;
    for (uint32_t code = 0; code < 16; code++) {
        int want = code & 8 ? -doubled[code & 7] : doubled[code & 7];
        assert_int_equal(tamis_e2m1_doubled(code), want);
    }
    for (int e = 0; e < 255; e++) {
        assert_true(tamis_ue8m0((uint32_t)e) == ldexpf(1, e - 127));
    }
    assert_true(isnan(tamis_ue8m0(255)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_widens),           cmocka_unit_test(bf16_rounds),
        cmocka_unit_test(bf16_by_hand),          cmocka_unit_test(codes_and_scales),
        cmocka_unit_test(vectors_by_hand),       cmocka_unit_test(every_bf16_alone),
        cmocka_unit_test(every_bf16_in_company), cmocka_unit_test(random_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
