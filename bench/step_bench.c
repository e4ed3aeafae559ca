/* SPDX-License-Identifier: MIT */
/*
 * step_bench.c: nanoseconds to make a step of 256 requests that verify 4 drafts each (1,280 rows),
 * in a model of nine layers: one full layer on K of ratio 2, a candidate source and four
 * consumers on K of ratio 1, 32 heads of 128 dims, 2,048 blocks of 8. Prints the median, the least
 * and the largest of many.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tamis/tamis.h>

enum { REQUESTS = 256, FRESH = 5, REPEATS = 20001, PAGE = 64, PAGES = 8192 };

static const int32_t ratios[] = {0, 2, 2, 1, 1, 1, 1, 1, 0};
static const int32_t kv[] = {1, 3};
static const int32_t selecting[] = {1, 3, 4, 5, 6, 7};

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void die(const tamis_error *error) {
    char text[320];
    tamis_error_text(error, text, sizeof text);
    fprintf(stderr, "step_bench: %s\n", text);
    exit(1);
}

static tamis_indexer *make_indexer(void) {
    tamis_model model = {.struct_size = sizeof model,
                         .num_layers = 9,
                         .compress_ratios = ratios,
                         .kv_source_layer_ids = kv,
                         .index_source_layer_ids = selecting,
                         .num_kv_sources = 2,
                         .num_index_sources = 6,
                         .candidate_source_layer_id = 3,
                         .candidate_topk_blocks = 2048,
                         .candidate_block_size = 8,
                         .index_n_heads = 32,
                         .index_head_dim = 128,
                         .index_topk = 512};
    tamis_indexer_options options;
    tamis_settings settings;
    tamis_indexer *indexer;
    tamis_error error;
    tamis_settings_default(&settings);
    settings.indexer_sparse_logits = TAMIS_SPARSE_ON;
    tamis_indexer_options_default(&options);
    options.model = &model;
    options.settings = &settings;
    options.page_size = PAGE;
    if (tamis_indexer_create(&options, &indexer, &error) != TAMIS_OK) {
        die(&error);
    }
    return indexer;
}

static tamis_plan *make_plan(const tamis_indexer *indexer) {
    tamis_plan_limits limits;
    tamis_plan *plan = NULL;
    tamis_error error;
    tamis_plan_limits_default(&limits);
    limits.max_requests = REQUESTS;
    limits.max_batched_tokens = REQUESTS * FRESH;
    limits.draft_tokens = FRESH - 1;
    limits.max_context = PAGES * PAGE;
    int64_t bytes = tamis_plan_bytes(indexer, &limits, &error);
    if (bytes < 0 || tamis_plan_init(indexer, &limits, aligned_alloc(64, (size_t)bytes), bytes,
                                     &plan, &error) != TAMIS_OK) {
        die(&error);
    }
    return plan;
}

int main(void) {
    static int64_t context[REQUESTS], took[REPEATS];
    static int32_t starts[REQUESTS + 1], table[REQUESTS * PAGES];
    tamis_indexer *indexer = make_indexer();
    tamis_plan *plan = make_plan(indexer);
    tamis_batch batch;
    tamis_step step;
    tamis_error error;
    tamis_batch_default(&batch);
    batch.requests = REQUESTS;
    batch.tokens = REQUESTS * FRESH;
    batch.context = context;
    batch.query_start = starts;
    for (int k = 0; k < 2; k++) {
        batch.page_table[k] = table;
        batch.page_table_stride[k] = batch.page_table_width[k] = PAGES;
    }
    for (int i = 0; i < REQUESTS; i++) {
        context[i] = 1000 + 1021 * i;
        starts[i + 1] = FRESH * (i + 1);
    }
    for (int i = 0; i < REPEATS; i++) {
        context[i % REQUESTS] += 1; /* lengths change from step to step */
        int64_t begin = now();
        if (tamis_step_make(plan, &batch, &step, &error) != TAMIS_OK) {
            die(&error);
        }
        took[i] = now() - begin;
    }
    qsort(took, REPEATS, sizeof took[0], by_size);
    printf("step of %d requests x %d tokens, %lld rows: median %lld ns, least %lld, largest %lld\n",
           REQUESTS, FRESH, (long long)step.counts->rows, (long long)took[REPEATS / 2],
           (long long)took[0], (long long)took[REPEATS - 1]);
    tamis_indexer_destroy(indexer);
    return 0;
}
