/* SPDX-License-Identifier: MIT */
/*
 * plan_facts.c: what follows from a deployment.
 *
 * Index K of all owners lies in one pool of blocks: owners of one ratio in one block, a page each,
 * since a block of theirs stands for the same tokens; ratios take blocks of their own from the
 * pool. The requirements are checked with that layout's page stride, which is what would run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* ---- roles ----------------------------------------------------------------------------------- */

static int same_role(const tamis_layer_role *a, const tamis_layer_role *b) {
    return a->role == b->role && a->ratio == b->ratio && a->k_owner == b->k_owner &&
           a->source == b->source;
}

/* Requirements report a model without roles; its ranges stay NULL. */
static int find_ranges(const tamis_model *model, plan_facts *facts) {
    size_t layers = (size_t)model->num_layers;
    tamis_layer_role *roles = calloc(layers, sizeof *roles);
    plan_range *ranges = calloc(layers, sizeof *ranges);
    if (!roles || !ranges) {
        free(roles);
        free(ranges);
        return fail("no memory for the roles of %zu layers", layers);
    }
    if (tamis_model_roles(model, roles, NULL) != TAMIS_OK) {
        free(roles);
        free(ranges);
        return STATUS_GOOD;
    }
    int32_t count = 0;
    for (int32_t layer = 0; layer < model->num_layers; layer++) {
        if (count > 0 && same_role(&ranges[count - 1].role, &roles[layer]))
            ranges[count - 1].last = layer;
        else
            ranges[count++] = (plan_range){layer, layer, roles[layer]};
    }
    free(roles);
    facts->ranges = ranges;
    facts->range_count = count;
    return STATUS_GOOD;
}

/* ---- KV memory ------------------------------------------------------------------------------- */

static int64_t lcm(int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y != 0) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* What index-K pages are aligned to: their own rule and, where they share blocks, the main pages'.
 */
static int64_t index_align(const plan_inputs *in) {
    return lcm(in->options.page_align, in->main_align ? in->main_align : 1);
}

static tamis_status add_owner(const plan_inputs *in, int32_t ratio, tamis_kv_spec *specs,
                              int32_t *count, tamis_error *error) {
    tamis_kv_spec *spec = &specs[(*count)++];
    if (in->main_row_bytes) {
        tamis_kv_spec_default(spec);
        spec->group = ratio - 1;
        spec->states = in->options.page_size;
        spec->row_bytes = in->main_row_bytes;
        spec->page_alignment = in->main_align ? in->main_align : 1;
        spec = &specs[(*count)++];
    }
    tamis_kv_spec_default(spec);
    int sparse = in->settings.settings.indexer_sparse_logits != TAMIS_SPARSE_OFF;
    tamis_status status = tamis_kv_index_spec(in->options.page_size, in->model.model.index_head_dim,
                                              index_align(in), sparse, spec, error);
    spec->group = ratio - 1;
    return status;
}

/* The block of one ratio's owners or, with ratio 0, of all. */
static tamis_status lay_out(const plan_inputs *in, int32_t ratio, tamis_kv_spec *specs,
                            tamis_kv_layout *layout, tamis_error *error) {
    const tamis_model *m = &in->model.model;
    int32_t count = 0;
    for (int32_t i = 0; i < m->num_kv_sources; i++) {
        int32_t own = m->compress_ratios[m->kv_source_layer_ids[i]];
        if (ratio != 0 && own != ratio)
            continue;
        tamis_status status = add_owner(in, own, specs, &count, error);
        if (status != TAMIS_OK)
            return status;
    }
    tamis_kv_layout_default(layout);
    return tamis_kv_lay_out(specs, count, NULL, layout, error);
}

