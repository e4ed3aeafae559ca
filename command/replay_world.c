/* SPDX-License-Identifier: MIT */
/*
 * replay_world.c: requests, their histories, and their pages, as an engine keeps them. A free page
 * keeps what it held, or is filled with random bytes; which one is next is random, too.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"

static int no_memory(const replay_world *w) {
    return fail("%s: no memory for its requests", w->script->file);
}

static uint64_t roll(replay_world *w) {
    return w->random = replay_mix(w->random);
}

int replay_world_make(replay_world *w, const replay_script *script, int32_t page_size) {
    *w = (replay_world){.script = script, .page_size = page_size};
    w->random = replay_mix((uint64_t)script->seed);
    w->page_stride = tamis_k_page_stride(page_size, script->dim, script->page_align);
    w->pages_each = (script->max_context + page_size - 1) / page_size;
    for (int k = 0; k < 2; k++) {
        replay_pages *pool = &w->pool[k];
        int64_t count = script->positions / (k + 1) / page_size;
        pool->count = pool->free_count = (int32_t)(count > 0 ? count : 1);
        pool->free = malloc((size_t)pool->count * sizeof *pool->free);
        pool->references = calloc((size_t)pool->count, sizeof *pool->references);
        if (!pool->free || !pool->references)
            return no_memory(w);
        for (int32_t i = 0; i < pool->count; i++)
            pool->free[i] = i;
    }
    for (int i = 0; i < REPLAY_REQUESTS; i++)
        w->request[i].saved = -1;
    return STATUS_GOOD;
}

static void drop_saved(replay_request *r) {
    for (int i = 0; i < REPLAY_LAYERS; i++) {
        free(r->saved_codes[i]);
        free(r->saved_scales[i]);
        r->saved_codes[i] = r->saved_scales[i] = NULL;
    }
    r->saved = -1;
}

void replay_world_free(replay_world *w) {
    for (int i = 0; i < REPLAY_REQUESTS; i++) {
        drop_saved(&w->request[i]);
        free(w->request[i].token);
        free(w->request[i].page[0]);
        free(w->request[i].page[1]);
    }
    for (int k = 0; k < 2; k++) {
        free(w->pool[k].free);
        free(w->pool[k].references);
    }
}

/* ---- K owners and their pages -------------------------------------------------------------- */

static int wrong(const replay_world *w, const replay_statement *at, const char *required,
                 const char *found) {
    const replay_script *s = w->script;
    return replay_script_error(s, at->line, at->request < 0 ? "step" : s->name[at->request],
                               required, "%s", found);
}

/* What a request is, for messages. */
static const char *state_of(const replay_request *r) {
    if (!r->live)
        return "none that lives";
    if (!r->resident)
        return r->saved < 0 ? "a preempted one, not saved" : "a preempted one, saved";
    if (r->pending)
        return "one with drafts in flight";
    return r->saved < 0 ? "one with pages" : "one with pages, saved";
}

static int engine_failed(const replay_world *w, const replay_statement *at,
                         const tamis_error *error) {
    char text[400];
    tamis_error_text(error, text, sizeof text);
    return fail("%s:%d: the engine's memory: %s", w->script->file, (int)at->line, text);
}

/* Calls for each owner of a ratio; stops at what is not good. */
typedef int owner_work(replay_world *w, const replay_statement *at, int32_t layer, void *context);

static int each_owner(replay_world *w, const replay_statement *at, int32_t ratio, owner_work *work,
                      void *context) {
    const replay_script *s = w->script;
    int status = STATUS_GOOD;
    for (int32_t i = 0; i < s->owners && status == STATUS_GOOD; i++)
        if (s->ratio[s->owner[i]] == ratio)
            status = work(w, at, s->owner[i], context);
    return status;
}

typedef struct page_pair {
    int32_t from, to;
} page_pair;

