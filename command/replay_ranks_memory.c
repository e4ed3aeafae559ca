/* SPDX-License-Identifier: MIT */
/* replay_ranks_memory.c: a context-parallel group and its memory, from opening to closing. */
#include <stdlib.h>
#include <string.h>

#include "replay_ranks.h"

enum { TIMEOUT_MS = 60000 };

int32_t replay_ranks_owner(const ranks_engine *e, int k, int64_t page) {
    return (int32_t)(replay_mix((uint64_t)(page * 2 + k)) % (uint64_t)e->count);
}

/* ---- memory: a page at a time -------------------------------------------------------------- */

static int ranks_put(replay_engine *base, int32_t layer, int64_t offset, const void *bytes,
                     int64_t size, tamis_error *error) {
    ranks_engine *e = (ranks_engine *)base;
    int k = base->setup->script->ratio[layer] - 1;
    int32_t owner = replay_ranks_owner(e, k, offset / base->setup->page_stride);
    (void)error;
    for (int32_t i = 0; i < e->count; i++) {
        uint8_t *to = e->rank[i].arrays.k[layer] + offset;
        memcpy(to, bytes, (size_t)size);
        for (int64_t b = 0; i != owner && b < size; b++)
            to[b] ^= 0x5A;
    }
    return STATUS_GOOD;
}

static int ranks_get(replay_engine *base, int32_t layer, int64_t offset, void *bytes, int64_t size,
                     tamis_error *error) {
    ranks_engine *e = (ranks_engine *)base;
    int k = base->setup->script->ratio[layer] - 1;
    int32_t owner = replay_ranks_owner(e, k, offset / base->setup->page_stride);
    (void)error;
    memcpy(bytes, e->rank[owner].arrays.k[layer] + offset, (size_t)size);
    return STATUS_GOOD;
}

/* Each page from its owner: a table of that page alone. */
static int ranks_gather(replay_engine *base, int32_t layer, const int32_t *table, int64_t n,
                        uint8_t *codes, uint8_t *scales, tamis_error *error) {
    ranks_engine *e = (ranks_engine *)base;
    const replay_setup *setup = base->setup;
    int k = setup->script->ratio[layer] - 1;
    for (int64_t first = 0; first < n; first += setup->page_size) {
        int32_t page = table[first / setup->page_size], owner = replay_ranks_owner(e, k, page);
        int32_t end = (int32_t)(n - first < setup->page_size ? n - first : setup->page_size);
        int64_t start = 0;
        tamis_k_gather_args a;
        replay_gather_args(setup, &e->rank[owner].arrays, layer, &page, &end, &start, end, &a);
        a.rows.page_table_stride = a.rows.page_table_width = 1;
        a.codes = codes + first * a.codes_stride;
        a.scales = scales + first * a.scales_stride;
        if (tamis_k_gather(setup->backend, &a, 0, 1, error) != TAMIS_OK)
            return STATUS_WRONG;
    }
    return STATUS_GOOD;
}

static const char *ranks_machine(const replay_engine *base) {
    return ((const ranks_engine *)base)->machine;
}

static void free_rank(replay_rank *rank) {
    for (int i = 0; i < REPLAY_LAYERS; i++)
        free(rank->arrays.k[i]);
    replay_outcomes_free(rank->arrays.out);
    for (int k = 0; k < 2; k++) {
        free(rank->table[k]);
        free(rank->slot[k]);
        free(rank->held[k]);
        free(rank->start[k]);
        free(rank->first[k]);
        free(rank->last[k]);
    }
    free(rank->memory);
}

static void ranks_close(replay_engine *base) {
    ranks_engine *e = (ranks_engine *)base;
    for (int32_t i = 0; e->rank && i < e->count; i++)
        free_rank(&e->rank[i]);
    free(e->rank);
    replay_queries_free(&e->arrays);
    tamis_pool_destroy(e->threads);
    tamis_local_group_destroy(e->group);
    free(e);
}

static const replay_engine_calls ranks_calls = {ranks_close,     ranks_machine, ranks_put,
                                                ranks_get,       ranks_gather,  replay_ranks_fly,
                                                replay_ranks_err};

/* ---- opening ------------------------------------------------------------------------------- */

