/* SPDX-License-Identifier: MIT */
/* stage_score.c: the cases of the stages that read K and queries, and of the two levels. */
#include <limits.h>
#include <stdlib.h>

#include "require.h"
#include "stages.h"

/* ---- mqa_logits ---- */

/*
 * Kernels may score neighbouring rows together where these have one request and one start. A third
 * of the cases has starts of its own a row, a third 0 and eight rows a request, a third a start
 * that is no multiple of anything and requests that begin anywhere.
 */
static void dense_make(problem *p, int index) {
    make_scoring(p, index);
    scene *s = &p->scene;
    int kind = (index + index / 3) % 3;
    for (int64_t r = 0; kind && r < s->rows; r++) {
        int32_t length = (int32_t)scene_length(s, r), start = kind == 1 || p->heavy ? 0 : 3;
        if (kind == 2 && !p->heavy)
            s->request[r] = (int32_t)(r < 5 ? 0 : r < 13 ? 1 : 2);
        s->ks[r] = start;
        s->ke[r] = start + length;
    }
}

static void mqa_logits_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_mqa_logits_args *a = &t->args.mqa_logits;
    tamis_mqa_logits_args_default(a);
    a->numerics = p->numerics;
    trial_scene(t, s, &a->k, &a->rows, &a->query);
    a->logits_type = p->logits_type;
    a->block_size = p->block_size;
    a->columns = scene_longest(s) + 5;
    a->logits = trial_optional(t, t->place.omit == 1 ? 1 : 0, 0, "logits", s->rows, a->columns,
                               p->logits_type == TAMIS_F32 ? 4 : 2, &a->logits_stride);
    int64_t widest = (scene_longest(s) + p->block_size - 1) / p->block_size;
    a->block_max = trial_optional(t, t->place.omit == 2 ? 2 : 0, 1, "block_max", s->rows, widest, 4,
                                  &a->block_max_stride);
    if (a->block_max)
        for (int64_t r = 0; r < s->rows; r++)
            t->output[1].spans[r].bytes =
                (scene_length(s, r) + p->block_size - 1) / p->block_size * 4;
    t->phases[0] = call_mqa_logits;
}

const stage stage_mqa_logits = {"mqa_logits", SCORING_CASES,    SCORING_JUDGED,
                                dense_make,   mqa_logits_build, NULL};

/* ---- k_gather ---- */

static void k_gather_make(problem *p, int index) {
    make_scoring(p, index);
    const scene *s = &p->scene;
    p->start = calloc((size_t)s->rows + 1, sizeof *p->start);
    REQUIRE(p->start, "out of memory");
    int64_t next = index % 3; /* rows of nobody before, between and after the intervals */
    for (int64_t i = 0; i < s->rows; i++) {
        int64_t row = index % 2 ? i : s->rows - 1 - i;
        p->start[row] = next;
        next += scene_length(s, row) + index % 4;
    }
    p->width = next;
}

static void gather_spans(trial *t, const problem *p, int i, int64_t stride, int64_t bytes) {
    const scene *s = &p->scene;
    span *spans = calloc((size_t)p->width + 1, sizeof *spans);
    REQUIRE(spans, "out of memory");
    int64_t n = 0;
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t j = 0; j < scene_length(s, r); j++)
            spans[n++] = (span){(p->start[r] + j) * stride, bytes};
    free(t->output[i].spans);
    t->output[i].spans = spans;
    t->output[i].span_count = n;
}

static void k_gather_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_k_gather_args *a = &t->args.k_gather;
    tamis_k_gather_args_default(a);
    trial_scene(t, s, &a->k, &a->rows, NULL);
    a->start = trial_vector(t, p->start, s->rows, 8);
    a->size = p->width;
    a->codes = trial_output(t, 0, "codes", a->size, 1, s->d / 2, 1, &a->codes_stride, NULL);
    a->scales = trial_output(t, 1, "scales", a->size, 1, s->d / 32, 1, &a->scales_stride, NULL);
    gather_spans(t, p, 0, a->codes_stride, s->d / 2);
    gather_spans(t, p, 1, a->scales_stride, s->d / 32);
    t->phases[0] = call_k_gather;
}

const stage stage_k_gather = {"k_gather", SCORING_CASES, 0, k_gather_make, k_gather_build, NULL};

/* ---- sparse_mqa_logits ---- */

/* Every third case has starts of 0 and plain lists, so that PAGE can name their physical blocks. */
static void lists_make(problem *p, int index) {
    static const int64_t widths[] = {1, 3, 8, 17, 40};
    make_scoring(p, index);
    p->flags = index % 3 == 1;
    for (int64_t r = 0; p->flags && r < p->scene.rows; r++) {
        p->scene.ke[r] = (int32_t)scene_length(&p->scene, r);
        p->scene.ks[r] = 0;
    }
    make_ids(p, p->heavy ? 160 : widths[index % 5], (uint64_t)index + 5);
}

/* Where each listed block lies in the pool; NULL where this placement does not say. */
static const int32_t *place_physical(trial *t, const problem *p, const tamis_k_cache *k,
                                     const tamis_rows *rows, int64_t *stride) {
    if (!p->flags || !rows->page_table || t->place.seed % 2)
        return NULL;
    int64_t size = p->block_size, per_page = k->page_size / size;
    int32_t *dense = calloc((size_t)(p->scene.rows * p->width) + 1, sizeof *dense);
    REQUIRE(dense, "out of memory");
    for (int64_t i = 0; i < p->scene.rows * p->width; i++) {
        const int32_t *pages =
            rows->page_table + p->scene.request[i / p->width] * rows->page_table_stride;
        int64_t block = p->ids[i];
        dense[i] = block < 0 ? INT32_MAX
                             : (int32_t)(pages[block / per_page] * per_page + block % per_page);
    }
    const int32_t *placed = trial_input(t, dense, p->scene.rows, 1, p->width, 4, stride, NULL);
    free(dense);
    return placed;
}

