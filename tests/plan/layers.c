/* SPDX-License-Identifier: MIT */
/* layers.c: the model, its K and queries, and what each layer has to select. */
#include "layers.h"

/* ---- K and queries ----------------------------------------------------------------- */

/* Codes of any bits; scales close together, now and then a NaN; every fourth row repeats the one
 * before, so that scores tie. */
static void fill_keys(keys *k, int64_t rows, int32_t dim) {
    int64_t codes = dim / 2, scales = dim / 32;
    k->codes = fresh(rows * codes);
    k->scales = fresh(rows * scales);
    random_bytes(k->codes, rows * codes);
    for (int64_t i = 0; i < rows * scales; i++) {
        k->scales[i] = (uint8_t)(random_below(400) == 0 ? 255 : 120 + random_below(9));
    }
    for (int64_t r = 3; r < rows; r += 4) {
        memcpy(k->codes + r * codes, k->codes + (r - 1) * codes, (size_t)codes);
        memcpy(k->scales + r * scales, k->scales + (r - 1) * scales, (size_t)scales);
    }
}

static void shuffle(int32_t *ids, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = random_below(i + 1);
        int32_t t = ids[i];
        ids[i] = ids[j];
        ids[j] = t;
    }
}

/* Pages of all requests, in any order, among pages that nobody owns. Unused entries are junk. */
static void deal_pages(keys *k, const shape *s, int32_t requests) {
    int64_t pages = 5, next = 0;
    k->table_width = 1;
    for (int32_t i = 0; i < requests; i++) {
        int64_t own = (k->start[i + 1] - k->start[i] + s->page_size - 1) / s->page_size;
        pages += own;
        k->table_width = own > k->table_width ? own : k->table_width;
    }
    k->table_stride = k->table_width + 3;
    k->table = fresh(requests * k->table_stride * 4);
    int32_t *ids = fresh(pages * 4);
    for (int32_t p = 0; p < pages; p++) {
        ids[p] = p;
    }
    shuffle(ids, pages);
    for (int32_t i = 0; i < requests; i++) {
        for (int64_t r = k->start[i]; r < k->start[i + 1]; r++) {
            int64_t p = (r - k->start[i]) / s->page_size, at = (r - k->start[i]) % s->page_size;
            int32_t *entry = &k->table[i * k->table_stride + p];
            *entry = at == 0 ? ids[next++] : *entry;
            k->slot[r] = (int64_t)*entry * s->page_size + at;
        }
    }
    k->cache.size = pages;
}

/* Requests one after another with rows between them, at starts of every residue. */
static void deal_rows(keys *k, int32_t requests) {
    int64_t next = 1;
    k->k_start = fresh(requests * 4);
    for (int32_t i = 0; i < requests; i++) {
        k->k_start[i] = (int32_t)next;
        for (int64_t r = k->start[i]; r < k->start[i + 1]; r++) {
            k->slot[r] = next++;
        }
        next += 1 + random_below(11);
    }
    k->cache.size = next;
}

/* Where the codes and scales of a slot lie. */
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

static void scatter(keys *k) {
    tamis_k_cache *c = &k->cache;
    int64_t rows = k->start[MAX_TEST_REQUESTS], code_bytes = c->head_dim / 2;
    int64_t scale_bytes = c->head_dim / 32;
    c->codes = fresh(c->size * c->stride);
    random_bytes(c->codes, c->size * c->stride);
    if (c->layout == TAMIS_K_MXFP4_SPLIT) {
        c->scales = fresh(c->size * c->scales_stride);
        random_bytes(c->scales, c->size * c->scales_stride);
    }
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *scales, *codes = codes_at(c, k->slot[r], &scales);
        memcpy(codes, k->codes + r * code_bytes, (size_t)code_bytes);
        memcpy(scales, k->scales + r * scale_bytes, (size_t)scale_bytes);
    }
}