static tamis_status find_layouts(const plan_inputs *in, plan_kv *kv, tamis_error *error) {
    const tamis_model *m = &in->model.model;
    tamis_kv_layout of_ratio;
    tamis_kv_spec *specs = calloc(2 * (size_t)m->num_kv_sources + 1, sizeof *specs);
    if (!specs) {
        *error = (tamis_error){TAMIS_ERROR_MEMORY, "blocks", "memory", "none"};
        return TAMIS_ERROR_MEMORY;
    }
    tamis_status status = lay_out(in, 0, specs, &kv->layout, error);
    for (int32_t ratio = 1; status == TAMIS_OK && ratio <= 2; ratio++) {
        status = lay_out(in, ratio, specs, &of_ratio, error);
        kv->group[ratio - 1].bytes = of_ratio.bytes_unaligned;
    }
    free(specs);
    return status;
}

static void find_totals(const plan_inputs *in, plan_kv *kv) {
    const tamis_model *m = &in->model.model;
    int64_t page_size = in->options.page_size, halves = 0; /* blocks of 2 * page_size tokens */
    kv->index_row_bytes = tamis_k_row_bytes(m->index_head_dim);
    for (int32_t i = 0; i < m->num_kv_sources; i++) {
        int32_t ratio = m->compress_ratios[m->kv_source_layer_ids[i]];
        kv->group[ratio - 1].owners++;
        kv->index_bytes_per_token += (double)kv->index_row_bytes / ratio;
    }
    for (int32_t ratio = 1; ratio <= 2; ratio++)
        halves += kv->group[ratio - 1].owners > 0 ? 2 / ratio : 0;
    kv->bytes_per_token =
        (double)halves * (double)kv->layout.bytes_per_block / (2.0 * (double)page_size);
    int64_t align = index_align(in), bytes = page_size * kv->index_row_bytes;
    kv->index_page_padding = (align - bytes % align) % align;
    kv->index_page_bytes = bytes + kv->index_page_padding;
    kv->page_size_without_overhead = tamis_kv_states_without_overhead(
        page_size, kv->index_row_bytes, lcm(512, in->options.page_align));
    kv->blocks = kv->tokens = -1;
    if (in->memory >= 0) {
        kv->blocks = tamis_kv_blocks(&kv->layout, in->memory);
        kv->tokens = halves > 0 ? kv->blocks / halves * 2 * page_size : 0;
    }
}

/* Whether a layout can be tried: else the requirements say what is wrong. */
static int has_layout(const plan_inputs *in) {
    const tamis_indexer_options *o = &in->options;
    const tamis_model *m = &in->model.model;
    int good = o->page_size > 0 && o->page_align > 0 && tamis_k_row_bytes(m->index_head_dim) > 0;
    for (int32_t i = 0; i < m->num_kv_sources; i++) {
        int32_t ratio = m->compress_ratios[m->kv_source_layer_ids[i]];
        good = good && (ratio == 1 || ratio == 2);
    }
    return good;
}

/* ---- chunks and savings ---------------------------------------------------------------------- */

/* Positions that consumers score at most. */
static int64_t pool_of(const tamis_model *m) {
    return (int64_t)m->candidate_topk_blocks * m->candidate_block_size;
}

static void find_chunks(const plan_inputs *in, plan_chunk *chunks) {
    const tamis_model *m = &in->model.model;
    int64_t budget = (int64_t)in->settings.settings.prefill_budget_mb << 20;
    int32_t ratio = 2;
    for (int32_t i = 0; i < m->num_index_sources; i++)
        if (m->compress_ratios[m->index_source_layer_ids[i]] == 1)
            ratio = 1;
    for (int i = 0; i < PLAN_CHUNKS; i++) {
        plan_chunk *c = &chunks[i];
        c->context = INT64_C(4096) << i;
        c->positions = tamis_visible(c->context - 1, ratio);
        c->dense_rows = tamis_chunk_rows_dense(budget, c->positions);
        c->sparse_rows =
            pool_of(m) > 0 ? tamis_chunk_rows_sparse(budget, c->positions, pool_of(m)) : -1;
    }
}

