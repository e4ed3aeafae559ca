/* SPDX-License-Identifier: MIT */
/*
 * agree.c: prints a line of every output byte's digest for each tier and stage, on inputs made by
 * whole numbers alone. Linked with the library and with the amalgamation: the lines must be equal.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if AGREE_AMALGAMATION
#include "tamis.h"
#else
#include <tamis/tamis.h>
#endif

enum { HEADS = 32, DIM = 128, ROWS = 24, K_ROWS = 1500, TOPK = 64, BLOCKS = 20, BLOCK = 8 };

static uint64_t state;

static uint64_t next(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

static void fill(void *bytes, size_t size, uint64_t low, uint64_t range) {
    for (size_t i = 0; i < size; i++) {
        ((uint8_t *)bytes)[i] = (uint8_t)(low + next() % range);
    }
}

/* bf16 values of 2^-8 .. 2^8 and either sign. */
static void fill_bf16(uint16_t *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        x[i] = (uint16_t)((next() % 2) << 15 | ((119 + next() % 17) << 7) | next() % 128);
    }
}

static void must(tamis_status status, const tamis_error *error) {
    char text[400];
    if (status != TAMIS_OK) {
        tamis_error_text(error, text, sizeof text);
        fprintf(stderr, "agree: %s\n", text);
        exit(1);
    }
}

static void print(const char *tier, const char *what, const void *bytes, size_t size) {
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
    }
    printf("%s %s %016llx\n", tier, what, (unsigned long long)hash);
}

/* K and q as the stages make them, then with scales of a wide span. */
typedef struct data {
    uint8_t k_codes[K_ROWS][DIM / 2], k_scales[K_ROWS][DIM / 32];
    uint8_t q_codes[ROWS][HEADS][DIM / 2], q_scales[ROWS][HEADS][DIM / 32];
    float weights[ROWS][HEADS];
    uint16_t x[K_ROWS][DIM], q[ROWS][HEADS][DIM], w[ROWS][HEADS], norm[DIM];
    float rope[K_ROWS][64];
    int64_t position[K_ROWS];
    int32_t ke[ROWS];
    int32_t blocks[ROWS][BLOCKS], block_counts[ROWS];
    int32_t positions[ROWS][TOPK], counts[ROWS];
    float scores[ROWS][TOPK], logits[ROWS][K_ROWS];
} data;

static data d;

static tamis_k_cache cache(void) {
    return (tamis_k_cache){TAMIS_K_MXFP4_SPLIT, DIM,          0, 0, K_ROWS, DIM / 2, DIM / 32,
                           d.k_codes[0],        d.k_scales[0]};
}

static tamis_rows rows(void) {
    tamis_rows r = {0};
    r.count = ROWS;
    r.ke = d.ke;
    return r;
}

static tamis_query query(void) {
    return (tamis_query){HEADS,           DIM,
                         TAMIS_F32,       0,
                         d.q_codes[0][0], d.q_scales[0][0],
                         d.weights,       HEADS * DIM / 2,
                         DIM / 2,         HEADS * DIM / 32,
                         DIM / 32,        HEADS};
}

static tamis_selection selection(void) {
    tamis_selection s = {0};
    s.topk = TOPK;
    s.positions = d.positions[0];
    s.scores = d.scores[0];
    s.positions_stride = s.scores_stride = TOPK;
    s.counts = d.counts;
    return s;
}

/* Where cos equals sin and a pair's halves are equal, e cos - o sin is +0 exactly; contracted, it
 * is the rounding error of a product, and its sign shows in the code. */
static void fill_rotation(void) {
    for (int p = 0; p < K_ROWS; p++) {
        for (int i = 0; i < 32; i++) {
            d.rope[p][i] = (float)next() / 2147483648.0f;
            d.rope[p][32 + i] = i % 2 ? d.rope[p][i] : (float)next() / 2147483648.0f;
        }
    }
    for (int h = 0; h < ROWS * HEADS; h += 2) {
        for (int i = DIM / 2; i < DIM; i += 2) {
            d.q[h / HEADS][h % HEADS][i + 1] = d.q[h / HEADS][h % HEADS][i];
        }
    }
}