static void sparse_mqa_logits_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_sparse_mqa_logits_args *a = &t->args.sparse_mqa_logits;
    tamis_sparse_mqa_logits_args_default(a);
    a->numerics = p->numerics;
    trial_scene(t, s, &a->k, &a->rows, &a->query);
    a->block_size = p->block_size;
    a->logits_type = p->logits_type;
    a->width = p->width;
    int32_t *ids = anchored_ids(t, p);
    a->blocks = trial_input(t, ids, s->rows, 1, p->width, 4, &a->blocks_stride, NULL);
    free(ids);
    a->counts = p->counts ? trial_vector(t, p->counts, s->rows, 4) : NULL;
    a->physical = place_physical(t, p, &a->k, &a->rows, &a->physical_stride);
    a->logits = trial_output(t, 0, "logits", s->rows, 1, p->width * p->block_size,
                             p->logits_type == TAMIS_F32 ? 4 : 2, &a->logits_stride, NULL);
    t->phases[0] = call_sparse_mqa_logits;
}

const stage stage_sparse_mqa_logits = {"sparse_mqa_logits", SCORING_CASES,           SCORING_JUDGED,
                                       lists_make,          sparse_mqa_logits_build, NULL};

/* ---- the levels ---- */

/* Slots name the K rows of the positions, whatever the layout. */
static void verify_slots(const trial *t, const problem *p, const tamis_k_cache *k,
                         const tamis_rows *rows, const tamis_selection *out) {
    if (!out->positions || !out->slots)
        return;
    for (int64_t r = 0; r < p->scene.rows; r++)
        for (int64_t i = 0; i < out->topk; i++) {
            int64_t position = out->positions[r * out->positions_stride + i], want = position;
            int64_t at = p->scene.ks[r] + trial_base(t, &p->scene, r) + position;
            if (position >= 0 && rows->page_table)
                want = rows->page_table[(rows->request ? rows->request[r] : 0) *
                                            rows->page_table_stride +
                                        at / k->page_size] *
                           (int64_t)k->page_size +
                       at % k->page_size;
            else if (position >= 0)
                want = at;
            int64_t got = out->slots[r * out->slots_stride + i];
            REQUIRE(got == want, "slot %lld of row %lld is %lld, not %lld", (long long)i,
                    (long long)r, (long long)got, (long long)want);
        }
}

static void consume_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_consume_args *a = &t->args.consume;
    tamis_consume_args_default(a);
    a->numerics = p->numerics;
    trial_scene(t, s, &a->k, &a->rows, &a->query);
    a->block_size = p->block_size;
    a->width = p->width;
    a->blocks = trial_input(t, p->ids, s->rows, 1, p->width, 4, &a->blocks_stride, NULL);
    a->counts = p->counts ? trial_vector(t, p->counts, s->rows, 4) : NULL;
    a->physical = place_physical(t, p, &a->k, &a->rows, &a->physical_stride);
    trial_selection(t, s->rows, p->topk, &a->selection);
    trial_consume(t);
}

static void consume_verify(const trial *t, const problem *p) {
    const tamis_consume_args *a = &t->args.consume;
    verify_slots(t, p, &a->k, &a->rows, &a->selection);
}

const stage stage_consume = {"consume",  SCORING_CASES, SCORING_JUDGED,
                             lists_make, consume_build, consume_verify};

static void source_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_source_args *a = &t->args.source;
    tamis_source_args_default(a);
    a->numerics = p->numerics;
    trial_scene(t, s, &a->k, &a->rows, &a->query);
    a->block_size = p->block_size;
    a->topk_blocks = p->topk_blocks;
    int bit = t->place.omit == 15 ? 0 : 2; /* blocks stay where everything else is left out */
    a->blocks = trial_optional(t, bit, 4, "blocks", s->rows, p->topk_blocks, 4, &a->blocks_stride);
    if (a->blocks)
        a->counts = trial_counts(t, 1, 5, "published counts", s->rows);
    trial_selection(t, s->rows, p->topk, &a->selection);
    trial_source(t);
}

static void source_verify(const trial *t, const problem *p) {
    const tamis_source_args *a = &t->args.source;
    verify_slots(t, p, &a->k, &a->rows, &a->selection);
}

const stage stage_source = {"source",   SCORING_CASES, SCORING_JUDGED,
                            dense_make, source_build,  source_verify};

static void dense_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_dense_args *a = &t->args.dense;
    tamis_dense_args_default(a);
    a->numerics = p->numerics;
    trial_scene(t, s, &a->k, &a->rows, &a->query);
    a->block_size = p->block_size;
    a->width = p->width;
    a->blocks = trial_input(t, p->ids, s->rows, 1, p->width, 4, &a->blocks_stride, NULL);
    a->counts = p->counts ? trial_vector(t, p->counts, s->rows, 4) : NULL;
    trial_selection(t, s->rows, p->topk, &a->selection);
    trial_dense(t);
}

static void dense_verify(const trial *t, const problem *p) {
    const tamis_dense_args *a = &t->args.dense;
    verify_slots(t, p, &a->k, &a->rows, &a->selection);
}

const stage stage_dense = {"dense",    SCORING_CASES, SCORING_JUDGED,
                           lists_make, dense_build,   dense_verify};
