/* SPDX-License-Identifier: MIT */
/*
 * forge.c: see forge.h. The trace it starts from: layers 0 (no indexer), 1 (full, owns K, ratio 2),
 * 2 (reuse), 3 (candidate source, owns K), 4 (consumer); 4 heads of 64, top 4 of 2 blocks of 8;
 * request 0 of 10 tokens with rows 3 and 9, request 1 of 7 tokens with row 6.
 */
#include "forge.h"

#define MODEL                                                                                      \
    "{\"num_hidden_layers\":5,\"compress_ratios\":[0,2,2,1,1],\"kv_source_layer_ids\":[1,3],"      \
    "\"index_source_layer_ids\":[1,3,4],\"candidate_source_layer_id\":3,"                          \
    "\"candidate_topk_blocks\":2,\"candidate_block_size\":8,\"index_n_heads\":4,"                  \
    "\"index_head_dim\":64,\"index_topk\":4}"

void forge_empty(forge *f) {
    memset(f, 0, sizeof *f);
    f->header_length = -1;
}

forge_tensor *forge_add(forge *f, const char *name, const char *dtype, const char *shape,
                        const void *data, int64_t bytes) {
    assert_true(f->count < FORGE_TENSORS);
    forge_tensor *t = &f->tensors[f->count++];
    memset(t, 0, sizeof *t);
    t->name = name;
    t->dtype = dtype;
    t->shape = shape;
    t->bytes = bytes;
    t->data = malloc((size_t)bytes + 1);
    for (int64_t i = 0; i < bytes; i++) {
        t->data[i] = data ? ((const uint8_t *)data)[i] : (uint8_t)(i * 37 + f->count * 101);
    }
    return t;
}

static void add_layer(forge *f, const char *codes, const char *scales, const char *weights) {
    static const float w[12] = {.5f, -.25f, 1, 2, .5f, .5f, -1, 3, 1, 1, 1, 1};
    forge_add(f, weights, "F32", "[3, 4]", w, sizeof w);
    forge_add(f, codes, "U8", "[3, 4, 32]", NULL, 384);
    forge_add(f, scales, "U8", "[3, 4, 2]", NULL, 24);
}

void forge_trace(forge *f) {
    static const int32_t position[] = {3, 9, 6}, request[] = {0, 0, 1}, context[] = {10, 7};
    forge_empty(f);
    f->format = "tamis-trace/1";
    f->model = MODEL;
    f->pad = 3;
    forge_add(f, "position", "I32", "[3]", position, sizeof position);
    forge_add(f, "request", "I32", "[3]", request, sizeof request);
    forge_add(f, "context", "I32", "[2]", context, sizeof context);
    add_layer(f, "q.1.codes", "q.1.scales", "w.1");
    add_layer(f, "q.3.codes", "q.3.scales", "w.3");
    add_layer(f, "q.4.codes", "q.4.scales", "w.4");
    forge_add(f, "k.1.codes", "U8", "[8, 32]", NULL, 8 * 32);
    forge_add(f, "k.1.scales", "U8", "[8, 2]", NULL, 8 * 2);
    forge_add(f, "k.3.codes", "U8", "[17, 32]", NULL, 17 * 32);
    forge_add(f, "k.3.scales", "U8", "[17, 2]", NULL, 17 * 2);
}

void forge_free(forge *f) {
    for (int i = 0; i < f->count; i++) {
        free(f->tensors[i].data);
    }
    forge_empty(f);
}

forge_tensor *forge_get(forge *f, const char *name) {
    for (int i = 0; i < f->count; i++) {
        if (!strcmp(f->tensors[i].name, name)) {
            return &f->tensors[i];
        }
    }
    fail_msg("the forge has no %s", name);
    return NULL;
}

void forge_remove(forge *f, const char *name) {
    forge_tensor *t = forge_get(f, name);
    free(t->data);
    f->count--;
    memmove(t, t + 1, (size_t)(f->tensors + f->count - t) * sizeof *t);
}

void forge_i32(forge *f, const char *name, int64_t index, int32_t value) {
    memcpy(forge_get(f, name)->data + 4 * index, &value, 4);
}

/* ---- bytes ------------------------------------------------------------------------- */

static char *append(char *to, const char *text) {
    size_t n = strlen(text);
    memcpy(to, text, n + 1);
    return to + n;
}

