/* SPDX-License-Identifier: MIT */
/*
 * requirements_model.c: what a model must be. Values that no role depends on have rows of their
 * own, so the row of the roles judges the model with those replaced by good ones.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/requirements.h"

int tamis_require_model(const tamis_subject *s, tamis_requirement *out) {
    return tamis_found_text(out, NULL, s->model != NULL);
}

int tamis_require_model_size(const tamis_subject *s, tamis_requirement *out) {
    uint32_t size = s->model->struct_size;
    return tamis_found_number(out, size, size == sizeof *s->model);
}

int tamis_require_layers(const tamis_subject *s, tamis_requirement *out) {
    int32_t layers = s->model->num_layers;
    if (layers >= 1 && layers <= 65536 && s->model->compress_ratios == NULL) {
        return tamis_found_text(out, NULL, 0);
    }
    return tamis_found_number(out, layers, layers >= 1 && layers <= 65536);
}

int tamis_require_ratios(const tamis_subject *s, tamis_requirement *out) {
    for (int32_t i = 0; i < s->model->num_layers; i++) {
        int32_t ratio = s->model->compress_ratios[i];
        if (ratio < 0 || ratio > 2) {
            tamis_at_setting(out, "compress_ratios[%d]", i);
            return tamis_found_number(out, ratio, 0);
        }
    }
    return 1;
}

static int two_level(const tamis_subject *s) {
    return s->model->candidate_source_layer_id >= 0;
}

int tamis_require_two_level_keys(const tamis_subject *s, tamis_requirement *out) {
    const tamis_model *m = s->model;
    int32_t source = m->candidate_source_layer_id, blocks = m->candidate_topk_blocks;
    int32_t size = m->candidate_block_size;
    if (source >= 0 && blocks >= 1 && size >= 1) {
        return 1;
    }
    if (source == -1 && blocks == 0 && size == 0) {
        return 1;
    }
    if (source >= 0) {
        tamis_at_setting(out, blocks < 1 ? "candidate_topk_blocks" : "candidate_block_size");
        return tamis_found_number(out, blocks < 1 ? blocks : size, 0);
    }
    snprintf(out->found, sizeof out->found, "%d with candidate_topk_blocks %d and block_size %d",
             source, blocks, size);
    return 0;
}

int tamis_require_block_multiple(const tamis_subject *s, tamis_requirement *out) {
    int32_t size = s->model->candidate_block_size; /* 0 of a one-level model */
    return tamis_found_number(out, size, size % 8 == 0);
}

int tamis_require_block_supported(const tamis_subject *s, tamis_requirement *out) {
    int32_t size = s->model->candidate_block_size;
    return tamis_found_number(out, size, !two_level(s) || size == 8 || size == 16);
}

int tamis_require_topk_blocks(const tamis_subject *s, tamis_requirement *out) {
    int32_t blocks = s->model->candidate_topk_blocks;
    return tamis_found_number(out, blocks, !two_level(s) || blocks <= TAMIS_MAX_BLOCKS);
}

int tamis_require_topk(const tamis_subject *s, tamis_requirement *out) {
    int32_t topk = s->model->index_topk;
    return tamis_found_number(out, topk, topk >= 1 && topk <= TAMIS_MAX_TOPK);
}

/* The newest block may hold one visible position alone: the pool then has size - 1 fewer. */
int tamis_require_pool(const tamis_subject *s, tamis_requirement *out) {
    const tamis_model *m = s->model;
    int64_t size = m->candidate_block_size, blocks = m->candidate_topk_blocks;
    int64_t pool = blocks * size - (size - 1);
    snprintf(out->found, sizeof out->found, "%lld * %lld - %lld = %lld, index_topk %d",
             (long long)blocks, (long long)size, (long long)size - 1, (long long)pool,
             m->index_topk);
    return !two_level(s) || pool >= m->index_topk;
}

