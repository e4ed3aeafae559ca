/* SPDX-License-Identifier: MIT */
/*
 * launch.h: stages queued without checks, for calls composed of them. `limit` is the number of
 * positions that K holds: lengths are clamped to it where the arguments carry no K.
 */
#ifndef TAMIS_CUDA_LAUNCH_H
#define TAMIS_CUDA_LAUNCH_H

#include "kernels/cuda/backend.h"
#include "kernels/cuda/publish_args.h"
#include "kernels/cuda/raised_k.h"
#include "kernels/cuda/step_args.h"
#include "kernels/cuda/tile_args.h"
#include "kernels/cuda/topk_args.h"

typedef struct tamis_grid {
    int64_t x, y;
    int64_t shared; /* bytes of dynamic shared memory */
} tamis_grid;

static inline int64_t tamis_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Queues a kernel of kernels.inc. Nothing is queued when the grid is empty. */
tamis_status tamis_cuda_launch(const tamis_cuda *cuda, int kernel, tamis_grid grid, void *stream,
                               void **parameters, tamis_error *error);
/* The same of a kernel that calls wait_for_kernel_before (common.cuh), behind another of tamis's:
 * its launch does not wait for that one's end. Behind one that says so while it runs
 * (let_next_kernel_wait) a multiprocessor that is not empty cannot divide its shared memory anew
 * and takes fewer CTAs until it is: behind the gate, the only one, nothing was lost by it. */
tamis_status tamis_cuda_launch_early(const tamis_cuda *cuda, int kernel, tamis_grid grid,
                                     void *stream, void **parameters, tamis_error *error);

/* The object, the arguments, and that the current context is the object's. */
tamis_status tamis_cuda_check_call(const tamis_cuda *cuda, const void *args, tamis_error *error);

/* Positions that a row can see at most. */
int64_t tamis_cuda_limit(const tamis_rows *rows, const tamis_k_cache *k);

/* fill: logits past a row's length become -inf up to args->columns; else they keep what they hold.
 * raised: what args->k holds, decoded, for kernels that read it; NULL: nothing. tile: of the rows,
 * for block maxima alone; NULL: all, maxima in equal strides. scores: of a plan's rows, for logits;
 * NULL: all, by args->logits_stride. */
tamis_status tamis_cuda_queue_mqa_logits(const tamis_cuda *cuda, const tamis_mqa_logits_args *args,
                                         int32_t fill, const tamis_raised_k *raised,
                                         const tamis_row_tile *tile, const tamis_score_tile *scores,
                                         void *stream, tamis_error *error);
/* What queue_mqa_logits asks: whether source.cuh takes the call, and then queues it. */
int tamis_cuda_source_is_fast(const tamis_mqa_logits_args *args);
/* Whether a fast source reads decoded K here. */
int tamis_cuda_reads_raised(const tamis_cuda *cuda);
tamis_status tamis_cuda_queue_source(const tamis_cuda *cuda, const tamis_mqa_logits_args *args,
                                     int32_t fill, const tamis_raised_k *raised,
                                     const tamis_row_tile *tile, const tamis_score_tile *scores,
                                     void *stream, tamis_error *error);
tamis_status tamis_cuda_queue_publish(const tamis_cuda *cuda, const tamis_publish_args *args,
                                      int64_t limit, void *stream, tamis_error *error);
/* Lists of blocks from the same maxima, by one kernel. */
tamis_status tamis_cuda_queue_lists(const tamis_cuda *cuda, const tamis_publish_job *job,
                                    void *stream, tamis_error *error);
/* listed: candidates of each row that count, a device array; NULL: all. zeroed:
 * [rows.count] words made 0, or NULL. */
tamis_status tamis_cuda_queue_expand(const tamis_cuda *cuda, const tamis_expand_args *args,
                                     const int32_t *listed, uint32_t *zeroed, int64_t limit,
                                     void *stream, tamis_error *error);
tamis_status tamis_cuda_queue_sparse_mqa_logits(const tamis_cuda *cuda,
                                                const tamis_sparse_mqa_logits_args *args,
                                                void *stream, tamis_error *error);
