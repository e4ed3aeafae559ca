/* SPDX-License-Identifier: MIT */
/* levels.h: scenes and lists for consume, source and dense, and what all three refuse. */
#ifndef TAMIS_TESTS_KERNELS_LEVELS_H
#define TAMIS_TESTS_KERNELS_LEVELS_H

#include "common.h"

#include "scene.h"

enum { LEVEL_ROWS = 4, LEVEL_POSITIONS = 120, SCENES = 4 * 3 * 5 * 2 * DATA_KINDS };

/* Scene i of SCENES: every layout, geometry and kind of data. */
static inline scene level_scene(int i) {
    static const int32_t heads[] = {4, 8, 12, 32, 64};
    scene s = {.layout = i / 4 % 3 + 1, .heads = heads[i / 12 % 5]};
    s.head_dim = i / 60 % 2 ? 64 : 128;
    s.data = i / 120 % DATA_KINDS;
    s.weights_type = i % 3 ? TAMIS_F32 : TAMIS_BF16;
    s.page_size = i % 8 < 4 ? 16 : 32;
    s.rows_count = LEVEL_ROWS;
    s.positions = LEVEL_POSITIONS;
    scene_make(&s);
    return s;
}

static inline int32_t level_topk(int i) {
    static const int32_t topk[] = {1, 8, 17, 64, 512};
    return topk[i % 5];
}

/* A few thousand positions of few heads. */
static inline scene big_scene(int i) {
    scene s = {.layout = i % 3 + 1, .heads = 4, .head_dim = 64, .data = DATA_ORDINARY};
    s.weights_type = TAMIS_F32;
    s.page_size = 64;
    s.rows_count = LEVEL_ROWS;
    s.positions = 6003;
    scene_make(&s);
    return s;
}

/* Lists in any order, with repeats, -1, ids out of range, and none of the newest block. */
static inline int32_t *random_lists(const scene *s, int32_t block, int64_t width, int64_t stride) {
    int32_t *lists = fresh(s->rows_count * stride * 4);
    for (int64_t r = 0; r < s->rows_count; r++) {
        for (int64_t i = 0; i < width; i++) {
            int64_t id = random_below(scene_len(s, r) / block + 2);
            int64_t odd = random_below(8);
            id = odd == 0 ? -1 : odd == 1 ? (int32_t)random64() : id;
            lists[r * stride + i] = (int32_t)id;
        }
    }
    return lists;
}

static inline int32_t *random_counts(const scene *s, int64_t width) {
    int32_t *counts = fresh(s->rows_count * 4);
    for (int64_t r = 0; r < s->rows_count; r++) {
        counts[r] = (int32_t)random_below(width + 1);
    }
    return counts;
}

/* All slices of score, then all of merge, the last of each first. */
#define RUN_SPLIT(stage, args, slices)                                                             \
    do {                                                                                           \
        tamis_error e_ = {0};                                                                      \
        for (int32_t i_ = (slices)-1; i_ >= 0; i_--) {                                             \
            succeeded(tamis_##stage##_score(ref(), args, i_, slices, &e_), &e_, __LINE__);         \
        }                                                                                          \
        for (int32_t i_ = (slices)-1; i_ >= 0; i_--) {                                             \
            succeeded(tamis_##stage##_merge(ref(), args, i_, slices, &e_), &e_, __LINE__);         \
        }                                                                                          \
    } while (0)

/* Changes of `good` that consume, source and dense all refuse; needs negative and beyond. */
#define REFUSE_LEVEL(stage)                                                                        \
    do {                                                                                           \
        REFUSE(stage, a.numerics = 0, TAMIS_ERROR_NUMERICS, "numerics");                           \
        REFUSE(stage, a.query.heads = 1, TAMIS_ERROR_GEOMETRY, "query.heads");                     \
        REFUSE(stage, a.query.head_dim = 64, TAMIS_ERROR_GEOMETRY, "head_dim");                    \
        REFUSE(stage, a.query.codes = NULL, TAMIS_ERROR_ARGUMENT, "query.codes");                  \
        REFUSE(stage, a.query.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "query.reserved");            \
        REFUSE(stage, a.k.layout = 0, TAMIS_ERROR_LAYOUT, "k.layout");                             \
        REFUSE(stage, a.k.codes = NULL, TAMIS_ERROR_LAYOUT, "k.codes");                            \
        REFUSE(stage, a.k.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "k.reserved");                    \
        REFUSE(stage, a.rows.count = -1, TAMIS_ERROR_ARGUMENT, "rows.count");                      \
        REFUSE(stage, a.rows.ke = NULL, TAMIS_ERROR_ARGUMENT, "rows.ke");                          \
        REFUSE(stage, a.rows.ke = negative, TAMIS_ERROR_LENGTH, "rows.ke[1]");                     \
        REFUSE(stage, a.rows.ke = beyond, TAMIS_ERROR_LENGTH, "rows.ke[2]");                       \
        REFUSE(stage, a.rows.ks = negative, TAMIS_ERROR_LENGTH, "rows.ks[1]");                     \
        REFUSE(stage, a.selection.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "selection.reserved");    \
        REFUSE(stage, a.selection.topk = 0, TAMIS_ERROR_ARGUMENT, "selection.topk");               \
        REFUSE(stage, a.selection.topk = 4097, TAMIS_ERROR_ARGUMENT, "selection.topk");            \
        REFUSE(stage, a.selection.positions_stride = 1, TAMIS_ERROR_ARGUMENT,                      \
               "selection.positions_stride");                                                      \
        REFUSE(stage, a.workspace = NULL, TAMIS_ERROR_ARGUMENT, "workspace");                      \
        REFUSE(stage, a.workspace_bytes = tamis_##stage##_workspace(&good, 1) - 1,                 \
               TAMIS_ERROR_WORKSPACE, "workspace_bytes");                                          \
        REFUSE(stage, a.workspace = (uint8_t *)a.workspace + 8, TAMIS_ERROR_WORKSPACE,             \
               "workspace");                                                                       \
    } while (0)

#endif
