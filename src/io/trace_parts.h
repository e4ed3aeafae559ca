/* SPDX-License-Identifier: MIT */
/*
 * trace_parts.h: how the reader of traces is cut: trace.c puts a trace together of tensors
 * (trace_tensors.c) and rows (trace_rows.c).
 */
#ifndef TAMIS_IO_TRACE_PARTS_H
#define TAMIS_IO_TRACE_PARTS_H

#include "support.h"
#include "trace.h"

typedef struct trace_reader {
    tamis_trace trace; /* first: what callers hold */
    safetensors *file;
    tamis_model_file model;
    io_arena arena;
    tamis_trace_layer *layers;
    int has_request; /* the file gives request and context */
} trace_reader;

/* ---- trace_tensors.c ------------------------------------------------------------------------- */

/* Bits of dtypes that a tensor may have. */
#define IO_DTYPE(name) (1u << SAFETENSORS_##name)

/*
 * *out = the tensor, or NULL when the file lacks it; an error when its dtype is none of `dtypes` or
 * its shape is not shape[rank], where -1 stands for any size.
 */
tamis_status io_find(const safetensors *file, const char *name, uint32_t dtypes, int32_t rank,
                     const int64_t *shape, const safetensors_tensor **out, tamis_error *error);

/* Whether the file holds NAME, NAME.codes or NAME.scales. */
int io_has_mxfp4(const safetensors *file, const char *name);

/*
 * MXFP4 codes and scales of tensor `name`, of logical shape [rank] whose last entry is D: views of
 * NAME.codes and NAME.scales, or NAME quantised. *count is the first dimension (shape[0] may be
 * -1). `why` says why it is needed.
 */
tamis_status io_load_mxfp4(trace_reader *in, const char *name, int32_t rank, const int64_t *shape,
                           const char *why, const uint8_t **codes, const uint8_t **scales,
                           int64_t *count, tamis_error *error);

/* ---- trace_rows.c ---------------------------------------------------------------------------- */

/* position, request and context, checked among themselves. */
tamis_status io_load_rows(trace_reader *in, tamis_error *error);

/* ks and ke of a layer whose K is loaded; K's rows must be what contexts and positions say. */
tamis_status io_load_intervals(trace_reader *in, tamis_trace_layer *layer, tamis_error *error);

/* Without `context`: as many tokens as the present layers' K and the positions show. */
void io_guess_context(trace_reader *in);

#endif
