/* SPDX-License-Identifier: MIT */
/*
 * trace.c: opens a trace of tamis-trace/1 (docs/trace.md).
 *
 * An index source's tensors are q and w, and `selected` where results are given; K is its owner's
 * and may be shared. A source that is absent while consumers are present leaves them without
 * blocks: then the file's `blocks` stand in, or every visible block where no row sees more than
 * the pool holds (spec 5.3: there both are the same).
 */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

#include "trace_parts.h"

#define FORMAT "tamis-trace/1"

static tamis_status malformed(tamis_error *error, const char *argument, const char *required,
                              const char *found) {
    return io_fail(error, TAMIS_ERROR_FORMAT, argument, required, found);
}

/* ---- metadata -------------------------------------------------------------------------------- */

static tamis_status load_model(trace_reader *in, tamis_error *error) {
    const char *format = safetensors_metadata(in->file, "format");
    const char *model = safetensors_metadata(in->file, "model");
    if (!format || strcmp(format, FORMAT) != 0) {
        return malformed(error, "__metadata__.format", FORMAT, format ? format : "missing");
    }
    if (!model) {
        return malformed(error, "__metadata__.model", "the model's config.json values", "missing");
    }
    tamis_status status = tamis_model_from_json("__metadata__.model", model, &in->model, error);
    if (status) {
        return status;
    }
    tamis_layer_role *roles = io_arena_alloc(&in->arena, in->model.model.num_layers, sizeof *roles);
    if (!roles) {
        return io_no_memory(error, "__metadata__.model");
    }
    in->trace.model = in->model.model;
    in->trace.roles = roles;
    in->trace.about = safetensors_metadata(in->file, "about");
    return tamis_model_roles(&in->trace.model, roles, error);
}

/* ---- one layer ------------------------------------------------------------------------------- */

static int has_own_tensors(const trace_reader *in, int32_t layer) {
    return io_has_mxfp4(in->file, io_format("q.%d", layer).text) ||
           safetensors_find(in->file, io_format("w.%d", layer).text) ||
           safetensors_find(in->file, io_format("selected.%d", layer).text);
}

static tamis_status load_query(trace_reader *in, tamis_trace_layer *layer, tamis_error *error) {
    const tamis_model *m = &in->trace.model;
    int64_t heads = m->index_n_heads, d = m->index_head_dim, rows;
    const int64_t shape[3] = {in->trace.rows, heads, d};
    io_text name = io_format("w.%d", layer->layer);
    const safetensors_tensor *weights;
    tamis_query *q = &layer->query;
    tamis_status status =
        io_load_mxfp4(in, io_format("q.%d", layer->layer).text, 3, shape,
                      io_format("all of q, w of layer %d, or none", layer->layer).text, &q->codes,
                      &q->scales, &rows, error);
    if (!status) {
        status =
            io_find(in->file, name.text, IO_DTYPE(F32) | IO_DTYPE(BF16), 2, shape, &weights, error);
    }
    if (status || !weights) {
        return status ? status
                      : malformed(error, name.text,
                                  io_format("all of q, w of layer %d, or none", layer->layer).text,
                                  "missing");
    }
    q->heads = m->index_n_heads;
    q->head_dim = m->index_head_dim;
    q->weights_type = weights->dtype == SAFETENSORS_F32 ? TAMIS_F32 : TAMIS_BF16;
    q->weights = weights->data;
    q->codes_head_stride = d / 2;
    q->codes_row_stride = heads * d / 2;
    q->scales_head_stride = d / 32;
    q->scales_row_stride = heads * d / 32;
    q->weights_row_stride = heads;
    return TAMIS_OK;
}

