/* SPDX-License-Identifier: MIT */
/*
 * test_refusals.c: what ranks refuse, together: a fault of one rank, in its arguments, its shard or
 * its transport, is an error on every rank, and no output of any rank is touched.
 */
#include "shards_tests.h"

enum { RANKS = 3, AT = 1 /* the rank at fault */ };

static const shape small = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};
static const request requests[] = {{300, 3}, {131, 5}};
static const split by_blocks = {SPLIT_BLOCKS, RANKS, 1, 0};

static group *good_group(const layers *l, const tamis_indexer *indexer) {
    return group_make(l, indexer, &by_blocks, 1, l->batch.tokens, 4);
}

static void poisoned(const void *bytes, int64_t n) {
    untouched(bytes, 0, n, 1, "an output of a refused call");
}

static void outputs_untouched(const group *g) {
    for (int32_t k = 0; k < g->ranks; k++) {
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            const outcome *o = &g->member[k].out[layer];
            const tamis_selection *s = &o->selection;
            if (o->rows > 0) {
                poisoned(s->positions, o->rows * s->positions_stride * 4);
                poisoned(s->slots, o->rows * s->slots_stride * 8);
                poisoned(s->scores, o->rows * s->scores_stride * 4);
                poisoned(s->counts, o->rows * 4);
            }
            if (o->blocks) {
                poisoned(o->blocks, o->rows * o->blocks_stride * 4);
            }
        }
    }
}

/* The rank at fault says what is wrong; the others say which rank. */
static void refused_by_all(const group *g, tamis_status code, const char *name) {
    for (int32_t k = 0; k < g->ranks; k++) {
        const member *m = &g->member[k];
        tamis_status want = k == AT ? code : TAMIS_ERROR_RANKS;
        if (m->status != want || m->error.status != want ||
            !strstr(m->error.argument, k == AT ? name : "rank 1")) {
            fail_msg("rank %d: status %d, %s: required %s, found %s; wanted %d, %s", k, m->status,
                     m->error.argument, m->error.required, m->error.found, want, name);
        }
    }
}

/* All ranks find the same fault between them. */
static void refused_alike(const group *g, tamis_status code, const char *name) {
    for (int32_t k = 0; k < g->ranks; k++) {
        const member *m = &g->member[k];
        if (m->status != code || !strstr(m->error.argument, name)) {
            fail_msg("rank %d: status %d, %s: required %s, found %s; wanted %d, %s", k, m->status,
                     m->error.argument, m->error.required, m->error.found, code, name);
        }
    }
}

/* ---- creation ---------------------------------------------------------------------- */

static void init(member *m) {
    m->status =
        tamis_shards_init(m->indexer, &m->options, m->memory, m->bytes, &m->shards, &m->error);
    if (m->status != TAMIS_OK) {
        assert_null(m->shards);
    }
}

/* A good group whose rank AT has one change. */
#define INIT_REFUSED(check, change, code, name)                                                    \
    do {                                                                                           \
        group *g = good_group(l, indexer);                                                         \
        member *m = &g->member[AT];                                                                \
        change;                                                                                    \
        group_each(g, init);                                                                       \
        check(g, code, name);                                                                      \
        group_free(g);                                                                             \
    } while (0)

