/* SPDX-License-Identifier: MIT */
/*
 * test_stages.c: a rank's stages one by one, on numbers made here: ownership is an array of owners,
 * and what has to come out is found by asking it block by block, and by the oracle's full sorts.
 */
#include "shards_tests.h"
#include "world.h"

void shards_maps(void **state) {
    (void)state;
    seed(200);
    for (int kind = 0; kind < 4; kind++) {
        world *w = world_make(kind % 2 ? 8 : 16, 1 + kind, kind);
        for (int32_t k = 0; k < w->ranks; k++) {
            const tamis_shard *s = &w->shard[k];
            for (int32_t i = 0; i < REQUESTS; i++) {
                int64_t own = 0;
                for (int64_t j = 0; j < BLOCKS * w->size; j++) {
                    int64_t mine = own_by_counting(w, k, i, j);
                    assert_int_equal(tamis_shard_length(s, i, j), own);
                    assert_int_equal(tamis_shard_own(s, i, j), mine);
                    if (mine >= 0) {
                        assert_int_equal(tamis_shard_position(s, i, own++), j);
                    }
                }
                assert_int_equal(tamis_shard_length(s, i, BLOCKS * w->size), own);
                assert_int_equal(tamis_shard_length(s, i, INT32_MAX), own);
                assert_int_equal(tamis_shard_position(s, i, own), -1);
                assert_int_equal(tamis_shard_own(s, i, BLOCKS * w->size), -1);
            }
            assert_int_equal(tamis_shard_length(s, REQUESTS, 5), -1);
            assert_int_equal(tamis_shard_length(s, 0, -1), -1);
            assert_int_equal(tamis_shard_own(s, -1, 5), -1);
            assert_int_equal(tamis_shard_own(s, 0, -5), -1);
            assert_int_equal(tamis_shard_position(s, 0, -1), -1);
            assert_int_equal(tamis_shard_position(s, REQUESTS, 0), -1);
        }
        release();
    }
}

/* ---- the first level --------------------------------------------------------------- */

/* Each rank's candidates are its own, ascending, and as many as there can be. */
static void check_candidates(const world *w, int32_t k, int32_t topk_blocks, const gathered *g) {
    for (int32_t r = 0; r < ROWS; r++) {
        const int32_t *ids = g->ids + k * g->rank_stride + r * g->stride;
        int32_t newest = w->visible[r] > 0 ? (w->visible[r] - 1) / w->size : 0, own = 0;
        int32_t count = g->counts[k * g->counts_stride + r];
        for (int32_t b = 0; b < newest; b++) {
            own += w->owner[w->request[r]][b] == k;
        }
        assert_int_equal(count, own < topk_blocks - 1 ? own : topk_blocks - 1);
        for (int32_t i = 0; i < g->width; i++) {
            if (i < count) {
                assert_in_range(ids[i], i ? ids[i - 1] + 1 : 0, newest - 1);
                assert_int_equal(w->owner[w->request[r]][ids[i]], k);
            } else {
                assert_int_equal(ids[i], -1);
                assert_int_equal(bits_of(g->scores[k * g->rank_stride + r * g->stride + i]),
                                 0xFF800000u);
            }
        }
        untouched(ids, g->width, g->stride, 4, "padding of ids");
    }
}

static void check_published(const world *w, const tamis_shard_publish_args *a) {
    int32_t want[TAMIS_MAX_BLOCKS];
    for (int32_t r = 0; r < ROWS; r++) {
        int64_t count = oracle_publish(w->scores[r], w->visible[r], w->size, a->topk_blocks, want);
        same_ints(a->blocks + r * a->blocks_stride, want, a->topk_blocks, "published blocks");
        assert_int_equal(a->block_counts[r], count);
        untouched(a->blocks + r * a->blocks_stride, a->topk_blocks, a->blocks_stride, 4,
                  "padding of blocks");
    }
}

