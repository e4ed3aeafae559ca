/* SPDX-License-Identifier: MIT */
/*
 * test_config_json.c: config.json files of the family. The released one's roles (spec 1), keys
 * nested in text_config, one-level models, every key of a wrong type or value refused by name, and
 * what is readable but unsupported kept for the report.
 */
#include "text.h"

#include <sys/stat.h>
#include <unistd.h>

#include "config_file.h"

static void released_roles(void **state) {
    (void)state;
    tamis_model_file m;
    tamis_layer_role roles[43];
    assert_int_equal(tamis_config_read(CONFIG_PATH, &m, NULL), TAMIS_OK);
    assert_int_equal(m.model.num_layers, 43); /* 40 and 3 draft layers */
    assert_int_equal(tamis_model_roles(&m.model, roles, NULL), TAMIS_OK);
    for (int32_t layer = 0; layer < 43; layer++) {
        int32_t ratio = layer < 2 || layer >= 40 ? 0 : layer < 20 ? 2 : 1;
        int32_t owner = layer < 8 ? 2 : layer < 14 ? 8 : layer < 20 ? 14 : 20;
        int32_t role = TAMIS_ROLE_REUSE, source = layer < 24 ? owner : layer / 4 * 4;
        if (ratio == 0) {
            role = TAMIS_ROLE_NONE;
            owner = source = -1;
        } else if (layer == 2 || layer == 8 || layer == 14) {
            role = TAMIS_ROLE_FULL;
            source = -1;
        } else if (layer == 20) {
            role = TAMIS_ROLE_SOURCE;
            source = -1;
        } else if (layer == 24 || layer == 28 || layer == 32 || layer == 36) {
            role = TAMIS_ROLE_CONSUMER;
            source = 20;
        }
        assert_int_equal(roles[layer].role, role);
        assert_int_equal(roles[layer].ratio, ratio);
        assert_int_equal(roles[layer].k_owner, owner);
        assert_int_equal(roles[layer].source, source);
    }
    tamis_model_file_free(&m);
}

static void reads(char *text, tamis_model_file *m) {
    tamis_error error = {0};
    if (tamis_config_from_json(text, m, &error)) {
        fail_msg("%s: required %s, found %s", error.argument, error.required, error.found);
    }
    free(text);
}

/* The released config as a model of several modalities has it: all of it inside text_config. */
static char *nested(const char *beside) {
    char *inner = text_read(CONFIG_PATH), *text = malloc(65536);
    assert_non_null(text);
    snprintf(text, 65536, "{%s\"vision_config\":{\"index_topk\":7},\"text_config\":%s}", beside,
             inner);
    free(inner);
    return text;
}

static void in_text_config(void **state) {
    (void)state;
    tamis_model_file flat, deep;
    reads(text_read(CONFIG_PATH), &flat);
    reads(nested(""), &deep);
    assert_int_equal(deep.model.num_layers, 43);
    assert_memory_equal(deep.compress_ratios, flat.compress_ratios, 43 * sizeof(int32_t));
    assert_memory_equal(deep.kv_source_layer_ids, flat.kv_source_layer_ids, 4 * sizeof(int32_t));
    assert_memory_equal(deep.index_source_layer_ids, flat.index_source_layer_ids,
                        8 * sizeof(int32_t));
    assert_int_equal(deep.model.candidate_source_layer_id, 20);
    assert_int_equal(deep.model.candidate_topk_blocks, 2048);
    assert_int_equal(deep.model.candidate_block_size, 8);
    assert_int_equal(deep.model.index_n_heads, 32);
    assert_int_equal(deep.model.index_head_dim, 128);
    assert_int_equal(deep.model.index_topk, 512);
    tamis_model_file_free(&flat);
    tamis_model_file_free(&deep);
}

static void some_keys_outside_text_config(void **state) {
    (void)state;
    tamis_model_file m;
    reads(text_change(nested("\"index_topk\":256,\"index_n_heads\":32,"), "\"index_topk\": 512",
                      "\"index_topk\": null"),
          &m);
    assert_int_equal(m.model.index_topk, 256);
    tamis_model_file_free(&m);
    reads(text_change(text_read(CONFIG_PATH), "\"num_hidden_layers\"",
                      "\"text_config\":null,\"num_hidden_layers\""),
          &m);
    assert_int_equal(m.model.index_topk, 512);
    tamis_model_file_free(&m);
}

static void refused(char *text, tamis_status status, const char *argument, const char *found) {
    tamis_model_file m, zero;
    tamis_error error = {0};
    memset(&zero, 0, sizeof zero);
    memset(&m, 0xA5, sizeof m);
    assert_int_equal(tamis_config_from_json(text, &m, &error), status);
    assert_int_equal(error.status, status);
    if (strcmp(error.argument, argument) || !strstr(error.found, found)) {
        fail_msg("%s found %s", error.argument, error.found);
    }
    assert_memory_equal(&m, &zero, sizeof m);
    assert_int_equal(tamis_config_from_json(text, &m, NULL), status);
    free(text);
}

