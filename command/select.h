/* SPDX-License-Identifier: MIT */
/* select.h: one layer of a trace selected for all its rows, on a pool, in bounded memory. */
#ifndef TAMIS_COMMAND_SELECT_H
#define TAMIS_COMMAND_SELECT_H

#include "command.h"
#include "trace.h"

/* Where a layer's results go. Pointers may be NULL; arrays are dense. */
typedef struct layer_output {
    int32_t *positions; /* [rows][topk] */
    int64_t *slots;     /* [rows][topk] */
    float *scores;      /* [rows][topk] */
    int32_t *counts;    /* [rows] */
} layer_output;

typedef struct selector {
    const tamis_trace *trace;
    const tamis_backend *backend;
    tamis_pool *pool;
    int32_t numerics;
    int32_t dense;   /* consumers score everything and mask */
    int32_t *blocks; /* [rows][topk_blocks] the source writes, consumers read; NULL: one level */
    progress *bar;
    int64_t done;                 /* rows done, over all layers */
    const volatile int *stop;     /* set by a signal: give up between tiles */
    void *workspace;              /* kept from tile to tile */
    int64_t workspace_bytes;      /* its size */
    struct cuda_selector *cuda;   /* NULL: the work is the CPU's */
    struct slice_report *reports; /* [threads] */
} selector;

/*
 * Selects all rows of a present layer; *seconds is the time spent in the library. Returns
 * TAMIS_OK when stopped as well: ask *stop.
 */
tamis_status select_layer(selector *s, const tamis_trace_layer *layer, const layer_output *out,
                          double *seconds, tamis_error *error);
void selector_free(selector *s);

/*
 * Makes s->blocks for the blocks that the source will publish or, where the trace lacks it, those
 * that the trace brings. `consumer` is a layer that needs them, or -1. Returns STATUS_GOOD or has
 * said why not.
 */
int selector_take_blocks(selector *s, int32_t consumer);

#endif
