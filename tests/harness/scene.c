/* SPDX-License-Identifier: MIT */
/* scene.c: scenes, the numbers of each hazard, and the oracle's scores of a scene. */
#include "scene.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "require.h"

static const char *const hazard_texts[] = {
#define SCENE_HAZARD(name, text) text,
    SCENE_HAZARDS(SCENE_HAZARD)
#undef SCENE_HAZARD
};

const char *scene_hazard_text(int hazard) {
    return hazard_texts[hazard];
}

static void *zeroed(int64_t count, int64_t size) {
    void *memory = calloc((size_t)(count > 0 ? count : 1), (size_t)size);
    REQUIRE(memory, "out of memory");
    return memory;
}

void scene_new(scene *s, int heads, int d, int64_t requests, const int64_t *context, int64_t rows) {
    memset(s, 0, sizeof *s);
    s->heads = heads;
    s->d = d;
    s->rows = rows;
    s->requests = requests;
    s->context = zeroed(requests, sizeof *s->context);
    s->base = zeroed(requests, sizeof *s->base);
    for (int64_t i = 0; i < requests; i++) {
        s->context[i] = context[i];
        s->base[i] = s->positions;
        s->positions += context[i];
    }
    s->request = zeroed(rows, sizeof *s->request);
    s->ks = zeroed(rows, sizeof *s->ks);
    s->ke = zeroed(rows, sizeof *s->ke);
    s->k_codes = zeroed(s->positions, d / 2);
    s->k_scales = zeroed(s->positions, d / 32);
    s->q_codes = zeroed(rows * heads, d / 2);
    s->q_scales = zeroed(rows * heads, d / 32);
    s->weights = zeroed(rows * heads, sizeof *s->weights);
}

void scene_free(scene *s) {
    free(s->context);
    free(s->base);
    free(s->request);
    free(s->ks);
    free(s->ke);
    free(s->k_codes);
    free(s->k_scales);
    free(s->q_codes);
    free(s->q_scales);
    free(s->weights);
    memset(s, 0, sizeof *s);
}

int64_t scene_longest(const scene *s) {
    int64_t longest = 0;
    for (int64_t r = 0; r < s->rows; r++)
        if (scene_length(s, r) > longest)
            longest = scene_length(s, r);
    return longest;
}

void scene_decode(scene *s, int heads, int d, const int64_t *lengths, int64_t rows) {
    scene_new(s, heads, d, rows, lengths, rows);
    for (int64_t r = 0; r < rows; r++) {
        s->request[r] = (int32_t)r;
        s->ke[r] = (int32_t)lengths[r];
    }
}

void scene_prefill(scene *s, int heads, int d, int64_t context, const int64_t *lengths,
                   int64_t rows) {
    scene_new(s, heads, d, 1, &context, rows);
    for (int64_t r = 0; r < rows; r++)
        s->ke[r] = (int32_t)lengths[r];
}

void scene_around_tiles(scene *s, int heads, int d, uint64_t seed) {
    static const int64_t lengths[] = {0,  1,  7,  8,  9,  15, 16, 17,  31,  32,  33, 63,
                                      64, 65, 40, 24, 23, 25, 95, 127, 128, 129, 57, 130};
    int64_t context[3] = {145, 150, 146}, rows = (int64_t)(sizeof lengths / sizeof *lengths);
    scene_new(s, heads, d, 3, context, rows);
    for (int64_t r = 0; r < rows; r++) {
        s->request[r] = (int32_t)(r * 3 / rows);
        s->ks[r] = (int32_t)((r * 5 + (int64_t)(seed % 16)) % 16);
        s->ke[r] = s->ks[r] + (int32_t)lengths[r];
    }
    s->ks[0] = 9; /* an interval that ends before it begins is empty */
    s->ke[0] = 3;
}

/* ---- exponents and codes of each hazard ---- */

/*
 * One group apart from the others, above or below them: K rows by 0..40, both ways within 82
 * positions; query rows by 0..15, so that every sum of two spans occurs in rows of that length.
 */
static uint8_t span_byte(int64_t step, int of_query, int group) {
    int64_t span = of_query ? step * 5 % 16 : step / 2 % 41;
    int below = of_query ? step % 3 != 0 : step % 2 != 0;
    return (uint8_t)(below == (group != 0) ? 100 + span : 100);
}

