/* SPDX-License-Identifier: MIT */
/* roles.c: the role of each layer, derived from a model's values in the order that spec 1 gives. */
#include <stddef.h>
#include <stdio.h>

#include <tamis/config.h>

#include "fail.h"

const char *tamis_role_name(int32_t role) {
    static const char *const names[] = {"none", "full", "source", "consumer", "reuse"};
    return role >= 0 && role <= TAMIS_ROLE_REUSE ? names[role] : "unknown";
}

int64_t tamis_visible(int64_t token, int32_t ratio) {
    if (token < 0 || ratio < 1) {
        return 0;
    }
    /* In 64 unsigned bits; 2^63 itself, of a request that cannot be, stays in range. */
    uint64_t visible = ((uint64_t)token + 1) / (uint64_t)ratio;
    return visible > INT64_MAX ? INT64_MAX : (int64_t)visible;
}

static int contains(const int32_t *ids, int32_t count, int32_t id) {
    for (int32_t i = 0; i < count; i++) {
        if (ids[i] == id) {
            return 1;
        }
    }
    return 0;
}

static tamis_status check_ids(const char *name, const int32_t *ids, int32_t count, int32_t layers,
                              tamis_error *error) {
    char argument[60];
    TAMIS_NEED(count >= 0 && (count == 0 || ids), TAMIS_ERROR_MODEL, name, "an array", count);
    for (int32_t i = 0; i < count; i++) {
        snprintf(argument, sizeof argument, "%s[%d]", name, i);
        TAMIS_NEED(ids[i] >= 0 && ids[i] < layers, TAMIS_ERROR_MODEL, argument,
                   "a layer of compress_ratios", ids[i]);
        TAMIS_NEED(i == 0 || ids[i] > ids[i - 1], TAMIS_ERROR_MODEL, argument, "ascending ids",
                   ids[i]);
    }
    return TAMIS_OK;
}

static tamis_status check_candidates(const tamis_model *m, tamis_error *error) {
    int32_t id = m->candidate_source_layer_id;
    if (id == -1) {
        TAMIS_NEED(m->candidate_topk_blocks == 0, TAMIS_ERROR_MODEL, "candidate_topk_blocks",
                   "0 in a one-level model", m->candidate_topk_blocks);
        TAMIS_NEED(m->candidate_block_size == 0, TAMIS_ERROR_MODEL, "candidate_block_size",
                   "0 in a one-level model", m->candidate_block_size);
        return TAMIS_OK;
    }
    TAMIS_NEED(contains(m->index_source_layer_ids, m->num_index_sources, id), TAMIS_ERROR_MODEL,
               "candidate_source_layer_id", "one of index_source_layer_ids", id);
    TAMIS_NEED(contains(m->kv_source_layer_ids, m->num_kv_sources, id), TAMIS_ERROR_MODEL,
               "candidate_source_layer_id", "one of kv_source_layer_ids: it must own its K", id);
    TAMIS_NEED(m->candidate_topk_blocks >= 1 && m->candidate_topk_blocks <= 4096, TAMIS_ERROR_MODEL,
               "candidate_topk_blocks", "1 .. 4096", m->candidate_topk_blocks);
    TAMIS_NEED(m->candidate_block_size == 8 || m->candidate_block_size == 16, TAMIS_ERROR_MODEL,
               "candidate_block_size", "8 or 16", m->candidate_block_size);
    return TAMIS_OK;
}

