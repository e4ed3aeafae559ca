/* SPDX-License-Identifier: MIT */
/*
 * test_transport.c: transports that fail: on one rank, at any call, by losing a message, by a short
 * one, or by never coming. Every rank returns an error, soon, and no output of any is touched.
 */
#include <time.h>

#include "shards_tests.h"

enum { RANKS = 3, AT = 2, CALLS_OF_A_RUN = 4 /* agree, two tiles, agree */ };

enum {         /* what goes wrong on rank AT */
       LOST,   /* the call took place, but its result is lost */
       BROKEN, /* the rank cannot reach the others, and says so to them */
       SHORT,  /* fewer bytes than the others' */
       ABSENT, /* the rank never comes: the others' time runs out */
       WRONG,  /* a first count that no rank can have */
       GARBAGE /* nothing but such numbers */
};

typedef struct flaw {
    tamis_transport inner;
    tamis_local_group *group;
    int32_t kind, countdown; /* calls until it happens */
    int64_t last_bytes;
} flaw;

static int32_t flawed(void *context, const void *send, void *receive, int64_t bytes) {
    flaw *f = context;
    const tamis_transport *t = &f->inner;
    f->last_bytes = bytes;
    if (f->countdown-- != 0) {
        return t->allgather(t->context, send, receive, bytes);
    }
    switch (f->kind) {
    case LOST:
        t->allgather(t->context, send, receive, bytes);
        memset(receive, 0x5A, (size_t)(bytes * RANKS));
        return 5;
    case BROKEN:
        tamis_local_group_break(f->group);
        return 6;
    case SHORT:
        return t->allgather(t->context, send, receive, bytes - 8);
    case ABSENT:
        return 7;
    default:
        memset((uint8_t *)(uintptr_t)send, 0x7F, f->kind == WRONG ? 4 : (size_t)bytes);
        return t->allgather(t->context, send, receive, bytes);
    }
}

static void leave_flawed(void *context) {
    const flaw *f = context;
    tamis_local_group_break(f->group);
}

static void start(member *m) {
    m->status =
        tamis_shards_init(m->indexer, &m->options, m->memory, m->bytes, &m->shards, &m->error);
    if (m->status == TAMIS_OK) {
        m->status = tamis_shards_step(m->shards, &m->batch, &m->error);
    }
}

static void run_source(member *m) {
    member_layer(m, LAYER_SOURCE);
}

static void poisoned(const member *m) {
    const outcome *o = &m->out[LAYER_SOURCE];
    const tamis_selection *s = &o->selection;
    untouched(s->positions, 0, o->rows * s->positions_stride, 4, "positions");
    untouched(s->slots, 0, o->rows * s->slots_stride, 8, "slots");
    untouched(s->scores, 0, o->rows * s->scores_stride, 4, "scores");
    untouched(s->counts, 0, o->rows, 4, "counts");
    untouched(o->blocks, 0, o->rows * o->blocks_stride, 4, "blocks");
}

static const shape small = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};
static const request requests[] = {{300, 3}, {131, 5}};

/* A group whose rank AT has the flaw at its `countdown`th call after the step. */
static group *flawed_group(const layers *l, const tamis_indexer *indexer, flaw *f, int32_t kind,
                           int32_t countdown, int64_t timeout_ms) {
    split s = {SPLIT_RANDOM, RANKS, 1, 3};
    tamis_error error = {0};
    group *g = group_make(l, indexer, &s, 1, l->batch.tokens, 4);
    tamis_local_group_destroy(g->local);
    succeeded(tamis_local_group_create(RANKS, timeout_ms, &g->local, &error), &error, __LINE__);
    for (int32_t k = 0; k < RANKS; k++) {
        succeeded(tamis_local_group_transport(g->local, k, &g->member[k].transport, &error), &error,
                  __LINE__);
    }
    *f = (flaw){g->member[AT].transport, g->local, kind, -1, 0};
    g->member[AT].transport.context = f;
    g->member[AT].transport.allgather = flawed;
    g->member[AT].transport.leave = kind == LOST ? leave_flawed : NULL;
    group_each(g, start);
    for (int32_t k = 0; k < RANKS; k++) {
        succeeded(g->member[k].status, &g->member[k].error, __LINE__);
    }
    f->countdown = countdown;
    return g;
}

static void fails_on_all(const layers *l, const tamis_indexer *indexer, int32_t kind,
                         int32_t countdown) {
    flaw f;
    group *g = flawed_group(l, indexer, &f, kind, countdown, kind == ABSENT ? 300 : 60000);
    group_each(g, run_source);
    for (int32_t k = 0; k < RANKS; k++) {
        const member *m = &g->member[k];
        if (m->status != (kind >= WRONG ? TAMIS_ERROR_RANKS : TAMIS_ERROR_TRANSPORT)) {
            fail_msg("flaw %d at call %d, rank %d: status %d", kind, countdown, k, m->status);
        }
        poisoned(m);
    }
    group_each(g, run_source); /* what a broken group does from then on: fail at once */
    for (int32_t k = 0; k < RANKS; k++) {
        assert_int_equal(g->member[k].status, kind >= WRONG ? TAMIS_OK : TAMIS_ERROR_TRANSPORT);
    }
    group_free(g);
    release();
}

void shards_transport_fails(void **state) {
    (void)state;
    for (int32_t kind = LOST; kind <= GARBAGE; kind++) {
        for (int32_t call = 0; call < CALLS_OF_A_RUN; call++) {
            if (kind == LOST && call == CALLS_OF_A_RUN - 1) {
                continue; /* nobody can tell the others that the last message was lost */
            }
            seed(30);
            layers *l = layers_make(small, requests, COUNT(requests));
            tamis_indexer *indexer = group_indexer(l, "ref", RANKS);
            fails_on_all(l, indexer, kind, call);
            tamis_indexer_destroy(indexer);
        }
    }
}

/* A rank that is late by less than the time that others wait. */
static void run_late(member *m) {
    if (m->rank == 0) {
        nanosleep(&(struct timespec){0, 50 * 1000000}, NULL);
    }
    run_source(m);
}

void shards_wait_for_each_other(void **state) {
    (void)state;
    seed(31);
    layers *l = layers_make(small, requests, COUNT(requests));
    tamis_indexer *indexer = group_indexer(l, "ref", RANKS);
    outcome want = layers_expect(l, LAYER_SOURCE, l->batch.tokens);
    flaw f;
    group *g = flawed_group(l, indexer, &f, LOST, -1, 20000);
    group_each(g, run_late);
    for (int32_t k = 0; k < RANKS; k++) {
        succeeded(g->member[k].status, &g->member[k].error, __LINE__);
        member_same(&g->member[k], LAYER_SOURCE, &want, "late");
    }
    assert_int_equal(f.last_bytes % 8, 0);
    group_free(g);
    tamis_indexer_destroy(indexer);
}
