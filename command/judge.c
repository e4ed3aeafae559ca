/* SPDX-License-Identifier: MIT */
/*
 * judge.c: what the oracle says of a row's blocks and selections.
 *
 * Scores of the judged class and of `exact` are computed over all visible positions; those of other
 * classes, where a consumer needs them, only inside the blocks at hand: an eighth of the work on a
 * context of 131,072. A consumer is judged against the oracle's own blocks; where the result's
 * blocks differ, its list is also held against what follows from those, so that one fault at the
 * source is not reported once more by every consumer.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "judge.h"
#include "oracle.h"

struct judge_scratch {
    float *scores[CLASSES];   /* [positions] by class */
    float *block_max;         /* [blocks of the context] */
    int32_t *blocks[CLASSES]; /* [width] published by the oracle, by class */
    int32_t *choice[CLASSES]; /* [topk] selections by class */
    int32_t *list;            /* [topk or width] another selection */
    int32_t *full;            /* [topk] the true full top-k */
    void *room;               /* for list_judge */
    uint8_t *codes, *scales;  /* a pool's keys, gathered */
    float *pool_scores;
    int32_t *pool; /* positions of the gathered keys */
    float weights[TAMIS_MAX_HEADS];
};

/* The row being judged. */
typedef struct row_view {
    const judge *j;
    judge_scratch *s;
    int64_t row, n;
    const tamis_trace_layer *layer;
    int32_t topk, width, size;
} row_view;

static int64_t widest(const tamis_trace *trace) {
    int64_t most = 1;
    for (int32_t i = 0; i < trace->layer_count; i++)
        for (int64_t r = 0; trace->layers[i].present && r < trace->rows; r++) {
            int64_t n = (int64_t)trace->layers[i].ke[r] - trace->layers[i].ks[r];
            most = n > most ? n : most;
        }
    return most;
}

judge_scratch *judge_scratch_new(const judge *j) {
    const tamis_model *m = &j->trace->model;
    size_t n = (size_t)widest(j->trace), width = (size_t)m->candidate_topk_blocks + 1;
    size_t size = (size_t)m->candidate_block_size + 1, d = (size_t)m->index_head_dim;
    size_t topk = (size_t)m->index_topk, list = topk > width ? topk : width, pool = width * size;
    judge_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    int good = 1;
    for (int c = 1; c < CLASSES; c++) {
        good &= (s->scores[c] = calloc(n, sizeof(float))) != NULL;
        good &= (s->blocks[c] = calloc(width, sizeof(int32_t))) != NULL;
        good &= (s->choice[c] = calloc(topk, sizeof(int32_t))) != NULL;
    }
    good &= (s->block_max = calloc(n / 8 + 1, sizeof(float))) != NULL;
    good &= (s->list = calloc(list, sizeof(int32_t))) != NULL;
    good &= (s->full = calloc(topk, sizeof(int32_t))) != NULL;
    good &= (s->room = calloc(2 * list, sizeof(int32_t))) != NULL;
    good &= (s->codes = calloc(pool, d / 2)) != NULL;
    good &= (s->scales = calloc(pool, d / 32)) != NULL;
    good &= (s->pool_scores = calloc(pool, sizeof(float))) != NULL;
    good &= (s->pool = calloc(pool, sizeof(int32_t))) != NULL;
    if (good)
        return s;
    judge_scratch_free(s);
    return NULL;
}

void judge_scratch_free(judge_scratch *s) {
    if (!s)
        return;
    for (int c = 1; c < CLASSES; c++) {
        free(s->scores[c]);
        free(s->blocks[c]);
        free(s->choice[c]);
    }
    free(s->block_max);
    free(s->list);
    free(s->full);
    free(s->room);
    free(s->codes);
    free(s->scales);
    free(s->pool_scores);
    free(s->pool);
    free(s);
}

/* ---- scores -----------------------------------------------------------------------------------
 */

static void score_keys(const row_view *v, int numerics, const uint8_t *codes, int64_t codes_stride,
                       const uint8_t *scales, int64_t scales_stride, int64_t n, float *out) {
    const tamis_query *q = &v->layer->query;
    oracle_scores(numerics, q->heads, q->head_dim, q->codes + v->row * q->codes_row_stride,
                  q->scales + v->row * q->scales_row_stride, v->s->weights, codes, codes_stride,
                  scales, scales_stride, n, out);
}

