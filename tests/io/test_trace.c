/* SPDX-License-Identifier: MIT */
/* test_trace.c: what opening gives of traces that are right. */
#include "forge.h"

#include "oracle.h"

/* The trace's layer i, open until done. */
typedef struct opened {
    forge f;
    uint8_t *bytes;
    tamis_trace *trace;
} opened;

static void open_it(opened *o) {
    o->trace = forge_open(&o->f, &o->bytes);
}

static void close_it(opened *o) {
    tamis_trace_close(o->trace);
    free(o->bytes);
    forge_free(&o->f);
}

static void remove_layer(forge *f, const char *codes, const char *scales, const char *weights) {
    forge_remove(f, codes);
    forge_remove(f, scales);
    forge_remove(f, weights);
}

static void two_requests(void **state) {
    (void)state;
    static const int32_t ks[2][3] = {{0, 0, 5}, {0, 0, 10}};
    static const int32_t ke[2][3] = {{2, 5, 8}, {4, 10, 17}};
    opened o;
    forge_trace(&o.f);
    open_it(&o);
    const tamis_trace *t = o.trace;
    assert_int_equal(t->rows, 3);
    assert_int_equal(t->requests, 2);
    assert_int_equal(t->position[2], 6);
    assert_int_equal(t->request[2], 1);
    assert_int_equal(t->context[0], 10);
    assert_int_equal(t->layer_count, 3);
    assert_null(t->blocks);
    assert_null(t->about);
    assert_string_equal(t->path, "(memory)");
    for (int i = 0; i < 3; i++) {
        const tamis_trace_layer *layer = &t->layers[i];
        int owner = layer->layer == 1 ? 0 : 1;
        assert_int_equal(layer->present, 1);
        assert_int_equal(layer->k.size, owner ? 17 : 8);
        assert_memory_equal(layer->ks, ks[owner], sizeof ks[0]);
        assert_memory_equal(layer->ke, ke[owner], sizeof ke[0]);
        assert_null(layer->selected);
    }
    assert_int_equal(t->layers[0].role.role, TAMIS_ROLE_FULL);
    assert_int_equal(t->layers[1].role.role, TAMIS_ROLE_SOURCE);
    assert_int_equal(t->layers[2].role.role, TAMIS_ROLE_CONSUMER);
    close_it(&o);
}

/* Codes and scales are the file's own bytes, and consumers share their source's. */
static void codes_are_views(void **state) {
    (void)state;
    opened o;
    forge_trace(&o.f);
    open_it(&o);
    const tamis_trace_layer *l = o.trace->layers;
    int64_t size;
    free(forge_bytes(&o.f, &size));
    assert_ptr_equal(l[1].k.scales, o.bytes + size - 34);
    assert_ptr_equal(l[1].k.codes, o.bytes + size - 34 - 544);
    assert_ptr_equal(l[2].k.codes, l[1].k.codes);
    assert_memory_equal(l[2].query.codes, forge_get(&o.f, "q.4.codes")->data, 384);
    assert_memory_equal(l[2].query.weights, forge_get(&o.f, "w.4")->data, 48);
    assert_int_equal(l[2].query.codes_row_stride, 128);
    assert_int_equal(l[2].query.codes_head_stride, 32);
    assert_int_equal(l[2].query.scales_row_stride, 8);
    assert_int_equal(l[2].query.scales_head_stride, 2);
    assert_int_equal(l[2].query.weights_row_stride, 4);
    assert_int_equal(l[2].query.weights_type, TAMIS_F32);
    assert_int_equal(l[2].k.stride, 32);
    assert_int_equal(l[2].k.scales_stride, 2);
    assert_int_equal(tamis_k_cache_check(&l[2].k, NULL), TAMIS_OK);
    close_it(&o);
}

/* Any place in the file: every tensor after 1, 2, .. bytes of another. */
static void misaligned_anywhere(void **state) {
    (void)state;
    for (int pad = 0; pad < 8; pad++) {
        opened o;
        forge_trace(&o.f);
        o.f.pad = pad;
        open_it(&o);
        assert_int_equal(o.trace->position[1], 9);
        assert_memory_equal(o.trace->layers[0].query.weights, forge_get(&o.f, "w.1")->data, 48);
        assert_int_equal((uintptr_t)o.trace->layers[0].query.weights % 4, 0);
        close_it(&o);
    }
}

static void one_request_without_context(void **state) {
    (void)state;
    opened o;
    forge_trace(&o.f);
    forge_remove(&o.f, "request");
    forge_remove(&o.f, "context");
    forge_i32(&o.f, "position", 2, 15);
    open_it(&o);
    assert_int_equal(o.trace->requests, 1);
    assert_int_equal(o.trace->request[2], 0);
    assert_int_equal(o.trace->context[0], 17);
    assert_int_equal(o.trace->layers[0].ke[2], 8);
    assert_int_equal(o.trace->layers[1].ke[2], 16);
    close_it(&o);
}

