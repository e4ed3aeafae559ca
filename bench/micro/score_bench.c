/* SPDX-License-Identifier: MIT */
/*
 * score_bench.c: TSC cycles of the AVX2 kernels against ref/, for work on one kernel at a time.
 *
 * Not part of the default build: cmake --build build --target score_bench
 * Each line has the median and the least of several runs on warm code and a K of the stated size,
 * with random blocks, as a consumer row has them. On a busy machine only the least means much.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <x86intrin.h>

#include "kernels/kernels.h"

enum { HEADS = 32, DIM = 128, PAGE = 64, BLOCKS = 2048, POOL = 8 * BLOCKS, TOPK = 512, RUNS = 21 };

static uint64_t state = 88172645463325252u;

static uint32_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 20);
}

typedef struct bench {
    int64_t positions;
    int32_t ke;
    int32_t *pages, *blocks;
    uint8_t *k, *codes, *scales;
    float *weights, *logits;
    int32_t *selected;
    tamis_consume_args consume;
    tamis_sparse_mqa_logits_args sparse;
    tamis_mqa_logits_args dense;
    tamis_topk_args topk;
    tamis_publish_args publish;
} bench;

static void *take(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) {
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* BLOCKS different blocks of the context, ascending: one from each equal part of it. */
static void draw_blocks(bench *b) {
    int64_t part = b->positions / 8 / BLOCKS;
    for (int i = 0; i < BLOCKS; i++) {
        b->blocks[i] = (int32_t)(i * part + draw() % part);
    }
    qsort(b->blocks, BLOCKS, sizeof *b->blocks, ascending);
}

/* K of random codes whose scales span 0..2, in pages dealt at random. */
static void draw_memory(bench *b) {
    int64_t pages = b->positions / PAGE, page_bytes = PAGE * 68;
    b->k = take((size_t)(pages * page_bytes));
    b->pages = take((size_t)pages * sizeof *b->pages);
    for (int64_t i = 0; i < pages; i++) {
        int64_t other = draw() % (i + 1);
        b->pages[i] = b->pages[other];
        b->pages[other] = (int32_t)i;
        for (int64_t byte = 0; byte < page_bytes; byte++) {
            uint32_t x = draw();
            b->k[i * page_bytes + byte] = (uint8_t)(byte < PAGE * 64 ? x : 120 + x % 3);
        }
    }
    b->codes = take(HEADS * 64);
    b->scales = take(HEADS * 4);
    b->weights = take(HEADS * sizeof *b->weights);
    for (int i = 0; i < HEADS * 64; i++) {
        b->codes[i] = (uint8_t)draw();
    }
    for (int i = 0; i < HEADS * 4; i++) {
        b->scales[i] = (uint8_t)(120 + draw() % 3);
    }
    for (int i = 0; i < HEADS; i++) {
        b->weights[i] = (float)(draw() % 1000) / 1000.0f;
    }
    b->blocks = take(BLOCKS * sizeof *b->blocks);
    b->logits = take((size_t)b->positions * sizeof *b->logits);
    b->selected = take(4096 * sizeof *b->selected);
}

static void prepare(bench *b, int64_t positions) {
    b->positions = positions;
    b->ke = (int32_t)positions;
    draw_memory(b);
    draw_blocks(b);
    tamis_consume_args *c = &b->consume;
    c->numerics = TAMIS_NUMERICS_EXACT;
    c->k = (tamis_k_cache){TAMIS_K_MXFP4_PAGE, DIM, PAGE, 0,   positions / PAGE,
                           PAGE * 68,          0,   b->k, NULL};
    c->rows = (tamis_rows){1, NULL, &b->ke, NULL, b->pages, positions / PAGE, positions / PAGE, 1};
    c->query = (tamis_query){.heads = HEADS,
                             .head_dim = DIM,
                             .weights_type = TAMIS_F32,
                             .codes = b->codes,
                             .scales = b->scales,
                             .weights = b->weights,
                             .codes_row_stride = HEADS * 64,
                             .codes_head_stride = 64,
                             .scales_row_stride = HEADS * 4,
                             .scales_head_stride = 4,
                             .weights_row_stride = HEADS};
    c->block_size = 8;
    c->width = BLOCKS;
    c->blocks = b->blocks;
    c->selection.topk = TOPK;
    c->selection.positions = b->selected;
    c->workspace_bytes = tamis_consume_scratch_bytes(BLOCKS, 8);
    c->workspace = take((size_t)c->workspace_bytes);
    b->sparse = (tamis_sparse_mqa_logits_args){.numerics = c->numerics,
                                               .k = c->k,
                                               .rows = c->rows,
                                               .query = c->query,
                                               .block_size = 8,
                                               .logits_type = TAMIS_F32,
                                               .width = BLOCKS,
                                               .blocks = b->blocks,
                                               .logits = b->logits};
    b->dense = (tamis_mqa_logits_args){.numerics = c->numerics,
                                       .k = c->k,
                                       .rows = c->rows,
                                       .query = c->query,
                                       .logits_type = TAMIS_F32,
                                       .block_size = 8,
                                       .columns = positions,
                                       .logits = b->logits};
    b->topk = (tamis_topk_args){.logits_type = TAMIS_F32,
                                .rows = {.count = 1},
                                .logits = b->logits,
                                .width = POOL,
                                .selection = c->selection};
    b->publish = (tamis_publish_args){.block_size = 8,
                                      .topk_blocks = BLOCKS,
                                      .rows = c->rows,
                                      .block_max = b->logits,
                                      .blocks = b->selected};
}