int tamis_require_heads(const tamis_subject *s, tamis_requirement *out) {
    int32_t heads = s->model->index_n_heads;
    return tamis_found_number(out, heads, heads >= 4 && heads <= TAMIS_MAX_HEADS && heads % 4 == 0);
}

int tamis_require_head_dim(const tamis_subject *s, tamis_requirement *out) {
    int32_t dim = s->model->index_head_dim;
    return tamis_found_number(out, dim, dim == 64 || dim == 128);
}

/* The nearest of the ids at or before a layer; -1: none. */
static int32_t nearest(const int32_t *ids, int32_t count, int32_t layer) {
    int32_t found = -1;
    for (int32_t i = 0; ids && i < count; i++) {
        found = ids[i] <= layer && ids[i] > found ? ids[i] : found;
    }
    return found;
}

/* Index source i where it is a consumer with a ratio, else -1. Lists that are no lists of layers
 * are left to the roles. */
static int32_t consumer(const tamis_model *m, int32_t i) {
    int32_t source = m->candidate_source_layer_id, layer = m->index_source_layer_ids[i];
    int consumes = source >= 0 && layer > source && layer < m->num_layers &&
                   nearest(m->kv_source_layer_ids, m->num_kv_sources, layer) == source;
    return consumes && m->compress_ratios[layer] != 0 ? layer : -1;
}

int tamis_require_consumer_ratio(const tamis_subject *s, tamis_requirement *out) {
    const tamis_model *m = s->model;
    for (int32_t i = 0; m->index_source_layer_ids && i < m->num_index_sources; i++) {
        int32_t layer = consumer(m, i), source = m->candidate_source_layer_id;
        if (layer >= 0 && m->compress_ratios[layer] != m->compress_ratios[source]) {
            tamis_at_setting(out, "compress_ratios[%d]", layer);
            snprintf(out->required, sizeof out->required,
                     "%d, the ratio of the candidate source %d", m->compress_ratios[source],
                     source);
            return tamis_found_number(out, m->compress_ratios[layer], 0);
        }
    }
    return 1;
}

/* Roles of the model with good values where other rows judge: memory holds roles, then ratios. */
static tamis_status judge_roles(const tamis_model *m, void *memory, tamis_error *error) {
    tamis_layer_role *roles = memory;
    int32_t *ratios = (int32_t *)(roles + m->num_layers);
    tamis_model model = *m;
    memcpy(ratios, m->compress_ratios, (size_t)m->num_layers * sizeof *ratios);
    for (int32_t i = 0; m->index_source_layer_ids && i < m->num_index_sources; i++) {
        if (consumer(m, i) >= 0) {
            ratios[consumer(m, i)] = ratios[m->candidate_source_layer_id];
        }
    }
    model.compress_ratios = ratios;
    model.index_n_heads = 32;
    model.index_head_dim = 128;
    model.index_topk = 512;
    if (m->candidate_source_layer_id >= 0) {
        model.candidate_topk_blocks = 2048;
        model.candidate_block_size = 8;
    }
    return tamis_model_roles(&model, roles, error);
}

int tamis_require_roles(const tamis_subject *s, tamis_requirement *out) {
    tamis_error error = {0};
    size_t layers = (size_t)s->model->num_layers;
    void *memory = malloc(layers * (sizeof(tamis_layer_role) + sizeof(int32_t)));
    if (memory == NULL) {
        return tamis_found_text(out, "no memory to derive them", 0);
    }
    int holds = judge_roles(s->model, memory, &error) == TAMIS_OK;
    free(memory);
    if (!holds && strncmp(error.argument, "layer ", 6) == 0) { /* no setting, but its owner's is */
        tamis_at_setting(out, "kv_source_layer_ids");
        snprintf(out->required, sizeof out->required, "for %s, %s", error.argument, error.required);
    } else if (!holds) {
        tamis_at_setting(out, "%s", error.argument);
        snprintf(out->required, sizeof out->required, "%s", error.required);
    }
    snprintf(out->found, sizeof out->found, "%s", error.found);
    return holds;
}
