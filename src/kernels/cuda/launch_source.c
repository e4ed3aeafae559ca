/* SPDX-License-Identifier: MIT */
/*
 * launch_source.c: the kernels of source.cuh queued. Their CTAs share all rows' live tiles between
 * them, so a grid fills the device and depends on nothing else. Hopper's kernels where the image
 * has them; those for few rows where requests have few rows each, as far as the host knows.
 */
#include "kernels/cuda/launch.h"

enum {
    PORTABLE_CTAS = 2 /* of a multiprocessor */,
    SM90_CTAS = 1,
    FEW_ROWS = 512, /* of a call, counted by every warp of source_few_sm90.cu */
    FEW_PAGE = 64,  /* slots at least: a warp's positions of a turn */
    LARGEST = INT32_MAX - (1 << 20)
};

/* Kernels for few rows: up to so many a request. The last where K is not there decoded. */
static const struct {
    int kernel, rows, ctas;
} few_list[] = {
    {TAMIS_CUDA_mqa_maxima_few1_sm90, 1, 4},
    {TAMIS_CUDA_mqa_maxima_few2_sm90, 2, 4},
    {TAMIS_CUDA_mqa_maxima_few4_sm90, 4, 3},
    {TAMIS_CUDA_mqa_maxima_few4_sm90, 8, 3},
};

static const int64_t shared_of[] = {
#define TAMIS_CUDA_KERNEL(name, threads, shared) shared,
#include "kernels/cuda/kernels.inc"
#undef TAMIS_CUDA_KERNEL
};

/* Its geometry, K in pages of a power of two, aligned codes, 32-bit places and positions. */
int tamis_cuda_source_is_fast(const tamis_mqa_logits_args *a) {
    const tamis_k_cache *k = &a->k;
    const tamis_query *q = &a->query;
    uintptr_t strides = (uintptr_t)(q->codes_row_stride | q->codes_head_stride | k->stride);
    return q->heads == 32 && q->head_dim == 128 && k->layout == TAMIS_K_MXFP4_PAGE &&
           k->page_size > 0 && (k->page_size & (k->page_size - 1)) == 0 && k->size > 0 &&
           k->stride / 16 <= UINT32_MAX / k->size &&
           a->rows.page_table_width <= LARGEST / k->page_size &&
           (((uintptr_t)k->codes | (uintptr_t)q->codes | strides) & 15) == 0;
}

int tamis_cuda_reads_raised(const tamis_cuda *cuda) {
    return cuda->kernels[TAMIS_CUDA_mqa_maxima_fast_sm90] != NULL &&
           cuda->kernels[TAMIS_CUDA_mqa_logits_fast_sm90] != NULL;
}

/* What takes the call of few_list; -1: nothing. */
static int few_of(const tamis_cuda *cuda, const tamis_mqa_logits_args *a, int decoded) {
    const int kinds = (int)(sizeof few_list / sizeof *few_list) - decoded;
    const int64_t requests = a->rows.requests > 0 ? a->rows.requests : 1;
    if (a->logits || a->k.page_size < FEW_PAGE || a->rows.count > FEW_ROWS) {
        return -1;
    }
    for (int i = 0; i < kinds; i++) {
        if (a->rows.count <= few_list[i].rows * requests && cuda->kernels[few_list[i].kernel]) {
            return i;
        }
    }
    return -1;
}

tamis_status tamis_cuda_queue_source(const tamis_cuda *cuda, const tamis_mqa_logits_args *args,
                                     int32_t fill, const tamis_raised_k *raised,
                                     const tamis_row_tile *tile, const tamis_score_tile *scores,
                                     void *stream, tamis_error *error) {
    tamis_mqa_logits_args a = *args;
    tamis_raised_k k = raised ? *raised : (tamis_raised_k){0};
    tamis_row_tile t = tile ? *tile : (tamis_row_tile){0};
    tamis_score_tile s = scores ? *scores : (tamis_score_tile){0};
    void *const which = a.logits ? (void *)&s : (void *)&t;
    void *of_few[] = {&a, &t}, *of_sm90[] = {&a, &fill, &k, which}, *of_smxx[] = {&a, &fill, which};
    void **parameters = of_sm90;
    int kernel = !a.logits     ? TAMIS_CUDA_mqa_maxima_fast_sm90
                 : a.block_max ? TAMIS_CUDA_mqa_both_fast_sm90
                               : TAMIS_CUDA_mqa_logits_fast_sm90;
    int64_t ctas = SM90_CTAS;
    const int few = few_of(cuda, args, k.codes != NULL);
    if (few >= 0) {
        parameters = of_few;
        kernel = few_list[few].kernel;
        ctas = few_list[few].ctas;
    } else if (cuda->kernels[kernel] == NULL) {
        kernel = a.logits ? TAMIS_CUDA_mqa_logits_fast_smxx : TAMIS_CUDA_mqa_maxima_fast_smxx;
        parameters = of_smxx;
        ctas = PORTABLE_CTAS;
    }
    tamis_grid grid = {ctas * cuda->multiprocessors, a.rows.count > 0 ? 1 : 0, shared_of[kernel]};
    const int waits = scores && kernel == TAMIS_CUDA_mqa_logits_fast_sm90;
    return (waits ? tamis_cuda_launch_early : tamis_cuda_launch)(cuda, kernel, grid, stream,
                                                                 parameters, error);
}
