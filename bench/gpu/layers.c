/* SPDX-License-Identifier: MIT */
#include "layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t flush_bytes = (int64_t)512 << 20;

void good(const bench *b, tamis_status status) {
    if (status != TAMIS_OK) {
        printf("FAILED: %s: required %s, found %s\n", b->error.argument, b->error.required,
               b->error.found);
        exit(1);
    }
}

void bench_begin(bench *b) {
    good(b, tamis_cuda_create_on(0, &b->cuda, &b->error));
    good(b, tamis_cuda_stream_create(b->cuda, &b->stream, &b->error));
    good(b, tamis_cuda_event_create(b->cuda, &b->from, &b->error));
    good(b, tamis_cuda_event_create(b->cuda, &b->to, &b->error));
    good(b, tamis_cuda_alloc(b->cuda, flush_bytes, &b->flush, &b->error));
}

void bench_end(bench *b) {
    release(b, 0);
    tamis_cuda_free(b->cuda, b->flush, NULL);
    tamis_cuda_event_destroy(b->cuda, b->from, NULL);
    tamis_cuda_event_destroy(b->cuda, b->to, NULL);
    tamis_cuda_stream_destroy(b->cuda, b->stream, NULL);
    tamis_cuda_destroy(b->cuda);
}

void *device(bench *b, int64_t bytes) {
    void *memory = NULL;
    if (b->buffers == MAX_BUFFERS) {
        abort();
    }
    good(b, tamis_cuda_alloc(b->cuda, bytes, &memory, &b->error));
    b->memory[b->buffers++] = memory;
    return memory;
}

void release(bench *b, int left) {
    while (b->buffers > left) {
        tamis_cuda_free(b->cuda, b->memory[--b->buffers], NULL);
    }
}

void *host(int64_t bytes) {
    void *memory = calloc(1, (size_t)bytes + 1);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

void copy(bench *b, void *to, const void *from, int64_t bytes) {
    good(b, tamis_cuda_copy_in(b->cuda, to, from, bytes, b->stream, &b->error));
    good(b, tamis_cuda_stream_sync(b->cuda, b->stream, &b->error));
}

void copy_back(bench *b, void *to, const void *from, int64_t bytes) {
    good(b, tamis_cuda_copy_out(b->cuda, to, from, bytes, b->stream, &b->error));
    good(b, tamis_cuda_stream_sync(b->cuda, b->stream, &b->error));
}

void *send(bench *b, void *from, int64_t bytes) {
    void *memory = device(b, bytes);
    copy(b, memory, from, bytes);
    free(from);
    return memory;
}

/* ---- inputs ---- */

uint32_t random_bits(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 20);
}

void shuffle(int32_t *numbers, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t other = random_bits() % (uint32_t)(i + 1);
        numbers[i] = numbers[other];
        numbers[other] = (int32_t)i;
    }
}

static void replace(uint8_t *codes, int64_t bytes, int count) {
    for (int i = 0; i < count; i++) {
        codes[random_bits() % (uint32_t)bytes] = (uint8_t)random_bits();
    }
}

/* Exponents as close together as those of trained tensors. */
static void fill_scales(uint8_t *scales, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++) {
        scales[i] = (uint8_t)(120 + random_bits() % 3);
    }
}

tamis_k_cache make_k(int32_t page, int64_t pages) {
    enum { CODES = DIM / 2, CHANGED = 1 };
    int64_t stride = tamis_k_page_stride(page, DIM, 16);
    uint8_t *pool = host(pages * stride), position[CODES] = {0};
    replace(position, sizeof position, 8 * CODES);
    for (int64_t p = 0; p < pages; p++) {
        for (int32_t slot = 0; slot < page; slot++) {
            replace(position, sizeof position, CHANGED);
            memcpy(pool + p * stride + slot * CODES, position, sizeof position);
        }
        fill_scales(pool + p * stride + page * CODES, page * (DIM / 32));
    }
    return (tamis_k_cache){.layout = TAMIS_K_MXFP4_PAGE,
                           .head_dim = DIM,
                           .page_size = page,
                           .size = pages,
                           .stride = stride,
                           .codes = pool};
}

