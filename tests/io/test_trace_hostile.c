/* SPDX-License-Identifier: MIT */
/*
 * test_trace_hostile.c: files that must be refused, each wrong in one place, each a test by its
 * own name: X(name, the change, argument, required, found). One clear error, nothing opened.
 */
#include "forge.h"

static void set(forge *f, const char *name, const char *dtype, const char *shape) {
    forge_tensor *t = forge_get(f, name);
    t->dtype = dtype ? dtype : t->dtype;
    t->shape = shape ? shape : t->shape;
}

static void offsets(forge *f, const char *name, const char *text) {
    forge_get(f, name)->offsets = text;
}

static void entry(forge *f, const char *name, const char *text) {
    forge_get(f, name)->entry = text;
}

static void rename_to(forge *f, const char *name, const char *other) {
    forge_get(f, name)->name = other;
}

/* Makes a tensor floats of another element type, of the same logical shape. */
static void replace(forge *f, const char *name, const char *other, const char *dtype,
                    const char *shape, int64_t bytes) {
    forge_remove(f, name);
    forge_add(f, other, dtype, shape, NULL, bytes);
}

static void without(forge *f, int layer) {
    static const char *const parts[] = {"q.%d.codes", "q.%d.scales", "w.%d"};
    for (int i = 0; i < 3; i++) {
        char name[24];
        snprintf(name, sizeof name, parts[i], layer);
        forge_remove(f, name);
    }
}

/* A model that differs in one value: `from` becomes `to`. The text lives to the end of the run. */
static void model(forge *f, const char *from, const char *to) {
    static char text[1024];
    const char *at = strstr(f->model, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - f->model), f->model, to, at + strlen(from));
    f->model = text;
}

/* A header of `n` times a text. */
static void deep(forge *f, const char *text, size_t n) {
    static char header[1 << 20];
    size_t length = strlen(text);
    for (size_t i = 0; i < n; i++) {
        memcpy(header + i * length, text, length + 1);
    }
    f->header = header;
}

/* Without request and context: one request, whose K may be of any length. */
static void one_request(forge *f) {
    forge_remove(f, "request");
    forge_remove(f, "context");
    forge_i32(f, "position", 2, 12);
}

/* A last tensor of 7 bytes in a place of 8, `skip` bytes after where it should begin. */
static void last(forge *f, long long skip) {
    static char text[48];
    long long begin = skip;
    for (int i = 0; i < f->count; i++) {
        begin += f->tensors[i].bytes;
    }
    snprintf(text, sizeof text, "[%lld, %lld]", begin, begin + 7);
    forge_add(f, "x", "U8", "[7]", NULL, 8)->offsets = text;
}

static void only_rows(forge *f) {
    while (f->count > 3) {
        forge_remove(f, f->tensors[3].name);
    }
}

#define FORMAT TAMIS_ERROR_FORMAT
#define MODEL  TAMIS_ERROR_MODEL

#define HOSTILE_HEADERS(X)                                                                         \
    X(header_longer_than_file, f->header_length = 1 << 20, FORMAT, "header length", "at most",     \
      "1048576")                                                                                   \
    X(header_of_2_to_63_bytes, f->header_length = INT64_MAX, FORMAT, "header length", "at most",   \
      "9223372036854775807")                                                                       \
    X(header_shorter_than_json, f->header_length = 40, FORMAT, "header", "JSON", "byte")           \
    X(header_empty, f->header = "", FORMAT, "header", "JSON", "byte")                              \
    X(header_an_array, f->header = "[]", FORMAT, "header", "a JSON object", "an array")            \
    X(header_broken, f->header = "{\"a\":{\"dtype\":\"U8\",}", FORMAT, "header", "JSON", "byte")   \
    X(header_with_a_tail, f->header = "{} {}", FORMAT, "header", "JSON", "end of file")            \
    X(header_deep_arrays, deep(f, "[", 1 << 19), FORMAT, "header", "JSON", "depth")                \
    X(header_deep_objects, deep(f, "{\"a\":", 1 << 17), FORMAT, "header", "JSON", "depth")         \
    X(header_not_utf8, rename_to(f, "w.1", "w\xff"), FORMAT, "header", "UTF-8", "byte 0xff")       \
    X(header_integer_beyond_64_bits, set(f, "w.1", NULL, "[99999999999999999999]"), FORMAT,        \
      "header", "JSON", "too big integer")                                                         \
    X(name_with_nul, rename_to(f, "w.1", "w\\u0000"), FORMAT, "header", "JSON", "NUL")             \
    X(name_twice, rename_to(f, "w.1", "w.3"), FORMAT, "header", "unique", "duplicate")             \
    X(name_empty, (rename_to(f, "w.1", ""), set(f, "", "F7", NULL)), FORMAT, "\"\"", "dtype",      \
      "F7")                                                                                        \
    X(name_with_newline,                                                                           \
      (rename_to(f, "w.1", "w\\n\\u001b[31m"), set(f, "w\\n\\u001b[31m", "F64", NULL)), FORMAT,    \
      "w??[31m", "96 bytes", "48 bytes")

