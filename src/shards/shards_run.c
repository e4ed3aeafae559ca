/* SPDX-License-Identifier: MIT */
/*
 * shards_run.c: a layer on all ranks. Each scores its own K and sends its best; all merge the same
 * candidates to the same selection.
 *
 * Ranks agree before the work, so that messages have one size, and again before the first output is
 * written. In between a rank that failed keeps exchanging, so that nobody waits for it.
 */
#include <stdio.h>
#include <string.h>

#include "cache/address.h"
#include "fail.h"
#include "indexer/layer.h"
#include "indexer/levels.h"
#include "kernels/check_parts.h"
#include "kernels/fpenv.h"
#include "kernels/order.h"
#include "kernels/rows.h"
#include "shards/shard_stages.h"
#include "shards/shards.h"

/* A layer, and the tile of its rows that is being worked on. */
typedef struct run {
    tamis_shards *s;
    tamis_layer layer;        /* plan and step NULL */
    const tamis_shard *shard; /* of the layer's ratio */
    const int32_t *visible;
    int64_t first; /* row of the tile */
    tamis_tile_layout tile;
    int split; /* rows are cut over positions */
} run;

static int publishes(const run *u) {
    return u->layer.role.role == TAMIS_ROLE_SOURCE;
}

static int consumes(const run *u) {
    return u->layer.role.role == TAMIS_ROLE_CONSUMER;
}

/* ---- a rank's own part ------------------------------------------------------------------------
 */

static void *sent(const run *u, int64_t offset) {
    return u->s->send + offset * 4;
}

static uint8_t *line(const run *u, int64_t i) {
    return u->s->line + i * u->s->line_bytes;
}

static float *scores_of(const run *u, int64_t i) {
    return (float *)(void *)(line(u, i) + u->s->maxima_bytes);
}

static int32_t *list_of(const run *u, int64_t i) {
    return (int32_t *)(void *)(line(u, i) + u->s->maxima_bytes + u->s->scores_bytes);
}

/* Where row r of the tile goes in the message: the rank's best, by own positions. */
static tamis_selection selection_of(const run *u, int64_t r) {
    tamis_selection out = {0};
    out.topk = (int32_t)u->tile.topk;
    out.positions = (int32_t *)sent(u, u->tile.positions) + r * u->tile.topk;
    out.scores = (float *)sent(u, u->tile.scores) + r * u->tile.topk;
    out.counts = (int32_t *)sent(u, u->tile.counts) + r;
    return out;
}

static tamis_rows rows_of(const run *u, int64_t r) {
    return tamis_rows_at(&u->layer.rows, u->first + r);
}

static tamis_source_args source_args(const run *u, int64_t r) {
    tamis_source_args one = {0};
    one.numerics = u->layer.indexer->numerics;
    one.k = u->layer.args->k;
    one.rows = rows_of(u, r);
    one.query = tamis_query_at(&u->layer.args->query, u->first + r);
    one.block_size = u->layer.block_size;
    one.selection = selection_of(u, r);
    return one;
}

/* Scores in line `at`, the rest in line `own`. */
static tamis_source_work source_work(const run *u, int64_t at, int64_t own) {
    tamis_source_work work;
    work.maxima = (float *)(void *)line(u, at);
    work.scores = scores_of(u, at);
    work.capacity = tamis_source_capacity(0, (int32_t)u->tile.topk, u->layer.block_size);
    work.list = list_of(u, own);
    work.scratch = line(u, own) + u->s->maxima_bytes + u->s->scores_bytes + u->s->list_bytes;
    return work;
}

static void score_source(const run *u, int64_t r, int64_t at, int32_t ith, int32_t nth) {
    tamis_source_args one = source_args(u, r);
    tamis_source_work work = source_work(u, at, 0);
    /* A place for blocks asks for their maxima; what is published is not this rank's to say. */
    one.blocks = publishes(u) ? list_of(u, at) : NULL;
    if (tamis_row_length(&one.rows, 0) > 0) {
        tamis_source_score_row(&u->layer.indexer->backend.kernels, &one, &work, ith, nth);
    }
}

