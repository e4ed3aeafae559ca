/* SPDX-License-Identifier: MIT */
/* replay_cuda_memory.c: the arrays of the replay on a GPU, from opening to closing. */
#include <stdlib.h>
#include <string.h>

#include "replay_cuda.h"

static tamis_status make(cuda_engine *e, int64_t bytes, void *place, tamis_error *error) {
    void *memory = NULL;
    *error = (tamis_error){.status = TAMIS_ERROR_MEMORY, .argument = "buffers"};
    if (e->buffers == REPLAY_BUFFERS)
        return TAMIS_ERROR_MEMORY;
    TRY(tamis_cuda_alloc(e->cuda, bytes > 0 ? bytes : 1, &memory, error));
    e->buffer[e->buffers++] = memory;
    memcpy(place, &memory, sizeof memory);
    return TAMIS_OK;
}

tamis_status replay_cuda_send(cuda_engine *e, const void *to, const void *from, int64_t bytes,
                              tamis_error *error) {
    return tamis_cuda_copy_in(e->cuda, (void *)(uintptr_t)to, from, bytes, e->stream, error);
}

tamis_status replay_cuda_fetch(cuda_engine *e, void *to, const void *from, int64_t bytes,
                               tamis_error *error) {
    return tamis_cuda_copy_out(e->cuda, to, from, bytes, e->stream, error);
}

/* ---- memory -------------------------------------------------------------------------------- */

static tamis_status copy(cuda_engine *e, int in, void *device, void *host, int64_t size,
                         tamis_error *error) {
    TRY(in ? replay_cuda_send(e, device, host, size, error)
           : replay_cuda_fetch(e, host, device, size, error));
    return tamis_cuda_stream_sync(e->cuda, e->stream, error);
}

static int cuda_put(replay_engine *base, int32_t layer, int64_t offset, const void *bytes,
                    int64_t size, tamis_error *error) {
    cuda_engine *e = (cuda_engine *)base;
    return replay_cuda_outcome(
        copy(e, 1, e->arrays.k[layer] + offset, (void *)(uintptr_t)bytes, size, error));
}

static int cuda_get(replay_engine *base, int32_t layer, int64_t offset, void *bytes, int64_t size,
                    tamis_error *error) {
    cuda_engine *e = (cuda_engine *)base;
    return replay_cuda_outcome(copy(e, 0, e->arrays.k[layer] + offset, bytes, size, error));
}

/* Rows, and where they go, in buffers of the next flight; what comes out, in those of queries. */
static tamis_status gather(cuda_engine *e, int32_t layer, const int32_t *table, int64_t n,
                           uint8_t *codes, uint8_t *scales, tamis_error *error) {
    const replay_setup *setup = e->base.setup;
    int64_t dim = setup->script->dim, start = 0;
    int32_t end = (int32_t)n;
    uint8_t *out[2] = {NULL, NULL};
    tamis_k_gather_args a;
    TRY(replay_cuda_send(e, e->table[0], table, setup->pages_each * 4, error));
    TRY(replay_cuda_send(e, e->query_start, &end, 4, error));
    TRY(replay_cuda_send(e, e->context, &start, 8, error));
    replay_gather_args(setup, &e->arrays, layer, e->table[0], e->query_start, e->context, n, &a);
    void *codes_at = NULL, *scales_at = NULL;
    tamis_status status = tamis_cuda_alloc(e->cuda, n * dim / 2 + 1, &codes_at, error);
    if (status == TAMIS_OK)
        status = tamis_cuda_alloc(e->cuda, n * dim / 32 + 1, &scales_at, error);
    a.codes = out[0] = codes_at;
    a.scales = out[1] = scales_at;
    if (status == TAMIS_OK)
        status = copy(e, 1, out[0], codes, n * dim / 2 + 1, error);
    if (status == TAMIS_OK)
        status = copy(e, 1, out[1], scales, n * dim / 32 + 1, error);
    if (status == TAMIS_OK)
        status = tamis_cuda_k_gather(e->cuda, &a, e->stream, error);
    if (status == TAMIS_OK)
        status = copy(e, 0, out[0], codes, n * dim / 2 + 1, error);
    if (status == TAMIS_OK)
        status = copy(e, 0, out[1], scales, n * dim / 32 + 1, error);
    tamis_cuda_free(e->cuda, codes_at, NULL);
    tamis_cuda_free(e->cuda, scales_at, NULL);
    return status;
}

