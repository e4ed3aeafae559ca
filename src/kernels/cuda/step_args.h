/* SPDX-License-Identifier: MIT */
/*
 * step_args.h: arguments of the kernels that make a step and guard its blocks; host and device both
 * read them. The stamp and the step's counts live on the device, so that a replayed graph advances
 * them.
 */
#ifndef TAMIS_CUDA_STEP_ARGS_H
#define TAMIS_CUDA_STEP_ARGS_H

#include <tamis/tamis.h>

#include "kernels/cuda/raised_k.h"
#include "kernels/cuda/tile_args.h"

/* The stamp of the published blocks (spec 6.3). */
typedef struct tamis_device_stamp {
    uint64_t serial; /* of the step that published */
    int64_t rows;
    int64_t k_size; /* of the cache that the blocks were placed in */
    int32_t layer;  /* the source; TAMIS_STAMP_TWICE: two publishes, which to trust is unknown */
    int32_t reserved;
} tamis_device_stamp;

enum { TAMIS_STAMP_TWICE = -1 };

/* Fills a step's arrays: rows in the order of the flat batch, then padding. */
typedef struct tamis_step_fill {
    tamis_step_counts *counts;
    int32_t *token, *request, *ks[2], *ke[2]; /* [rows] */
    const int64_t *context;                   /* [requests] */
    const int32_t *query_start;               /* [requests + 1] */
    const int32_t *k_start[2];                /* [requests] or NULL */
    tamis_routes *routes;                     /* emptied */
    int64_t rows;                             /* with padding */
    int64_t tokens;                           /* rows past them are padding, whatever starts say */
    int64_t max_context;
    int32_t requests;
    int32_t decode_threshold; /* new tokens of a decode request at most */
} tamis_step_fill;

/* Marks the blocks of a step as published: the last kernel that writes any does it. */
typedef struct tamis_stamp_args {
    const tamis_step_counts *counts;
    tamis_device_stamp *stamp; /* NULL: it does not */
    uint32_t *status;          /* of the gate */
    int64_t rows, k_size;
    int32_t layer, reserved;
} tamis_stamp_args;

/*
 * The guard before a layer: rows keep their length, cut to what K holds, only when they are the
 * step's rows and, for a consumer, its blocks are this step's. It also parts the rows of a
 * consumer's two routes: only the device knows their lengths.
 */
typedef struct tamis_gate_args {
    const tamis_step_counts *counts;
    const tamis_device_stamp *stamp;
    const int32_t *ks, *ke; /* [rows], ks may be NULL */
    int32_t *gated[2]; /* [dense route]: [rows] ke, or ks where the row may see nothing or takes
                          the other route; [1] NULL: there is no dense route */
    uint32_t *status;  /* sticky, host memory: TAMIS_CUDA_PLAN_* | layer << 8 */
    int64_t rows;
    int64_t limit;         /* positions that K holds */
    int64_t above, most;   /* positions of a row of the dense route: more, or none, and at most */
    int64_t k_size;        /* of the layer's cache */
    int32_t layer, source; /* source: whose blocks a consumer needs; else -1 */
    /* Decoded K for a consumer: first where it is of this step and from `from`, else -1. */
    const tamis_raised_stamp *raised;
    tamis_raised_from from;
    const int32_t *first;
    int32_t *usable;      /* [requests], NULL: not for this layer */
    tamis_routes *routes; /* raised where there is a dense route */
    int64_t requests;     /* of the plan */
    int64_t capacity;     /* positions of decoded K */
} tamis_gate_args;

#endif