static void text_config_must_agree(void **state) {
    (void)state;
    refused(nested("\"index_topk\":511,"), TAMIS_ERROR_MODEL, "text_config.index_topk", "512");
    refused(nested("\"kv_source_layer_ids\":[2],"), TAMIS_ERROR_MODEL,
            "text_config.kv_source_layer_ids", "[2,8,14,20]");
    refused(text_change(text_read(CONFIG_PATH), "\"num_hidden_layers\"",
                        "\"text_config\":[],\"num_hidden_layers\""),
            TAMIS_ERROR_MODEL, "text_config", "[]");
}

/* ---- every key of a wrong type ----------------------------------------------------- */

static const char *const integers[] = {
    "\"num_hidden_layers\": 40",
    "\"candidate_source_layer_id\": 20",
    "\"candidate_topk_blocks\": 2048",
    "\"candidate_block_size\": 8",
    "\"index_n_heads\": 32",
    "\"index_head_dim\": 128",
    "\"index_topk\": 512",
};
static const char *const arrays[] = {"compress_ratios", "kv_source_layer_ids",
                                     "index_source_layer_ids"};

static void key_of(const char *pair, char key[60]) {
    snprintf(key, 60, "%.*s", (int)(strchr(pair + 1, '"') - pair - 1), pair + 1);
}

static void integers_of_a_wrong_kind(void **state) {
    (void)state;
    static const char *const values[] = {"\"8\"", "8.0", "true",       "[8]",
                                         "{}",    "-1",  "2147483648", "9223372036854775807"};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            char key[60], to[128];
            key_of(integers[i], key);
            snprintf(to, sizeof to, "\"%s\": %s", key, values[v]);
            refused(text_change(text_read(CONFIG_PATH), integers[i], to), TAMIS_ERROR_MODEL, key,
                    values[v]);
        }
    }
}

static void arrays_of_a_wrong_kind(void **state) {
    (void)state;
    static const char *const values[] = {"8", "\"[8]\"", "{}", "true"};
    static const char *const entries[] = {
        "\"2\"", "2.0", "false", "null", "[2]", "-1", "9223372036854775807"};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        char from[80], to[160], at[60];
        snprintf(from, sizeof from, "\"%s\": [", arrays[i]);
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            snprintf(to, sizeof to, "\"%s\": %s, \"other\": [", arrays[i], values[v]);
            refused(text_change(text_read(CONFIG_PATH), from, to), TAMIS_ERROR_MODEL, arrays[i],
                    values[v]);
        }
        for (size_t v = 0; v < sizeof entries / sizeof *entries; v++) {
            snprintf(to, sizeof to, "\"%s\": [%s, ", arrays[i], entries[v]);
            snprintf(at, sizeof at, "%s[0]", arrays[i]);
            refused(text_change(text_read(CONFIG_PATH), from, to), TAMIS_ERROR_MODEL, at,
                    entries[v]);
        }
    }
}

static void missing_keys(void **state) {
    (void)state;
    static const char *const needed[] = {"compress_ratios",        "kv_source_layer_ids",
                                         "index_source_layer_ids", "index_n_heads",
                                         "index_head_dim",         "index_topk"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        char to[80];
        snprintf(to, sizeof to, "no_%s", needed[i]);
        refused(text_change(text_read(CONFIG_PATH), needed[i], to), TAMIS_ERROR_MODEL, needed[i],
                "missing");
    }
}

static void impossible_values(void **state) {
    (void)state;
    refused(text_change(text_read(CONFIG_PATH), "layers\": 40", "layers\": 44"), TAMIS_ERROR_MODEL,
            "num_hidden_layers", "44");
    refused(text_change(text_read(CONFIG_PATH), "layers\": 40", "layers\": 0"), TAMIS_ERROR_MODEL,
            "num_hidden_layers", "0");
    refused(text_change(text_read(CONFIG_PATH), "14, 20]", "14, 43]"), TAMIS_ERROR_MODEL,
            "kv_source_layer_ids[3]", "43");
    refused(text_change(text_read(CONFIG_PATH), "32, 36]", "32, 43]"), TAMIS_ERROR_MODEL,
            "index_source_layer_ids[7]", "43");
    refused(strdup("{\"compress_ratios\": []}"), TAMIS_ERROR_MODEL, "compress_ratios", "none");
}

/* ---- not a config ------------------------------------------------------------------ */

static void not_an_object(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "[]",
                                        "3",
                                        "\"{}\"",
                                        "{",
                                        "{}x",
                                        "num_layers = 4",
                                        "{\"a\": 1e999}",
                                        "{\"a\": 9223372036854775808}",
                                        "{\"a\": 1, \"a\": 1}",
                                        "{\"b\": {\"a\": 1, \"a\": 2}}",
                                        "{\"a\": \"\xff\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        refused(strdup(texts[i]), TAMIS_ERROR_FORMAT, "model", "");
    }
    refused(
        text_change(text_read(CONFIG_PATH), "\"index_topk\"", "\"index_topk\": 1, \"index_topk\""),
        TAMIS_ERROR_FORMAT, "model", "duplicate");
}

