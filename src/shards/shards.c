/* SPDX-License-Identifier: MIT */
/*
 * shards.c: a rank's options and the layout of its memory, and the agreement that opens a group.
 *
 * As in plan.c one function walks the layout: with no memory it counts, with memory it places.
 */
#include "shards/shards.h"

#include <stdio.h>
#include <string.h>

#include "cache/address.h"
#include "fail.h"
#include "indexer/levels.h"
#include "plan/plan.h"
#include "shards/shard.h"

void tamis_shards_options_default(tamis_shards_options *options) {
    memset(options, 0, sizeof *options);
    options->struct_size = (uint32_t)sizeof *options;
    options->tile_rows = 64;
    options->max_intervals = 65536;
}

void tamis_shards_batch_default(tamis_shards_batch *batch) {
    memset(batch, 0, sizeof *batch);
    batch->struct_size = (uint32_t)sizeof *batch;
    tamis_batch_default(&batch->batch);
    tamis_shard_default(&batch->shard[0]);
    tamis_shard_default(&batch->shard[1]);
}

tamis_tile_layout tamis_tile_of(int64_t rows, int64_t blocks, int64_t topk) {
    tamis_tile_layout l = {.rows = rows, .blocks = blocks, .topk = topk};
    int64_t at = 0;
    if (blocks >= 0) {
        l.block_counts = at;
        l.block_ids = l.block_counts + rows;
        l.block_scores = l.block_ids + rows * blocks;
        at = l.block_scores + rows * blocks;
    }
    l.counts = at;
    l.positions = l.counts + rows;
    l.scores = l.positions + rows * topk;
    l.bytes = tamis_round_up((l.scores + rows * topk) * 4, 64);
    return l;
}

