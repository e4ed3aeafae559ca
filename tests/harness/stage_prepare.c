/* SPDX-License-Identifier: MIT */
/* stage_prepare.c: the cases of q_prepare and k_insert. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"
#include "stages.h"

enum { PREPARE_HAZARDS = 7, PREPARE_CASES = 3 * PREPARE_HAZARDS };
static const char *const texts[PREPARE_HAZARDS] = {"plain values",
                                                   "random bits",
                                                   "subnormal values",
                                                   "zeros of both signs",
                                                   "values on rounding ties",
                                                   "huge values",
                                                   "some NaN and infinite"};

static uint16_t one_bf16(int hazard, uint64_t *random) {
    uint64_t bits = random_next(random);
    uint16_t sign = (uint16_t)(bits & 0x8000);
    switch (hazard) {
    case 0:
        return (uint16_t)(sign | (0x3E80 + (bits >> 20) % 0x180)); /* 0.25 .. 2 */
    case 1:
        return (uint16_t)(bits >> 16);
    case 2:
        return (uint16_t)(sign | ((bits >> 20) & 0xFF));
    case 3:
        return sign;
    case 4:
        return (uint16_t)(sign | (0x3E80 + 0x20 * ((bits >> 20) % 16)));
    case 5:
        return (uint16_t)(sign | (0x7E00 + (bits >> 20) % 0x180));
    default:
        return (bits >> 20) % 40 == 0 ? (uint16_t)(sign | 0x7F80 | ((bits >> 30) & 1))
                                      : (uint16_t)(sign | 0x3F80);
    }
}

static uint16_t *make_bf16(int hazard, int64_t count, uint64_t *random) {
    uint16_t *values = calloc((size_t)count + 1, sizeof *values);
    REQUIRE(values, "out of memory");
    for (int64_t i = 0; i < count; i++)
        values[i] = one_bf16(hazard, random);
    return values;
}

/* Angles of a rotary table; bf16 tables hold the upper halves. */
static void make_rope(problem *p, int64_t rows) {
    p->rope_rows = rows;
    p->rope = calloc((size_t)rows * 64, sizeof *p->rope);
    REQUIRE(p->rope, "out of memory");
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < 32; i++) {
            double angle = (double)r * pow(160000.0, -i / 32.0);
            p->rope[r * 64 + i] = (float)cos(angle);
            p->rope[r * 64 + 32 + i] = (float)sin(angle);
        }
}

static uint16_t *upper_halves(const float *values, int64_t count) {
    uint16_t *halves = calloc((size_t)count + 1, sizeof *halves);
    REQUIRE(halves, "out of memory");
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    return halves;
}

/* f32 or bf16 elements, as bit `bit` of p->types says. */
static const void *place_floats(trial *t, const problem *p, int bit, const float *values,
                                int64_t rows, int64_t width, int64_t *stride, int32_t *type) {
    int64_t unused;
    if (!stride)
        stride = &unused;
    *type = p->types & bit ? TAMIS_BF16 : TAMIS_F32;
    if (*type == TAMIS_F32)
        return trial_input(t, values, rows, 1, width, 4, stride, NULL);
    uint16_t *halves = upper_halves(values, rows * width);
    const void *placed = trial_input(t, halves, rows, 1, width, 2, stride, NULL);
    free(halves);
    return placed;
}

static void place_rope(trial *t, const problem *p, tamis_rope *rope) {
    memset(rope, 0, sizeof *rope);
    rope->table = place_floats(t, p, 1, p->rope, p->rope_rows, 64, &rope->row_stride, &rope->type);
    rope->positions = p->rope_rows;
}

/* ---- q_prepare ---- */

