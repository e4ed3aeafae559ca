/* SPDX-License-Identifier: MIT */
/*
 * trace.h: traces of an indexer, and results of a selection, in safetensors files.
 *
 * The format is tamis-trace/1 (docs/trace.md). Reading maps the file; tensors are views into the
 * map until the trace is closed. Everything a file says is checked before it is believed; the one
 * error names the tensor (or "file", "header", "__metadata__.KEY"), what was required and what was
 * found; the caller, who has the path, says which file. Errors are printable ASCII. A file that
 * another program cuts short while it is open here raises SIGBUS, as any mapped file does.
 */
#ifndef TAMIS_IO_TRACE_H
#define TAMIS_IO_TRACE_H

#include <stdint.h>

#include <tamis/tamis.h>

/* ---- safetensors --------------------------------------------------------------------------- */

enum { /* dtypes */
       SAFETENSORS_U8 = 1,
       SAFETENSORS_I32,
       SAFETENSORS_I64,
       SAFETENSORS_F32,
       SAFETENSORS_BF16,
       SAFETENSORS_OTHER /* another of whole bytes, as a foreign tensor may have; not written */
};

typedef struct safetensors_tensor {
    const char *name;
    int32_t dtype;
    int32_t rank; /* 0..4 */
    int64_t shape[4];
    const void *data; /* in the map; aligned to its element, or copied so that it is; never NULL */
    int64_t bytes;
} safetensors_tensor;

typedef struct safetensors safetensors;

/* Opens and checks a whole file; tensors are in order of name. Errors: TAMIS_ERROR_FILE,
 * TAMIS_ERROR_FORMAT, TAMIS_ERROR_MEMORY.
 */
tamis_status safetensors_open(const char *path, safetensors **file, tamis_error *error);
/* The same over bytes in memory, which must outlive the object (fuzzing, tests). */
tamis_status safetensors_open_memory(const void *bytes, int64_t size, safetensors **file,
                                     tamis_error *error);
void safetensors_close(safetensors *file); /* NULL is fine */
int64_t safetensors_count(const safetensors *file);
const safetensors_tensor *safetensors_at(const safetensors *file, int64_t i);
const safetensors_tensor *safetensors_find(const safetensors *file, const char *name); /* or NULL */
/* A value of __metadata__, or NULL. */
const char *safetensors_metadata(const safetensors *file, const char *key);

/*
 * Writes a file whole or not at all: to .tamis.tmp-<pid>-<n> in its folder, synced, then renamed
 * over PATH. Names are unique; metadata is an array of pairs (key, value), `pairs` of them. A file
 * is written in pieces so that a large trace needs no copy of itself: begin with all tensors (their
 * data pointers may be NULL), then the data of each in order, then commit. Put wide dtypes first:
 * nothing pads the data, and readers copy what is not aligned. commit and abort free the writer,
 * whatever they return; after an error of data, call abort. Nothing is left behind but after a
 * commit that succeeded. An existing path that is no regular file (a device, a folder) is refused.
 */
typedef struct safetensors_writer safetensors_writer;
tamis_status safetensors_writer_begin(const char *path, const safetensors_tensor *tensors,
                                      int64_t count, const char *const *metadata, int64_t pairs,
                                      safetensors_writer **writer, tamis_error *error);
tamis_status safetensors_writer_data(safetensors_writer *writer, const void *data, int64_t bytes,
                                     tamis_error *error);
tamis_status safetensors_writer_commit(safetensors_writer *writer, tamis_error *error);
void safetensors_writer_abort(safetensors_writer *writer);

/* ---- the model's values ---------------------------------------------------------------------- */

/* A tamis_model with the arrays it points to, parsed from config.json values (the spec's keys). */
typedef struct tamis_model_file {
    tamis_model model;
    int32_t *compress_ratios;
    int32_t *kv_source_layer_ids;
    int32_t *index_source_layer_ids;
} tamis_model_file;

/*
 * `file` (or NULL) is only for messages: "FILE: KEY". Unknown keys are ignored; wrong types and
 * values are named. What keys must be together is tamis_model_roles' to judge.
 */
tamis_status tamis_model_from_json(const char *file, const char *json, tamis_model_file *out,
                                   tamis_error *error);
void tamis_model_file_free(tamis_model_file *m); /* zeroed is fine */

/* ---- traces ---------------------------------------------------------------------------------- */

typedef struct tamis_trace_layer {
    int32_t layer;
    int32_t present; /* 0: an index source that the trace has no q, w for: all below role is 0 */
    tamis_layer_role role;
    /* MXFP4 views of q and w of this layer; bf16/f32 q is quantised when it is opened. */
    tamis_query query;
    /* The K owner's cache as TAMIS_K_MXFP4_SPLIT over all requests, quantised when opened. */
    tamis_k_cache k;
    /* Row intervals in k: request start .. start + visible. [rows] */
    const int32_t *ks;
    const int32_t *ke;
    /* Results found in the file, or NULL. Checked for shape and dtype only. */
    const int32_t *selected; /* [rows][index_topk] */
} tamis_trace_layer;

typedef struct tamis_trace {
    const char *path;
    tamis_model model;             /* arrays live as long as the trace */
    const tamis_layer_role *roles; /* [model.num_layers] */
    int64_t rows;                  /* R */
    int64_t requests;
    const int64_t *position;         /* [R] token positions */
    const int32_t *request;          /* [R] */
    const int64_t *context;          /* [requests] tokens; without `request` as many as K holds */
    int32_t layer_count;             /* index-source layers, ascending, present or not */
    const tamis_trace_layer *layers; /* [layer_count] */
    /*
     * [R][candidate_topk_blocks] published blocks found in the file, or NULL. Never NULL where
     * consumers are present and their source is not: they use these (every visible block when the
     * file has none and no row sees more than topk_blocks of them; more is an error).
     */
    const int32_t *blocks;
    const char *about; /* metadata "about", or NULL */
} tamis_trace;

/* Opens, checks and prepares a trace. On error *trace is NULL. */
tamis_status tamis_trace_open(const char *path, tamis_trace **trace, tamis_error *error);
/* The same over bytes in memory (fuzzing). */
tamis_status tamis_trace_open_memory(const void *bytes, int64_t size, tamis_trace **trace,
                                     tamis_error *error);
void tamis_trace_close(tamis_trace *trace); /* NULL is fine */

/*
 * Opens a RESULT file against an open trace: selected.<layer> and blocks, each optional, checked
 * for dtype and shape. Values may be anything: judging them is `check`'s work. A file with none of
 * them is refused. Metadata "format", where given, is tamis-result/1 or tamis-trace/1.
 */
typedef struct tamis_result {
    const int32_t *const *selected; /* [trace.layer_count] [R][index_topk] or NULL */
    const int32_t *blocks;          /* [R][candidate_topk_blocks] or NULL */
} tamis_result;
tamis_status tamis_result_open(const char *path, const tamis_trace *trace, tamis_result **result,
                               tamis_error *error);
void tamis_result_close(tamis_result *result);

#endif