static void make_keys(layers *l, int32_t ratio, int32_t requests) {
    const shape *s = &l->shape;
    keys *k = &l->keys[ratio - 1];
    int64_t rows = 0, bytes = s->dim / 2 + s->dim / 32;
    for (int32_t i = 0; i < MAX_TEST_REQUESTS; i++) {
        k->start[i] = rows;
        rows += i < requests ? l->context[i] / ratio : 0;
    }
    k->start[MAX_TEST_REQUESTS] = rows;
    fill_keys(k, rows, s->dim);
    k->slot = fresh(rows * 8);
    k->cache.layout = s->layout;
    k->cache.head_dim = s->dim;
    k->cache.page_size = s->page_size;
    if (s->layout == TAMIS_K_MXFP4_PAGE) {
        k->cache.stride = tamis_k_page_stride(s->page_size, s->dim, 64);
        deal_pages(k, s, requests);
    } else {
        k->cache.stride = s->layout == TAMIS_K_MXFP4_ROW ? bytes + 4 : s->dim / 2 + 16;
        k->cache.scales_stride = s->layout == TAMIS_K_MXFP4_SPLIT ? s->dim / 32 + 4 : 0;
        deal_rows(k, requests);
    }
    scatter(k);
}

static void make_query(layers *l, int32_t layer, int64_t tokens) {
    const shape *s = &l->shape;
    tamis_query *q = &l->query[layer];
    q->heads = s->heads;
    q->head_dim = s->dim;
    q->weights_type = layer % 2 ? TAMIS_F32 : TAMIS_BF16;
    q->codes_head_stride = s->dim / 2;
    q->scales_head_stride = s->dim / 32;
    q->codes_row_stride = s->heads * q->codes_head_stride + 32;
    q->scales_row_stride = s->heads * q->scales_head_stride + 4;
    q->weights_row_stride = s->heads + 1;
    uint8_t *codes = fresh(tokens * q->codes_row_stride);
    uint8_t *scales = fresh(tokens * q->scales_row_stride);
    void *weights = fresh(tokens * q->weights_row_stride * 4);
    random_bytes(codes, tokens * q->codes_row_stride);
    for (int64_t i = 0; i < tokens * q->scales_row_stride; i++) {
        scales[i] = (uint8_t)(120 + random_below(9));
    }
    for (int64_t i = 0; i < tokens * q->weights_row_stride; i++) {
        put(weights, i, q->weights_type, random_unit() + 0.2f);
    }
    q->codes = codes;
    q->scales = scales;
    q->weights = weights;
}

/* ---- the model and the batch ------------------------------------------------------- */

int layers_selects(int32_t layer) {
    return layer == LAYER_FULL || layer == LAYER_SOURCE ||
           (layer >= LAYER_CONSUMER && layer < LAYER_CONSUMER + CONSUMERS);
}

int layers_consumes(const layers *l, int32_t layer) {
    return layer >= LAYER_CONSUMER && l->shape.topk_blocks > 0;
}

static void make_model(layers *l) {
    static const int32_t kv[] = {LAYER_FULL, LAYER_SOURCE};
    static const int32_t index[] = {LAYER_FULL,         LAYER_SOURCE,       LAYER_CONSUMER,
                                    LAYER_CONSUMER + 1, LAYER_CONSUMER + 2, LAYER_CONSUMER + 3};
    const shape *s = &l->shape;
    for (int32_t i = 0; i < LAYERS; i++) {
        l->ratios[i] = i < LAYER_SOURCE ? 3 - s->source_ratio : s->source_ratio;
    }
    l->ratios[LAYER_NONE] = 0;
    l->model = (tamis_model){.struct_size = sizeof l->model,
                             .num_layers = LAYERS,
                             .compress_ratios = l->ratios,
                             .kv_source_layer_ids = kv,
                             .index_source_layer_ids = index,
                             .num_kv_sources = COUNT(kv),
                             .num_index_sources = COUNT(index),
                             .candidate_source_layer_id = s->topk_blocks ? LAYER_SOURCE : -1,
                             .candidate_topk_blocks = s->topk_blocks,
                             .candidate_block_size = s->block,
                             .index_n_heads = s->heads,
                             .index_head_dim = s->dim,
                             .index_topk = s->topk};
}