static void check_lists(const world *w, const tamis_shard_publish_args *published) {
    for (int32_t k = 0; k < w->ranks; k++) {
        tamis_shard_lists_args a;
        tamis_shard_lists_args_default(&a);
        a.shard = w->shard[k];
        a.rows = ROWS;
        a.request = w->request;
        a.width = published->topk_blocks;
        a.blocks = published->blocks;
        a.blocks_stride = published->blocks_stride;
        a.counts = k % 2 ? published->block_counts : NULL; /* the tail says the same */
        a.own = fresh(ROWS * (a.width + PAD) * 4);
        a.own_stride = a.width + PAD;
        a.own_counts = fresh(ROWS * 4);
        RUN(shard_lists, &a);
        for (int32_t r = 0; r < ROWS; r++) {
            int32_t count = 0, *own = a.own + r * a.own_stride;
            for (int32_t i = 0; i < published->block_counts[r]; i++) {
                int64_t block = a.blocks[r * a.blocks_stride + i];
                int64_t place = own_by_counting(w, k, w->request[r], block * w->size);
                if (place >= 0) {
                    assert_int_equal(own[count++], place / w->size);
                }
            }
            assert_int_equal(a.own_counts[r], count);
            for (; count < a.width; count++) {
                assert_int_equal(own[count], -1);
            }
            untouched(own, a.width, a.own_stride, 4, "padding of lists");
        }
    }
}

void shards_first_level(void **state) {
    static const int32_t wanted[] = {1, 2, 7, 40, 200};
    (void)state;
    seed(210);
    for (int32_t i = 0; i < 60; i++) {
        int32_t topk_blocks = wanted[i % COUNT(wanted)];
        world *w = world_make(i % 2 ? 8 : 16, 1 + i % WORLD_RANKS, i % 4);
        int64_t most = topk_blocks - 1 < BLOCKS ? topk_blocks - 1 : BLOCKS;
        gathered g = gathered_make(w->ranks, most + i % 3);
        for (int32_t k = 0; k < w->ranks; k++) {
            run_shard_blocks(w, k, topk_blocks, &g);
            check_candidates(w, k, topk_blocks, &g);
        }
        tamis_shard_publish_args a = publish_args(w, topk_blocks, &g);
        RUN(shard_publish, &a);
        check_published(w, &a);
        check_lists(w, &a);
        release();
    }
}

/* ---- selections -------------------------------------------------------------------- */

/* Rank k's own best, by the oracle on its own scores, under the names of its own positions. */
static void choose_own(const world *w, int32_t k, int32_t topk, const gathered *g) {
    float *own = fresh(BLOCKS * w->size * 4);
    for (int32_t r = 0; r < ROWS; r++) {
        int32_t *out = g->ids + k * g->rank_stride + r * g->stride;
        int64_t n = 0;
        for (int32_t j = 0; j < w->visible[r]; j++) {
            if (w->owner[w->request[r]][j / w->size] == k) {
                own[n++] = w->scores[r][j];
            }
        }
        int64_t count = oracle_topk(own, n, topk, out);
        for (int64_t i = 0; i < count; i++) {
            g->scores[k * g->rank_stride + r * g->stride + i] = own[out[i]];
        }
        g->counts[k * g->counts_stride + r] = (int32_t)count;
    }
    tamis_shard_positions_args a;
    tamis_shard_positions_args_default(&a);
    a.shard = w->shard[k];
    a.rows = ROWS;
    a.request = w->request;
    a.width = g->width;
    a.positions = g->ids + k * g->rank_stride;
    a.positions_stride = g->stride;
    RUN(shard_positions, &a);
}

static void check_selected(const world *w, const tamis_selection *s) {
    int32_t want[TAMIS_MAX_TOPK];
    for (int32_t r = 0; r < ROWS; r++) {
        int64_t count = oracle_topk(w->scores[r], w->visible[r], s->topk, want);
        same_ints(s->positions + r * s->positions_stride, want, s->topk, "positions");
        assert_int_equal(s->counts[r], count);
        for (int32_t i = 0; i < s->topk; i++) {
            uint32_t bits = i < count ? bits_of(w->scores[r][want[i]]) : 0xFF800000u;
            bits = bits == 0x80000000u ? 0 : bits;
            assert_int_equal(bits_of(s->scores[r * s->scores_stride + i]), bits);
        }
        untouched(s->positions + r * s->positions_stride, s->topk, s->positions_stride, 4,
                  "padding of positions");
    }
}

