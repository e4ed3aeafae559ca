/* SPDX-License-Identifier: MIT */
/* stage_select.c: the cases of the stages that read scores or lists of blocks only. */
#include <stdio.h>
#include <stdlib.h>

#include "require.h"
#include "stages.h"

/* Rows of scores: every hazard over lengths around the tiles, then long rows of some hazards. */
enum { VALUE_CASES = VALUE_HAZARD_COUNT + 5 };

static int value_hazard(int index) {
    static const int large[] = {VALUE_EQUAL, VALUE_CUT, VALUE_FEW, VALUE_NANS, VALUE_BITS};
    return index < VALUE_HAZARD_COUNT ? index : large[index - VALUE_HAZARD_COUNT];
}

/* columns_per_value: block_max reads a score for each position, publish one for each block. */
static void values_make(problem *p, int index, int64_t columns_per_value) {
    static const int topk[] = {1, 8, 63, 512, 2048, 7, 1024, 4096};
    int hazard = value_hazard(index), large = index >= VALUE_HAZARD_COUNT;
    enum { MANY = 18 }; /* rows that a GPU publishes with a CTA each, not a cluster */
    static const int64_t values[3] = {17, 16385, 40003};
    int64_t lengths[MANY], rows = columns_per_value > 1 && index % 2 ? MANY : 3;
    uint64_t random = (uint64_t)index + 11;
    for (int64_t r = 0; r < rows; r++)
        lengths[r] = values[r % 3] * columns_per_value;
    if (large)
        scene_decode(&p->scene, 4, 64, lengths, rows);
    else
        scene_around_tiles(&p->scene, 4, 64, random);
    p->heavy = large;
    p->topk = p->topk_blocks = large ? topk[3 + index % 5] : topk[index % 8];
    p->logits_type = columns_per_value == 1 && index % 3 == 1 ? TAMIS_BF16 : TAMIS_F32;
    p->block_size = index % 2 ? 16 : 8;
    p->width = (scene_longest(&p->scene) + columns_per_value - 1) / columns_per_value;
    p->values = calloc((size_t)(p->scene.rows * p->width + 1), sizeof *p->values);
    REQUIRE(p->values, "out of memory");
    for (int64_t r = 0; r < p->scene.rows; r++)
        fill_values(p->values + r * p->width, p->width, hazard, &random);
    snprintf(p->text, sizeof p->text, "%s, type %d, block %d, topk %d", value_hazard_text(hazard),
             p->logits_type, p->block_size, p->topk);
}

/* ---- block_max ---- */

static void block_max_make(problem *p, int index) {
    values_make(p, index, 1);
}

static void block_max_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_block_max_args *a = &t->args.block_max;
    tamis_block_max_args_default(a);
    a->block_size = p->block_size;
    a->logits_type = p->logits_type;
    trial_intervals(t, s, &a->rows);
    a->logits = place_values(t, p, &a->logits_stride);
    int64_t size = p->block_size, widest = (p->width + size - 1) / size;
    a->block_max =
        trial_output(t, 0, "block_max", s->rows, 1, widest, 4, &a->block_max_stride, NULL);
    for (int64_t r = 0; r < s->rows; r++)
        t->output[0].spans[r].bytes = (scene_length(s, r) + size - 1) / size * 4;
    t->phases[0] = call_block_max;
}

const stage stage_block_max = {"block_max", VALUE_CASES, 0, block_max_make, block_max_build, NULL};

/* ---- publish ---- */

static void publish_make(problem *p, int index) {
    values_make(p, index, index % 2 ? 16 : 8);
}

static void publish_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_publish_args *a = &t->args.publish;
    tamis_publish_args_default(a);
    a->block_size = p->block_size;
    a->topk_blocks = p->topk_blocks;
    trial_intervals(t, s, &a->rows);
    a->block_max = place_values(t, p, &a->block_max_stride);
    a->blocks =
        trial_output(t, 0, "blocks", s->rows, 1, p->topk_blocks, 4, &a->blocks_stride, NULL);
    a->counts = trial_counts(t, 1, 1, "counts", s->rows);
    t->phases[0] = call_publish;
}

const stage stage_publish = {"publish", VALUE_CASES, 0, publish_make, publish_build, NULL};

/* ---- expand ---- */

static void expand_make(problem *p, int index) {
    static const int sizes[][2] = {{8, 8}, {16, 8}, {16, 16}, {128, 8}, {32, 16}, {64, 8}};
    static const int64_t widths[] = {0, 1, 4, 17, 64};
    scene_around_tiles(&p->scene, 4, 64, (uint64_t)index);
    p->candidate_size = p->block_size = sizes[index % 6][0];
    make_ids(p, index == 23 ? 4096 : widths[index % 5], (uint64_t)index * 2);
    p->block_size = sizes[index % 6][1];
    p->flags = index / 6 % 4;
    snprintf(p->text, sizeof p->text, "candidates of %d, blocks of %d, flags %d, width %lld",
             p->candidate_size, p->block_size, p->flags, (long long)p->width);
}

