/* SPDX-License-Identifier: MIT */
/* test_safetensors.c: what the reader gives of files that are right; see also io.trace_hostile. */
#include "forge.h"

#include <sys/stat.h>
#include <unistd.h>

static safetensors *open_forge(const forge *f, uint8_t **bytes) {
    safetensors *file;
    int64_t size;
    *bytes = forge_bytes(f, &size);
    assert_int_equal(safetensors_open_memory(*bytes, size, &file, NULL), TAMIS_OK);
    return file;
}

static void tensors_by_name_with_their_data(void **state) {
    (void)state;
    static const float w[3] = {1, -2, 3};
    forge f;
    uint8_t *bytes;
    forge_empty(&f);
    forge_add(&f, "w", "F32", "[3, 1]", w, sizeof w);
    forge_add(&f, "a", "U8", "[2, 2]", "abcd", 4);
    safetensors *file = open_forge(&f, &bytes);
    assert_int_equal(safetensors_count(file), 2);
    assert_string_equal(safetensors_at(file, 0)->name, "a");
    assert_string_equal(safetensors_at(file, 1)->name, "w");
    assert_null(safetensors_at(file, 2));
    assert_null(safetensors_at(file, -1));
    assert_null(safetensors_find(file, "b"));
    const safetensors_tensor *t = safetensors_find(file, "w");
    assert_int_equal(t->dtype, SAFETENSORS_F32);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->shape[1], 1);
    assert_int_equal(t->bytes, 12);
    assert_memory_equal(t->data, w, 12);
    assert_memory_equal(safetensors_find(file, "a")->data, "abcd", 4);
    safetensors_close(file);
    free(bytes);
    forge_free(&f);
}

static void a_header_alone_is_a_file(void **state) {
    (void)state;
    forge f;
    uint8_t *bytes;
    forge_empty(&f);
    safetensors *file = open_forge(&f, &bytes);
    assert_int_equal(safetensors_count(file), 0);
    assert_null(safetensors_metadata(file, "format"));
    safetensors_close(file);
    free(bytes);
}

static void empty_tensors_and_scalars(void **state) {
    (void)state;
    forge f;
    uint8_t *bytes;
    forge_empty(&f);
    forge_add(&f, "none", "I64", "[0, 5]", NULL, 0);
    forge_add(&f, "one", "I64", "[]", "\1\0\0\0\0\0\0\0", 8);
    forge_add(&f, "last", "F32", "[0]", NULL, 0);
    safetensors *file = open_forge(&f, &bytes);
    assert_int_equal(safetensors_find(file, "none")->bytes, 0);
    assert_non_null(safetensors_find(file, "last")->data);
    assert_int_equal(safetensors_find(file, "one")->rank, 0);
    assert_int_equal(*(const int64_t *)safetensors_find(file, "one")->data, 1);
    safetensors_close(file);
    free(bytes);
    forge_free(&f);
}

/* Tensors may stand in the header in any order; the data has one of its own. */
static void header_order_is_free(void **state) {
    (void)state;
    forge f;
    uint8_t *bytes;
    forge_empty(&f);
    forge_add(&f, "b", "U8", "[2]", "bb", 2)->offsets = "[2, 4]";
    forge_add(&f, "a", "U8", "[2]", "aa", 2)->offsets = "[0, 2]";
    safetensors *file = open_forge(&f, &bytes);
    assert_memory_equal(safetensors_find(file, "a")->data, "bb", 2);
    assert_memory_equal(safetensors_find(file, "b")->data, "aa", 2);
    safetensors_close(file);
    free(bytes);
    forge_free(&f);
}

/* U8 stays a view at any place; wider elements are copied only where they are not aligned. */
static void misaligned_elements_are_copied(void **state) {
    (void)state;
    static const float w[2] = {1.5f, -2};
    forge f;
    uint8_t *bytes;
    for (int pad = 0; pad < 8; pad++) {
        forge_empty(&f);
        f.pad = pad;
        forge_add(&f, "codes", "U8", "[3]", "xyz", 3);
        forge_add(&f, "w", "F32", "[2]", w, sizeof w);
        safetensors *file = open_forge(&f, &bytes);
        const safetensors_tensor *codes = safetensors_find(file, "codes");
        const safetensors_tensor *t = safetensors_find(file, "w");
        int64_t size;
        free(forge_bytes(&f, &size));
        assert_ptr_equal(codes->data, bytes + size - 11);
        assert_int_equal((uintptr_t)t->data % 4, 0);
        assert_memory_equal(t->data, w, sizeof w);
        int aligned = (uintptr_t)(bytes + size - 8) % 4 == 0;
        assert_int_equal(t->data == (void *)(bytes + size - 8), aligned);
        safetensors_close(file);
        free(bytes);
        forge_free(&f);
    }
}

