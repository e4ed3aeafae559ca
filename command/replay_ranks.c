/* SPDX-License-Identifier: MIT */
/*
 * replay_ranks.c: flights by a context-parallel group whose ranks are threads of this process. Each
 * page of the world belongs to one rank, picked by a hash, so that a request's blocks lie spread
 * over the ranks in no order; a rank keeps K of its own pages and junk in all others.
 */
#include <string.h>

#include "replay_ranks.h"

/* ---- a rank's view of a flight ------------------------------------------------------------- */

/* Own pages of a request, in order, and the intervals of blocks that they are. */
static void take_request(const ranks_engine *e, replay_rank *rank, int32_t request, int k) {
    const replay_setup *setup = e->base.setup;
    const replay_flight *f = e->flight;
    int32_t blocks = setup->page_size / (setup->script->source < 0 ? 8 : setup->script->block_size);
    const int32_t *row = f->table[k] + request * setup->pages_each;
    int32_t *own = rank->table[k] + request * setup->pages_each;
    int64_t n = f->context[request] / (k + 1), at = rank->start[k][request], used = 0;
    rank->held[k][request] = 0;
    for (int64_t c = 0; c * setup->page_size < n; c++) {
        int64_t in_page = n - c * setup->page_size;
        if (replay_ranks_owner(e, k, row[c]) != rank->transport.rank)
            continue;
        own[used++] = row[c];
        rank->held[k][request] += in_page < setup->page_size ? in_page : setup->page_size;
        if (at > rank->start[k][request] && rank->last[k][at - 1] == c * blocks) {
            rank->last[k][at - 1] += blocks;
            continue;
        }
        rank->first[k][at] = (int32_t)c * blocks;
        rank->last[k][at++] = (int32_t)(c + 1) * blocks;
    }
    for (int64_t c = used; c < setup->pages_each; c++)
        own[c] = row[c];
    rank->start[k][request + 1] = at;
}

static void take_flight(const ranks_engine *e, replay_rank *rank) {
    const replay_flight *f = e->flight;
    for (int k = 0; k < 2; k++) {
        rank->start[k][0] = 0;
        for (int32_t i = 0; i < f->requests; i++)
            take_request(e, rank, i, k);
        for (int64_t t = 0; t < f->tokens; t++) {
            int64_t slot = f->slot[k][t], page = slot / e->base.setup->page_size;
            rank->slot[k][t] =
                slot >= 0 && replay_ranks_owner(e, k, page) == rank->transport.rank ? slot : -1;
        }
    }
    rank->arrays.tokens = f->tokens;
    rank->arrays.position = f->position;
}

static tamis_status make_step(const ranks_engine *e, replay_rank *rank) {
    const replay_setup *setup = e->base.setup;
    const replay_flight *f = e->flight;
    tamis_shards_batch batch;
    tamis_shards_batch_default(&batch);
    take_flight(e, rank);
    batch.batch.requests = f->requests;
    batch.batch.tokens = f->tokens;
    batch.batch.context = f->context;
    batch.batch.query_start = f->query_start;
    for (int k = 0; k < 2; k++) {
        tamis_shard *shard = &batch.shard[k];
        batch.batch.page_table[k] = rank->table[k];
        batch.batch.page_table_stride[k] = batch.batch.page_table_width[k] = setup->pages_each;
        tamis_shard_default(shard);
        shard->rank = rank->transport.rank;
        shard->ranks = e->count;
        shard->block_size = setup->script->source < 0 ? 8 : setup->script->block_size;
        shard->requests = f->requests;
        shard->start = rank->start[k];
        shard->first = rank->first[k];
        shard->last = rank->last[k];
        batch.held[k] = rank->held[k];
    }
    for (int k = 0; k < 2 && e->mistake == MISTAKE_SPLIT && rank->transport.rank == 0; k++)
        rank->held[k][0]++; /* as a page table made for another split has it */
    return tamis_shards_step(rank->shards, &batch, &rank->error);
}

/* ---- calls that every rank makes ----------------------------------------------------------- */

enum { PHASE_STEP, PHASE_INSERT, PHASE_RUN, PHASE_INPUTS_K, PHASE_INPUTS_Q, PHASE_PREPARE };

static tamis_status run_rank(const ranks_engine *e, replay_rank *rank) {
    const replay_setup *setup = e->base.setup;
    if (e->phase == PHASE_STEP)
        return make_step(e, rank);
    if (e->phase == PHASE_INSERT) {
        tamis_k_insert_args insert;
        replay_insert_args(setup, &rank->arrays, e->layer,
                           e->flight->insert_ratio[setup->script->ratio[e->layer] - 1], &insert);
        return tamis_k_insert(setup->backend, &insert, 0, 1, &rank->error);
    }
    tamis_layer_args args;
    replay_layer_args(setup, &rank->arrays, e->layer, &args);
    replay_mistake_k(setup, e->mistake, &args.k);
    return setup->roles[e->layer].role == TAMIS_ROLE_CONSUMER
               ? tamis_shards_consumer_run(rank->shards, &args, &rank->error)
               : tamis_shards_source_run(rank->shards, &args, &rank->error);
}

