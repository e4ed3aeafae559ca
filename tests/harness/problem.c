/* SPDX-License-Identifier: MIT */
/* problem.c: what the cases of several stages share. */
#include "stages.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

void problem_free(problem *p) {
    scene_free(&p->scene);
    free(p->ids);
    free(p->counts);
    free(p->values);
    free(p->start);
    free(p->bf16);
    free(p->positions);
    free(p->slots);
    free(p->rope);
    free(p->vector);
}

static void scoring_scene(problem *p, int index) {
    int64_t lengths[2] = {2051, 300};
    int hazard = index % SCENE_HAZARD_COUNT, heads = 32, d = 128;
    if (index >= SCENE_HAZARD_COUNT) {
        heads = 4 * (1 + index * 7 % 16);
        d = index % 3 ? 64 : 128;
    }
    if (index >= 2 * SCENE_HAZARD_COUNT) {
        p->heavy = 1;
        hazard = index % 2 ? SCENE_FEW : SCENE_MIXED;
        heads = index % 2 ? 4 : 32;
        scene_decode(&p->scene, heads, d, lengths, 2);
    } else {
        scene_around_tiles(&p->scene, heads, d, (uint64_t)index);
    }
    scene_numbers(&p->scene, hazard, index % 4 == 1 ? TAMIS_BF16 : TAMIS_F32, (uint64_t)index + 1);
}

void make_scoring(problem *p, int index) {
    static const int topk[] = {1, 8, 20, 64, 512};
    int judged = index >= SCORING_CASES;
    scoring_scene(p, judged ? index - SCORING_CASES : index);
    p->numerics = judged           ? TAMIS_NUMERICS_DG_BF16 + index % 2
                  : index % 3 == 2 ? TAMIS_NUMERICS_BF16
                                   : TAMIS_NUMERICS_EXACT;
    p->block_size = index % 4 == 3 ? 16 : 8;
    p->topk = topk[index % 5];
    p->topk_blocks = 1 + index * 5 % 23;
    p->logits_type = index % 5 == 4 ? TAMIS_BF16 : TAMIS_F32;
    snprintf(p->text, sizeof p->text, "%s, class %d, %d x %d, block %d, topk %d, blocks %d",
             scene_hazard_text(p->scene.hazard), p->numerics, p->scene.heads, p->scene.d,
             p->block_size, p->topk, p->topk_blocks);
}

/* ---- lists of block ids ---- */

/* Ascending ids that a source could have published: the newest block among them. */
static void published_ids(int32_t *ids, int64_t width, int64_t blocks, uint64_t *random) {
    int64_t n = 0;
    for (int64_t b = 0; b < blocks && n < width; b++)
        if (b == blocks - 1 || random_below(random, blocks) < width)
            ids[n++] = (int32_t)b;
    for (; n < width; n++)
        ids[n] = -1;
}

static void foreign_ids(int32_t *ids, int64_t width, int64_t blocks, uint64_t *random) {
    static const int32_t odd[] = {-1, INT32_MIN, INT32_MAX, -2, 1 << 28, 1 << 30};
    for (int64_t i = 0; i < width; i++)
        ids[i] = random_below(random, 3) == 0 ? odd[random_below(random, 6)]
                                              : (int32_t)random_below(random, blocks + 2);
}

void make_ids(problem *p, int64_t width, uint64_t seed) {
    const scene *s = &p->scene;
    uint64_t random = seed;
    p->width = width;
    p->ids = calloc((size_t)(s->rows * width + 1), sizeof *p->ids);
    p->counts = seed % 2 ? calloc((size_t)s->rows + 1, sizeof *p->counts) : NULL;
    REQUIRE(p->ids && (p->counts || seed % 2 == 0), "out of memory");
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t blocks = (scene_length(s, r) + p->block_size - 1) / p->block_size;
        (r % 3 == 2 && !p->flags ? foreign_ids : published_ids)(p->ids + r * width, width, blocks,
                                                                &random);
        if (p->counts)
            p->counts[r] = (int32_t)random_below(&random, width + 1);
    }
}

int32_t *anchored_ids(const trial *t, const problem *p) {
    const scene *s = &p->scene;
    int32_t *ids = calloc((size_t)(s->rows * p->width + 1), sizeof *ids);
    REQUIRE(ids, "out of memory");
    for (int64_t i = 0; i < s->rows * p->width; i++) {
        int64_t row = i / p->width;
        int64_t anchor = (s->ks[row] + trial_base(t, s, row)) / p->block_size;
        int64_t id = p->ids[i] + anchor;
        ids[i] = p->ids[i] < -1 || id > 1 << 27 ? p->ids[i] : (int32_t)id;
    }
    return ids;
}

/* ---- scores as inputs ---- */

static const char *const value_texts[] = {
#define VALUE_HAZARD(name, text) text,
    VALUE_HAZARDS(VALUE_HAZARD)
#undef VALUE_HAZARD
};

const char *value_hazard_text(int hazard) {
    return value_texts[hazard];
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float one_value(int hazard, int64_t i, int64_t count, uint64_t *random) {
    uint32_t bits = (uint32_t)random_next(random);
    float plain = random_float(random);
    switch (hazard) {
    case VALUE_BITS:
        return from_bits(bits);
    case VALUE_EQUAL:
        return 0.75f;
    case VALUE_ZEROS:
        return bits & 1 ? 0.0f : -0.0f;
    case VALUE_NANS:
        return bits % 7 == 0 ? NAN : bits % 7 == 1 ? INFINITY : bits % 7 == 2 ? -INFINITY : plain;
    case VALUE_ALL_NAN:
        return from_bits(bits | 0x7FC10000u);
    case VALUE_FEW:
        return (float)(bits % 3) - 1.0f;
    case VALUE_CUT:
        return i == count / 2 ? 2.0f : 1.0f;
    case VALUE_LAST_BIT:
        return from_bits(0x41230000u + (bits & 3));
    case VALUE_SUBNORMAL:
        return from_bits((bits & 0x80000000u) | (bits & 0x1FFFFFu));
    case VALUE_ASCENDING:
        return (float)i;
    case VALUE_DESCENDING:
        return -(float)i;
    case VALUE_HUGE_TINY:
        return ldexpf(plain, bits % 2 ? 120 : -130);
    default:
        return plain;
    }
}

void fill_values(float *values, int64_t count, int hazard, uint64_t *random) {
    for (int64_t i = 0; i < count; i++)
        values[i] = one_value(hazard, i, count, random);
}

const void *place_values(trial *t, const problem *p, int64_t *stride) {
    int64_t rows = p->scene.rows, count = rows * p->width;
    if (p->logits_type == TAMIS_F32)
        return trial_input(t, p->values, rows, 1, p->width, 4, stride, NULL);
    uint16_t *halves = calloc((size_t)count + 1, sizeof *halves);
    REQUIRE(halves, "out of memory");
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &p->values[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    const void *placed = trial_input(t, halves, rows, 1, p->width, 2, stride, NULL);
    free(halves);
    return placed;
}
