/* SPDX-License-Identifier: MIT */
/*
 * test_same.c: what ranks select together is what one rank with all of K selects, and what the
 * oracle says: every split, number of ranks, block size, length, layout and tier.
 */
#include "shards_tests.h"

static const shape small = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};

static void check_members(const group *g, const outcome want[LAYERS], const char *what) {
    for (int32_t k = 0; k < g->ranks; k++) {
        const member *m = &g->member[k];
        succeeded(m->status, &m->error, __LINE__);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            if (layers_selects(layer)) {
                member_same(m, layer, &want[layer], what);
            }
        }
    }
}

static void run_together(const layers *l, const char *tier, const split *s, int32_t threads,
                         int64_t rows, int32_t tile_rows, const outcome want[LAYERS]) {
    char what[80];
    tamis_indexer *indexer = group_indexer(l, tier, s->ranks);
    group *g = group_make(l, indexer, s, threads, rows, tile_rows);
    group_each(g, member_run);
    snprintf(what, sizeof what, "split %d, tier %s", s->kind, tier);
    check_members(g, want, what);
    group_free(g);
    tamis_indexer_destroy(indexer);
}

/* Every split over 1..8 ranks, on one batch. */
static void every_split(const char *tier) {
    static const request requests[] = {{700, 3}, {131, 20}};
    for (int32_t kind = 0; kind < SPLIT_KINDS; kind++) {
        for (int32_t ranks = 1; ranks <= 8; ranks++) {
            outcome want[LAYERS];
            split s = {kind, ranks, 2, (uint64_t)(kind * 8 + ranks)};
            seed(1);
            layers *l = layers_make(small, requests, COUNT(requests));
            alone_run(l, tier, l->batch.tokens, ranks == 1, want);
            run_together(l, tier, &s, 1, l->batch.tokens, 64, want);
            release();
        }
    }
}

void shards_splits(void **state) {
    (void)state;
    each_tier(every_split);
}

/* Layouts, block sizes, ratios, dims, numerics and selections, each with a random split. */
static void every_size(const char *tier) {
    static const shape shapes[] = {
        {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 16, 2, TAMIS_NUMERICS_EXACT},
        {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 24, 16, 8, 1, TAMIS_NUMERICS_EXACT},
        {TAMIS_K_MXFP4_PAGE, 32, 8, 128, 9, 2, 8, 2, TAMIS_NUMERICS_BF16},
        {TAMIS_K_MXFP4_PAGE, 8, 4, 64, 1, 1, 8, 1, TAMIS_NUMERICS_EXACT},
        {TAMIS_K_MXFP4_SPLIT, 0, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT},
        {TAMIS_K_MXFP4_ROW, 0, 12, 128, 33, 5, 16, 2, TAMIS_NUMERICS_BF16},
        {TAMIS_K_MXFP4_ROW, 0, 4, 64, 100, 60, 8, 2, TAMIS_NUMERICS_EXACT}};
    static const request requests[] = {{900, 2}, {65, 5}, {8, 3}};
    for (int i = 0; i < COUNT(shapes); i++) {
        outcome want[LAYERS];
        seed(20 + (uint64_t)i);
        layers *l = layers_make(shapes[i], requests, COUNT(requests));
        alone_run(l, tier, l->batch.tokens, 1, want);
        for (int32_t ranks = 2; ranks <= 5; ranks++) {
            split s = {(int32_t)random_below(SPLIT_KINDS), ranks, 1 + (int32_t)random_below(4),
                       random64()};
            run_together(l, tier, &s, 1, l->batch.tokens, 64, want);
        }
        release();
    }
}

void shards_sizes(void **state) {
    (void)state;
    each_tier(every_size);
}

/* Lengths of every residue around blocks and around the pool (48 positions): a row each. */
static void every_residue(const char *tier) {
    static const int64_t around[] = {1, 17, 33, 49, 65, 97};
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        for (int i = 0; i < COUNT(around); i++) {
            outcome want[LAYERS];
            shape s = small;
            s.source_ratio = ratio;
            const request one = {around[i] + 15, 16};
            seed(40 + (uint64_t)i);
            layers *l = layers_make(s, &one, 1);
            alone_run(l, tier, 16, 1, want);
            for (int32_t kind = 0; kind < SPLIT_KINDS; kind++) {
                split by = {kind, 2 + i % 3, 1, (uint64_t)kind};
                run_together(l, tier, &by, 1, 16, 64, want);
            }
            release();
        }
    }
}

void shards_residues(void **state) {
    (void)state;
    each_tier(every_residue);
}