static void prepare(const tamis_backend *backend) {
    static const float eps = 1e-6f;
    const tamis_rope rope = {d.rope, TAMIS_F32, 0, K_ROWS, 64};
    tamis_k_insert_args k;
    tamis_q_prepare_args q;
    tamis_error error;
    state = 7;
    fill_bf16(d.x[0], K_ROWS * DIM);
    fill_bf16(d.q[0][0], ROWS * HEADS * DIM);
    fill_bf16(d.w[0], ROWS * HEADS);
    fill_rotation();
    fill_bf16(d.norm, DIM);
    for (int i = 0; i < K_ROWS; i++) {
        d.position[i] = i;
    }
    tamis_k_insert_args_default(&k);
    k.ratio = 1;
    k.norm_weight_type = TAMIS_BF16;
    k.tokens = K_ROWS;
    k.x = d.x[0];
    k.x_stride = DIM;
    k.positions = k.slots = d.position;
    k.norm_weight = d.norm;
    k.eps = &eps;
    k.rope = rope;
    k.k = cache();
    must(tamis_k_insert(backend, &k, 0, 1, &error), &error);
    tamis_q_prepare_args_default(&q);
    q.heads = HEADS;
    q.head_dim = DIM;
    q.weights_in_type = TAMIS_BF16;
    q.weights_out_type = TAMIS_F32;
    q.tokens = ROWS;
    q.q = d.q[0][0];
    q.q_token_stride = HEADS * DIM;
    q.q_head_stride = DIM;
    q.positions = d.position;
    q.rope = rope;
    q.weights_in = d.w;
    q.codes = d.q_codes[0][0];
    q.scales = d.q_scales[0][0];
    q.weights_out = d.weights;
    q.weights_in_stride = q.weights_out_stride = HEADS;
    q.codes_row_stride = HEADS * DIM / 2;
    q.codes_head_stride = DIM / 2;
    q.scales_row_stride = HEADS * DIM / 32;
    q.scales_head_stride = DIM / 32;
    must(tamis_q_prepare(backend, &q, 0, 1, &error), &error);
}

static void print_selection(const char *tier, const char *what) {
    char name[60];
    snprintf(name, sizeof name, "%s.positions", what);
    print(tier, name, d.positions, sizeof d.positions);
    snprintf(name, sizeof name, "%s.scores", what);
    print(tier, name, d.scores, sizeof d.scores);
}

static void levels(const tamis_backend *backend, const char *tier, int32_t numerics) {
    tamis_source_args s;
    tamis_consume_args c;
    tamis_mqa_logits_args m;
    tamis_error error;
    for (int i = 0; i < ROWS; i++) {
        d.ke[i] = 1 + i * (K_ROWS - 1) / (ROWS - 1);
    }
    tamis_mqa_logits_args_default(&m);
    m.numerics = numerics;
    m.k = cache();
    m.rows = rows();
    m.query = query();
    m.logits_type = TAMIS_F32;
    m.columns = m.logits_stride = K_ROWS;
    m.logits = d.logits;
    must(tamis_mqa_logits(backend, &m, 0, 1, &error), &error);
    print(tier, "logits", d.logits, sizeof d.logits);
    tamis_source_args_default(&s);
    s.numerics = numerics;
    s.k = cache();
    s.rows = rows();
    s.query = query();
    s.block_size = BLOCK;
    s.topk_blocks = s.blocks_stride = BLOCKS;
    s.blocks = d.blocks[0];
    s.counts = d.block_counts;
    s.selection = selection();
    s.workspace_bytes = tamis_source_workspace(&s, 1);
    s.workspace = aligned_alloc(64, (size_t)s.workspace_bytes);
    must(tamis_source(backend, &s, 0, 1, &error), &error);
    print(tier, "blocks", d.blocks, sizeof d.blocks);
    print_selection(tier, "source");
    tamis_consume_args_default(&c);
    c.numerics = numerics;
    c.k = cache();
    c.rows = rows();
    c.query = query();
    c.block_size = BLOCK;
    c.width = c.blocks_stride = BLOCKS;
    c.blocks = d.blocks[0];
    c.selection = selection();
    c.workspace_bytes = tamis_consume_workspace(&c, 1);
    c.workspace = aligned_alloc(64, (size_t)(c.workspace_bytes + 63) / 64 * 64);
    must(tamis_consume(backend, &c, 0, 1, &error), &error);
    print_selection(tier, "consumer");
    free(s.workspace);
    free(c.workspace);
}

static void run(const char *tier) {
    tamis_backend *backend;
    tamis_error error;
    must(tamis_backend_create(tier, &backend, &error), &error);
    prepare(backend);
    print(tier, "k.codes", d.k_codes, sizeof d.k_codes);
    print(tier, "k.scales", d.k_scales, sizeof d.k_scales);
    print(tier, "q.codes", d.q_codes, sizeof d.q_codes);
    print(tier, "q.scales", d.q_scales, sizeof d.q_scales);
    print(tier, "weights", d.weights, sizeof d.weights);
    levels(backend, tier, TAMIS_NUMERICS_EXACT);
    levels(backend, tier, TAMIS_NUMERICS_BF16);
    fill(d.k_scales, sizeof d.k_scales, 100, 40); /* spans of every width, some beyond doubles */
    fill(d.q_scales, sizeof d.q_scales, 110, 30);
    fill(d.k_codes, sizeof d.k_codes, 0, 256);
    levels(backend, tier, TAMIS_NUMERICS_EXACT);
    tamis_backend_destroy(backend);
}

int main(void) {
    int32_t supported = 0;
    for (int32_t i = 0; tamis_tier_name(i, &supported); i++) {
        if (supported) {
            run(tamis_tier_name(i, NULL));
        }
    }
    return 0;
}
