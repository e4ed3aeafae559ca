/* SPDX-License-Identifier: MIT */
/* text.h: the files of data/ as text, and texts with one place changed. */
#ifndef TAMIS_TESTS_CONFIG_TEXT_H
#define TAMIS_TESTS_CONFIG_TEXT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CONFIG_PATH    TAMIS_DATA_DIR "/deepseek-v4.1-flash.json"
#define ATTENTION_PATH TAMIS_DATA_DIR "/attention.json"

static inline char *text_read(const char *path) {
    FILE *in = fopen(path, "rb");
    char *text = calloc(1, 65536);
    assert_non_null(in);
    assert_non_null(text);
    assert_true(fread(text, 1, 65535, in) > 0);
    fclose(in);
    return text;
}

/* Frees text; the result has its one `from` replaced by `to`. */
static inline char *text_change(char *text, const char *from, const char *to) {
    char *at = strstr(text, from);
    if (!at) {
        fail_msg("the text has no %s", from);
    }
    size_t size = strlen(text) + strlen(to) + 1;
    char *out = malloc(size);
    assert_non_null(out);
    snprintf(out, size, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return out;
}

/* An object that holds arrays in arrays. */
static inline char *text_nested(int depth) {
    char *text = calloc(1, 2 * (size_t)depth + 64), *end = text;
    assert_non_null(text);
    end += sprintf(end, "{\"unknown\":");
    memset(end, '[', (size_t)depth);
    memset(end + depth, ']', (size_t)depth);
    end[2 * depth] = '}';
    return text;
}

/* Writes a file of the working folder. */
static inline void text_write(const char *path, const char *text, size_t size) {
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

#endif
