/* SPDX-License-Identifier: MIT */
/* levels.c: calls of the two levels on scenes, and the oracle's answers. */
#include "levels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "require.h"

placement level_plain = {.layout = TAMIS_K_MXFP4_PAGE};
const slicing level_whole = {.nth = 1, .poison = 0xA5};

static results finish(trial *t, const tamis_backend *backend, slicing how) {
    trial_run(t, backend, how);
    results r = trial_results(t);
    trial_free(t);
    return r;
}

results level_source(const tamis_backend *backend, const scene *s, level l, const placement *p,
                     slicing how) {
    trial t;
    trial_new(&t, p);
    tamis_source_args *a = &t.args.source;
    tamis_source_args_default(a);
    a->numerics = l.numerics;
    trial_scene(&t, s, &a->k, &a->rows, &a->query);
    a->block_size = l.block_size;
    if (l.topk_blocks) {
        a->topk_blocks = l.topk_blocks;
        a->blocks = trial_output(&t, LEVEL_BLOCKS, "blocks", s->rows, 1, l.topk_blocks, 4,
                                 &a->blocks_stride, NULL);
        a->counts = trial_counts(&t, 0, LEVEL_BLOCK_COUNTS, "published counts", s->rows);
    }
    trial_selection(&t, s->rows, l.topk, &a->selection);
    trial_source(&t);
    return finish(&t, backend, how);
}

results level_consume(const tamis_backend *backend, const scene *s, level l, block_lists lists,
                      const placement *p, slicing how) {
    trial t;
    trial_new(&t, p);
    tamis_consume_args *a = &t.args.consume;
    tamis_consume_args_default(a);
    a->numerics = l.numerics;
    trial_scene(&t, s, &a->k, &a->rows, &a->query);
    a->block_size = l.block_size;
    a->width = lists.width;
    a->blocks = trial_input(&t, lists.ids, s->rows, 1, lists.width, 4, &a->blocks_stride, NULL);
    a->counts = lists.counts ? trial_vector(&t, lists.counts, s->rows, 4) : NULL;
    trial_selection(&t, s->rows, l.topk, &a->selection);
    trial_consume(&t);
    return finish(&t, backend, how);
}

results level_dense(const tamis_backend *backend, const scene *s, level l, block_lists lists,
                    const placement *p, slicing how) {
    trial t;
    trial_new(&t, p);
    tamis_dense_args *a = &t.args.dense;
    tamis_dense_args_default(a);
    a->numerics = l.numerics;
    trial_scene(&t, s, &a->k, &a->rows, &a->query);
    if (lists.ids) {
        a->block_size = l.block_size;
        a->width = lists.width;
        a->blocks = trial_input(&t, lists.ids, s->rows, 1, lists.width, 4, &a->blocks_stride, NULL);
        a->counts = lists.counts ? trial_vector(&t, lists.counts, s->rows, 4) : NULL;
    }
    trial_selection(&t, s->rows, l.topk, &a->selection);
    trial_dense(&t);
    return finish(&t, backend, how);
}

/* ---- the oracle ---- */

static void *fresh(results *r, int i, int64_t bytes) {
    r->size[i] = bytes;
    r->bytes[i] = calloc((size_t)bytes + 1, 1);
    REQUIRE(r->bytes[i], "out of memory");
    return r->bytes[i];
}

/* Scores of chosen positions as calls return them: one NaN, no -0, -inf in the tail. */
static void chosen_scores(const float *scores, const int32_t *positions, int64_t topk, float *out) {
    static const uint32_t nan_bits = 0x7FC00000u;
    for (int64_t i = 0; i < topk; i++) {
        float score = positions[i] < 0 ? -INFINITY : scores[positions[i]];
        if (score == 0)
            score = 0.0f;
        if (isnan(score))
            memcpy(&score, &nan_bits, sizeof score);
        out[i] = score;
    }
}

static results oracle_level(const scene *s, level l, const block_lists *lists) {
    results r;
    memset(&r, 0, sizeof r);
    int32_t *positions = fresh(&r, LEVEL_POSITIONS, s->rows * l.topk * 4);
    float *chosen = fresh(&r, LEVEL_SCORES, s->rows * l.topk * 4);
    int32_t *counts = fresh(&r, LEVEL_COUNTS, s->rows * 4);
    int32_t *blocks = NULL, *block_counts = NULL;
    if (!lists && l.topk_blocks) {
        blocks = fresh(&r, LEVEL_BLOCKS, s->rows * l.topk_blocks * 4);
        block_counts = fresh(&r, LEVEL_BLOCK_COUNTS, s->rows * 4);
    }
    float *scores = calloc((size_t)scene_longest(s) + 1, sizeof *scores);
    REQUIRE(scores, "out of memory");
    for (int64_t row = 0; row < s->rows; row++) {
        int64_t n = scene_length(s, row);
        int32_t *out = positions + row * l.topk;
        scene_scores(s, l.numerics, row, scores);
        if (lists) {
            int64_t width = lists->counts ? lists->counts[row] : lists->width;
            counts[row] = (int32_t)oracle_consume(
                scores, n, l.block_size, lists->ids + row * lists->width, width, l.topk, out);
        } else {
            counts[row] = (int32_t)oracle_topk(scores, n, l.topk, out);
        }
        if (blocks)
            block_counts[row] = (int32_t)oracle_publish(scores, n, l.block_size, l.topk_blocks,
                                                        blocks + row * l.topk_blocks);
        chosen_scores(scores, out, l.topk, chosen + row * l.topk);
    }
    free(scores);
    return r;
}

