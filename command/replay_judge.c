/* SPDX-License-Identifier: MIT */
/*
 * replay_judge.c: every list of a flight against the oracle. What it knows is the script's values,
 * the histories of requests and their raw inputs; it prepares each key of a history once and keeps
 * it under the token it was made of. Roles are derived here again, from docs/spec.md, section 1.
 */
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "replay.h"

typedef struct judged_keys { /* of one request and owner */
    uint64_t *token;         /* [room] that position j was made of: its group's last */
    uint8_t *codes, *scales;
    int64_t count, room;
} judged_keys;

typedef struct verdict { /* of one row */
    const char *what;    /* what differs, or NULL */
    int32_t layer;
    int64_t rank, expected, found;
} verdict;

struct replay_judge {
    const replay_script *script;
    const replay_inputs *inputs;
    tamis_pool *pool;
    int32_t owner[REPLAY_LAYERS]; /* nearest at or before; -1 */
    int32_t role[REPLAY_LAYERS];
    int32_t reused[REPLAY_LAYERS]; /* the last layer before that selects; -1 */
    judged_keys keys[REPLAY_REQUESTS][REPLAY_LAYERS];
    /* a flight */
    const replay_world *world;
    const replay_flight *flight;
    const int32_t *used;
    int64_t *row; /* chosen rows */
    int64_t rows, rows_room;
    verdict *verdict; /* [rows_room] */
};

static int selects(const replay_script *s, int32_t layer) {
    for (int32_t i = 0; i < s->indexes; i++)
        if (s->index[i] == layer)
            return 1;
    return 0;
}

static void derive_roles(replay_judge *j) {
    const replay_script *s = j->script;
    int32_t owner = -1, last = -1;
    for (int32_t layer = 0; layer < s->layers; layer++) {
        for (int32_t i = 0; i < s->owners; i++)
            owner = s->owner[i] == layer ? layer : owner;
        j->owner[layer] = s->ratio[layer] ? owner : -1;
        j->reused[layer] = last;
        j->role[layer] = TAMIS_ROLE_NONE;
        if (s->ratio[layer] == 0)
            continue;
        j->role[layer] = TAMIS_ROLE_REUSE;
        if (!selects(s, layer))
            continue;
        last = layer;
        j->role[layer] = TAMIS_ROLE_FULL;
        if (layer == s->source)
            j->role[layer] = TAMIS_ROLE_SOURCE;
        else if (s->source >= 0 && layer > s->source && owner == s->source)
            j->role[layer] = TAMIS_ROLE_CONSUMER;
    }
}

replay_judge *replay_judge_new(const replay_script *s, const replay_inputs *in, tamis_pool *pool) {
    replay_judge *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    j->script = s;
    j->inputs = in;
    j->pool = pool;
    derive_roles(j);
    return j;
}

void replay_judge_free(replay_judge *j) {
    if (!j)
        return;
    for (int r = 0; r < REPLAY_REQUESTS; r++)
        for (int layer = 0; layer < REPLAY_LAYERS; layer++) {
            free(j->keys[r][layer].token);
            free(j->keys[r][layer].codes);
            free(j->keys[r][layer].scales);
        }
    free(j->row);
    free(j->verdict);
    free(j);
}

/* ---- keys ---------------------------------------------------------------------------------- */

static int grow_keys(judged_keys *k, int64_t n, int32_t dim) {
    if (n <= k->room)
        return 1;
    size_t room = 2 * (size_t)n;
    uint64_t *token = realloc(k->token, room * sizeof *token);
    k->token = token ? token : k->token;
    uint8_t *codes = realloc(k->codes, room * (size_t)dim / 2);
    k->codes = codes ? codes : k->codes;
    uint8_t *scales = realloc(k->scales, room * (size_t)dim / 32);
    k->scales = scales ? scales : k->scales;
    if (!token || !codes || !scales)
        return 0;
    k->room = (int64_t)room;
    return 1;
}

/* The keys of every finished group in the first `tokens` of a history. */
static int make_keys(replay_judge *j, int32_t request, int32_t layer, int64_t tokens) {
    const replay_script *s = j->script;
    const replay_request *r = &j->world->request[request];
    judged_keys *k = &j->keys[request][layer];
    int64_t ratio = s->ratio[layer], n = tokens / ratio;
    float norm[128];
    if (!grow_keys(k, n, s->dim))
        return 0;
    for (int i = 0; i < s->dim; i++)
        norm[i] = oracle_from_bf16(j->inputs->norm[i]);
    for (int64_t p = 0; p < n; p++) {
        uint64_t token = r->token[p * ratio + ratio - 1];
        uint16_t x[128];
        if (p < k->count && k->token[p] == token)
            continue;
        replay_inputs_k(j->inputs, layer, token, x);
        oracle_k_prepare(x, s->dim, norm, j->inputs->eps, j->inputs->rope + p * ratio * 64,
                         k->codes + p * (s->dim / 2), k->scales + p * (s->dim / 32));
        k->token[p] = token;
    }
    k->count = n > k->count ? n : k->count;
    return 1;
}