static void send_blocks(const run *u, int64_t r, const float *maxima) {
    const tamis_kernels *kernels = &u->layer.indexer->backend.kernels;
    tamis_shard_blocks_args blocks = {0};
    blocks.topk_blocks = u->layer.topk_blocks;
    blocks.shard = *u->shard;
    blocks.rows = 1;
    blocks.visible = u->visible + u->first + r;
    blocks.request = u->s->request + u->first + r;
    blocks.block_max = maxima;
    blocks.width = u->tile.blocks;
    blocks.ids = (int32_t *)sent(u, u->tile.block_ids) + r * u->tile.blocks;
    blocks.scores = (float *)sent(u, u->tile.block_scores) + r * u->tile.blocks;
    blocks.counts = (int32_t *)sent(u, u->tile.block_counts) + r;
    tamis_shard_blocks_rows(kernels, &blocks, 0, 1);
}

static void finish_source(const run *u, int64_t r, int64_t at, int64_t own) {
    tamis_source_args one = source_args(u, r);
    tamis_source_work work = source_work(u, at, own);
    if (publishes(u)) {
        send_blocks(u, r, work.maxima);
    }
    tamis_source_finish_row(&u->layer.indexer->backend.kernels, &one, &work);
}

/* Row r's published blocks that this rank owns, anchored, to line `own`. Returns how many. */
static int32_t list_blocks(const run *u, int64_t r, int64_t own) {
    int64_t row = u->first + r, width = u->layer.topk_blocks;
    tamis_shard_lists_args lists = {0};
    int32_t count = 0, *list = list_of(u, own);
    int32_t anchor = (int32_t)(tamis_row_start(&u->layer.rows, row) / u->layer.block_size);
    lists.shard = *u->shard;
    lists.rows = 1;
    lists.request = u->s->request + row;
    lists.width = u->s->block_counts[row];
    lists.blocks = u->s->blocks + row * width;
    lists.own = list;
    lists.own_counts = &count;
    if (lists.width > 0) {
        tamis_shard_lists_rows(&u->layer.indexer->backend.kernels, &lists, 0, 1);
    }
    for (int32_t i = 0; i < count; i++) {
        list[i] += anchor;
    }
    return count;
}

static void score_consumer(const run *u, int64_t r, int64_t at, int64_t own, int32_t ith,
                           int32_t nth) {
    tamis_sparse_mqa_logits_args score = {0};
    score.width = list_blocks(u, r, own);
    score.numerics = u->layer.indexer->numerics;
    score.k = u->layer.args->k;
    score.rows = rows_of(u, r);
    score.query = tamis_query_at(&u->layer.args->query, u->first + r);
    score.block_size = u->layer.block_size;
    score.logits_type = TAMIS_F32;
    score.blocks = list_of(u, own);
    score.logits = scores_of(u, at);
    if (score.width > 0) {
        u->layer.indexer->backend.kernels.sparse_mqa_logits(&score, ith, nth);
    }
}

static void finish_consumer(const run *u, int64_t r, int64_t at, int64_t own) {
    int64_t width = (int64_t)list_blocks(u, r, own) * u->layer.block_size;
    tamis_topk_args topk = tamis_topk_of_row(rows_of(u, r), u->layer.args->k.page_size,
                                             selection_of(u, r), scores_of(u, at), width);
    topk.block_size = u->layer.block_size;
    topk.blocks = list_of(u, own);
    u->layer.indexer->backend.kernels.topk(&topk, 0, 1);
}

/* The request's positions in place of own ones. */
static void name_positions(const run *u, int64_t r) {
    tamis_selection out = selection_of(u, r);
    tamis_shard_positions_args positions = {0};
    positions.shard = *u->shard;
    positions.rows = 1;
    positions.request = u->s->request + u->first + r;
    positions.width = *out.counts;
    positions.positions = out.positions;
    if (positions.width > 0) {
        tamis_shard_positions_rows(&u->layer.indexer->backend.kernels, &positions, 0, 1);
    }
}

static void score_row(const run *u, int64_t r, int64_t at, int64_t own, int32_t ith, int32_t nth) {
    if (consumes(u)) {
        score_consumer(u, r, at, own, ith, nth);
    } else {
        score_source(u, r, at, ith, nth);
    }
}

