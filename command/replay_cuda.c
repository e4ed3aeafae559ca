/* SPDX-License-Identifier: MIT */
/*
 * replay_cuda.c: flights on a GPU by a device plan. Every array lies at one address for the whole
 * replay. With --graph a flight is padded to a power of two and one captured graph, steps and
 * layers together, is launched for every flight of that size.
 */
#include "replay_cuda.h"

#include <stdlib.h>
#include <string.h>

/* ---- inputs -------------------------------------------------------------------------------- */

static void fill_slice(void *context, int32_t ith, int32_t nth) {
    cuda_engine *e = context;
    replay_raw_slice(e->base.setup, e->flight, &e->raw, e->layer, e->keys, ith, nth);
}

/* Raw tensors of every layer; the host's copy is used again, so each waits for its transfer. */
static tamis_status send_inputs(cuda_engine *e, tamis_error *error) {
    const replay_setup *setup = e->base.setup;
    const replay_script *s = setup->script;
    int64_t tokens = e->flight->tokens, dim = s->dim, heads = s->heads;
    for (int32_t i = 0; i < s->owners + s->indexes; i++) {
        e->keys = i < s->owners;
        e->layer = e->keys ? s->owner[i] : s->index[i - s->owners];
        tamis_pool_run(setup->pool, fill_slice, e);
        if (e->keys) {
            TRY(replay_cuda_send(e, e->x[e->layer], e->raw.x, tokens * dim * 2, error));
        } else {
            TRY(replay_cuda_send(e, e->q[e->layer], e->raw.q, tokens * heads * dim * 2, error));
            TRY(replay_cuda_send(e, e->w[e->layer], e->raw.w, tokens * heads * 2, error));
        }
        TRY(tamis_cuda_stream_sync(e->cuda, e->stream, error));
    }
    return TAMIS_OK;
}

/* A flight of `rows` rows and `requests` requests: what it lacks is padding. */
static tamis_status send_batch(cuda_engine *e, int64_t rows, int32_t requests, tamis_error *error) {
    const replay_flight *f = e->flight;
    int64_t each = e->base.setup->pages_each;
    for (int32_t i = 0; i <= requests; i++)
        e->host.query_start[i] = i <= f->requests ? f->query_start[i] : (int32_t)f->tokens;
    for (int32_t i = 0; i < requests; i++)
        e->host.context[i] = i < f->requests ? f->context[i] : 0;
    for (int64_t t = 0; t < rows; t++) {
        e->host.position[t] = t < f->tokens ? f->position[t] : 0;
        for (int k = 0; k < 2; k++)
            e->host.slot[k][t] = t < f->tokens ? f->slot[k][t] : -1;
    }
    TRY(replay_cuda_send(e, e->query_start, e->host.query_start, (requests + 1) * 4, error));
    TRY(replay_cuda_send(e, e->context, e->host.context, requests * 8, error));
    TRY(replay_cuda_send(e, e->position, e->host.position, rows * 8, error));
    for (int k = 0; k < 2; k++) {
        TRY(replay_cuda_send(e, e->slot[k], e->host.slot[k], rows * 8, error));
        TRY(replay_cuda_send(e, e->table[k], f->table[k], f->requests * each * 4, error));
    }
    return TAMIS_OK;
}

/* Outputs, poisoned or chosen: every layer's, for the rows that are not padding. */
static tamis_status move_outputs(cuda_engine *e, int in, tamis_error *error) {
    const replay_script *s = e->base.setup->script;
    int64_t tokens = e->flight->tokens, cells = tokens * s->topk;
    for (int32_t i = 0; i < s->indexes; i++) {
        const replay_outcome *to = &e->arrays.out[s->index[i]], *h = &e->flight->out[s->index[i]];
        struct {
            void *device, *host;
            int64_t bytes;
        } part[] = {{to->positions, h->positions, cells * 4},
                    {to->slots, h->slots, cells * 8},
                    {to->scores, h->scores, cells * 4},
                    {to->counts, h->counts, tokens * 4},
                    {to->blocks, h->blocks, h->blocks ? tokens * s->blocks * 4 : 0}};
        for (int k = 0; k < 5; k++)
            TRY(in ? replay_cuda_send(e, part[k].device, part[k].host, part[k].bytes, error)
                   : replay_cuda_fetch(e, part[k].host, part[k].device, part[k].bytes, error));
    }
    return tamis_cuda_stream_sync(e->cuda, e->stream, error);
}

/* ---- work ---------------------------------------------------------------------------------- */

