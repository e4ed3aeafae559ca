/* SPDX-License-Identifier: MIT */
/*
 * layers.h: what programs share that time layers of device plans: a device, inputs as trained
 * indexers make them, a model whose first layer publishes for the others.
 *
 * Rows and positions are walks: a position has its predecessor's codes but for one of 64 bytes; a
 * row its predecessor's but for 6 of 2,048, and 40 more that it has alone. Published lists then
 * keep 0.73, 0.70 and 0.63 of a million positions' blocks to the next, 4th and 16th row, where
 * trained indexers keep 0.71, 0.66 and 0.61; 0.76, 0.75 and 0.69 at 262,144 positions.
 */
#ifndef TAMIS_BENCH_LAYERS_H
#define TAMIS_BENCH_LAYERS_H

#include <tamis/tamis.h>

#include "cache/address.h"
#include "kernels/cuda/plan_cuda.h"

enum { HEADS = 32, DIM = 128, TOPK = 512, BLOCKS = 2048, BLOCK = 8, POOL = BLOCKS * BLOCK };
enum { MAX_BUFFERS = 64, MAX_RUNS = 9, MAX_LAYERS = 8 };

typedef struct bench {
    tamis_cuda *cuda;
    void *stream, *from, *to, *flush;
    tamis_error error;
    void *memory[MAX_BUFFERS];
    int buffers;
} bench;

void bench_begin(bench *b);
void bench_end(bench *b);
/* Ends the program unless the call succeeded. */
void good(const bench *b, tamis_status status);

/* Cleared; ends the program without memory. */
void *host(int64_t bytes);
/* Freed by release, the last one first, down to `left` of them. */
void *device(bench *b, int64_t bytes);
void release(bench *b, int left);
void copy(bench *b, void *to, const void *from, int64_t bytes);
void copy_back(bench *b, void *to, const void *from, int64_t bytes);
/* Copies to the device; frees the host's. */
void *send(bench *b, void *from, int64_t bytes);

uint32_t random_bits(void);
/* numbers[0 .. count - 1]: 0 .. count - 1 in random order. */
void shuffle(int32_t *numbers, int64_t count);

/* Pages on the host, and the cache that they are; codes is the caller's to free. */
tamis_k_cache make_k(int32_t page, int64_t pages);
/* Queries on the host. */
tamis_query make_query(int64_t rows);
void free_query(tamis_query *query);
/* A copy on the device. */
tamis_query send_query(bench *b, const tamis_query *query, int64_t rows);

/* Layer 0 publishes, layers - 1 others consume; they share its K. */
tamis_indexer *make_indexer(bench *b, int layers, int32_t page, int32_t sparse_logits);

/* Milliseconds of a call, nothing of it in L2 before; and the median of `runs`, after one to warm
 * up. */
typedef void timed_call(void *context, int run);
float time_once(bench *b, timed_call *call, void *context, int run);
float median_time(bench *b, int runs, timed_call *call, void *context);
float median_of(float *times, int runs);

#endif