static int fill_page(replay_world *w, const replay_statement *at, int32_t layer, void *context) {
    const page_pair *pair = context;
    tamis_error error = {0};
    uint8_t *bytes = malloc((size_t)w->page_stride);
    if (!bytes)
        return no_memory(w);
    int status = STATUS_GOOD;
    if (pair->from >= 0)
        status = w->engine->calls->get(w->engine, layer, pair->from * w->page_stride, bytes,
                                       w->page_stride, &error);
    for (int64_t i = 0; pair->from < 0 && i < w->page_stride; i++)
        bytes[i] = (uint8_t)(i % 8 == 0 ? roll(w) : w->random >> 8 * (i % 8));
    if (status == STATUS_GOOD)
        status = w->engine->calls->put(w->engine, layer, pair->to * w->page_stride, bytes,
                                       w->page_stride, &error);
    free(bytes);
    return status == STATUS_GOOD ? STATUS_GOOD : engine_failed(w, at, &error);
}

/* Takes any free page; half of them get random bytes, the others keep what they held. */
static int take_page(replay_world *w, const replay_statement *at, int32_t ratio, int32_t *page) {
    replay_pages *pool = &w->pool[ratio - 1];
    if (pool->free_count == 0)
        return replay_script_error(w->script, at->line, "cache", "a free page",
                                   "all %d of ratio %d in use", (int)pool->count, (int)ratio);
    int32_t i = (int32_t)(roll(w) % (uint64_t)pool->free_count);
    *page = pool->free[i];
    pool->free[i] = pool->free[--pool->free_count];
    pool->references[*page] = 1;
    page_pair dirt = {-1, *page};
    return roll(w) % 2 ? each_owner(w, at, ratio, fill_page, &dirt) : STATUS_GOOD;
}

int replay_world_grow(replay_world *w, const replay_statement *at, int32_t request,
                      int64_t context) {
    replay_request *r = &w->request[request];
    if (context > w->script->max_context)
        return replay_script_error(w->script, at->line, w->script->name[request],
                                   "a context within limits", "%" PRId64 " tokens", context);
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        int64_t needed = (context / ratio + w->page_size - 1) / w->page_size;
        for (int64_t *used = &r->used[ratio - 1]; *used < needed; ++*used)
            if (take_page(w, at, ratio, &r->page[ratio - 1][*used]) != STATUS_GOOD)
                return STATUS_BAD;
    }
    return STATUS_GOOD;
}

static void drop_pages(replay_world *w, replay_request *r) {
    for (int k = 0; k < 2; k++) {
        replay_pages *pool = &w->pool[k];
        for (int64_t i = 0; i < r->used[k]; i++)
            if (--pool->references[r->page[k][i]] == 0)
                pool->free[pool->free_count++] = r->page[k][i];
        r->used[k] = 0;
    }
    r->computed = 0;
    r->resident = 0;
}

int64_t replay_world_slot(const replay_world *w, int32_t request, int32_t ratio, int64_t position) {
    int64_t page = position / w->page_size;
    const replay_request *r = &w->request[request];
    return page < r->used[ratio - 1]
               ? r->page[ratio - 1][page] * (int64_t)w->page_size + position % w->page_size
               : -1;
}

/* ---- histories ----------------------------------------------------------------------------- */

int replay_world_append(replay_world *w, int32_t request, int64_t count) {
    replay_request *r = &w->request[request];
    if (r->known + count > r->room) {
        int64_t room = 2 * (r->known + count);
        uint64_t *grown = realloc(r->token, (size_t)room * sizeof *grown);
        if (!grown)
            return no_memory(w);
        r->token = grown;
        r->room = room;
    }
    for (int64_t i = 0; i < count; i++, r->known++)
        r->token[r->known] = replay_mix(r->seed ^ replay_mix((uint64_t)r->known << 20 ^ r->turn));
    return STATUS_GOOD;
}