static tamis_status check_model(const tamis_model *m, tamis_error *error) {
    TAMIS_NEED(m->struct_size == sizeof *m, TAMIS_ERROR_STRUCT_SIZE, "model.struct_size",
               "sizeof(tamis_model)", m->struct_size);
    TAMIS_NEED(m->num_layers >= 1 && m->num_layers <= 65536, TAMIS_ERROR_MODEL, "num_hidden_layers",
               "1 .. 65536", m->num_layers);
    TAMIS_NEED(m->compress_ratios != NULL, TAMIS_ERROR_MODEL, "compress_ratios", "an array", 0);
    TAMIS_TRY(check_ids("kv_source_layer_ids", m->kv_source_layer_ids, m->num_kv_sources,
                        m->num_layers, error));
    TAMIS_TRY(check_ids("index_source_layer_ids", m->index_source_layer_ids, m->num_index_sources,
                        m->num_layers, error));
    TAMIS_TRY(check_candidates(m, error));
    TAMIS_NEED(m->index_n_heads >= 4 && m->index_n_heads <= 64 && m->index_n_heads % 4 == 0,
               TAMIS_ERROR_MODEL, "index_n_heads", "4 .. 64, a multiple of 4", m->index_n_heads);
    TAMIS_NEED(m->index_head_dim == 64 || m->index_head_dim == 128, TAMIS_ERROR_MODEL,
               "index_head_dim", "64 or 128", m->index_head_dim);
    TAMIS_NEED(m->index_topk >= 1 && m->index_topk <= 4096, TAMIS_ERROR_MODEL, "index_topk",
               "1 .. 4096", m->index_topk);
    return TAMIS_OK;
}

/* Walks the layers in order; owner and selector are the nearest ones so far. */
typedef struct walk {
    int32_t owner, selector;
} walk;

static tamis_status role_of(const tamis_model *m, int32_t layer, walk *w, tamis_layer_role *out,
                            tamis_error *error) {
    char argument[60];
    int32_t ratio = m->compress_ratios[layer], source = m->candidate_source_layer_id;
    tamis_layer_role role = {TAMIS_ROLE_NONE, ratio, -1, -1};
    snprintf(argument, sizeof argument, "compress_ratios[%d]", layer);
    TAMIS_NEED(ratio >= 0 && ratio <= 2, TAMIS_ERROR_MODEL, argument, "0, 1 or 2", ratio);
    if (contains(m->kv_source_layer_ids, m->num_kv_sources, layer)) {
        w->owner = layer;
    }
    int selects = contains(m->index_source_layer_ids, m->num_index_sources, layer);
    if (ratio == 0) {
        TAMIS_NEED(!selects && w->owner != layer, TAMIS_ERROR_MODEL, argument,
                   "1 or 2: the layer owns K or selects", ratio);
        *out = role;
        return TAMIS_OK;
    }
    snprintf(argument, sizeof argument, "layer %d", layer);
    /* A layer that selects nothing reads no index K: it may stand before the first owner. */
    TAMIS_NEED(w->owner >= 0 || !selects, TAMIS_ERROR_MODEL, argument,
               "a K owner: one of kv_source_layer_ids at or before it", -1);
    TAMIS_NEED(w->owner < 0 || ratio == m->compress_ratios[w->owner] || !selects, TAMIS_ERROR_MODEL,
               argument, "the ratio of the layer that owns its K", ratio);
    role.k_owner = w->owner;
    role.role = selects ? TAMIS_ROLE_FULL : TAMIS_ROLE_REUSE;
    role.source = selects ? -1 : w->selector;
    if (selects && layer == source) {
        role.role = TAMIS_ROLE_SOURCE;
    } else if (selects && source >= 0 && layer > source) {
        TAMIS_NEED(w->owner == source, TAMIS_ERROR_MODEL, argument,
                   "the candidate source's K: a consumer reads no other", w->owner);
        role.role = TAMIS_ROLE_CONSUMER;
        role.source = source;
    }
    w->selector = selects ? layer : w->selector;
    *out = role;
    return TAMIS_OK;
}

tamis_status tamis_model_roles(const tamis_model *model, tamis_layer_role *roles,
                               tamis_error *error) {
    TAMIS_NEED(model != NULL, TAMIS_ERROR_ARGUMENT, "model", "a tamis_model", 0);
    TAMIS_NEED(roles != NULL, TAMIS_ERROR_ARGUMENT, "roles", "an array of num_layers", 0);
    TAMIS_TRY(check_model(model, error));
    for (int pass = 0; pass < 2; pass++) { /* all is checked before the first is written */
        walk w = {-1, -1};
        tamis_layer_role role;
        for (int32_t layer = 0; layer < model->num_layers; layer++) {
            TAMIS_TRY(role_of(model, layer, &w, pass == 0 ? &role : &roles[layer], error));
        }
    }
    return TAMIS_OK;
}
