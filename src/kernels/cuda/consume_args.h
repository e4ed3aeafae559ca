/* SPDX-License-Identifier: MIT */
/* consume_args.h: what launches of consume_sm90.cu, consume_raised.cu and decode.cu need to know of
 * them. */
#ifndef TAMIS_CUDA_CONSUME_ARGS_H
#define TAMIS_CUDA_CONSUME_ARGS_H

enum {
    TAMIS_CONSUME_ROWS_BYTES = 37344, /* of dynamic shared memory */
    TAMIS_CONSUME_RAISED_BYTES = 20672,
    TAMIS_CONSUME_RAISED2_BYTES = 35040,
    TAMIS_CONSUME_RAISED4_BYTES = 63776,
    TAMIS_CONSUME_SPLIT_BYTES = 46432,
    TAMIS_CONSUME_COPIED_BYTES = 83296,
    TAMIS_CONSUME_SPLIT_SM90_BYTES = 47488,
    TAMIS_CONSUME_MAX_STEPS = 512, /* of 32 columns, of a row of several warpgroups */
    TAMIS_CONSUME_MAX_TOPK = 768,
    TAMIS_CONSUME_MAX_WIDTH = 4096 /* blocks of a row: columns are 16 bits */
};

#endif
