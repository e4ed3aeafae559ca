/* SPDX-License-Identifier: MIT */
/* replay_flight.c: the arrays of one forward pass: what an engine is told, what is true, and where
 * selections come out. */
#include <stdlib.h>
#include <string.h>

#include "replay.h"

enum { POISON_POSITION = -7, POISON_COUNT = -9 };
static const int64_t poison_slot = -0x7777777777;
static const float poison_score = 1234.5f;

int replay_outcomes_make(replay_outcome *out, const replay_script *s) {
    size_t tokens = (size_t)s->max_tokens, cells = tokens * (size_t)s->topk;
    int good = 1;
    for (int32_t i = 0; i < s->indexes; i++) {
        replay_outcome *o = &out[s->index[i]];
        o->positions = malloc(cells * sizeof *o->positions);
        o->slots = malloc(cells * sizeof *o->slots);
        o->scores = malloc(cells * sizeof *o->scores);
        o->counts = malloc(tokens * sizeof *o->counts);
        good = good && o->positions && o->slots && o->scores && o->counts;
        if (s->index[i] == s->source)
            good = (o->blocks = malloc(tokens * (size_t)s->blocks * sizeof *o->blocks)) && good;
    }
    return good;
}

void replay_outcomes_free(replay_outcome *out) {
    for (int i = 0; i < REPLAY_LAYERS; i++) {
        free(out[i].positions);
        free(out[i].slots);
        free(out[i].scores);
        free(out[i].counts);
        free(out[i].blocks);
    }
}

int replay_flight_make(replay_flight *f, const replay_script *s, int64_t pages_each) {
    size_t tokens = (size_t)s->max_tokens, requests = (size_t)s->max_requests;
    *f = (replay_flight){0};
    f->context = calloc(requests, sizeof *f->context);
    f->query_start = calloc(requests + 1, sizeof *f->query_start);
    f->position = calloc(tokens, sizeof *f->position);
    f->k_token = calloc(tokens, sizeof *f->k_token);
    f->q_token = calloc(tokens, sizeof *f->q_token);
    f->row_request = calloc(tokens, sizeof *f->row_request);
    f->row_position = calloc(tokens, sizeof *f->row_position);
    int good = f->context && f->query_start && f->position && f->k_token && f->q_token &&
               f->row_request && f->row_position;
    for (int k = 0; k < 2; k++) {
        f->table[k] = calloc(requests * (size_t)pages_each, sizeof *f->table[k]);
        f->slot[k] = calloc(tokens, sizeof *f->slot[k]);
        good = good && f->table[k] && f->slot[k];
    }
    good = replay_outcomes_make(f->out, s) && good;
    return good ? STATUS_GOOD : fail("%s: no memory for %d tokens", s->file, (int)s->max_tokens);
}

void replay_flight_free(replay_flight *f) {
    free(f->context);
    free(f->query_start);
    free(f->position);
    free(f->k_token);
    free(f->q_token);
    free(f->row_request);
    free(f->row_position);
    for (int k = 0; k < 2; k++) {
        free(f->table[k]);
        free(f->slot[k]);
    }
    replay_outcomes_free(f->out);
}

void replay_flight_begin(replay_flight *f) {
    f->requests = 0;
    f->tokens = 0;
    f->insert_ratio[0] = 1;
    f->insert_ratio[1] = 2;
    f->skip_publish = f->keys_only = 0;
}

/* Entries behind a request's last page are random pages: they may be read and must not matter. */
static void add_table(replay_flight *f, const replay_world *w, const replay_request *r, int k) {
    int32_t *row = f->table[k] + f->requests * w->pages_each;
    for (int64_t i = 0; i < w->pages_each; i++)
        row[i] = i < r->used[k]
                     ? r->page[k][i]
                     : (int32_t)(replay_mix(w->random + (uint64_t)i) % (uint64_t)w->pool[k].count);
}

void replay_flight_add(replay_flight *f, const replay_world *w, int32_t request, int64_t count) {
    const replay_request *r = &w->request[request];
    for (int64_t i = 0; i < count; i++, f->tokens++) {
        int64_t p = r->computed + i, t = f->tokens;
        f->row_request[t] = request;
        f->row_position[t] = f->position[t] = p;
        f->k_token[t] = f->q_token[t] = r->token[p];
        for (int32_t ratio = 1; ratio <= 2; ratio++)
            f->slot[ratio - 1][t] =
                (p + 1) % ratio ? -1 : replay_world_slot(w, request, ratio, p / ratio);
    }
    add_table(f, w, r, 0);
    add_table(f, w, r, 1);
    f->context[f->requests] = r->computed + count;
    f->who[f->requests++] = request;
    f->query_start[f->requests] = (int32_t)f->tokens;
}

void replay_flight_poison(replay_flight *f, const replay_script *s) {
    for (int32_t i = 0; i < s->indexes; i++) {
        replay_outcome *o = &f->out[s->index[i]];
        for (int64_t c = 0; c < f->tokens * s->topk; c++) {
            o->positions[c] = POISON_POSITION;
            o->slots[c] = poison_slot;
            o->scores[c] = poison_score;
        }
        for (int64_t c = 0; o->blocks && c < f->tokens * s->blocks; c++)
            o->blocks[c] = POISON_POSITION;
        for (int64_t c = 0; c < f->tokens; c++)
            o->counts[c] = POISON_COUNT;
    }
}

int replay_flight_poisoned(const replay_flight *f, const replay_script *s) {
    int whole = 1;
    for (int32_t i = 0; i < s->indexes; i++) {
        const replay_outcome *o = &f->out[s->index[i]];
        for (int64_t c = 0; c < f->tokens * s->topk; c++)
            whole &= o->positions[c] == POISON_POSITION && o->slots[c] == poison_slot &&
                     o->scores[c] == poison_score;
        for (int64_t c = 0; o->blocks && c < f->tokens * s->blocks; c++)
            whole &= o->blocks[c] == POISON_POSITION;
        for (int64_t c = 0; c < f->tokens; c++)
            whole &= o->counts[c] == POISON_COUNT;
    }
    return whole;
}
