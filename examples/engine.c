/* SPDX-License-Identifier: MIT */
/*
 * engine.c: a toy serving engine on the public interface alone, made to be copied from.
 * It prefills three prompts in chunks, then decodes with drafts, and reads, at every layer, the
 * slots that were selected. Activations are random; page tables, steps and layer calls are as an
 * engine has them. docs/engines.md walks through it.
 */
#include <stdio.h>
#include <stdlib.h>

#include <tamis/tamis.h>

enum { LAYERS = 8, HEADS = 32, DIM = 128, TOPK = 64, REQUESTS = 3, DRAFTS = 3, THREADS = 2 };
enum {
    CHUNK = 128,    /* tokens of a step at most */
    GRAPH = 16,     /* rows that a decode step is padded to */
    CONTEXT = 2048, /* tokens of the longest request */
    PAGE = 64,      /* slots */
    PAGES = REQUESTS * CONTEXT / PAGE
};

/* Index K of one ratio: a pool of pages and who has them. */
typedef struct page_pool {
    tamis_k_cache k;
    int32_t free[PAGES], free_count;
    int32_t table[REQUESTS][CONTEXT / PAGE], used[REQUESTS];
} page_pool;

typedef struct engine {
    tamis_backend *backend; /* q_prepare and k_insert */
    tamis_indexer *indexer;
    tamis_plan *plan;
    tamis_pool *threads;
    page_pool pool[2];                       /* [ratio - 1] */
    int64_t length[REQUESTS];                /* tokens whose K is kept */
    int64_t context[REQUESTS];               /* the batch: with the new ones */
    int32_t query_start[REQUESTS + 1];       /* the batch: where each one's tokens are */
    int64_t position[CHUNK], slot[2][CHUNK]; /* of each token of the batch */
    uint16_t x[CHUNK][DIM], q[CHUNK][HEADS][DIM], w[CHUNK][HEADS]; /* activations, bf16 */
    uint16_t rope[CONTEXT][64], norm[DIM];
    uint8_t codes[CHUNK][HEADS][DIM / 2], scales[CHUNK][HEADS][DIM / 32];
    float weights[CHUNK][HEADS];
    int32_t positions[CHUNK][TOPK], counts[CHUNK];
    int64_t slots[CHUNK][TOPK];
    tamis_step step;
    tamis_layer_args layer; /* what the slices of a run share */
    int consumer;
    int64_t read; /* slots that attention has read */
} engine;

static void must(tamis_status status, const tamis_error *error) {
    char text[400];
    if (status != TAMIS_OK) {
        tamis_error_text(error, text, sizeof text);
        fprintf(stderr, "engine: %s\n", text);
        exit(1);
    }
}

/* Done once: the model, the switch, the limits. */
static void create(engine *e) {
    static const int32_t ratios[LAYERS] = {0, 2, 2, 1, 1, 1, 1, 0};
    static const int32_t owners[] = {1, 3}, selecting[] = {1, 3, 4, 6};
    /* clang-format off */
    const tamis_model model = {
        sizeof model, LAYERS, ratios, owners, selecting, 2 /* owners */, 4 /* selecting */,
        3 /* the candidate source */, 32 /* blocks it publishes */, 8 /* positions of a block */,
        HEADS, DIM, TOPK};
    /* clang-format on */
    tamis_settings settings;
    tamis_indexer_options options;
    tamis_plan_limits limits;
    tamis_error error;
    tamis_settings_default(&settings);
    settings.indexer_sparse_logits = TAMIS_SPARSE_ON;
    tamis_indexer_options_default(&options);
    options.model = &model;
    options.settings = &settings;
    options.page_size = PAGE;
    options.limits = &limits;
    tamis_plan_limits_default(&limits);
    limits.max_requests = REQUESTS;
    limits.max_batched_tokens = CHUNK;
    limits.draft_tokens = DRAFTS;
    limits.largest_graph = GRAPH;
    limits.threads = THREADS;
    limits.max_context = CONTEXT;
    must(tamis_indexer_create(&options, &e->indexer, &error), &error);
    int64_t bytes = tamis_plan_bytes(e->indexer, &limits, NULL);
    void *memory = aligned_alloc(64, (size_t)bytes);
    must(tamis_plan_init(e->indexer, &limits, memory, bytes, &e->plan, &error), &error);
    printf("tier %s, a plan of %d KiB\n", tamis_indexer_tier(e->indexer), (int)(bytes / 1024));
}

