/* SPDX-License-Identifier: MIT */
/* test_model_json.c: config.json values into a tamis_model, and each key refused by its name. */
#include "forge.h"

/* The released Flash values of spec 1, with a key that is none of ours. */
static char *flash(void) {
    char *text = malloc(4096), *end = text;
    end += sprintf(end, "{\"num_hidden_layers\":40,\"hidden_size\":5120,\"compress_ratios\":[0,0");
    for (int i = 0; i < 18 + 20 + 3; i++) {
        end += sprintf(end, ",%d", i < 18 ? 2 : i < 38 ? 1 : 0);
    }
    sprintf(end, "],\"kv_source_layer_ids\":[2,8,14,20],"
                 "\"index_source_layer_ids\":[2,8,14,20,24,28,32,36],"
                 "\"candidate_source_layer_id\":20,\"candidate_topk_blocks\":2048,"
                 "\"candidate_block_size\":8,\"index_n_heads\":32,\"index_head_dim\":128,"
                 "\"index_topk\":512}");
    return text;
}

static void released_values(void **state) {
    (void)state;
    tamis_model_file m;
    tamis_layer_role roles[43];
    char *text = flash();
    assert_int_equal(tamis_model_from_json(NULL, text, &m, NULL), TAMIS_OK);
    assert_int_equal(m.model.num_layers, 43);
    assert_int_equal(m.model.num_kv_sources, 4);
    assert_int_equal(m.model.num_index_sources, 8);
    assert_int_equal(m.model.candidate_source_layer_id, 20);
    assert_int_equal(m.model.candidate_topk_blocks, 2048);
    assert_int_equal(m.model.candidate_block_size, 8);
    assert_int_equal(m.model.index_n_heads, 32);
    assert_int_equal(m.model.index_head_dim, 128);
    assert_int_equal(m.model.index_topk, 512);
    assert_int_equal(m.model.compress_ratios[19], 2);
    assert_int_equal(m.model.compress_ratios[20], 1);
    assert_int_equal(tamis_model_roles(&m.model, roles, NULL), TAMIS_OK);
    assert_int_equal(roles[36].role, TAMIS_ROLE_CONSUMER);
    tamis_model_file_free(&m);
    assert_null(m.compress_ratios);
    free(text);
}

/* The text with `from` replaced by `to`. */
static char *changed(const char *from, const char *to) {
    char *text = flash(), *at = strstr(text, from), *out = malloc(8192);
    assert_non_null(at);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return out;
}

#define CANDIDATES                                                                                 \
    "\"candidate_source_layer_id\":20,\"candidate_topk_blocks\":2048,\"candidate_block_size\":8,"

static void opens_as_one_level(const char *candidates) {
    tamis_model_file m;
    char *text = changed(CANDIDATES, candidates);
    assert_int_equal(tamis_model_from_json(NULL, text, &m, NULL), TAMIS_OK);
    assert_int_equal(m.model.candidate_source_layer_id, -1);
    assert_int_equal(m.model.candidate_topk_blocks, 0);
    assert_int_equal(m.model.candidate_block_size, 0);
    tamis_model_file_free(&m);
    free(text);
}

static void one_level_without_candidate_keys(void **state) {
    (void)state;
    opens_as_one_level("");
}

static void one_level_with_null_keys(void **state) {
    (void)state;
    opens_as_one_level("\"candidate_source_layer_id\":null,\"candidate_topk_blocks\":null,"
                       "\"candidate_block_size\":null,");
}

static void hidden_layers_may_be_left_out(void **state) {
    (void)state;
    tamis_model_file m;
    char *text = changed("\"num_hidden_layers\":40,", "");
    assert_int_equal(tamis_model_from_json(NULL, text, &m, NULL), TAMIS_OK);
    assert_int_equal(m.model.num_layers, 43);
    tamis_model_file_free(&m);
    free(text);
}

static void refused(char *text, tamis_status status, const char *argument, const char *found) {
    tamis_model_file m;
    tamis_error error = {0};
    memset(&m, 0xA5, sizeof m);
    assert_int_equal(tamis_model_from_json("config.json", text, &m, &error), status);
    assert_string_equal(error.argument, argument);
    assert_non_null(strstr(error.found, found));
    assert_null(m.compress_ratios);
    assert_null(m.kv_source_layer_ids);
    assert_null(m.index_source_layer_ids);
    free(text);
}

