/* SPDX-License-Identifier: MIT */
/*
 * replay_cpu.c: flights on the CPU, as an engine runs them: k_insert for layers that own K,
 * q_prepare and a run for layers that select. Steps of few rows use the score | merge calls in
 * turns with the whole ones.
 */
#include <stdlib.h>
#include <string.h>

#include "replay.h"

enum { SPLIT_ROWS = 6 };

typedef struct cpu_engine {
    replay_engine base;
    tamis_plan *plan;
    void *memory;
    replay_arrays arrays;
    tamis_step step, old_step; /* of this flight and of the one before */
    int64_t flights;
    char machine[96];
    /* What slices of a call share. */
    replay_flight *flight;
    int32_t layer, phase;
    tamis_k_insert_args insert;
    tamis_q_prepare_args prepare;
    tamis_layer_args args;
    tamis_status *status; /* [threads] */
    tamis_error *error;
} cpu_engine;

enum {
    PHASE_INPUTS_K,
    PHASE_INPUTS_Q,
    PHASE_INSERT,
    PHASE_PREPARE,
    PHASE_SOURCE,
    PHASE_CONSUMER,
    PHASE_SCORE,
    PHASE_MERGE
};

static tamis_status run_slice(cpu_engine *e, int32_t ith, int32_t nth, tamis_error *error) {
    const tamis_backend *backend = e->base.setup->backend;
    switch (e->phase) {
    case PHASE_INSERT:
        return tamis_k_insert(backend, &e->insert, ith, nth, error);
    case PHASE_PREPARE:
        return tamis_q_prepare(backend, &e->prepare, ith, nth, error);
    case PHASE_SOURCE:
        return tamis_source_run(e->plan, &e->step, &e->args, ith, nth, error);
    case PHASE_CONSUMER:
        return tamis_consumer_run(e->plan, &e->step, &e->args, ith, nth, error);
    case PHASE_SCORE:
        return tamis_layer_score(e->plan, &e->step, &e->args, ith, nth, error);
    case PHASE_MERGE:
        return tamis_layer_merge(e->plan, &e->step, &e->args, ith, nth, error);
    default:
        replay_raw_slice(e->base.setup, e->flight, &e->arrays, e->layer, e->phase == PHASE_INPUTS_K,
                         ith, nth);
        return TAMIS_OK;
    }
}

static void work(void *context, int32_t ith, int32_t nth) {
    cpu_engine *e = context;
    e->status[ith] = run_slice(e, ith, nth, &e->error[ith]);
}

static int run_phase(cpu_engine *e, int32_t phase, tamis_error *error) {
    e->phase = phase;
    tamis_pool_run(e->base.setup->pool, work, e);
    for (int32_t i = 0; i < tamis_pool_threads(e->base.setup->pool); i++)
        if (e->status[i] != TAMIS_OK) {
            *error = e->error[i];
            return STATUS_WRONG;
        }
    return STATUS_GOOD;
}

/* ---- a flight ------------------------------------------------------------------------------ */

static int insert_keys(cpu_engine *e, int32_t layer, tamis_error *error) {
    const replay_setup *setup = e->base.setup;
    e->layer = layer;
    if (run_phase(e, PHASE_INPUTS_K, error) != STATUS_GOOD)
        return STATUS_WRONG;
    replay_insert_args(setup, &e->arrays, layer,
                       e->flight->insert_ratio[setup->script->ratio[layer] - 1], &e->insert);
    return run_phase(e, PHASE_INSERT, error);
}

static int prepare_queries(cpu_engine *e, int32_t layer, tamis_error *error) {
    e->layer = layer;
    if (run_phase(e, PHASE_INPUTS_Q, error) != STATUS_GOOD)
        return STATUS_WRONG;
    replay_prepare_args(e->base.setup, &e->arrays, &e->prepare);
    replay_layer_args(e->base.setup, &e->arrays, layer, &e->args);
    return run_phase(e, PHASE_PREPARE, error);
}

static int select_positions(cpu_engine *e, int32_t layer, tamis_error *error) {
    int consumer = e->base.setup->roles[layer].role == TAMIS_ROLE_CONSUMER;
    if (prepare_queries(e, layer, error) != STATUS_GOOD)
        return STATUS_WRONG;
    if (e->flight->tokens > SPLIT_ROWS || (e->flights + layer) % 2)
        return run_phase(e, consumer ? PHASE_CONSUMER : PHASE_SOURCE, error);
    int status = run_phase(e, PHASE_SCORE, error);
    return status == STATUS_GOOD ? run_phase(e, PHASE_MERGE, error) : status;
}

