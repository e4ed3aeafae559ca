/* SPDX-License-Identifier: MIT */
/* test_result.c: files of selections, opened against the trace they belong to. */
#include "forge.h"

#include <unistd.h>

typedef struct fixture {
    forge trace_forge, f;
    uint8_t *bytes;
    tamis_trace *trace;
    char path[64];
} fixture;

static int set_up(void **state) {
    fixture *x = calloc(1, sizeof *x);
    forge_trace(&x->trace_forge);
    x->trace = forge_open(&x->trace_forge, &x->bytes);
    forge_empty(&x->f);
    snprintf(x->path, sizeof x->path, "/tmp/tamis-result-%ld", (long)getpid());
    *state = x;
    return 0;
}

static int tear_down(void **state) {
    fixture *x = *state;
    tamis_trace_close(x->trace);
    forge_free(&x->trace_forge);
    forge_free(&x->f);
    unlink(x->path);
    free(x->bytes);
    free(x);
    return 0;
}

static tamis_status open_result(fixture *x, tamis_result **result, tamis_error *error) {
    int64_t size;
    uint8_t *bytes = forge_bytes(&x->f, &size);
    FILE *file = fopen(x->path, "wb");
    assert_int_equal(fwrite(bytes, 1, (size_t)size, file), size);
    fclose(file);
    free(bytes);
    memset(error, 0, sizeof *error);
    return tamis_result_open(x->path, x->trace, result, error);
}

static void refused(fixture *x, const char *argument, const char *found) {
    tamis_result *result = (tamis_result *)x;
    tamis_error error;
    assert_int_equal(open_result(x, &result, &error), TAMIS_ERROR_FORMAT);
    assert_null(result);
    assert_string_equal(error.argument, argument);
    assert_non_null(strstr(error.found, found));
}

static void selections_and_blocks(void **state) {
    fixture *x = *state;
    tamis_result *result;
    tamis_error error;
    x->f.format = "tamis-result/1";
    uint8_t *selected = forge_add(&x->f, "selected.3", "I32", "[3, 4]", NULL, 48)->data;
    uint8_t *blocks = forge_add(&x->f, "blocks", "I32", "[3, 2]", NULL, 24)->data;
    assert_int_equal(open_result(x, &result, &error), TAMIS_OK);
    assert_null(result->selected[0]);
    assert_memory_equal(result->selected[1], selected, 48);
    assert_null(result->selected[2]);
    assert_memory_equal(result->blocks, blocks, 24);
    tamis_result_close(result);
    tamis_result_close(NULL);
}

static void without_metadata_or_blocks(void **state) {
    fixture *x = *state;
    tamis_result *result;
    tamis_error error;
    forge_add(&x->f, "selected.1", "I32", "[3, 4]", NULL, 48);
    forge_add(&x->f, "count.1", "I32", "[3]", NULL, 12);
    assert_int_equal(open_result(x, &result, &error), TAMIS_OK);
    assert_non_null(result->selected[0]);
    assert_null(result->blocks);
    tamis_result_close(result);
}

static void of_another_trace(void **state) {
    forge_add(&((fixture *)*state)->f, "selected.1", "I32", "[2, 4]", NULL, 32);
    refused(*state, "selected.1", "I32 [2, 4]");
}

static void of_another_topk(void **state) {
    forge_add(&((fixture *)*state)->f, "selected.4", "I32", "[3, 8]", NULL, 96);
    refused(*state, "selected.4", "I32 [3, 8]");
}

static void of_64_bits(void **state) {
    forge_add(&((fixture *)*state)->f, "selected.4", "I64", "[3, 4]", NULL, 96);
    refused(*state, "selected.4", "I64 [3, 4]");
}

static void blocks_of_another_width(void **state) {
    forge_add(&((fixture *)*state)->f, "blocks", "I32", "[3, 3]", NULL, 36);
    refused(*state, "blocks", "I32 [3, 3]");
}

/* A file that says nothing must not pass for one that says nothing wrong. */
static void nothing_to_check(void **state) {
    forge_add(&((fixture *)*state)->f, "selected.2", "I32", "[3, 4]", NULL, 48);
    refused(*state, "selected", "none");
}

static void another_format(void **state) {
    fixture *x = *state;
    x->f.format = "tamis-result/2";
    forge_add(&x->f, "selected.1", "I32", "[3, 4]", NULL, 48);
    refused(x, "__metadata__.format", "tamis-result/2");
}

static void missing_file(void **state) {
    fixture *x = *state;
    tamis_result *result = (tamis_result *)x;
    assert_int_equal(tamis_result_open("no-such-result", x->trace, &result, NULL),
                     TAMIS_ERROR_FILE);
    assert_null(result);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(selections_and_blocks),
        TEST(without_metadata_or_blocks),
        TEST(of_another_trace),
        TEST(of_another_topk),
        TEST(of_64_bits),
        TEST(blocks_of_another_width),
        TEST(nothing_to_check),
        TEST(another_format),
        TEST(missing_file),
    };
    return cmocka_run_group_tests_name("io.result", tests, NULL, NULL);
}
