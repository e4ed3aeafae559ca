/* SPDX-License-Identifier: MIT */
/*
 * trace_rows.c: which token each row of a trace is, and the interval of K rows it sees.
 *
 * K rows of the requests lie one after another, context / ratio rows each, so an interval is the
 * rows of the requests before plus visible(position) (spec 1, 7.7). Sums are 64-bit; an interval
 * that K does not hold is refused and names the row.
 */
#include "trace_parts.h"

#include <stdlib.h>

/* Tokens whose visible length fits an int32 at the largest ratio. */
#define TOKEN_LIMIT ((int64_t)INT32_MAX * 2)

static tamis_status out_of_place(tamis_error *error, const char *tensor, int64_t i,
                                 const char *required, int64_t found) {
    return io_fail(error, TAMIS_ERROR_FORMAT, io_format("%s[%lld]", tensor, (long long)i).text,
                   required, io_format("%lld", (long long)found).text);
}

static tamis_status load_position(trace_reader *in, tamis_error *error) {
    static const int64_t any[1] = {-1};
    const safetensors_tensor *t;
    tamis_status status =
        io_find(in->file, "position", IO_DTYPE(I32) | IO_DTYPE(I64), 1, any, &t, error);
    if (status) {
        return status;
    }
    if (!t) {
        return io_fail(error, TAMIS_ERROR_FORMAT, "position", "I32 or I64 [N]", "missing");
    }
    int64_t *position = io_arena_alloc(&in->arena, t->shape[0], sizeof *position);
    if (!position) {
        return io_no_memory(error, "position");
    }
    for (int64_t r = 0; r < t->shape[0]; r++) {
        position[r] = t->dtype == SAFETENSORS_I32 ? ((const int32_t *)t->data)[r]
                                                  : ((const int64_t *)t->data)[r];
        if (position[r] < 0 || position[r] >= TOKEN_LIMIT) {
            return out_of_place(error, "position", r,
                                io_format("a token, 0 .. %lld", (long long)TOKEN_LIMIT - 1).text,
                                position[r]);
        }
    }
    in->trace.rows = t->shape[0];
    in->trace.position = position;
    return TAMIS_OK;
}

static tamis_status load_context(trace_reader *in, const safetensors_tensor *t,
                                 tamis_error *error) {
    int64_t requests = t ? t->shape[0] : 1;
    int64_t *context = io_arena_alloc(&in->arena, requests, sizeof *context);
    if (!context) {
        return io_no_memory(error, "context");
    }
    for (int64_t i = 0; i < requests; i++) {
        context[i] = t ? ((const int32_t *)t->data)[i] : 0;
        if (context[i] < 0) {
            return out_of_place(error, "context", i, "0 or more tokens", context[i]);
        }
    }
    in->trace.requests = requests;
    in->trace.context = context;
    return TAMIS_OK;
}

static tamis_status load_request(trace_reader *in, const safetensors_tensor *t,
                                 tamis_error *error) {
    int32_t *request = io_arena_alloc(&in->arena, in->trace.rows, sizeof *request);
    if (!request) {
        return io_no_memory(error, "request");
    }
    for (int64_t r = 0, least = 0; r < in->trace.rows; r++) {
        request[r] = t ? ((const int32_t *)t->data)[r] : 0;
        if (request[r] < least || request[r] >= in->trace.requests) {
            return out_of_place(error, "request", r,
                                io_format("grouped, ascending, %lld .. %lld", (long long)least,
                                          (long long)in->trace.requests - 1)
                                    .text,
                                request[r]);
        }
        least = request[r];
    }
    in->trace.request = request;
    return TAMIS_OK;
}

/* Ascending inside a request, and inside its context. */
static tamis_status check_positions(const trace_reader *in, tamis_error *error) {
    const tamis_trace *t = &in->trace;
    for (int64_t r = 0; r < t->rows; r++) {
        if (r && t->request[r] == t->request[r - 1] && t->position[r] <= t->position[r - 1]) {
            return out_of_place(error, "position", r,
                                io_format("more than %lld, the row before of its request",
                                          (long long)t->position[r - 1])
                                    .text,
                                t->position[r]);
        }
        int64_t context = t->context[t->request[r]];
        if (in->has_request && t->position[r] >= context) {
            return out_of_place(error, "position", r,
                                io_format("below %lld, the context of request %d",
                                          (long long)context, t->request[r])
                                    .text,
                                t->position[r]);
        }
    }
    return TAMIS_OK;
}