static tamis_status make_step(cpu_engine *e, replay_flight *f, tamis_error *error) {
    const replay_setup *setup = e->base.setup;
    tamis_batch batch;
    tamis_batch_default(&batch);
    e->flight = f;
    e->flights++;
    e->old_step = e->step;
    e->arrays.tokens = f->tokens;
    e->arrays.position = f->position;
    e->arrays.slot[0] = f->slot[0];
    e->arrays.slot[1] = f->slot[1];
    memcpy(e->arrays.out, f->out, sizeof f->out);
    batch.requests = f->requests;
    batch.tokens = f->tokens;
    batch.context = f->context;
    batch.query_start = f->query_start;
    for (int k = 0; k < 2; k++) {
        batch.page_table[k] = f->table[k];
        batch.page_table_stride[k] = batch.page_table_width[k] = setup->pages_each;
    }
    return tamis_step_make(e->plan, &batch, &e->step, error);
}

/* What tamis_step_is_short answers: a wrong yes would skip q, a wrong no only work. */
static int check_short(const cpu_engine *e, tamis_error *error) {
    const replay_flight *f = e->flight;
    int32_t topk = e->base.setup->script->topk;
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        int64_t longest = 0;
        for (int32_t i = 0; i < f->requests; i++)
            if (f->query_start[i + 1] > f->query_start[i] && f->context[i] / ratio > longest)
                longest = f->context[i] / ratio;
        if (tamis_step_is_short(&e->step, ratio, topk) == (longest <= topk))
            continue;
        *error = (tamis_error){.status = TAMIS_ERROR_LENGTH, .argument = "tamis_step_is_short"};
        snprintf(error->required, sizeof error->required, "%d", longest <= topk);
        snprintf(error->found, sizeof error->found, "the other");
        return STATUS_WRONG;
    }
    return STATUS_GOOD;
}

static int cpu_fly(replay_engine *base, replay_flight *f, tamis_error *error) {
    cpu_engine *e = (cpu_engine *)base;
    const replay_setup *setup = base->setup;
    int status = make_step(e, f, error) == TAMIS_OK ? check_short(e, error) : STATUS_WRONG;
    for (int32_t layer = 0; layer < setup->script->layers && status == STATUS_GOOD; layer++) {
        const tamis_layer_role *role = &setup->roles[layer];
        if (role->role == TAMIS_ROLE_NONE)
            continue;
        if (role->k_owner == layer)
            status = insert_keys(e, layer, error);
        if (role->role == TAMIS_ROLE_REUSE || f->keys_only ||
            (role->role == TAMIS_ROLE_SOURCE && f->skip_publish))
            continue;
        if (status == STATUS_GOOD)
            status = select_positions(e, layer, error);
    }
    return status;
}

/* ---- mistakes ------------------------------------------------------------------------------ */

static tamis_status one_call(cpu_engine *e, int32_t layer, const tamis_step *step,
                             tamis_error *error) {
    return e->base.setup->roles[layer].role == TAMIS_ROLE_CONSUMER
               ? tamis_consumer_run(e->plan, step, &e->args, 0, 1, error)
               : tamis_source_run(e->plan, step, &e->args, 0, 1, error);
}

static int cpu_err(replay_engine *base, replay_flight *f, int32_t mistake, tamis_error *error) {
    cpu_engine *e = (cpu_engine *)base;
    const replay_script *s = base->setup->script;
    int32_t source = replay_layer_of(base->setup, TAMIS_ROLE_SOURCE);
    int32_t consumer = replay_layer_of(base->setup, TAMIS_ROLE_CONSUMER);
    int32_t layer = mistake == MISTAKE_CONSUMER_FIRST ? consumer : source;
    tamis_status expected = TAMIS_ERROR_STAMP, found;
    *error = (tamis_error){.argument = "wrong", .required = "a source and a consumer layer"};
    if (layer < 0 || make_step(e, f, error) != TAMIS_OK ||
        prepare_queries(e, layer, error) != STATUS_GOOD)
        return STATUS_WRONG;
    if (mistake == MISTAKE_PUBLISH_TWICE && one_call(e, layer, &e->step, error) != TAMIS_OK)
        return STATUS_WRONG;
    if (mistake == MISTAKE_LAYOUT || mistake == MISTAKE_PAGE_SIZE)
        expected = TAMIS_ERROR_LAYOUT;
    replay_mistake_k(base->setup, mistake, &e->args.k);
    replay_flight_poison(f, s);
    found = one_call(e, layer, mistake == MISTAKE_OLD_STEP ? &e->old_step : &e->step, error);
    if (found == expected && replay_flight_poisoned(f, s))
        return STATUS_GOOD;
    *error = (tamis_error){.status = found, .argument = "wrong"};
    strcpy(error->required, tamis_status_text(expected));
    strcpy(error->found,
           found == expected ? "the same, and something written" : tamis_status_text(found));
    return STATUS_WRONG;
}