#define HOSTILE_TENSORS(X)                                                                         \
    X(entry_not_an_object, entry(f, "w.1", "7"), FORMAT, "w.1", "an object", "an integer")         \
    X(dtype_missing, entry(f, "w.1", "{\"shape\":[],\"data_offsets\":[0,0]}"), FORMAT, "w.1",      \
      "dtype", "missing")                                                                          \
    X(dtype_unknown, set(f, "w.1", "F7", NULL), FORMAT, "w.1", "dtype", "F7")                      \
    X(shape_missing, entry(f, "w.1", "{\"dtype\":\"U8\",\"data_offsets\":[0,0]}"), FORMAT, "w.1",  \
      "shape", "missing")                                                                          \
    X(shape_negative, set(f, "w.1", NULL, "[-3, 4]"), FORMAT, "w.1", "shape", "-3")                \
    X(shape_of_reals, set(f, "w.1", NULL, "[3.0, 4]"), FORMAT, "w.1", "shape", "a number")         \
    X(shape_of_5_dimensions, set(f, "w.1", NULL, "[3, 4, 1, 1, 1]"), FORMAT, "w.1", "at most 4",   \
      "5 dimensions")                                                                              \
    X(shape_overflows, set(f, "w.1", NULL, "[4294967296, 4294967296]"), FORMAT, "w.1", "2^63",     \
      "dimension 1")                                                                               \
    X(shape_overflows_by_element, set(f, "w.1", NULL, "[9223372036854775807]"), FORMAT, "w.1",     \
      "2^63", "dimension 0")                                                                       \
    X(shape_wraps_to_the_right_size, set(f, "w.1", NULL, "[4611686018427387916]"), FORMAT, "w.1",  \
      "2^63", "dimension 0")                                                                       \
    X(offsets_missing, entry(f, "w.1", "{\"dtype\":\"U8\",\"shape\":[0]}"), FORMAT, "w.1",         \
      "data_offsets", "missing")                                                                   \
    X(offsets_one, offsets(f, "w.1", "[32]"), FORMAT, "w.1", "two integers", "another array")      \
    X(offsets_reversed, offsets(f, "w.1", "[80, 32]"), FORMAT, "w.1", "ascending", "[80, 32]")     \
    X(offsets_negative, offsets(f, "w.1", "[-48, 0]"), FORMAT, "w.1", "ascending", "[-48, 0]")     \
    X(offsets_out_of_range, offsets(f, "w.1", "[1000000, 1000048]"), FORMAT, "w.1", "in 0 ..",     \
      "[1000000, 1000048]")                                                                        \
    X(offsets_at_2_to_63, offsets(f, "w.1", "[9223372036854775759, 9223372036854775807]"), FORMAT, \
      "w.1", "in 0 ..", "9223372036854775807")                                                     \
    X(offsets_of_another_size, offsets(f, "w.1", "[32, 76]"), FORMAT, "w.1", "48 bytes",           \
      "44 bytes")                                                                                  \
    X(tensors_overlap, offsets(f, "w.1", "[31, 79]"), FORMAT, "w.1", "begin at 32", "overlap")     \
    X(tensors_share_data, offsets(f, "w.3", "[32, 80]"), FORMAT, "w.3", "begin at 80", "overlap")  \
    X(hole_between, last(f, 1), FORMAT, "x", "begin at", "a hole before it")                       \
    X(bytes_after_the_last, last(f, 0), FORMAT, "data", "cover", "1 bytes after")