static int arrive(replay_world *w, const replay_statement *at) {
    replay_request *r = &w->request[at->request];
    int32_t live = 0;
    for (int i = 0; i < REPLAY_REQUESTS; i++)
        live += w->request[i].live;
    if (r->live)
        return wrong(w, at, "a request that has finished or never was", "a live one");
    if (live == w->script->max_requests)
        return wrong(w, at, "fewer live requests than limits has", "as many");
    if (at->value[0] > w->script->max_context)
        return wrong(w, at, "a prompt within the limit of context", "a longer one");
    for (int k = 0; k < 2; k++)
        if (!r->page[k] && !(r->page[k] = calloc((size_t)w->pages_each, sizeof *r->page[k])))
            return no_memory(w);
    r->live = r->resident = 1;
    r->seed = (uint64_t)at->value[1];
    r->turn = 0;
    r->known = r->computed = r->pending = 0;
    return replay_world_append(w, at->request, at->value[0]);
}

/* The first tokens of another request: its history, its full pages by reference, and a copy of the
 * page that both would write to. */
static int share(replay_world *w, const replay_statement *at) {
    replay_request *r = &w->request[at->request], *from = &w->request[at->other];
    int64_t tokens = at->value[0];
    /* What was saved is of the history that sharing would replace. */
    if (!r->live || !r->resident || r->computed || r->used[0] || r->used[1] || r->saved >= 0)
        return wrong(w, at, "a request that has arrived and computed nothing",
                     r->computed ? "one with K in its cache" : state_of(r));
    if (!from->live || !from->resident || tokens > from->computed - from->pending)
        return replay_script_error(w->script, at->line, w->script->name[at->other],
                                   "that many tokens in its cache", "%" PRId64,
                                   from->computed - from->pending);
    if (tokens > r->known)
        return wrong(w, at, "no more tokens than its prompt has", "more");
    memcpy(r->token, from->token, (size_t)tokens * sizeof *r->token);
    r->computed = tokens;
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        int64_t positions = tokens / ratio, whole = positions / w->page_size;
        for (int64_t i = 0; i < whole; i++) {
            int32_t page = r->page[ratio - 1][i] = from->page[ratio - 1][i];
            w->pool[ratio - 1].references[page]++;
        }
        r->used[ratio - 1] = whole;
        if (whole * w->page_size == positions)
            continue;
        page_pair pair = {from->page[ratio - 1][whole], 0};
        if (take_page(w, at, ratio, &pair.to) != STATUS_GOOD ||
            each_owner(w, at, ratio, fill_page, &pair) != STATUS_GOOD)
            return STATUS_BAD;
        r->page[ratio - 1][r->used[ratio - 1]++] = pair.to;
    }
    return STATUS_GOOD;
}

static int accept(replay_world *w, const replay_statement *at) {
    replay_request *r = &w->request[at->request];
    if (!r->live || r->pending == 0 || at->value[0] > r->pending)
        return replay_script_error(w->script, at->line, w->script->name[at->request],
                                   "drafts in flight, and no more than them", "%" PRId64 " of %d",
                                   at->value[0], (int)r->pending);
    r->known -= r->pending - at->value[0];
    r->computed = r->known;
    r->pending = 0;
    r->turn++;
    return STATUS_GOOD;
}

/* ---- saving and restoring ------------------------------------------------------------------ */

static int save_layer(replay_world *w, const replay_statement *at, int32_t layer, void *context) {
    replay_request *r = context;
    const replay_script *s = w->script;
    int32_t ratio = s->ratio[layer];
    int64_t n = r->computed / ratio, codes = s->dim / 2, scales = s->dim / 32;
    tamis_error error = {0};
    r->saved_codes[layer] = malloc((size_t)(n * codes + 1));
    r->saved_scales[layer] = malloc((size_t)(n * scales + 1));
    if (!r->saved_codes[layer] || !r->saved_scales[layer])
        return no_memory(w);
    memset(r->saved_codes[layer], 0xA5, (size_t)(n * codes + 1));
    memset(r->saved_scales[layer], 0xFF, (size_t)(n * scales + 1));
    int status = w->engine->calls->gather(w->engine, layer, r->page[ratio - 1], n,
                                          r->saved_codes[layer], r->saved_scales[layer], &error);
    if (status != STATUS_GOOD)
        return engine_failed(w, at, &error);
    if (r->saved_codes[layer][n * codes] != 0xA5 || r->saved_scales[layer][n * scales] != 0xFF)
        return fail("%s:%d: k_gather wrote past the last position", s->file, (int)at->line);
    return STATUS_GOOD;
}