tamis_status io_load_rows(trace_reader *in, tamis_error *error) {
    static const int64_t any[1] = {-1};
    const safetensors_tensor *request = NULL, *context = NULL;
    tamis_status status = load_position(in, error);
    if (!status) {
        status = io_find(in->file, "request", IO_DTYPE(I32), 1, &in->trace.rows, &request, error);
    }
    if (!status) {
        status = io_find(in->file, "context", IO_DTYPE(I32), 1, any, &context, error);
    }
    if (!status && (request == NULL) != (context == NULL)) {
        status = io_fail(error, TAMIS_ERROR_FORMAT, request ? "context" : "request",
                         "both request and context, or neither", "missing");
    }
    in->has_request = request != NULL;
    if (!status) {
        status = load_context(in, context, error);
    }
    if (!status) {
        status = load_request(in, request, error);
    }
    return status ? status : check_positions(in, error);
}

/* K rows of the requests before each one; start[requests] is all of them. The caller frees it. */
static tamis_status find_starts(const trace_reader *in, const tamis_trace_layer *layer,
                                int64_t **out, tamis_error *error) {
    const tamis_trace *t = &in->trace;
    int32_t owner = layer->role.k_owner, ratio = t->roles[owner].ratio;
    int64_t *start = calloc((size_t)t->requests + 1, sizeof *start);
    *out = start;
    if (!start) {
        return io_no_memory(error, "context");
    }
    for (int64_t i = 0; i < t->requests; i++) {
        start[i + 1] = start[i] + (in->has_request ? t->context[i] / ratio : layer->k.size);
    }
    if (start[t->requests] != layer->k.size) {
        return io_fail(
            error, TAMIS_ERROR_FORMAT, io_format("k.%d", owner).text,
            io_format("%lld rows: the sum of context / %d", (long long)start[t->requests], ratio)
                .text,
            io_format("%lld rows", (long long)layer->k.size).text);
    }
    return TAMIS_OK;
}

static tamis_status fill_intervals(const tamis_trace *t, const tamis_trace_layer *layer,
                                   const int64_t *start, int32_t *ks, int32_t *ke,
                                   tamis_error *error) {
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t first = start[t->request[r]], held = start[t->request[r] + 1] - first;
        int64_t visible = tamis_visible(t->position[r], layer->role.ratio);
        if (visible > held) {
            return io_fail(error, TAMIS_ERROR_FORMAT,
                           io_format("position[%lld]", (long long)r).text,
                           io_format("at most the %lld K rows that k.%d holds of request %d",
                                     (long long)held, layer->role.k_owner, t->request[r])
                               .text,
                           io_format("token %lld, which sees %lld in layer %d",
                                     (long long)t->position[r], (long long)visible, layer->layer)
                               .text);
        }
        ks[r] = (int32_t)first; /* K has at most INT32_MAX rows */
        ke[r] = (int32_t)(first + visible);
    }
    return TAMIS_OK;
}

tamis_status io_load_intervals(trace_reader *in, tamis_trace_layer *layer, tamis_error *error) {
    const tamis_trace *t = &in->trace;
    int64_t *start;
    tamis_status status = find_starts(in, layer, &start, error);
    int32_t *ks = io_arena_alloc(&in->arena, t->rows, sizeof *ks);
    int32_t *ke = io_arena_alloc(&in->arena, t->rows, sizeof *ke);
    if (!status && (!ks || !ke)) {
        status = io_no_memory(error, "position");
    }
    if (!status) {
        status = fill_intervals(t, layer, start, ks, ke, error);
    }
    free(start);
    layer->ks = ks;
    layer->ke = ke;
    return status;
}

void io_guess_context(trace_reader *in) {
    const tamis_trace *t = &in->trace;
    int64_t tokens = t->rows ? t->position[t->rows - 1] + 1 : 0;
    for (int32_t i = 0; i < t->layer_count; i++) {
        const tamis_trace_layer *layer = &in->layers[i];
        int64_t held = layer->present ? layer->k.size * t->roles[layer->role.k_owner].ratio : 0;
        tokens = held > tokens ? held : tokens;
    }
    ((int64_t *)t->context)[0] = tokens;
}