/* ---- a row --------------------------------------------------------------------------------- */

typedef struct row_room {
    uint16_t *q, w[TAMIS_MAX_HEADS];
    uint8_t *codes, *scales;
    float weights[TAMIS_MAX_HEADS];
    float *scores;
    int32_t *blocks, *list;
} row_room;

static int room_make(row_room *room, const replay_script *s, int64_t positions) {
    size_t values = (size_t)(s->heads * s->dim);
    room->q = malloc(values * sizeof *room->q);
    room->codes = malloc(values / 2);
    room->scales = malloc(values / 32);
    room->scores = malloc((size_t)(positions + 1) * sizeof *room->scores);
    room->blocks = malloc(((size_t)s->blocks + 1) * sizeof *room->blocks);
    room->list = malloc(((size_t)s->topk + 1) * sizeof *room->list);
    return room->q && room->codes && room->scores && room->scales && room->blocks && room->list;
}

static void room_free(row_room *room) {
    free(room->q);
    free(room->codes);
    free(room->scales);
    free(room->scores);
    free(room->blocks);
    free(room->list);
}

static void score_row(const replay_judge *j, row_room *room, int32_t layer, int32_t request,
                      int64_t p, int64_t visible) {
    const replay_script *s = j->script;
    const judged_keys *k = &j->keys[request][j->owner[layer]];
    int32_t d = s->dim;
    replay_inputs_q(j->inputs, layer, j->world->request[request].token[p], room->q, room->w);
    for (int32_t h = 0; h < s->heads; h++) {
        oracle_q_prepare(room->q + h * d, d, j->inputs->rope + p * 64, room->codes + h * (d / 2),
                         room->scales + h * (d / 32));
        room->weights[h] = oracle_weight(oracle_from_bf16(room->w[h]), s->heads, d);
    }
    oracle_scores(s->numerics == TAMIS_NUMERICS_BF16 ? ORACLE_BF16 : ORACLE_EXACT, s->heads, d,
                  room->codes, room->scales, room->weights, k->codes, d / 2, k->scales, d / 32,
                  visible, room->scores);
}

static void differ(verdict *v, const char *what, int64_t rank, int64_t expected, int64_t found) {
    *v = (verdict){
        .what = what, .layer = v->layer, .rank = rank, .expected = expected, .found = found};
}

static void compare(verdict *v, const char *what, const int32_t *expected, const int32_t *found,
                    int64_t n) {
    for (int64_t i = 0; i < n && !v->what; i++)
        if (expected[i] != found[i])
            differ(v, what, i, expected[i], found[i]);
}

/* Scores of the selected, as bits: NaN is one NaN, -0 is +0, and -inf fills the tail. */
static void compare_scores(verdict *v, const row_room *room, int64_t count, const float *found,
                           int64_t n) {
    for (int64_t i = 0; i < n && !v->what; i++) {
        float x = i < count ? room->scores[room->list[i]] : -INFINITY;
        uint32_t want, got;
        x = x == 0 ? 0.0f : x;
        memcpy(&want, &x, 4);
        memcpy(&got, &found[i], 4);
        want = isnan(x) ? 0x7FC00000u : want;
        if (want != got)
            differ(v, "score bits", i, want, got);
    }
}

static void compare_slots(const replay_judge *j, verdict *v, int32_t request, int32_t ratio,
                          const int32_t *list, const int64_t *slots, int64_t n) {
    for (int64_t i = 0; i < n && !v->what; i++) {
        int64_t slot = list[i] < 0 ? -1 : replay_world_slot(j->world, request, ratio, list[i]);
        if (slots[i] != slot)
            differ(v, "slot", i, slot, slots[i]);
    }
}