static int make_tables(replay_rank *rank, const replay_setup *setup) {
    size_t requests = (size_t)setup->script->max_requests;
    size_t pages = requests * (size_t)setup->pages_each, tokens = (size_t)setup->script->max_tokens;
    int good = 1;
    for (int k = 0; k < 2; k++) {
        rank->table[k] = malloc(pages * sizeof *rank->table[k]);
        rank->slot[k] = malloc(tokens * sizeof *rank->slot[k]);
        rank->held[k] = malloc(requests * sizeof *rank->held[k]);
        rank->start[k] = malloc((requests + 1) * sizeof *rank->start[k]);
        rank->first[k] = malloc(pages * sizeof *rank->first[k]);
        rank->last[k] = malloc(pages * sizeof *rank->last[k]);
        good = good && rank->table[k] && rank->slot[k] && rank->held[k] && rank->start[k] &&
               rank->first[k] && rank->last[k];
        rank->arrays.slot[k] = rank->slot[k];
    }
    return good;
}

static int make_rank(ranks_engine *e, replay_rank *rank) {
    const replay_setup *setup = e->base.setup;
    const replay_script *s = setup->script;
    int good = make_tables(rank, setup);
    rank->arrays.x = e->arrays.x;
    rank->arrays.codes = e->arrays.codes;
    rank->arrays.scales = e->arrays.scales;
    rank->arrays.weights = e->arrays.weights;
    rank->arrays.rope = setup->inputs->rope;
    rank->arrays.norm = setup->inputs->norm;
    rank->arrays.eps = &setup->inputs->eps;
    for (int32_t i = 0; i < s->owners; i++) {
        size_t bytes = (size_t)(setup->pages[s->ratio[s->owner[i]] - 1] * setup->page_stride);
        uint8_t *k = rank->arrays.k[s->owner[i]] = malloc(bytes);
        good = good && k;
        for (size_t b = 0; k && b < bytes; b++)
            k[b] = (uint8_t)(replay_mix(b / 8) >> b % 8 * 8);
    }
    return replay_outcomes_make(rank->arrays.out, s) && good;
}

static tamis_status init_rank(ranks_engine *e, replay_rank *rank) {
    const replay_setup *setup = e->base.setup;
    tamis_shards_options options;
    tamis_shards_options_default(&options);
    options.limits = &setup->limits;
    options.transport = &rank->transport;
    options.tile_rows = 8;
    int64_t bytes = tamis_shards_bytes(setup->indexer, &options, &rank->error);
    rank->memory = bytes < 0 ? NULL : aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
    return tamis_shards_init(setup->indexer, &options, rank->memory, bytes, &rank->shards,
                             &rank->error);
}

static void init_work(void *context, int32_t ith, int32_t nth) {
    ranks_engine *e = context;
    (void)nth;
    e->rank[ith].status = init_rank(e, &e->rank[ith]);
}

static tamis_status open_all(ranks_engine *e, tamis_error *error) {
    e->rank = calloc((size_t)e->count, sizeof *e->rank);
    if (!e->rank || !replay_queries_make(&e->arrays, e->base.setup->script))
        return TAMIS_ERROR_MEMORY;
    e->arrays.rope = e->base.setup->inputs->rope;
    for (int32_t i = 0; i < e->count; i++)
        if (!make_rank(e, &e->rank[i]))
            return TAMIS_ERROR_MEMORY;
    tamis_status status = tamis_local_group_create(e->count, TIMEOUT_MS, &e->group, error);
    for (int32_t i = 0; i < e->count && status == TAMIS_OK; i++)
        status = tamis_local_group_transport(e->group, i, &e->rank[i].transport, error);
    if (status == TAMIS_OK)
        status = tamis_pool_create(e->count, &e->threads, error);
    if (status != TAMIS_OK)
        return status;
    tamis_pool_run(e->threads, init_work, e);
    for (int32_t i = 0; i < e->count; i++)
        if (e->rank[i].status != TAMIS_OK) {
            *error = e->rank[i].error;
            status = e->rank[i].status;
        }
    return status;
}

replay_engine *replay_ranks_open(const replay_setup *setup, tamis_error *error) {
    ranks_engine *e = calloc(1, sizeof *e);
    *error = (tamis_error){.status = TAMIS_ERROR_MEMORY, .argument = "memory"};
    if (!e)
        return NULL;
    e->base = (replay_engine){&ranks_calls, setup};
    e->count = setup->options->ranks;
    if (open_all(e, error) != TAMIS_OK) {
        ranks_close(&e->base);
        return NULL;
    }
    snprintf(e->machine, sizeof e->machine, "tier %s, %d ranks", tamis_indexer_tier(setup->indexer),
             (int)e->count);
    return &e->base;
}
