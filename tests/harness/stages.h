/* SPDX-License-Identifier: MIT */
/*
 * stages.h: the cases of each stage: logical inputs, and how a trial of them is built. The runner
 * (main.c) places every case in many ways and holds every tier to ref.
 */
#ifndef TAMIS_TESTS_STAGES_H
#define TAMIS_TESTS_STAGES_H

#include "place.h"

/* The logical inputs of one case; a stage uses the fields that it needs. */
typedef struct problem {
    char text[200]; /* for messages */
    int heavy;      /* few placements, because it is large */
    scene scene;
    int numerics, block_size, topk, topk_blocks, logits_type, flags, candidate_size;
    int64_t width;
    int32_t *ids;    /* [rows][width] block ids, local to the row's interval */
    int32_t *counts; /* [rows] or NULL */
    float *values;   /* [rows][width] scores */
    int64_t *start;  /* [rows] */
    /* preparing */
    int ratio, types;
    int64_t tokens, slots_size;
    uint16_t *bf16; /* [tokens][heads][d] */
    int64_t *positions, *slots;
    float *rope; /* [rope_rows][64] */
    int64_t rope_rows;
    float *vector; /* weights_in [tokens][heads], or norm_weight [d] */
    float eps;
} problem;

typedef struct stage {
    const char *name;
    int cases;  /* of every tier */
    int judged; /* further ones that only ref offers: the two judging classes */
    void (*make)(problem *p, int index);
    void (*build)(trial *t, const problem *p);
    void (*verify)(const trial *t, const problem *p); /* after each run, or NULL */
} stage;

extern const stage stage_q_prepare, stage_k_insert, stage_k_gather, stage_mqa_logits,
    stage_block_max, stage_publish, stage_expand, stage_sparse_mqa_logits, stage_topk,
    stage_consume, stage_source, stage_dense;

void problem_free(problem *p);

/* ---- shared by the stages ---- */

/* Numbers of a scoring case: every hazard at 32 x 128 and at another geometry, then large ones. */
enum { SCORING_CASES = 2 * SCENE_HAZARD_COUNT + 2, SCORING_JUDGED = SCENE_HAZARD_COUNT };
void make_scoring(problem *p, int index);
/*
 * Lists of block ids for the scene's rows: some ascending, some of random bits, order and length;
 * all of them ascending where p->flags is set.
 */
void make_ids(problem *p, int64_t width, uint64_t seed);
/* ids as sparse_mqa_logits and topk take them: anchored at the placed row's ks / block_size. */
int32_t *anchored_ids(const trial *t, const problem *p);

/* What is unusual about float scores. */
#define VALUE_HAZARDS(X)                                                                           \
    X(PLAIN, "plain scores")                                                                       \
    X(BITS, "random bits")                                                                         \
    X(EQUAL, "all equal")                                                                          \
    X(ZEROS, "zeros of both signs")                                                                \
    X(NANS, "some NaN, some infinite")                                                             \
    X(ALL_NAN, "all NaN, of many bit patterns")                                                    \
    X(FEW, "few distinct scores")                                                                  \
    X(CUT, "one score above many ties")                                                            \
    X(LAST_BIT, "differing in the last bit")                                                       \
    X(SUBNORMAL, "subnormal")                                                                      \
    X(ASCENDING, "ascending")                                                                      \
    X(DESCENDING, "descending")                                                                    \
    X(HUGE_TINY, "huge and tiny")
enum {
#define VALUE_HAZARD(name, text) VALUE_##name,
    VALUE_HAZARDS(VALUE_HAZARD)
#undef VALUE_HAZARD
        VALUE_HAZARD_COUNT
};
const char *value_hazard_text(int hazard);
void fill_values(float *values, int64_t count, int hazard, uint64_t *random);
/* Places [rows][width] scores as f32 or, cut to their upper bits, as bf16. */
const void *place_values(trial *t, const problem *p, int64_t *stride);

#endif
