/* SPDX-License-Identifier: MIT */
/*
 * select_cuda.c: rows of a layer selected on a GPU. K stays on the device for as long as layers
 * share it; rows go there in tiles, so that a long trace needs no more memory than a short one.
 */
#include "select_cuda.h"

#include <stdlib.h>

enum { TILE_ROWS = 4096 };

enum { /* buffers */
       K_CODES,
       K_SCALES,
       ROW_START,
       ROW_END,
       Q_CODES,
       Q_SCALES,
       Q_WEIGHTS,
       BLOCKS,
       POSITIONS,
       SLOTS,
       SCORES,
       COUNTS,
       WORKSPACE,
       BUFFERS
};

struct cuda_selector {
    tamis_cuda *cuda;
    void *stream;
    void *memory[BUFFERS];
    int64_t bytes[BUFFERS];
    const uint8_t *k; /* on the host, of the K that the device holds */
    tamis_cuda_device device;
};

int cuda_selector_open(cuda_selector **out) {
    tamis_error error = {0};
    cuda_selector *c = *out = calloc(1, sizeof *c);
    if (!c)
        return fail("--backend cuda: no memory");
    if (tamis_cuda_create_on(0, &c->cuda, &error) != TAMIS_OK ||
        tamis_cuda_stream_create(c->cuda, &c->stream, &error) != TAMIS_OK)
        return fail_error("--backend cuda", &error);
    tamis_cuda_devices(&c->device, 1);
    return STATUS_GOOD;
}

void cuda_selector_close(cuda_selector *c) {
    if (!c)
        return;
    for (int i = 0; i < BUFFERS; i++)
        if (c->memory[i])
            tamis_cuda_free(c->cuda, c->memory[i], NULL);
    if (c->stream)
        tamis_cuda_stream_destroy(c->cuda, c->stream, NULL);
    tamis_cuda_destroy(c->cuda);
    free(c);
}

const char *cuda_selector_name(const cuda_selector *c) {
    return c->device.name;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        tamis_status status_ = (call);                                                             \
        if (status_ != TAMIS_OK)                                                                   \
            return status_;                                                                        \
    } while (0)

/* Makes a buffer at least that large; what it held may be gone. */
static tamis_status grow(cuda_selector *c, int buffer, int64_t bytes, tamis_error *error) {
    bytes = bytes > 0 ? bytes : 1;
    if (bytes <= c->bytes[buffer])
        return TAMIS_OK;
    TRY(tamis_cuda_free(c->cuda, c->memory[buffer], error));
    c->memory[buffer] = NULL;
    c->bytes[buffer] = 0;
    TRY(tamis_cuda_alloc(c->cuda, bytes, &c->memory[buffer], error));
    c->bytes[buffer] = bytes;
    return TAMIS_OK;
}

static tamis_status send(cuda_selector *c, int buffer, const void *from, int64_t bytes,
                         tamis_error *error) {
    TRY(grow(c, buffer, bytes, error));
    return tamis_cuda_copy_in(c->cuda, c->memory[buffer], from, bytes, c->stream, error);
}

static tamis_status fetch(const cuda_selector *c, void *to, int buffer, int64_t bytes,
                          tamis_error *error) {
    return to ? tamis_cuda_copy_out(c->cuda, to, c->memory[buffer], bytes, c->stream, error)
              : TAMIS_OK;
}

/* Bytes from the first row to the end of the last. */
static int64_t extent(int64_t rows, int64_t stride, int64_t last) {
    return rows > 0 ? (rows - 1) * stride + last : 0;
}

static tamis_status send_k(cuda_selector *c, tamis_k_cache *k, tamis_error *error) {
    if (c->k != k->codes) {
        c->k = NULL;
        TRY(send(c, K_CODES, k->codes, extent(k->size, k->stride, k->head_dim / 2), error));
        TRY(send(c, K_SCALES, k->scales, extent(k->size, k->scales_stride, k->head_dim / 32),
                 error));
        c->k = k->codes;
    }
    k->codes = c->memory[K_CODES];
    k->scales = c->memory[K_SCALES];
    return TAMIS_OK;
}

