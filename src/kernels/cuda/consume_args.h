/* SPDX-License-Identifier: MIT */
/* consume_args.h: what launches of consume_sm90.cu need to know of it. */
#ifndef TAMIS_CUDA_CONSUME_ARGS_H
#define TAMIS_CUDA_CONSUME_ARGS_H

enum {
    TAMIS_CONSUME_ROWS_BYTES = 28896, /* of dynamic shared memory */
    TAMIS_CONSUME_PAIRS_BYTES = 38240,
    TAMIS_CONSUME_MAX_TOPK = 768,
    TAMIS_CONSUME_MAX_WIDTH = 4096, /* blocks of a row: columns are 16 bits */
    TAMIS_CONSUME_PAIR_WORDS = 3    /* of scratch, a pair and block of the width */
};

#endif