static int save(replay_world *w, const replay_statement *at) {
    replay_request *r = &w->request[at->request];
    if (!r->live || !r->resident || r->pending)
        return wrong(w, at, "a request with pages and no drafts in flight", state_of(r));
    drop_saved(r);
    r->saved = r->computed;
    for (int32_t ratio = 1; ratio <= 2; ratio++)
        if (each_owner(w, at, ratio, save_layer, r) != STATUS_GOOD)
            return STATUS_BAD;
    return STATUS_GOOD;
}

/* A whole page at a time, laid out as docs/spec.md, section 2, says: codes, then scales. */
static int restore_layer(replay_world *w, const replay_statement *at, int32_t layer,
                         void *context) {
    const replay_request *r = context;
    const replay_script *s = w->script;
    int32_t ratio = s->ratio[layer], size = w->page_size;
    int64_t n = r->saved / ratio, codes = s->dim / 2, scales = s->dim / 32;
    uint8_t *bytes = malloc((size_t)w->page_stride);
    tamis_error error = {0};
    int status = bytes ? STATUS_GOOD : no_memory(w);
    for (int64_t first = 0; first < n && status == STATUS_GOOD; first += size) {
        int64_t count = n - first < size ? n - first : size;
        int64_t page = r->page[ratio - 1][first / size];
        memset(bytes, (int)(roll(w) & 0xFF), (size_t)w->page_stride);
        memcpy(bytes, r->saved_codes[layer] + first * codes, (size_t)(count * codes));
        memcpy(bytes + size * codes, r->saved_scales[layer] + first * scales,
               (size_t)(count * scales));
        if (w->engine->calls->put(w->engine, layer, page * w->page_stride, bytes, w->page_stride,
                                  &error) != STATUS_GOOD)
            status = engine_failed(w, at, &error);
    }
    free(bytes);
    return status;
}

static int restore(replay_world *w, const replay_statement *at) {
    replay_request *r = &w->request[at->request];
    if (!r->live || r->resident || r->saved < 0)
        return wrong(w, at, "a preempted request that was saved", state_of(r));
    r->resident = 1;
    r->computed = r->saved;
    if (replay_world_grow(w, at, at->request, r->saved) != STATUS_GOOD)
        return STATUS_BAD;
    for (int32_t ratio = 1; ratio <= 2; ratio++)
        if (each_owner(w, at, ratio, restore_layer, r) != STATUS_GOOD)
            return STATUS_BAD;
    return STATUS_GOOD;
}

int replay_world_do(replay_world *w, const replay_statement *at) {
    replay_request *r = &w->request[at->request];
    switch (at->verb) {
    case VERB_ARRIVE:
        return arrive(w, at);
    case VERB_SHARE:
        return share(w, at);
    case VERB_ACCEPT:
        return accept(w, at);
    case VERB_SAVE:
        return save(w, at);
    case VERB_RESTORE:
        return restore(w, at);
    default:
        break;
    }
    if (at->verb == VERB_FINISH && !r->live)
        return wrong(w, at, "a live request", state_of(r));
    if (at->verb == VERB_RESUME && (!r->live || r->resident))
        return wrong(w, at, "a preempted request", state_of(r));
    if (at->verb == VERB_PREEMPT && (!r->live || !r->resident || r->pending))
        return wrong(w, at, "a live request with pages and no drafts in flight", state_of(r));
    if (at->verb == VERB_RESUME) {
        r->resident = 1;
        return STATUS_GOOD;
    }
    drop_pages(w, r);
    if (at->verb == VERB_FINISH) {
        r->live = r->pending = 0;
        drop_saved(r);
    }
    return STATUS_GOOD;
}
