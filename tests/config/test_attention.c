/* SPDX-License-Identifier: MIT */
/* test_attention.c: attention configs (spec 7.1): every key, its type held exactly, unknown keys
 * refused, unknown words kept for the report. */
#include "text.h"

#include "config_file.h"

static void is(const tamis_settings *s, const char *dtype, int32_t sparse, const char *backend,
               int32_t budget, const char *numerics) {
    assert_int_equal(s->struct_size, sizeof *s);
    assert_int_equal(s->reserved, 0);
    assert_string_equal(s->indexer_kv_dtype, dtype);
    assert_int_equal(s->indexer_sparse_logits, sparse);
    assert_string_equal(s->topk_backend, backend);
    assert_int_equal(s->prefill_budget_mb, budget);
    assert_string_equal(s->numerics, numerics);
}

static tamis_settings_file reads(const char *json) {
    tamis_settings_file s;
    tamis_error error = {0};
    if (tamis_settings_from_json(json, &s, &error)) {
        fail_msg("%s: required %s, found %s", error.argument, error.required, error.found);
    }
    return s;
}

static void defaults(void **state) {
    (void)state;
    tamis_settings_file s = reads("{}");
    is(&s.settings, "mxfp4", TAMIS_SPARSE_OFF, "auto", 512, "exact");
    tamis_settings_file_free(&s);
    tamis_settings_file_free(&s); /* zeroed by the first */
}

static void shipped_file(void **state) {
    (void)state;
    tamis_settings_file s;
    assert_int_equal(tamis_settings_read(ATTENTION_PATH, &s, NULL), TAMIS_OK);
    is(&s.settings, "mxfp4", TAMIS_SPARSE_ON, "auto", 512, "exact");
    tamis_settings_file_free(&s);
}

static void every_key(void **state) {
    (void)state;
    tamis_settings_file s =
        reads("{\"numerics\":\"bf16\",\"prefill_budget_mb\":64,\"topk_backend\":\"ref\","
              "\"indexer_sparse_logits\":\"auto\",\"indexer_kv_dtype\":\"fp8\"}");
    is(&s.settings, "fp8", TAMIS_SPARSE_AUTO, "ref", 64, "bf16");
    tamis_settings_file_free(&s);
    s = reads("{\"indexer_sparse_logits\":false}");
    is(&s.settings, "mxfp4", TAMIS_SPARSE_OFF, "auto", 512, "exact");
    tamis_settings_file_free(&s);
}

/* Words that nobody knows, and numbers that make no sense, are the report's. */
static void unknown_words_are_kept(void **state) {
    (void)state;
    tamis_settings_file s =
        reads("{\"indexer_kv_dtype\":\"int3\",\"topk_backend\":\"\",\"numerics\":\"f\\u00fc\\n\","
              "\"prefill_budget_mb\":-2147483648}");
    is(&s.settings, "int3", TAMIS_SPARSE_OFF, "", INT32_MIN, "f\xc3\xbc\n");
    tamis_settings_file_free(&s);
}

static void refused(const char *json, const char *argument, const char *found) {
    tamis_settings_file s, zero;
    tamis_error error = {0};
    memset(&s, 0xA5, sizeof s);
    memset(&zero, 0, sizeof zero);
    assert_int_equal(tamis_settings_from_json(json, &s, &error), TAMIS_ERROR_FORMAT);
    if (strcmp(error.argument, argument) || !strstr(error.found, found)) {
        fail_msg("%s: %s found %s", json, error.argument, error.found);
    }
    assert_memory_equal(&s, &zero, sizeof s);
    assert_int_equal(tamis_settings_from_json(json, &s, NULL), TAMIS_ERROR_FORMAT);
}

static void every_type(void **state) {
    (void)state;
    static const struct {
        const char *key, *fits; /* of these values, those that fit */
    } keys[] = {{"indexer_kv_dtype", "\"x\" \"auto\""},
                {"topk_backend", "\"x\" \"auto\""},
                {"numerics", "\"x\" \"auto\""},
                {"indexer_sparse_logits", "true false \"auto\""},
                {"prefill_budget_mb", "0 512"}};
    static const char *const values[] = {"\"x\"",
                                         "\"auto\"",
                                         "true",
                                         "false",
                                         "null",
                                         "0",
                                         "512",
                                         "512.0",
                                         "2147483648",
                                         "-2147483649",
                                         "9223372036854775807",
                                         "[]",
                                         "{}",
                                         "\"true\""};
    int good = 0;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            char json[128], fits[64], value[64];
            snprintf(json, sizeof json, "{\"numerics\":\"exact\",\"%s\":%s}", keys[k].key,
                     values[v]);
            if (k == 2) {
                snprintf(json, sizeof json, "{\"numerics\":%s}", values[v]);
            }
            snprintf(fits, sizeof fits, " %s ", keys[k].fits);
            snprintf(value, sizeof value, " %s ", values[v]);
            int text = k < 3 && values[v][0] == '"';
            if (text || strstr(fits, value)) {
                tamis_settings_file s = reads(json);
                tamis_settings_file_free(&s);
                good++;
            } else {
                refused(json, keys[k].key, values[v]);
            }
        }
    }
    assert_int_equal(good, 3 * 3 + 3 + 2);
}

static void unknown_keys(void **state) {
    (void)state;
    refused("{\"indexer_sparse_logit\":true}", "indexer_sparse_logit", "unknown");
    refused("{\"numerics\":\"exact\",\"Numerics\":\"exact\"}", "Numerics", "unknown");
    refused("{\"\":1}", "\"\"", "unknown");
    refused("{\"a\\u001b[31m\":1}", "a?[31m", "unknown");
}

static void not_a_config(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "[]",
                                        "true",
                                        "{",
                                        "{\"numerics\":\"a\",\"numerics\":\"a\"}",
                                        "{\"numerics\":\"\\u0000\"}",
                                        "{\"prefill_budget_mb\":99999999999999999999}",
                                        "{\"prefill_budget_mb\":1e999}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        refused(texts[i], "attention config", "");
    }
    char *deep = text_nested(1000000);
    refused(deep, "attention config", "depth");
    free(deep);
}

static void long_texts(void **state) {
    (void)state;
    char *json = malloc(200000), *word = malloc(100001);
    assert_non_null(json);
    assert_non_null(word);
    memset(word, 'w', 100000);
    word[100000] = '\0';
    sprintf(json, "{\"numerics\":\"%s\"}", word);
    tamis_settings_file s = reads(json);
    assert_string_equal(s.settings.numerics, word);
    tamis_settings_file_free(&s);
    tamis_error error;
    sprintf(json, "{\"%s\":1}", word);
    assert_int_equal(tamis_settings_from_json(json, &s, &error), TAMIS_ERROR_FORMAT);
    assert_int_equal(strlen(error.argument), sizeof error.argument - 1);
    free(json);
    free(word);
}

static void absent_file(void **state) {
    (void)state;
    tamis_settings_file s;
    tamis_error error = {0};
    assert_int_equal(tamis_settings_read("attention_absent.json", &s, &error), TAMIS_ERROR_FILE);
    assert_string_equal(error.argument, "file");
    assert_null(s.settings.numerics);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),     cmocka_unit_test(shipped_file),
        cmocka_unit_test(every_key),    cmocka_unit_test(unknown_words_are_kept),
        cmocka_unit_test(every_type),   cmocka_unit_test(unknown_keys),
        cmocka_unit_test(not_a_config), cmocka_unit_test(long_texts),
        cmocka_unit_test(absent_file),
    };
    return cmocka_run_group_tests_name("config.attention", tests, NULL, NULL);
}
