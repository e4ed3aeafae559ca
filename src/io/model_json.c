/* SPDX-License-Identifier: MIT */
/*
 * model_json.c: a model's values from the keys of its config.json (spec 1).
 *
 * Each key is held to its own type and range here, so that later arithmetic cannot overflow; what
 * keys must be together is tamis_model_roles' to judge. null counts as absent, as config.json files
 * write it. A trace holds a model that can run; a config.json may hold one that no tier supports,
 * which the requirements report among all that is wrong with it, so only what is no count at all is
 * refused there. Either may nest its keys in text_config, as models of several modalities do.
 */
#include "trace.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "config_file.h"
#include "support.h"

enum { LAYER_LIMIT = 4096 }; /* entries of an array; the largest released model has 64 */

typedef struct reader {
    const char *file;   /* for messages, or NULL */
    const json_t *root; /* an object */
    const json_t *text; /* its text_config, or NULL */
    int any;            /* any count passes, supported or not */
    tamis_error *error;
} reader;

static tamis_status refuse(const reader *in, const char *key, const char *required,
                           const char *found) {
    return io_fail(in->error, TAMIS_ERROR_MODEL,
                   in->file ? io_format("%s: %s", in->file, key).text : key, required, found);
}

/* The value's text, cut, for "found". */
static io_text shown(const json_t *value) {
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    io_text out = io_format("%.100s", text ? text : "missing");
    free(text);
    return out;
}

static const json_t *get_in(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* NULL when absent or null. */
static const json_t *get(const reader *in, const char *key) {
    const json_t *value = get_in(in->text, key);
    return value ? value : get_in(in->root, key);
}

/* A key inside text_config and outside it says the same. */
static tamis_status check_nesting(const reader *in) {
    static const char *const keys[] = {"num_hidden_layers",
                                       "compress_ratios",
                                       "kv_source_layer_ids",
                                       "index_source_layer_ids",
                                       "candidate_source_layer_id",
                                       "candidate_topk_blocks",
                                       "candidate_block_size",
                                       "index_n_heads",
                                       "index_head_dim",
                                       "index_topk"};
    if (in->text && !json_is_object(in->text)) {
        return refuse(in, "text_config", "an object", shown(in->text).text);
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *inside = get_in(in->text, keys[i]), *outside = get_in(in->root, keys[i]);
        if (inside && outside && !json_equal(inside, outside)) {
            return refuse(in, io_format("text_config.%s", keys[i]).text,
                          io_format("as outside of it, %.90s", shown(outside).text).text,
                          shown(inside).text);
        }
    }
    return TAMIS_OK;
}

static tamis_status read_int(const reader *in, const char *key, int32_t least, int32_t most,
                             int32_t *out) {
    const json_t *value = get(in, key);
    int64_t n = json_integer_value(value);
    if (in->any) {
        least = 0;
        most = INT32_MAX;
    }
    if (!json_is_integer(value) || n < least || n > most) {
        return refuse(in, key, io_format("an integer, %d .. %d", least, most).text,
                      shown(value).text);
    }
    *out = (int32_t)n;
    return TAMIS_OK;
}

static tamis_status read_ints(const reader *in, const char *key, int32_t most, int32_t **out,
                              int32_t *count) {
    const json_t *value = get(in, key);
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > LAYER_LIMIT) {
        return refuse(in, key, io_format("an array of at most %d integers", LAYER_LIMIT).text,
                      shown(value).text);
    }
    *out = calloc(n + 1, sizeof **out);
    if (!*out) {
        return io_no_memory(in->error, key);
    }
    *count = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(value, i);
        int64_t x = json_integer_value(entry);
        if (!json_is_integer(entry) || x < 0 || x > most) {
            return refuse(in, io_format("%s[%zu]", key, i).text,
                          io_format("an integer, 0 .. %d", most).text, shown(entry).text);
        }
        (*out)[i] = (int32_t)x;
    }
    return TAMIS_OK;
}

/* Draft layers have ratios too, so there may be more ratios than hidden layers. */
static tamis_status check_hidden_layers(const reader *in, int32_t ratios) {
    const json_t *value = get(in, "num_hidden_layers");
    int64_t n = json_integer_value(value);
    if (value && (!json_is_integer(value) || n < 1 || n > ratios)) {
        return refuse(in, "num_hidden_layers",
                      io_format("1 .. %d, the entries of compress_ratios", ratios).text,
                      shown(value).text);
    }
    return TAMIS_OK;
}