layers *layers_make(shape s, const request *requests, int32_t count) {
    layers *l = fresh(sizeof *l);
    memset(l, 0, sizeof *l);
    assert_true(count <= MAX_TEST_REQUESTS);
    l->shape = s;
    make_model(l);
    for (int32_t i = 0; i < count; i++) {
        l->context[i] = requests[i].context;
        l->query_start[i + 1] = l->query_start[i] + requests[i].fresh;
    }
    tamis_batch_default(&l->batch);
    l->batch.requests = count;
    l->batch.tokens = l->query_start[count];
    l->batch.context = l->context;
    l->batch.query_start = l->query_start;
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        make_keys(l, ratio, count);
        const keys *k = &l->keys[ratio - 1];
        l->batch.k_start[ratio - 1] = k->k_start;
        l->batch.page_table[ratio - 1] = k->table;
        l->batch.page_table_stride[ratio - 1] = k->table_stride;
        l->batch.page_table_width[ratio - 1] = k->table_width;
    }
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            make_query(l, layer, l->batch.tokens);
        }
    }
    return l;
}

int32_t layers_fresh(const layers *l, int64_t i) {
    return l->query_start[i + 1] - l->query_start[i];
}

tamis_indexer *layers_indexer(const layers *l, const char *tier, int32_t sparse_logits) {
    tamis_settings settings;
    tamis_indexer_options options;
    tamis_indexer *indexer;
    tamis_error error = {0};
    tamis_settings_default(&settings);
    settings.indexer_sparse_logits = sparse_logits;
    settings.numerics = l->shape.numerics == TAMIS_NUMERICS_BF16 ? "bf16" : "exact";
    tamis_indexer_options_default(&options);
    options.k_layout = l->shape.layout;
    options.model = &l->model;
    options.settings = &settings;
    options.tier = tier;
    options.page_size = l->shape.page_size;
    options.page_align = 64;
    succeeded(tamis_indexer_create(&options, &indexer, &error), &error, __LINE__);
    return indexer;
}

tamis_plan_limits layers_limits(const layers *l, int32_t threads, int64_t rows) {
    tamis_plan_limits limits;
    tamis_plan_limits_default(&limits);
    limits.max_requests = MAX_TEST_REQUESTS;
    limits.max_batched_tokens = (int32_t)(l->batch.tokens > 1 ? l->batch.tokens : 1);
    limits.draft_tokens = DRAFTS;
    limits.largest_graph = (int32_t)rows;
    limits.threads = threads;
    limits.max_context = 1;
    for (int32_t i = 0; i < l->batch.requests; i++) {
        limits.max_context =
            l->context[i] > limits.max_context ? l->context[i] : limits.max_context;
    }
    return limits;
}

tamis_plan *layers_plan_of(const tamis_indexer *indexer, const tamis_plan_limits *limits) {
    tamis_plan *plan;
    tamis_error error = {0};
    int64_t bytes = tamis_plan_bytes(indexer, limits, &error);
    assert_true(bytes > 0);
    succeeded(tamis_plan_init(indexer, limits, fresh(bytes), bytes, &plan, &error), &error,
              __LINE__);
    return plan;
}

tamis_plan *layers_plan(const layers *l, const tamis_indexer *indexer, int32_t threads,
                        int64_t rows) {
    tamis_plan_limits limits = layers_limits(l, threads, rows);
    return layers_plan_of(indexer, &limits);
}

tamis_step layers_step(tamis_plan *plan, const tamis_batch *batch) {
    tamis_step step;
    tamis_error error = {0};
    succeeded(tamis_step_make(plan, batch, &step, &error), &error, __LINE__);
    return step;
}