/* Only completed groups: at ratio 2, tokens 0 .. 4 see 0, 1, 1, 2, 2 positions. */
static void visible_counts_completed_groups(void **state) {
    (void)state;
    static const int32_t expected[] = {0, 1, 1, 2, 2};
    for (int32_t first = 0; first < 3; first++) {
        opened o;
        forge_trace(&o.f);
        forge_remove(&o.f, "request");
        forge_remove(&o.f, "context");
        for (int32_t r = 0; r < 3; r++) {
            forge_i32(&o.f, "position", r, first + r);
        }
        open_it(&o);
        for (int32_t r = 0; r < 3; r++) {
            assert_int_equal(o.trace->layers[0].ke[r], expected[first + r]);
            assert_int_equal(o.trace->layers[1].ke[r], first + r + 1);
        }
        close_it(&o);
    }
}

static void positions_of_64_bits(void **state) {
    (void)state;
    static const int64_t position[] = {3, 9, 6};
    opened o;
    forge_trace(&o.f);
    forge_remove(&o.f, "position");
    forge_add(&o.f, "position", "I64", "[3]", position, sizeof position);
    open_it(&o);
    assert_memory_equal(o.trace->position, position, sizeof position);
    close_it(&o);
}

/* A request may have K and no rows, or neither. */
static void requests_without_rows(void **state) {
    (void)state;
    static const int32_t context[] = {0, 10, 0, 7}, request[] = {1, 1, 3};
    opened o;
    forge_trace(&o.f);
    forge_remove(&o.f, "request");
    forge_remove(&o.f, "context");
    forge_add(&o.f, "request", "I32", "[3]", request, sizeof request);
    forge_add(&o.f, "context", "I32", "[4]", context, sizeof context);
    open_it(&o);
    assert_int_equal(o.trace->requests, 4);
    assert_int_equal(o.trace->layers[1].ks[2], 10);
    close_it(&o);
}

/* No rows and no positions are a trace, too. */
static void nothing_in_it(void **state) {
    (void)state;
    opened o;
    forge_trace(&o.f);
    while (o.f.count) {
        forge_remove(&o.f, o.f.tensors[0].name);
    }
    forge_add(&o.f, "position", "I32", "[0]", NULL, 0);
    forge_add(&o.f, "w.3", "BF16", "[0, 4]", NULL, 0);
    forge_add(&o.f, "q.3", "BF16", "[0, 4, 64]", NULL, 0);
    forge_add(&o.f, "k.3.codes", "U8", "[0, 32]", NULL, 0);
    forge_add(&o.f, "k.3.scales", "U8", "[0, 2]", NULL, 0);
    open_it(&o);
    assert_int_equal(o.trace->rows, 0);
    assert_int_equal(o.trace->context[0], 0);
    assert_int_equal(o.trace->layers[0].present, 0);
    assert_int_equal(o.trace->layers[1].present, 1);
    assert_int_equal(o.trace->layers[1].query.weights_type, TAMIS_BF16);
    assert_int_equal(o.trace->layers[1].k.size, 0);
    assert_int_equal(tamis_k_cache_check(&o.trace->layers[1].k, NULL), TAMIS_OK);
    close_it(&o);
}

static void check_quantised(const uint8_t *codes, const uint8_t *scales, const float *x, int n) {
    for (int g = 0; g < n / 32; g++) {
        uint8_t expected[16], scale;
        oracle_mxfp4(x + 32 * g, expected, &scale);
        assert_memory_equal(codes + 16 * g, expected, 16);
        assert_int_equal(scales[g], scale);
    }
}

/* f32 is quantised directly: through bf16 some of these values would get other codes. */
static void floats_are_quantised(void **state) {
    (void)state;
    enum { N = 8 * 64 };
    float x[N];
    int differ = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (float)((i * 7919) % 601 - 300) * 0.01f;
        if (i % 32 < 2) {
            x[i] = i % 32 ? 0.2501f : 5; /* at scale 1: just above a tie, at it once rounded */
        }
    }
    x[70] = __builtin_nanf("");
    opened o;
    forge_trace(&o.f);
    forge_remove(&o.f, "k.1.codes");
    forge_remove(&o.f, "k.1.scales");
    forge_add(&o.f, "k.1", "F32", "[8, 64]", x, sizeof x);
    open_it(&o);
    const tamis_k_cache *k = &o.trace->layers[0].k;
    assert_int_equal(k->size, 8);
    assert_int_equal(k->scales[2], 255);
    check_quantised(k->codes, k->scales, x, N);
    for (int g = 0; g < N / 32; g++) {
        float rounded[32];
        uint8_t codes[16], scale;
        for (int i = 0; i < 32; i++) {
            rounded[i] = oracle_from_bf16(oracle_bf16(x[32 * g + i]));
        }
        oracle_mxfp4(rounded, codes, &scale);
        differ += scale != k->scales[g] || memcmp(codes, k->codes + 16 * g, 16) != 0;
    }
    assert_true(differ > 0);
    close_it(&o);
}

