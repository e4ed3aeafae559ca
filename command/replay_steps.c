/* SPDX-License-Identifier: MIT */
/*
 * replay_steps.c: the statements of a script in their order. A step gets pages and arrays, is run
 * by the engine and judged; only then is it history.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "replay.h"

__attribute__((format(printf, 3, 4))) static int wrong(replay *r, const replay_statement *at,
                                                       const char *format, ...) {
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(r->verdict, sizeof r->verdict, "%s:%d: step %" PRId64 ": %s", r->script.file,
             (int)at->line, r->steps, text);
    return STATUS_WRONG;
}

/* Sums over rows, so that neither their order nor the cut into steps matters. */
static void add_digest(replay *r) {
    const replay_flight *f = &r->flight;
    int32_t topk = r->script.topk, blocks = r->script.blocks;
    for (int32_t i = 0; i < r->script.indexes; i++) {
        const replay_outcome *o = &f->out[r->script.index[i]];
        for (int64_t t = 0; t < f->tokens; t++) {
            const replay_request *q = &r->world.request[f->row_request[t]];
            uint64_t h = replay_mix(q->token[f->row_position[t]] ^ (uint64_t)r->script.index[i]);
            for (int64_t c = t * topk; c < (t + 1) * topk; c++) {
                uint32_t score;
                memcpy(&score, &o->scores[c], sizeof score);
                h = replay_mix(h ^ (uint64_t)(uint32_t)o->positions[c] << 32 ^ score);
            }
            for (int64_t c = t * blocks; o->blocks && c < (t + 1) * blocks; c++)
                h = replay_mix(h ^ (uint64_t)(uint32_t)o->blocks[c]);
            r->digest += replay_mix(h ^ (uint64_t)o->counts[t]);
        }
    }
}

static int refused(replay *r, const replay_statement *at, int status, const tamis_error *error) {
    char text[300];
    tamis_error_text(error, text, sizeof text);
    if (status == STATUS_WRONG)
        return wrong(r, at, "refused: %s", text);
    return fail("%s:%d: %s", r->script.file, (int)at->line, text);
}

static int fly_once(replay *r, const replay_statement *at) {
    replay_flight *f = &r->flight;
    replay_engine *e = r->world.engine;
    tamis_error error = {0};
    char text[256];
    replay_flight_poison(f, &r->script);
    int status = e->calls->fly(e, f, &error);
    r->steps++;
    r->rows += f->tokens;
    if (status != STATUS_GOOD)
        return refused(r, at, status, &error);
    if (f->keys_only)
        return STATUS_GOOD;
    add_digest(r);
    status = replay_judge_flight(r->judge, &r->world, f, r->used, r->options->rows, &r->judged,
                                 text, sizeof text);
    return status == STATUS_WRONG ? wrong(r, at, "%s", text) : status;
}

/* The flight that `entries` make: pages, arrays, mistakes, runs; then it is history. */
static int fly(replay *r, const replay_statement *at, const replay_entry *entries, int32_t count) {
    replay_flight *f = &r->flight;
    replay_engine *e = r->world.engine;
    tamis_error error = {0};
    int64_t tokens = 0;
    int status = STATUS_GOOD;
    for (int32_t i = 0; i < count; i++)
        tokens += entries[i].count;
    if (tokens > r->script.max_tokens || count > r->script.max_requests)
        return replay_script_error(&r->script, at->line, "step", "tokens and requests in limits",
                                   "%" PRId64 " and %d", tokens, (int)count);
    for (int32_t i = 0; i < count; i++) {
        const replay_request *q = &r->world.request[entries[i].request];
        if (replay_world_grow(&r->world, at, entries[i].request, q->computed + entries[i].count) !=
            STATUS_GOOD)
            return STATUS_BAD;
    }
    if (r->mistake == MISTAKE_SPLIT && count == 0)
        return replay_script_error(&r->script, at->line, "step", "a request to be wrong about",
                                   "none");
    replay_flight_begin(f);
    f->keys_only = at->verb == VERB_INSERT;
    for (int32_t i = 0; i < count; i++)
        replay_flight_add(f, &r->world, entries[i].request, entries[i].count);
    replay_plant_spoil(&r->plant, f, &r->world);
    if (r->mistake && (r->mistake != MISTAKE_SPLIT || r->options->ranks))
        status = e->calls->err(e, f, r->mistake, &error);
    if (status != STATUS_GOOD)
        return refused(r, at, status, &error);
    for (int64_t i = 0; i < r->again && status == STATUS_GOOD; i++)
        status = fly_once(r, at);
    r->mistake = MISTAKE_NONE;
    for (int32_t i = 0; i < count; i++)
        r->world.request[entries[i].request].computed += entries[i].count;
    return status;
}

static int ready(const replay *r, const replay_statement *at, int32_t request) {
    const replay_request *q = &r->world.request[request];
    const char *name = r->script.name[request];
    if (!q->live || !q->resident)
        return replay_script_error(&r->script, at->line, name, "a live request with pages", "%s",
                                   q->live ? "a preempted one" : "none of that name");
    if (q->pending)
        return replay_script_error(&r->script, at->line, name, "accept for its drafts",
                                   "%d in flight", (int)q->pending);
    return STATUS_GOOD;
}

