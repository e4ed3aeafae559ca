/* SPDX-License-Identifier: MIT */
/*
 * launch_groups.c: a consumer of many rows by Hopper's kernels: pairs of rows with much in common,
 * then the others, then by the portable kernel the few that both leave. Which rows those are is
 * known on the device alone, so all three are queued; `done` says what is left.
 */
#include "fail.h"
#include "kernels/cuda/consume_args.h"
#include "kernels/cuda/launch.h"

enum {
    MANY_ROWS = 512,  /* a warpgroup takes a row: below, a card of 132 multiprocessors idles */
    PAIR_ROWS = 1024, /* the same for pairs */
    REST_CTAS = 2     /* of a multiprocessor */
};

static const int64_t shared_of[] = {
#define TAMIS_CUDA_KERNEL(name, threads, shared) shared,
#include "kernels/cuda/kernels.inc"
#undef TAMIS_CUDA_KERNEL
};

/* A word, and half a pair's; the last pair may be of one row, of MANY_ROWS at least. */
int64_t tamis_cuda_group_words(int64_t width) {
    int64_t pair = TAMIS_CONSUME_PAIR_WORDS * width;
    return (pair + 1) / 2 + pair / MANY_ROWS + 4;
}

int tamis_cuda_consumes_in_groups(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                                  const tamis_selection *out) {
    return cuda->kernels[TAMIS_CUDA_consume_pairs_sm90] != NULL &&
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
    int64_t rows = a.rows.count, rest = (int64_t)REST_CTAS * cuda->multiprocessors;
    /* In place of the scores, which take 8 words a row and block. */
    int32_t *done = a.logits;
    uint32_t *entries = (uint32_t *)a.logits + (rows + 3) / 4 * 4;
    int32_t fresh = rows < PAIR_ROWS;
    void *of_pairs[] = {&a, &out, &entries, &done}, *of_rows[] = {&a, &out, &done, &fresh, &k};
    tamis_grid grid = {(rows + 1) / 2, 1, shared_of[TAMIS_CUDA_consume_pairs_sm90]};
    if (!fresh) {
        TAMIS_TRY(
            tamis_cuda_launch(cuda, TAMIS_CUDA_consume_pairs_sm90, grid, stream, of_pairs, error));
    }
    grid = (tamis_grid){rows, 1, shared_of[TAMIS_CUDA_consume_rows_sm90]};
    TAMIS_TRY(tamis_cuda_launch(cuda, TAMIS_CUDA_consume_rows_sm90, grid, stream, of_rows, error));
    grid = (tamis_grid){rest < rows ? rest : rows, 1, (a.width * a.block_size + 31) / 32 * 34 * 4};
    return tamis_cuda_launch(cuda, TAMIS_CUDA_consume_fast_smxx, grid, stream, of_rows, error);
}
