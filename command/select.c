/* SPDX-License-Identifier: MIT */
/*
 * select.c: rows of a layer handed to the pool in tiles. A tile is as large as keeps its workspace
 * under a bound and the progress bar moving; results do not depend on it. Tiles with fewer rows
 * than threads use the score | merge calls, which split a row over its positions.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "select.h"

enum {
    WORKSPACE_LIMIT = 32 << 20, /* bytes; a tile is halved until it fits */
    ROWS_PER_THREAD = 64        /* at most, in a tile */
};

typedef struct slice_report {
    tamis_status status;
    tamis_error error;
} slice_report;

enum { CALL_SOURCE, CALL_CONSUME, CALL_DENSE };
enum { PHASE_WHOLE, PHASE_SCORE, PHASE_MERGE };

/* A tile's call: the arguments of its kind and the phase that the pool runs. */
typedef struct tile_call {
    int kind;
    int phase;
    const tamis_backend *backend;
    slice_report *reports;
    tamis_source_args source;
    tamis_consume_args consume;
    tamis_dense_args dense;
} tile_call;

static tamis_status run_slice(const tile_call *call, int32_t ith, int32_t nth, tamis_error *error) {
    if (call->kind == CALL_DENSE)
        return tamis_dense(call->backend, &call->dense, ith, nth, error);
    int consume = call->kind == CALL_CONSUME;
    switch (call->phase) {
    case PHASE_SCORE:
        return consume ? tamis_consume_score(call->backend, &call->consume, ith, nth, error)
                       : tamis_source_score(call->backend, &call->source, ith, nth, error);
    case PHASE_MERGE:
        return consume ? tamis_consume_merge(call->backend, &call->consume, ith, nth, error)
                       : tamis_source_merge(call->backend, &call->source, ith, nth, error);
    default:
        return consume ? tamis_consume(call->backend, &call->consume, ith, nth, error)
                       : tamis_source(call->backend, &call->source, ith, nth, error);
    }
}

static void work(void *context, int32_t ith, int32_t nth) {
    tile_call *call = context;
    slice_report *report = &call->reports[ith];
    report->status = run_slice(call, ith, nth, &report->error);
}

static int64_t tile_workspace(const tile_call *call, int32_t nth) {
    int split = call->phase != PHASE_WHOLE;
    switch (call->kind) {
    case CALL_DENSE:
        return tamis_dense_workspace(&call->dense, nth);
    case CALL_CONSUME:
        return split ? tamis_consume_split_workspace(&call->consume, nth)
                     : tamis_consume_workspace(&call->consume, nth);
    default:
        return split ? tamis_source_split_workspace(&call->source, nth)
                     : tamis_source_workspace(&call->source, nth);
    }
}

static tamis_selection tile_selection(const tamis_model *model, const layer_output *out,
                                      int64_t first) {
    int64_t topk = model->index_topk, at = first * topk;
    return (tamis_selection){
        .topk = model->index_topk,
        .positions = out->positions ? out->positions + at : NULL,
        .positions_stride = topk,
        .slots = out->slots ? out->slots + at : NULL,
        .slots_stride = topk,
        .scores = out->scores ? out->scores + at : NULL,
        .scores_stride = topk,
        .counts = out->counts ? out->counts + first : NULL,
    };
}

static tamis_query tile_query(const tamis_query *whole, int64_t first) {
    tamis_query q = *whole;
    int64_t bytes = q.weights_type == TAMIS_F32 ? 4 : 2;
    q.codes += first * q.codes_row_stride;
    q.scales += first * q.scales_row_stride;
    q.weights = (const char *)q.weights + first * q.weights_row_stride * bytes;
    return q;
}

/* Fills the arguments of the kind that the layer's role asks for. */
static void tile_arguments(const selector *s, const tamis_trace_layer *layer,
                           const layer_output *out, int64_t first, int64_t count, tile_call *call) {
    const tamis_model *model = &s->trace->model;
    int consumer = layer->role.role == TAMIS_ROLE_CONSUMER;
    int publishes = layer->role.role == TAMIS_ROLE_SOURCE;
    int32_t *blocks = s->blocks ? s->blocks + first * model->candidate_topk_blocks : NULL;
    tamis_rows rows = {.count = count, .ks = layer->ks + first, .ke = layer->ke + first};
    tamis_query query = tile_query(&layer->query, first);
    tamis_selection selection = tile_selection(model, out, first);
    call->kind = !consumer ? CALL_SOURCE : s->dense ? CALL_DENSE : CALL_CONSUME;
#define FILL(args)                                                                                 \
    (args)->numerics = s->numerics;                                                                \
    (args)->k = layer->k;                                                                          \
    (args)->rows = rows;                                                                           \
    (args)->query = query;                                                                         \
    (args)->selection = selection;                                                                 \
    (args)->block_size = model->candidate_block_size ? model->candidate_block_size : 8;            \
    (args)->blocks_stride = model->candidate_topk_blocks
    if (call->kind == CALL_SOURCE) {
        tamis_source_args_default(&call->source);
        FILL(&call->source);
        call->source.topk_blocks = publishes ? model->candidate_topk_blocks : 0;
        call->source.blocks = publishes ? blocks : NULL;
    } else if (call->kind == CALL_CONSUME) {
        tamis_consume_args_default(&call->consume);
        FILL(&call->consume);
        call->consume.width = model->candidate_topk_blocks;
        call->consume.blocks = blocks;
    } else {
        tamis_dense_args_default(&call->dense);
        FILL(&call->dense);
        call->dense.width = model->candidate_topk_blocks;
        call->dense.blocks = blocks;
    }
#undef FILL
}

