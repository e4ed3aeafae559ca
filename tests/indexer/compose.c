/* SPDX-License-Identifier: MIT */
/*
 * compose.c: mqa_logits | block_max | publish | topk is the source, and expand | sparse_mqa_logits
 * | topk the consumer, at every start ks: the public stages and the fused levels may not drift
 * apart. Every stage is a trial of its own, which gets what the one before wrote.
 */
#include "compose.h"

#include <stddef.h>

#include "levels.h"
#include "require.h"

enum { FIRST = 0, SECOND = 1, THIRD = 2 }; /* outputs of a trial */

static results run(trial *t, stage_call *call, const tamis_backend *backend) {
    t->phases[0] = call;
    trial_run(t, backend, level_whole);
    results r = trial_results(t);
    trial_free(t);
    return r;
}

static results scores_of(const tamis_backend *backend, const scene *s, level l, int64_t columns) {
    trial t;
    trial_new(&t, &level_plain);
    tamis_mqa_logits_args *a = &t.args.mqa_logits;
    tamis_mqa_logits_args_default(a);
    a->numerics = l.numerics;
    trial_scene(&t, s, &a->k, &a->rows, &a->query);
    a->logits_type = TAMIS_F32;
    a->columns = columns;
    a->logits = trial_output(&t, FIRST, "logits", s->rows, 1, columns, 4, &a->logits_stride, NULL);
    return run(&t, call_mqa_logits, backend);
}

static results maxima_of(const tamis_backend *backend, const scene *s, level l, int64_t columns,
                         const results *scores) {
    trial t;
    trial_new(&t, &level_plain);
    tamis_block_max_args *a = &t.args.block_max;
    tamis_block_max_args_default(a);
    a->block_size = l.block_size;
    a->logits_type = TAMIS_F32;
    trial_intervals(&t, s, &a->rows);
    a->logits =
        trial_input(&t, scores->bytes[FIRST], s->rows, 1, columns, 4, &a->logits_stride, NULL);
    a->block_max =
        trial_output(&t, FIRST, "block maxima", s->rows, 1,
                     (columns + l.block_size - 1) / l.block_size, 4, &a->block_max_stride, NULL);
    return run(&t, call_block_max, backend);
}

static results blocks_of(const tamis_backend *backend, const scene *s, level l, int64_t columns,
                         const results *maxima) {
    trial t;
    trial_new(&t, &level_plain);
    tamis_publish_args *a = &t.args.publish;
    tamis_publish_args_default(a);
    a->block_size = l.block_size;
    a->topk_blocks = l.topk_blocks;
    trial_intervals(&t, s, &a->rows);
    a->block_max =
        trial_input(&t, maxima->bytes[FIRST], s->rows, 1,
                    (columns + l.block_size - 1) / l.block_size, 4, &a->block_max_stride, NULL);
    a->blocks =
        trial_output(&t, FIRST, "blocks", s->rows, 1, l.topk_blocks, 4, &a->blocks_stride, NULL);
    a->counts = trial_counts(&t, 0, SECOND, "counts", s->rows);
    return run(&t, call_publish, backend);
}

/* A topk whose columns are positions, or, with expanded blocks, those of the blocks. */
static results selection_of(const tamis_backend *backend, const scene *s, level l, int64_t width,
                            const results *scores, const results *expanded) {
    enum { NO_SLOTS = 2 };
    placement where = level_plain;
    trial t;
    where.omit = NO_SLOTS;
    trial_new(&t, &where);
    tamis_topk_args *a = &t.args.topk;
    tamis_topk_args_default(a);
    a->logits_type = TAMIS_F32;
    trial_intervals(&t, s, &a->rows);
    a->width = width;
    a->logits =
        trial_input(&t, scores->bytes[FIRST], s->rows, 1, width, 4, &a->logits_stride, NULL);
    if (expanded) {
        a->block_size = l.block_size;
        a->blocks = trial_input(&t, expanded->bytes[FIRST], s->rows, 1, width / l.block_size, 4,
                                &a->blocks_stride, NULL);
        a->columns = trial_vector(&t, expanded->bytes[THIRD], s->rows, 4);
    }
    trial_selection(&t, s->rows, l.topk, &a->selection);
    return run(&t, call_topk, backend);
}