static void judge_layer(const replay_judge *j, row_room *room, int64_t row, int32_t layer,
                        verdict *v) {
    const replay_script *s = j->script;
    const replay_outcome *o = &j->flight->out[layer];
    int32_t request = j->flight->row_request[row], ratio = s->ratio[layer];
    int64_t p = j->flight->row_position[row], visible = (p + 1) / ratio, count;
    score_row(j, room, layer, request, p, visible);
    if (j->role[layer] == TAMIS_ROLE_SOURCE) {
        oracle_publish(room->scores, visible, s->block_size, s->blocks, room->blocks);
        compare(v, "block", room->blocks, o->blocks + row * s->blocks, s->blocks);
    }
    if (j->role[layer] == TAMIS_ROLE_CONSUMER)
        count = oracle_consume(room->scores, visible, s->block_size, room->blocks, s->blocks,
                               s->topk, room->list);
    else
        count = oracle_topk(room->scores, visible, s->topk, room->list);
    compare(v, "position", room->list, o->positions + row * s->topk, s->topk);
    if (!v->what && o->counts[row] != count)
        differ(v, "count", 0, count, o->counts[row]);
    compare_scores(v, room, count, o->scores + row * s->topk, s->topk);
    compare_slots(j, v, request, ratio, room->list, o->slots + row * s->topk, s->topk);
}

static void judge_one(const replay_judge *j, row_room *room, int64_t row, verdict *v) {
    for (int32_t layer = 0; layer < j->script->layers && !v->what; layer++) {
        v->layer = layer;
        if (j->role[layer] > TAMIS_ROLE_NONE && j->role[layer] < TAMIS_ROLE_REUSE)
            judge_layer(j, room, row, layer, v);
        else if (j->role[layer] == TAMIS_ROLE_REUSE && j->used[layer] != j->reused[layer])
            differ(v, "layer reused", 0, j->reused[layer], j->used[layer]);
    }
}

typedef struct judging {
    replay_judge *judge;
    int64_t positions;
    atomic_int failed; /* no memory */
} judging;

static void judge_slice(void *context, int32_t ith, int32_t nth) {
    judging *job = context;
    row_room room = {0};
    if (!room_make(&room, job->judge->script, job->positions))
        job->failed = 1;
    for (int64_t i = ith; i < job->judge->rows && !job->failed; i += nth)
        judge_one(job->judge, &room, job->judge->row[i], &job->judge->verdict[i]);
    room_free(&room);
}

/* ---- a flight ------------------------------------------------------------------------------ */

/* Rows evenly spread, the first and the last among them. */
static int choose_rows(replay_judge *j, int64_t most) {
    int64_t all = j->flight->tokens;
    j->rows = most == 0 || most > all ? all : most;
    if (j->rows > j->rows_room) {
        j->rows_room = j->rows;
        free(j->row);
        free(j->verdict);
        j->row = malloc((size_t)j->rows * sizeof *j->row);
        j->verdict = malloc((size_t)j->rows * sizeof *j->verdict);
    }
    for (int64_t i = 0; i < j->rows && j->row && j->verdict; i++) {
        j->row[i] = j->rows > 1 ? i * (all - 1) / (j->rows - 1) : all - 1;
        j->verdict[i] = (verdict){0};
    }
    return j->rows == 0 || (j->row && j->verdict);
}

static int prepare_keys(replay_judge *j, int64_t *longest) {
    const replay_flight *f = j->flight;
    *longest = 0;
    for (int32_t i = 0; i < f->requests; i++) {
        int64_t tokens =
            j->world->request[f->who[i]].computed + f->query_start[i + 1] - f->query_start[i];
        *longest = tokens > *longest ? tokens : *longest;
        for (int32_t k = 0; k < j->script->owners; k++)
            if (!make_keys(j, f->who[i], j->script->owner[k], tokens))
                return 0;
    }
    return 1;
}

int replay_judge_flight(replay_judge *j, const replay_world *w, const replay_flight *f,
                        const int32_t *used, int64_t most, int64_t *judged, char *text,
                        int64_t size) {
    judging job = {.judge = j};
    j->world = w;
    j->flight = f;
    j->used = used;
    if (!choose_rows(j, most) || !prepare_keys(j, &job.positions))
        return fail("%s: no memory to judge it", j->script->file);
    tamis_pool_run(j->pool, judge_slice, &job);
    if (job.failed)
        return fail("%s: no memory to judge it", j->script->file);
    const verdict *first = NULL;
    int64_t at = 0;
    for (int64_t i = 0; i < j->rows; i++)
        if (j->verdict[i].what && (!first || j->verdict[i].layer < first->layer)) {
            first = &j->verdict[i];
            at = j->row[i];
        }
    *judged += j->rows * j->script->indexes;
    if (!first)
        return STATUS_GOOD;
    snprintf(text, (size_t)size,
             "request %s, token %" PRId64 ", layer %d: %s %" PRId64 ": expected %" PRId64
             ", found %" PRId64,
             j->script->name[f->row_request[at]], f->row_position[at], (int)first->layer,
             first->what, first->rank, first->expected, first->found);
    return STATUS_WRONG;
}