/* Slots through page tables that hold own positions in pages of 16, or from a first row. */
static void check_slots(const world *w, int32_t k, const tamis_selection *s) {
    int32_t table[REQUESTS][BLOCKS + 2], ks[ROWS];
    tamis_shard_slots_args a;
    tamis_shard_slots_args_default(&a);
    for (int32_t i = 0; i < REQUESTS; i++) {
        for (int32_t p = 0; p < BLOCKS + 2; p++) {
            table[i][p] = (int32_t)random_below(1000000);
        }
    }
    for (int32_t r = 0; r < ROWS; r++) {
        ks[r] = (int32_t)random_below(100);
    }
    a.shard = w->shard[k];
    a.rows.count = ROWS;
    a.rows.request = w->request;
    a.width = s->topk;
    a.positions = s->positions;
    a.positions_stride = s->positions_stride;
    a.slots_stride = s->topk + PAD;
    a.slots = fresh(ROWS * a.slots_stride * 8);
    for (int paged = 0; paged < 2; paged++) {
        a.page_size = paged ? 16 : 0;
        a.rows.ks = paged ? NULL : ks;
        a.rows.page_table = paged ? table[0] : NULL;
        a.rows.page_table_stride = a.rows.page_table_width = BLOCKS + 2;
        a.rows.requests = REQUESTS;
        RUN(shard_slots, &a);
        for (int32_t r = 0; r < ROWS; r++) {
            for (int32_t i = 0; i < s->topk; i++) {
                int32_t position = s->positions[r * s->positions_stride + i], q = w->request[r];
                int64_t own = position < 0 ? -1 : own_by_counting(w, k, q, position), want = -1;
                if (own >= 0) {
                    want = paged ? table[q][own / 16] * (int64_t)16 + own % 16 : ks[r] + own;
                }
                assert_int_equal(a.slots[r * a.slots_stride + i], want);
            }
            untouched(a.slots + r * a.slots_stride, s->topk, a.slots_stride, 8, "slots");
        }
    }
}

void shards_selections(void **state) {
    static const int32_t wanted[] = {1, 2, 33, 300, 2000};
    (void)state;
    seed(220);
    for (int32_t i = 0; i < 40; i++) {
        int32_t topk = wanted[i % COUNT(wanted)];
        world *w = world_make(i % 2 ? 8 : 16, 1 + i % WORLD_RANKS, i % 4);
        gathered g = gathered_make(w->ranks, topk);
        for (int32_t k = 0; k < w->ranks; k++) {
            choose_own(w, k, topk, &g);
        }
        tamis_shard_topk_args a = topk_args(w, topk, &g);
        RUN(shard_topk, &a);
        check_selected(w, &a.selection);
        if (topk < 300) {
            check_slots(w, i % w->ranks, &a.selection);
        }
        a.selection.positions = NULL; /* what is not asked for is not missed */
        RUN(shard_topk, &a);
        release();
    }
}

/* Lists with any bits: every id written is one of the lists', below the newest; nothing else moves.
 */
void shards_any_bits(void **state) {
    (void)state;
    seed(230);
    for (int32_t i = 0; i < 200; i++) {
        int32_t topk_blocks = 1 + (int32_t)random_below(50);
        world *w = world_make(8, 1 + i % WORLD_RANKS, i % 4);
        gathered g = gathered_make(w->ranks, random_below(60));
        random_bytes(g.ids, w->ranks * g.rank_stride * 4);
        random_bytes(g.scores, w->ranks * g.rank_stride * 4);
        for (int64_t n = 0; n < w->ranks * g.rank_stride; n++) {
            g.ids[n] = i % 2 ? g.ids[n] : g.ids[n] % 100;
        }
        for (int64_t n = 0; n < w->ranks * g.counts_stride; n++) {
            g.counts[n] = (int32_t)random_below(g.width + 1);
        }
        tamis_shard_publish_args a = publish_args(w, topk_blocks, &g);
        RUN(shard_publish, &a);
        for (int32_t r = 0; r < ROWS; r++) {
            const int32_t *blocks = a.blocks + r * a.blocks_stride;
            int32_t newest = (w->visible[r] - 1) / 8, count = a.block_counts[r];
            assert_in_range(count, w->visible[r] > 0, topk_blocks);
            for (int32_t b = 0; b < topk_blocks; b++) {
                assert_true(b < count ? blocks[b] >= 0 && blocks[b] <= newest : blocks[b] == -1);
            }
        }
        tamis_shard_topk_args t = topk_args(w, 1 + (int32_t)random_below(70), &g);
        RUN(shard_topk, &t);
        int32_t *positions = t.selection.positions;
        tamis_shard_positions_args p;
        tamis_shard_positions_args_default(&p);
        p.shard = w->shard[0];
        p.rows = 1;
        p.width = t.selection.topk;
        p.positions = positions;
        random_bytes(positions, p.width * 4);
        RUN(shard_positions, &p);
        for (int64_t n = 0; n < p.width; n++) {
            assert_true(positions[n] >= -1 && positions[n] < BLOCKS * 8);
        }
        release();
    }
}