int64_t tamis_lists_bytes(const tamis_shards *s, int64_t requests, const int64_t intervals[2]) {
    int64_t elements = 0;
    for (int k = 0; k < 2; k++) {
        elements += s->selects[k] ? requests + 2 * intervals[k] : 0;
    }
    return tamis_round_up(elements * 4, 64);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void lay_out_copies(tamis_shards *s, uint8_t *memory, int64_t *at) {
    int64_t requests = s->limits.max_requests, intervals = s->max_intervals;
    for (int k = 0; k < 2; k++) {
        tamis_shard_copy *copy = &s->copy[k];
        if (s->selects[k]) {
            copy->start = tamis_plan_take(memory, at, (requests + 1) * 8);
            copy->covered = tamis_plan_take(memory, at, requests * 8);
            copy->first = tamis_plan_take(memory, at, intervals * 4);
            copy->last = tamis_plan_take(memory, at, intervals * 4);
            copy->before = tamis_plan_take(memory, at, intervals * 4);
        }
    }
}

static void lay_out_lines(tamis_shards *s, uint8_t *memory, int64_t *at) {
    int64_t longest = tamis_plan_longest_row(&s->indexer->model, &s->limits);
    int64_t blocks = s->topk_blocks, own = s->topk + 1, width = blocks > own ? blocks : own;
    s->maxima_bytes = tamis_round_up(tamis_blocks_of(longest, s->block_size) * 4 + 4, 64);
    s->scores_bytes = tamis_round_up(width * s->block_size * 4, 64);
    s->list_bytes = tamis_round_up(width * 4, 64);
    s->line_bytes = s->maxima_bytes + s->scores_bytes + s->list_bytes +
                    tamis_consume_scratch_bytes(own, s->block_size);
    s->line = tamis_plan_take(memory, at, s->limits.threads * s->line_bytes);
}

/* The largest message: a tile, or the lists of all requests. */
static int64_t largest_message(const tamis_shards *s) {
    int64_t intervals[2] = {s->max_intervals, s->max_intervals};
    int64_t lists = tamis_lists_bytes(s, s->limits.max_requests, intervals);
    int64_t tile = tamis_tile_of(s->tile_rows, s->topk_blocks - 1, s->topk).bytes;
    return tile > lists ? tile : lists;
}

static int64_t lay_out(tamis_shards *s, uint8_t *memory) {
    int64_t at = 0, rows = s->max_rows;
    tamis_plan_take(memory, &at, (int64_t)sizeof *s);
    s->request = tamis_plan_take(memory, &at, rows * 4);
    for (int k = 0; k < 2; k++) {
        s->visible[k] = tamis_plan_take(memory, &at, rows * 4);
        s->ks[k] = tamis_plan_take(memory, &at, rows * 4);
        s->ke[k] = tamis_plan_take(memory, &at, rows * 4);
    }
    lay_out_copies(s, memory, &at);
    s->blocks = tamis_plan_take(memory, &at, rows * s->topk_blocks * 4);
    s->block_counts = tamis_plan_take(memory, &at, rows * 4);
    s->positions = tamis_plan_take(memory, &at, rows * s->topk * 4);
    s->scores = tamis_plan_take(memory, &at, rows * s->topk * 4);
    s->counts = tamis_plan_take(memory, &at, rows * 4);
    s->message_bytes = largest_message(s);
    s->send = tamis_plan_take(memory, &at, s->message_bytes);
    s->receive = tamis_plan_take(memory, &at, s->message_bytes * s->link.transport.ranks);
    lay_out_lines(s, memory, &at);
    return at;
}

/* ---- options --------------------------------------------------------------------------------- */

static tamis_status check_options(const tamis_indexer *indexer, const tamis_shards_options *o,
                                  tamis_error *error) {
    TAMIS_TRY(tamis_link_check(o->transport, error));
    TAMIS_NEED(indexer != NULL, TAMIS_ERROR_ARGUMENT, "indexer", "an indexer", 0);
    TAMIS_NEED(o->tile_rows >= 1 && o->tile_rows <= 65536, TAMIS_ERROR_LIMIT, "options.tile_rows",
               "1 .. 65536", o->tile_rows);
    TAMIS_NEED(o->max_intervals >= 1 && o->max_intervals <= 1 << 28, TAMIS_ERROR_LIMIT,
               "options.max_intervals", "1 .. 268435456", o->max_intervals);
    TAMIS_TRY(tamis_plan_check_limits(o->limits, error));
    TAMIS_NEED(indexer->context_parallel == o->transport->ranks, TAMIS_ERROR_REQUIREMENT,
               "indexer.context_parallel", "transport.ranks", indexer->context_parallel);
    TAMIS_NEED(o->pool == NULL || tamis_pool_threads(o->pool) <= o->limits->threads,
               TAMIS_ERROR_LIMIT, "options.pool", "limits.threads or fewer",
               tamis_pool_threads(o->pool));
    return TAMIS_OK;
}

/* What options alone decide. */
static void fill_fields(tamis_shards *s, const tamis_indexer *indexer,
                        const tamis_shards_options *o) {
    memset(s, 0, sizeof *s);
    s->indexer = indexer;
    s->limits = *o->limits;
    s->link.transport = *o->transport;
    s->pool = o->pool;
    s->max_rows = tamis_plan_max_rows(o->limits);
    s->max_intervals = o->max_intervals;
    s->tile_rows = o->tile_rows < s->max_rows ? o->tile_rows : s->max_rows;
    s->topk = indexer->model.index_topk;
    s->topk_blocks = tamis_model_topk_blocks(&indexer->model);
    s->block_size = tamis_model_block_size(&indexer->model);
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        s->selects[ratio - 1] = tamis_model_ratio_selects(&indexer->model, ratio);
    }
}

static tamis_status check_struct(const tamis_shards_options *o, tamis_error *error) {
    TAMIS_NEED(o != NULL, TAMIS_ERROR_ARGUMENT, "options", "a tamis_shards_options", 0);
    TAMIS_NEED(o->struct_size == sizeof *o, TAMIS_ERROR_STRUCT_SIZE, "options.struct_size",
               "the size that _default sets", o->struct_size);
    return TAMIS_OK;
}

int64_t tamis_shards_bytes(const tamis_indexer *indexer, const tamis_shards_options *options,
                           tamis_error *error) {
    tamis_shards counted;
    if (check_struct(options, error) != TAMIS_OK ||
        check_options(indexer, options, error) != TAMIS_OK) {
        return -1;
    }
    fill_fields(&counted, indexer, options);
    return lay_out(&counted, NULL);
}

