/* SPDX-License-Identifier: MIT */
/* scene.h: options that an indexer can be created with, in memory that a test may spoil. */
#ifndef TAMIS_TESTS_CONFIG_SCENE_H
#define TAMIS_TESTS_CONFIG_SCENE_H

#include <string.h>

#include <tamis/tamis.h>

typedef struct scene {
    tamis_indexer_options options;
    tamis_model model;
    tamis_settings settings;
    tamis_plan_limits limits;
    int32_t ratios[43], kv[4], index[8];
} scene;

/* The released Flash values of spec 1, pages of 64 slots, and limits of a small server. */
static inline void scene_make(scene *s) {
    static const int32_t kv[4] = {2, 8, 14, 20}, index[8] = {2, 8, 14, 20, 24, 28, 32, 36};
    memset(s, 0, sizeof *s);
    for (int32_t i = 2; i < 40; i++) {
        s->ratios[i] = i < 20 ? 2 : 1;
    }
    memcpy(s->kv, kv, sizeof kv);
    memcpy(s->index, index, sizeof index);
    s->model = (tamis_model){.struct_size = sizeof s->model,
                             .num_layers = 43,
                             .compress_ratios = s->ratios,
                             .kv_source_layer_ids = s->kv,
                             .index_source_layer_ids = s->index,
                             .num_kv_sources = 4,
                             .num_index_sources = 8,
                             .candidate_source_layer_id = 20,
                             .candidate_topk_blocks = 2048,
                             .candidate_block_size = 8,
                             .index_n_heads = 32,
                             .index_head_dim = 128,
                             .index_topk = 512};
    tamis_settings_default(&s->settings);
    tamis_plan_limits_default(&s->limits);
    s->limits.max_requests = 16;
    s->limits.max_batched_tokens = 512;
    s->limits.draft_tokens = 3;
    s->limits.max_context = 131072;
    tamis_indexer_options_default(&s->options);
    s->options.model = &s->model;
    s->options.settings = &s->settings;
    s->options.limits = &s->limits;
    s->options.page_size = 64;
}

static inline void scene_one_level(scene *s) {
    s->model.candidate_source_layer_id = -1;
    s->model.candidate_topk_blocks = 0;
    s->model.candidate_block_size = 0;
}

#endif