/* `unit` is the rows that belong together: the heads of a query row, or one K row. */
static uint8_t scale_byte(int hazard, int64_t row, int unit, int group, uint64_t *random) {
    int64_t step = row / unit;
    int64_t bits = (int64_t)(random_next(random) >> 20);
    switch (hazard) {
    case SCENE_FLAT:
    case SCENE_LAST_BIT:
        return 127;
    case SCENE_SPAN_STEP:
    case SCENE_SPAN_LARGEST:
        return span_byte(step, unit > 1, group);
    case SCENE_EDGES:
        return (uint8_t)((unit > 1 ? step / 2 : step) % 2 ? 251 + bits % 4 : bits % 4);
    case SCENE_WIDE:
        return (uint8_t)(bits % 255);
    case SCENE_MIXED:
        return (uint8_t)(row % 8 % 3 == 1 ? bits % 255 : 120 + bits % 4);
    case SCENE_BITS:
        return (uint8_t)bits;
    case SCENE_HUGE_TINY:
        return (uint8_t)(row % 2 ? 60 + bits % 3 : 170 + bits % 3);
    case SCENE_SUBNORMAL:
        return (uint8_t)(55 + bits % 4);
    case SCENE_OVERFLOW:
        return (uint8_t)(186 + bits % 8);
    default:
        return (uint8_t)(119 + bits % 4);
    }
}

static void plain_rows(uint8_t *codes, uint8_t *scales, int64_t rows, int unit, int d, int hazard,
                       uint64_t *random) {
    random_fill(random, codes, rows * (d / 2));
    for (int64_t r = 0; r < rows; r++)
        for (int g = 0; g < d / 32; g++)
            scales[r * (d / 32) + g] = scale_byte(hazard, r, unit, g, random);
}

/* Sets the sign bit of both codes in every byte to `sign` and leaves no zero magnitude. */
static void force_sign(uint8_t *codes, int64_t bytes, int sign) {
    for (int64_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)((codes[i] & 0x77) | 0x11 | (sign ? 0x88 : 0));
}

/*
 * 6 or -6: one sign to a row of K, none below zero in q. The first group keeps its random codes, so
 * that the largest sums also have a lowest bit to lose.
 */
static void largest_codes(scene *s) {
    int64_t bytes = s->d / 2, group = 16;
    for (int64_t i = 0; i < s->rows * s->heads; i++)
        memset(s->q_codes + i * bytes + group, 0x77, (size_t)(bytes - group));
    for (int64_t j = 0; j < s->positions; j++)
        memset(s->k_codes + j * bytes + group, j % 3 == 2 ? 0xFF : 0x77, (size_t)(bytes - group));
}

/*
 * K row j's dot with every head is 2^11 (group 0) at span x, one bit 24 places below it (group 1, a
 * tie), sometimes the bit above that (group 3: ties to even turn round), and +1, -1 or nothing at
 * the bottom (group 2). x runs over 24..83: through doubles, 64 bits and beyond.
 */
static void sticky(scene *s) {
    int64_t bytes = s->d / 2, groups = s->d / 32;
    memset(s->q_codes, 0, (size_t)(s->rows * s->heads * bytes));
    memset(s->q_scales, 127, (size_t)(s->rows * s->heads * groups));
    memset(s->k_codes, 0, (size_t)(s->positions * bytes));
    for (int64_t i = 0; i < s->rows * s->heads; i++) {
        memset(s->q_codes + i * bytes, 0x66, 16);
        for (int64_t g = 1; g < groups; g++)
            s->q_codes[i * bytes + g * 16] = 1;
    }
    for (int64_t j = 0; j < s->positions; j++) {
        static const uint8_t last[] = {1, 9, 0};
        uint8_t x = (uint8_t)(24 + j % 60), *codes = s->k_codes + j * bytes;
        uint8_t scales[4] = {(uint8_t)(60 + x), (uint8_t)(60 + x - 13), 60, (uint8_t)(60 + x - 12)};
        memset(codes, 0x66, 16);
        codes[16] = 1;
        if (groups == 4)
            codes[32] = last[j % 3];
        if (groups == 4)
            codes[48] = (uint8_t)(j / 3 % 2);
        memcpy(s->k_scales + j * groups, scales, (size_t)groups);
    }
}

static void mostly_zero(uint8_t *codes, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        codes[i] &= (uint8_t)(i % 13 == 3 ? 0xFF : 0x88);
}

static void some_nan(uint8_t *scales, int64_t rows, int groups, int64_t one_in, uint64_t *random) {
    for (int64_t r = 0; r < rows; r++)
        if (random_below(random, one_in) == 0)
            scales[r * groups + random_below(random, groups)] = 255;
}

/* Every K row of a request becomes one of the first `kinds` rows of it. */
static void repeat_rows(scene *s, int64_t kinds, uint64_t *random) {
    int64_t code_bytes = s->d / 2, scale_bytes = s->d / 32;
    for (int64_t q = 0; q < s->requests; q++)
        for (int64_t j = kinds; j < s->context[q]; j++) {
            int64_t to = s->base[q] + j, from = s->base[q] + random_below(random, kinds);
            memcpy(s->k_codes + to * code_bytes, s->k_codes + from * code_bytes,
                   (size_t)code_bytes);
            memcpy(s->k_scales + to * scale_bytes, s->k_scales + from * scale_bytes,
                   (size_t)scale_bytes);
        }
}