static void score_all(const row_view *v, int numerics) {
    const tamis_k_cache *k = &v->layer->k;
    int64_t ks = v->layer->ks[v->row];
    score_keys(v, numerics, k->codes + ks * k->stride, k->stride, k->scales + ks * k->scales_stride,
               k->scales_stride, v->n, v->s->scores[numerics]);
}

static int is_block(const row_view *v, int32_t id) {
    return id >= 0 && (int64_t)id * v->size < v->n;
}

/* Scores of the positions inside blocks (any ids): gathered, scored, put in their places. */
static void score_pool(const row_view *v, int numerics, const int32_t *blocks) {
    const tamis_k_cache *k = &v->layer->k;
    judge_scratch *s = v->s;
    int64_t d = k->head_dim, count = 0, ks = v->layer->ks[v->row];
    for (int32_t b = 0; b < v->width; b++) {
        int64_t first = is_block(v, blocks[b]) ? (int64_t)blocks[b] * v->size : v->n;
        for (int64_t j = first; j < v->n && j < first + v->size; j++, count++) {
            memcpy(s->codes + count * d / 2, k->codes + (ks + j) * k->stride, (size_t)d / 2);
            memcpy(s->scales + count * d / 32, k->scales + (ks + j) * k->scales_stride,
                   (size_t)d / 32);
            s->pool[count] = (int32_t)j;
        }
    }
    score_keys(v, numerics, s->codes, d / 2, s->scales, d / 32, count, s->pool_scores);
    for (int64_t i = 0; i < count; i++)
        s->scores[numerics][s->pool[i]] = s->pool_scores[i];
}

/* The class's selection of a consumer; scores[numerics] are made for these blocks. */
static int64_t choose_in(const row_view *v, int numerics, const int32_t *blocks, int32_t *out) {
    if (numerics != v->j->numerics && numerics != ORACLE_EXACT)
        score_pool(v, numerics, blocks);
    return oracle_consume(v->s->scores[numerics], v->n, v->size, blocks, v->width, v->topk, out);
}

static void load_weights(const row_view *v) {
    const tamis_query *q = &v->layer->query;
    int64_t at = v->row * q->weights_row_stride;
    for (int h = 0; h < q->heads; h++)
        v->s->weights[h] = q->weights_type == TAMIS_F32
                               ? ((const float *)q->weights)[at + h]
                               : oracle_from_bf16(((const uint16_t *)q->weights)[at + h]);
}

/* ---- explaining a difference ------------------------------------------------------------------
 */

/* The list is the class's choice, or differs from it among the class's equal scores alone. */
static int class_explains(const row_view *v, const int32_t *found, const int32_t *choice,
                          int64_t width, int64_t limit, const float *scores) {
    finding f;
    list_judge(found, choice, width, limit, scores, v->s->room, &f);
    return f.verdict <= VERDICT_TIES;
}

/* Lists may be in any order here: a result's blocks are what is being judged. */
static int in_blocks(const row_view *v, int32_t position, const int32_t *blocks) {
    for (int32_t b = 0; b < v->width; b++)
        if (blocks[b] == position / v->size)
            return 1;
    return 0;
}

static int all_in_blocks(const row_view *v, const int32_t *found, const int32_t *blocks) {
    int64_t n = list_count(found, v->topk);
    for (int64_t i = 0; i < n; i++)
        if (!in_blocks(v, found[i], blocks))
            return 0;
    return 1;
}

static void add_class(finding *f, int numerics) {
    f->verdict = VERDICT_ROUNDING;
    f->classes |= 1u << numerics;
}

static int may_be_rounding(const finding *f) {
    return f->verdict == VERDICT_WRONG && !f->fault;
}

/* Full layers and the source: choice[] holds every class's selection. */
static void explain_full(const row_view *v, const int32_t *found, finding *f) {
    if (!may_be_rounding(f))
        return;
    for (int c = 1; c < CLASSES; c++)
        if (c != v->j->numerics &&
            class_explains(v, found, v->s->choice[c], v->topk, v->n, v->s->scores[c]))
            add_class(f, c);
}