static void rank_work(void *context, int32_t ith, int32_t nth) {
    ranks_engine *e = context;
    (void)nth;
    e->rank[ith].status = run_rank(e, &e->rank[ith]);
}

/* The first error of a rank's own; a rank that only names another comes after it. */
static int run_ranks(ranks_engine *e, int32_t phase, tamis_error *error) {
    const replay_rank *failed = NULL;
    e->phase = phase;
    tamis_pool_run(e->threads, rank_work, e);
    for (int32_t i = 0; i < e->count; i++)
        if (e->rank[i].status != TAMIS_OK && (!failed || failed->status == TAMIS_ERROR_RANKS))
            failed = &e->rank[i];
    if (!failed)
        return STATUS_GOOD;
    *error = failed->error;
    return STATUS_WRONG;
}

/* ---- queries, once for all ranks ----------------------------------------------------------- */

static void input_work(void *context, int32_t ith, int32_t nth) {
    ranks_engine *e = context;
    tamis_error error;
    if (e->phase != PHASE_PREPARE) {
        replay_raw_slice(e->base.setup, e->flight, &e->arrays, e->layer, e->phase == PHASE_INPUTS_K,
                         ith, nth);
        return;
    }
    tamis_status status = tamis_q_prepare(e->base.setup->backend, &e->prepare, ith, nth, &error);
    if (ith == 0) { /* every slice checks the same arguments */
        e->prepared = status;
        e->error = error;
    }
}

static void run_inputs(ranks_engine *e, int32_t phase) {
    e->phase = phase;
    tamis_pool_run(e->base.setup->pool, input_work, e);
}

static int select_positions(ranks_engine *e, tamis_error *error) {
    run_inputs(e, PHASE_INPUTS_Q);
    e->arrays.tokens = e->flight->tokens;
    e->arrays.position = e->flight->position;
    replay_prepare_args(e->base.setup, &e->arrays, &e->prepare);
    run_inputs(e, PHASE_PREPARE);
    if (e->prepared != TAMIS_OK) {
        *error = e->error;
        return STATUS_WRONG;
    }
    return run_ranks(e, PHASE_RUN, error);
}

/* ---- outcomes ------------------------------------------------------------------------------ */

static int differs(const ranks_engine *e, const char *what, int32_t rank, tamis_error *error) {
    *error = (tamis_error){.status = TAMIS_ERROR_RANKS, .required = "what rank 0 selected"};
    snprintf(error->argument, sizeof error->argument, "layer %d, rank %d: %s", (int)e->layer,
             (int)rank, what);
    strcpy(error->found, "another");
    return STATUS_WRONG;
}

/* Every rank has the same lists; each selected position has one rank that knows its slot. */
static int join_outcomes(ranks_engine *e, tamis_error *error) {
    const replay_script *s = e->base.setup->script;
    replay_outcome *out = &e->flight->out[e->layer];
    size_t tokens = (size_t)e->flight->tokens, cells = tokens * (size_t)s->topk;
    for (int32_t i = 0; i < e->count; i++) {
        const replay_outcome *o = &e->rank[i].arrays.out[e->layer];
        if (i == 0) {
            memcpy(out->positions, o->positions, cells * sizeof *o->positions);
            memcpy(out->scores, o->scores, cells * sizeof *o->scores);
            memcpy(out->counts, o->counts, tokens * sizeof *o->counts);
            memcpy(out->slots, o->slots, cells * sizeof *o->slots);
            if (out->blocks)
                memcpy(out->blocks, o->blocks, tokens * (size_t)s->blocks * sizeof *o->blocks);
            continue;
        }
        if (memcmp(out->positions, o->positions, cells * sizeof *o->positions) != 0 ||
            memcmp(out->scores, o->scores, cells * sizeof *o->scores) != 0 ||
            memcmp(out->counts, o->counts, tokens * sizeof *o->counts) != 0)
            return differs(e, "selection", i, error);
        if (out->blocks &&
            memcmp(out->blocks, o->blocks, tokens * (size_t)s->blocks * sizeof *o->blocks) != 0)
            return differs(e, "blocks", i, error);
        for (size_t c = 0; c < cells; c++) {
            if (out->slots[c] >= 0 && o->slots[c] >= 0)
                return differs(e, "a slot of a position with another owner", i, error);
            out->slots[c] = o->slots[c] > out->slots[c] ? o->slots[c] : out->slots[c];
        }
    }
    return STATUS_GOOD;
}

