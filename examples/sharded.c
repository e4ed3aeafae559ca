/* SPDX-License-Identifier: MIT */
/*
 * sharded.c: one request whose positions lie on three ranks, here threads of one process. Each rank
 * keeps K of its own blocks alone, and every rank gets the whole selection.
 * docs/context-parallel.md walks through it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tamis/tamis.h>

enum { RANKS = 3, HEADS = 32, DIM = 128, TOPK = 16, BLOCK = 8, TOKENS = 4000, ROWS = 4 };
enum { BLOCKS = TOKENS / BLOCK, OWN = (BLOCKS + RANKS - 1) / RANKS };

/* What all ranks share: the model, and the queries that each of them has. */
static tamis_indexer *indexer;
static tamis_query query;

typedef struct rank {
    int32_t id;
    tamis_transport transport;
    int32_t first[OWN], last[OWN], blocks; /* its intervals */
    int32_t positions[ROWS][TOPK];
    int64_t slots[ROWS][TOPK]; /* in its own K; -1: another rank's */
} rank;

static void must(tamis_status status, const tamis_error *error) {
    char text[400];
    if (status != TAMIS_OK) {
        tamis_error_text(error, text, sizeof text);
        fprintf(stderr, "sharded: %s\n", text);
        exit(1);
    }
}