static void find_savings(const plan_inputs *in, const plan_facts *facts, plan_saving *savings) {
    int64_t pool = pool_of(&in->model.model);
    for (int i = 0; i < PLAN_SAVINGS; i++) {
        plan_saving *s = &savings[i];
        *s = (plan_saving){.context = INT64_C(16384) << (2 * i)};
        for (int32_t r = 0; r < facts->range_count; r++) {
            const plan_range *range = &facts->ranges[r];
            int64_t layers = range->last - range->first + 1;
            int64_t visible = tamis_visible(s->context - 1, range->role.ratio);
            if (range->role.role == TAMIS_ROLE_NONE || range->role.role == TAMIS_ROLE_REUSE)
                continue;
            s->all_dense += layers * visible;
            if (range->role.role != TAMIS_ROLE_CONSUMER) {
                s->all_sparse += layers * visible;
                continue;
            }
            s->consumers_dense += layers * visible;
            s->consumers_sparse += layers * (visible < pool ? visible : pool);
        }
        s->all_sparse += s->consumers_sparse;
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int find_failures(const plan_inputs *in, plan_facts *facts) {
    int32_t most = tamis_requirement_count();
    facts->failures = calloc((size_t)most + 2, sizeof *facts->failures); /* a device's beside */
    if (!facts->failures)
        return fail("no memory for %d requirements", most);
    facts->failed = tamis_indexer_supported(&in->options, facts->failures, most);
    if (in->cuda)
        plan_find_device(in, facts);
    return STATUS_GOOD;
}

/* What one of several ranks takes. */
static int64_t rank_bytes(const plan_inputs *in, const tamis_indexer *indexer, tamis_error *error) {
    tamis_shards_options options;
    tamis_transport transport;
    tamis_local_group *group;
    if (tamis_local_group_create(in->options.context_parallel, 0, &group, error) != TAMIS_OK)
        return -1;
    tamis_local_group_transport(group, 0, &transport, error);
    tamis_shards_options_default(&options);
    options.limits = &in->limits;
    options.transport = &transport;
    int64_t bytes = tamis_shards_bytes(indexer, &options, error);
    tamis_local_group_destroy(group);
    return bytes;
}

static int find_workspace(const plan_inputs *in, plan_facts *facts) {
    tamis_error error = {0};
    tamis_indexer *indexer;
    if (tamis_indexer_create(&in->options, &indexer, &error) != TAMIS_OK)
        return fail_error(in->config, &error);
    int one = in->options.context_parallel == 1;
    facts->workspace_bytes =
        one ? tamis_plan_bytes(indexer, &in->limits, &error) : rank_bytes(in, indexer, &error);
    facts->cuda_bytes = one ? tamis_cuda_plan_bytes(indexer, &in->limits, &error) : -1;
    snprintf(facts->tier, sizeof facts->tier, "%s", tamis_indexer_tier(indexer));
    tamis_indexer_destroy(indexer);
    int found = facts->workspace_bytes >= 0 && (facts->cuda_bytes >= 0 || !one);
    return found ? STATUS_GOOD : fail_error(in->config, &error);
}

int plan_find(plan_inputs *in, plan_facts *facts) {
    tamis_error error = {0};
    tamis_status laid_out = TAMIS_OK;
    int status = find_ranges(&in->model.model, facts);
    if (status == STATUS_GOOD && has_layout(in)) {
        laid_out = find_layouts(in, &facts->kv, &error);
        if (laid_out == TAMIS_OK && in->options.page_stride == 0)
            in->options.page_stride = facts->kv.layout.bytes_per_block;
    }
    if (status == STATUS_GOOD)
        status = find_failures(in, facts);
    if (status != STATUS_GOOD || facts->failed)
        return status;
    if (laid_out != TAMIS_OK)
        return fail_error("blocks", &error);
    status = find_workspace(in, facts);
    facts->max_rows = tamis_plan_max_rows(&in->limits);
    facts->page_stride = in->options.page_stride;
    find_totals(in, &facts->kv);
    find_chunks(in, facts->chunks);
    find_savings(in, facts, facts->savings);
    if (status == STATUS_GOOD && in->cuda)
        plan_fit_device(in, facts);
    return status;
}

void plan_free(plan_facts *facts) {
    free(facts->failures);
    free(facts->ranges);
}