results oracle_source(const scene *s, level l) {
    return oracle_level(s, l, NULL);
}

results oracle_consumer(const scene *s, level l, block_lists lists) {
    return oracle_level(s, l, &lists);
}

/* ---- comparing ---- */

void level_equal(const scene *s, const results *want, const results *got, const char *what) {
    static const char *const names[] = {"position", "slot",  "score",
                                        "count",    "block", "published count"};
    for (int i = 0; i < TRIAL_OUTPUTS; i++) {
        if (!want->bytes[i] || !got->bytes[i])
            continue;
        REQUIRE(want->size[i] == got->size[i], "%s: test: sizes of %s differ", what, names[i]);
        int64_t step = i == LEVEL_SLOTS ? 8 : 4, width = want->size[i] / step;
        if (s->rows)
            width /= s->rows;
        for (int64_t at = 0; at * step < want->size[i]; at++) {
            int32_t a, b;
            memcpy(&a, want->bytes[i] + at * step, 4);
            memcpy(&b, got->bytes[i] + at * step, 4);
            REQUIRE(memcmp(want->bytes[i] + at * step, got->bytes[i] + at * step, (size_t)step) ==
                        0,
                    "%s: row %lld (length %lld), %s %lld is %d (%08x), not %d (%08x)", what,
                    (long long)(at / width), (long long)scene_length(s, at / width), names[i],
                    (long long)(at % width), b, (unsigned)b, a, (unsigned)a);
        }
    }
}

void level_well_formed(const int32_t *ids, const int32_t *counts, int64_t rows, int64_t width,
                       const scene *s, int64_t unit) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t limit = (scene_length(s, r) + unit - 1) / unit, count = 0;
        for (int64_t i = 0; i < width; i++) {
            int32_t id = ids[r * width + i];
            if (id == -1)
                continue;
            REQUIRE(id >= 0 && id < limit, "row %lld: id %d is not in 0..%lld", (long long)r, id,
                    (long long)limit - 1);
            REQUIRE(count == i, "row %lld: -1 before a valid id at %lld", (long long)r,
                    (long long)i);
            REQUIRE(i == 0 || id > ids[r * width + i - 1], "row %lld: id %d after %d", (long long)r,
                    id, ids[r * width + i - 1]);
            count++;
        }
        REQUIRE(counts[r] == count, "row %lld: count %d of %lld ids", (long long)r, counts[r],
                (long long)count);
    }
}

/* ---- scenes from scenes ---- */

void scene_consumer(scene *s, const scene *source, int hazard, uint64_t seed) {
    scene_new(s, source->heads, source->d, source->requests, source->context, source->rows);
    memcpy(s->request, source->request, (size_t)source->rows * sizeof *s->request);
    memcpy(s->ks, source->ks, (size_t)source->rows * sizeof *s->ks);
    memcpy(s->ke, source->ke, (size_t)source->rows * sizeof *s->ke);
    scene_numbers(s, hazard, source->weights_type, seed);
    memcpy(s->k_codes, source->k_codes, (size_t)(s->positions * (s->d / 2)));
    memcpy(s->k_scales, source->k_scales, (size_t)(s->positions * (s->d / 32)));
}

void scene_pick(scene *s, const scene *from, const int32_t *rows, int64_t count) {
    int64_t codes = (int64_t)from->heads * (from->d / 2),
            scales = (int64_t)from->heads * (from->d / 32);
    scene_new(s, from->heads, from->d, from->requests, from->context, count);
    s->weights_type = from->weights_type;
    s->hazard = from->hazard;
    memcpy(s->k_codes, from->k_codes, (size_t)(s->positions * (s->d / 2)));
    memcpy(s->k_scales, from->k_scales, (size_t)(s->positions * (s->d / 32)));
    for (int64_t i = 0; i < count; i++) {
        int64_t r = rows[i];
        s->request[i] = from->request[r];
        s->ks[i] = from->ks[r];
        s->ke[i] = from->ke[r];
        memcpy(s->q_codes + i * codes, from->q_codes + r * codes, (size_t)codes);
        memcpy(s->q_scales + i * scales, from->q_scales + r * scales, (size_t)scales);
        memcpy(s->weights + i * s->heads, from->weights + r * s->heads,
               (size_t)s->heads * sizeof *s->weights);
    }
}