static void finish_row(const run *u, int64_t r, int64_t at, int64_t own) {
    if (consumes(u)) {
        finish_consumer(u, r, at, own);
    } else {
        finish_source(u, r, at, own);
    }
    name_positions(u, r);
}

/* ---- slices -----------------------------------------------------------------------------------
 */

static void score_slice(void *context, int32_t ith, int32_t nth) {
    const run *u = context;
    uint64_t saved = tamis_fp_enter();
    for (int64_t r = 0; r < u->tile.rows; r++) {
        score_row(u, r, r, ith, ith, nth);
    }
    tamis_fp_leave(saved);
}

static void finish_slice(void *context, int32_t ith, int32_t nth) {
    const run *u = context;
    int64_t r, end;
    uint64_t saved = tamis_fp_enter();
    tamis_slice(u->tile.rows, ith, nth, &r, &end);
    for (; r < end; r++) {
        if (u->split) {
            finish_row(u, r, r, ith);
        } else {
            score_row(u, r, ith, ith, 0, 1);
            finish_row(u, r, ith, ith);
        }
    }
    tamis_fp_leave(saved);
}

static void merge_blocks(const run *u, int32_t ith, int32_t nth) {
    const uint8_t *received = u->s->receive;
    tamis_shard_publish_args publish = {0};
    publish.block_size = u->layer.block_size;
    publish.topk_blocks = u->layer.topk_blocks;
    publish.ranks = u->s->link.transport.ranks;
    publish.rows = u->tile.rows;
    publish.visible = u->visible + u->first;
    publish.width = u->tile.blocks;
    publish.ids = (const int32_t *)(const void *)received + u->tile.block_ids;
    publish.scores = (const float *)(const void *)received + u->tile.block_scores;
    publish.counts = (const int32_t *)(const void *)received + u->tile.block_counts;
    publish.ids_stride = publish.scores_stride = u->tile.blocks;
    publish.ids_rank_stride = publish.scores_rank_stride = u->tile.bytes / 4;
    publish.counts_rank_stride = u->tile.bytes / 4;
    publish.blocks = u->s->blocks + u->first * u->layer.topk_blocks;
    publish.blocks_stride = u->layer.topk_blocks;
    publish.block_counts = u->s->block_counts + u->first;
    tamis_shard_publish_rows(&u->layer.indexer->backend.kernels, &publish, ith, nth);
}

static void merge_positions(const run *u, int32_t ith, int32_t nth) {
    const uint8_t *received = u->s->receive;
    tamis_shard_topk_args topk = {0};
    topk.ranks = u->s->link.transport.ranks;
    topk.rows = u->tile.rows;
    topk.width = u->tile.topk;
    topk.positions = (const int32_t *)(const void *)received + u->tile.positions;
    topk.scores = (const float *)(const void *)received + u->tile.scores;
    topk.counts = (const int32_t *)(const void *)received + u->tile.counts;
    topk.positions_stride = topk.scores_stride = u->tile.topk;
    topk.positions_rank_stride = topk.scores_rank_stride = u->tile.bytes / 4;
    topk.counts_rank_stride = u->tile.bytes / 4;
    topk.selection.topk = u->s->topk;
    topk.selection.positions = u->s->positions + u->first * u->s->topk;
    topk.selection.scores = u->s->scores + u->first * u->s->topk;
    topk.selection.counts = u->s->counts + u->first;
    topk.selection.positions_stride = topk.selection.scores_stride = u->s->topk;
    tamis_shard_topk_rows(&u->layer.indexer->backend.kernels, &topk, ith, nth);
}

static void merge_slice(void *context, int32_t ith, int32_t nth) {
    const run *u = context;
    uint64_t saved = tamis_fp_enter();
    if (publishes(u)) {
        merge_blocks(u, ith, nth);
    }
    merge_positions(u, ith, nth);
    tamis_fp_leave(saved);
}

static void parallel(run *u, void (*work)(void *context, int32_t ith, int32_t nth)) {
    if (u->s->pool) {
        tamis_pool_run(u->s->pool, work, u);
    } else {
        work(u, 0, 1);
    }
}

/* ---- tiles ------------------------------------------------------------------------------------
 */