static void q_prepare_make(problem *p, int index) {
    static const int64_t tokens[] = {1, 7, 33, 0, 2, 9};
    uint64_t random = (uint64_t)index + 3;
    int hazard = index % PREPARE_HAZARDS;
    p->scene.heads = index < PREPARE_HAZARDS ? 32 : 4 * (1 + index * 5 % 16);
    p->scene.d = index < PREPARE_HAZARDS || index % 2 ? 128 : 64;
    p->tokens = tokens[index % 6];
    p->types = index % 8;
    p->bf16 = make_bf16(hazard, p->tokens * p->scene.heads * p->scene.d, &random);
    make_rope(p, 50);
    p->positions = calloc((size_t)p->tokens + 1, sizeof *p->positions);
    p->vector = calloc((size_t)(p->tokens * p->scene.heads) + 1, sizeof *p->vector);
    REQUIRE(p->positions && p->vector, "out of memory");
    for (int64_t i = 0; i < p->tokens; i++)
        p->positions[i] = random_below(&random, p->rope_rows);
    fill_values(p->vector, p->tokens * p->scene.heads,
                hazard == 1   ? VALUE_BITS
                : hazard == 2 ? VALUE_SUBNORMAL
                              : VALUE_PLAIN,
                &random);
    snprintf(p->text, sizeof p->text, "%s, %d x %d, %lld tokens, types %d", texts[hazard],
             p->scene.heads, p->scene.d, (long long)p->tokens, p->types);
}

static void q_prepare_build(trial *t, const problem *p) {
    int64_t heads = p->scene.heads, d = p->scene.d;
    tamis_q_prepare_args *a = &t->args.q_prepare;
    tamis_q_prepare_args_default(a);
    a->heads = (int32_t)heads;
    a->head_dim = (int32_t)d;
    a->tokens = p->tokens;
    a->weights_in_type = a->weights_out_type = TAMIS_F32;
    a->q = trial_input(t, p->bf16, p->tokens, heads, d, 2, &a->q_token_stride, &a->q_head_stride);
    a->positions = trial_vector(t, p->positions, p->tokens, 8);
    place_rope(t, p, &a->rope);
    a->codes = trial_output(t, 0, "codes", p->tokens, heads, d / 2, 1, &a->codes_row_stride,
                            &a->codes_head_stride);
    a->scales = trial_output(t, 1, "scales", p->tokens, heads, d / 32, 1, &a->scales_row_stride,
                             &a->scales_head_stride);
    t->phases[0] = call_q_prepare;
    if (t->place.omit & 1)
        return;
    a->weights_in = place_floats(t, p, 2, p->vector, p->tokens, heads, &a->weights_in_stride,
                                 &a->weights_in_type);
    a->weights_out_type = p->types & 4 ? TAMIS_BF16 : TAMIS_F32;
    a->weights_out = trial_output(t, 2, "weights", p->tokens, 1, heads, p->types & 4 ? 2 : 4,
                                  &a->weights_out_stride, NULL);
}

const stage stage_q_prepare = {"q_prepare",    PREPARE_CASES,   0,
                               q_prepare_make, q_prepare_build, NULL};

/* ---- k_insert ---- */

static void k_insert_make(problem *p, int index) {
    uint64_t random = (uint64_t)index + 29;
    int hazard = index % PREPARE_HAZARDS;
    p->scene.d = index % 3 ? 128 : 64;
    p->ratio = 1 + index % 2;
    p->tokens = index % 6 == 5 ? 0 : 1 + index * 11 % 70;
    p->slots_size = 160;
    p->types = index % 4;
    p->eps = index % 5 == 4 ? 0.0f : 1e-6f;
    p->bf16 = make_bf16(hazard, p->tokens * p->scene.d, &random);
    make_rope(p, 120);
    p->positions = calloc((size_t)p->tokens + 1, sizeof *p->positions);
    p->slots = calloc((size_t)p->tokens + 1, sizeof *p->slots);
    p->vector = calloc((size_t)p->scene.d, sizeof *p->vector);
    int32_t *order = calloc((size_t)p->slots_size, sizeof *order);
    REQUIRE(p->positions && p->slots && p->vector && order, "out of memory");
    random_permutation(&random, order, p->slots_size);
    for (int64_t i = 0; i < p->tokens; i++) {
        p->positions[i] = index % 7 + i;
        p->slots[i] = i % 9 == 4 ? -1 - i * 1000000007 : order[i];
    }
    fill_values(p->vector, p->scene.d, hazard == 1 ? VALUE_HUGE_TINY : VALUE_PLAIN, &random);
    free(order);
    snprintf(p->text, sizeof p->text, "%s, D %d, ratio %d, %lld tokens, types %d", texts[hazard],
             p->scene.d, p->ratio, (long long)p->tokens, p->types);
}