int replay_ranks_fly(replay_engine *base, replay_flight *f, tamis_error *error) {
    ranks_engine *e = (ranks_engine *)base;
    const replay_setup *setup = base->setup;
    e->flight = f;
    e->mistake = MISTAKE_NONE;
    int status = run_ranks(e, PHASE_STEP, error);
    for (int32_t layer = 0; layer < setup->script->layers && status == STATUS_GOOD; layer++) {
        const tamis_layer_role *role = &setup->roles[layer];
        e->layer = layer;
        if (role->role == TAMIS_ROLE_NONE)
            continue;
        if (role->k_owner == layer) {
            run_inputs(e, PHASE_INPUTS_K);
            status = run_ranks(e, PHASE_INSERT, error);
        }
        if (role->role == TAMIS_ROLE_REUSE || f->keys_only ||
            (role->role == TAMIS_ROLE_SOURCE && f->skip_publish))
            continue;
        if (status == STATUS_GOOD)
            status = select_positions(e, error);
        if (status == STATUS_GOOD)
            status = join_outcomes(e, error);
    }
    return status;
}

/* ---- mistakes ------------------------------------------------------------------------------ */

static void poison(ranks_engine *e) {
    replay_flight_poison(e->flight, e->base.setup->script);
    size_t tokens = (size_t)e->flight->tokens;
    const replay_script *s = e->base.setup->script;
    for (int32_t i = 0; i < e->count; i++)
        for (int32_t n = 0; n < s->indexes; n++) {
            const replay_outcome *from = &e->flight->out[s->index[n]];
            replay_outcome *to = &e->rank[i].arrays.out[s->index[n]];
            memcpy(to->positions, from->positions, tokens * (size_t)s->topk * 4);
            memcpy(to->slots, from->slots, tokens * (size_t)s->topk * 8);
            memcpy(to->scores, from->scores, tokens * (size_t)s->topk * 4);
            memcpy(to->counts, from->counts, tokens * 4);
            if (to->blocks)
                memcpy(to->blocks, from->blocks, tokens * (size_t)s->blocks * 4);
        }
}

/* A rank whose page table is another split's: it says so itself, and all others that it did. */
static int err_split(ranks_engine *e, tamis_error *error) {
    e->mistake = MISTAKE_SPLIT;
    int status = run_ranks(e, PHASE_STEP, error), good = status == STATUS_WRONG;
    e->mistake = MISTAKE_NONE;
    for (int32_t i = 0; i < e->count; i++)
        good = good && e->rank[i].status == (i == 0 ? TAMIS_ERROR_LENGTH : TAMIS_ERROR_RANKS);
    if (good)
        return STATUS_GOOD;
    *error = (tamis_error){.status = e->rank[0].status, .argument = "wrong split"};
    strcpy(error->required, tamis_status_text(TAMIS_ERROR_LENGTH));
    strcpy(error->found, tamis_status_text(e->rank[0].status));
    return STATUS_WRONG;
}

/* All ranks refuse, with nothing written anywhere. */
int replay_ranks_err(replay_engine *base, replay_flight *f, int32_t mistake, tamis_error *error) {
    ranks_engine *e = (ranks_engine *)base;
    const replay_setup *setup = base->setup;
    int32_t source = replay_layer_of(setup, TAMIS_ROLE_SOURCE);
    int32_t consumer = replay_layer_of(setup, TAMIS_ROLE_CONSUMER);
    int of_k = mistake == MISTAKE_LAYOUT || mistake == MISTAKE_PAGE_SIZE;
    tamis_status expected = of_k ? TAMIS_ERROR_LAYOUT : TAMIS_ERROR_STAMP;
    replay_outcome out[REPLAY_LAYERS];
    int good = 1;
    *error = (tamis_error){.argument = "wrong", .required = "a source and a consumer layer"};
    if (source < 0 || consumer < 0)
        return STATUS_WRONG;
    e->flight = f;
    if (mistake == MISTAKE_SPLIT)
        return err_split(e, error);
    e->mistake = MISTAKE_NONE;
    e->layer = source;
    int status = run_ranks(e, PHASE_STEP, error);
    if (status == STATUS_GOOD && (mistake == MISTAKE_PUBLISH_TWICE || mistake == MISTAKE_OLD_STEP))
        status = select_positions(e, error);
    if (status == STATUS_GOOD && mistake == MISTAKE_OLD_STEP)
        status = run_ranks(e, PHASE_STEP, error);
    if (status != STATUS_GOOD)
        return status;
    poison(e);
    e->mistake = mistake;
    e->layer = of_k || mistake == MISTAKE_PUBLISH_TWICE ? source : consumer;
    select_positions(e, error);
    e->mistake = MISTAKE_NONE;
    memcpy(out, f->out, sizeof out);
    for (int32_t i = 0; i < e->count; i++) {
        memcpy(f->out, e->rank[i].arrays.out, sizeof f->out);
        good = good && e->rank[i].status == expected && replay_flight_poisoned(f, setup->script);
    }
    memcpy(f->out, out, sizeof out);
    if (good)
        return STATUS_GOOD;
    *error = (tamis_error){.status = e->rank[0].status, .argument = "wrong"};
    strcpy(error->required, tamis_status_text(expected));
    strcpy(error->found, tamis_status_text(e->rank[0].status));
    return STATUS_WRONG;
}
