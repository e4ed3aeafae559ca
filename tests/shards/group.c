/* SPDX-License-Identifier: MIT */
/* group.c: members of a group, their own K, and threads to run them. */
#include <pthread.h>

#include "group.h"

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Where rank k's share of an uneven split begins: the same for all who ask. */
static int64_t cut_of(const split *s, int64_t asked, int32_t k, int64_t blocks) {
    int64_t cut[TAMIS_MAX_RANKS + 1];
    for (int32_t i = 1; i < s->ranks; i++) {
        cut[i] = (int64_t)(mix(s->seed + (uint64_t)(asked * 64 + i)) % (uint64_t)(blocks + 1));
    }
    cut[0] = 0;
    for (int32_t i = 1; i < s->ranks; i++) { /* insertion sort */
        for (int32_t j = i; j > 1 && cut[j] < cut[j - 1]; j--) {
            int64_t t = cut[j];
            cut[j] = cut[j - 1];
            cut[j - 1] = t;
        }
    }
    return k < s->ranks ? cut[k] : blocks;
}

int32_t split_owner(const split *s, int64_t asked, int64_t block, int64_t blocks) {
    int32_t k = 0;
    switch (s->kind) {
    case SPLIT_CONTIGUOUS:
        return (int32_t)(block * s->ranks / blocks);
    case SPLIT_UNEVEN:
        while (k + 1 < s->ranks && cut_of(s, asked, k + 1, blocks) <= block) {
            k++;
        }
        return k;
    case SPLIT_BLOCKS:
        return (int32_t)(block % s->ranks);
    case SPLIT_PAGES:
        return (int32_t)(block / s->unit % s->ranks);
    case SPLIT_RANDOM:
        return (int32_t)(mix(s->seed + (uint64_t)(asked << 32 | block)) % (uint64_t)s->ranks);
    case SPLIT_ONE:
        return (int32_t)((s->seed + (uint64_t)asked) % (uint64_t)s->ranks);
    default:
        return (int32_t)(block % ((s->ranks + 1) / 2)) * 2;
    }
}

/* ---- a rank's own K ---------------------------------------------------------------- */

static int64_t context_of(const layers *l, int64_t asked, int32_t ratio) {
    return l->context[asked] / ratio;
}

/* A one-level model has no blocks of its own: its shards have those of 8. */
static int32_t block_of(const layers *l) {
    return l->shape.topk_blocks ? l->shape.block : 8;
}

/* The rank's intervals, for a few blocks more than the context has. */
static void make_shard(part *p, const layers *l, const split *s, int32_t rank, int32_t ratio) {
    int64_t requests = l->batch.requests, n = 0, most = 0, spare = 3;
    int64_t *start = fresh((requests + 1) * 8);
    for (int64_t i = 0; i < requests; i++) {
        most += context_of(l, i, ratio) / block_of(l) + 1 + spare;
    }
    int32_t *first = fresh(most * 4), *last = fresh(most * 4);
    for (int64_t i = 0; i < requests; i++) {
        int64_t blocks = context_of(l, i, ratio) / block_of(l) + 1 + spare;
        start[i] = n;
        for (int64_t b = 0; b < blocks; b++) {
            if (split_owner(s, i, b, blocks) != rank) {
                continue;
            }
            if (n > start[i] && last[n - 1] == b && s->kind != SPLIT_PAGES) {
                last[n - 1]++;
            } else { /* intervals of one block may touch, too */
                first[n] = (int32_t)b;
                last[n++] = (int32_t)b + 1;
            }
        }
    }
    start[requests] = n;
    tamis_shard_default(&p->shard);
    p->shard.rank = rank;
    p->shard.ranks = s->ranks;
    p->shard.block_size = block_of(l);
    p->shard.requests = requests;
    p->shard.start = start;
    p->shard.first = first;
    p->shard.last = last;
}

/* Slots of own positions: pages in any order among pages of nobody, or rows with rows between. */
static int64_t deal(part *p, const layers *l, int32_t ratio) {
    int64_t next = 3, size = l->shape.page_size, requests = l->batch.requests;
    for (int64_t i = requests - 1; i >= 0; i--) { /* the last request's first */
        int64_t own = 0, used = 0;
        p->k_start[i] = (int32_t)next;
        p->slot[i] = fresh(context_of(l, i, ratio) * 8 + 8);
        for (int64_t j = 0; j < context_of(l, i, ratio); j++) {
            int mine = 0;
            for (int64_t n = p->shard.start[i]; n < p->shard.start[i + 1] && !mine; n++) {
                mine = j / block_of(l) >= p->shard.first[n] && j / block_of(l) < p->shard.last[n];
            }
            p->slot[i][j] = -1;
            if (!mine) {
                continue;
            }
            if (size == 0) {
                p->slot[i][j] = next++;
            } else {
                if (own % size == 0) {
                    p->table[i * p->table_stride + used++] = (int32_t)(next += 1 + own % 3);
                }
                p->slot[i][j] = next * size + own % size;
            }
            own++;
        }
        next += 2;
        p->held[i] = own;
    }
    return next + 1;
}