/* ---- running ----------------------------------------------------------------------- */

outcome outcome_make(const layers *l, int32_t layer, int64_t rows) {
    int32_t topk = l->shape.topk;
    outcome o = {.rows = rows};
    o.selection = (tamis_selection){.topk = topk,
                                    .positions_stride = topk + 3,
                                    .slots_stride = topk + 1,
                                    .scores_stride = topk + 2};
    o.selection.positions = fresh(rows * o.selection.positions_stride * 4);
    o.selection.slots = fresh(rows * o.selection.slots_stride * 8);
    o.selection.scores = fresh(rows * o.selection.scores_stride * 4);
    o.selection.counts = fresh(rows * 4);
    if (layer == LAYER_SOURCE && l->shape.topk_blocks > 0) {
        o.blocks_stride = l->shape.topk_blocks + 5;
        o.blocks = fresh(rows * o.blocks_stride * 4);
    }
    return o;
}

tamis_layer_args layers_args(const layers *l, int32_t layer, const outcome *out) {
    tamis_layer_args args;
    tamis_layer_args_default(&args);
    args.layer = layer;
    args.k = l->keys[l->ratios[layer] - 1].cache;
    args.query = l->query[layer];
    args.selection = out->selection;
    args.blocks = out->blocks;
    args.blocks_stride = out->blocks_stride;
    return args;
}

typedef tamis_status layer_call(tamis_plan *plan, const tamis_step *step,
                                const tamis_layer_args *args, int32_t ith, int32_t nth,
                                tamis_error *error);

typedef struct job {
    layer_call *call;
    tamis_plan *plan;
    const tamis_step *step;
    const tamis_layer_args *args;
} job;

static void do_slice(void *context, int32_t ith, int32_t nth) {
    const job *j = context;
    tamis_error error = {0};
    succeeded(j->call(j->plan, j->step, j->args, ith, nth, &error), &error, __LINE__);
}

static void do_job(job *j, way how) {
    if (how.pool) {
        tamis_pool_run(how.pool, do_slice, j);
        return;
    }
    for (int32_t ith = how.nth - 1; ith >= 0; ith--) {
        do_slice(j, ith, how.nth);
    }
}

void layers_run(tamis_plan *plan, const tamis_step *step, const layers *l, int32_t layer, way how,
                const outcome *out) {
    tamis_layer_args args = layers_args(l, layer, out);
    job j = {layers_consumes(l, layer) ? tamis_consumer_run : tamis_source_run, plan, step, &args};
    if (how.split) {
        j.call = tamis_layer_score;
        do_job(&j, how);
        j.call = tamis_layer_merge;
    }
    do_job(&j, how);
}

/* ---- what has to come out ---------------------------------------------------------- */

/* Scores of token t of request i at layer, for its visible positions; *visible says how many. */
static float *token_scores(const layers *l, int32_t layer, int64_t i, int64_t t, int64_t *visible) {
    const shape *s = &l->shape;
    const tamis_query *q = &l->query[layer];
    const keys *k = &l->keys[l->ratios[layer] - 1];
    int64_t position = l->context[i] - layers_fresh(l, i) + t, token = l->query_start[i] + t;
    float weights[TAMIS_MAX_HEADS];
    *visible = (position + 1) / l->ratios[layer];
    float *scores = malloc((size_t)(*visible + 1) * sizeof *scores);
    for (int32_t h = 0; h < s->heads; h++) {
        weights[h] = get(q->weights, token * q->weights_row_stride + h, q->weights_type);
    }
    oracle_scores(s->numerics, s->heads, s->dim, q->codes + token * q->codes_row_stride,
                  q->scales + token * q->scales_row_stride, weights,
                  k->codes + k->start[i] * (s->dim / 2), s->dim / 2,
                  k->scales + k->start[i] * (s->dim / 32), s->dim / 32, *visible, scores);
    return scores;
}

