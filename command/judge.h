/* SPDX-License-Identifier: MIT */
/*
 * judge.h: one row of a result against the oracle. Nothing here calls the library's kernels: a
 * fault in them must not be able to hide itself.
 */
#ifndef TAMIS_COMMAND_JUDGE_H
#define TAMIS_COMMAND_JUDGE_H

#include <stdint.h>

#include "trace.h"

enum { CLASSES = 5 }; /* numerics classes are 1..4 */

enum { /* from good to bad */
       VERDICT_GOOD = 0,
       VERDICT_TIES = 1,     /* other members among equal scores */
       VERDICT_ROUNDING = 2, /* what another class selects */
       VERDICT_WRONG = 3
};

/* What is known of one list of a row. */
typedef struct finding {
    int32_t verdict;
    uint32_t classes;  /* ROUNDING: bit c for every class that selects this list */
    const char *fault; /* what is wrong, when it is the list itself; else NULL */
    int32_t rank;      /* column of the first difference; -1: the count tensor */
    int32_t followed;  /* a consumer's list that is right for the result's own, other blocks */
    int64_t expected;  /* positions (or block ids) there, -1 in a tail */
    int64_t found;
    float expected_score; /* NaN where there is no score */
    float found_score;
} finding;

/* Sums over rows of how classes agree; index 0 is the result itself. */
typedef struct tally {
    int64_t common[CLASSES]; /* members shared with the exact selection */
    int64_t recalled[CLASSES];
    int64_t selected; /* members of the exact selection */
    int64_t full;     /* of the true full top-k */
} tally;

typedef struct judge {
    const tamis_trace *trace;
    const int32_t *const *selected; /* [layer_count] of the result; entries may be NULL */
    const int32_t *const *counts;   /* [layer_count] of the result; entries may be NULL */
    const int32_t *blocks;          /* of the result, or NULL */
    int32_t numerics;               /* the class that the result claims */
} judge;

/* A worker's memory. */
typedef struct judge_scratch judge_scratch;
judge_scratch *judge_scratch_new(const judge *j); /* NULL: no memory */
void judge_scratch_free(judge_scratch *s);

/*
 * Judges every list of a row: findings and tallies [layer_count + 1], the last for the blocks.
 * Tallies are added to.
 */
void judge_row(const judge *j, judge_scratch *s, int64_t row, finding *findings, tally *tallies);

/* ---- lists (lists.c) --------------------------------------------------------------------------
 */

/* The smaller of the list's length and its entries before the first -1. */
int64_t list_count(const int32_t *list, int64_t width);
/* Members of two ascending lists in common. */
int64_t list_common(const int32_t *a, int64_t na, const int32_t *b, int64_t nb);
/*
 * Compares found with expected, both [width], entries 0..limit-1. Everything but the verdict
 * ROUNDING is decided here. `scores` has one for each entry below limit; `room` is room for
 * 2 * width entries of 4 bytes.
 */
void list_judge(const int32_t *found, const int32_t *expected, int64_t width, int64_t limit,
                const float *scores, void *room, finding *out);
/* 1 when the lists hold the same multiset of scores; room for 2 * count. */
int list_same_scores(const int32_t *a, const int32_t *b, int64_t count, const float *scores,
                     float *room);

#endif