/* K of layer i's owner: another layer's view of it, or read now. */
static tamis_status load_k(trace_reader *in, int32_t i, tamis_error *error) {
    tamis_trace_layer *layer = &in->layers[i];
    int32_t owner = layer->role.k_owner;
    for (int32_t other = 0; other < i; other++) {
        if (in->layers[other].present && in->layers[other].role.k_owner == owner) {
            layer->k = in->layers[other].k;
            return TAMIS_OK;
        }
    }
    int64_t d = in->trace.model.index_head_dim;
    const int64_t shape[2] = {-1, d};
    const uint8_t *codes, *scales;
    io_text name = io_format("k.%d", owner);
    tamis_k_cache *k = &layer->k;
    tamis_status status = io_load_mxfp4(in, name.text, 2, shape,
                                        io_format("the K that layer %d reads", layer->layer).text,
                                        &codes, &scales, &k->size, error);
    if (!status && k->size > INT32_MAX) {
        status = malformed(error, name.text, "at most 2^31-1 rows",
                           io_format("%lld rows", (long long)k->size).text);
    }
    if (status) {
        return status;
    }
    k->layout = TAMIS_K_MXFP4_SPLIT;
    k->head_dim = (int32_t)d;
    k->stride = d / 2;
    k->scales_stride = d / 32;
    /* Only k_insert writes a cache, and a trace's is never given to it. */
    k->codes = (uint8_t *)(uintptr_t)codes;
    k->scales = (uint8_t *)(uintptr_t)scales;
    return TAMIS_OK;
}

static tamis_status load_results(const trace_reader *in, tamis_trace_layer *layer,
                                 tamis_error *error) {
    const int64_t shape[2] = {in->trace.rows, in->trace.model.index_topk};
    const safetensors_tensor *selected;
    tamis_status status = io_find(in->file, io_format("selected.%d", layer->layer).text,
                                  IO_DTYPE(I32), 2, shape, &selected, error);
    layer->selected = !status && selected ? selected->data : NULL;
    return status;
}

static tamis_status load_layer(trace_reader *in, int32_t i, tamis_error *error) {
    tamis_trace_layer *layer = &in->layers[i];
    layer->layer = in->trace.model.index_source_layer_ids[i];
    layer->role = in->trace.roles[layer->layer];
    if (!has_own_tensors(in, layer->layer)) {
        return TAMIS_OK;
    }
    layer->present = 1;
    tamis_status status = load_query(in, layer, error);
    if (!status) {
        status = load_k(in, i, error);
    }
    if (!status) {
        status = io_load_intervals(in, layer, error);
    }
    return status ? status : load_results(in, layer, error);
}

/* ---- all layers ------------------------------------------------------------------------------ */

static int k_is_read(const trace_reader *in, int32_t owner) {
    for (int32_t i = 0; i < in->trace.layer_count; i++) {
        if (in->layers[i].present && in->layers[i].role.k_owner == owner) {
            return 1;
        }
    }
    return 0;
}

/* A K that no present layer reads is the rest of a layer whose q was forgotten. */
static tamis_status check_absent(const trace_reader *in, tamis_error *error) {
    int32_t present = 0, count = in->trace.layer_count;
    for (int32_t i = 0; i < count; i++) {
        const tamis_trace_layer *layer = &in->layers[i];
        io_text k = io_format("k.%d", layer->layer);
        present += layer->present;
        if (!layer->present && io_has_mxfp4(in->file, k.text) && !k_is_read(in, layer->layer)) {
            return malformed(error, io_format("q.%d", layer->layer).text,
                             io_format("q and w of a layer that reads %s", k.text).text, "missing");
        }
    }
    if (!present) {
        return malformed(error, "q", "q, w and K of at least one index source layer", "none");
    }
    return TAMIS_OK;
}