/* A JSON string of text that holds no control characters. */
static char *append_quoted(char *to, const char *text) {
    to = append(to, "\"");
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            *to++ = '\\';
        }
        *to++ = *text;
    }
    return append(to, "\"");
}

static char *append_metadata(char *to, const forge *f) {
    if (f->metadata) {
        to = append(to, "\"__metadata__\":");
        return append(to, f->metadata);
    }
    if (!f->format && !f->model) {
        return to;
    }
    to = append(to, "\"__metadata__\":{");
    if (f->format) {
        to = append_quoted(append(to, "\"format\":"), f->format);
    }
    if (f->model) {
        to = append_quoted(append(to, f->format ? ",\"model\":" : "\"model\":"), f->model);
    }
    return append(to, "}");
}

static char *append_tensor(char *to, const forge_tensor *t, int64_t begin) {
    to = append(append(append(to, "\""), t->name), "\":");
    if (t->entry) {
        return append(to, t->entry);
    }
    to = append(append(append(to, "{\"dtype\":\""), t->dtype), "\",\"shape\":");
    to = append(append(to, t->shape), ",\"data_offsets\":");
    if (t->offsets) {
        to = append(to, t->offsets);
    } else {
        to += sprintf(to, "[%lld,%lld]", (long long)begin, (long long)(begin + t->bytes));
    }
    return append(to, "}");
}

static size_t write_header(const forge *f, char *to) {
    char *end = append_metadata(append(to, "{"), f);
    int64_t begin = 0;
    for (int i = 0; i < f->count; i++) {
        if (end[-1] != '{' || end - to > 1) {
            end = append(end, ",");
        }
        end = append_tensor(end, &f->tensors[i], begin);
        begin += f->tensors[i].bytes;
    }
    end = append(end, "}");
    for (int i = 0; i < f->pad; i++) {
        end = append(end, " ");
    }
    return (size_t)(end - to);
}

uint8_t *forge_bytes(const forge *f, int64_t *size) {
    size_t room = 65536 + (f->header ? strlen(f->header) : 0), data = 0;
    char *header = malloc(room);
    size_t length =
        f->header ? (size_t)(append(header, f->header) - header) : write_header(f, header);
    assert_true(length < room);
    for (int i = 0; i < f->count; i++) {
        data += (size_t)f->tensors[i].bytes;
    }
    uint64_t said = f->header_length < 0 ? length : (uint64_t)f->header_length;
    uint8_t *bytes = malloc(8 + length + data), *to = bytes + 8;
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(said >> (8 * i));
    }
    memcpy(to, header, length);
    to += length;
    for (int i = 0; i < f->count; i++) {
        memcpy(to, f->tensors[i].data, (size_t)f->tensors[i].bytes);
        to += f->tensors[i].bytes;
    }
    free(header);
    *size = to - bytes;
    return bytes;
}

/* ---- opening ----------------------------------------------------------------------- */

tamis_trace *forge_open(const forge *f, uint8_t **bytes) {
    tamis_trace *trace;
    tamis_error error = {0};
    int64_t size;
    *bytes = forge_bytes(f, &size);
    if (tamis_trace_open_memory(*bytes, size, &trace, &error)) {
        char text[400];
        tamis_error_text(&error, text, sizeof text);
        fail_msg("%s", text);
    }
    return trace;
}

static void holds(const char *text, const char *part) {
    if (!strstr(text, part)) {
        fail_msg("\"%s\" does not hold \"%s\"", text, part);
    }
}

void forge_refused(forge *f, tamis_status status, const char *argument, const char *required,
                   const char *found) {
    tamis_trace *trace = (tamis_trace *)f;
    tamis_error error;
    char text[400];
    int64_t size;
    memset(&error, 0xA5, sizeof error);
    uint8_t *bytes = forge_bytes(f, &size);
    tamis_status got = tamis_trace_open_memory(bytes, size, &trace, &error);
    free(bytes);
    forge_free(f);
    assert_int_equal(got, status);
    assert_int_equal(error.status, status);
    assert_null(trace);
    assert_string_equal(error.argument, argument);
    holds(error.required, required);
    holds(error.found, found);
    assert_true(tamis_error_text(&error, text, sizeof text) < (int32_t)sizeof text);
    for (const char *c = text; *c; c++) {
        assert_in_range(*c, 0x20, 0x7e);
    }
}