/* Full layers alone. */
static void without_blocks(const char *tier) {
    static const request requests[] = {{400, 1}, {90, 10}};
    outcome want[LAYERS];
    shape s = small;
    s.topk_blocks = s.block = 0;
    seed(60);
    layers *l = layers_make(s, requests, COUNT(requests));
    alone_run(l, tier, l->batch.tokens, 1, want);
    for (int32_t kind = 0; kind < SPLIT_KINDS; kind++) {
        split by = {kind, 3, 2, (uint64_t)kind};
        run_together(l, tier, &by, 1, l->batch.tokens, 64, want);
    }
    release();
}

void shards_one_level(void **state) {
    (void)state;
    each_tier(without_blocks);
}

/* The released geometry, around its pool of 16,384 positions and beyond it. */
static void released(const char *tier) {
    static const request requests[] = {{16376, 1}, {16377, 1}, {16384, 1},
                                       {16385, 2}, {16391, 1}, {40001, 2}};
    static const shape full = {TAMIS_K_MXFP4_PAGE,  64, 32, 128, 512, 2048, 8, 1,
                               TAMIS_NUMERICS_EXACT};
    outcome want[LAYERS];
    seed(65);
    layers *l = layers_make(full, requests, COUNT(requests));
    alone_run(l, tier, l->batch.tokens, 0, want);
    split by = {SPLIT_PAGES, 3, 8, 0};
    run_together(l, tier, &by, 2, l->batch.tokens, 3, want);
    split uneven = {SPLIT_UNEVEN, 4, 1, 11};
    run_together(l, tier, &uneven, 1, l->batch.tokens, 64, want);
    release();
}

void shards_released_geometry(void **state) {
    (void)state;
    released("auto");
}

/* ---- scores that are hard to order ------------------------------------------------- */

enum { EQUAL, ALL_NAN, INFINITE, SIGNS, FEW, HARD_KINDS };

/* Weights that make every score the same, NaN, infinite or NaN, a zero of either sign, or one of
 * few values. */
static void spoil_weights(const layers *l, int32_t layer, int kind) {
    const tamis_query *q = &l->query[layer];
    void *weights = (void *)(uintptr_t)q->weights;
    for (int64_t t = 0; t < l->batch.tokens; t++) {
        for (int32_t h = 0; h < q->heads; h++) {
            const float values[] = {0.0f, float_of(0x7FC00001u),
                                    float_of(random_below(2) ? 0xFF800000u : 0x7F800000u),
                                    random_below(2) ? -0.0f : 0.0f, 0};
            int64_t at = t * q->weights_row_stride + h;
            if (kind == FEW) { /* tiny weights: nearly all scores round to a few subnormals */
                put(weights, at, q->weights_type, random_unit() * 0x1p-148f);
            } else {
                put(weights, at, q->weights_type, values[kind]);
            }
        }
    }
}

static void hard_scores(const char *tier) {
    static const request requests[] = {{800, 2}, {300, 4}};
    for (int kind = 0; kind < HARD_KINDS; kind++) {
        outcome want[LAYERS];
        shape s = small;
        s.layout = kind % 2 ? TAMIS_K_MXFP4_SPLIT : TAMIS_K_MXFP4_PAGE;
        s.page_size = kind % 2 ? 0 : 32;
        seed(70 + (uint64_t)kind);
        layers *l = layers_make(s, requests, COUNT(requests));
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            /* consumers keep ordinary scores half of the time */
            if (layers_selects(layer) && (layer <= LAYER_SOURCE || layer % 2)) {
                spoil_weights(l, layer, kind);
            }
        }
        alone_run(l, tier, l->batch.tokens, 1, want);
        for (int32_t by = 0; by < SPLIT_KINDS; by++) {
            split how = {by, 2 + by % 4, 1, (uint64_t)by};
            run_together(l, tier, &how, 1, l->batch.tokens, 64, want);
        }
        release();
    }
}

void shards_ties(void **state) {
    (void)state;
    each_tier(hard_scores);
}

/* ---- batches ----------------------------------------------------------------------- */