/* What others sent is used as lengths: look first. */
static tamis_status check_counts(const run *u, tamis_error *error) {
    char argument[60];
    for (int32_t k = 0; k < u->s->link.transport.ranks; k++) {
        const int32_t *message = (const int32_t *)(const void *)(u->s->receive + k * u->tile.bytes);
        tamis_status status = tamis_check_counts(message + u->tile.counts, u->tile.rows,
                                                 u->tile.topk, 0, "counts", NULL);
        if (status == TAMIS_OK && publishes(u)) {
            status = tamis_check_counts(message + u->tile.block_counts, u->tile.rows,
                                        u->tile.blocks, 0, "counts", NULL);
        }
        if (status != TAMIS_OK) {
            snprintf(argument, sizeof argument, "rank %d", k);
            return tamis_fail(error, TAMIS_ERROR_RANKS, argument, "counts of candidates",
                              "other numbers");
        }
    }
    return TAMIS_OK;
}

static tamis_status run_tile(run *u, tamis_status so_far, tamis_error *error) {
    int32_t slices = u->s->pool ? tamis_pool_threads(u->s->pool) : 1;
    u->split = u->tile.rows < slices;
    if (so_far == TAMIS_OK) {
        if (u->split) {
            parallel(u, score_slice);
        }
        parallel(u, finish_slice);
    }
    tamis_status status = tamis_link_gather(&u->s->link, u->s->send, u->s->receive, u->tile.bytes,
                                            so_far == TAMIS_OK ? error : NULL);
    if (so_far != TAMIS_OK || status != TAMIS_OK) {
        return so_far != TAMIS_OK ? so_far : status;
    }
    TAMIS_TRY(check_counts(u, error));
    parallel(u, merge_slice);
    return TAMIS_OK;
}

/* Rows that see nothing anywhere need no work and no message. */
static void clear_rows(const run *u) {
    for (int64_t r = 0; r < u->s->rows; r++) {
        u->s->counts[r] = 0;
        u->s->block_counts[r] = 0;
    }
    memset(u->s->positions, 0xFF, (size_t)(u->s->rows * u->s->topk) * 4);
    memset(u->s->blocks, 0xFF, (size_t)(u->s->rows * u->layer.topk_blocks) * 4);
    for (int64_t i = 0; i < u->s->rows * u->s->topk; i++) {
        u->s->scores[i] = tamis_f32_of_bits(0xFF800000u); /* -inf */
    }
}

static tamis_status run_tiles(run *u, tamis_error *error) {
    int64_t longest = u->s->max_visible[u->layer.role.ratio - 1], blocks = -1;
    int64_t topk = longest < u->s->topk ? longest : u->s->topk;
    tamis_status status = TAMIS_OK;
    if (longest == 0) {
        clear_rows(u);
        return TAMIS_OK;
    }
    if (publishes(u)) {
        blocks = (longest - 1) / u->layer.block_size; /* before the newest */
        blocks = blocks < u->layer.topk_blocks - 1 ? blocks : u->layer.topk_blocks - 1;
    }
    for (u->first = 0; u->first < u->s->rows; u->first += u->tile.rows) {
        int64_t left = u->s->rows - u->first;
        u->tile = tamis_tile_of(left < u->s->tile_rows ? left : u->s->tile_rows, blocks, topk);
        status = run_tile(u, status, error);
    }
    return status;
}

/* ---- outputs ----------------------------------------------------------------------------------
 */

static void write_slots(const run *u) {
    const tamis_selection *out = &u->layer.selection;
    tamis_shard_slots_args slots = {0};
    slots.page_size = u->layer.args->k.page_size;
    slots.shard = *u->shard;
    slots.rows = u->layer.rows;
    slots.width = u->s->topk;
    slots.positions = u->s->positions;
    slots.positions_stride = u->s->topk;
    slots.slots = out->slots;
    slots.slots_stride = out->slots_stride;
    tamis_shard_slots_rows(&u->layer.indexer->backend.kernels, &slots, 0, 1);
}