static void make_pool(page_pool *pool) {
    int64_t stride = tamis_k_page_stride(PAGE, DIM, 16);
    uint8_t *memory = calloc(PAGES, (size_t)stride);
    pool->k = (tamis_k_cache){TAMIS_K_MXFP4_PAGE, DIM, PAGE, 0, PAGES, stride, 0, memory, NULL};
    for (int32_t i = 0; i < PAGES; i++) {
        pool->free[pool->free_count++] = i * 37 % PAGES; /* pages come in no order */
    }
}

/* Activations: bf16 values of either sign, 0.5 to 2 in size. */
static void fill_random(uint16_t *x, int64_t n) {
    static uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (uint16_t)((state >> 31) << 15 | (0x3F00 + (state >> 23 & 0xFF)));
    }
}

static int64_t slot_of(const page_pool *pool, int32_t request, int64_t p) {
    return (int64_t)pool->table[request][p / PAGE] * PAGE + p % PAGE;
}

static void fill_batch(engine *e, const int32_t *fresh, tamis_batch *batch) {
    int32_t n = 0;
    for (int32_t i = 0; i < REQUESTS; i++) {
        e->context[i] = e->length[i] + fresh[i];
        e->query_start[i] = n;
        for (int32_t t = 0; t < fresh[i]; t++, n++) {
            e->position[n] = e->length[i] + t;
            for (int32_t ratio = 1; ratio <= 2; ratio++) { /* a slot for the group's last token */
                int64_t p = e->position[n] / ratio, ends = (e->position[n] + 1) % ratio == 0;
                page_pool *pool = &e->pool[ratio - 1];
                if (p / PAGE == pool->used[i]) {
                    pool->table[i][pool->used[i]++] = pool->free[--pool->free_count];
                }
                e->slot[ratio - 1][n] = ends ? slot_of(pool, i, p) : -1;
            }
        }
    }
    e->query_start[REQUESTS] = n;
    tamis_batch_default(batch);
    batch->requests = REQUESTS;
    batch->tokens = n;
    batch->padded_rows = n <= GRAPH ? GRAPH : 0;
    batch->context = e->context;
    batch->query_start = e->query_start;
    for (int k = 0; k < 2; k++) { /* tables are pointed to: keep them until the step is done */
        batch->page_table[k] = &e->pool[k].table[0][0];
        batch->page_table_stride[k] = batch->page_table_width[k] = CONTEXT / PAGE;
    }
}

static void insert_keys(engine *e, int32_t ratio, int64_t tokens) {
    static const float eps = 1e-6f;
    tamis_k_insert_args a;
    tamis_error error;
    fill_random(e->x[0], tokens * DIM);
    tamis_k_insert_args_default(&a);
    a.ratio = ratio;
    a.norm_weight_type = TAMIS_BF16;
    a.tokens = tokens;
    a.x = e->x[0];
    a.x_stride = DIM;
    a.positions = e->position;
    a.slots = e->slot[ratio - 1];
    a.norm_weight = e->norm;
    a.eps = &eps;
    a.rope = (tamis_rope){e->rope, TAMIS_BF16, 0, CONTEXT, 64};
    a.k = e->pool[ratio - 1].k;
    must(tamis_k_insert(e->backend, &a, 0, 1, &error), &error);
}

static tamis_query prepare_queries(engine *e, int64_t tokens) {
    tamis_q_prepare_args a;
    tamis_error error;
    fill_random(e->q[0][0], tokens * HEADS * DIM);
    fill_random(e->w[0], tokens * HEADS);
    tamis_q_prepare_args_default(&a);
    a.heads = HEADS;
    a.head_dim = DIM;
    a.weights_in_type = TAMIS_BF16;
    a.weights_out_type = TAMIS_F32;
    a.tokens = tokens;
    a.q = e->q[0][0];
    a.q_token_stride = HEADS * DIM;
    a.q_head_stride = DIM;
    a.positions = e->position;
    a.rope = (tamis_rope){e->rope, TAMIS_BF16, 0, CONTEXT, 64};
    a.weights_in = e->w;
    a.codes = e->codes[0][0];
    a.scales = e->scales[0][0];
    a.weights_out = e->weights;
    a.weights_in_stride = a.weights_out_stride = HEADS;
    a.codes_row_stride = HEADS * DIM / 2;
    a.codes_head_stride = DIM / 2;
    a.scales_row_stride = HEADS * DIM / 32;
    a.scales_head_stride = DIM / 32;
    must(tamis_q_prepare(e->backend, &a, 0, 1, &error), &error);
    /* clang-format off */
    return (tamis_query){HEADS, DIM, TAMIS_F32, 0, a.codes, a.scales, a.weights_out,
                         a.codes_row_stride, a.codes_head_stride, a.scales_row_stride,
                         a.scales_head_stride, HEADS};
    /* clang-format on */
}