static tamis_status queue_step(cuda_engine *e, int64_t rows, int32_t requests, tamis_error *error) {
    int64_t each = e->base.setup->pages_each;
    tamis_batch batch;
    tamis_batch_default(&batch);
    e->arrays.tokens = rows;
    batch.requests = requests;
    batch.tokens = rows;
    batch.context = e->context;
    batch.query_start = e->query_start;
    for (int k = 0; k < 2; k++) {
        batch.page_table[k] = e->table[k];
        batch.page_table_stride[k] = batch.page_table_width[k] = each;
    }
    return tamis_cuda_step_make(e->plan, &batch, &e->step, e->stream, error);
}

static tamis_status queue_layer(cuda_engine *e, int32_t layer, tamis_error *error) {
    tamis_layer_args args;
    replay_layer_args(e->base.setup, &e->arrays, layer, &args);
    return e->base.setup->roles[layer].role == TAMIS_ROLE_CONSUMER
               ? tamis_cuda_consumer_run(e->plan, &e->step, &args, e->stream, error)
               : tamis_cuda_source_run(e->plan, &e->step, &args, e->stream, error);
}

static tamis_status queue_prepare(cuda_engine *e, int32_t layer, tamis_error *error) {
    tamis_q_prepare_args args;
    e->arrays.q = e->q[layer];
    e->arrays.w = e->w[layer];
    replay_prepare_args(e->base.setup, &e->arrays, &args);
    return tamis_cuda_q_prepare(e->cuda, &args, e->stream, error);
}

static tamis_status queue_insert(cuda_engine *e, int32_t layer, tamis_error *error) {
    const replay_setup *setup = e->base.setup;
    tamis_k_insert_args args;
    e->arrays.x = e->x[layer];
    replay_insert_args(setup, &e->arrays, layer,
                       e->flight->insert_ratio[setup->script->ratio[layer] - 1], &args);
    return tamis_cuda_k_insert(e->cuda, &args, e->stream, error);
}

static tamis_status queue_all(cuda_engine *e, int64_t rows, int32_t requests, tamis_error *error) {
    const replay_setup *setup = e->base.setup;
    TRY(queue_step(e, rows, requests, error));
    for (int32_t layer = 0; layer < setup->script->layers; layer++) {
        const tamis_layer_role *role = &setup->roles[layer];
        if (role->role == TAMIS_ROLE_NONE)
            continue;
        if (role->k_owner == layer)
            TRY(queue_insert(e, layer, error));
        if (role->role == TAMIS_ROLE_REUSE || e->flight->keys_only ||
            (role->role == TAMIS_ROLE_SOURCE && e->flight->skip_publish))
            continue;
        TRY(queue_prepare(e, layer, error));
        TRY(queue_layer(e, layer, error));
    }
    return TAMIS_OK;
}

static tamis_status graph_failed(const cuda_engine *e, const char *what, int result,
                                 tamis_error *error) {
    *error = (tamis_error){.status = TAMIS_ERROR_CUDA, .required = "CUDA_SUCCESS"};
    snprintf(error->argument, sizeof error->argument, "%s", what);
    snprintf(error->found, sizeof error->found, "%s", tamis_cuda_result_text(e->cuda, result));
    return TAMIS_ERROR_CUDA;
}

static tamis_status launch_graph(cuda_engine *e, int key, int64_t rows, int32_t requests,
                                 tamis_error *error) {
    int result = 0;
    if (!replay_graphs_has(e->graphs, key)) {
        result = replay_graphs_begin(e->graphs, e->stream);
        if (result)
            return graph_failed(e, "begin of capture", result, error);
        tamis_status status = queue_all(e, rows, requests, error);
        result = replay_graphs_end(e->graphs, key, e->stream);
        if (status != TAMIS_OK)
            return status;
        if (result)
            return graph_failed(e, "end of capture", result, error);
    }
    result = replay_graphs_launch(e->graphs, key, e->stream);
    return result ? graph_failed(e, "launch of a graph", result, error) : TAMIS_OK;
}

/* The status word as a refusal. */
static tamis_status check_plan(cuda_engine *e, tamis_error *error) {
    static const char *const words[] = {"good", "stale blocks", "other rows", "published twice"};
    uint32_t word = tamis_cuda_plan_status(e->plan), fault = word & 255;
    if (!word)
        return TAMIS_OK;
    tamis_cuda_plan_clear(e->plan);
    *error = (tamis_error){.status = TAMIS_ERROR_STAMP, .required = "a good status word"};
    snprintf(error->argument, sizeof error->argument, "layer %d", (int)(word >> 8));
    snprintf(error->found, sizeof error->found, "%s", fault < 4 ? words[fault] : "another fault");
    return TAMIS_ERROR_STAMP;
}