/* A consumer: every class on these blocks, and on those that the class itself publishes. */
static void explain_consumer(const row_view *v, const int32_t *found, const int32_t *blocks,
                             finding *f) {
    if (!may_be_rounding(f))
        return;
    for (int c = 1; c < CLASSES; c++) {
        const int32_t *sets[2] = {blocks, v->s->blocks[c]};
        for (int set = 0; set < 2 && c != v->j->numerics; set++) {
            if (!all_in_blocks(v, found, sets[set]))
                continue;
            choose_in(v, c, sets[set], v->s->list);
            if (class_explains(v, found, v->s->list, v->topk, v->n, v->s->scores[c]))
                add_class(f, c);
        }
    }
}

/* ---- the lists of a row -----------------------------------------------------------------------
 */

static void check_count(const row_view *v, int32_t i, const int32_t *expected, finding *f) {
    const int32_t *counts = v->j->counts[i];
    int64_t count = list_count(expected, v->topk);
    if (!counts || counts[v->row] == count || f->verdict == VERDICT_WRONG)
        return;
    *f = (finding){.verdict = VERDICT_WRONG,
                   .fault = "wrong count tensor",
                   .rank = -1,
                   .expected = count,
                   .found = counts[v->row],
                   .expected_score = NAN,
                   .found_score = NAN};
}

static const int32_t *found_list(const row_view *v, int32_t i) {
    const int32_t *selected = v->j->selected[i];
    return selected ? selected + v->row * v->topk : NULL;
}

static const int32_t *found_blocks(const row_view *v) {
    return v->j->blocks ? v->j->blocks + v->row * v->width : NULL;
}

static void add_tally(const row_view *v, tally *t, int index, const int32_t *list,
                      const int32_t *exact, int64_t full) {
    int64_t count = list_count(list, v->topk);
    t->common[index] += list_common(list, count, exact, list_count(exact, v->topk));
    t->recalled[index] += list_common(list, count, v->s->full, full);
}

/* The source's recall: true members that lie inside the published blocks. */
static int64_t recalled_by_blocks(const row_view *v, const int32_t *blocks, int64_t full) {
    int64_t inside = 0;
    for (int64_t i = 0; i < full; i++)
        inside += in_blocks(v, v->s->full[i], blocks);
    return inside;
}

static void judge_blocks(const row_view *v, finding *f, tally *t, int64_t full) {
    judge_scratch *s = v->s;
    const int32_t *found = found_blocks(v), *exact = s->blocks[ORACLE_EXACT];
    int64_t limit = (v->n + v->size - 1) / v->size, count = list_count(exact, v->width);
    t->selected += count;
    t->full += full;
    for (int c = 1; c < CLASSES; c++) {
        t->common[c] += list_common(s->blocks[c], list_count(s->blocks[c], v->width), exact, count);
        t->recalled[c] += recalled_by_blocks(v, s->blocks[c], full);
    }
    if (!found)
        return;
    t->common[0] += list_common(found, list_count(found, v->width), exact, count);
    t->recalled[0] += recalled_by_blocks(v, found, full);
    oracle_block_max(s->scores[v->j->numerics], v->n, v->size, s->block_max);
    list_judge(found, s->blocks[v->j->numerics], v->width, limit, s->block_max, s->room, f);
    int64_t found_count = list_count(found, v->width);
    if (f->verdict != VERDICT_GOOD && !f->fault && found[found_count - 1] != limit - 1) {
        f->verdict = VERDICT_WRONG;
        f->fault = "the newest block is missing";
    }
    for (int c = 1; c < CLASSES && may_be_rounding(f); c++) {
        oracle_block_max(s->scores[c], v->n, v->size, s->block_max);
        if (c != v->j->numerics &&
            class_explains(v, found, s->blocks[c], v->width, limit, s->block_max))
            f->classes |= 1u << c;
    }
    if (f->classes)
        f->verdict = VERDICT_ROUNDING;
}

static void judge_full(const row_view *v, int32_t i, finding *f, tally *t) {
    judge_scratch *s = v->s;
    for (int c = 1; c < CLASSES; c++) {
        score_all(v, c);
        oracle_topk(s->scores[c], v->n, v->topk, s->choice[c]);
    }
    memcpy(s->full, s->choice[ORACLE_EXACT], (size_t)v->topk * sizeof *s->full);
    int64_t full = list_count(s->full, v->topk);
    t->selected += full;
    t->full += full;
    for (int c = 1; c < CLASSES; c++)
        add_tally(v, t, c, s->choice[c], s->full, full);
    const int32_t *found = found_list(v, i), *expected = s->choice[v->j->numerics];
    if (!found)
        return;
    add_tally(v, t, 0, found, s->full, full);
    list_judge(found, expected, v->topk, v->n, s->scores[v->j->numerics], s->room, f);
    explain_full(v, found, f);
    check_count(v, i, expected, f);
}

