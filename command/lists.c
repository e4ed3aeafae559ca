/* SPDX-License-Identifier: MIT */
/*
 * lists.c: two lists of a row held against each other. A list's own faults come before any question
 * of membership: a list that repeats a position cannot be a matter of rounding.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "judge.h"

int64_t list_count(const int32_t *list, int64_t width) {
    int64_t n = 0;
    while (n < width && list[n] != -1)
        n++;
    return n;
}

int64_t list_common(const int32_t *a, int64_t na, const int32_t *b, int64_t nb) {
    int64_t i = 0, k = 0, common = 0;
    while (i < na && k < nb) {
        common += a[i] == b[k];
        int step_a = a[i] <= b[k], step_b = b[k] <= a[i];
        i += step_a;
        k += step_b;
    }
    return common;
}

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* NaN below everything, zeros equal, as scores are ordered. */
static int by_score(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    if (isnan(x) || isnan(y))
        return isnan(x) - isnan(y);
    return (x < y) - (x > y);
}

int list_same_scores(const int32_t *a, const int32_t *b, int64_t count, const float *scores,
                     float *room) {
    for (int64_t i = 0; i < count; i++) {
        room[i] = scores[a[i]];
        room[count + i] = scores[b[i]];
    }
    qsort(room, (size_t)count, sizeof *room, by_score);
    qsort(room + count, (size_t)count, sizeof *room, by_score);
    for (int64_t i = 0; i < count; i++)
        if (by_score(&room[i], &room[count + i]) != 0)
            return 0;
    return 1;
}

/* The list's own fault, or NULL; *at is where. Every entry before the -1 tail is in range after. */
static const char *own_fault(const int32_t *found, int64_t width, int64_t limit, int32_t *sorted,
                             int64_t *at) {
    int64_t count = list_count(found, width);
    for (int64_t i = 0; i < width; i++) {
        *at = i < count ? i : count;
        if (found[i] < -1 || found[i] >= limit) {
            *at = i;
            return "out of range";
        }
        if (i > count && found[i] != -1)
            return "-1 inside the valid prefix";
    }
    memcpy(sorted, found, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    for (int64_t i = 1; i < count; i++) {
        if (sorted[i] != sorted[i - 1])
            continue;
        int seen = 0;
        for (*at = 0; (seen += found[*at] == sorted[i]) < 2;)
            ++*at;
        return "duplicate";
    }
    for (*at = 1; *at < count; ++*at)
        if (found[*at] < found[*at - 1])
            return "not ascending";
    return NULL;
}

static void point_at(const int32_t *found, const int32_t *expected, int64_t rank, int64_t limit,
                     const float *scores, finding *out) {
    out->rank = (int32_t)rank;
    out->expected = expected[rank];
    out->found = found[rank];
    out->expected_score = out->expected >= 0 ? scores[out->expected] : NAN;
    out->found_score = out->found >= 0 && out->found < limit ? scores[out->found] : NAN;
}

void list_judge(const int32_t *found, const int32_t *expected, int64_t width, int64_t limit,
                const float *scores, void *room, finding *out) {
    int64_t at = 0, count = list_count(expected, width);
    *out = (finding){.verdict = VERDICT_GOOD};
    if (memcmp(found, expected, (size_t)width * sizeof *found) == 0)
        return;
    out->verdict = VERDICT_WRONG;
    out->fault = own_fault(found, width, limit, room, &at);
    if (!out->fault) {
        for (at = 0; found[at] == expected[at];)
            at++;
        if (list_count(found, width) != count)
            out->fault = "wrong count";
    }
    point_at(found, expected, at, limit, scores, out);
    if (!out->fault && list_same_scores(found, expected, count, scores, room))
        out->verdict = VERDICT_TIES;
}