/* Ids out are anchored at ks, so that one layout stands for all. */
static void expand_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_expand_args *a = &t->args.expand;
    t->place.layout = TAMIS_K_MXFP4_SPLIT;
    tamis_expand_args_default(a);
    a->candidate_size = p->candidate_size;
    a->block_size = p->block_size;
    a->flags = p->flags;
    trial_intervals(t, s, &a->rows);
    a->width = p->width;
    a->candidates = trial_input(t, p->ids, s->rows, 1, p->width, 4, &a->candidates_stride, NULL);
    a->blocks =
        trial_output(t, 0, "blocks", s->rows, 1, p->width * p->candidate_size / p->block_size, 4,
                     &a->blocks_stride, NULL);
    a->counts = trial_counts(t, 1, 1, "counts", s->rows);
    a->columns = trial_counts(t, 2, 2, "columns", s->rows);
    t->phases[0] = call_expand;
}

const stage stage_expand = {"expand", 24, 0, expand_make, expand_build, NULL};

/* ---- topk ---- */

enum { TOPK_PLAIN = 0, TOPK_COLUMNS = 1, TOPK_INTERVALS = 2, TOPK_BLOCKS = 3 };

static void topk_make(problem *p, int index) {
    values_make(p, index / 4, 1);
    p->flags = index % 4;
    if (p->flags == TOPK_BLOCKS) {
        int64_t heavy = p->block_size == 8 ? 2048 : 2100; /* 16,384 columns, and more */
        int64_t width = p->heavy ? heavy : 6;
        make_ids(p, width, (uint64_t)index * 2);
        p->width = width * p->block_size;
        uint64_t random = (uint64_t)index;
        for (int64_t r = 0; r < p->scene.rows; r++) { /* ascending, as expand writes them */
            int64_t blocks = (scene_length(&p->scene, r) + p->block_size - 1) / p->block_size;
            for (int64_t i = 0, id = random_below(&random, 2); i < width; i++, id++) {
                p->ids[r * width + i] = id < blocks ? (int32_t)id : -1;
                if (!p->heavy)
                    id += random_below(&random, 3);
            }
        }
        free(p->values);
        p->values = calloc((size_t)(p->scene.rows * p->width + 1), sizeof *p->values);
        REQUIRE(p->values, "out of memory");
        fill_values(p->values, p->scene.rows * p->width, value_hazard(index / 4), &random);
    } else if (p->flags == TOPK_COLUMNS) {
        uint64_t random = (uint64_t)index;
        p->counts = calloc((size_t)p->scene.rows + 1, sizeof *p->counts);
        REQUIRE(p->counts, "out of memory");
        for (int64_t r = 0; r < p->scene.rows; r++)
            p->counts[r] = (int32_t)random_below(&random, p->width + 1);
    }
}

static void topk_rows(trial *t, const problem *p, tamis_topk_args *a) {
    const scene *s = &p->scene;
    if (p->flags < TOPK_INTERVALS) {
        a->rows.count = s->rows;
        return;
    }
    trial_intervals(t, s, &a->rows);
    if (t->place.layout != TAMIS_K_MXFP4_PAGE || t->place.omit & 2)
        return;
    tamis_k_cache k;
    trial_scene(t, s, &k, &a->rows, NULL);
    a->page_size = k.page_size;
}

static void topk_build(trial *t, const problem *p) {
    const scene *s = &p->scene;
    tamis_topk_args *a = &t->args.topk;
    tamis_topk_args_default(a);
    a->logits_type = p->logits_type;
    topk_rows(t, p, a);
    a->logits = place_values(t, p, &a->logits_stride);
    a->width = p->width;
    if (p->flags == TOPK_COLUMNS)
        a->columns = trial_vector(t, p->counts, s->rows, 4);
    if (p->flags == TOPK_BLOCKS) {
        problem lists = *p;
        lists.width = p->width / p->block_size;
        int32_t *ids = anchored_ids(t, &lists);
        for (int64_t i = 0; i < s->rows * lists.width; i++)
            if (p->ids[i] < 0)
                ids[i] = -1;
        a->block_size = p->block_size;
        a->blocks = trial_input(t, ids, s->rows, 1, lists.width, 4, &a->blocks_stride, NULL);
        free(ids);
    }
    trial_selection(t, s->rows, p->topk, &a->selection);
    t->phases[0] = call_topk;
}

const stage stage_topk = {"topk", 4 * VALUE_CASES, 0, topk_make, topk_build, NULL};