static int ascending_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Run i does slice i of `nth`: the dense kernel meets K that is not in the cache. */
#define MEASURE_SLICES(label, tier, stage, args, items, runs, nth)                                 \
    do {                                                                                           \
        uint64_t ticks[RUNS];                                                                      \
        for (int run_ = 0; run_ < (runs); run_++) {                                                \
            uint64_t start_ = __rdtsc();                                                           \
            tamis_##stage##_##tier(&(args), run_ % (nth), nth);                                    \
            ticks[run_] = __rdtsc() - start_;                                                      \
        }                                                                                          \
        qsort(ticks, (runs), sizeof ticks[0], ascending_u64);                                      \
        printf("%-34s %-5s %9.2f cycles, least %9.2f\n", label, #tier,                             \
               (double)ticks[(runs) / 2] / (double)(items), (double)ticks[0] / (double)(items));   \
    } while (0)
#define MEASURE(label, tier, stage, args, items, runs)                                             \
    MEASURE_SLICES(label, tier, stage, args, items, runs, 1)

/* One token through q_prepare and one through k_insert, on random bf16. */
static void measure_preparing(bench *b) {
    static uint16_t q[HEADS * DIM];
    static float table[64], norm[DIM], eps = 1e-6f;
    static const int64_t zero = 0;
    for (int i = 0; i < HEADS * DIM; i++) {
        q[i] = (uint16_t)(0x3F00 + draw() % 256);
    }
    for (int i = 0; i < DIM; i++) {
        table[i % 64] = norm[i] = (float)(draw() % 1000) / 1000.0f;
    }
    tamis_rope rope = {table, TAMIS_F32, 0, 1, 64};
    tamis_q_prepare_args prepare_q = {.heads = HEADS,
                                      .head_dim = DIM,
                                      .tokens = 1,
                                      .q = q,
                                      .q_head_stride = DIM,
                                      .positions = &zero,
                                      .rope = rope,
                                      .codes = b->codes,
                                      .scales = b->scales,
                                      .codes_head_stride = DIM / 2,
                                      .scales_head_stride = DIM / 32};
    tamis_k_insert_args insert = {.ratio = 1,
                                  .norm_weight_type = TAMIS_F32,
                                  .tokens = 1,
                                  .x = q,
                                  .positions = &zero,
                                  .slots = &zero,
                                  .norm_weight = norm,
                                  .eps = &eps,
                                  .rope = rope,
                                  .k = b->consume.k};
    MEASURE("q_prepare, a head", avx2, q_prepare, prepare_q, HEADS, RUNS);
    MEASURE("q_prepare, a head", ref, q_prepare, prepare_q, HEADS, RUNS);
    MEASURE("k_insert, a token", avx2, k_insert, insert, 1, RUNS);
    MEASURE("k_insert, a token", ref, k_insert, insert, 1, RUNS);
}

/* Selection of TOPK among scores of one kind; `kind` 0 random, 1 equal, 2 NaN. */
static void fill_scores(bench *b, int64_t n, int kind) {
    for (int64_t i = 0; i < n; i++) {
        float random = (float)(draw() % 16777216) + (float)(draw() % 16777216);
        b->logits[i] = kind == 0 ? random : kind == 1 ? 1.0f : __builtin_nanf("");
    }
}

int main(int argc, char **argv) {
    bench b = {0};
    prepare(&b, argc > 1 ? atoll(argv[1]) : 262144);
    if (b.positions < POOL || b.positions % PAGE) {
        fprintf(stderr, "positions: at least %d and a multiple of %d\n", POOL, PAGE);
        return 2;
    }
    printf("32 x 128, %lld positions, per position\n", (long long)b.positions);
    MEASURE("sparse_mqa_logits, 2048 blocks", avx2, sparse_mqa_logits, b.sparse, POOL, RUNS);
    MEASURE("sparse_mqa_logits, 2048 blocks", ref, sparse_mqa_logits, b.sparse, POOL, 3);
    MEASURE_SLICES("mqa_logits", avx2, mqa_logits, b.dense, POOL, RUNS, (int)(b.positions / POOL));
    MEASURE("consume", avx2, consume, b.consume, POOL, RUNS);
    b.sparse.query.heads = 28;
    MEASURE("sparse_mqa_logits, 28 heads", avx2, sparse_mqa_logits, b.sparse, POOL, RUNS);
    b.sparse.query.heads = HEADS;
    b.scales[0] = 100; /* with K's span more than the integers of the fast path hold */
    MEASURE("sparse_mqa_logits, wide spans", avx2, sparse_mqa_logits, b.sparse, POOL, 3);
    MEASURE("sparse_mqa_logits, wide spans", ref, sparse_mqa_logits, b.sparse, POOL, 3);
    b.ke = 1; /* nearly all of it prepares the row */
    b.dense.columns = 1;
    MEASURE("mqa_logits, a row of one position", avx2, mqa_logits, b.dense, 1, RUNS);
    b.ke = (int32_t)b.positions;
    static const char *const kinds[] = {"random", "equal", "NaN"};
    for (int kind = 0; kind < 3; kind++) {
        char label[64];
        fill_scores(&b, b.positions, kind);
        snprintf(label, sizeof label, "topk 512 of 16384, %s", kinds[kind]);
        MEASURE(label, avx2, topk, b.topk, POOL, RUNS);
        MEASURE(label, ref, topk, b.topk, POOL, RUNS);
        snprintf(label, sizeof label, "publish, %s", kinds[kind]);
        MEASURE(label, avx2, publish, b.publish, b.positions / 8, RUNS);
    }
    measure_preparing(&b);
    return 0;
}
