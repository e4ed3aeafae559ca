/* SPDX-License-Identifier: MIT */
/*
 * shards_bench.c: what sharing positions costs a rank beside scoring its part: one decode row of
 * the released model (32 x 128, 512 of 2,048 blocks of 8) at 1,048,576 positions.
 *
 * usage: shards_bench [RANKS]: microseconds a row, the median of 15 runs, for 2, 4 and 8 ranks, or
 * one line for RANKS, to be run under callgrind with --toggle-collect=PART (a function below).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tamis/tamis.h>

enum { POSITIONS = 1 << 20, SIZE = 8, HEADS = 32, DIM = 128, TOPK = 512, TOPK_BLOCKS = 2048 };
enum { BLOCKS = POSITIONS / SIZE, MOST = TOPK_BLOCKS - 1, RANKS = 8, RUNS = 15 };

static const int32_t visible = POSITIONS;
static tamis_backend *backend;
static int32_t first[BLOCKS], last[BLOCKS], before[BLOCKS], published[TOPK_BLOCKS];
static int64_t start[2];
static tamis_mqa_logits_args score;
static tamis_shard_blocks_args choose;
static tamis_shard_publish_args publish;
static tamis_shard_lists_args lists;
static tamis_consume_args consume;
static tamis_shard_topk_args topk;

static void must(tamis_status status, const tamis_error *error) {
    if (status != TAMIS_OK) {
        fprintf(stderr, "shards_bench: %s: required %s, found %s\n", error->argument,
                error->required, error->found);
        exit(1);
    }
}

static void *take(int64_t bytes) {
    void *memory = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    if (memory == NULL) {
        exit(1);
    }
    return memory;
}

/* The parts, each a function that callgrind can be told to count. */
#define PART(name)                                                                                 \
    __attribute__((noinline)) void part_##name(void);                                              \
    __attribute__((noinline)) void part_##name(void) {                                             \
        tamis_error error;                                                                         \
        must(CALL_##name(&error), &error);                                                         \
    }
#define CALL_score(e)   tamis_mqa_logits(backend, &score, 0, 1, e)
#define CALL_choose(e)  tamis_shard_blocks(backend, &choose, 0, 1, e)
#define CALL_publish(e) tamis_shard_publish(backend, &publish, 0, 1, e)
#define CALL_lists(e)   tamis_shard_lists(backend, &lists, 0, 1, e)
#define CALL_consume(e) tamis_consume(backend, &consume, 0, 1, e)
#define CALL_topk(e)    tamis_shard_topk(backend, &topk, 0, 1, e)
#define PARTS(X)        X(score) X(choose) X(publish) X(lists) X(consume) X(topk)
PARTS(PART)

static float random_score(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8);
}

/* Rank 0 of a round robin of pages of 8 blocks. */
static tamis_shard make_shard(int32_t ranks) {
    tamis_shard shard;
    tamis_error error;
    tamis_shard_default(&shard);
    start[1] = 0;
    for (int32_t b = 0; b < BLOCKS; b += 8 * ranks) {
        first[start[1]] = b;
        last[start[1]++] = b + 8;
    }
    shard.ranks = ranks;
    shard.requests = 1;
    shard.start = start;
    shard.first = first;
    shard.last = last;
    must(tamis_shard_index(&shard, before, &error), &error);
    return shard;
}

static void make_scoring(int64_t own) {
    static int32_t ke;
    static uint8_t codes[HEADS * DIM / 2], scales[HEADS * DIM / 32];
    static float weights[HEADS];
    uint8_t *k = take(own * 68);
    for (int64_t i = 0; i < own * 68; i++) {
        k[i] = (uint8_t)(i % 68 < 64 ? (int)random_score() >> 8 : 125 + i % 3);
    }
    for (int32_t i = 0; i < HEADS * DIM / 2; i++) {
        codes[i] = (uint8_t)((int)random_score() >> 8);
    }
    memset(scales, 126, sizeof scales);
    for (int32_t h = 0; h < HEADS; h++) {
        weights[h] = 1.0f + (float)h;
    }
    ke = (int32_t)own;
    tamis_mqa_logits_args_default(&score);
    score.numerics = TAMIS_NUMERICS_EXACT;
    score.k = (tamis_k_cache){TAMIS_K_MXFP4_ROW, DIM, 0, 0, own, 68, 0, k, NULL};
    score.rows.count = 1;
    score.rows.ke = &ke;
    score.query =
        (tamis_query){HEADS,        DIM,     TAMIS_F32,     0,        codes, scales, weights,
                      sizeof codes, DIM / 2, sizeof scales, DIM / 32, HEADS};
    score.block_size = SIZE;
    score.block_max = take(own / SIZE * 4);
}

