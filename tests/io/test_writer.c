/* SPDX-License-Identifier: MIT */
/* test_writer.c: files appear whole or not at all, and read back as they were given. */
#include "forge.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], path[128];

static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/tamis-writer-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/result.safetensors", folder);
    return 0;
}

static int count_files(void) {
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(dir);
    return n;
}

static int tear_down(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails the test where something was left */
}

static const float w[6] = {1, 2, 3, 4, 5, -0.0f};
static const safetensors_tensor tensors[] = {
    {.name = "w", .dtype = SAFETENSORS_F32, .rank = 2, .shape = {2, 3}},
    {.name = "none", .dtype = SAFETENSORS_I64, .rank = 2, .shape = {0, 7}},
    {.name = "codes \"\xc3\xa9\"", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {5}},
};
static const char *const metadata[] = {"format", "tamis-result/1", "about", "a \"quoted\" text"};

static safetensors_writer *begin_at(const char *to) {
    safetensors_writer *writer;
    assert_int_equal(safetensors_writer_begin(to, tensors, 3, metadata, 2, &writer, NULL),
                     TAMIS_OK);
    return writer;
}

static safetensors_writer *begin(void) {
    return begin_at(path);
}

static void write_all_to(const char *to) {
    safetensors_writer *writer = begin_at(to);
    assert_int_equal(safetensors_writer_data(writer, w, 10, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_data(writer, (const char *)w + 10, 14, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_data(writer, "", 0, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_data(writer, "abcde", 5, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_commit(writer, NULL), TAMIS_OK);
}

static void write_all(void) {
    write_all_to(path);
}

static void need_whole(void) {
    safetensors *file;
    assert_int_equal(safetensors_open(path, &file, NULL), TAMIS_OK);
    assert_int_equal(safetensors_count(file), 3);
    const safetensors_tensor *t = safetensors_find(file, "w");
    assert_int_equal(t->dtype, SAFETENSORS_F32);
    assert_int_equal(t->shape[1], 3);
    assert_memory_equal(t->data, w, sizeof w);
    assert_int_equal(safetensors_find(file, "none")->shape[1], 7);
    assert_memory_equal(safetensors_find(file, tensors[2].name)->data, "abcde", 5);
    assert_string_equal(safetensors_metadata(file, "format"), "tamis-result/1");
    assert_string_equal(safetensors_metadata(file, "about"), metadata[3]);
    safetensors_close(file);
}

static void round_trip(void **state) {
    (void)state;
    write_all();
    assert_int_equal(count_files(), 1);
    need_whole();
}

/* The data begins at a multiple of 8, so that its first tensor needs no copy. */
static void data_is_aligned(void **state) {
    (void)state;
    uint8_t prefix[8];
    write_all();
    FILE *file = fopen(path, "rb");
    assert_int_equal(fread(prefix, 1, 8, file), 8);
    fclose(file);
    assert_int_equal(prefix[0] % 8, 0);
}

static void nothing_before_commit(void **state) {
    (void)state;
    safetensors_writer *writer = begin();
    assert_int_equal(safetensors_writer_data(writer, w, 24, NULL), TAMIS_OK);
    assert_int_equal(access(path, F_OK), -1);
    safetensors_writer_abort(writer);
}

static void abort_leaves_nothing(void **state) {
    (void)state;
    safetensors_writer_abort(begin());
    assert_int_equal(count_files(), 0);
    safetensors_writer_abort(NULL);
}

/* The old file is there, whole, until the new one is. */
static void replaces_at_once(void **state) {
    (void)state;
    write_all();
    safetensors *old;
    assert_int_equal(safetensors_open(path, &old, NULL), TAMIS_OK);
    safetensors_writer *writer = begin();
    assert_int_equal(safetensors_writer_data(writer, w, 24, NULL), TAMIS_OK);
    need_whole();
    assert_int_equal(safetensors_writer_data(writer, "ABCDE", 5, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_commit(writer, NULL), TAMIS_OK);
    assert_int_equal(count_files(), 1);
    /* Who had the old file open still has it. */
    assert_memory_equal(safetensors_find(old, tensors[2].name)->data, "abcde", 5);
    safetensors_close(old);
    assert_int_equal(safetensors_open(path, &old, NULL), TAMIS_OK);
    assert_memory_equal(safetensors_find(old, tensors[2].name)->data, "ABCDE", 5);
    safetensors_close(old);
}

static void abort_keeps_the_old_file(void **state) {
    (void)state;
    write_all();
    safetensors_writer_abort(begin());
    assert_int_equal(count_files(), 1);
    need_whole();
}

/* Two writers of one path: each has a temporary of its own, the last commit stays. */
static void two_writers_at_once(void **state) {
    (void)state;
    safetensors_writer *a = begin(), *b = begin();
    assert_int_equal(count_files(), 2);
    assert_int_equal(safetensors_writer_data(b, w, 24, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_data(b, "abcde", 5, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_commit(b, NULL), TAMIS_OK);
    safetensors_writer_abort(a);
    assert_int_equal(count_files(), 1);
    need_whole();
}

static void commit_of_too_little(void **state) {
    (void)state;
    tamis_error error = {0};
    safetensors_writer *writer = begin();
    assert_int_equal(safetensors_writer_data(writer, w, 24, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_commit(writer, &error), TAMIS_ERROR_ARGUMENT);
    assert_string_equal(error.found, "5 bytes too few");
    assert_int_equal(count_files(), 0);
}

static void data_of_too_much(void **state) {
    (void)state;
    tamis_error error = {0};
    safetensors_writer *writer = begin();
    assert_int_equal(safetensors_writer_data(writer, w, 24, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_data(writer, "abcdef", 6, &error), TAMIS_ERROR_ARGUMENT);
    assert_string_equal(error.found, "6");
    safetensors_writer_abort(writer);
    assert_int_equal(count_files(), 0);
}

static void refused(const char *to, const safetensors_tensor *list, int64_t count,
                    const char *const *pairs, tamis_status status, const char *argument) {
    safetensors_writer *writer = (safetensors_writer *)folder;
    tamis_error error = {0};
    assert_int_equal(
        safetensors_writer_begin(to, list, count, pairs, pairs ? 2 : 0, &writer, &error), status);
    assert_null(writer);
    assert_string_equal(error.argument, argument);
    assert_int_equal(count_files(), 0);
}

static void name_used_twice(void **state) {
    (void)state;
    const safetensors_tensor list[] = {tensors[0], tensors[0]};
    refused(path, list, 2, NULL, TAMIS_ERROR_ARGUMENT, "w");
}

static void name_of_the_metadata(void **state) {
    (void)state;
    const safetensors_tensor list[] = {{.name = "__metadata__", .dtype = SAFETENSORS_U8}};
    refused(path, list, 1, NULL, TAMIS_ERROR_ARGUMENT, "__metadata__");
}

static void name_not_utf8(void **state) {
    (void)state;
    const safetensors_tensor list[] = {{.name = "w\xff", .dtype = SAFETENSORS_U8}};
    refused(path, list, 1, NULL, TAMIS_ERROR_ARGUMENT, "w?");
}

static void metadata_key_twice(void **state) {
    (void)state;
    const char *const pairs[] = {"a", "1", "a", "2"};
    refused(path, tensors, 3, pairs, TAMIS_ERROR_ARGUMENT, "__metadata__.a");
}

static void metadata_not_utf8(void **state) {
    (void)state;
    const char *const pairs[] = {"a", "\xff", "b", "2"};
    refused(path, tensors, 3, pairs, TAMIS_ERROR_ARGUMENT, "__metadata__.a");
}

static void shape_overflows(void **state) {
    (void)state;
    const safetensors_tensor list[] = {{.name = "x",
                                        .dtype = SAFETENSORS_F32,
                                        .rank = 2,
                                        .shape = {INT64_C(1) << 31, INT64_C(1) << 31}}};
    refused(path, list, 1, NULL, TAMIS_ERROR_ARGUMENT, "x");
}

static void sizes_overflow_together(void **state) {
    (void)state;
    const safetensors_tensor list[] = {
        {.name = "x", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {INT64_C(1) << 62}},
        {.name = "y", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {INT64_C(1) << 62}}};
    refused(path, list, 2, NULL, TAMIS_ERROR_ARGUMENT, "y");
}

static void dtype_not_written(void **state) {
    (void)state;
    const safetensors_tensor list[] = {{.name = "x", .dtype = SAFETENSORS_OTHER}};
    refused(path, list, 1, NULL, TAMIS_ERROR_ARGUMENT, "x");
}

static void folder_missing(void **state) {
    (void)state;
    refused("/tmp/no-such-folder-for-tamis/r", tensors, 3, NULL, TAMIS_ERROR_FILE, "file");
}

static void folder_not_writable(void **state) {
    (void)state;
    refused("/proc/tamis-result", tensors, 3, NULL, TAMIS_ERROR_FILE, "file");
}

static void path_is_a_folder(void **state) {
    (void)state;
    refused(folder, tensors, 3, NULL, TAMIS_ERROR_FILE, "file");
}

/* A rename over a device would replace the device for everybody. */
static void path_is_a_device(void **state) {
    (void)state;
    struct stat about;
    refused("/dev/null", tensors, 3, NULL, TAMIS_ERROR_FILE, "file");
    assert_int_equal(stat("/dev/null", &about), 0);
    assert_true(S_ISCHR(about.st_mode));
}

/* A link stays a link; the file it names is replaced. */
static void through_a_link(void **state) {
    (void)state;
    char link[128];
    struct stat about;
    snprintf(link, sizeof link, "%s/link", folder);
    fclose(fopen(path, "wb"));
    assert_int_equal(symlink(path, link), 0);
    write_all_to(link);
    assert_int_equal(lstat(link, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    unlink(link);
    need_whole();
}

/* A link to nothing: what it names appears, through a second link and from the link's folder. */
static void through_a_dangling_link(void **state) {
    (void)state;
    char link[2][128];
    struct stat about;
    for (int i = 0; i < 2; i++) {
        snprintf(link[i], sizeof link[i], "%s/link%d", folder, i);
        assert_int_equal(symlink(i ? link[0] : "result.safetensors", link[i]), 0);
    }
    write_all_to(link[1]);
    assert_int_equal(count_files(), 3);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lstat(link[i], &about), 0);
        assert_true(S_ISLNK(about.st_mode));
        unlink(link[i]);
    }
    need_whole();
}

static void links_in_a_circle(void **state) {
    (void)state;
    tamis_error error = {0};
    safetensors_writer *writer;
    assert_int_equal(symlink(path, path), 0);
    assert_int_equal(safetensors_writer_begin(path, tensors, 3, NULL, 0, &writer, &error),
                     TAMIS_ERROR_FILE);
    assert_int_equal(count_files(), 1);
}

static void name_empty(void **state) {
    (void)state;
    refused("", tensors, 3, NULL, TAMIS_ERROR_FILE, "file");
    strcat(path, "/");
    refused(path, tensors, 3, NULL, TAMIS_ERROR_FILE, "file");
}

/* As long as the filesystem takes: the temporary must not be longer. */
static void name_long(void **state) {
    (void)state;
    char to[64 + 256];
    int length = snprintf(to, sizeof to, "%s/", folder);
    memset(to + length, 'n', 250);
    to[length + 250] = 0;
    write_all_to(to);
    assert_int_equal(rename(to, path), 0);
    need_whole();
}

/* A limit on file size stands for a full disk: a write fails in the middle. */
static void limit_files(rlim_t bytes, struct rlimit *before) {
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, before), 0);
    struct rlimit small = {.rlim_cur = bytes, .rlim_max = before->rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
}

static void disk_full_at_the_header(void **state) {
    (void)state;
    struct rlimit before;
    safetensors_writer *writer;
    tamis_error error = {0};
    limit_files(100, &before);
    tamis_status status = safetensors_writer_begin(path, tensors, 3, metadata, 2, &writer, &error);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, TAMIS_ERROR_FILE);
    assert_string_equal(error.required, "room for the file");
    assert_null(writer);
    assert_int_equal(count_files(), 0);
}

static void disk_full_in_the_data(void **state) {
    (void)state;
    static uint8_t zeros[1 << 16];
    const safetensors_tensor list[] = {
        {.name = "x", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {sizeof zeros}}};
    struct rlimit before;
    safetensors_writer *writer;
    write_all(); /* what was there stays */
    assert_int_equal(safetensors_writer_begin(path, list, 1, NULL, 0, &writer, NULL), TAMIS_OK);
    limit_files(4096, &before);
    tamis_status status = safetensors_writer_data(writer, zeros, sizeof zeros, NULL);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, TAMIS_ERROR_FILE);
    safetensors_writer_abort(writer);
    assert_int_equal(count_files(), 1);
    need_whole();
}

/* The folder in place of the target when the rename comes. */
static void rename_fails(void **state) {
    (void)state;
    tamis_error error = {0};
    safetensors_writer *writer = begin();
    assert_int_equal(safetensors_writer_data(writer, w, 24, NULL), TAMIS_OK);
    assert_int_equal(safetensors_writer_data(writer, "abcde", 5, NULL), TAMIS_OK);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(safetensors_writer_commit(writer, &error), TAMIS_ERROR_FILE);
    assert_int_equal(count_files(), 1);
    assert_int_equal(rmdir(path), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(round_trip),
        TEST(data_is_aligned),
        TEST(nothing_before_commit),
        TEST(abort_leaves_nothing),
        TEST(replaces_at_once),
        TEST(abort_keeps_the_old_file),
        TEST(two_writers_at_once),
        TEST(commit_of_too_little),
        TEST(data_of_too_much),
        TEST(name_used_twice),
        TEST(name_of_the_metadata),
        TEST(name_not_utf8),
        TEST(metadata_key_twice),
        TEST(metadata_not_utf8),
        TEST(shape_overflows),
        TEST(sizes_overflow_together),
        TEST(dtype_not_written),
        TEST(folder_missing),
        TEST(folder_not_writable),
        TEST(path_is_a_folder),
        TEST(path_is_a_device),
        TEST(through_a_link),
        TEST(through_a_dangling_link),
        TEST(links_in_a_circle),
        TEST(name_empty),
        TEST(name_long),
        TEST(disk_full_at_the_header),
        TEST(disk_full_in_the_data),
        TEST(rename_fails),
    };
    return cmocka_run_group_tests_name("io.writer", tests, NULL, NULL);
}