#define HOSTILE_METADATA(X)                                                                        \
    X(metadata_missing, (f->format = NULL, f->model = NULL), FORMAT, "__metadata__.format",        \
      "tamis-trace/1", "missing")                                                                  \
    X(metadata_not_an_object, f->metadata = "[]", FORMAT, "__metadata__", "an object", "an array") \
    X(metadata_not_strings, f->metadata = "{\"format\":1}", FORMAT, "__metadata__.format",         \
      "a string", "an integer")                                                                    \
    X(format_missing, f->format = NULL, FORMAT, "__metadata__.format", "tamis-trace/1", "missing") \
    X(format_of_another_version, f->format = "tamis-trace/2", FORMAT, "__metadata__.format",       \
      "tamis-trace/1", "tamis-trace/2")                                                            \
    X(model_missing, f->model = NULL, FORMAT, "__metadata__.model", "config.json", "missing")      \
    X(model_broken, f->model = "{", FORMAT, "__metadata__.model", "JSON", "byte")                  \
    X(model_not_an_object, f->model = "[1]", FORMAT, "__metadata__.model", "JSON object",          \
      "another")                                                                                   \
    X(model_key_missing, model(f, ",\"index_topk\":4", ""), MODEL,                                 \
      "__metadata__.model: index_topk", "1 .. 4096", "missing")                                    \
    X(model_roles_impossible, model(f, "[1,3,4]", "[0,3,4]"), MODEL, "compress_ratios[0]", "1 or", \
      "0")

#define HOSTILE_LAYERS(X)                                                                          \
    X(layer_without_weights, forge_remove(f, "w.4"), FORMAT, "w.4", "or none", "missing")          \
    X(layer_without_q, (forge_remove(f, "q.4.codes"), forge_remove(f, "q.4.scales")), FORMAT,      \
      "q.4", "or none", "missing")                                                                 \
    X(layer_with_results_alone,                                                                    \
      (without(f, 4), forge_add(f, "selected.4", "I32", "[3, 4]", NULL, 48)), FORMAT, "q.4",       \
      "or none", "missing")                                                                        \
    X(layer_with_k_alone, without(f, 1), FORMAT, "q.1", "reads k.1", "missing")                    \
    X(k_missing, (forge_remove(f, "k.1.codes"), forge_remove(f, "k.1.scales")), FORMAT, "k.1",     \
      "layer 1 reads", "missing")                                                                  \
    X(codes_without_scales, forge_remove(f, "k.3.scales"), FORMAT, "k.3.scales", "both",           \
      "missing")                                                                                   \
    X(scales_without_codes, forge_remove(f, "q.3.codes"), FORMAT, "q.3.codes", "both", "missing")  \
    X(floats_and_codes, forge_add(f, "k.1", "F32", "[8, 64]", NULL, 2048), FORMAT, "k.1",          \
      "not both", "both")                                                                          \
    X(no_layer_at_all, only_rows(f), FORMAT, "q", "at least one", "none")                          \
    X(k_of_another_dtype, set(f, "k.3.codes", "I8", NULL), FORMAT, "k.3.codes", "U8 [N, 32]",      \
      "another dtype [17, 32]")                                                                    \
    X(k_of_another_rank, set(f, "k.3.codes", NULL, "[544]"), FORMAT, "k.3.codes", "U8 [N, 32]",    \
      "U8 [544]")                                                                                  \
    X(k_of_another_width, set(f, "k.3.codes", NULL, "[34, 16]"), FORMAT, "k.3.codes",              \
      "U8 [N, 32]", "[34, 16]")                                                                    \
    X(scales_of_fewer_rows, set(f, "k.3.scales", NULL, "[34, 1]"), FORMAT, "k.3.scales",           \
      "U8 [17, 2]", "[34, 1]")                                                                     \
    X(q_of_other_heads, set(f, "q.1.codes", NULL, "[3, 8, 16]"), FORMAT, "q.1.codes",              \
      "U8 [3, 4, 32]", "[3, 8, 16]")                                                               \
    X(q_of_other_rows, set(f, "q.1.codes", NULL, "[6, 4, 16]"), FORMAT, "q.1.codes",               \
      "U8 [3, 4, 32]", "[6, 4, 16]")                                                               \
    X(q_of_half_floats, replace(f, "q.1.codes", "q.1", "F16", "[3, 4, 64]", 1536), FORMAT, "q.1",  \
      "F32 or BF16 [3, 4, 64]", "another dtype")                                                   \
    X(weights_of_integers, set(f, "w.1", "I32", NULL), FORMAT, "w.1", "F32 or BF16 [3, 4]",        \
      "I32 [3, 4]")                                                                                \
    X(weights_transposed, set(f, "w.1", NULL, "[4, 3]"), FORMAT, "w.1", "[3, 4]", "[4, 3]")        \
    X(selected_of_another_width, forge_add(f, "selected.4", "I32", "[3, 5]", NULL, 60), FORMAT,    \
      "selected.4", "I32 [3, 4]", "[3, 5]")                                                        \
    X(blocks_of_another_dtype, forge_add(f, "blocks", "I64", "[3, 2]", NULL, 48), FORMAT,          \
      "blocks", "I32 [3, 2]", "I64")                                                               \
    X(blocks_of_a_one_level_model,                                                                 \
      (model(f,                                                                                    \
             "\"candidate_source_layer_id\":3,\"candidate_topk_blocks\":2,"                        \
             "\"candidate_block_size\":8,",                                                        \
             ""),                                                                                  \
       forge_add(f, "blocks", "I32", "[3, 2]", NULL, 24)),                                         \
      FORMAT, "blocks", "no candidate source", "blocks")                                           \
    X(consumer_without_blocks_beyond_the_pool,                                                     \
      (without(f, 3), model(f, "topk_blocks\":2", "topk_blocks\":1")), FORMAT, "blocks",           \
      "layer 3 is absent", "row 1 sees 10 positions, more than the pool's 8")