static tamis_status grow_workspace(selector *s, int64_t bytes, tamis_error *error) {
    if (bytes <= s->workspace_bytes)
        return TAMIS_OK;
    free(s->workspace);
    s->workspace_bytes = 0;
    s->workspace = aligned_alloc(64, (size_t)(bytes + 63) & ~(size_t)63);
    if (!s->workspace) {
        *error = (tamis_error){.status = TAMIS_ERROR_MEMORY, .argument = "workspace"};
        return TAMIS_ERROR_MEMORY;
    }
    s->workspace_bytes = bytes;
    return TAMIS_OK;
}

static tamis_status run_phase(selector *s, tile_call *call, int phase, tamis_error *error) {
    call->phase = phase;
    tamis_pool_run(s->pool, work, call);
    for (int32_t i = 0; i < tamis_pool_threads(s->pool); i++) {
        if (s->reports[i].status == TAMIS_OK)
            continue;
        *error = s->reports[i].error;
        return s->reports[i].status;
    }
    return TAMIS_OK;
}

/* Runs one tile; shortens *count when the workspace would pass its bound. */
static tamis_status run_tile(selector *s, const tamis_trace_layer *layer, const layer_output *out,
                             int64_t first, int64_t *count, double *seconds, tamis_error *error) {
    int32_t threads = tamis_pool_threads(s->pool);
    tile_call call = {.backend = s->backend, .reports = s->reports};
    int64_t bytes;
    for (;; *count = (*count + 1) / 2) {
        tile_arguments(s, layer, out, first, *count, &call);
        int split = *count < threads && call.kind != CALL_DENSE;
        call.phase = split ? PHASE_SCORE : PHASE_WHOLE;
        bytes = tile_workspace(&call, threads);
        if (bytes <= WORKSPACE_LIMIT || *count == 1)
            break;
    }
    if (bytes > 0) {
        tamis_status status = grow_workspace(s, bytes, error);
        if (status != TAMIS_OK)
            return status;
    }
    call.source.workspace = call.consume.workspace = call.dense.workspace = s->workspace;
    call.source.workspace_bytes = call.consume.workspace_bytes = s->workspace_bytes;
    call.dense.workspace_bytes = s->workspace_bytes;
    int split = call.phase != PHASE_WHOLE;
    double start = seconds_now();
    tamis_status status = run_phase(s, &call, call.phase, error);
    if (status == TAMIS_OK && split)
        status = run_phase(s, &call, PHASE_MERGE, error);
    *seconds = seconds_now() - start;
    return status;
}

tamis_status select_layer(selector *s, const tamis_trace_layer *layer, const layer_output *out,
                          double *seconds, tamis_error *error) {
    int64_t rows = s->trace->rows, threads = tamis_pool_threads(s->pool), tile = 4 * threads;
    *seconds = 0;
    if (!s->reports)
        s->reports = calloc((size_t)threads, sizeof *s->reports);
    if (!s->reports) {
        *error = (tamis_error){.status = TAMIS_ERROR_MEMORY, .argument = "threads"};
        return TAMIS_ERROR_MEMORY;
    }
    for (int64_t first = 0; first < rows && !*s->stop;) {
        int64_t count = rows - first < tile ? rows - first : tile;
        double took;
        tamis_status status = run_tile(s, layer, out, first, &count, &took, error);
        if (status != TAMIS_OK)
            return status;
        if (took < 0.25 && tile < ROWS_PER_THREAD * threads)
            tile *= 2;
        if (took > 1.0 && tile > threads)
            tile /= 2;
        *seconds += took;
        first += count;
        s->done += count;
        progress_show(s->bar, s->done);
    }
    return TAMIS_OK;
}

/* ---- blocks ---- */

static int has_layer(const tamis_trace *trace, int32_t layer) {
    for (int32_t i = 0; i < trace->layer_count; i++)
        if (trace->layers[i].layer == layer)
            return trace->layers[i].present;
    return 0;
}

int selector_take_blocks(selector *s, int32_t consumer) {
    const tamis_trace *trace = s->trace;
    int32_t source = trace->model.candidate_source_layer_id;
    if (source < 0)
        return STATUS_GOOD;
    int64_t rows = trace->rows ? trace->rows : 1;
    size_t bytes = (size_t)(rows * trace->model.candidate_topk_blocks) * sizeof(int32_t);
    s->blocks = malloc(bytes);
    if (!s->blocks)
        return fail("%s: no memory for the blocks of %" PRId64 " rows", trace->path, rows);
    if (has_layer(trace, source))
        return STATUS_GOOD;
    if (trace->blocks)
        memcpy(s->blocks, trace->blocks, bytes);
    else if (consumer >= 0)
        return fail("%s: layer %d consumes the blocks of layer %d, which the trace lacks",
                    trace->path, (int)consumer, (int)source);
    return STATUS_GOOD;
}

void selector_free(selector *s) {
    free(s->blocks);
    free(s->workspace);
    free(s->reports);
}