static void run_slice(void *context, int32_t ith, int32_t nth) {
    engine *e = context;
    tamis_error error;
    must(e->consumer ? tamis_consumer_run(e->plan, &e->step, &e->layer, ith, nth, &error)
                     : tamis_source_run(e->plan, &e->step, &e->layer, ith, nth, &error),
         &error);
}

static void select_positions(engine *e, int32_t layer, const tamis_layer_role *role) {
    tamis_layer_args *a = &e->layer;
    tamis_layer_args_default(a);
    a->layer = layer;
    a->k = e->pool[role->ratio - 1].k;
    a->query = prepare_queries(e, e->query_start[REQUESTS]);
    a->selection.positions = e->positions[0];
    a->selection.slots = e->slots[0];
    a->selection.positions_stride = a->selection.slots_stride = TOPK;
    a->selection.counts = e->counts;
    e->consumer = role->role == TAMIS_ROLE_CONSUMER;
    tamis_pool_run(e->threads, run_slice, e);
}

/* Reads the selected slots of every token; here it only checks that they are what it may read. */
static void attend(engine *e, int32_t request, int64_t n, const tamis_layer_role *role) {
    const page_pool *pool = &e->pool[role->ratio - 1];
    int64_t visible = tamis_visible(e->position[n], role->ratio);
    int64_t expected = visible < TOPK ? visible : TOPK;
    int good = e->counts[n] == expected;
    for (int64_t i = 0; i < expected && good; i++, e->read++) {
        int64_t p = e->positions[n][i];
        good = p >= 0 && p < visible && (i == 0 || p > e->positions[n][i - 1]) &&
               e->slots[n][i] == slot_of(pool, request, p);
    }
    if (!good) {
        fprintf(stderr, "engine: token %lld selected what it cannot read\n", (long long)n);
        exit(1);
    }
}

/* Runs fresh[i] new tokens of each request through all layers. */
static void forward(engine *e, const int32_t *fresh) {
    tamis_batch batch;
    tamis_error error;
    fill_batch(e, fresh, &batch);
    must(tamis_step_make(e->plan, &batch, &e->step, &error), &error);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        const tamis_layer_role *role = tamis_indexer_role(e->indexer, layer);
        if (role->role == TAMIS_ROLE_NONE) {
            continue; /* sliding window only */
        }
        if (role->k_owner == layer) {
            insert_keys(e, role->ratio, batch.tokens);
        }
        if (role->role != TAMIS_ROLE_REUSE) { /* which reads the last selection again */
            select_positions(e, layer, role);
        }
        for (int64_t r = 0; r < batch.tokens; r++) {
            attend(e, e->step.request[r], e->step.token[r], role);
        }
    }
    for (int32_t i = 0; i < REQUESTS; i++) {
        e->length[i] = e->context[i];
    }
}

int main(void) {
    static engine e;
    static const int64_t prompt[REQUESTS] = {900, 333, 40};
    tamis_error error;
    int32_t fresh[REQUESTS];
    must(tamis_backend_create("auto", &e.backend, &error), &error);
    must(tamis_pool_create(THREADS, &e.threads, &error), &error);
    create(&e);
    make_pool(&e.pool[0]);
    make_pool(&e.pool[1]);
    fill_random(e.rope[0], CONTEXT * 64); /* no rotation, but numbers; a real engine has its own */
    fill_random(e.norm, DIM);
    for (int32_t i = 0; i < REQUESTS; i++) { /* prefill in chunks, while those before it decode */
        while (e.length[i] < prompt[i]) {
            int64_t room = CHUNK - i, left = prompt[i] - e.length[i];
            for (int32_t j = 0; j < REQUESTS; j++) {
                fresh[j] = j < i ? 1 : j == i ? (int32_t)(left < room ? left : room) : 0;
            }
            forward(&e, fresh);
        }
    }
    for (int step = 0; step < 8; step++) { /* decode: a token and its drafts */
        for (int32_t i = 0; i < REQUESTS; i++) {
            fresh[i] = 1 + DRAFTS;
        }
        forward(&e, fresh);
        for (int32_t i = 0; i < REQUESTS; i++) { /* rejected drafts: the next step writes over */
            e.length[i] -= (step + i) % (1 + DRAFTS);
        }
    }
    printf("%lld slots read\n", (long long)e.read);
    tamis_pool_destroy(e.threads);
    tamis_indexer_destroy(e.indexer);
    tamis_backend_destroy(e.backend);
    return 0; /* the plan and the pools of pages go with the process */
}
