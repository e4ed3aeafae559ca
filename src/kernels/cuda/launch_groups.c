/* SPDX-License-Identifier: MIT */
/*
 * launch_groups.c: a consumer of many rows by Hopper's kernels, a warpgroup a row: those whose K
 * was decoded before, then the others from pages, then by the portable kernel the few that both
 * leave. Which rows those are is known on the device alone, so all three are queued; `done` says
 * what is left. Of fewer rows those whose K was decoded have two warpgroups each, or four where
 * every row has a multiprocessor of its own.
 */
#include "fail.h"
#include "kernels/cuda/consume_args.h"
#include "kernels/cuda/launch.h"

enum {
    PAGES_CTAS = 5, /* of a multiprocessor, where most rows are done */
    REST_CTAS = 2,
    LONG_LISTS = 1024, /* blocks; those of a source's own selection are shorter */
    MIXED_FROM = 512,  /* rows of steps that may have some decoded K */
    PAGES_FROM = 1024, /* and of those that have none */
    /* A row more than one, or two, a multiprocessor would make all wait for its own: so much of
     * that wave is left for decode.cu, by which rows share multiprocessors. */
    LEFT_OF_ONE = 6,
    LEFT_OF_TWO = 4,
    TURNED_ROWS = 448 /* fewer begin at different turns: consume_raised.cu */
};

static const int64_t shared_of[] = {
#define TAMIS_CUDA_KERNEL(name, threads, shared) shared,
#include "kernels/cuda/kernels.inc"
#undef TAMIS_CUDA_KERNEL
};

static int fits(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                const tamis_selection *out) {
    return cuda->kernels[TAMIS_CUDA_consume_raised_sm90] != NULL &&
           cuda->kernels[TAMIS_CUDA_consume_raised1_sm90] != NULL &&
           cuda->kernels[TAMIS_CUDA_consume_raised2_sm90] != NULL &&
           cuda->kernels[TAMIS_CUDA_consume_raised4_sm90] != NULL &&
           cuda->kernels[TAMIS_CUDA_consume_rows_sm90] != NULL &&
           score->numerics == TAMIS_NUMERICS_EXACT && score->width <= TAMIS_CONSUME_MAX_WIDTH &&
           out->topk <= TAMIS_CONSUME_MAX_TOPK && score->logits_type == TAMIS_F32;
}

int64_t tamis_cuda_groups_from(const tamis_cuda *cuda, int64_t width, int decoded, int whole) {
    if (cuda->kernels[TAMIS_CUDA_consume_split_sm90] == NULL || width < LONG_LISTS || whole) {
        return TAMIS_CUDA_GROUPS_FROM;
    }
    return decoded ? MIXED_FROM : PAGES_FROM;
}

int tamis_cuda_consumes_in_groups(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                                  const tamis_selection *out, int64_t from) {
    return fits(cuda, score, out) && score->rows.count >= from && score->logits != NULL &&
           ((uintptr_t)score->logits & 15) == 0;
}

int tamis_cuda_consumes_raised(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                               const tamis_selection *out, const tamis_raised_k *raised) {
    return fits(cuda, score, out) && raised && raised->codes &&
           score->rows.count >= TAMIS_RAISED_ROWS;
}

int64_t tamis_cuda_rows_in_waves(const tamis_cuda *cuda, int64_t rows) {
    const int64_t one = cuda->multiprocessors, two = 2 * one;
    if (rows > one && rows <= one + one / LEFT_OF_ONE) {
        return one;
    }
    if (rows > two && rows <= two + two / LEFT_OF_TWO) {
        return two;
    }
    return rows <= two || rows < TAMIS_CUDA_GROUPS_FROM ? rows : 0;
}

/* By one warpgroup a row, two or four. */
static tamis_status queue_raised(const tamis_cuda *cuda, int kernel,
                                 const tamis_sparse_mqa_logits_args *score,
                                 const tamis_selection *selection, const tamis_raised_k *raised,
                                 int32_t *done, void *stream, tamis_error *error) {
    tamis_sparse_mqa_logits_args a = *score;
    tamis_selection out = *selection;
    tamis_raised_k k = *raised;
    void *parameters[] = {&a, &out, &done, &k};
    tamis_grid grid = {a.rows.count, 1, shared_of[kernel]};
    return tamis_cuda_launch_early(cuda, kernel, grid, stream, parameters, error);
}

tamis_status tamis_cuda_queue_consume_raised(const tamis_cuda *cuda,
                                             const tamis_sparse_mqa_logits_args *score,
                                             const tamis_selection *out,
                                             const tamis_raised_k *raised, int32_t *done,
                                             void *stream, tamis_error *error) {
    const int kernel = score->rows.count <= cuda->multiprocessors ? TAMIS_CUDA_consume_raised4_sm90
                                                                  : TAMIS_CUDA_consume_raised2_sm90;
    return queue_raised(cuda, kernel, score, out, raised, done, stream, error);
}

tamis_status tamis_cuda_queue_consume_groups(const tamis_cuda *cuda,
                                             const tamis_sparse_mqa_logits_args *score,
                                             const tamis_selection *selection,
                                             const tamis_raised_k *raised, const uint32_t *listed,
                                             void *stream, tamis_error *error) {
    tamis_sparse_mqa_logits_args a = *score;
    tamis_selection out = *selection;
    int64_t rows = a.rows.count, each = cuda->multiprocessors;
    int32_t *done = a.logits; /* in place of the scores */
    int32_t fresh = raised == NULL || raised->codes == NULL;
    void *of_rows[] = {&a, &out, &done, &fresh, (void *)&listed};
    void *of_rest[] = {&a, &out, &done, (void *)&listed};
    tamis_grid grid = {rows, 1, 0};
    if (!fresh) {
        const int kernel =
            rows < TURNED_ROWS ? TAMIS_CUDA_consume_raised1_sm90 : TAMIS_CUDA_consume_raised_sm90;
        TAMIS_TRY(queue_raised(cuda, kernel, score, selection, raised, done, stream, error));
    }
    grid.x = fresh || PAGES_CTAS * each > rows ? rows : PAGES_CTAS * each;
    grid.shared = shared_of[TAMIS_CUDA_consume_rows_sm90];
    TAMIS_TRY((fresh ? tamis_cuda_launch : tamis_cuda_launch_early)(
        cuda, TAMIS_CUDA_consume_rows_sm90, grid, stream, of_rows, error));
    grid.x = REST_CTAS * each > rows ? rows : REST_CTAS * each;
    grid.shared = (a.width * a.block_size + 31) / 32 * 34 * 4;
    return tamis_cuda_launch_early(cuda, TAMIS_CUDA_consume_fast_smxx, grid, stream, of_rest,
                                   error);
}