#define HOSTILE_ROWS(X)                                                                            \
    X(position_missing, forge_remove(f, "position"), FORMAT, "position", "I32 or I64", "missing")  \
    X(position_of_floats, set(f, "position", "F32", NULL), FORMAT, "position", "I32 or I64 [N]",   \
      "F32 [3]")                                                                                   \
    X(position_of_rank_0, (replace(f, "position", "position", "I32", "[]", 4)), FORMAT,            \
      "position", "[N]", "I32 []")                                                                 \
    X(position_negative, forge_i32(f, "position", 0, -1), FORMAT, "position[0]", "0 ..", "-1")     \
    X(position_smallest, forge_i32(f, "position", 2, INT32_MIN), FORMAT, "position[2]", "0 ..",    \
      "-2147483648")                                                                               \
    X(position_of_2_to_63,                                                                         \
      (forge_remove(f, "position"),                                                                \
       forge_add(f, "position", "I64", "[3]", (const int64_t[]){3, 9, INT64_MAX}, 24)),            \
      FORMAT, "position[2]", "0 ..", "9223372036854775807")                                        \
    X(position_unsorted, forge_i32(f, "position", 1, 2), FORMAT, "position[1]", "more than 3",     \
      "2")                                                                                         \
    X(position_twice, forge_i32(f, "position", 1, 3), FORMAT, "position[1]", "more than 3", "3")   \
    X(position_beyond_context, forge_i32(f, "position", 1, 10), FORMAT, "position[1]",             \
      "below 10, the context of request 0", "10")                                                  \
    X(position_beyond_k, (one_request(f), forge_i32(f, "position", 2, 17)), FORMAT, "position[2]", \
      "at most the 8 K rows that k.1 holds", "sees 9 in layer 1")                                  \
    X(position_beyond_k_of_the_consumers,                                                          \
      (one_request(f), forge_i32(f, "position", 2, 17), without(f, 1),                             \
       forge_remove(f, "k.1.codes"), forge_remove(f, "k.1.scales")),                               \
      FORMAT, "position[2]", "at most the 17 K rows that k.3 holds", "sees 18 in layer 3")         \
    X(request_of_another_length, (replace(f, "request", "request", "I32", "[2]", 8)), FORMAT,      \
      "request", "I32 [3]", "I32 [2]")                                                             \
    X(request_of_64_bits, replace(f, "request", "request", "I64", "[3]", 24), FORMAT, "request",   \
      "I32 [3]", "I64")                                                                            \
    X(request_negative, forge_i32(f, "request", 0, -1), FORMAT, "request[0]", "0 .. 1", "-1")      \
    X(request_out_of_range, forge_i32(f, "request", 2, 2), FORMAT, "request[2]", "0 .. 1", "2")    \
    X(request_descending, (forge_i32(f, "request", 0, 1)), FORMAT, "request[1]", "1 .. 1", "0")    \
    X(request_not_grouped,                                                                         \
      (forge_i32(f, "request", 1, 1), forge_i32(f, "position", 1, 5),                              \
       forge_i32(f, "request", 2, 0)),                                                             \
      FORMAT, "request[2]", "grouped, ascending", "0")                                             \
    X(request_without_context, forge_remove(f, "context"), FORMAT, "context", "both", "missing")   \
    X(context_without_request, forge_remove(f, "request"), FORMAT, "request", "both", "missing")   \
    X(context_negative, forge_i32(f, "context", 0, -10), FORMAT, "context[0]", "0 or more", "-10") \
    X(context_more_than_k, forge_i32(f, "context", 1, 9), FORMAT, "k.1", "9 rows", "8 rows")       \
    X(context_less_than_k, forge_i32(f, "context", 0, 11), FORMAT, "k.3", "18 rows", "17 rows")    \
    X(context_sums_beyond_32_bits,                                                                 \
      (forge_i32(f, "context", 0, INT32_MAX), forge_i32(f, "context", 1, INT32_MAX)), FORMAT,      \
      "k.1", "2147483646 rows", "8 rows")

