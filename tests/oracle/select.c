/* SPDX-License-Identifier: MIT */
/*
 * select.c: the order of scores and every selection (spec 4.3 and 5), each by sorting everything.
 */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number.h"

typedef struct candidate {
    float score;
    int first; /* before every other, whatever its score */
    int64_t id;
} candidate;

int oracle_compare(float a, int64_t i, float b, int64_t j) {
    if (isnan(a) != isnan(b)) {
        return isnan(a) ? 1 : -1;
    }
    if (!isnan(a) && a != b) {
        return a > b ? -1 : 1;
    }
    return i < j ? -1 : i > j;
}

static int by_rank(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->first != y->first) {
        return x->first ? -1 : 1;
    }
    return oracle_compare(x->score, x->id, y->score, y->id);
}

static int by_id(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_value(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* The first k candidates in rank order, ids ascending, -1 up to k. Sorts c. */
static int64_t take(candidate *c, int64_t n, int64_t k, int32_t *out) {
    int64_t count = n < k ? n : k;
    qsort(c, (size_t)n, sizeof *c, by_rank);
    qsort(c, (size_t)count, sizeof *c, by_id);
    for (int64_t i = 0; i < k; i++) {
        out[i] = i < count ? (int32_t)c[i].id : -1;
    }
    return count;
}

int64_t oracle_topk(const float *scores, int64_t n, int64_t topk, int32_t *out) {
    candidate *c = oracle_alloc((size_t)n, sizeof *c);
    for (int64_t i = 0; i < n; i++) {
        c[i] = (candidate){scores[i], 0, i};
    }
    int64_t count = take(c, n, topk, out);
    free(c);
    return count;
}

void oracle_block_max(const float *scores, int64_t n, int s, float *block_max) {
    for (int64_t first = 0; first < n; first += s) {
        float best = scores[first];
        for (int64_t i = first; i < n && i < first + s; i++) {
            best = oracle_compare(scores[i], 0, best, 0) < 0 ? scores[i] : best;
        }
        block_max[first / s] = best == 0 ? 0.0f : oracle_canonical(best);
    }
}

int64_t oracle_publish(const float *scores, int64_t n, int s, int64_t topk_blocks, int32_t *out) {
    int64_t blocks = n > 0 ? (n + s - 1) / s : 0;
    float *best = oracle_alloc((size_t)blocks, sizeof *best);
    candidate *c = oracle_alloc((size_t)blocks, sizeof *c);
    oracle_block_max(scores, n, s, best);
    for (int64_t b = 0; b < blocks; b++) {
        c[b] = (candidate){best[b], b == blocks - 1, b};
    }
    int64_t count = take(c, blocks, topk_blocks, out);
    free(best);
    free(c);
    return count;
}

int64_t oracle_consume(const float *scores, int64_t n, int s, const int32_t *blocks, int64_t width,
                       int64_t topk, int32_t *out) {
    char *listed = oracle_alloc((size_t)n + (size_t)s, 1);
    candidate *c = oracle_alloc((size_t)n, sizeof *c);
    for (int64_t i = 0; i < width; i++) {
        if (blocks[i] >= 0 && blocks[i] < (n + s - 1) / s) {
            memset(listed + (int64_t)blocks[i] * s, 1, (size_t)s);
        }
    }
    int64_t pool = 0;
    for (int64_t j = 0; j < n; j++) {
        if (listed[j]) {
            c[pool++] = (candidate){scores[j], 0, j};
        }
    }
    int64_t count = take(c, pool, topk, out);
    free(listed);
    free(c);
    return count;
}

/* Sorts n values and, unless duplicates stay, drops repeats. Returns how many are left. */
static int64_t sort_values(int64_t *values, int64_t n, int keep_duplicates) {
    int64_t left = 0;
    qsort(values, (size_t)n, sizeof *values, by_value);
    for (int64_t i = 0; i < n; i++) {
        if (keep_duplicates || i == 0 || values[i] != values[i - 1]) {
            values[left++] = values[i];
        }
    }
    return left;
}

int64_t oracle_expand(const int32_t *ids, int64_t width, int size, int s, int64_t ks, int64_t ke,
                      int keep_duplicates, int fixed, int32_t *out, int64_t *columns) {
    int64_t len = ke > ks ? ke - ks : 0, per = size / s, n = 0;
    int64_t *values = oracle_alloc((size_t)(width * per), sizeof *values);
    for (int64_t i = 0; i < width; i++) {
        for (int64_t b = ids[i] * per; ids[i] >= 0 && b < (ids[i] + (int64_t)1) * per; b++) {
            if (b * s < len) { /* so its candidate starts before len, too */
                values[n++] = b;
            }
        }
    }
    n = sort_values(values, n, keep_duplicates);
    int64_t last = n > 0 ? values[n - 1] : 0, in_last = len - last * s;
    *columns = n > 0 ? (n - 1) * s + (in_last > s ? s : in_last) : 0;
    for (int64_t i = 0; i < width * per; i++) {
        int64_t id = i < n ? values[i] : last;
        out[i] = i < n || fixed ? (int32_t)(id + ks / s) : -1;
    }
    free(values);
    return n;
}