static results source_by_stages(const tamis_backend *backend, const scene *s, level l) {
    int64_t columns = scene_longest(s);
    results scores = scores_of(backend, s, l, columns);
    results maxima = maxima_of(backend, s, l, columns, &scores);
    results blocks = blocks_of(backend, s, l, columns, &maxima);
    results r = selection_of(backend, s, l, columns, &scores, NULL);
    r.bytes[LEVEL_BLOCKS] = blocks.bytes[FIRST];
    r.size[LEVEL_BLOCKS] = blocks.size[FIRST];
    r.bytes[LEVEL_BLOCK_COUNTS] = blocks.bytes[SECOND];
    r.size[LEVEL_BLOCK_COUNTS] = blocks.size[SECOND];
    results_free(&scores);
    results_free(&maxima);
    return r;
}

static results expanded_of(const tamis_backend *backend, const scene *s, level l,
                           const int32_t *ids) {
    trial t;
    trial_new(&t, &level_plain);
    tamis_expand_args *a = &t.args.expand;
    tamis_expand_args_default(a);
    a->candidate_size = a->block_size = l.block_size;
    trial_intervals(&t, s, &a->rows);
    a->width = l.topk_blocks;
    a->candidates = trial_input(&t, ids, s->rows, 1, a->width, 4, &a->candidates_stride, NULL);
    a->blocks = trial_output(&t, FIRST, "blocks", s->rows, 1, a->width, 4, &a->blocks_stride, NULL);
    a->counts = trial_counts(&t, 0, SECOND, "counts", s->rows);
    a->columns = trial_counts(&t, 0, THIRD, "columns", s->rows);
    return run(&t, call_expand, backend);
}

static results listed_scores_of(const tamis_backend *backend, const scene *s, level l,
                                const results *expanded) {
    trial t;
    trial_new(&t, &level_plain);
    tamis_sparse_mqa_logits_args *a = &t.args.sparse_mqa_logits;
    tamis_sparse_mqa_logits_args_default(a);
    a->numerics = l.numerics;
    trial_scene(&t, s, &a->k, &a->rows, &a->query);
    a->block_size = l.block_size;
    a->logits_type = TAMIS_F32;
    a->width = l.topk_blocks;
    a->blocks =
        trial_input(&t, expanded->bytes[FIRST], s->rows, 1, a->width, 4, &a->blocks_stride, NULL);
    a->counts = trial_vector(&t, expanded->bytes[SECOND], s->rows, 4);
    a->logits = trial_output(&t, FIRST, "logits", s->rows, 1, a->width * l.block_size, 4,
                             &a->logits_stride, NULL);
    return run(&t, call_sparse_mqa_logits, backend);
}

static results consumer_by_stages(const tamis_backend *backend, const scene *s, level l,
                                  const int32_t *ids) {
    int64_t columns = (int64_t)l.topk_blocks * l.block_size;
    results expanded = expanded_of(backend, s, l, ids);
    results scores = listed_scores_of(backend, s, l, &expanded);
    results r = selection_of(backend, s, l, columns, &scores, &expanded);
    results_free(&expanded);
    results_free(&scores);
    return r;
}

void levels_are_their_stages(const tamis_backend *backend) {
    for (int i = 0; i < SCENE_HAZARD_COUNT; i++) {
        scene s, other;
        level l = {TAMIS_NUMERICS_EXACT, i % 2 ? 16 : 8, 1 + i * 7 % 40, 1 + i % 9};
        test_context("stages: %s", scene_hazard_text(i));
        scene_around_tiles(&s, 4, 64, (uint64_t)i);
        scene_numbers(&s, i, TAMIS_F32, (uint64_t)i);
        scene_consumer(&other, &s, i, (uint64_t)i + 50);
        results whole = level_source(backend, &s, l, &level_plain, level_whole);
        results parts = source_by_stages(backend, &s, l);
        level_equal(&s, &whole, &parts, "source by its stages");
        const int32_t *ids = (const int32_t *)(const void *)whole.bytes[LEVEL_BLOCKS];
        block_lists lists = {ids, l.topk_blocks, NULL};
        results consumed = level_consume(backend, &other, l, lists, &level_plain, level_whole);
        results pieces = consumer_by_stages(backend, &other, l, ids);
        level_equal(&other, &consumed, &pieces, "consumer by its stages");
        results_free(&whole);
        results_free(&parts);
        results_free(&consumed);
        results_free(&pieces);
        scene_free(&s);
        scene_free(&other);
    }
}