static tamis_status send_query(cuda_selector *c, tamis_query *q, int64_t first, int64_t count,
                               tamis_error *error) {
    int64_t element = q->weights_type == TAMIS_F32 ? 4 : 2;
    TRY(send(
        c, Q_CODES, q->codes + first * q->codes_row_stride,
        extent(count, q->codes_row_stride, extent(q->heads, q->codes_head_stride, q->head_dim / 2)),
        error));
    TRY(send(c, Q_SCALES, q->scales + first * q->scales_row_stride,
             extent(count, q->scales_row_stride,
                    extent(q->heads, q->scales_head_stride, q->head_dim / 32)),
             error));
    TRY(send(c, Q_WEIGHTS, (const char *)q->weights + first * q->weights_row_stride * element,
             extent(count, q->weights_row_stride, q->heads) * element, error));
    q->codes = c->memory[Q_CODES];
    q->scales = c->memory[Q_SCALES];
    q->weights = c->memory[Q_WEIGHTS];
    return TAMIS_OK;
}

/* The call of a tile; its arguments hold device pointers. */
typedef struct cuda_call {
    int kind; /* TAMIS_ROLE_SOURCE for full layers too, _CONSUMER; 0: dense */
    tamis_source_args source;
    tamis_consume_args consume;
    tamis_dense_args dense;
} cuda_call;

static tamis_status make_selection(cuda_selector *c, const layer_output *out, int32_t topk,
                                   int64_t count, tamis_selection *selection, tamis_error *error) {
    TRY(grow(c, POSITIONS, count * topk * 4, error));
    TRY(grow(c, SLOTS, count * topk * 8, error));
    TRY(grow(c, SCORES, count * topk * 4, error));
    TRY(grow(c, COUNTS, count * 4, error));
    *selection = (tamis_selection){.topk = topk,
                                   .positions = c->memory[POSITIONS],
                                   .positions_stride = topk,
                                   .slots = out->slots ? c->memory[SLOTS] : NULL,
                                   .slots_stride = topk,
                                   .scores = out->scores ? c->memory[SCORES] : NULL,
                                   .scores_stride = topk,
                                   .counts = c->memory[COUNTS]};
    return TAMIS_OK;
}

static tamis_status make_call(cuda_selector *c, const selector *s, const tamis_trace_layer *layer,
                              const layer_output *out, int64_t first, int64_t count,
                              cuda_call *call, tamis_error *error) {
    const tamis_model *model = &s->trace->model;
    int consumer = layer->role.role == TAMIS_ROLE_CONSUMER;
    int64_t width = model->candidate_topk_blocks, bytes = count * width * 4;
    tamis_k_cache k = layer->k;
    tamis_query query = layer->query;
    tamis_selection selection;
    TRY(send_k(c, &k, error));
    TRY(send_query(c, &query, first, count, error));
    TRY(send(c, ROW_START, layer->ks + first, count * 4, error));
    TRY(send(c, ROW_END, layer->ke + first, count * 4, error));
    TRY(make_selection(c, out, model->index_topk, count, &selection, error));
    TRY(consumer ? send(c, BLOCKS, s->blocks + first * width, bytes, error)
                 : grow(c, BLOCKS, bytes, error));
    tamis_rows rows = {.count = count, .ks = c->memory[ROW_START], .ke = c->memory[ROW_END]};
    call->kind = !consumer ? TAMIS_ROLE_SOURCE : s->dense ? 0 : TAMIS_ROLE_CONSUMER;
#define FILL(args)                                                                                 \
    (args)->numerics = s->numerics;                                                                \
    (args)->k = k;                                                                                 \
    (args)->rows = rows;                                                                           \
    (args)->query = query;                                                                         \
    (args)->selection = selection;                                                                 \
    (args)->block_size = model->candidate_block_size ? model->candidate_block_size : 8;            \
    (args)->blocks = c->memory[BLOCKS];                                                            \
    (args)->blocks_stride = width
    if (call->kind == TAMIS_ROLE_SOURCE) {
        tamis_source_args_default(&call->source);
        FILL(&call->source);
        call->source.topk_blocks = (int32_t)width;
        if (layer->role.role != TAMIS_ROLE_SOURCE)
            call->source.blocks = NULL;
    } else if (call->kind == TAMIS_ROLE_CONSUMER) {
        tamis_consume_args_default(&call->consume);
        FILL(&call->consume);
        call->consume.width = width;
    } else {
        tamis_dense_args_default(&call->dense);
        FILL(&call->dense);
        call->dense.width = width;
    }
#undef FILL
    return TAMIS_OK;
}