static int do_prefill(replay *r, const replay_statement *at) {
    int64_t chunk = r->options->chunk ? r->options->chunk : at->value[0];
    const replay_request *q = &r->world.request[at->request];
    int status = ready(r, at, at->request);
    int64_t end = at->value[1] ? q->computed + at->value[1] : q->known;
    if (status == STATUS_GOOD && (end > q->known || q->computed == q->known))
        return replay_script_error(&r->script, at->line, r->script.name[at->request],
                                   "tokens to prefill", "%" PRId64 " left", q->known - q->computed);
    chunk = chunk && chunk < r->script.max_tokens ? chunk : r->script.max_tokens;
    while (status == STATUS_GOOD && q->computed < end && !stopped) {
        int64_t left = end - q->computed;
        replay_entry entry = {at->request, (int32_t)(left < chunk ? left : chunk), 0};
        status = fly(r, at, &entry, 1);
    }
    return status;
}

/* Tokens of a history are prefilled, as many as wait; behind it they are decoded. */
static int begin_entry(replay *r, const replay_statement *at, replay_entry *e) {
    replay_request *q = &r->world.request[e->request];
    int64_t waiting = q->known - q->computed;
    if (ready(r, at, e->request) != STATUS_GOOD)
        return STATUS_BAD;
    if (waiting > 0) {
        if (e->drafts)
            return replay_script_error(&r->script, at->line, r->script.name[e->request],
                                       "no drafts while tokens wait for prefill", "%d",
                                       (int)e->drafts);
        e->count = (int32_t)(e->count < waiting ? e->count : waiting);
        return STATUS_GOOD;
    }
    if (e->drafts > r->script.drafts || (e->drafts && e->count == 0))
        return replay_script_error(&r->script, at->line, r->script.name[e->request],
                                   "drafts within limits behind a sure token", "%d behind %d",
                                   (int)e->drafts, (int)e->count);
    q->pending = e->drafts;
    e->count += e->drafts;
    return replay_world_append(&r->world, e->request, e->count);
}

/* One flight; more where --chunk cuts prefills into pieces. */
static int do_step(replay *r, const replay_statement *at) {
    replay_entry left[REPLAY_REQUESTS], now[REPLAY_REQUESTS];
    int prefills[REPLAY_REQUESTS];
    int64_t more = 1;
    for (int32_t i = 0; i < at->entries; i++) {
        left[i] = r->script.entry[at->entry + i];
        const replay_request *q = &r->world.request[left[i].request];
        prefills[i] = q->computed < q->known;
        if (begin_entry(r, at, &left[i]) != STATUS_GOOD)
            return STATUS_BAD;
    }
    for (int first = 1; more > 0; first = 0) {
        int32_t count = 0;
        more = 0;
        for (int32_t i = 0; i < at->entries; i++) {
            int32_t take = left[i].count;
            if (prefills[i] && r->options->chunk && take > r->options->chunk)
                take = (int32_t)r->options->chunk;
            left[i].count -= take;
            more += left[i].count;
            if (take > 0 || first)
                now[count++] = (replay_entry){left[i].request, take, 0};
        }
        int status = fly(r, at, now, count);
        if (status != STATUS_GOOD)
            return status;
    }
    return STATUS_GOOD;
}

static int do_wrong(replay *r, const replay_statement *at) {
    if (replay_layer_of(&r->setup, TAMIS_ROLE_SOURCE) < 0 ||
        replay_layer_of(&r->setup, TAMIS_ROLE_CONSUMER) < 0)
        return replay_script_error(&r->script, at->line, "wrong", "a source and a consumer layer",
                                   "a model without");
    if (at->value[0] == MISTAKE_OLD_STEP && r->steps == 0)
        return replay_script_error(&r->script, at->line, "wrong old_step", "a step before it",
                                   "none");
    r->mistake = (int32_t)at->value[0];
    return STATUS_GOOD;
}

static int do_statement(replay *r, const replay_statement *at) {
    switch (at->verb) {
    case VERB_PREFILL:
    case VERB_INSERT:
        return do_prefill(r, at);
    case VERB_STEP:
        return do_step(r, at);
    case VERB_AGAIN:
        r->again = at->value[0];
        return STATUS_GOOD;
    case VERB_WRONG:
        return do_wrong(r, at);
    default:
        return replay_world_do(&r->world, at);
    }
}

int replay_statements(replay *r) {
    int status = STATUS_GOOD;
    progress_begin(&r->bar, "replay", r->script.statements);
    for (int32_t i = 0; i < r->script.statements && status == STATUS_GOOD && !stopped; i++) {
        const replay_statement *at = &r->script.statement[i];
        status = do_statement(r, at);
        if (at->verb != VERB_AGAIN && at->verb != VERB_WRONG)
            r->again = 1; /* for every flight of one statement */
        progress_show(&r->bar, i + 1);
    }
    progress_end(&r->bar);
    return status == STATUS_GOOD ? check_stopped() : status;
}