#define DEFINE(name, change, status, argument, required, found)                                    \
    static void name(void **state) {                                                               \
        (void)state;                                                                               \
        forge made, *f = &made;                                                                    \
        forge_trace(f);                                                                            \
        change;                                                                                    \
        forge_refused(f, status, argument, required, found);                                       \
    }
HOSTILE_HEADERS(DEFINE)
HOSTILE_TENSORS(DEFINE)
HOSTILE_METADATA(DEFINE)
HOSTILE_LAYERS(DEFINE)
HOSTILE_ROWS(DEFINE)

/* A prefix of a file is never a file: the tensors cover the data to its last byte. */
static void truncated_anywhere(void **state) {
    (void)state;
    forge f;
    int64_t size;
    forge_trace(&f);
    uint8_t *whole = forge_bytes(&f, &size);
    for (int64_t n = 0; n < size; n++) {
        tamis_trace *trace;
        uint8_t *part = malloc((size_t)n + 1);
        memcpy(part, whole, (size_t)n);
        assert_int_equal(tamis_trace_open_memory(part, n, &trace, NULL), TAMIS_ERROR_FORMAT);
        assert_null(trace);
        free(part);
    }
    free(whole);
    forge_free(&f);
}

/* Any byte of the header changed: an error or a trace, and nothing in between. */
static void header_byte_changed_anywhere(void **state) {
    (void)state;
    static const uint8_t values[] = {0, ' ', '"', '[', '-', '9', '}', 0xff};
    forge f;
    int64_t size, opened = 0;
    forge_trace(&f);
    uint8_t *bytes = forge_bytes(&f, &size);
    int64_t end = 8 + bytes[0] + 256 * bytes[1];
    for (int64_t at = 0; at < end; at++) {
        for (size_t i = 0; i < sizeof values; i++) {
            tamis_trace *trace;
            uint8_t before = bytes[at];
            bytes[at] = values[i];
            tamis_status status = tamis_trace_open_memory(bytes, size, &trace, NULL);
            assert_int_equal(status == TAMIS_OK, trace != NULL);
            opened += status == TAMIS_OK;
            tamis_trace_close(trace);
            bytes[at] = before;
        }
    }
    assert_in_range(opened, 1, end * 4); /* spaces for spaces, and the like */
    free(bytes);
    forge_free(&f);
}

#define ENTER(name, change, status, argument, required, found) cmocka_unit_test(name),

int main(void) {
    const struct CMUnitTest tests[] = {
        HOSTILE_HEADERS(ENTER) HOSTILE_TENSORS(ENTER) HOSTILE_METADATA(ENTER) HOSTILE_LAYERS(ENTER)
            HOSTILE_ROWS(ENTER) cmocka_unit_test(truncated_anywhere),
        cmocka_unit_test(header_byte_changed_anywhere)};
    return cmocka_run_group_tests_name("io.trace_hostile", tests, NULL, NULL);
}