/* The candidates of all ranks: rank 0's own, and random ones of the others. */
static void make_level(int32_t ranks, const tamis_shard *shard) {
    int32_t *ids = take((int64_t)ranks * MOST * 4), *counts = take((int64_t)ranks * 4);
    float *scores = take((int64_t)ranks * MOST * 4);
    for (int64_t i = 0; i < (int64_t)ranks * MOST; i++) {
        int64_t k = i / MOST, step = BLOCKS / MOST; /* ascending, other ids on each rank */
        ids[i] = (int32_t)(i % MOST * step + k * 8 % step);
        scores[i] = random_score();
    }
    for (int32_t k = 0; k < ranks; k++) {
        counts[k] = MOST;
    }
    tamis_shard_blocks_args_default(&choose);
    choose.topk_blocks = TOPK_BLOCKS;
    choose.shard = *shard;
    choose.rows = 1;
    choose.visible = &visible;
    choose.block_max = score.block_max;
    choose.width = MOST;
    choose.ids = take(MOST * 4);
    choose.scores = take(MOST * 4);
    choose.counts = take(4);
    tamis_shard_publish_args_default(&publish);
    publish.block_size = SIZE;
    publish.topk_blocks = TOPK_BLOCKS;
    publish.ranks = ranks;
    publish.rows = 1;
    publish.visible = &visible;
    publish.width = publish.ids_rank_stride = publish.scores_rank_stride = MOST;
    publish.ids = ids;
    publish.scores = scores;
    publish.counts = counts;
    publish.counts_rank_stride = 1;
    publish.blocks = published;
}

static void make_consumer(const tamis_shard *shard) {
    tamis_shard_lists_args_default(&lists);
    lists.shard = *shard;
    lists.rows = 1;
    lists.width = TOPK_BLOCKS;
    lists.blocks = published;
    lists.own = take(TOPK_BLOCKS * 4);
    lists.own_counts = take(4);
    tamis_consume_args_default(&consume);
    consume.numerics = TAMIS_NUMERICS_EXACT;
    consume.k = score.k;
    consume.rows = score.rows;
    consume.query = score.query;
    consume.block_size = SIZE;
    consume.width = TOPK_BLOCKS;
    consume.blocks = lists.own;
    consume.counts = lists.own_counts;
    consume.selection.topk = TOPK;
    consume.selection.positions = take(TOPK * 4);
    consume.selection.scores = take(TOPK * 4);
    consume.workspace_bytes = (int64_t)TOPK_BLOCKS * (SIZE + 1) * 4 + 256;
    consume.workspace = take(consume.workspace_bytes);
}

static void make_merge(int32_t ranks) {
    int32_t *positions = take((int64_t)ranks * TOPK * 4), *counts = take((int64_t)ranks * 4);
    float *scores = take((int64_t)ranks * TOPK * 4);
    for (int64_t i = 0; i < (int64_t)ranks * TOPK; i++) {
        positions[i] = (int32_t)(i % TOPK * (POSITIONS / TOPK) + i / TOPK * SIZE);
        scores[i] = random_score();
    }
    for (int32_t k = 0; k < ranks; k++) {
        counts[k] = TOPK;
    }
    tamis_shard_topk_args_default(&topk);
    topk.ranks = ranks;
    topk.rows = 1;
    topk.width = topk.positions_rank_stride = topk.scores_rank_stride = TOPK;
    topk.positions = positions;
    topk.scores = scores;
    topk.counts = counts;
    topk.counts_rank_stride = 1;
    topk.selection.topk = TOPK;
    topk.selection.positions = take(TOPK * 4);
    topk.selection.scores = take(TOPK * 4);
}

static int compare(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(void (*part)(void)) {
    double times[RUNS];
    for (int i = 0; i < RUNS; i++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        part();
        clock_gettime(CLOCK_MONOTONIC, &to);
        times[i] =
            (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3;
    }
    qsort(times, RUNS, sizeof *times, compare);
    return times[RUNS / 2];
}

static void make(int32_t ranks) {
    tamis_shard shard = make_shard(ranks);
    make_scoring(POSITIONS / ranks);
    make_level(ranks, &shard);
    make_consumer(&shard);
    make_merge(ranks);
}

static void run_once(int32_t ranks) {
    make(ranks);
#define RUN_ONCE(name) part_##name();
    PARTS(RUN_ONCE)
    printf("%d ranks, once\n", ranks);
}

int main(int argc, char **argv) {
    tamis_error error;
    must(tamis_backend_create("auto", &backend, &error), &error);
    if (argc > 1) {
        run_once(atoi(argv[1]) > 0 && atoi(argv[1]) <= RANKS ? atoi(argv[1]) : 1);
        return 0;
    }
    printf("us a row, tier %s\n%6s", tamis_backend_tier(backend), "ranks");
#define PRINT_NAME(name) printf("%10s", #name);
    PARTS(PRINT_NAME)
    for (int32_t ranks = 2; ranks <= RANKS; ranks *= 2) {
        make(ranks);
        printf("\n%6d", ranks);
#define PRINT_TIME(name) printf("%10.1f", median(part_##name));
        PARTS(PRINT_TIME)
    }
    printf("\n");
    tamis_backend_destroy(backend);
    return 0; /* what was taken goes with the process */
}
