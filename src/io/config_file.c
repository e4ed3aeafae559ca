/* SPDX-License-Identifier: MIT */
/*
 * config_file.c: files of configuration into memory, and attention configs. A file is read whole
 * before it is parsed and its size is bounded, so that a path to something else (a model's weights,
 * a pipe) ends in an error and not in a wait.
 */
#include "config_file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "support.h"

enum { MOST_BYTES = 16 << 20 }; /* a config.json has some kilobytes */

static tamis_status read_stream(FILE *in, char **out, tamis_error *error) {
    struct stat info;
    if (fstat(fileno(in), &info) != 0 || !S_ISREG(info.st_mode)) {
        return io_fail(error, TAMIS_ERROR_FILE, "file", "a regular file", "something else");
    }
    if (info.st_size > MOST_BYTES) {
        return io_fail(error, TAMIS_ERROR_FILE, "file", "at most 16 MiB",
                       io_format("%lld bytes", (long long)info.st_size).text);
    }
    size_t size = (size_t)info.st_size;
    char *text = malloc(size + 1);
    if (!text) {
        return io_no_memory(error, "file");
    }
    if (fread(text, 1, size, in) != size) {
        free(text);
        return io_fail(error, TAMIS_ERROR_FILE, "file", "readable to its end", "an error");
    }
    text[size] = '\0';
    if (strlen(text) != size) {
        free(text);
        return io_fail(error, TAMIS_ERROR_FORMAT, "file", "JSON text", "a NUL byte");
    }
    *out = text;
    return TAMIS_OK;
}

static tamis_status read_text(const char *path, char **out, tamis_error *error) {
    struct stat info; /* opening a pipe would wait for its writer */
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        return io_fail(error, TAMIS_ERROR_FILE, "file", "a regular file", "something else");
    }
    FILE *in = fopen(path, "rb");
    if (!in) {
        return io_fail(error, TAMIS_ERROR_FILE, "file", "a readable file", "none");
    }
    tamis_status status = read_stream(in, out, error);
    fclose(in);
    return status;
}

tamis_status tamis_config_read(const char *path, tamis_model_file *out, tamis_error *error) {
    char *text = NULL;
    memset(out, 0, sizeof *out);
    tamis_status status = read_text(path, &text, error);
    if (!status) {
        status = tamis_config_from_json(text, out, error);
    }
    free(text);
    return status;
}

/* ---- attention config ------------------------------------------------------------------------ */

static tamis_status refuse(const char *key, const char *required, const json_t *value,
                           tamis_error *error) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    tamis_status status =
        io_fail(error, TAMIS_ERROR_FORMAT, key, required, text ? text : "another value");
    free(text);
    return status;
}

static tamis_status read_string(const char *key, const json_t *value, char **copy,
                                const char **setting, tamis_error *error) {
    if (!json_is_string(value)) {
        return refuse(key, "a string", value, error);
    }
    *copy = strdup(json_string_value(value));
    if (!*copy) {
        return io_no_memory(error, key);
    }
    *setting = *copy;
    return TAMIS_OK;
}

static tamis_status read_switch(const char *key, const json_t *value, int32_t *setting,
                                tamis_error *error) {
    const char *text = json_string_value(value); /* NULL of another type */
    if (json_is_boolean(value)) {
        *setting = json_is_true(value) ? TAMIS_SPARSE_ON : TAMIS_SPARSE_OFF;
    } else if (text && strcmp(text, "auto") == 0) {
        *setting = TAMIS_SPARSE_AUTO;
    } else {
        return refuse(key, "true, false or \"auto\"", value, error);
    }
    return TAMIS_OK;
}

static tamis_status read_integer(const char *key, const json_t *value, int32_t *setting,
                                 tamis_error *error) {
    int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < INT32_MIN || n > INT32_MAX) {
        return refuse(key, "an integer of 32 bits", value, error);
    }
    *setting = (int32_t)n;
    return TAMIS_OK;
}

static tamis_status read_setting(const char *key, const json_t *value, tamis_settings_file *out,
                                 tamis_error *error) {
    tamis_settings *s = &out->settings;
    if (strcmp(key, "indexer_kv_dtype") == 0) {
        return read_string(key, value, &out->strings[0], &s->indexer_kv_dtype, error);
    }
    if (strcmp(key, "topk_backend") == 0) {
        return read_string(key, value, &out->strings[1], &s->topk_backend, error);
    }
    if (strcmp(key, "numerics") == 0) {
        return read_string(key, value, &out->strings[2], &s->numerics, error);
    }
    if (strcmp(key, "indexer_sparse_logits") == 0) {
        return read_switch(key, value, &s->indexer_sparse_logits, error);
    }
    if (strcmp(key, "prefill_budget_mb") == 0) {
        return read_integer(key, value, &s->prefill_budget_mb, error);
    }
    return io_fail(error, TAMIS_ERROR_FORMAT, key[0] ? key : "\"\"",
                   "indexer_kv_dtype, indexer_sparse_logits, topk_backend, prefill_budget_mb or "
                   "numerics",
                   "an unknown key");
}

tamis_status tamis_settings_from_json(const char *json, tamis_settings_file *out,
                                      tamis_error *error) {
    json_error_t at;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &at), *value;
    const char *key;
    tamis_status status = TAMIS_OK;
    memset(out, 0, sizeof *out);
    if (!json_is_object(root)) {
        json_decref(root);
        return io_fail(error, TAMIS_ERROR_FORMAT, "attention config", "a JSON object",
                       root ? "another JSON value"
                            : io_format("%s (byte %d)", at.text, at.position).text);
    }
    tamis_settings_default(&out->settings);
    json_object_foreach(root, key, value) {
        status = status ? status : read_setting(key, value, out, error);
    }
    json_decref(root);
    if (status) {
        tamis_settings_file_free(out);
    }
    return status;
}

tamis_status tamis_settings_read(const char *path, tamis_settings_file *out, tamis_error *error) {
    char *text = NULL;
    memset(out, 0, sizeof *out);
    tamis_status status = read_text(path, &text, error);
    if (!status) {
        status = tamis_settings_from_json(text, out, error);
    }
    free(text);
    return status;
}

void tamis_settings_file_free(tamis_settings_file *s) {
    for (size_t i = 0; i < sizeof s->strings / sizeof *s->strings; i++) {
        free(s->strings[i]);
    }
    memset(s, 0, sizeof *s);
}
