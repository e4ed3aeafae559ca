/* SPDX-License-Identifier: MIT */
/* indexer.c: creating an indexer: every requirement first, then copies of what it needs. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "indexer/indexer.h"
#include "kernels/tier.h"

void tamis_indexer_options_default(tamis_indexer_options *options) {
    memset(options, 0, sizeof *options);
    options->struct_size = (uint32_t)sizeof *options;
    options->k_layout = TAMIS_K_MXFP4_PAGE;
    options->page_align = 16;
    options->context_parallel = 1;
    options->decode_parallel = 1;
}

/* An empty list may be NULL. */
static void copy_ids(int32_t *to, const int32_t *from, size_t count) {
    for (size_t i = 0; i < count; i++) {
        to[i] = from[i];
    }
}

/* One allocation holds the arrays that the model points to. */
static int copy_model(tamis_indexer *indexer, const tamis_model *model) {
    size_t layers = (size_t)model->num_layers, kv = (size_t)model->num_kv_sources,
           index = (size_t)model->num_index_sources;
    int32_t *ids = malloc((layers + kv + index) * sizeof *ids);
    indexer->roles = malloc(layers * sizeof *indexer->roles);
    indexer->model = *model;
    indexer->model.compress_ratios = ids;
    if (ids == NULL || indexer->roles == NULL) {
        return 0;
    }
    copy_ids(ids, model->compress_ratios, layers);
    copy_ids(ids + layers, model->kv_source_layer_ids, kv);
    copy_ids(ids + layers + kv, model->index_source_layer_ids, index);
    indexer->model.kv_source_layer_ids = ids + layers;
    indexer->model.index_source_layer_ids = ids + layers + kv;
    return 1;
}

static void fill_backend(tamis_backend *backend, const char *tier, const char *topk_backend) {
    tamis_kernels topk;
    backend->tier = tamis_tier_find(tier);
    tamis_kernels_fill(&backend->kernels, backend->tier);
    if (strcmp(topk_backend, "auto") != 0) {
        tamis_kernels_fill(&topk, tamis_tier_find(topk_backend));
        backend->kernels.topk = topk.topk;
    }
}

tamis_status tamis_indexer_create(const tamis_indexer_options *options, tamis_indexer **out,
                                  tamis_error *error) {
    tamis_requirement failed;
    TAMIS_NEED(out != NULL, TAMIS_ERROR_ARGUMENT, "indexer", "a place for the pointer", 0);
    *out = NULL;
    if (tamis_indexer_supported(options, &failed, 1) > 0) {
        return tamis_fail(error, TAMIS_ERROR_REQUIREMENT, failed.setting, failed.required, "%s",
                          failed.found);
    }
    tamis_indexer *indexer = calloc(1, sizeof *indexer);
    if (indexer == NULL || !copy_model(indexer, options->model)) {
        tamis_indexer_destroy(indexer);
        return tamis_fail(error, TAMIS_ERROR_MEMORY, "indexer", "memory", "none");
    }
    tamis_model_roles(&indexer->model, indexer->roles, NULL);
    fill_backend(&indexer->backend, options->tier, options->settings->topk_backend);
    indexer->sparse_logits = options->settings->indexer_sparse_logits;
    indexer->numerics = strcmp(options->settings->numerics, "bf16") == 0 ? TAMIS_NUMERICS_BF16
                                                                         : TAMIS_NUMERICS_EXACT;
    indexer->k_layout = options->k_layout;
    indexer->context_parallel = options->context_parallel;
    if (options->k_layout == TAMIS_K_MXFP4_PAGE) {
        indexer->page_size = options->page_size;
        indexer->page_stride = options->page_stride;
        if (options->page_stride == 0) {
            indexer->page_stride = tamis_k_page_stride(
                options->page_size, options->model->index_head_dim, options->page_align);
        }
    }
    *out = indexer;
    return TAMIS_OK;
}

void tamis_indexer_destroy(tamis_indexer *indexer) {
    if (indexer != NULL) {
        free((void *)(uintptr_t)indexer->model.compress_ratios);
        free(indexer->roles);
        free(indexer);
    }
}

const tamis_layer_role *tamis_indexer_role(const tamis_indexer *indexer, int32_t layer) {
    int known = indexer && layer >= 0 && layer < indexer->model.num_layers;
    return known ? &indexer->roles[layer] : NULL;
}

const char *tamis_indexer_tier(const tamis_indexer *indexer) {
    return tamis_tier_word(indexer->backend.tier);
}