/* Rows that see nothing, requests without new tokens, and padding. */
static void many_requests(const char *tier) {
    static const request requests[] = {{1, 1}, {7, 7}, {250, 0}, {16, 16}, {129, 4}, {600, 1}};
    outcome want[LAYERS];
    seed(80);
    layers *l = layers_make(small, requests, COUNT(requests));
    int64_t rows = l->batch.tokens + 9;
    alone_run(l, tier, rows, 1, want);
    for (int32_t kind = 0; kind < SPLIT_KINDS; kind++) {
        split s = {kind, 4, 1, (uint64_t)kind};
        run_together(l, tier, &s, 1, rows, 64, want);
    }
    release();
    static const request short_ones[] = {{1, 1}, {0, 0}};
    shape s = small;
    s.source_ratio = 2;
    layers *empty = layers_make(s, short_ones, COUNT(short_ones)); /* no row sees anything */
    alone_run(empty, tier, 4, 1, want);
    run_together(empty, tier, &(split){SPLIT_RANDOM, 3, 1, 5}, 1, 4, 64, want);
}

void shards_requests_and_padding(void **state) {
    (void)state;
    each_tier(many_requests);
}

/* Tiles of 1, 3 and all rows; pools that cut rows over positions, and rows among themselves. */
static void cut_work(const char *tier) {
    static const request requests[] = {{3000, 2}, {1200, 3}};
    outcome want[LAYERS];
    seed(90);
    layers *l = layers_make(small, requests, COUNT(requests));
    alone_run(l, tier, 7, 0, want);
    for (int32_t tile = 1; tile <= 9; tile += 2) {
        for (int32_t threads = 1; threads <= 7; threads += 3) {
            split s = {SPLIT_RANDOM, 3, 1, (uint64_t)tile};
            run_together(l, tier, &s, threads, 7, tile, want);
        }
    }
    release();
}

void shards_tiles_and_threads(void **state) {
    (void)state;
    each_tier(cut_work);
}

/* ---- steps ------------------------------------------------------------------------- */

enum { STEPS = 5 };

static void run_steps(member *m) {
    m->status =
        tamis_shards_init(m->indexer, &m->options, m->memory, m->bytes, &m->shards, &m->error);
    for (int i = 0; i < STEPS && m->status == TAMIS_OK; i++) {
        m->status = tamis_shards_step(m->shards, &m->batch, &m->error);
        for (int32_t layer = 0; layer < LAYERS && m->status == TAMIS_OK; layer++) {
            if (layers_selects(layer)) {
                member_layer(m, layer);
            }
        }
    }
}

/* Shards that do not change are compared once; the bytes that travel are those of the manual. */
void shards_steps(void **state) {
    static const request requests[] = {{700, 3}, {131, 20}};
    outcome want[LAYERS];
    (void)state;
    seed(100);
    layers *l = layers_make(small, requests, COUNT(requests));
    alone_run(l, "ref", 23, 1, want);
    split s = {SPLIT_BLOCKS, 3, 1, 0};
    tamis_indexer *indexer = group_indexer(l, "ref", 3);
    group *g = group_make(l, indexer, &s, 1, 23, 64);
    group_each(g, run_steps);
    check_members(g, want, "steps");
    for (int32_t k = 0; k < 3; k++) {
        tamis_shards_counters counters;
        tamis_shards_count(g->member[k].shards, &counters);
        assert_int_equal(counters.list_exchanges, 1);
        /* init; a step, once with lists and their end; six layers of three messages */
        assert_int_equal(counters.calls, 1 + STEPS + 2 + STEPS * 6 * 3);
    }
    group_free(g);
    tamis_indexer_destroy(indexer);
}

/* ---- anything ---------------------------------------------------------------------- */

static shape random_shape(void) {
    static const int32_t heads[] = {4, 8, 12};
    shape s = {.layout = TAMIS_K_MXFP4_PAGE + (int32_t)random_below(3)};
    s.heads = heads[random_below(3)];
    s.dim = random_below(4) ? 64 : 128;
    s.block = random_below(2) ? 8 : 16;
    s.page_size = s.layout == TAMIS_K_MXFP4_PAGE ? s.block * (1 + (int32_t)random_below(5)) : 0;
    s.topk_blocks = 1 + (int32_t)random_below(30);
    s.topk = 1 + (int32_t)random_below(s.topk_blocks * s.block - (s.block - 1));
    s.source_ratio = 1 + (int32_t)random_below(2);
    s.numerics = random_below(2) ? TAMIS_NUMERICS_EXACT : TAMIS_NUMERICS_BF16;
    return s;
}

