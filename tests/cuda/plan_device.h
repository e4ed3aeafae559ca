/* SPDX-License-Identifier: MIT */
/*
 * plan_device.h: the layers of tests/plan on the GPU: their K, queries and batch copied there,
 * every buffer an allocation of its own, and steps run by device plans.
 */
#ifndef TAMIS_TESTS_CUDA_PLAN_DEVICE_H
#define TAMIS_TESTS_CUDA_PLAN_DEVICE_H

#include "../plan/layers.h"
#include "kernels/cuda/plan_cuda.h"

typedef struct gpu {
    tamis_cuda *cuda;
    void *stream;
    tamis_cu_result (*capture_begin)(void *stream, int mode);
    tamis_cu_result (*capture_end)(void *stream, void **graph);
    tamis_cu_result (*instantiate)(void **exec, void *graph, unsigned long long flags);
    tamis_cu_result (*graph_launch)(void *exec, void *stream);
    tamis_cu_result (*graph_destroy)(void *graph);
    tamis_cu_result (*exec_destroy)(void *exec);
    tamis_cu_result (*memory_info)(size_t *free, size_t *total);
} gpu;

extern gpu device;

/* Exits with ctest's skip code where there is no GPU. */
void gpu_open(void);
void gpu_close(void);

/* Device memory, freed all at once by gpu_release. */
void *gpu_new(int64_t bytes);
void *gpu_copy(const void *host, int64_t bytes);
void gpu_release(void);
void gpu_write(void *to, const void *from, int64_t bytes);
void gpu_read(void *to, const void *from, int64_t bytes);
void gpu_sync(void);
void gpu_call(int result, const char *what);
/* Of what is queued between them: a graph that can be launched. */
void gpu_capture_begin(void);
void *gpu_capture_end(void);

/* The four scales of a slot of MXFP4 pages of 128 dims. */
uint8_t *page_scales(const tamis_k_cache *c, int64_t slot);
/* Layers of 32 heads of 128 and pages, K and queries of which have scales that lie close together,
 * but for some: among many listed positions there is one, so that their row is not selected from
 * decoded K. Of the closer ones K has none. */
layers *close_layers(shape s, const request *requests, int32_t count);
layers *closer_layers(shape s, const request *requests, int32_t count);

/* Layers whose arrays lie on the device. */
typedef struct twin {
    const layers *l;
    tamis_batch batch;
    tamis_k_cache cache[2];
    tamis_query query[LAYERS];
} twin;

twin twin_make(const layers *l);
/* Copies the arrays of layers of the same sizes over the twin's. */
void twin_fill(twin *t, const layers *l);

/* The limits of layers_plan. */
tamis_plan_limits twin_limits(const layers *l, int64_t rows);
/* A plan in memory that held something else before, whose `auto` has both routes however few the
 * rows are, with the border at BORDER eighths of the pool; max_context 0: the longest request's. */
enum { BORDER = 12 };
tamis_cuda_plan *twin_plan(const twin *t, const tamis_indexer *indexer, int64_t rows,
                           int64_t max_context);
tamis_step twin_step(tamis_cuda_plan *plan, const twin *t);

/* An outcome on the device, poisoned as outcome_make's; then its copy on the host. */
outcome gpu_outcome(const layers *l, int32_t layer, int64_t rows);
void gpu_poison(const layers *l, int32_t layer, const outcome *on_device);
outcome gpu_pull(const layers *l, int32_t layer, const outcome *on_device);
/* What a layer writes that may see nothing: -1, on top of the poison. */
outcome outcome_nothing(const layers *l, int32_t layer, int64_t rows);

/* A plan, its twin on the CPU, and what each layer writes there. */
typedef struct scene {
    layers *l;
    int64_t rows;
    tamis_indexer *indexer;
    tamis_plan *cpu;
    twin t;
    tamis_cuda_plan *plan;
    outcome out[LAYERS];
} scene;

/* max_context: as twin_plan's. */
scene scene_make(layers *l, int64_t padding, int32_t sparse_logits, int64_t max_context);
void scene_end(scene *s);
/* What the layers select from a batch of l, by the CPU. */
void scene_expect(const scene *s, const layers *l, const tamis_batch *batch, outcome *want);
void scene_run(scene *s, const tamis_step *step, int32_t layer);
void scene_holds(const scene *s, int32_t layer, const outcome *want, const char *what);
/* Of all layers that select: queued, poisoned, launched as a graph after that, and held. */
void scene_queue(const scene *s, const tamis_step *step);
void scene_poison(const scene *s);
void scene_replay(const scene *s, void *exec);
void scene_holds_all(const scene *s, const outcome *want, const char *what);

/* Writes lengths to the device alone; the batch that says the same to the CPU. */
tamis_batch scene_lengths(scene *s, const int64_t *context, const int32_t *query_start);

/* The main of a program that runs the one of its tests that it is given. */
int gpu_main(const struct CMUnitTest *list, int count, const char *program, int argc, char **argv);

void twin_queue(tamis_cuda_plan *plan, const tamis_step *step, const twin *t, int32_t layer,
                const outcome *on_device);

#endif
