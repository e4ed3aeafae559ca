/* SPDX-License-Identifier: MIT */
/*
 * place.h: one call ("trial"): a stage's arguments with every input and output placed in guarded
 * memory, run under any slicing, and the bytes it wrote.
 *
 * An output is a buffer and the spans of it that the call may write, in logical order. All other
 * bytes must keep their poison; the spans, concatenated, are what is compared between placements,
 * slicings and tiers. Inputs are sealed read-only before the call.
 */
#ifndef TAMIS_TESTS_PLACE_H
#define TAMIS_TESTS_PLACE_H

#include "scene.h"

typedef struct placement {
    int layout;    /* TAMIS_K_* */
    int stride;    /* STRIDE_* */
    int side;      /* GUARD_AFTER or GUARD_BEFORE */
    int omit;      /* bits of optional outputs left out; each stage's own */
    int page_size; /* PAGE; 0: a multiple of 16 taken from the seed */
    int split;     /* consume, source: score | merge instead of the whole */
    uint64_t seed; /* page numbers, widths of the padding */
} placement;

enum { STRIDE_TIGHT = 0, STRIDE_PADDED = 1, STRIDE_HEADS_OUTERMOST = 2, STRIDE_KINDS = 3 };

typedef struct span {
    int64_t offset, bytes;
} span;

enum { TRIAL_OUTPUTS = 6 };

typedef struct output {
    const char *name;
    uint8_t *base; /* what the call gets; NULL when it is left out */
    guard_body body;
    span *spans; /* offsets from base */
    int64_t span_count;
    int private_to_layout; /* compared between runs of one placement only */
} output;

typedef union stage_args {
    uint32_t struct_size;
#define STAGE_ARGS(name) tamis_##name##_args name;
    TAMIS_STAGE_LIST(STAGE_ARGS)
#undef STAGE_ARGS
} stage_args;

typedef tamis_status stage_call(const tamis_backend *backend, const void *args, int32_t ith,
                                int32_t nth, tamis_error *error);
/* Every public call as a stage_call: call_topk, call_consume, ... */
#define STAGE_CALL(name) stage_call call_##name;
TAMIS_STAGE_LIST(STAGE_CALL)
#undef STAGE_CALL

typedef struct trial {
    guard_arena *inputs, *outputs;
    placement place;
    uint64_t random; /* of paddings */
    stage_args args;
    stage_call *phases[2]; /* every slice of one, then every slice of the other (or NULL) */
    output output[TRIAL_OUTPUTS];
    int64_t (*workspace)(const stage_args *args, int32_t nth); /* or NULL */
    void **workspace_field;
    int64_t *workspace_bytes_field;
} trial;

/* Sets the calls and the workspace of a trial, whole or split as its placement says. */
void trial_consume(trial *t);
void trial_source(trial *t);
void trial_dense(trial *t);

void trial_new(trial *t, const placement *p);
void trial_free(trial *t);

/* ---- inputs ---- */

/*
 * Copies dense [n0][n1][width] elements into guarded memory under the placement's strides. The
 * strides come back in elements; `size` is bytes per element. n1 = 1 for two dimensions.
 */
void *trial_input(trial *t, const void *dense, int64_t n0, int64_t n1, int64_t width, int64_t size,
                  int64_t *stride0, int64_t *stride1);
/* A vector without strides. */
void *trial_vector(trial *t, const void *dense, int64_t count, int64_t size);
/* K, rows and query of a scene. */
void trial_scene(trial *t, const scene *s, tamis_k_cache *k, tamis_rows *rows, tamis_query *query);
/* Only rows.count, ks and ke: for stages that read no K. */
void trial_intervals(trial *t, const scene *s, tamis_rows *rows);
/* The first K row of a request under the placement: added to ks by trial_scene. */
int64_t trial_base(const trial *t, const scene *s, int64_t row);
/* An empty cache for `size` K rows, in guarded memory: bodies of the codes and, for SPLIT, the
 * scales. */
void trial_k_new(guard_arena *arena, const placement *p, int d, int64_t size, tamis_k_cache *k,
                 guard_body body[2]);
/* Where the codes and the scales of a K row lie. */
uint8_t *k_codes_at(const tamis_k_cache *k, int64_t row);
uint8_t *k_scales_at(const tamis_k_cache *k, int64_t row);

/* ---- outputs ---- */

/* Maps output i as dense [n0][n1][width] under the placement's strides; all of it is writable. */
void *trial_output(trial *t, int i, const char *name, int64_t n0, int64_t n1, int64_t width,
                   int64_t size, int64_t *stride0, int64_t *stride1);
/* Output i where the placement does not omit `bit`; else NULL. Two dimensions. */
void *trial_optional(trial *t, int bit, int i, const char *name, int64_t n0, int64_t width,
                     int64_t size, int64_t *stride);
/* The same for one i32 to a row, which has no stride. */
int32_t *trial_counts(trial *t, int bit, int i, const char *name, int64_t rows);
/* positions, slots, scores, counts of a selection as outputs 0..3, omitted by bits 0..3. */
void trial_selection(trial *t, int64_t rows, int32_t topk, tamis_selection *out);

/* ---- running ---- */

enum { ORDER_FORWARD = 0, ORDER_RANDOM = 1, ORDER_THREADS = 2 };

typedef struct slicing {
    int32_t nth;
    int order;      /* ORDER_* */
    int hostile_fp; /* the caller flushes subnormals and rounds upward */
    uint8_t poison; /* what outputs hold before the call */
    uint64_t seed;  /* of the random order */
} slicing;

/* Where set, runs a trial's call instead of its phases, whole and once: for another backend. */
extern void (*trial_elsewhere)(const trial *t);

/* Runs the trial and requires that it succeeds, keeps every byte of padding and the FP state. */
void trial_run(trial *t, const tamis_backend *backend, slicing how);

/* The bytes that the spans of each output hold: outputs left out have NULL. */
typedef struct results {
    uint8_t *bytes[TRIAL_OUTPUTS];
    int64_t size[TRIAL_OUTPUTS];
} results;
results trial_results(const trial *t);
void results_free(results *r);
/* Requires that outputs present in both agree; across placements private ones are left out. */
void results_equal(const trial *t, const results *want, const results *got, int across,
                   const char *what);

#endif
