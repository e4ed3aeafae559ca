/* SPDX-License-Identifier: MIT */
/* replay_args.c: a flight's raw tensors, and arguments of the public calls over its arrays,
 * wherever those lie. */
#include <stdlib.h>

#include "replay.h"

int replay_queries_make(replay_arrays *a, const replay_script *s) {
    size_t tokens = (size_t)s->max_tokens, heads = (size_t)s->heads, dim = (size_t)s->dim;
    a->x = malloc(tokens * dim * sizeof *a->x);
    a->q = malloc(tokens * heads * dim * sizeof *a->q);
    a->w = malloc(tokens * heads * sizeof *a->w);
    a->codes = malloc(tokens * heads * dim / 2);
    a->scales = malloc(tokens * heads * dim / 32);
    a->weights = malloc(tokens * heads * sizeof *a->weights);
    return a->x && a->q && a->w && a->codes && a->scales && a->weights;
}

void replay_queries_free(replay_arrays *a) {
    free(a->x);
    free(a->q);
    free(a->w);
    free(a->codes);
    free(a->scales);
    free(a->weights);
}

void replay_raw_slice(const replay_setup *setup, const replay_flight *f, const replay_arrays *a,
                      int32_t layer, int keys, int32_t ith, int32_t nth) {
    int64_t dim = setup->script->dim, heads = setup->script->heads;
    for (int64_t t = ith * f->tokens / nth; t < (ith + 1) * f->tokens / nth; t++) {
        if (keys)
            replay_inputs_k(setup->inputs, layer, f->k_token[t], a->x + t * dim);
        else
            replay_inputs_q(setup->inputs, layer, f->q_token[t], a->q + t * heads * dim,
                            a->w + t * heads);
    }
}

tamis_k_cache replay_cache(const replay_setup *setup, const replay_arrays *a, int32_t owner) {
    return (tamis_k_cache){.layout = TAMIS_K_MXFP4_PAGE,
                           .head_dim = setup->script->dim,
                           .page_size = setup->page_size,
                           .size = setup->pages[setup->script->ratio[owner] - 1],
                           .stride = setup->page_stride,
                           .codes = a->k[owner]};
}

static tamis_rope rope_of(const replay_setup *setup, const replay_arrays *a) {
    return (tamis_rope){a->rope, TAMIS_F32, 0, setup->script->max_context, 64};
}

void replay_insert_args(const replay_setup *setup, const replay_arrays *a, int32_t layer,
                        int32_t told, tamis_k_insert_args *args) {
    tamis_k_insert_args_default(args);
    args->ratio = told;
    args->norm_weight_type = TAMIS_BF16;
    args->tokens = a->tokens;
    args->x = a->x;
    args->x_stride = setup->script->dim;
    args->positions = a->position;
    args->slots = a->slot[setup->script->ratio[layer] - 1];
    args->norm_weight = a->norm;
    args->eps = a->eps;
    args->rope = rope_of(setup, a);
    args->k = replay_cache(setup, a, layer);
}

void replay_prepare_args(const replay_setup *setup, const replay_arrays *a,
                         tamis_q_prepare_args *args) {
    int64_t heads = setup->script->heads, dim = setup->script->dim;
    tamis_q_prepare_args_default(args);
    args->heads = (int32_t)heads;
    args->head_dim = (int32_t)dim;
    args->weights_in_type = TAMIS_BF16;
    args->weights_out_type = TAMIS_F32;
    args->tokens = a->tokens;
    args->q = a->q;
    args->q_token_stride = heads * dim;
    args->q_head_stride = dim;
    args->positions = a->position;
    args->rope = rope_of(setup, a);
    args->weights_in = a->w;
    args->weights_in_stride = args->weights_out_stride = heads;
    args->codes = a->codes;
    args->scales = a->scales;
    args->weights_out = a->weights;
    args->codes_row_stride = heads * dim / 2;
    args->codes_head_stride = dim / 2;
    args->scales_row_stride = heads * dim / 32;
    args->scales_head_stride = dim / 32;
}

void replay_layer_args(const replay_setup *setup, const replay_arrays *a, int32_t layer,
                       tamis_layer_args *args) {
    const replay_script *s = setup->script;
    const replay_outcome *o = &a->out[layer];
    int64_t heads = s->heads, dim = s->dim;
    tamis_layer_args_default(args);
    args->layer = layer;
    args->k = replay_cache(setup, a, setup->roles[layer].k_owner);
    args->query = (tamis_query){.heads = s->heads,
                                .head_dim = s->dim,
                                .weights_type = TAMIS_F32,
                                .codes = a->codes,
                                .scales = a->scales,
                                .weights = a->weights,
                                .codes_row_stride = heads * dim / 2,
                                .codes_head_stride = dim / 2,
                                .scales_row_stride = heads * dim / 32,
                                .scales_head_stride = dim / 32,
                                .weights_row_stride = heads};
    args->selection = (tamis_selection){.topk = s->topk,
                                        .positions = o->positions,
                                        .positions_stride = s->topk,
                                        .slots = o->slots,
                                        .slots_stride = s->topk,
                                        .scores = o->scores,
                                        .scores_stride = s->topk,
                                        .counts = o->counts};
    args->blocks = o->blocks;
    args->blocks_stride = s->blocks;
}

void replay_gather_args(const replay_setup *setup, const replay_arrays *a, int32_t layer,
                        const int32_t *table, const int32_t *end, const int64_t *start, int64_t n,
                        tamis_k_gather_args *args) {
    tamis_k_gather_args_default(args);
    args->k = replay_cache(setup, a, layer);
    args->rows = (tamis_rows){.count = 1,
                              .ke = end,
                              .page_table = table,
                              .page_table_stride = setup->pages_each,
                              .page_table_width = setup->pages_each,
                              .requests = 1};
    args->start = start;
    args->size = n;
    args->codes_stride = setup->script->dim / 2;
    args->scales_stride = setup->script->dim / 32;
}

int32_t replay_layer_of(const replay_setup *setup, int32_t role) {
    for (int32_t i = 0; i < setup->script->layers; i++)
        if (setup->roles[i].role == role)
            return i;
    return -1;
}

void replay_mistake_k(const replay_setup *setup, int32_t mistake, tamis_k_cache *k) {
    int64_t bytes = k->size * k->stride, row = tamis_k_row_bytes(setup->script->dim);
    if (mistake == MISTAKE_LAYOUT)
        *k = (tamis_k_cache){.layout = TAMIS_K_MXFP4_ROW,
                             .head_dim = k->head_dim,
                             .size = bytes / row,
                             .stride = row,
                             .codes = k->codes};
    if (mistake == MISTAKE_PAGE_SIZE) {
        k->page_size *= 2;
        k->stride = tamis_k_page_stride(k->page_size, k->head_dim, 16);
        k->size = bytes / k->stride;
    }
}