void shards_creation_is_refused(void **state) {
    (void)state;
    layers *l = layers_make(small, requests, COUNT(requests));
    tamis_indexer *indexer = group_indexer(l, "ref", RANKS);
    tamis_indexer *two = group_indexer(l, "ref", 2);
    shape other_shape = small;
    other_shape.topk = 17;
    layers *other = layers_make(other_shape, requests, COUNT(requests));
    tamis_indexer *other_topk = group_indexer(other, "ref", RANKS);
    other_shape = small;
    other_shape.numerics = TAMIS_NUMERICS_BF16;
    layers *rounded = layers_make(other_shape, requests, COUNT(requests));
    tamis_indexer *other_numerics = group_indexer(rounded, "ref", RANKS);
    other_shape = small;
    other_shape.source_ratio = 2;
    layers *swapped = layers_make(other_shape, requests, COUNT(requests));
    tamis_indexer *other_ratios = group_indexer(swapped, "ref", RANKS);
    tamis_pool *pool;
    tamis_error error;
    succeeded(tamis_pool_create(2, &pool, &error), &error, __LINE__);

    /* one rank lacks something */
    INIT_REFUSED(refused_by_all, m->indexer = two, TAMIS_ERROR_REQUIREMENT, "context_parallel");
    INIT_REFUSED(refused_by_all, m->indexer = NULL, TAMIS_ERROR_ARGUMENT, "indexer");
    INIT_REFUSED(refused_by_all, m->options.tile_rows = 0, TAMIS_ERROR_LIMIT, "tile_rows");
    INIT_REFUSED(refused_by_all, m->options.max_intervals = 0, TAMIS_ERROR_LIMIT, "max_intervals");
    INIT_REFUSED(refused_by_all, m->limits.threads = 0, TAMIS_ERROR_LIMIT, "threads");
    INIT_REFUSED(refused_by_all, m->options.limits = NULL, TAMIS_ERROR_ARGUMENT, "limits");
    INIT_REFUSED(refused_by_all, m->options.pool = pool, TAMIS_ERROR_LIMIT, "pool");
    INIT_REFUSED(refused_by_all, m->bytes = 64, TAMIS_ERROR_WORKSPACE, "bytes");
    INIT_REFUSED(refused_by_all, m->memory = (uint8_t *)m->memory + 8, TAMIS_ERROR_WORKSPACE,
                 "memory");
    /* ranks differ */
    INIT_REFUSED(refused_alike, m->indexer = other_topk, TAMIS_ERROR_RANKS, "index_topk");
    INIT_REFUSED(refused_alike, m->indexer = other_numerics, TAMIS_ERROR_RANKS, "numerics");
    INIT_REFUSED(refused_alike, m->indexer = other_ratios, TAMIS_ERROR_RANKS, "layers");
    INIT_REFUSED(refused_alike, m->options.tile_rows = 3, TAMIS_ERROR_RANKS, "tile_rows");
    INIT_REFUSED(refused_alike, m->options.max_intervals = 8191, TAMIS_ERROR_RANKS, "intervals");
    INIT_REFUSED(refused_alike, m->limits.max_requests = 5, TAMIS_ERROR_RANKS, "max_requests");
    INIT_REFUSED(refused_alike, m->limits.draft_tokens = 4, TAMIS_ERROR_RANKS, "rows");
    tamis_pool_destroy(pool);
    tamis_indexer_destroy(indexer);
    tamis_indexer_destroy(two);
    tamis_indexer_destroy(other_topk);
    tamis_indexer_destroy(other_numerics);
    tamis_indexer_destroy(other_ratios);
}

static int32_t not_called(void *context, const void *send, void *receive, int64_t bytes) {
    (void)context;
    (void)send;
    (void)receive;
    fail_msg("a transport that is invalid was used for %d bytes", (int)bytes);
    return 0;
}

