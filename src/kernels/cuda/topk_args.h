/* SPDX-License-Identifier: MIT */
/* topk_args.h: how a queued topk reads its rows; host and device both read it. */
#ifndef TAMIS_CUDA_TOPK_ARGS_H
#define TAMIS_CUDA_TOPK_ARGS_H

enum {                           /* bits */
       TAMIS_TOPK_GATHER = 1,    /* the score of a column lies at its position, not at the column */
       TAMIS_TOPK_LIVE_ONLY = 2, /* rows of length 0 are another call's: nothing is written there */
       TAMIS_TOPK_WHOLE = 4      /* a row no longer than its list lists all that it sees, so the
                                    list is not read; with GATHER */
};

#endif