static int cuda_gather(replay_engine *base, int32_t layer, const int32_t *table, int64_t n,
                       uint8_t *codes, uint8_t *scales, tamis_error *error) {
    return replay_cuda_outcome(gather((cuda_engine *)base, layer, table, n, codes, scales, error));
}

static const char *cuda_machine(const replay_engine *base) {
    return ((const cuda_engine *)base)->machine;
}

static void cuda_close(replay_engine *base) {
    cuda_engine *e = (cuda_engine *)base;
    replay_graphs_close(e->graphs);
    tamis_cuda_plan_destroy(e->plan);
    for (int i = 0; i < e->buffers; i++)
        tamis_cuda_free(e->cuda, e->buffer[i], NULL);
    if (e->stream)
        tamis_cuda_stream_destroy(e->cuda, e->stream, NULL);
    tamis_cuda_destroy(e->cuda);
    free(e->host.context);
    free(e->host.position);
    free(e->host.slot[0]);
    free(e->host.slot[1]);
    free(e->host.query_start);
    replay_queries_free(&e->raw);
    free(e);
}

static const replay_engine_calls cuda_calls = {
    cuda_close, cuda_machine, cuda_put, cuda_get, cuda_gather, replay_cuda_fly, replay_cuda_err};

/* ---- opening ------------------------------------------------------------------------------- */

static int make_host(cuda_engine *e) {
    const replay_script *s = e->base.setup->script;
    size_t tokens = (size_t)s->max_tokens, requests = (size_t)s->max_requests;
    e->host.context = calloc(requests, 8);
    e->host.query_start = calloc(requests + 1, 4);
    e->host.position = calloc(tokens, 8);
    e->host.slot[0] = calloc(tokens, 8);
    e->host.slot[1] = calloc(tokens, 8);
    return e->host.context && e->host.query_start && e->host.position && e->host.slot[0] &&
           e->host.slot[1] && replay_queries_make(&e->raw, s);
}

static tamis_status make_arrays(cuda_engine *e, tamis_error *error) {
    const replay_setup *setup = e->base.setup;
    const replay_script *s = setup->script;
    int64_t tokens = s->max_tokens, requests = s->max_requests, heads = s->heads, dim = s->dim;
    replay_arrays *a = &e->arrays;
    TRY(make(e, requests * 8, &e->context, error));
    TRY(make(e, (requests + 1) * 4, &e->query_start, error));
    TRY(make(e, tokens * 8, &e->position, error));
    for (int k = 0; k < 2; k++) {
        TRY(make(e, tokens * 8, &e->slot[k], error));
        TRY(make(e, requests * setup->pages_each * 4, &e->table[k], error));
        a->slot[k] = e->slot[k];
    }
    a->position = e->position;
    TRY(make(e, tokens * heads * dim / 2, &a->codes, error));
    TRY(make(e, tokens * heads * dim / 32, &a->scales, error));
    TRY(make(e, tokens * heads * 4, &a->weights, error));
    TRY(make(e, s->max_context * 64 * 4, &a->rope, error));
    TRY(make(e, dim * 2, &a->norm, error));
    TRY(make(e, 4, &a->eps, error));
    TRY(replay_cuda_send(e, a->rope, setup->inputs->rope, s->max_context * 64 * 4, error));
    TRY(replay_cuda_send(e, a->norm, setup->inputs->norm, dim * 2, error));
    TRY(replay_cuda_send(e, a->eps, &setup->inputs->eps, 4, error));
    return TAMIS_OK;
}