/* A rank whose transport cannot be used returns at once, having sent nothing. */
void shards_transport_is_refused(void **state) {
    (void)state;
    layers *l = layers_make(small, requests, COUNT(requests));
    tamis_indexer *indexer = group_indexer(l, "ref", RANKS);
    tamis_transport t = {sizeof t, 0, RANKS, 0, NULL, not_called, NULL};
    member m;
    member_make(&m, l, indexer, &by_blocks, 0, 1, l->batch.tokens);
    member_connect(&m, &t, 4);
#define TRANSPORT_REFUSED(change, code, name)                                                      \
    do {                                                                                           \
        member_connect(&m, &t, 4);                                                                 \
        change;                                                                                    \
        init(&m);                                                                                  \
        assert_int_equal(m.status, code);                                                          \
        assert_non_null(strstr(m.error.argument, name));                                           \
        assert_int_equal(tamis_shards_bytes(indexer, &m.options, NULL), -1);                       \
    } while (0)
    TRANSPORT_REFUSED(m.transport.struct_size = 8, TAMIS_ERROR_STRUCT_SIZE, "transport.struct");
    TRANSPORT_REFUSED(m.transport.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "transport.reserved");
    TRANSPORT_REFUSED(m.transport.ranks = 0, TAMIS_ERROR_LIMIT, "transport.ranks");
    TRANSPORT_REFUSED(m.transport.ranks = 65, TAMIS_ERROR_LIMIT, "transport.ranks");
    TRANSPORT_REFUSED(m.transport.rank = -1, TAMIS_ERROR_LIMIT, "transport.rank");
    TRANSPORT_REFUSED(m.transport.rank = RANKS, TAMIS_ERROR_LIMIT, "transport.rank");
    TRANSPORT_REFUSED(m.transport.allgather = NULL, TAMIS_ERROR_ARGUMENT, "allgather");
    TRANSPORT_REFUSED(m.options.transport = NULL, TAMIS_ERROR_ARGUMENT, "transport");
    TRANSPORT_REFUSED(m.options.struct_size = 0, TAMIS_ERROR_STRUCT_SIZE, "options.struct_size");
    tamis_local_group *none;
    tamis_error e;
    assert_int_equal(tamis_local_group_create(0, 0, &none, &e), TAMIS_ERROR_ARGUMENT);
    assert_int_equal(tamis_local_group_create(65, 0, &none, &e), TAMIS_ERROR_ARGUMENT);
    assert_int_equal(tamis_local_group_create(2, -1, &none, &e), TAMIS_ERROR_ARGUMENT);
    assert_null(none);
    tamis_indexer_destroy(indexer);
}

/* ---- steps ------------------------------------------------------------------------- */

static void start(member *m) {
    init(m);
    if (m->status == TAMIS_OK) {
        m->status = tamis_shards_step(m->shards, &m->batch, &m->error);
    }
}

static void step(member *m) {
    m->status = tamis_shards_step(m->shards, &m->batch, &m->error);
}

static void run_source(member *m) {
    member_layer(m, LAYER_SOURCE);
}

static int32_t layer_of_at, layer_of_others;
static void run_layers(member *m) {
    member_layer(m, m->rank == AT ? layer_of_at : layer_of_others);
}

static void call_layers(group *g, int32_t at, int32_t others) {
    layer_of_at = at;
    layer_of_others = others;
    group_each(g, run_layers);
}

static void all_ok(const group *g) {
    for (int32_t k = 0; k < g->ranks; k++) {
        succeeded(g->member[k].status, &g->member[k].error, __LINE__);
    }
}

static group *stepped_group(const layers *l, const tamis_indexer *indexer) {
    group *g = good_group(l, indexer);
    group_each(g, start);
    all_ok(g);
    return g;
}

typedef void check_group(const group *g, tamis_status code, const char *name);

/* The next step is refused; the one before it is still good. */
static void step_is_refused(group *g, check_group *check, tamis_status code, const char *name,
                            const outcome *want) {
    group_each(g, step);
    check(g, code, name);
    outputs_untouched(g);
    group_each(g, run_source);
    all_ok(g);
    for (int32_t k = 0; k < RANKS; k++) {
        member_same(&g->member[k], LAYER_SOURCE, want, name);
    }
    group_free(g);
}

/* A step with one change on rank AT. */
#define STEP_REFUSED(check, change, code, name)                                                    \
    do {                                                                                           \
        group *g = stepped_group(l, indexer);                                                      \
        member *m = &g->member[AT];                                                                \
        tamis_shard *shard = &m->batch.shard[0];                                                   \
        (void)shard;                                                                               \
        change;                                                                                    \
        step_is_refused(g, check, code, name, &want);                                              \
    } while (0)