static void deep_json(void **state) {
    (void)state;
    refused(text_nested(1000000), TAMIS_ERROR_FORMAT, "model", "depth");
    refused(text_nested(1000), TAMIS_ERROR_MODEL, "compress_ratios", "missing");
}

/* ---- one level, and what only the report refuses ----------------------------------- */

#define CANDIDATES                                                                                 \
    "\"candidate_source_layer_id\": 20,\n  \"candidate_topk_blocks\": 2048,\n"                     \
    "  \"candidate_block_size\": 8,"

static void one_level(void **state) {
    (void)state;
    tamis_model_file m;
    tamis_layer_role roles[43];
    reads(text_change(text_read(CONFIG_PATH), CANDIDATES, ""), &m);
    assert_int_equal(m.model.candidate_source_layer_id, -1);
    assert_int_equal(tamis_model_roles(&m.model, roles, NULL), TAMIS_OK);
    for (int32_t i = 0; i < m.model.num_index_sources; i++) {
        assert_int_equal(roles[m.index_source_layer_ids[i]].role, TAMIS_ROLE_FULL);
    }
    for (int32_t layer = 0; layer < 43; layer++) {
        assert_int_not_equal(roles[layer].role, TAMIS_ROLE_SOURCE);
        assert_int_not_equal(roles[layer].role, TAMIS_ROLE_CONSUMER);
    }
    tamis_model_file_free(&m);
}

/* The one failure of the released model with a change, in an indexer that is right otherwise. */
static void reported(const char *from, const char *to, const char *id) {
    tamis_model_file m;
    tamis_settings settings;
    tamis_indexer_options options;
    tamis_requirement failure;
    reads(text_change(text_read(CONFIG_PATH), from, to), &m);
    tamis_settings_default(&settings);
    tamis_indexer_options_default(&options);
    options.model = &m.model;
    options.settings = &settings;
    options.page_size = 64;
    assert_int_equal(tamis_indexer_supported(&options, &failure, 1), 1);
    assert_string_equal(failure.id, id);
    tamis_model_file_free(&m);
}

static void unsupported_values_are_reported(void **state) {
    (void)state;
    reported("heads\": 32", "heads\": 128", "heads");
    reported("dim\": 128", "dim\": 256", "head-dim");
    reported("topk\": 512", "topk\": 8192", "topk-limit");
    reported("blocks\": 2048", "blocks\": 8192", "topk-blocks-limit");
    reported("blocks\": 2048", "blocks\": 32", "pool-covers-topk");
    reported("blocks\": 2048", "blocks\": 0", "two-level-keys");
    reported("size\": 8", "size\": 4", "block-multiple");
    reported("size\": 8", "size\": 2147483640", "block-supported");
    reported("\"candidate_block_size\": 8,", "", "two-level-keys");
    reported("\"candidate_source_layer_id\": 20,", "", "two-level-keys");
    reported("id\": 20", "id\": 2147483647", "model-roles");
    reported("2, 8, 14, 20]", "2, 14, 8, 20]", "model-roles");
    reported("0, 0,", "0, 7,", "ratio");
}

/* ---- files ------------------------------------------------------------------------- */

static void not_read(const char *path, tamis_status status, const char *found) {
    tamis_model_file m;
    tamis_error error = {0};
    assert_int_equal(tamis_config_read(path, &m, &error), status);
    assert_string_equal(error.argument, "file");
    assert_non_null(strstr(error.found, found));
    assert_null(m.compress_ratios);
}

static void files_that_are_none(void **state) {
    (void)state;
    not_read("config_json_absent.json", TAMIS_ERROR_FILE, "none");
    not_read("/", TAMIS_ERROR_FILE, "something else");
    not_read("/dev/zero", TAMIS_ERROR_FILE, "something else");
    assert_true(mkfifo("config_json_fifo.json", 0600) == 0);
    not_read("config_json_fifo.json", TAMIS_ERROR_FILE, "something else");
    unlink("config_json_fifo.json");
    text_write("config_json_nul.json", "{}\0x", 4);
    not_read("config_json_nul.json", TAMIS_ERROR_FORMAT, "NUL");
    assert_int_equal(truncate("config_json_nul.json", INT64_C(1) << 40), 0);
    not_read("config_json_nul.json", TAMIS_ERROR_FILE, "1099511627776 bytes");
    unlink("config_json_nul.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_roles),
        cmocka_unit_test(in_text_config),
        cmocka_unit_test(some_keys_outside_text_config),
        cmocka_unit_test(text_config_must_agree),
        cmocka_unit_test(integers_of_a_wrong_kind),
        cmocka_unit_test(arrays_of_a_wrong_kind),
        cmocka_unit_test(missing_keys),
        cmocka_unit_test(impossible_values),
        cmocka_unit_test(not_an_object),
        cmocka_unit_test(deep_json),
        cmocka_unit_test(one_level),
        cmocka_unit_test(unsupported_values_are_reported),
        cmocka_unit_test(files_that_are_none),
    };
    return cmocka_run_group_tests_name("config.config_json", tests, NULL, NULL);
}
