/* SPDX-License-Identifier: MIT */
/* publish_args.h: where queued lists of blocks go; host and device both read it. */
#ifndef TAMIS_CUDA_PUBLISH_ARGS_H
#define TAMIS_CUDA_PUBLISH_ARGS_H

#include <tamis/tamis.h>

#include "kernels/cuda/step_args.h"

/* A list of each row's best `width` blocks; what is NULL is not written. */
typedef struct tamis_block_list {
    int32_t *blocks; /* out [R][width] ids, ascending, -1 in the rest */
    int32_t *counts; /* out [R] */
    int32_t *placed; /* out [R][width] where they lie: physical blocks or anchored
                        ids */
    int32_t *copy;   /* out [R][width] the ids again */
    int64_t blocks_stride, placed_stride, copy_stride; /* elements */
    int32_t width;                                     /* 0: no list */
    int32_t page_size;                                 /* of placed; 0: anchored ids */
} tamis_block_list;

/* Lists from one row of block maxima; list[1] is not wider than list[0]. */
typedef struct tamis_publish_job {
    tamis_rows rows;
    tamis_row_tile tile; /* of them */
    const float *block_max;
    int64_t block_max_stride; /* elements */
    int64_t limit;            /* positions that maxima are there for */
    uint32_t *zeroed;         /* [R] words made 0, or NULL */
    tamis_block_list list[2];
    tamis_stamp_args stamp;
    int32_t block_size, reserved;
} tamis_publish_job;

#endif