static uint8_t *codes_at(const tamis_k_cache *c, int64_t slot, uint8_t **scales) {
    int64_t code_bytes = c->head_dim / 2, scale_bytes = c->head_dim / 32;
    if (c->layout == TAMIS_K_MXFP4_PAGE) {
        uint8_t *page = c->codes + slot / c->page_size * c->stride;
        *scales = page + c->page_size * code_bytes + slot % c->page_size * scale_bytes;
        return page + slot % c->page_size * code_bytes;
    }
    uint8_t *codes = c->codes + slot * c->stride;
    *scales =
        c->layout == TAMIS_K_MXFP4_ROW ? codes + code_bytes : c->scales + slot * c->scales_stride;
    return codes;
}

static void fill_cache(part *p, const layers *l, int32_t ratio) {
    const keys *k = &l->keys[ratio - 1];
    int64_t codes = l->shape.dim / 2, scales = l->shape.dim / 32;
    tamis_k_cache *c = &p->cache;
    c->codes = fresh(c->size * c->stride);
    random_bytes(c->codes, c->size * c->stride);
    if (c->layout == TAMIS_K_MXFP4_SPLIT) {
        c->scales = fresh(c->size * c->scales_stride);
        random_bytes(c->scales, c->size * c->scales_stride);
    }
    for (int64_t i = 0; i < l->batch.requests; i++) {
        for (int64_t j = 0; j < context_of(l, i, ratio); j++) {
            if (p->slot[i][j] >= 0) {
                uint8_t *to_scales, *to = codes_at(c, p->slot[i][j], &to_scales);
                memcpy(to, k->codes + (k->start[i] + j) * codes, (size_t)codes);
                memcpy(to_scales, k->scales + (k->start[i] + j) * scales, (size_t)scales);
            }
        }
    }
}

static void make_part(part *p, const layers *l, const split *s, int32_t rank, int32_t ratio) {
    int64_t longest = 0, size = l->shape.page_size;
    make_shard(p, l, s, rank, ratio);
    for (int64_t i = 0; i < l->batch.requests; i++) {
        int64_t context = context_of(l, i, ratio);
        longest = context > longest ? context : longest;
    }
    p->table_width = size ? longest / size + 1 : 0;
    p->table_stride = p->table_width + 2;
    p->table = fresh((l->batch.requests + 1) * p->table_stride * 4); /* unused entries are junk */
    p->k_start = fresh(MAX_TEST_REQUESTS * 4);
    p->cache = l->keys[ratio - 1].cache; /* layout and strides */
    p->cache.size = deal(p, l, ratio);
    fill_cache(p, l, ratio);
}

/* ---- one rank ---------------------------------------------------------------------- */

void alone_run(const layers *l, const char *tier, int64_t rows, int oracle, outcome want[LAYERS]) {
    tamis_indexer *indexer = layers_indexer(l, tier, TAMIS_SPARSE_ON);
    tamis_plan *plan = layers_plan(l, indexer, 1, rows);
    tamis_batch batch = l->batch;
    batch.padded_rows = rows > batch.tokens ? rows : 0;
    tamis_step step = layers_step(plan, &batch);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (!layers_selects(layer)) {
            continue;
        }
        want[layer] = outcome_make(l, layer, rows);
        layers_run(plan, &step, l, layer, (way){.nth = 1}, &want[layer]);
        if (oracle) {
            outcome right = layers_expect(l, layer, rows);
            outcome_same(&want[layer], &right, "alone");
        }
    }
    tamis_indexer_destroy(indexer);
}

/* ---- members ----------------------------------------------------------------------- */

tamis_indexer *group_indexer(const layers *l, const char *tier, int32_t ranks) {
    tamis_settings settings;
    tamis_indexer_options options;
    tamis_indexer *indexer;
    tamis_error error = {0};
    tamis_settings_default(&settings);
    settings.numerics = l->shape.numerics == TAMIS_NUMERICS_BF16 ? "bf16" : "exact";
    tamis_indexer_options_default(&options);
    options.k_layout = l->shape.layout;
    options.model = &l->model;
    options.settings = &settings;
    options.tier = tier;
    options.page_size = l->shape.page_size;
    options.page_align = 64;
    options.context_parallel = ranks;
    succeeded(tamis_indexer_create(&options, &indexer, &error), &error, __LINE__);
    return indexer;
}

void member_make(member *m, const layers *l, const tamis_indexer *indexer, const split *s,
                 int32_t rank, int32_t threads, int64_t rows) {
    memset(m, 0, sizeof *m);
    m->l = l;
    m->indexer = indexer;
    m->rank = rank;
    m->ranks = s->ranks;
    m->threads = threads;
    tamis_shards_batch_default(&m->batch);
    m->batch.batch = l->batch;
    m->batch.batch.padded_rows = rows > l->batch.tokens ? rows : 0;
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        part *p = &m->part[ratio - 1];
        make_part(p, l, s, rank, ratio);
        m->batch.shard[ratio - 1] = p->shard;
        m->batch.held[ratio - 1] = p->held;
        m->batch.batch.page_table[ratio - 1] = p->table;
        m->batch.batch.page_table_stride[ratio - 1] = p->table_stride;
        m->batch.batch.page_table_width[ratio - 1] = p->table_width;
        m->batch.batch.k_start[ratio - 1] = p->k_start;
    }
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            m->out[layer] = outcome_make(l, layer, rows);
        }
    }
    m->limits = layers_limits(l, threads, rows);
}