/* ---- memory -------------------------------------------------------------------------------- */

static int cpu_put(replay_engine *base, int32_t layer, int64_t offset, const void *bytes,
                   int64_t size, tamis_error *error) {
    (void)error;
    memcpy(((cpu_engine *)base)->arrays.k[layer] + offset, bytes, (size_t)size);
    return STATUS_GOOD;
}

static int cpu_get(replay_engine *base, int32_t layer, int64_t offset, void *bytes, int64_t size,
                   tamis_error *error) {
    (void)error;
    memcpy(bytes, ((cpu_engine *)base)->arrays.k[layer] + offset, (size_t)size);
    return STATUS_GOOD;
}

static int cpu_gather(replay_engine *base, int32_t layer, const int32_t *table, int64_t n,
                      uint8_t *codes, uint8_t *scales, tamis_error *error) {
    cpu_engine *e = (cpu_engine *)base;
    const replay_setup *setup = base->setup;
    int32_t end = (int32_t)n;
    int64_t start = 0;
    tamis_k_gather_args a;
    replay_gather_args(setup, &e->arrays, layer, table, &end, &start, n, &a);
    a.codes = codes;
    a.scales = scales;
    return tamis_k_gather(setup->backend, &a, 0, 1, error) == TAMIS_OK ? STATUS_GOOD : STATUS_WRONG;
}

static const char *cpu_machine(const replay_engine *base) {
    return ((const cpu_engine *)base)->machine;
}

static void cpu_close(replay_engine *base) {
    cpu_engine *e = (cpu_engine *)base;
    for (int i = 0; i < REPLAY_LAYERS; i++)
        free(e->arrays.k[i]);
    free(e->memory);
    replay_queries_free(&e->arrays);
    free(e->status);
    free(e->error);
    free(e);
}

static const replay_engine_calls cpu_calls = {cpu_close,  cpu_machine, cpu_put, cpu_get,
                                              cpu_gather, cpu_fly,     cpu_err};

static int cpu_allocate(cpu_engine *e, int64_t plan_bytes) {
    const replay_setup *setup = e->base.setup;
    const replay_script *s = setup->script;
    replay_arrays *a = &e->arrays;
    size_t threads = (size_t)tamis_pool_threads(setup->pool);
    e->memory = aligned_alloc(64, ((size_t)plan_bytes + 63) / 64 * 64);
    a->rope = setup->inputs->rope;
    a->norm = setup->inputs->norm;
    a->eps = &setup->inputs->eps;
    e->status = calloc(threads, sizeof *e->status);
    e->error = calloc(threads, sizeof *e->error);
    int good = replay_queries_make(a, s) && e->memory && e->status && e->error;
    for (int32_t i = 0; i < s->owners; i++) {
        size_t bytes = (size_t)(setup->pages[s->ratio[s->owner[i]] - 1] * setup->page_stride);
        uint8_t *k = a->k[s->owner[i]] = malloc(bytes);
        good = good && k;
        for (size_t b = 0; k && b < bytes; b++)
            k[b] = (uint8_t)(replay_mix(b / 8) >> b % 8 * 8);
    }
    return good;
}

replay_engine *replay_cpu_open(const replay_setup *setup, tamis_error *error) {
    cpu_engine *e = calloc(1, sizeof *e);
    int64_t bytes = tamis_plan_bytes(setup->indexer, &setup->limits, error);
    if (bytes < 0 || !e) {
        free(e);
        return NULL;
    }
    e->base = (replay_engine){&cpu_calls, setup};
    if (!cpu_allocate(e, bytes))
        *error = (tamis_error){.status = TAMIS_ERROR_MEMORY, .argument = "cache"};
    else if (tamis_plan_init(setup->indexer, &setup->limits, e->memory, bytes, &e->plan, error) ==
             TAMIS_OK) {
        snprintf(e->machine, sizeof e->machine, "tier %s, %d threads",
                 tamis_indexer_tier(setup->indexer), (int)tamis_pool_threads(setup->pool));
        return &e->base;
    }
    cpu_close(&e->base);
    return NULL;
}