static int32_t *changed(const int32_t *list, int64_t n, int64_t i, int32_t value) {
    int32_t *copy = fresh(n * 4);
    memcpy(copy, list, (size_t)n * 4);
    copy[i] = value;
    return copy;
}

/* The first block of request 0 becomes its neighbour's as well. */
static void overlap(tamis_shard *s, int64_t n) {
    s->last = changed(s->last, n, 0, s->last[0] + 1);
}

static int64_t longer_held[MAX_TEST_REQUESTS], huge_context[] = {301, 131};
static int32_t other_starts[] = {0, 2, 8};

/* Ranks' rows that do not match their page tables: refused before a row is read. */
void pitfall_20_rows_match_their_page_table(void **state) {
    (void)state;
    seed(7);
    layers *l = layers_make(small, requests, COUNT(requests));
    tamis_indexer *indexer = group_indexer(l, "ref", RANKS);
    outcome want = layers_expect(l, LAYER_SOURCE, l->batch.tokens);
    int64_t own = (300 / 8 + 2) / 3 * 8; /* positions of request 0 on rank 1, roughly */
    /* a table that was made for another split, or for all of K */
    STEP_REFUSED(refused_by_all, m->part[0].held[0] = 300, TAMIS_ERROR_LENGTH, "held[0]");
    STEP_REFUSED(refused_by_all, m->part[0].held[1]--, TAMIS_ERROR_LENGTH, "held[1]");
    STEP_REFUSED(refused_by_all, m->batch.held[0] = longer_held, TAMIS_ERROR_LENGTH, "held[0]");
    STEP_REFUSED(refused_by_all, m->batch.held[0] = NULL, TAMIS_ERROR_ARGUMENT, "held");
    STEP_REFUSED(refused_by_all, m->batch.batch.page_table_width[0] = own / 16 - 1,
                 TAMIS_ERROR_LENGTH, "page_table[0]");
    STEP_REFUSED(refused_by_all, m->batch.batch.page_table[0] = NULL, TAMIS_ERROR_ARGUMENT,
                 "page_table");
    /* a shard of another rank, group, block size or batch */
    STEP_REFUSED(refused_by_all, shard->rank = 0, TAMIS_ERROR_SHARD, "shard.rank");
    STEP_REFUSED(refused_by_all, shard->ranks = 4, TAMIS_ERROR_SHARD, "shard.ranks");
    STEP_REFUSED(refused_by_all, shard->ranks = 65, TAMIS_ERROR_ARGUMENT, "shard.ranks");
    STEP_REFUSED(refused_by_all, shard->block_size = 16, TAMIS_ERROR_SHARD, "shard.block_size");
    STEP_REFUSED(refused_by_all, shard->block_size = 12, TAMIS_ERROR_ARGUMENT, "shard.block_size");
    STEP_REFUSED(refused_by_all, shard->requests = 1, TAMIS_ERROR_SHARD, "shard.requests");
    STEP_REFUSED(refused_by_all, shard->start = NULL, TAMIS_ERROR_ARGUMENT, "shard.start");
    STEP_REFUSED(refused_by_all, shard->struct_size = 1, TAMIS_ERROR_STRUCT_SIZE, "shard.struct");
    tamis_indexer_destroy(indexer);
    release();
}