static void run_random(uint64_t number) {
    request requests[MAX_TEST_REQUESTS];
    outcome want[LAYERS];
    seed(1000 + number);
    shape s = random_shape();
    int32_t count = 1 + (int32_t)random_below(4);
    for (int32_t i = 0; i < count; i++) {
        int64_t context = random_below(random_below(2) ? 600 : 40);
        int64_t most = context < 12 ? context : 12;
        requests[i] = (request){context, (int32_t)random_below(most + 1)};
    }
    layers *l = layers_make(s, requests, count);
    int64_t rows = l->batch.tokens + random_below(4);
    split by = {(int32_t)random_below(SPLIT_KINDS), 1 + (int32_t)random_below(8),
                1 + (int32_t)random_below(4), random64()};
    int32_t threads = 1 + (int32_t)random_below(3), tile = 1 + (int32_t)random_below(20);
    const char *tier = number % 2 ? "auto" : "ref";
    alone_run(l, tier, rows, number % 4 == 0, want);
    run_together(l, tier, &by, threads, rows, tile, want);
    release();
}

void shards_random(void **state) {
    (void)state;
    for (uint64_t number = 0; number < 150; number++) {
        run_random(number);
    }
}

/* ---- 07: chunks ---------------------------------------------------------------------- */

enum { PROMPT = 140, CHUNKS = 7 };

static const int32_t chunks[CHUNKS] = {17, 3, 40, 1, 1, 30, 48};

/* Outputs from row `from` on. */
static outcome rows_from(const outcome *all, int64_t from) {
    outcome out = *all;
    out.selection.positions += from * out.selection.positions_stride;
    out.selection.slots += from * out.selection.slots_stride;
    out.selection.scores += from * out.selection.scores_stride;
    out.selection.counts += from;
    out.blocks = out.blocks ? out.blocks + from * out.blocks_stride : NULL;
    return out;
}

static tamis_query queries_from(const tamis_query *all, int64_t from) {
    tamis_query q = *all;
    q.codes += from * q.codes_row_stride;
    q.scales += from * q.scales_row_stride;
    q.weights =
        (const uint8_t *)q.weights + from * q.weights_row_stride * element_bytes(q.weights_type);
    return q;
}

static tamis_status run_chunk(member *m, int64_t from, int32_t new_tokens) {
    int64_t context = from + new_tokens, held[2];
    const int32_t starts[] = {0, new_tokens};
    layers part_of = *m->l;
    member now = *m;
    now.l = &part_of;
    now.batch.batch.context = &context;
    now.batch.batch.query_start = starts;
    now.batch.batch.tokens = new_tokens;
    for (int k = 0; k < 2; k++) {
        held[k] = 0;
        for (int64_t j = 0; j < context / (k + 1); j++) {
            held[k] += m->part[k].slot[0][j] >= 0;
        }
        now.batch.held[k] = &held[k];
    }
    m->status = tamis_shards_step(m->shards, &now.batch, &m->error);
    for (int32_t layer = 0; layer < LAYERS && m->status == TAMIS_OK; layer++) {
        if (layers_selects(layer)) {
            part_of.query[layer] = queries_from(&m->l->query[layer], from);
            now.out[layer] = rows_from(&m->out[layer], from);
            m->status = member_layer(&now, layer);
            m->error = now.error;
        }
    }
    return m->status;
}

static void run_chunks(member *m) {
    int64_t from = 0;
    m->status =
        tamis_shards_init(m->indexer, &m->options, m->memory, m->bytes, &m->shards, &m->error);
    for (int i = 0; i < CHUNKS && m->status == TAMIS_OK; i++) {
        run_chunk(m, from, chunks[i]);
        from += chunks[i];
    }
}

/* Chunks of a prefill, decode steps among them, select what one prefill does; shards that reach
 * beyond the context are compared once. */
static void chunks_by(const char *tier, int32_t kind) {
    static const request prompt = {PROMPT, PROMPT};
    outcome want[LAYERS];
    seed(110 + (uint64_t)kind);
    layers *l = layers_make(small, &prompt, 1);
    alone_run(l, tier, PROMPT, 1, want);
    split s = {kind, 3, 1, (uint64_t)kind};
    tamis_indexer *indexer = group_indexer(l, tier, 3);
    group *g = group_make(l, indexer, &s, 1, PROMPT, 16);
    group_each(g, run_chunks);
    check_members(g, want, "chunks");
    for (int32_t k = 0; k < 3; k++) {
        tamis_shards_counters counters;
        tamis_shards_count(g->member[k].shards, &counters);
        assert_int_equal(counters.list_exchanges, 1);
    }
    group_free(g);
    tamis_indexer_destroy(indexer);
    release();
}

static void every_chunk(const char *tier) {
    for (int32_t kind = 0; kind < SPLIT_KINDS; kind++) {
        chunks_by(tier, kind);
    }
}

void pitfall_07_chunks_on_ranks(void **state) {
    (void)state;
    each_tier(every_chunk);
}
