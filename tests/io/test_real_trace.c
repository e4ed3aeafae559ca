/* SPDX-License-Identifier: MIT */
/* test_real_trace.c: the trace in data/ opens, with the facts that data/README.md states. */
#include "forge.h"

#define TRACE TAMIS_DATA_DIR "/trace_a.safetensors"

static int set_up(void **state) {
    tamis_error error;
    char text[400];
    if (tamis_trace_open(TRACE, (tamis_trace **)state, &error)) {
        tamis_error_text(&error, text, sizeof text);
        print_error("%s: %s\n", TRACE, text);
        return -1;
    }
    return 0;
}

static int tear_down(void **state) {
    tamis_trace_close(*state);
    return 0;
}

static void rows_are_as_stated(void **state) {
    const tamis_trace *t = *state;
    assert_string_equal(t->path, TRACE);
    assert_int_equal(t->rows, 232);
    assert_int_equal(t->requests, 1);
    assert_int_equal(t->context[0], 131072);
    for (int64_t r = 0; r < 8; r++) {
        assert_int_equal(t->position[r], 16380 + r);
    }
    assert_true(t->position[8] >= 16500);
    for (int64_t r = 41; r < 232; r++) {
        assert_int_equal(t->position[r], t->position[r - 1] + 1);
    }
    assert_int_equal(t->position[231], 131071);
}

static void layers_are_as_stated(void **state) {
    static const int32_t ids[] = {4, 6, 7, 8, 9};
    const tamis_trace *t = *state;
    assert_int_equal(t->layer_count, 5);
    assert_int_equal(t->model.index_topk, 512);
    assert_int_equal(t->model.candidate_topk_blocks, 2048);
    for (int i = 0; i < 5; i++) {
        const tamis_trace_layer *layer = &t->layers[i];
        assert_int_equal(layer->layer, ids[i]);
        assert_int_equal(layer->present, 1);
        assert_int_equal(layer->role.role, i ? TAMIS_ROLE_CONSUMER : TAMIS_ROLE_SOURCE);
        assert_int_equal(layer->query.heads, 32);
        assert_int_equal(layer->query.head_dim, 128);
        assert_int_equal(layer->query.weights_type, TAMIS_F32);
        assert_int_equal(layer->k.size, 131072);
        assert_ptr_equal(layer->k.codes, t->layers[0].k.codes);
        assert_int_equal(tamis_k_cache_check(&layer->k, NULL), TAMIS_OK);
        for (int64_t r = 0; r < t->rows; r++) {
            assert_int_equal(layer->ks[r], 0);
            assert_int_equal(layer->ke[r], t->position[r] + 1);
        }
    }
}

static int span(const uint8_t *scales) {
    int least = 255, most = 0;
    for (int g = 0; g < 4; g++) {
        least = scales[g] < least ? scales[g] : least;
        most = scales[g] > most ? scales[g] : most;
    }
    return most - least;
}

/* Shares of K rows by the exponent span of their groups: .063 .558 .372 .006, none beyond 3. */
static void spans_are_as_measured(void **state) {
    const tamis_k_cache *k = &((const tamis_trace *)*state)->layers[0].k;
    int64_t count[4] = {0};
    for (int64_t j = 0; j < k->size; j++) {
        int s = span(k->scales + j * k->scales_stride);
        assert_in_range(s, 0, 3);
        count[s]++;
    }
    static const int64_t thousandths[4] = {63, 558, 372, 6};
    for (int s = 0; s < 4; s++) {
        assert_in_range((count[s] * 1000 + k->size / 2) / k->size, thousandths[s],
                        thousandths[s] + 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_as_stated),
        cmocka_unit_test(layers_are_as_stated),
        cmocka_unit_test(spans_are_as_measured),
    };
    return cmocka_run_group_tests_name("io.real_trace", tests, set_up, tear_down);
}