/* What the tokens' slots own, codes and scales apart: PAGE and ROW keep both in one body. */
static void insert_spans(trial *t, const problem *p, const tamis_k_cache *k) {
    output *codes = &t->output[0], *scales = &t->output[1];
    int64_t code_bytes = p->scene.d / 2, scale_bytes = p->scene.d / 32;
    codes->spans = calloc((size_t)p->tokens + 1, sizeof(span));
    scales->spans = calloc((size_t)p->tokens + 1, sizeof(span));
    REQUIRE(codes->spans && scales->spans, "out of memory");
    for (int64_t i = 0; i < p->tokens; i++) {
        if (p->slots[i] < 0 || (p->positions[i] + 1) % p->ratio)
            continue;
        codes->spans[codes->span_count++] =
            (span){k_codes_at(k, p->slots[i]) - codes->base, code_bytes};
        scales->spans[scales->span_count++] =
            (span){k_scales_at(k, p->slots[i]) - scales->base, scale_bytes};
    }
}

static void k_insert_build(trial *t, const problem *p) {
    tamis_k_insert_args *a = &t->args.k_insert;
    guard_body body[2];
    tamis_k_insert_args_default(a);
    a->ratio = p->ratio;
    a->tokens = p->tokens;
    a->x = trial_input(t, p->bf16, p->tokens, 1, p->scene.d, 2, &a->x_stride, NULL);
    a->positions = trial_vector(t, p->positions, p->tokens, 8);
    a->slots = trial_vector(t, p->slots, p->tokens, 8);
    a->norm_weight = place_floats(t, p, 2, p->vector, 1, p->scene.d, NULL, &a->norm_weight_type);
    a->eps = trial_vector(t, &p->eps, 1, 4);
    place_rope(t, p, &a->rope);
    trial_k_new(t->outputs, &t->place, p->scene.d, p->slots_size, &a->k, body);
    t->output[0] = (output){.name = "codes", .base = a->k.codes, .body = body[0]};
    t->output[1] = (output){.name = "scales", .base = a->k.scales, .body = body[1]};
    if (!a->k.scales) {
        t->output[1].base = a->k.codes;
        t->output[1].body = body[0];
    }
    insert_spans(t, p, &a->k);
    t->phases[0] = call_k_insert;
}

/* A NaN group stores no codes. */
static void k_insert_verify(const trial *t, const problem *p) {
    const tamis_k_cache *k = &t->args.k_insert.k;
    int64_t groups = p->scene.d / 32;
    for (int64_t i = 0; i < p->tokens; i++) {
        if (p->slots[i] < 0 || (p->positions[i] + 1) % p->ratio)
            continue;
        const uint8_t *scales = k_scales_at(k, p->slots[i]), *codes = k_codes_at(k, p->slots[i]);
        for (int64_t g = 0; g < groups; g++)
            for (int b = 0; scales[g] == 255 && b < 16; b++)
                REQUIRE(codes[g * 16 + b] == 0, "token %lld: a NaN group holds codes",
                        (long long)i);
    }
}

const stage stage_k_insert = {"k_insert",    PREPARE_CASES,  0,
                              k_insert_make, k_insert_build, k_insert_verify};
