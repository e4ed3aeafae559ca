/* SPDX-License-Identifier: MIT */
/* levels_on.c: the two levels' calls as trials that a mirror takes to the GPU. */
#include "levels_on.h"

const level flash = {
    .numerics = TAMIS_NUMERICS_EXACT, .block_size = 8, .topk = 512, .topk_blocks = 2048};

void source_trial(trial *t, const scene *s, level l, const placement *where) {
    tamis_source_args *a = &t->args.source;
    trial_new(t, where);
    tamis_source_args_default(a);
    a->numerics = l.numerics;
    trial_scene(t, s, &a->k, &a->rows, &a->query);
    a->block_size = l.block_size;
    a->topk_blocks = l.topk_blocks;
    a->blocks = trial_output(t, LEVEL_BLOCKS, "blocks", s->rows, 1, l.topk_blocks, 4,
                             &a->blocks_stride, NULL);
    a->counts = trial_counts(t, 0, LEVEL_BLOCK_COUNTS, "published counts", s->rows);
    trial_selection(t, s->rows, l.topk, &a->selection);
    trial_source(t);
}

void consume_trial(trial *t, const scene *s, level l, block_lists lists, const placement *where) {
    tamis_consume_args *a = &t->args.consume;
    trial_new(t, where);
    tamis_consume_args_default(a);
    a->numerics = l.numerics;
    trial_scene(t, s, &a->k, &a->rows, &a->query);
    a->block_size = l.block_size;
    a->width = lists.width;
    a->blocks = trial_input(t, lists.ids, s->rows, 1, lists.width, 4, &a->blocks_stride, NULL);
    a->counts = lists.counts ? trial_vector(t, lists.counts, s->rows, 4) : NULL;
    trial_selection(t, s->rows, l.topk, &a->selection);
    trial_consume(t);
}

void dense_trial(trial *t, const scene *s, level l, block_lists lists, const placement *where) {
    tamis_dense_args *a = &t->args.dense;
    trial_new(t, where);
    tamis_dense_args_default(a);
    a->numerics = l.numerics;
    trial_scene(t, s, &a->k, &a->rows, &a->query);
    a->block_size = l.block_size;
    a->width = lists.width;
    a->blocks = trial_input(t, lists.ids, s->rows, 1, lists.width, 4, &a->blocks_stride, NULL);
    a->counts = lists.counts ? trial_vector(t, lists.counts, s->rows, 4) : NULL;
    trial_selection(t, s->rows, l.topk, &a->selection);
    trial_dense(t);
}

void rows_of(scene *s, int hazard, int64_t context, const int64_t *lengths, int64_t rows,
             uint64_t seed) {
    scene_prefill(s, 32, 128, context, lengths, rows);
    scene_numbers(s, hazard, TAMIS_F32, seed);
}