tamis_query make_query(int64_t rows) {
    enum { CODES = HEADS * (DIM / 2), SCALES = HEADS * (DIM / 32), CHANGED = 6, ALONE = 40 };
    uint8_t *codes = host(rows * CODES), *scales = host(rows * SCALES), walk[CODES] = {0},
            first[SCALES];
    float *weights = host(rows * HEADS * 4), weight[HEADS];
    replace(walk, sizeof walk, 8 * CODES);
    fill_scales(first, sizeof first);
    for (int h = 0; h < HEADS; h++) {
        weight[h] = (float)(int)(random_bits() % 2001) / 1000 - 0.5f;
    }
    for (int64_t r = 0; r < rows; r++) {
        replace(walk, sizeof walk, CHANGED);
        memcpy(codes + r * CODES, walk, sizeof walk);
        replace(codes + r * CODES, CODES, ALONE);
        memcpy(scales + r * SCALES, first, sizeof first);
        memcpy(weights + r * HEADS, weight, sizeof weight);
    }
    return (tamis_query){.heads = HEADS,
                         .head_dim = DIM,
                         .weights_type = TAMIS_F32,
                         .codes = codes,
                         .scales = scales,
                         .weights = weights,
                         .codes_row_stride = CODES,
                         .codes_head_stride = DIM / 2,
                         .scales_row_stride = SCALES,
                         .scales_head_stride = DIM / 32,
                         .weights_row_stride = HEADS};
}

void free_query(tamis_query *query) {
    free((void *)(uintptr_t)query->codes);
    free((void *)(uintptr_t)query->scales);
    free((void *)(uintptr_t)query->weights);
}

tamis_query send_query(bench *b, const tamis_query *query, int64_t rows) {
    tamis_query q = *query;
    int64_t codes = rows * q.codes_row_stride, scales = rows * q.scales_row_stride,
            weights = rows * q.weights_row_stride * 4;
    q.codes = device(b, codes);
    q.scales = device(b, scales);
    q.weights = device(b, weights);
    copy(b, (void *)(uintptr_t)q.codes, query->codes, codes);
    copy(b, (void *)(uintptr_t)q.scales, query->scales, scales);
    copy(b, (void *)(uintptr_t)q.weights, query->weights, weights);
    return q;
}

/* ---- the indexer ---- */

tamis_indexer *make_indexer(bench *b, int layers, int32_t page, int32_t sparse_logits) {
    int32_t ratios[MAX_LAYERS], sources[MAX_LAYERS];
    for (int32_t i = 0; i < layers; i++) {
        ratios[i] = 1;
        sources[i] = i;
    }
    tamis_model model = {.struct_size = sizeof model,
                         .num_layers = layers,
                         .compress_ratios = ratios,
                         .kv_source_layer_ids = sources,
                         .index_source_layer_ids = sources,
                         .num_kv_sources = 1,
                         .num_index_sources = layers,
                         .candidate_source_layer_id = 0,
                         .candidate_topk_blocks = BLOCKS,
                         .candidate_block_size = BLOCK,
                         .index_n_heads = HEADS,
                         .index_head_dim = DIM,
                         .index_topk = TOPK};
    tamis_settings settings;
    tamis_indexer_options options;
    tamis_indexer *indexer = NULL;
    tamis_settings_default(&settings);
    settings.indexer_sparse_logits = sparse_logits;
    tamis_indexer_options_default(&options);
    options.model = &model;
    options.settings = &settings;
    options.page_size = page;
    good(b, tamis_indexer_create(&options, &indexer, &b->error));
    return indexer;
}

/* ---- times ---- */

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

float time_once(bench *b, timed_call *call, void *context, int i) {
    float elapsed = 0;
    b->cuda->driver.memory_set((tamis_cu_pointer)(uintptr_t)b->flush, (unsigned char)i,
                               (size_t)flush_bytes, b->stream);
    good(b, tamis_cuda_event_record(b->cuda, b->from, b->stream, &b->error));
    call(context, i);
    good(b, tamis_cuda_event_record(b->cuda, b->to, b->stream, &b->error));
    good(b, tamis_cuda_event_elapsed(b->cuda, b->from, b->to, &elapsed, &b->error));
    return elapsed;
}

float median_of(float *times, int runs) {
    qsort(times, (size_t)runs, sizeof *times, by_size);
    return times[runs / 2];
}

float median_time(bench *b, int runs, timed_call *call, void *context) {
    float times[MAX_RUNS];
    time_once(b, call, context, 0); /* warms up */
    for (int i = 0; i < runs; i++) {
        times[i] = time_once(b, call, context, i);
    }
    return median_of(times, runs);
}