/* Row `token` of an outcome from its positions. scores and slot are of the request. */
static void expect_row(outcome *o, int64_t token, int64_t count, const float *scores,
                       const int64_t *slot) {
    tamis_selection *s = &o->selection;
    for (int32_t c = 0; c < s->topk; c++) {
        int32_t p = s->positions[token * s->positions_stride + c];
        float score = float_of(0xFF800000u);
        if (c < count) {
            uint32_t bits = bits_of(scores[p]);
            score = scores[p] != scores[p] ? float_of(0x7FC00000u)
                                           : float_of(bits == 0x80000000u ? 0 : bits);
        }
        s->slots[token * s->slots_stride + c] = c < count ? slot[p] : -1;
        s->scores[token * s->scores_stride + c] = score;
    }
    s->counts[token] = (int32_t)count;
}

static void expect_token(const layers *l, int32_t layer, int64_t i, int64_t t, outcome *o) {
    const shape *s = &l->shape;
    const keys *k = &l->keys[l->ratios[layer] - 1];
    int64_t token = l->query_start[i] + t, visible, count;
    int32_t *out = o->selection.positions + token * o->selection.positions_stride;
    int32_t blocks[TAMIS_MAX_BLOCKS];
    float *scores = token_scores(l, layer, i, t, &visible);
    if (layers_consumes(l, layer)) {
        float *above = token_scores(l, LAYER_SOURCE, i, t, &visible);
        int64_t width = oracle_publish(above, visible, s->block, s->topk_blocks, blocks);
        count = oracle_consume(scores, visible, s->block, blocks, width, s->topk, out);
        free(above);
    } else {
        count = oracle_topk(scores, visible, s->topk, out);
    }
    if (o->blocks) {
        oracle_publish(scores, visible, s->block, s->topk_blocks,
                       o->blocks + token * o->blocks_stride);
    }
    expect_row(o, token, count, scores, k->slot + k->start[i]);
    free(scores);
}

outcome layers_expect(const layers *l, int32_t layer, int64_t rows) {
    outcome o = outcome_make(l, layer, rows);
    for (int64_t i = 0; i < l->batch.requests; i++) {
        for (int64_t t = 0; t < layers_fresh(l, i); t++) {
            expect_token(l, layer, i, t, &o);
        }
    }
    for (int64_t r = l->batch.tokens; r < rows; r++) {
        for (int32_t c = 0; c < l->shape.topk; c++) {
            o.selection.positions[r * o.selection.positions_stride + c] = -1;
        }
        for (int32_t c = 0; o.blocks && c < l->shape.topk_blocks; c++) {
            o.blocks[r * o.blocks_stride + c] = -1;
        }
        expect_row(&o, r, 0, NULL, NULL);
    }
    return o;
}

/* An output that was not asked for (NULL) stands for what it has to be. */
static void same_output(const void *got, const void *want, int64_t bytes, const char *what,
                        const char *output) {
    char text[160];
    snprintf(text, sizeof text, "%s: %s", what, output);
    if (got && want) {
        same_bytes(got, want, bytes, text);
    }
}

void outcome_same(const outcome *got, const outcome *want, const char *what) {
    const tamis_selection *g = &got->selection, *w = &want->selection;
    int64_t rows = got->rows;
    assert_int_equal(rows, want->rows);
    same_output(got->blocks, want->blocks, rows * want->blocks_stride * 4, what, "blocks");
    same_output(g->counts, w->counts, rows * 4, what, "counts");
    same_output(g->positions, w->positions, rows * w->positions_stride * 4, what, "positions");
    same_output(g->slots, w->slots, rows * w->slots_stride * 8, what, "slots");
    same_output(g->scores, w->scores, rows * w->scores_stride * 4, what, "scores");
}

void each_tier(void (*work)(const char *tier)) {
    int32_t supported = 0;
    for (int32_t i = 0; tamis_tier_name(i, &supported); i++) {
        if (supported) {
            work(tamis_tier_name(i, NULL));
        }
    }
}