static int64_t workspace_of(const cuda_selector *c, const cuda_call *call) {
    if (call->kind == TAMIS_ROLE_SOURCE)
        return tamis_cuda_source_workspace(c->cuda, &call->source);
    if (call->kind == TAMIS_ROLE_CONSUMER)
        return tamis_cuda_consume_workspace(c->cuda, &call->consume);
    return tamis_cuda_dense_workspace(c->cuda, &call->dense);
}

static tamis_status run_call(cuda_selector *c, cuda_call *call, double *seconds,
                             tamis_error *error) {
    TRY(grow(c, WORKSPACE, workspace_of(c, call), error));
    call->source.workspace = call->consume.workspace = call->dense.workspace = c->memory[WORKSPACE];
    call->source.workspace_bytes = call->consume.workspace_bytes = call->dense.workspace_bytes =
        c->bytes[WORKSPACE];
    TRY(tamis_cuda_stream_sync(c->cuda, c->stream, error));
    double start = seconds_now();
    if (call->kind == TAMIS_ROLE_SOURCE)
        TRY(tamis_cuda_source(c->cuda, &call->source, c->stream, error));
    else if (call->kind == TAMIS_ROLE_CONSUMER)
        TRY(tamis_cuda_consume(c->cuda, &call->consume, c->stream, error));
    else
        TRY(tamis_cuda_dense(c->cuda, &call->dense, c->stream, error));
    TRY(tamis_cuda_stream_sync(c->cuda, c->stream, error));
    *seconds += seconds_now() - start;
    return TAMIS_OK;
}

static tamis_status fetch_results(cuda_selector *c, const selector *s,
                                  const tamis_trace_layer *layer, const layer_output *out,
                                  int64_t first, int64_t count, tamis_error *error) {
    int64_t topk = s->trace->model.index_topk, at = first * topk;
    int64_t width = s->trace->model.candidate_topk_blocks;
    TRY(fetch(c, out->positions ? out->positions + at : NULL, POSITIONS, count * topk * 4, error));
    TRY(fetch(c, out->slots ? out->slots + at : NULL, SLOTS, count * topk * 8, error));
    TRY(fetch(c, out->scores ? out->scores + at : NULL, SCORES, count * topk * 4, error));
    TRY(fetch(c, out->counts ? out->counts + first : NULL, COUNTS, count * 4, error));
    if (layer->role.role == TAMIS_ROLE_SOURCE)
        TRY(fetch(c, s->blocks + first * width, BLOCKS, count * width * 4, error));
    return tamis_cuda_stream_sync(c->cuda, c->stream, error);
}

tamis_status cuda_select_layer(cuda_selector *c, selector *s, const tamis_trace_layer *layer,
                               const layer_output *out, double *seconds, tamis_error *error) {
    int64_t rows = s->trace->rows;
    *seconds = 0;
    for (int64_t first = 0; first < rows && !*s->stop; first += TILE_ROWS) {
        int64_t count = rows - first < TILE_ROWS ? rows - first : TILE_ROWS;
        cuda_call call = {0};
        TRY(make_call(c, s, layer, out, first, count, &call, error));
        TRY(run_call(c, &call, seconds, error));
        TRY(fetch_results(c, s, layer, out, first, count, error));
        s->done += count;
        progress_show(s->bar, s->done);
    }
    return TAMIS_OK;
}
