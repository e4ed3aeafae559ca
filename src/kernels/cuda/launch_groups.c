/* SPDX-License-Identifier: MIT */
/*
 * launch_groups.c: a consumer of many rows by Hopper's kernels, a warpgroup a row: those whose K
 * was decoded before, then the others from pages, then by the portable kernel the few that both
 * leave. Which rows those are is known on the device alone, so all three are queued; `done` says
 * what is left.
 */
#include "fail.h"
#include "kernels/cuda/consume_args.h"
#include "kernels/cuda/launch.h"

enum {
    MANY_ROWS = 512, /* a warpgroup takes a row: below, a card of 132 multiprocessors idles */
    PAGES_CTAS = 5,  /* of a multiprocessor, where most rows are done */
    REST_CTAS = 2
};

static const int64_t shared_of[] = {
#define TAMIS_CUDA_KERNEL(name, threads, shared) shared,
#include "kernels/cuda/kernels.inc"
#undef TAMIS_CUDA_KERNEL
};

int tamis_cuda_consumes_in_groups(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                                  const tamis_selection *out) {
    return cuda->kernels[TAMIS_CUDA_consume_raised_sm90] != NULL &&
           cuda->kernels[TAMIS_CUDA_consume_rows_sm90] != NULL && score->rows.count >= MANY_ROWS &&
           score->numerics == TAMIS_NUMERICS_EXACT && score->width <= TAMIS_CONSUME_MAX_WIDTH &&
           out->topk <= TAMIS_CONSUME_MAX_TOPK && score->logits != NULL &&
           score->logits_type == TAMIS_F32 && ((uintptr_t)score->logits & 15) == 0;
}

tamis_status tamis_cuda_queue_consume_groups(const tamis_cuda *cuda,
                                             const tamis_sparse_mqa_logits_args *score,
                                             const tamis_selection *selection,
                                             const tamis_raised_k *raised, void *stream,
                                             tamis_error *error) {
    tamis_sparse_mqa_logits_args a = *score;
    tamis_selection out = *selection;
    tamis_raised_k k = raised ? *raised : (tamis_raised_k){0};
    int64_t rows = a.rows.count, each = cuda->multiprocessors;
    int32_t *done = a.logits; /* in place of the scores */
    int32_t fresh = k.codes == NULL;
    void *of_raised[] = {&a, &out, &done, &k}, *of_rest[] = {&a, &out, &done, &fresh};
    tamis_grid grid = {rows, 1, shared_of[TAMIS_CUDA_consume_raised_sm90]};
    if (!fresh) {
        TAMIS_TRY(tamis_cuda_launch(cuda, TAMIS_CUDA_consume_raised_sm90, grid, stream, of_raised,
                                    error));
    }
    grid.x = fresh || PAGES_CTAS * each > rows ? rows : PAGES_CTAS * each;
    grid.shared = shared_of[TAMIS_CUDA_consume_rows_sm90];
    TAMIS_TRY(tamis_cuda_launch(cuda, TAMIS_CUDA_consume_rows_sm90, grid, stream, of_rest, error));
    grid.x = REST_CTAS * each > rows ? rows : REST_CTAS * each;
    grid.shared = (a.width * a.block_size + 31) / 32 * 34 * 4;
    return tamis_cuda_launch(cuda, TAMIS_CUDA_consume_fast_smxx, grid, stream, of_rest, error);
}