/* Judges a consumer's list against these blocks. */
static void judge_in(const row_view *v, const int32_t *found, const int32_t *blocks, finding *f) {
    judge_scratch *s = v->s;
    int32_t *expected = s->list;
    choose_in(v, v->j->numerics, blocks, expected);
    list_judge(found, expected, v->topk, v->n, s->scores[v->j->numerics], s->room, f);
    if (f->verdict == VERDICT_TIES && !all_in_blocks(v, found, blocks))
        f->verdict = VERDICT_WRONG;
    explain_consumer(v, found, blocks, f);
    if (may_be_rounding(f) && !all_in_blocks(v, found, blocks))
        f->fault = "outside the published blocks";
}

static void judge_consumer(const row_view *v, int32_t i, finding *f, tally *t) {
    judge_scratch *s = v->s;
    const int32_t *blocks = s->blocks[v->j->numerics], *theirs = found_blocks(v);
    const int32_t *found = found_list(v, i);
    score_all(v, ORACLE_EXACT);
    if (v->j->numerics != ORACLE_EXACT)
        score_all(v, v->j->numerics);
    int64_t full = oracle_topk(s->scores[ORACLE_EXACT], v->n, v->topk, s->full);
    for (int c = 1; c < CLASSES; c++)
        choose_in(v, c, blocks, s->choice[c]);
    const int32_t *exact = s->choice[ORACLE_EXACT];
    t->selected += list_count(exact, v->topk);
    t->full += full;
    for (int c = 1; c < CLASSES; c++)
        add_tally(v, t, c, s->choice[c], exact, full);
    if (!found)
        return;
    add_tally(v, t, 0, found, exact, full);
    judge_in(v, found, blocks, f);
    if (f->verdict != VERDICT_GOOD && theirs &&
        memcmp(theirs, blocks, (size_t)v->width * sizeof *blocks) != 0) {
        finding follows;
        judge_in(v, found, theirs, &follows);
        follows.followed = 1;
        *f = follows.verdict < f->verdict ? follows : *f;
    }
    check_count(v, i, s->choice[v->j->numerics], f);
}

/* Blocks that consumers are judged by: the oracle's, or the trace's own when it has no source. */
static void publish_blocks(const row_view *v, int from_trace) {
    for (int c = 1; c < CLASSES; c++) {
        if (from_trace)
            memcpy(v->s->blocks[c], v->j->trace->blocks + v->row * v->width,
                   (size_t)v->width * sizeof(int32_t));
        else
            oracle_publish(v->s->scores[c], v->n, v->size, v->width, v->s->blocks[c]);
    }
}

void judge_row(const judge *j, judge_scratch *s, int64_t row, finding *findings, tally *tallies) {
    const tamis_trace *trace = j->trace;
    row_view v = {.j = j,
                  .s = s,
                  .row = row,
                  .topk = trace->model.index_topk,
                  .width = trace->model.candidate_topk_blocks,
                  .size = trace->model.candidate_block_size};
    int published = 0;
    for (int32_t i = 0; i < trace->layer_count; i++) {
        v.layer = &trace->layers[i];
        if (!v.layer->present)
            continue;
        v.n = (int64_t)v.layer->ke[row] - v.layer->ks[row];
        load_weights(&v);
        if (v.layer->role.role == TAMIS_ROLE_CONSUMER) {
            if (!published)
                publish_blocks(&v, 1);
            published = 1;
            judge_consumer(&v, i, &findings[i], &tallies[i]);
            continue;
        }
        judge_full(&v, i, &findings[i], &tallies[i]);
        if (v.layer->role.role != TAMIS_ROLE_SOURCE)
            continue;
        publish_blocks(&v, 0);
        published = 1;
        judge_blocks(&v, &findings[trace->layer_count], &tallies[trace->layer_count],
                     list_count(s->full, v.topk));
    }
}