static void foreign_dtypes_are_known_by_size(void **state) {
    (void)state;
    forge f;
    uint8_t *bytes;
    forge_empty(&f);
    forge_add(&f, "half", "F16", "[3]", NULL, 6);
    forge_add(&f, "scale", "F8_E8M0", "[2]", NULL, 2);
    safetensors *file = open_forge(&f, &bytes);
    assert_int_equal(safetensors_find(file, "half")->dtype, SAFETENSORS_OTHER);
    assert_int_equal(safetensors_find(file, "half")->bytes, 6);
    safetensors_close(file);
    free(bytes);
    forge_free(&f);
}

static void metadata_by_key(void **state) {
    (void)state;
    forge f;
    uint8_t *bytes;
    forge_empty(&f);
    f.metadata = "{\"a\":\"x \\u00e9\",\"\":\"empty key\"}";
    safetensors *file = open_forge(&f, &bytes);
    assert_string_equal(safetensors_metadata(file, "a"), "x \xc3\xa9");
    assert_string_equal(safetensors_metadata(file, ""), "empty key");
    assert_null(safetensors_metadata(file, "b"));
    safetensors_close(file);
    free(bytes);
}

static void refused_path(const char *path, const char *found) {
    safetensors *file = (safetensors *)&path;
    tamis_error error = {0};
    assert_int_equal(safetensors_open(path, &file, &error), TAMIS_ERROR_FILE);
    assert_null(file);
    assert_string_equal(error.argument, "file");
    assert_non_null(strstr(error.found, found));
}

static void missing_file(void **state) {
    (void)state;
    refused_path("no-such-file.safetensors", "No such file");
}

static void folder_as_a_file(void **state) {
    (void)state;
    refused_path("/", "a directory");
}

static void device_as_a_file(void **state) {
    (void)state;
    refused_path("/dev/zero", "a device");
}

/* Opening must not wait for somebody to write to the pipe. */
static void pipe_as_a_file(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/tamis-pipe-%ld", (long)getpid());
    assert_int_equal(mkfifo(path, 0600), 0);
    refused_path(path, "pipe");
    unlink(path);
}

static void empty_file(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/tamis-empty-%ld", (long)getpid());
    fclose(fopen(path, "wb"));
    safetensors *file = (safetensors *)path;
    tamis_error error = {0};
    assert_int_equal(safetensors_open(path, &file, &error), TAMIS_ERROR_FORMAT);
    assert_null(file);
    assert_string_equal(error.found, "0 bytes");
    unlink(path);
}

static void no_buffer(void **state) {
    (void)state;
    safetensors *file = (safetensors *)&state;
    tamis_error error = {0};
    assert_int_equal(safetensors_open_memory(NULL, 8, &file, &error), TAMIS_ERROR_ARGUMENT);
    assert_null(file);
    assert_string_equal(error.argument, "bytes");
    assert_int_equal(safetensors_open_memory("", -1, &file, &error), TAMIS_ERROR_ARGUMENT);
    assert_string_equal(error.found, "-1");
}

static void header_beyond_the_limit(void **state) {
    (void)state;
    int64_t length = ((int64_t)16 << 20) + 1;
    uint8_t *bytes = calloc(1, (size_t)length + 8);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(length >> (8 * i));
    }
    memset(bytes + 8, ' ', (size_t)length);
    memcpy(bytes + 8, "{}", 2);
    safetensors *file;
    tamis_error error;
    assert_int_equal(safetensors_open_memory(bytes, length + 8, &file, &error), TAMIS_ERROR_FORMAT);
    assert_string_equal(error.argument, "header length");
    bytes[0]--; /* one byte less is within it */
    assert_int_equal(safetensors_open_memory(bytes, length + 7, &file, &error), TAMIS_OK);
    safetensors_close(file);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_by_name_with_their_data),
        cmocka_unit_test(a_header_alone_is_a_file),
        cmocka_unit_test(empty_tensors_and_scalars),
        cmocka_unit_test(header_order_is_free),
        cmocka_unit_test(misaligned_elements_are_copied),
        cmocka_unit_test(foreign_dtypes_are_known_by_size),
        cmocka_unit_test(metadata_by_key),
        cmocka_unit_test(missing_file),
        cmocka_unit_test(folder_as_a_file),
        cmocka_unit_test(device_as_a_file),
        cmocka_unit_test(pipe_as_a_file),
        cmocka_unit_test(empty_file),
        cmocka_unit_test(no_buffer),
        cmocka_unit_test(header_beyond_the_limit),
    };
    return cmocka_run_group_tests_name("io.safetensors", tests, NULL, NULL);
}