/* X(test, from, to, key at fault, found) */
#define CHANGES(X)                                                                                 \
    X(ratios_missing, "compress_ratios", "ratios", "compress_ratios", "missing")                   \
    X(ratios_a_number, "[0,0", "0,\"x\":[0", "compress_ratios", "0")                               \
    X(ratios_none, "[0,0", "[],\"x\":[0", "compress_ratios", "none")                               \
    X(ratio_a_string, "[0,0", "[0,\"0\"", "compress_ratios[1]", "\"0\"")                           \
    X(ratio_negative, "[0,0", "[-1,0", "compress_ratios[0]", "-1")                                 \
    X(ratio_beyond_32_bits, "[0,0", "[4294967297,0", "compress_ratios[0]", "4294967297")           \
    X(hidden_more_than_ratios, "layers\":40", "layers\":44", "num_hidden_layers", "44")            \
    X(hidden_none, "layers\":40", "layers\":0", "num_hidden_layers", "0")                          \
    X(kv_source_beyond_layers, "[2,8,14,20]", "[2,8,14,43]", "kv_source_layer_ids[3]", "43")       \
    X(kv_sources_an_object, "[2,8,14,20]", "{}", "kv_source_layer_ids", "{}")                      \
    X(index_source_negative, "[2,8,14,20,", "[-2,8,14,20,", "index_source_layer_ids[0]", "-2")     \
    X(candidate_source_alone, ",\"candidate_topk_blocks\":2048,\"candidate_block_size\":8", "",    \
      "candidate_topk_blocks", "missing")                                                          \
    X(candidate_source_missing, "\"candidate_source_layer_id\":20,", "",                           \
      "candidate_source_layer_id", "missing")                                                      \
    X(candidate_source_a_real, "id\":20", "id\":20.0", "candidate_source_layer_id", "20.0")        \
    X(topk_blocks_zero, "blocks\":2048", "blocks\":0", "candidate_topk_blocks", "0")               \
    X(topk_blocks_too_many, "blocks\":2048", "blocks\":4097", "candidate_topk_blocks", "4097")     \
    X(block_size_too_small, "size\":8", "size\":4", "candidate_block_size", "4")                   \
    X(heads_true, "heads\":32", "heads\":true", "index_n_heads", "true")                           \
    X(heads_too_many, "heads\":32", "heads\":68", "index_n_heads", "68")                           \
    X(head_dim_too_large, "dim\":128", "dim\":256", "index_head_dim", "256")                       \
    X(topk_zero, "topk\":512", "topk\":0", "index_topk", "0")                                      \
    X(topk_missing, ",\"index_topk\":512", "", "index_topk", "missing")

#define DEFINE(name, from, to, key, found)                                                         \
    static void name(void **state) {                                                               \
        (void)state;                                                                               \
        refused(changed(from, to), TAMIS_ERROR_MODEL, "config.json: " key, found);                 \
    }
CHANGES(DEFINE)

static void too_many_layers(void **state) {
    (void)state;
    char *text = malloc(16384), *end = text + sprintf(text, "{\"compress_ratios\":[0");
    for (int i = 1; i < 4097; i++) {
        end += sprintf(end, ",0");
    }
    sprintf(end, "]}");
    refused(text, TAMIS_ERROR_MODEL, "config.json: compress_ratios", "[0,0,");
}

static void not_json(void **state) {
    (void)state;
    refused(strdup("num_layers = 4"), TAMIS_ERROR_FORMAT, "config.json", "byte");
}

static void key_twice(void **state) {
    (void)state;
    refused(changed("\"index_topk\":512", "\"index_topk\":512,\"index_topk\":1"),
            TAMIS_ERROR_FORMAT, "config.json", "duplicate");
}

#define ENTER(name, from, to, key, found) cmocka_unit_test(name),

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_values),
        cmocka_unit_test(one_level_without_candidate_keys),
        cmocka_unit_test(one_level_with_null_keys),
        cmocka_unit_test(hidden_layers_may_be_left_out),
        CHANGES(ENTER) cmocka_unit_test(too_many_layers),
        cmocka_unit_test(not_json),
        cmocka_unit_test(key_twice),
    };
    return cmocka_run_group_tests_name("io.model_json", tests, NULL, NULL);
}