/* ---- opening --------------------------------------------------------------------------------- */

static uint64_t digest_of_model(const tamis_indexer *indexer) {
    const tamis_model *m = &indexer->model;
    uint64_t state = tamis_digest(TAMIS_DIGEST, m->compress_ratios, m->num_layers * (int64_t)4);
    state = tamis_digest(state, m->kv_source_layer_ids, m->num_kv_sources * (int64_t)4);
    return tamis_digest(state, m->index_source_layer_ids, m->num_index_sources * (int64_t)4);
}

static tamis_status check_memory(const tamis_indexer *indexer, const tamis_shards_options *options,
                                 const void *memory, int64_t bytes, tamis_error *error) {
    char required[60];
    TAMIS_TRY(check_options(indexer, options, error));
    int64_t needed = tamis_shards_bytes(indexer, options, error);
    snprintf(required, sizeof required, "at least %lld", (long long)needed);
    TAMIS_NEED(bytes >= needed, TAMIS_ERROR_WORKSPACE, "bytes", required, bytes);
    TAMIS_NEED(memory != NULL && (uintptr_t)memory % 64 == 0, TAMIS_ERROR_WORKSPACE, "memory",
               "a pointer aligned to 64 bytes", (uintptr_t)memory % 64);
    return TAMIS_OK;
}

/* All that results and the sizes of messages depend on. */
static tamis_status agree_to_open(tamis_link *link, const tamis_indexer *indexer,
                                  const tamis_shards_options *o, tamis_status own,
                                  tamis_error *error) {
    tamis_fact facts[TAMIS_FACTS] = {{"call", TAMIS_CALL_INIT}};
    int32_t n = 1;
    if (own == TAMIS_OK) {
        const tamis_model *m = &indexer->model;
        const tamis_fact all[] = {{"context_parallel", indexer->context_parallel},
                                  {"model's layers", (int64_t)digest_of_model(indexer)},
                                  {"candidate_source_layer_id", m->candidate_source_layer_id},
                                  {"candidate_topk_blocks", m->candidate_topk_blocks},
                                  {"candidate_block_size", m->candidate_block_size},
                                  {"index_n_heads", m->index_n_heads},
                                  {"index_head_dim", m->index_head_dim},
                                  {"index_topk", m->index_topk},
                                  {"numerics", indexer->numerics},
                                  {"limits.max_requests", o->limits->max_requests},
                                  {"limits' rows", tamis_plan_max_rows(o->limits)},
                                  {"options.max_intervals", o->max_intervals},
                                  {"options.tile_rows", o->tile_rows}};
        _Static_assert(sizeof all / sizeof all[0] + 1 <= TAMIS_FACTS, "facts fit the message");
        memcpy(facts + n, all, sizeof all);
        n += (int32_t)(sizeof all / sizeof all[0]);
    }
    return tamis_link_agree(link, own, facts, n, n, NULL, error);
}

tamis_status tamis_shards_init(const tamis_indexer *indexer, const tamis_shards_options *options,
                               void *memory, int64_t bytes, tamis_shards **out,
                               tamis_error *error) {
    TAMIS_NEED(out != NULL, TAMIS_ERROR_ARGUMENT, "shards", "a place for the pointer", 0);
    *out = NULL;
    TAMIS_TRY(check_struct(options, error));
    TAMIS_TRY(tamis_link_check(options->transport, error));
    /* From here on the others are told of what this rank lacks. */
    tamis_link link = {.transport = *options->transport};
    tamis_status own = check_memory(indexer, options, memory, bytes, error);
    TAMIS_TRY(agree_to_open(&link, indexer, options, own, error));
    tamis_shards *shards = memory;
    fill_fields(shards, indexer, options);
    lay_out(shards, memory);
    shards->link = link;
    *out = shards;
    return TAMIS_OK;
}

void tamis_shards_count(const tamis_shards *shards, tamis_shards_counters *counters) {
    memset(counters, 0, sizeof *counters);
    counters->struct_size = (uint32_t)sizeof *counters;
    counters->calls = shards->link.calls;
    counters->bytes_sent = shards->link.bytes_sent;
    counters->list_exchanges = shards->list_exchanges;
}