/* Codes of any bits are valid; scales that are close together. */
static void fill(uint8_t *codes, int64_t n, uint8_t *scales, int64_t m, uint32_t state) {
    for (int64_t i = 0; i < n; i++) {
        codes[i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
    }
    for (int64_t i = 0; i < m; i++) {
        scales[i] = (uint8_t)(125 + ((state = state * 1664525u + 1013904223u) >> 30));
    }
}

static void create(void) {
    static const int32_t ratios[2] = {1, 1}, owners[] = {0}, selecting[] = {0, 1};
    /* clang-format off */
    const tamis_model model = {
        sizeof model, 2, ratios, owners, selecting, 1 /* owner */, 2 /* selecting */,
        0 /* the candidate source */, 64 /* blocks it publishes */, BLOCK, HEADS, DIM, TOPK};
    /* clang-format on */
    tamis_settings settings;
    tamis_indexer_options options;
    tamis_error error;
    tamis_settings_default(&settings);
    tamis_indexer_options_default(&options);
    options.model = &model;
    options.settings = &settings;
    options.k_layout = TAMIS_K_MXFP4_SPLIT;
    options.context_parallel = RANKS;
    must(tamis_indexer_create(&options, &indexer, &error), &error);

    static uint8_t codes[ROWS][HEADS][DIM / 2], scales[ROWS][HEADS][DIM / 32];
    static float weights[ROWS * HEADS];
    fill(codes[0][0], sizeof codes, scales[0][0], sizeof scales, 7);
    for (int32_t i = 0; i < ROWS * HEADS; i++) {
        weights[i] = 0.01f * (float)(i % 9 + 1);
    }
    /* clang-format off */
    query = (tamis_query){HEADS, DIM, TAMIS_F32, 0, codes[0][0], scales[0][0], weights,
                          HEADS * DIM / 2, DIM / 2, HEADS * DIM / 32, DIM / 32, HEADS};
    /* clang-format on */
}

/* K of the rank's own blocks, one after the other; a position's K does not depend on who has it. */
static tamis_k_cache keep_keys(const rank *r) {
    int64_t held = (int64_t)r->blocks * BLOCK;
    uint8_t *codes = malloc((size_t)(held * DIM / 2)), *scales = malloc((size_t)(held * DIM / 32));
    for (int32_t i = 0; i < r->blocks; i++) {
        for (int32_t j = 0; j < BLOCK; j++) {
            int64_t own = (int64_t)i * BLOCK + j, position = (int64_t)r->first[i] * BLOCK + j;
            fill(codes + own * DIM / 2, DIM / 2, scales + own * DIM / 32, DIM / 32,
                 (uint32_t)position * 2654435761u);
        }
    }
    return (tamis_k_cache){TAMIS_K_MXFP4_SPLIT, DIM, 0, 0, held, DIM / 2, DIM / 32, codes, scales};
}

static tamis_shards *join(const rank *r, void **memory) {
    tamis_plan_limits limits;
    tamis_shards_options options;
    tamis_shards *shards;
    tamis_error error;
    tamis_plan_limits_default(&limits);
    limits.max_requests = 1;
    limits.max_batched_tokens = ROWS;
    limits.max_context = TOKENS;
    tamis_shards_options_default(&options);
    options.limits = &limits;
    options.transport = &r->transport;
    int64_t bytes = tamis_shards_bytes(indexer, &options, &error);
    *memory = aligned_alloc(64, (size_t)bytes);
    must(tamis_shards_init(indexer, &options, *memory, bytes, &shards, &error), &error);
    return shards;
}

/* The last ROWS tokens of the one request are new. */
static void make_step(const rank *r, tamis_shards *shards) {
    static const int64_t context[] = {TOKENS};
    static const int32_t query_start[] = {0, ROWS};
    const int64_t start[] = {0, r->blocks}, held[] = {(int64_t)r->blocks * BLOCK};
    tamis_shards_batch batch;
    tamis_error error;
    tamis_shards_batch_default(&batch);
    batch.batch.requests = 1;
    batch.batch.tokens = ROWS;
    batch.batch.context = context;
    batch.batch.query_start = query_start;
    batch.shard[0].rank = r->id;
    batch.shard[0].ranks = RANKS;
    batch.shard[0].block_size = BLOCK;
    batch.shard[0].requests = 1;
    batch.shard[0].start = start;
    batch.shard[0].first = r->first;
    batch.shard[0].last = r->last;
    batch.held[0] = held;
    must(tamis_shards_step(shards, &batch, &error), &error);
}

static void *run_rank(void *argument) {
    rank *r = argument;
    tamis_layer_args args;
    tamis_error error;
    void *memory;
    for (int32_t b = r->id; b < BLOCKS; b += RANKS) { /* round robin; any other split will do */
        r->first[r->blocks] = b;
        r->last[r->blocks++] = b + 1;
    }
    tamis_shards *shards = join(r, &memory);
    make_step(r, shards);
    tamis_layer_args_default(&args);
    args.k = keep_keys(r);
    args.query = query;
    args.selection.positions = r->positions[0];
    args.selection.slots = r->slots[0];
    args.selection.positions_stride = args.selection.slots_stride = TOPK;
    args.layer = 0;
    must(tamis_shards_source_run(shards, &args, &error), &error);
    args.layer = 1;
    must(tamis_shards_consumer_run(shards, &args, &error), &error);
    free(args.k.codes);
    free(args.k.scales);
    free(memory);
    return NULL;
}

/* Every selected position lies on exactly one rank. */
static void check(const rank *ranks, int32_t row) {
    for (int32_t i = 0; i < TOPK; i++) {
        int32_t owners = 0;
        for (int32_t k = 0; k < RANKS; k++) {
            owners += ranks[k].slots[row][i] >= 0;
        }
        if (owners != 1) {
            fprintf(stderr, "sharded: position %d is on %d ranks\n", ranks[0].positions[row][i],
                    owners);
            exit(1);
        }
    }
}

int main(void) {
    static rank ranks[RANKS];
    pthread_t threads[RANKS];
    tamis_local_group *group;
    tamis_error error;
    create();
    must(tamis_local_group_create(RANKS, 10000, &group, &error), &error);
    for (int32_t k = 0; k < RANKS; k++) {
        ranks[k].id = k;
        must(tamis_local_group_transport(group, k, &ranks[k].transport, &error), &error);
        pthread_create(&threads[k], NULL, run_rank, &ranks[k]);
    }
    for (int32_t k = 0; k < RANKS; k++) {
        pthread_join(threads[k], NULL);
    }
    for (int32_t row = 0; row < ROWS; row++) {
        printf("row %d:", row);
        for (int32_t i = 0; i < TOPK; i++) {
            printf(" %d", ranks[0].positions[row][i]);
        }
        printf("\n");
        check(ranks, row);
        for (int32_t k = 1; k < RANKS; k++) {
            if (memcmp(ranks[k].positions, ranks[0].positions, sizeof ranks[0].positions) != 0) {
                fprintf(stderr, "sharded: rank %d selected something else\n", k);
                return 1;
            }
        }
    }
    tamis_local_group_destroy(group);
    tamis_indexer_destroy(indexer);
    return 0;
}
