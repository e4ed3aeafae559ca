/* SPDX-License-Identifier: MIT */
/*
 * fuzz_trace.c: any bytes as a safetensors file and as a trace. What opens must keep the promises
 * of trace.h, and every byte that it promises is read; what does not open leaves one printable
 * error.
 *
 * Most changes to a file's length make it no file at all, since the tensors must cover the data;
 * so the mutator mostly changes the header alone, or the data alone, and sets the length right.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            __builtin_trap();                                                                      \
        }                                                                                          \
    } while (0)

static volatile uint8_t sink;

/* Reads every byte, so that the sanitizer sees each. */
static void touch(const void *bytes, int64_t count) {
    const uint8_t *from = bytes;
    uint8_t all = 0;
    NEED(count == 0 || from);
    for (int64_t i = 0; i < count; i++) {
        all ^= from[i];
    }
    sink = all;
}

static void check_error(tamis_status status, const tamis_error *error) {
    char text[400];
    NEED(error->status == status && error->argument[0]);
    NEED(tamis_error_text(error, text, sizeof text) < (int32_t)sizeof text);
    for (const char *c = text; *c; c++) {
        NEED(*c >= 0x20 && *c < 0x7f);
    }
}

static void check_file(const uint8_t *data, size_t size) {
    safetensors *file;
    tamis_error error = {0};
    tamis_status status = safetensors_open_memory(data, (int64_t)size, &file, &error);
    if (status) {
        NEED(!file);
        check_error(status, &error);
        return;
    }
    int64_t bytes = 0;
    for (int64_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *t = safetensors_at(file, i);
        NEED(safetensors_find(file, t->name) == t && t->rank >= 0 && t->rank <= 4 && t->data);
        touch(t->data, t->bytes);
        bytes += t->bytes;
    }
    NEED(bytes <= (int64_t)size - 8 && !safetensors_at(file, safetensors_count(file)));
    safetensors_close(file);
}

static void check_layer(const tamis_trace *t, const tamis_trace_layer *layer) {
    const tamis_model *m = &t->model;
    int64_t heads = m->index_n_heads, d = m->index_head_dim;
    NEED(layer->role.role == TAMIS_ROLE_FULL || layer->role.role == TAMIS_ROLE_SOURCE ||
         layer->role.role == TAMIS_ROLE_CONSUMER);
    if (!layer->present) {
        return;
    }
    touch(layer->query.codes, t->rows * heads * d / 2);
    touch(layer->query.scales, t->rows * heads * d / 32);
    touch(layer->query.weights, t->rows * heads * (layer->query.weights_type == TAMIS_F32 ? 4 : 2));
    touch(layer->k.codes, layer->k.size * d / 2);
    touch(layer->k.scales, layer->k.size * d / 32);
    for (int64_t r = 0; r < t->rows; r++) {
        NEED(layer->ks[r] >= 0 && layer->ks[r] <= layer->ke[r] && layer->ke[r] <= layer->k.size);
        NEED(layer->ke[r] - layer->ks[r] == tamis_visible(t->position[r], layer->role.ratio));
    }
    if (layer->selected) {
        touch(layer->selected, t->rows * m->index_topk * 4);
    }
    NEED(layer->role.role != TAMIS_ROLE_CONSUMER || t->layers[0].layer <= layer->role.source);
}

static void check_trace(const uint8_t *data, size_t size) {
    tamis_trace *t;
    tamis_error error = {0};
    tamis_status status = tamis_trace_open_memory(data, (int64_t)size, &t, &error);
    if (status) {
        NEED(!t);
        check_error(status, &error);
        return;
    }
    int source = 0, consumer = 0;
    for (int64_t r = 0; r < t->rows; r++) {
        NEED(t->request[r] >= 0 && t->request[r] < t->requests);
        NEED(t->position[r] >= 0 && t->position[r] < t->context[t->request[r]]);
    }
    for (int32_t i = 0; i < t->layer_count; i++) {
        check_layer(t, &t->layers[i]);
        source |= t->layers[i].present && t->layers[i].role.role == TAMIS_ROLE_SOURCE;
        consumer |= t->layers[i].present && t->layers[i].role.role == TAMIS_ROLE_CONSUMER;
    }
    NEED(t->blocks || source || !consumer);
    if (t->blocks) {
        touch(t->blocks, t->rows * t->model.candidate_topk_blocks * 4);
    }
    touch(t->path, (int64_t)strlen(t->path));
    tamis_trace_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_file(data, size);
    check_trace(data, size);
    return 0;
}

/* Where the header ends, or 0 when there is none to speak of. */
static size_t header_end(const uint8_t *data, size_t size) {
    uint64_t length = 0;
    for (int i = 7; i >= 0 && size >= 8; i--) {
        length = length << 8 | data[i];
    }
    return size >= 8 && length <= size - 8 ? 8 + (size_t)length : 0;
}

static size_t mutate_header(uint8_t *data, size_t size, size_t max_size, size_t end) {
    size_t rest = size - end, room = max_size - rest - 8;
    uint8_t *copy = malloc(max_size);
    memcpy(copy, data + 8, end - 8);
    size_t length = LLVMFuzzerMutate(copy, end - 8, room);
    memmove(data + 8 + length, data + end, rest);
    memcpy(data + 8, copy, length);
    for (int i = 0; i < 8; i++) {
        data[i] = (uint8_t)((uint64_t)length >> (8 * i));
    }
    free(copy);
    return 8 + length + rest;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    size_t end = header_end(data, size);
    if (end > 8 && size <= max_size && seed % 8 < 5) {
        return mutate_header(data, size, max_size, end);
    }
    if (end && end < size && seed % 8 < 7) {
        size_t length = LLVMFuzzerMutate(data + end, size - end, size - end);
        return length == size - end ? size : LLVMFuzzerMutate(data, size, max_size);
    }
    return LLVMFuzzerMutate(data, size, max_size);
}
