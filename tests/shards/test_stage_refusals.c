/* SPDX-License-Identifier: MIT */
/* test_stage_refusals.c: what a rank's stages refuse, and that nothing was touched then. */
#include "shards_tests.h"
#include "world.h"

static void refuse_blocks(const world *w, const gathered *g) {
    float maxima[ROWS * BLOCKS] = {0};
    tamis_shard_blocks_args good;
    int32_t wrong_request[ROWS] = {0, 0, REQUESTS}, wrong_visible[ROWS] = {0, -1};
    tamis_shard_blocks_args_default(&good);
    good.topk_blocks = 8;
    good.shard = w->shard[0];
    good.rows = ROWS;
    good.visible = w->visible;
    good.block_max = maxima;
    good.block_max_stride = BLOCKS;
    good.width = 7;
    good.ids = g->ids;
    good.scores = g->scores;
    good.ids_stride = good.scores_stride = g->stride;
    good.counts = g->counts;
    watch_none();
    watch(g->ids, ROWS * g->stride * 4);
    REFUSE_COMMON(shard_blocks);
    REFUSE(shard_blocks, a.topk_blocks = 0, TAMIS_ERROR_ARGUMENT, "topk_blocks");
    REFUSE(shard_blocks, a.topk_blocks = 4097, TAMIS_ERROR_ARGUMENT, "topk_blocks");
    REFUSE(shard_blocks, a.shard.before = NULL, TAMIS_ERROR_SHARD, "shard.before");
    REFUSE(shard_blocks, a.shard.rank = -1, TAMIS_ERROR_ARGUMENT, "shard.rank");
    REFUSE(shard_blocks, a.rows = -1, TAMIS_ERROR_ARGUMENT, "rows");
    REFUSE(shard_blocks, a.visible = NULL, TAMIS_ERROR_ARGUMENT, "visible");
    REFUSE(shard_blocks, a.visible = wrong_visible, TAMIS_ERROR_LENGTH, "visible[1]");
    REFUSE(shard_blocks, a.request = wrong_request, TAMIS_ERROR_ARGUMENT, "request[2]");
    REFUSE(shard_blocks, a.block_max = NULL, TAMIS_ERROR_ARGUMENT, "block_max");
    REFUSE(shard_blocks, a.block_max_stride = 1, TAMIS_ERROR_ARGUMENT, "block_max_stride");
    REFUSE(shard_blocks, a.width = 6, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(shard_blocks, a.width = 4097, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(shard_blocks, a.ids = NULL, TAMIS_ERROR_ARGUMENT, "ids");
    REFUSE(shard_blocks, a.scores_stride = 6, TAMIS_ERROR_ARGUMENT, "scores_stride");
    REFUSE(shard_blocks, a.counts = NULL, TAMIS_ERROR_ARGUMENT, "counts");
}

static void refuse_publish(const world *w, const gathered *g) {
    tamis_shard_publish_args good = publish_args(w, 8, g);
    watch_none();
    watch(good.blocks, ROWS * good.blocks_stride * 4);
    REFUSE_COMMON(shard_publish);
    REFUSE(shard_publish, a.block_size = 12, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(shard_publish, a.topk_blocks = 0, TAMIS_ERROR_ARGUMENT, "topk_blocks");
    REFUSE(shard_publish, a.ranks = 0, TAMIS_ERROR_ARGUMENT, "ranks");
    REFUSE(shard_publish, a.ranks = 65, TAMIS_ERROR_ARGUMENT, "ranks");
    REFUSE(shard_publish, a.width = -1, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(shard_publish, a.width = 2, TAMIS_ERROR_LENGTH, "counts[");
    REFUSE(shard_publish, a.ids = NULL, TAMIS_ERROR_ARGUMENT, "ids");
    REFUSE(shard_publish, a.ids_stride = 6, TAMIS_ERROR_ARGUMENT, "ids_stride");
    REFUSE(shard_publish, a.scores_rank_stride = 30, TAMIS_ERROR_ARGUMENT, "scores_rank_stride");
    REFUSE(shard_publish, a.counts_rank_stride = 4, TAMIS_ERROR_ARGUMENT, "counts_rank_stride");
    REFUSE(shard_publish, a.blocks = NULL, TAMIS_ERROR_ARGUMENT, "blocks");
    REFUSE(shard_publish, a.blocks_stride = 7, TAMIS_ERROR_ARGUMENT, "blocks_stride");
}

static void refuse_lists(const world *w) {
    int32_t blocks[ROWS * 8] = {0}, own[ROWS * 8], counts[ROWS], above[ROWS] = {0, 9};
    tamis_shard_lists_args good;
    tamis_shard_lists_args_default(&good);
    memset(own, POISON, sizeof own);
    good.shard = w->shard[0];
    good.rows = ROWS;
    good.width = 8;
    good.blocks = blocks;
    good.own = own;
    good.blocks_stride = good.own_stride = 8;
    good.own_counts = counts;
    watch_none();
    watch(own, sizeof own);
    REFUSE_COMMON(shard_lists);
    REFUSE(shard_lists, a.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(shard_lists, a.shard.struct_size = 0, TAMIS_ERROR_STRUCT_SIZE, "shard.struct_size");
    REFUSE(shard_lists, a.width = 4097, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(shard_lists, a.counts = above, TAMIS_ERROR_LENGTH, "counts[1]");
    REFUSE(shard_lists, a.blocks_stride = 7, TAMIS_ERROR_ARGUMENT, "blocks_stride");
    REFUSE(shard_lists, a.own_counts = NULL, TAMIS_ERROR_ARGUMENT, "own_counts");
}

static void refuse_rest(const world *w, const gathered *g) {
    {
        tamis_shard_topk_args good = topk_args(w, 9, g);
        int64_t slot;
        watch_none();
        watch(good.selection.positions, ROWS * good.selection.positions_stride * 4);
        REFUSE_COMMON(shard_topk);
        REFUSE(shard_topk, a.selection.topk = 0, TAMIS_ERROR_ARGUMENT, "topk");
        REFUSE(shard_topk, a.selection.slots = &slot, TAMIS_ERROR_ARGUMENT, "slots");
        REFUSE(shard_topk, a.positions = NULL, TAMIS_ERROR_ARGUMENT, "positions");
        REFUSE(shard_topk, a.positions_rank_stride = 3, TAMIS_ERROR_ARGUMENT, "rank_stride");
    }
    {
        tamis_shard_slots_args good;
        int32_t table[BLOCKS + 2] = {0}, positions[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        int64_t slots[8];
        tamis_shard_slots_args_default(&good);
        memset(slots, POISON, sizeof slots);
        good.page_size = 16;
        good.shard = w->shard[0];
        good.rows.count = 1;
        good.rows.page_table = table;
        good.rows.page_table_stride = 0;
        good.rows.page_table_width = 0;
        good.rows.requests = REQUESTS;
        good.width = 8;
        good.positions = positions;
        good.slots = slots;
        watch_none();
        watch(slots, sizeof slots);
        REFUSE_COMMON(shard_slots);
        REFUSE(shard_slots, a.page_size = 12, TAMIS_ERROR_LAYOUT, "page_size");
        REFUSE(shard_slots, a.rows.page_table = NULL, TAMIS_ERROR_LAYOUT, "page_size");
        REFUSE(shard_slots, a.rows.requests = 1, TAMIS_ERROR_ARGUMENT, "requests");
        REFUSE(shard_slots, a.slots = NULL, TAMIS_ERROR_ARGUMENT, "slots");
    }
    {
        tamis_shard_positions_args good;
        int32_t positions[8] = {-5, 0, INT32_MAX, 1, -1, 2, 3, 4};
        tamis_shard_positions_args_default(&good);
        good.shard = w->shard[0];
        good.rows = 1;
        good.width = 8;
        good.positions = positions;
        watch_none();
        watch(positions, sizeof positions);
        REFUSE_COMMON(shard_positions);
        REFUSE(shard_positions, a.positions = NULL, TAMIS_ERROR_ARGUMENT, "positions");
        REFUSE(shard_positions, a.shard.requests = -1, TAMIS_ERROR_ARGUMENT, "shard.requests");
    }
}

void shards_stages_are_refused(void **state) {
    (void)state;
    seed(240);
    world *w = world_make(8, 3, 2);
    for (int32_t r = 1; r < ROWS; r++) {
        w->visible[r] = BLOCKS * 8 - r;
    }
    gathered g = gathered_make(3, 7);
    for (int32_t k = 0; k < 3; k++) {
        run_shard_blocks(w, k, 8, &g);
    }
    refuse_publish(w, &g);
    refuse_lists(w);
    refuse_rest(w, &g);
    gathered again = gathered_make(3, 7);
    refuse_blocks(w, &again);
}