static tamis_status read_layers(const reader *in, tamis_model_file *out) {
    tamis_model *m = &out->model;
    tamis_status status =
        read_ints(in, "compress_ratios", INT32_MAX, &out->compress_ratios, &m->num_layers);
    if (!status && m->num_layers == 0) {
        status = refuse(in, "compress_ratios", "one entry for each layer", "none");
    }
    if (!status) {
        status = check_hidden_layers(in, m->num_layers);
    }
    if (!status) {
        status = read_ints(in, "kv_source_layer_ids", m->num_layers - 1, &out->kv_source_layer_ids,
                           &m->num_kv_sources);
    }
    if (!status) {
        status = read_ints(in, "index_source_layer_ids", m->num_layers - 1,
                           &out->index_source_layer_ids, &m->num_index_sources);
    }
    m->compress_ratios = out->compress_ratios;
    m->kv_source_layer_ids = out->kv_source_layer_ids;
    m->index_source_layer_ids = out->index_source_layer_ids;
    return status;
}

static tamis_status read_candidate_keys(const reader *in, tamis_model *m) {
    int source = get(in, "candidate_source_layer_id") != NULL;
    int blocks = get(in, "candidate_topk_blocks") != NULL;
    int size = get(in, "candidate_block_size") != NULL;
    int all = !in->any && (source || blocks || size); /* a trace has all of them or none */
    tamis_status status = TAMIS_OK;
    m->candidate_source_layer_id = -1;
    if (source || all) {
        status = read_int(in, "candidate_source_layer_id", 0, m->num_layers - 1,
                          &m->candidate_source_layer_id);
    }
    if (!status && (blocks || all)) {
        status =
            read_int(in, "candidate_topk_blocks", 1, TAMIS_MAX_BLOCKS, &m->candidate_topk_blocks);
    }
    if (!status && (size || all)) {
        status = read_int(in, "candidate_block_size", 8, 16, &m->candidate_block_size);
    }
    return status;
}

static tamis_status read_model(const reader *in, tamis_model_file *out) {
    tamis_model *m = &out->model;
    tamis_status status = check_nesting(in);
    if (!status) {
        status = read_layers(in, out);
    }
    if (!status) {
        status = read_candidate_keys(in, m);
    }
    if (!status) {
        status = read_int(in, "index_n_heads", 4, TAMIS_MAX_HEADS, &m->index_n_heads);
    }
    if (!status) {
        status = read_int(in, "index_head_dim", 64, TAMIS_MAX_HEAD_DIM, &m->index_head_dim);
    }
    return status ? status : read_int(in, "index_topk", 1, TAMIS_MAX_TOPK, &m->index_topk);
}

static tamis_status parse(const char *file, const char *json, int any, tamis_model_file *out,
                          tamis_error *error) {
    json_error_t at;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &at);
    const reader in = {.file = file,
                       .root = root,
                       .text = get_in(root, "text_config"),
                       .any = any,
                       .error = error};
    memset(out, 0, sizeof *out);
    if (!json_is_object(root)) {
        json_decref(root);
        return io_fail(
            error, TAMIS_ERROR_FORMAT, file ? file : "model", "a JSON object of the model's values",
            root ? "another JSON value" : io_format("%s (byte %d)", at.text, at.position).text);
    }
    out->model.struct_size = sizeof out->model;
    tamis_status status = read_model(&in, out);
    json_decref(root);
    if (status) {
        tamis_model_file_free(out);
    }
    return status;
}

tamis_status tamis_model_from_json(const char *file, const char *json, tamis_model_file *out,
                                   tamis_error *error) {
    return parse(file, json, 0, out, error);
}

tamis_status tamis_config_from_json(const char *json, tamis_model_file *out, tamis_error *error) {
    return parse(NULL, json, 1, out, error);
}

void tamis_model_file_free(tamis_model_file *m) {
    free(m->compress_ratios);
    free(m->kv_source_layer_ids);
    free(m->index_source_layer_ids);
    memset(m, 0, sizeof *m);
}
