/* SPDX-License-Identifier: MIT */
/* world.c: rows, owners and scores for the tests of stages, and the arguments that hold them. */
#include "scene.h"
#include "world.h"

static void make_world_shard(world *w, int32_t rank) {
    int32_t *first = fresh(REQUESTS * BLOCKS * 4), *last = fresh(REQUESTS * BLOCKS * 4), n = 0;
    int64_t *starts = fresh((REQUESTS + 1) * 8);
    tamis_shard *s = &w->shard[rank];
    tamis_error error = {0};
    for (int32_t i = 0; i < REQUESTS; i++) {
        starts[i] = n;
        for (int32_t b = 0; b < BLOCKS; b++) {
            if (w->owner[i][b] == rank && n > starts[i] && last[n - 1] == b) {
                last[n - 1]++;
            } else if (w->owner[i][b] == rank) {
                first[n] = b;
                last[n++] = b + 1;
            }
        }
    }
    starts[REQUESTS] = n;
    tamis_shard_default(s);
    s->rank = rank;
    s->ranks = w->ranks;
    s->block_size = w->size;
    s->requests = REQUESTS;
    s->start = starts;
    s->first = first;
    s->last = last;
    succeeded(tamis_shard_index(s, fresh(n * 4 + 4), &error), &error, __LINE__);
}

static float hard_score(int kind) {
    static const uint32_t special[] = {0x7FC00000u, 0xFF800000u, 0x7F800000u, 0x80000000u, 0};
    if (kind == 0 || random_below(4) == 0) {
        return float_of(special[random_below(COUNT(special))]);
    }
    if (kind == 1) {
        return (float)random_below(4); /* ties */
    }
    return random_unit() * (kind == 2 ? 1.0f : 0x1p-140f);
}

world *world_make(int32_t size, int32_t ranks, int kind) {
    world *w = fresh(sizeof *w);
    memset(w, 0, sizeof *w);
    w->size = size;
    w->ranks = ranks;
    for (int32_t i = 0; i < REQUESTS; i++) {
        for (int32_t b = 0; b < BLOCKS; b++) {
            int stays = b > 0 && random_below(5) < kind;
            w->owner[i][b] = stays ? w->owner[i][b - 1] : (int32_t)random_below(ranks);
        }
    }
    for (int32_t k = 0; k < ranks; k++) {
        make_world_shard(w, k);
    }
    for (int32_t r = 0; r < ROWS; r++) {
        w->visible[r] = r == 0 ? 0 : (int32_t)random_below(BLOCKS * size + 1);
        w->request[r] = (int32_t)random_below(REQUESTS);
        w->scores[r] = fresh(BLOCKS * size * 4);
        for (int32_t j = 0; j < BLOCKS * size; j++) {
            w->scores[r][j] = hard_score(kind);
        }
    }
    return w;
}

int64_t own_by_counting(const world *w, int32_t rank, int32_t i, int64_t position) {
    int64_t own = 0;
    for (int64_t j = 0; j < position; j++) {
        own += w->owner[i][j / w->size] == rank;
    }
    return w->owner[i][position / w->size] == rank ? own : -1;
}

gathered gathered_make(int32_t ranks, int64_t width) {
    gathered g = {.width = width, .stride = width + PAD, .counts_stride = ROWS + PAD};
    g.rank_stride = ROWS * g.stride + PAD;
    g.ids = fresh(ranks * g.rank_stride * 4);
    g.scores = fresh(ranks * g.rank_stride * 4);
    g.counts = fresh(ranks * g.counts_stride * 4);
    return g;
}

void run_shard_blocks(const world *w, int32_t k, int32_t topk_blocks, const gathered *g) {
    float *maxima = fresh(ROWS * BLOCKS * 4), all[BLOCKS];
    tamis_shard_blocks_args a;
    for (int32_t r = 0; r < ROWS; r++) {
        int64_t blocks = (w->visible[r] + w->size - 1) / w->size, own = 0;
        oracle_block_max(w->scores[r], w->visible[r], w->size, all);
        for (int64_t b = 0; b < blocks; b++) {
            if (w->owner[w->request[r]][b] == k) {
                maxima[r * BLOCKS + own++] = all[b];
            }
        }
    }
    tamis_shard_blocks_args_default(&a);
    a.topk_blocks = topk_blocks;
    a.shard = w->shard[k];
    a.rows = ROWS;
    a.visible = w->visible;
    a.request = w->request;
    a.block_max = maxima;
    a.block_max_stride = BLOCKS;
    a.width = g->width;
    a.ids = g->ids + k * g->rank_stride;
    a.scores = g->scores + k * g->rank_stride;
    a.ids_stride = a.scores_stride = g->stride;
    a.counts = g->counts + k * g->counts_stride;
    RUN(shard_blocks, &a);
}

tamis_shard_publish_args publish_args(const world *w, int32_t topk_blocks, const gathered *g) {
    tamis_shard_publish_args a;
    tamis_shard_publish_args_default(&a);
    a.block_size = w->size;
    a.topk_blocks = topk_blocks;
    a.ranks = w->ranks;
    a.rows = ROWS;
    a.visible = w->visible;
    a.width = g->width;
    a.ids = g->ids;
    a.scores = g->scores;
    a.ids_stride = a.scores_stride = g->stride;
    a.ids_rank_stride = a.scores_rank_stride = g->rank_stride;
    a.counts = g->counts;
    a.counts_rank_stride = g->counts_stride;
    a.blocks = fresh(ROWS * (topk_blocks + PAD) * 4);
    a.blocks_stride = topk_blocks + PAD;
    a.block_counts = fresh(ROWS * 4);
    return a;
}

tamis_shard_topk_args topk_args(const world *w, int32_t topk, const gathered *g) {
    tamis_shard_topk_args a;
    tamis_shard_topk_args_default(&a);
    a.ranks = w->ranks;
    a.rows = ROWS;
    a.width = g->width;
    a.positions = g->ids;
    a.scores = g->scores;
    a.positions_stride = a.scores_stride = g->stride;
    a.positions_rank_stride = a.scores_rank_stride = g->rank_stride;
    a.counts = g->counts;
    a.counts_rank_stride = g->counts_stride;
    selection_make(&a.selection, ROWS, topk);
    a.selection.slots = NULL;
    return a;
}
