/* SPDX-License-Identifier: MIT */
/*
 * compose.c: mqa_logits | block_max | publish | topk is the source, and expand | sparse_mqa_logits
 * | topk the consumer, at every start ks: the public stages and the fused levels may not drift
 * apart.
 */
#include "compose.h"

#include <stdlib.h>

#include "levels.h"
#include "require.h"

static void *memory(int64_t count, int64_t size) {
    void *fresh = calloc((size_t)count + 1, (size_t)size);
    REQUIRE(fresh, "out of memory");
    return fresh;
}

static results selection_results(const scene *s, level l, tamis_selection *out, int32_t *blocks,
                                 int32_t *block_counts) {
    results r = {{NULL}, {0}};
    out->topk = l.topk;
    out->positions_stride = out->scores_stride = l.topk;
    r.bytes[LEVEL_POSITIONS] = memory(s->rows * l.topk, 4);
    r.bytes[LEVEL_SCORES] = memory(s->rows * l.topk, 4);
    r.bytes[LEVEL_COUNTS] = memory(s->rows, 4);
    r.size[LEVEL_POSITIONS] = r.size[LEVEL_SCORES] = s->rows * l.topk * 4;
    r.size[LEVEL_COUNTS] = s->rows * 4;
    out->positions = (int32_t *)(void *)r.bytes[LEVEL_POSITIONS];
    out->scores = (float *)(void *)r.bytes[LEVEL_SCORES];
    out->counts = (int32_t *)(void *)r.bytes[LEVEL_COUNTS];
    if (blocks) {
        r.bytes[LEVEL_BLOCKS] = (uint8_t *)blocks;
        r.bytes[LEVEL_BLOCK_COUNTS] = (uint8_t *)block_counts;
        r.size[LEVEL_BLOCKS] = s->rows * l.topk_blocks * 4;
        r.size[LEVEL_BLOCK_COUNTS] = s->rows * 4;
    }
    return r;
}

static results source_by_stages(const tamis_backend *backend, const scene *s, level l) {
    tamis_error error;
    trial t;
    trial_new(&t, &level_plain);
    int64_t columns = scene_longest(s), most = (columns + l.block_size - 1) / l.block_size;
    float *logits = memory(s->rows * columns, 4), *best = memory(s->rows * most, 4);

    tamis_mqa_logits_args score;
    tamis_mqa_logits_args_default(&score);
    score.numerics = l.numerics;
    trial_scene(&t, s, &score.k, &score.rows, &score.query);
    score.logits_type = TAMIS_F32;
    score.logits = logits;
    score.columns = score.logits_stride = columns;
    REQUIRE_OK(tamis_mqa_logits(backend, &score, 0, 1, &error), error);

    tamis_block_max_args max;
    tamis_block_max_args_default(&max);
    max.block_size = l.block_size;
    max.logits_type = TAMIS_F32;
    trial_intervals(&t, s, &max.rows);
    max.logits = logits;
    max.logits_stride = columns;
    max.block_max = best;
    max.block_max_stride = most;
    REQUIRE_OK(tamis_block_max(backend, &max, 0, 1, &error), error);

    tamis_publish_args publish;
    tamis_publish_args_default(&publish);
    publish.block_size = l.block_size;
    publish.topk_blocks = l.topk_blocks;
    publish.rows = max.rows;
    publish.block_max = best;
    publish.block_max_stride = most;
    publish.blocks = memory(s->rows * l.topk_blocks, 4);
    publish.blocks_stride = l.topk_blocks;
    publish.counts = memory(s->rows, 4);
    REQUIRE_OK(tamis_publish(backend, &publish, 0, 1, &error), error);

    tamis_topk_args topk;
    tamis_topk_args_default(&topk);
    topk.logits_type = TAMIS_F32;
    topk.rows = max.rows;
    topk.logits = logits;
    topk.logits_stride = topk.width = columns;
    results r = selection_results(s, l, &topk.selection, publish.blocks, publish.counts);
    REQUIRE_OK(tamis_topk(backend, &topk, 0, 1, &error), error);
    free(logits);
    free(best);
    trial_free(&t);
    return r;
}

static results consumer_by_stages(const tamis_backend *backend, const scene *s, level l,
                                  const int32_t *ids) {
    tamis_error error;
    trial t;
    trial_new(&t, &level_plain);
    int64_t width = l.topk_blocks, columns = width * l.block_size;

    tamis_expand_args expand;
    tamis_expand_args_default(&expand);
    expand.candidate_size = expand.block_size = l.block_size;
    trial_intervals(&t, s, &expand.rows);
    expand.candidates = ids;
    expand.width = expand.candidates_stride = expand.blocks_stride = width;
    expand.blocks = memory(s->rows * width, 4);
    expand.counts = memory(s->rows, 4);
    expand.columns = memory(s->rows, 4);
    REQUIRE_OK(tamis_expand(backend, &expand, 0, 1, &error), error);

    tamis_sparse_mqa_logits_args score;
    tamis_sparse_mqa_logits_args_default(&score);
    score.numerics = l.numerics;
    trial_scene(&t, s, &score.k, &score.rows, &score.query);
    score.block_size = l.block_size;
    score.logits_type = TAMIS_F32;
    score.blocks = expand.blocks;
    score.width = score.blocks_stride = width;
    score.counts = expand.counts;
    score.logits = memory(s->rows * columns, 4);
    score.logits_stride = columns;
    REQUIRE_OK(tamis_sparse_mqa_logits(backend, &score, 0, 1, &error), error);

    tamis_topk_args topk;
    tamis_topk_args_default(&topk);
    topk.logits_type = TAMIS_F32;
    topk.block_size = l.block_size;
    topk.rows = expand.rows;
    topk.logits = score.logits;
    topk.logits_stride = topk.width = columns;
    topk.columns = expand.columns;
    topk.blocks = expand.blocks;
    topk.blocks_stride = width;
    results r = selection_results(s, l, &topk.selection, NULL, NULL);
    REQUIRE_OK(tamis_topk(backend, &topk, 0, 1, &error), error);
    free(expand.blocks);
    free(expand.counts);
    free(expand.columns);
    free(score.logits);
    trial_free(&t);
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