static tamis_status load_layers(trace_reader *in, tamis_error *error) {
    int32_t count = in->trace.model.num_index_sources;
    in->layers = io_arena_alloc(&in->arena, count, sizeof *in->layers);
    if (!in->layers) {
        return io_no_memory(error, "layers");
    }
    memset(in->layers, 0, (size_t)count * sizeof *in->layers);
    in->trace.layers = in->layers;
    in->trace.layer_count = count;
    tamis_status status = TAMIS_OK;
    for (int32_t i = 0; i < count && !status; i++) {
        status = load_layer(in, i, error);
    }
    if (!status) {
        status = check_absent(in, error);
    }
    if (!status && !in->has_request) {
        io_guess_context(in);
    }
    return status;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A present consumer whose source is absent, or NULL. */
static const tamis_trace_layer *orphan(const trace_reader *in) {
    const tamis_trace_layer *consumer = NULL;
    for (int32_t i = 0; i < in->trace.layer_count; i++) {
        const tamis_trace_layer *layer = &in->layers[i];
        if (layer->present && layer->role.role == TAMIS_ROLE_SOURCE) {
            return NULL;
        }
        if (layer->present && layer->role.role == TAMIS_ROLE_CONSUMER) {
            consumer = layer;
        }
    }
    return consumer;
}

/* Every visible block of every row, where no row sees more than are published. */
static tamis_status fill_blocks(trace_reader *in, const tamis_trace_layer *consumer,
                                tamis_error *error) {
    const tamis_model *m = &in->trace.model;
    int64_t width = m->candidate_topk_blocks, size = m->candidate_block_size;
    for (int64_t r = 0; r < in->trace.rows; r++) {
        int64_t visible = (int64_t)consumer->ke[r] - consumer->ks[r];
        if (visible > width * size) {
            return malformed(
                error, "blocks",
                io_format("given, as layer %d is absent and layer %d consumes its blocks",
                          m->candidate_source_layer_id, consumer->layer)
                    .text,
                io_format("missing; row %lld sees %lld positions, more than the pool's %lld",
                          (long long)r, (long long)visible, (long long)(width * size))
                    .text);
        }
    }
    int64_t cells = in->trace.rows * width;
    int32_t *blocks = io_arena_alloc(&in->arena, cells, sizeof *blocks);
    if (!blocks) {
        return io_no_memory(error, "blocks");
    }
    for (int64_t i = 0; i < cells; i++) {
        int64_t r = i / width, b = i % width;
        blocks[i] = b * size < consumer->ke[r] - consumer->ks[r] ? (int32_t)b : -1;
    }
    in->trace.blocks = blocks;
    return TAMIS_OK;
}

static tamis_status load_blocks(trace_reader *in, tamis_error *error) {
    const tamis_model *m = &in->trace.model;
    const int64_t shape[2] = {in->trace.rows, m->candidate_topk_blocks};
    const safetensors_tensor *blocks;
    if (m->candidate_source_layer_id < 0) {
        return safetensors_find(in->file, "blocks")
                   ? malformed(error, "blocks", "none, as the model has no candidate source",
                               "blocks")
                   : TAMIS_OK;
    }
    tamis_status status = io_find(in->file, "blocks", IO_DTYPE(I32), 2, shape, &blocks, error);
    if (status) {
        return status;
    }
    const tamis_trace_layer *consumer = orphan(in);
    in->trace.blocks = blocks ? blocks->data : NULL;
    return consumer && !blocks ? fill_blocks(in, consumer, error) : TAMIS_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Takes the file, whatever it returns. */
static tamis_status build(safetensors *file, const char *path, tamis_trace **trace,
                          tamis_error *error) {
    trace_reader *in = calloc(1, sizeof *in);
    if (!in) {
        safetensors_close(file);
        return io_no_memory(error, "file");
    }
    in->file = file;
    char *copy = io_arena_alloc(&in->arena, (int64_t)strlen(path) + 1, 1);
    tamis_status status = copy ? load_model(in, error) : io_no_memory(error, "file");
    if (!status) {
        strcpy(copy, path);
        in->trace.path = copy;
        status = io_load_rows(in, error);
    }
    if (!status) {
        status = load_layers(in, error);
    }
    if (!status) {
        status = load_blocks(in, error);
    }
    if (status) {
        tamis_trace_close(&in->trace);
        return status;
    }
    *trace = &in->trace;
    return TAMIS_OK;
}

tamis_status tamis_trace_open(const char *path, tamis_trace **trace, tamis_error *error) {
    safetensors *file;
    *trace = NULL;
    tamis_status status = safetensors_open(path, &file, error);
    return status ? status : build(file, path, trace, error);
}

tamis_status tamis_trace_open_memory(const void *bytes, int64_t size, tamis_trace **trace,
                                     tamis_error *error) {
    safetensors *file;
    *trace = NULL;
    tamis_status status = safetensors_open_memory(bytes, size, &file, error);
    return status ? status : build(file, "(memory)", trace, error);
}

void tamis_trace_close(tamis_trace *trace) {
    if (!trace) {
        return;
    }
    trace_reader *in = (trace_reader *)(void *)trace;
    safetensors_close(in->file);
    tamis_model_file_free(&in->model);
    io_arena_free(&in->arena);
    free(in);
}