/* Both of a consumer: the scores of score, then topk over them. One kernel where that is faster:
 * score->logits then holds anything. topk has score's rows and blocks; its columns are NULL.
 * done: [rows.count] words on the device that are 0, and are 0 again afterwards, with rows of
 * score->logits of whole 32 columns; NULL: few rows take two kernels. raised: as of
 * queue_mqa_logits. taken: [rows.count] words of scratch for it; NULL: hardly a row lacks it.
 * listed: a word on the device that is 0 where no row sees anything, whose outputs then may stay as
 * they are; NULL: some may.
 * gate: that of a consumer's layer, where consume_is_split says that it needs no kernel before;
 * NULL: there was one. */
tamis_status tamis_cuda_queue_consume(const tamis_cuda *cuda,
                                      const tamis_sparse_mqa_logits_args *score,
                                      const tamis_topk_args *topk, uint32_t *done, int32_t *taken,
                                      const uint32_t *listed, const tamis_raised_k *raised,
                                      const tamis_gate_args *gate, int64_t limit, void *stream,
                                      tamis_error *error);
/* Whether queue_consume without decoded K is one kernel of decode.cu, which knows a gate. from: of
 * groups_from. */
int tamis_cuda_consume_is_split(const tamis_sparse_mqa_logits_args *score, const uint32_t *done,
                                int64_t from);
/* Whether queue_consume goes to consume_sm90.cu, given any score->logits that is not NULL. */
int tamis_cuda_consume_is_grouped(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                                  const tamis_selection *out, int64_t from);
/* Whether consume_sm90.cu takes rows that the fast scorer takes, and then both of a consumer by it:
 * score->logits is its scratch, a word a row. */
int tamis_cuda_consumes_in_groups(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                                  const tamis_selection *out, int64_t from);
/* Of rows that are all from decoded K those that have several warpgroups each, in whole waves, the
 * others few enough for decode.cu; 0: there are too many. */
int64_t tamis_cuda_rows_in_waves(const tamis_cuda *cuda, int64_t rows);
/* Whether queue_consume without `taken` does so. score->logits then needs all its columns. */
int tamis_cuda_consume_goes_in_waves(const tamis_cuda *cuda,
                                     const tamis_sparse_mqa_logits_args *score,
                                     const tamis_selection *out, const uint32_t *done,
                                     const tamis_raised_k *raised);
/* From so many rows of lists of `width` blocks on; fewer where K of all of them (whole) or of some
 * is decoded. */
int64_t tamis_cuda_groups_from(const tamis_cuda *cuda, int64_t width, int decoded, int whole);
enum { TAMIS_CUDA_GROUPS_FROM = 264 }; /* at least */
/* Whether rows whose K is decoded have a kernel of several warpgroups, and then both of a consumer
 * by it: done gets which rows it took; NULL: it takes all. */
int tamis_cuda_consumes_raised(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                               const tamis_selection *out, const tamis_raised_k *raised);
tamis_status tamis_cuda_queue_consume_raised(const tamis_cuda *cuda,
                                             const tamis_sparse_mqa_logits_args *score,
                                             const tamis_selection *out,
                                             const tamis_raised_k *raised, int32_t *done,
                                             void *stream, tamis_error *error);
tamis_status tamis_cuda_queue_consume_groups(const tamis_cuda *cuda,
                                             const tamis_sparse_mqa_logits_args *score,
                                             const tamis_selection *out,
                                             const tamis_raised_k *raised, const uint32_t *listed,
                                             void *stream, tamis_error *error);
/* how: bits of TAMIS_TOPK_*. scores: of the rows, as of queue_mqa_logits, behind whose kernel this
 * one is then; NULL: all. */
tamis_status tamis_cuda_queue_topk(const tamis_cuda *cuda, const tamis_topk_args *args, int32_t how,
                                   const tamis_score_tile *scores, int64_t limit, void *stream,
                                   tamis_error *error);

#endif