static void write_outputs(const run *u) {
    const tamis_selection *out = &u->layer.selection;
    size_t row_bytes = (size_t)u->s->topk * 4;
    for (int64_t r = 0; r < u->s->rows; r++) {
        tamis_selection one = tamis_selection_at(out, r);
        if (one.positions) {
            memcpy(one.positions, u->s->positions + r * u->s->topk, row_bytes);
        }
        if (one.scores) {
            memcpy(one.scores, u->s->scores + r * u->s->topk, row_bytes);
        }
        if (one.counts) {
            *one.counts = u->s->counts[r];
        }
        if (u->layer.args->blocks) {
            memcpy(u->layer.args->blocks + r * u->layer.args->blocks_stride,
                   u->s->blocks + r * u->layer.topk_blocks, (size_t)u->layer.topk_blocks * 4);
        }
    }
    if (out->slots) {
        write_slots(u);
    }
}

/* ---- calls ------------------------------------------------------------------------------------
 */

static tamis_status fail_stamp(tamis_error *error, const char *required, const char *found) {
    return tamis_fail(error, TAMIS_ERROR_STAMP, "step", required, "%s", found);
}

static tamis_status check_stamp(const run *u, tamis_error *error) {
    int fresh = u->s->published_serial == u->s->serial;
    if (publishes(u) && fresh) {
        return fail_stamp(error, "one publish a step", "a second publish");
    }
    if (consumes(u) && !fresh) {
        return fail_stamp(error, "published blocks of this step", "none yet");
    }
    if (consumes(u) && u->s->published_layer != u->layer.role.source) {
        return fail_stamp(error, "the blocks of this layer's source", "another layer's");
    }
    return TAMIS_OK;
}

static tamis_status resolve(tamis_shards *s, const tamis_layer_args *args, int consumer, run *u,
                            tamis_error *error) {
    memset(u, 0, sizeof *u);
    u->s = s;
    if (s->serial == 0) {
        return fail_stamp(error, "a step", "none yet");
    }
    TAMIS_TRY(tamis_layer_resolve(s->indexer, args, s->rows, &u->layer, error));
    TAMIS_TRY(tamis_layer_need_role(&u->layer, consumer, error));
    int k = u->layer.role.ratio - 1;
    u->shard = &s->copy[k].shard;
    u->visible = s->visible[k];
    /* A step's arrays under the names that a plan's step has. */
    const tamis_step step = {
        .request = s->request,
        .ks = {s->ks[0], s->ks[1]},
        .ke = {s->ke[0], s->ke[1]},
        .page_table = {s->page_table[0], s->page_table[1]},
        .page_table_stride = {s->page_table_stride[0], s->page_table_stride[1]},
        .page_table_width = {s->page_table_width[0], s->page_table_width[1]}};
    u->layer.rows = tamis_layer_rows(&u->layer, &step, s->rows, s->requests);
    TAMIS_TRY(tamis_check_rows(&u->layer.rows, &args->k, error));
    return check_stamp(u, error);
}

static tamis_status run_layer(tamis_shards *s, const tamis_layer_args *args, int consumer,
                              tamis_error *error) {
    run u;
    tamis_fact facts[] = {{"call", consumer ? TAMIS_CALL_CONSUMER : TAMIS_CALL_SOURCE},
                          {"args.layer", 0},
                          {"step", 0}};
    TAMIS_NEED(s != NULL, TAMIS_ERROR_ARGUMENT, "shards", "a tamis_shards", 0);
    tamis_status status = resolve(s, args, consumer, &u, error);
    if (status == TAMIS_OK) {
        facts[1].value = args->layer;
        facts[2].value = (int64_t)s->serial;
    }
    TAMIS_TRY(tamis_link_agree(&s->link, status, facts, 3, 3, NULL, error));
    status = run_tiles(&u, error);
    facts[0].value = TAMIS_CALL_RUN_END;
    TAMIS_TRY(tamis_link_agree(&s->link, status, facts, 3, 3, NULL, error));
    if (publishes(&u)) {
        s->published_serial = s->serial;
        s->published_layer = args->layer;
    }
    write_outputs(&u);
    return TAMIS_OK;
}

tamis_status tamis_shards_source_run(tamis_shards *shards, const tamis_layer_args *args,
                                     tamis_error *error) {
    return run_layer(shards, args, 0, error);
}

tamis_status tamis_shards_consumer_run(tamis_shards *shards, const tamis_layer_args *args,
                                       tamis_error *error) {
    return run_layer(shards, args, 1, error);
}