/* Intervals of rank AT that are no shard, or that do not fit the other ranks'. */
void shards_that_do_not_fit(void **state) {
    (void)state;
    seed(8);
    layers *l = layers_make(small, requests, COUNT(requests));
    tamis_indexer *indexer = group_indexer(l, "ref", RANKS);
    outcome want = layers_expect(l, LAYER_SOURCE, l->batch.tokens);
    group *example = good_group(l, indexer);
    int64_t n = example->member[AT].batch.shard[0].start[2];
    group_free(example);
    STEP_REFUSED(refused_by_all, shard->last = changed(shard->last, n, 1, shard->first[1]),
                 TAMIS_ERROR_SHARD, "shard.last[1]");
    STEP_REFUSED(refused_by_all, shard->first = changed(shard->first, n, 1, shard->first[0]),
                 TAMIS_ERROR_SHARD, "shard.first[1]");
    STEP_REFUSED(refused_by_all, shard->last = changed(shard->last, n, n - 1, INT32_MAX),
                 TAMIS_ERROR_SHARD, "shard.last");
    /* held follows the shard, as a rank that is sure of its own would have it */
    STEP_REFUSED(refused_alike, (overlap(shard, n), m->part[0].held[0] += 8), TAMIS_ERROR_SHARD,
                 "request 0 block 2");
    STEP_REFUSED(refused_alike,
                 (shard->first = changed(shard->first, n, 0, 0), m->part[0].held[0] += 8),
                 TAMIS_ERROR_SHARD, "request 0 block 0");
    STEP_REFUSED(refused_alike,
                 (shard->last = changed(shard->last, n, 2, shard->last[2] + 1),
                  shard->first = changed(shard->first, n, 2, shard->first[2] + 1)),
                 TAMIS_ERROR_SHARD, "request 0 block 7");
    group *g = stepped_group(l, indexer); /* a good step after a refused one */
    tamis_shard good = g->member[AT].batch.shard[0];
    overlap(&g->member[AT].batch.shard[0], n);
    g->member[AT].part[0].held[0] += 8;
    group_each(g, step);
    refused_alike(g, TAMIS_ERROR_SHARD, "request 0 block 2");
    g->member[AT].batch.shard[0] = good;
    g->member[AT].part[0].held[0] -= 8;
    group_each(g, step);
    all_ok(g);
    call_layers(g, LAYER_SOURCE, LAYER_SOURCE);
    all_ok(g);
    for (int32_t k = 0; k < RANKS; k++) {
        tamis_shards_counters counters;
        tamis_shards_count(g->member[k].shards, &counters);
        assert_int_equal(counters.list_exchanges, 3);
        member_same(&g->member[k], LAYER_SOURCE, &want, "after a refused step");
    }
    group_free(g);
    tamis_indexer_destroy(indexer);
    release();
}

/* Shards that leave blocks to nobody: refused when a context grows that far, not before. */
void shards_cover_what_is_seen(void **state) {
    (void)state;
    seed(9);
    layers *l = layers_make(small, requests, COUNT(requests));
    tamis_indexer *indexer = group_indexer(l, "ref", RANKS);
    group *g = good_group(l, indexer);
    for (int32_t k = 0; k < RANKS; k++) { /* 38 blocks of request 0 and no more, of ratio 1 */
        tamis_shard *s = &g->member[k].batch.shard[0];
        int32_t *first = fresh(64 * 4), *last = fresh(64 * 4);
        int64_t *starts = fresh(3 * 8), n = 0;
        starts[0] = 0;
        for (int32_t r = 0; r < 2; r++) {
            for (int32_t b = k; b < (r ? 17 : 38); b += RANKS) {
                first[n] = b;
                last[n++] = b + 1;
            }
            starts[r + 1] = n;
        }
        s->first = first;
        s->last = last;
        s->start = starts;
    }
    group_each(g, start); /* 300 positions are in 38 blocks */
    all_ok(g);
    for (int32_t k = 0; k < RANKS; k++) {
        member *m = &g->member[k];
        l->context[0] = 304 + 1;
        m->batch.batch.context = l->context;
        m->part[0].held[0] = k < 2 ? 13 * 8 : 12 * 8;
        m->part[1].held[0] = 152 / 8 / 3 * 8 + (k == 0 ? 8 : 0);
        m->limits.max_context = 1000;
    }
    group_each(g, start); /* a new group, since contexts are above the limits of the last */
    refused_alike(g, TAMIS_ERROR_SHARD, "request 0 block 38");
    group_free(g);
    tamis_indexer_destroy(indexer);
}