static void bf16_is_quantised(void **state) {
    (void)state;
    enum { N = 3 * 4 * 64 };
    uint16_t halves[N];
    float x[N];
    for (int i = 0; i < N; i++) {
        halves[i] = (uint16_t)(i * 40503u); /* any bits */
        x[i] = oracle_from_bf16(halves[i]);
    }
    opened o;
    forge_trace(&o.f);
    forge_remove(&o.f, "q.4.codes");
    forge_remove(&o.f, "q.4.scales");
    forge_add(&o.f, "q.4", "BF16", "[3, 4, 64]", halves, sizeof halves);
    open_it(&o);
    check_quantised(o.trace->layers[2].query.codes, o.trace->layers[2].query.scales, x, N);
    close_it(&o);
}

static void unknown_tensors_are_ignored(void **state) {
    (void)state;
    opened o;
    forge_trace(&o.f);
    forge_add(&o.f, "logits.3", "F16", "[3, 17]", NULL, 102);
    forge_add(&o.f, "q.2.codes", "U8", "[1]", NULL, 1);
    forge_add(&o.f, "q.03.codes", "I64", "[]", NULL, 8);
    open_it(&o);
    assert_int_equal(o.trace->layer_count, 3);
    close_it(&o);
}

static void results_are_found(void **state) {
    (void)state;
    opened o;
    forge_trace(&o.f);
    forge_tensor *selected = forge_add(&o.f, "selected.4", "I32", "[3, 4]", NULL, 48);
    forge_tensor *blocks = forge_add(&o.f, "blocks", "I32", "[3, 2]", NULL, 24);
    open_it(&o);
    assert_null(o.trace->layers[1].selected);
    assert_memory_equal(o.trace->layers[2].selected, selected->data, 48);
    assert_memory_equal(o.trace->blocks, blocks->data, 24);
    close_it(&o);
}

static void about_is_shown(void **state) {
    (void)state;
    static char metadata[2048];
    opened o;
    forge_trace(&o.f);
    char *end = metadata + sprintf(metadata, "{\"format\":\"tamis-trace/1\",\"about\":\"a text\","
                                             "\"model\":\"");
    for (const char *c = o.f.model; *c; c++) {
        end += sprintf(end, *c == '"' ? "\\\"" : "%c", *c);
    }
    strcpy(end, "\"}");
    o.f.metadata = metadata;
    open_it(&o);
    assert_string_equal(o.trace->about, "a text");
    close_it(&o);
}

static void absent_layers_are_listed(void **state) {
    (void)state;
    opened o;
    forge_trace(&o.f);
    remove_layer(&o.f, "q.1.codes", "q.1.scales", "w.1");
    forge_remove(&o.f, "k.1.codes");
    forge_remove(&o.f, "k.1.scales");
    open_it(&o);
    assert_int_equal(o.trace->layer_count, 3);
    assert_int_equal(o.trace->layers[0].layer, 1);
    assert_int_equal(o.trace->layers[0].present, 0);
    assert_int_equal(o.trace->layers[0].role.role, TAMIS_ROLE_FULL);
    assert_null(o.trace->layers[0].ke);
    close_it(&o);
}

/* Without its source a consumer within the pool reads every visible block. */
static void consumer_without_its_source(void **state) {
    (void)state;
    static const int32_t every[3][2] = {{0, -1}, {0, 1}, {0, -1}};
    opened o;
    forge_trace(&o.f);
    remove_layer(&o.f, "q.3.codes", "q.3.scales", "w.3");
    open_it(&o);
    assert_int_equal(o.trace->layers[1].present, 0);
    assert_int_equal(o.trace->layers[2].present, 1);
    assert_int_equal(o.trace->layers[2].k.size, 17);
    assert_memory_equal(o.trace->blocks, every, sizeof every);
    close_it(&o);
}

static void consumer_with_given_blocks(void **state) {
    (void)state;
    opened o;
    forge_trace(&o.f);
    remove_layer(&o.f, "q.3.codes", "q.3.scales", "w.3");
    forge_tensor *blocks = forge_add(&o.f, "blocks", "I32", "[3, 2]", NULL, 24);
    open_it(&o);
    assert_memory_equal(o.trace->blocks, blocks->data, 24);
    close_it(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_requests),
        cmocka_unit_test(codes_are_views),
        cmocka_unit_test(misaligned_anywhere),
        cmocka_unit_test(one_request_without_context),
        cmocka_unit_test(visible_counts_completed_groups),
        cmocka_unit_test(positions_of_64_bits),
        cmocka_unit_test(requests_without_rows),
        cmocka_unit_test(nothing_in_it),
        cmocka_unit_test(floats_are_quantised),
        cmocka_unit_test(bf16_is_quantised),
        cmocka_unit_test(unknown_tensors_are_ignored),
        cmocka_unit_test(results_are_found),
        cmocka_unit_test(about_is_shown),
        cmocka_unit_test(absent_layers_are_listed),
        cmocka_unit_test(consumer_without_its_source),
        cmocka_unit_test(consumer_with_given_blocks),
    };
    return cmocka_run_group_tests_name("io.trace", tests, NULL, NULL);
}