static tamis_status make_layers(cuda_engine *e, tamis_error *error) {
    const replay_setup *setup = e->base.setup;
    const replay_script *s = setup->script;
    int64_t tokens = s->max_tokens, cells = tokens * s->topk, heads = s->heads, dim = s->dim;
    for (int32_t i = 0; i < s->owners; i++) {
        int32_t layer = s->owner[i], pages = setup->pages[s->ratio[layer] - 1];
        uint8_t *dirt = malloc((size_t)setup->page_stride);
        if (!dirt)
            return TAMIS_ERROR_MEMORY;
        TRY(make(e, pages * setup->page_stride, &e->arrays.k[layer], error));
        TRY(make(e, tokens * dim * 2, &e->x[layer], error));
        for (int64_t b = 0; b < setup->page_stride; b++)
            dirt[b] = (uint8_t)replay_mix((uint64_t)b);
        for (int32_t p = 0; p < pages; p++)
            TRY(replay_cuda_send(e, e->arrays.k[layer] + p * setup->page_stride, dirt,
                                 setup->page_stride, error));
        TRY(tamis_cuda_stream_sync(e->cuda, e->stream, error));
        free(dirt);
    }
    for (int32_t i = 0; i < s->indexes; i++) {
        replay_outcome *o = &e->arrays.out[s->index[i]];
        TRY(make(e, tokens * heads * dim * 2, &e->q[s->index[i]], error));
        TRY(make(e, tokens * heads * 2, &e->w[s->index[i]], error));
        TRY(make(e, cells * 4, &o->positions, error));
        TRY(make(e, cells * 8, &o->slots, error));
        TRY(make(e, cells * 4, &o->scores, error));
        TRY(make(e, tokens * 4, &o->counts, error));
        if (s->index[i] == s->source)
            TRY(make(e, tokens * s->blocks * 4, &o->blocks, error));
    }
    return TAMIS_OK;
}

static tamis_status open_all(cuda_engine *e, tamis_error *error) {
    const replay_setup *setup = e->base.setup;
    tamis_cuda_device device;
    void *memory;
    TRY(tamis_cuda_create_on(0, &e->cuda, error));
    TRY(tamis_cuda_stream_create(e->cuda, &e->stream, error));
    int64_t bytes = tamis_cuda_plan_bytes(setup->indexer, &setup->limits, error);
    if (bytes < 0)
        return TAMIS_ERROR_LIMIT;
    TRY(make(e, bytes, &memory, error));
    TRY(tamis_cuda_plan_create(e->cuda, setup->indexer, &setup->limits, memory, bytes, e->stream,
                               &e->plan, error));
    TRY(make_arrays(e, error));
    TRY(make_layers(e, error));
    tamis_cuda_devices(&device, 1);
    snprintf(e->machine, sizeof e->machine, "CUDA on %s%s", device.name,
             setup->options->graph ? ", graphs" : "");
    if (setup->options->graph && !(e->graphs = replay_graphs_open())) {
        *error = (tamis_error){.status = TAMIS_ERROR_CUDA, .argument = "--graph"};
        strcpy(error->required, "a driver with graphs");
        return TAMIS_ERROR_CUDA;
    }
    return tamis_cuda_stream_sync(e->cuda, e->stream, error);
}

replay_engine *replay_cuda_open(const replay_setup *setup, tamis_error *error) {
    cuda_engine *e = calloc(1, sizeof *e);
    *error = (tamis_error){.status = TAMIS_ERROR_MEMORY, .argument = "memory"};
    if (!e)
        return NULL;
    e->base = (replay_engine){&cuda_calls, setup};
    if (make_host(e) && open_all(e, error) == TAMIS_OK)
        return &e->base;
    cuda_close(&e->base);
    return NULL;
}