void shards_batches_are_the_same(void **state) {
    (void)state;
    seed(10);
    layers *l = layers_make(small, requests, COUNT(requests));
    tamis_indexer *indexer = group_indexer(l, "ref", RANKS);
    outcome want = layers_expect(l, LAYER_SOURCE, l->batch.tokens);
    STEP_REFUSED(refused_by_all, m->batch.struct_size = 0, TAMIS_ERROR_STRUCT_SIZE, "batch");
    STEP_REFUSED(refused_by_all, m->batch.batch.requests = -1, TAMIS_ERROR_LIMIT, "requests");
    STEP_REFUSED(refused_by_all, m->batch.batch.tokens = 7, TAMIS_ERROR_ARGUMENT, "query_start");
    STEP_REFUSED(refused_by_all, m->batch.batch.context = huge_context, TAMIS_ERROR_LIMIT,
                 "context[0]");
    STEP_REFUSED(refused_alike, m->batch.batch.padded_rows = l->batch.tokens, TAMIS_ERROR_RANKS,
                 "padded_rows");
    STEP_REFUSED(refused_alike, m->batch.batch.query_start = other_starts, TAMIS_ERROR_RANKS,
                 "query starts");
    tamis_indexer_destroy(indexer);
}

/* ---- layers ------------------------------------------------------------------------ */

void shards_layers_are_refused(void **state) {
    (void)state;
    seed(11);
    layers *l = layers_make(small, requests, COUNT(requests));
    tamis_indexer *indexer = group_indexer(l, "ref", RANKS);
    outcome want = layers_expect(l, LAYER_SOURCE, l->batch.tokens);
    outcome after = layers_expect(l, LAYER_CONSUMER, l->batch.tokens);
    group *g = good_group(l, indexer);
    group_each(g, init);
    all_ok(g);
    call_layers(g, LAYER_SOURCE, LAYER_SOURCE);
    refused_alike(g, TAMIS_ERROR_STAMP, "step"); /* none was made */
    group_each(g, step);
    all_ok(g);
    call_layers(g, LAYER_CONSUMER, LAYER_CONSUMER);
    refused_alike(g, TAMIS_ERROR_STAMP, "step"); /* nothing is published */
    call_layers(g, LAYER_REUSE, LAYER_SOURCE);
    refused_by_all(g, TAMIS_ERROR_GEOMETRY, "heads"); /* no queries */
    call_layers(g, LAYER_FULL, LAYER_SOURCE);
    refused_alike(g, TAMIS_ERROR_RANKS, "args.layer");
    call_layers(g, LAYER_CONSUMER, LAYER_SOURCE);
    refused_by_all(g, TAMIS_ERROR_STAMP, "step");
    outputs_untouched(g);
    tamis_k_cache all_of_it = g->member[AT].part[0].cache;
    g->member[AT].part[0].cache.size = 1; /* page ids of another pool */
    call_layers(g, LAYER_SOURCE, LAYER_SOURCE);
    refused_by_all(g, TAMIS_ERROR_LENGTH, "page_table");
    g->member[AT].part[0].cache = all_of_it;
    outputs_untouched(g);
    call_layers(g, LAYER_SOURCE, LAYER_SOURCE);
    all_ok(g);
    call_layers(g, LAYER_SOURCE, LAYER_SOURCE);
    refused_alike(g, TAMIS_ERROR_STAMP, "step"); /* a second publish */
    call_layers(g, LAYER_CONSUMER, LAYER_CONSUMER);
    all_ok(g);
    for (int32_t k = 0; k < RANKS; k++) {
        member_same(&g->member[k], LAYER_SOURCE, &want, "source");
        member_same(&g->member[k], LAYER_CONSUMER, &after, "consumer");
    }
    group_each(g, step); /* and what was published is of the step before */
    all_ok(g);
    call_layers(g, LAYER_CONSUMER, LAYER_CONSUMER);
    refused_alike(g, TAMIS_ERROR_STAMP, "step");
    group_free(g);
    tamis_indexer_destroy(indexer);
}