/* Head 0 sees 36 * 2^20, whose last f32 bit is 4; head 1 adds a random multiple of 4. */
static void last_bit(scene *s, uint64_t *random) {
    int64_t code_bytes = s->d / 2;
    memset(s->q_codes, 0, (size_t)(s->rows * s->heads * code_bytes));
    memset(s->k_codes, 0, (size_t)(s->positions * code_bytes));
    for (int64_t r = 0; r < s->rows; r++) {
        uint8_t *q = s->q_codes + r * s->heads * code_bytes;
        float *w = s->weights + r * s->heads;
        memset(w, 0, (size_t)s->heads * sizeof *w);
        q[0] = 7; /* 6.0 in element 0 */
        w[0] = 1048576.0f;
        q[code_bytes] = 2 << 4; /* 1.0 in element 1 */
        w[1] = 8.0f;
    }
    for (int64_t j = 0; j < s->positions; j++)
        s->k_codes[j * code_bytes] = (uint8_t)(7 | random_below(random, 8) << 4);
}

static void weights_of(scene *s, int hazard, uint64_t *random) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-44f, 0.0f, -0.0f};
    for (int64_t i = 0; i < s->rows * s->heads; i++) {
        float w = random_float(random);
        if (hazard == SCENE_NAN_W && random_below(random, 2L * s->heads) == 0)
            w = odd[random_below(random, 8)];
        if (hazard == SCENE_HUGE_TINY)
            w = ldexpf(w, (int)random_below(random, 60) - 30);
        if (hazard == SCENE_BITS && (i / s->heads) % 3 == 0) {
            uint32_t bits = (uint32_t)random_next(random);
            memcpy(&w, &bits, sizeof w);
        }
        s->weights[i] = w;
    }
}

/* Keeps the upper half of the bits, so that a bf16 placement holds the same numbers. */
static void cut_weights(scene *s) {
    for (int64_t i = 0; i < s->rows * s->heads; i++) {
        uint32_t bits;
        memcpy(&bits, &s->weights[i], sizeof bits);
        bits &= 0xFFFF0000u;
        memcpy(&s->weights[i], &bits, sizeof bits);
    }
}

void scene_numbers(scene *s, int hazard, int weights_type, uint64_t seed) {
    uint64_t random = seed * 0x2545F4914F6CDD1Du + (uint64_t)hazard;
    int64_t q_rows = s->rows * s->heads;
    s->hazard = hazard;
    s->weights_type = weights_type;
    plain_rows(s->k_codes, s->k_scales, s->positions, 1, s->d, hazard, &random);
    plain_rows(s->q_codes, s->q_scales, q_rows, s->heads, s->d, hazard, &random);
    weights_of(s, hazard, &random);
    if (hazard == SCENE_SPAN_LARGEST)
        largest_codes(s);
    if (hazard == SCENE_STICKY)
        sticky(s);
    if (hazard == SCENE_TIES)
        repeat_rows(s, 1, &random);
    if (hazard == SCENE_FEW)
        repeat_rows(s, 3, &random);
    if (hazard == SCENE_NEGATIVE) {
        force_sign(s->k_codes, s->positions * (s->d / 2), 1);
        force_sign(s->q_codes, q_rows * (s->d / 2), 0);
    }
    if (hazard == SCENE_ZEROS) {
        mostly_zero(s->k_codes, s->positions * (s->d / 2));
        mostly_zero(s->q_codes, q_rows * (s->d / 2));
    }
    if (hazard == SCENE_NAN_K)
        some_nan(s->k_scales, s->positions, s->d / 32, 6, &random);
    if (hazard == SCENE_NAN_ALL)
        some_nan(s->k_scales, s->positions, s->d / 32, 1, &random);
    if (hazard == SCENE_NAN_Q)
        some_nan(s->q_scales, q_rows, s->d / 32, 2L * s->heads, &random);
    if (hazard == SCENE_LAST_BIT)
        last_bit(s, &random);
    if (weights_type == TAMIS_BF16)
        cut_weights(s);
}

void scene_scores(const scene *s, int numerics, int64_t row, float *scores) {
    int64_t code_bytes = s->d / 2, scale_bytes = s->d / 32;
    int64_t first = s->base[s->request[row]] + s->ks[row];
    oracle_scores(numerics, s->heads, s->d, s->q_codes + row * s->heads * code_bytes,
                  s->q_scales + row * s->heads * scale_bytes, s->weights + row * s->heads,
                  s->k_codes + first * code_bytes, code_bytes, s->k_scales + first * scale_bytes,
                  scale_bytes, scene_length(s, row), scores);
}