static tamis_status fly(cuda_engine *e, tamis_error *error) {
    const replay_script *s = e->base.setup->script;
    int64_t rows = e->flight->tokens;
    int32_t requests = e->flight->requests;
    int key = 0, captured = e->graphs && !e->flight->keys_only;
    if (captured) {
        for (rows = 1; rows < e->flight->tokens; rows *= 2)
            key += 2;
        rows = rows < s->max_tokens ? rows : s->max_tokens;
        requests = s->max_requests;
        key += e->flight->skip_publish;
    }
    TRY(send_inputs(e, error));
    TRY(send_batch(e, rows, requests, error));
    TRY(move_outputs(e, 1, error));
    if (captured)
        TRY(launch_graph(e, key, rows, requests, error));
    else
        TRY(queue_all(e, rows, requests, error));
    TRY(move_outputs(e, 0, error));
    return check_plan(e, error);
}

int replay_cuda_outcome(tamis_status status) {
    if (status == TAMIS_OK)
        return STATUS_GOOD;
    return status == TAMIS_ERROR_CUDA || status == TAMIS_ERROR_MEMORY ? STATUS_BAD : STATUS_WRONG;
}

int replay_cuda_fly(replay_engine *base, replay_flight *f, tamis_error *error) {
    cuda_engine *e = (cuda_engine *)base;
    e->flight = f;
    return replay_cuda_outcome(fly(e, error));
}

/* ---- mistakes ------------------------------------------------------------------------------ */

/* Every row of a consumer is -1 and the status word says why. */
static int nothing_selected(const replay_flight *f, const replay_script *s, int32_t layer) {
    const replay_outcome *o = &f->out[layer];
    int nothing = 1;
    for (int64_t i = 0; i < f->tokens * s->topk; i++)
        nothing &= o->positions[i] == -1 && o->slots[i] == -1;
    for (int64_t t = 0; t < f->tokens; t++)
        nothing &= o->counts[t] == 0;
    return nothing;
}

static tamis_status mistake_of_order(cuda_engine *e, int32_t mistake, int32_t source,
                                     int32_t consumer, tamis_error *error) {
    int64_t rows = e->flight->tokens;
    int32_t requests = e->flight->requests;
    TRY(queue_step(e, rows, requests, error));
    TRY(queue_prepare(e, source, error));
    if (mistake != MISTAKE_CONSUMER_FIRST)
        TRY(queue_layer(e, source, error));
    if (mistake == MISTAKE_PUBLISH_TWICE)
        TRY(queue_layer(e, source, error));
    if (mistake == MISTAKE_OLD_STEP)
        TRY(queue_step(e, rows, requests, error));
    return queue_layer(e, consumer, error);
}

static tamis_status mistake_of_k(cuda_engine *e, int32_t mistake, int32_t source,
                                 tamis_error *error) {
    tamis_layer_args args;
    TRY(queue_step(e, e->flight->tokens, e->flight->requests, error));
    replay_layer_args(e->base.setup, &e->arrays, source, &args);
    replay_mistake_k(e->base.setup, mistake, &args.k);
    return tamis_cuda_source_run(e->plan, &e->step, &args, e->stream, error);
}

int replay_cuda_err(replay_engine *base, replay_flight *f, int32_t mistake, tamis_error *error) {
    cuda_engine *e = (cuda_engine *)base;
    const replay_script *s = base->setup->script;
    int32_t source = replay_layer_of(base->setup, TAMIS_ROLE_SOURCE);
    int32_t consumer = replay_layer_of(base->setup, TAMIS_ROLE_CONSUMER);
    int of_k = mistake == MISTAKE_LAYOUT || mistake == MISTAKE_PAGE_SIZE;
    tamis_status expected = of_k ? TAMIS_ERROR_LAYOUT : TAMIS_ERROR_STAMP, status;
    *error = (tamis_error){.argument = "wrong", .required = "a source and a consumer layer"};
    if (source < 0 || consumer < 0)
        return STATUS_WRONG;
    e->flight = f;
    replay_flight_poison(f, s);
    status = send_inputs(e, error);
    if (status == TAMIS_OK)
        status = send_batch(e, f->tokens, f->requests, error);
    if (status == TAMIS_OK)
        status = move_outputs(e, 1, error);
    if (status == TAMIS_OK)
        status = of_k ? mistake_of_k(e, mistake, source, error)
                      : mistake_of_order(e, mistake, source, consumer, error);
    if (status != TAMIS_OK && status != expected)
        return replay_cuda_outcome(status);
    tamis_status moved = move_outputs(e, 0, error);
    if (moved != TAMIS_OK)
        return replay_cuda_outcome(moved);
    if (!of_k)
        status = check_plan(e, error);
    if (f->tokens == 0) /* a consumer without rows has nothing to refuse */
        status = expected;
    int untouched = of_k ? replay_flight_poisoned(f, s) : nothing_selected(f, s, consumer);
    if (status == expected && untouched)
        return STATUS_GOOD;
    *error = (tamis_error){.status = status, .argument = "wrong"};
    strcpy(error->required, tamis_status_text(expected));
    strcpy(error->found,
           status == expected ? "the same, and something selected" : tamis_status_text(status));
    return STATUS_WRONG;
}
