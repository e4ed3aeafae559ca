/* SPDX-License-Identifier: MIT */
/*
 * step_args.h: arguments of the kernels that make a step and guard its blocks; host and device both
 * read them. The stamp and the step's counts live on the device, so that a replayed graph advances
 * them.
 */
#ifndef TAMIS_CUDA_STEP_ARGS_H
#define TAMIS_CUDA_STEP_ARGS_H

#include <tamis/tamis.h>

/* The stamp of the published blocks (spec 6.3). */
typedef struct tamis_device_stamp {
    uint64_t serial; /* of the step that published */
    int64_t rows;
    int32_t layer; /* the source */
    int32_t reserved;
} tamis_device_stamp;

/* Fills a step's arrays: rows in the order of the flat batch, then padding. */
typedef struct tamis_step_fill {
    tamis_step_counts *counts;
    int32_t *token, *request, *ks[2], *ke[2]; /* [rows] */
    const int64_t *context;                   /* [requests] */
    const int32_t *query_start;               /* [requests + 1] */
    const int32_t *k_start[2];                /* [requests] or NULL */
    int64_t rows;                             /* with padding */
    int64_t max_context;
    int32_t requests;
    int32_t decode_threshold; /* new tokens of a decode request at most */
} tamis_step_fill;

/* Expands and places published blocks once a step. */
typedef struct tamis_place_args {
    tamis_rows rows;
    const int32_t *blocks, *blocks_count;       /* [rows][topk_blocks], [rows] */
    int32_t *placed;                            /* [rows][topk_blocks] */
    int32_t topk_blocks, block_size, page_size; /* page_size 0: anchored ids */
    int32_t reserved;
} tamis_place_args;

/* A consumer's guard: rows keep their length only under the right stamp. */
typedef struct tamis_gate_args {
    const tamis_step_counts *counts;
    const tamis_device_stamp *stamp;
    const int32_t *ks, *ke; /* [rows], ks may be NULL */
    int32_t *gated;         /* [rows] ke, or ks where the stamp is wrong */
    uint32_t *status;       /* sticky, host memory: gets TAMIS_CUDA_STALE_BLOCKS | layer << 8 */
    int64_t rows;
    int32_t source, layer;
} tamis_gate_args;

#endif