void member_connect(member *m, const tamis_transport *transport, int32_t tile_rows) {
    tamis_error error = {0};
    m->transport = *transport;
    tamis_shards_options_default(&m->options);
    m->options.tile_rows = tile_rows;
    m->options.max_intervals = 8192;
    m->options.limits = &m->limits;
    m->options.transport = &m->transport;
    if (m->threads > 1) {
        succeeded(tamis_pool_create(m->threads, &m->pool, &error), &error, __LINE__);
        m->options.pool = m->pool;
    }
    m->bytes = tamis_shards_bytes(m->indexer, &m->options, &error);
    assert_true(m->bytes > 0);
    m->bytes += 64 * 1024; /* room for what tests change */
    m->memory = fresh(m->bytes);
}

tamis_status member_layer(member *m, int32_t layer) {
    tamis_layer_args args = layers_args(m->l, layer, &m->out[layer]);
    args.k = m->part[m->l->ratios[layer] - 1].cache;
    m->status = layers_consumes(m->l, layer)
                    ? tamis_shards_consumer_run(m->shards, &args, &m->error)
                    : tamis_shards_source_run(m->shards, &args, &m->error);
    return m->status;
}

void member_run(member *m) {
    m->status =
        tamis_shards_init(m->indexer, &m->options, m->memory, m->bytes, &m->shards, &m->error);
    if (m->status == TAMIS_OK) {
        m->status = tamis_shards_step(m->shards, &m->batch, &m->error);
    }
    for (int32_t layer = 0; layer < LAYERS && m->status == TAMIS_OK; layer++) {
        if (layers_selects(layer)) {
            member_layer(m, layer);
        }
    }
}

outcome member_expect(const member *m, int32_t layer, const outcome *want) {
    const part *p = &m->part[m->l->ratios[layer] - 1];
    outcome mine = *want;
    const tamis_selection *s = &want->selection;
    mine.selection.slots = fresh(want->rows * s->slots_stride * 8);
    for (int64_t i = 0; i < m->l->batch.requests; i++) {
        for (int64_t r = m->l->query_start[i]; r < m->l->query_start[i + 1]; r++) {
            for (int32_t c = 0; c < s->topk; c++) {
                int32_t position = s->positions[r * s->positions_stride + c];
                mine.selection.slots[r * s->slots_stride + c] =
                    position < 0 ? -1 : p->slot[i][position];
            }
        }
    }
    for (int64_t r = m->l->batch.tokens; r < want->rows; r++) {
        for (int32_t c = 0; c < s->topk; c++) {
            mine.selection.slots[r * s->slots_stride + c] = -1;
        }
    }
    return mine;
}

void member_same(const member *m, int32_t layer, const outcome *want, const char *what) {
    outcome mine = member_expect(m, layer, want);
    char text[120];
    snprintf(text, sizeof text, "%s, rank %d of %d, layer %d", what, m->rank, m->ranks, layer);
    outcome_same(&m->out[layer], &mine, text);
}

/* ---- ranks that are threads -------------------------------------------------------- */

group *group_make(const layers *l, const tamis_indexer *indexer, const split *s, int32_t threads,
                  int64_t rows, int32_t tile_rows) {
    group *g = fresh(sizeof *g);
    tamis_error error = {0};
    g->ranks = s->ranks;
    succeeded(tamis_local_group_create(s->ranks, 60000, &g->local, &error), &error, __LINE__);
    for (int32_t k = 0; k < s->ranks; k++) {
        tamis_transport transport;
        succeeded(tamis_local_group_transport(g->local, k, &transport, &error), &error, __LINE__);
        member_make(&g->member[k], l, indexer, s, k, threads, rows);
        member_connect(&g->member[k], &transport, tile_rows);
    }
    return g;
}

void group_free(group *g) {
    for (int32_t k = 0; k < g->ranks; k++) {
        tamis_pool_destroy(g->member[k].pool);
    }
    tamis_local_group_destroy(g->local);
}

typedef struct errand {
    void (*work)(member *m);
    member *m;
} errand;

static void *run_errand(void *argument) {
    errand *e = argument;
    e->work(e->m);
    return NULL;
}

void group_each(group *g, void (*work)(member *m)) {
    pthread_t thread[TAMIS_MAX_RANKS];
    errand errands[TAMIS_MAX_RANKS];
    for (int32_t k = 0; k < g->ranks; k++) {
        errands[k] = (errand){work, &g->member[k]};
        assert_int_equal(pthread_create(&thread[k], NULL, run_errand, &errands[k]), 0);
    }
    for (int32_t k = 0; k < g->ranks; k++) {
        pthread_join(thread[k], NULL);
    }
}
