/* SPDX-License-Identifier: MIT */
/* plan_report.c: a plan as text and as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan.h"

static const char *sparse_word(int32_t sparse) {
    return sparse == TAMIS_SPARSE_AUTO ? "auto" : sparse == TAMIS_SPARSE_ON ? "true" : "false";
}

static const char *layers_of(const plan_range *range) {
    static char text[32];
    snprintf(text, sizeof text, range->first == range->last ? "%d" : "%d-%d", range->first,
             range->last);
    return text;
}

static double percent(int64_t ppm) {
    return (double)ppm / 1e4;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void text_model(const plan_inputs *in, const plan_facts *facts) {
    const tamis_model *m = &in->model.model;
    const tamis_settings *s = &in->settings.settings;
    printf("%s: %d layers, %d x %d, top %d", in->config, m->num_layers, m->index_n_heads,
           m->index_head_dim, m->index_topk);
    if (m->candidate_source_layer_id >= 0)
        printf(" of %s blocks of %d\n", grouped(m->candidate_topk_blocks), m->candidate_block_size);
    else
        printf(", one level\n");
    printf("%s: indexer_kv_dtype %s, indexer_sparse_logits %s, topk_backend %s, prefill_budget_mb "
           "%d, numerics %s\n",
           in->attention ? in->attention : "default settings", s->indexer_kv_dtype,
           sparse_word(s->indexer_sparse_logits), s->topk_backend, s->prefill_budget_mb,
           s->numerics);
    printf("requirements: all %d are met; tier %s\n\n", tamis_requirement_count(), facts->tier);
}

static void text_roles(const plan_facts *facts) {
    printf("  %-8s %-9s %5s %6s %13s\n", "layers", "role", "ratio", "K of", "selection of");
    for (int32_t i = 0; i < facts->range_count; i++) {
        const plan_range *range = &facts->ranges[i];
        const tamis_layer_role *role = &range->role;
        char owner[16] = "-", source[16] = "-";
        if (role->k_owner >= 0)
            snprintf(owner, sizeof owner, "%d", role->k_owner);
        if (role->source >= 0)
            snprintf(source, sizeof source, "%d", role->source);
        printf("  %-8s %-9s %5d %6s %13s\n", layers_of(range), tamis_role_name(role->role),
               role->ratio, owner, role->role == TAMIS_ROLE_CONSUMER ? "its own" : source);
    }
}

static void text_advice(const plan_kv *kv) {
    if (kv->layout.overhead_ppm == 0 && kv->index_page_padding == 0)
        return;
    printf("  for 0%%            index K in a pool of its own, in pages of %s positions\n",
           grouped(kv->page_size_without_overhead));
}

static void text_kv(const plan_inputs *in, const plan_facts *facts) {
    const plan_kv *kv = &facts->kv;
    printf("\nKV memory: pages of %s positions", grouped(in->options.page_size));
    if (in->main_row_bytes)
        printf(", with main rows of %s bytes", grouped(in->main_row_bytes));
    printf("\n");
    printf("  index page        %s bytes, %s of them padding\n", grouped(kv->index_page_bytes),
           grouped(kv->index_page_padding));
    for (int32_t ratio = 2; ratio >= 1; ratio--)
        if (kv->group[ratio - 1].owners)
            printf("  ratio %d           K owners: %d; %s bytes a block for %s tokens\n", ratio,
                   kv->group[ratio - 1].owners, grouped(kv->group[ratio - 1].bytes),
                   grouped((int64_t)in->options.page_size * ratio));
    printf("  bytes per block   %s: %s aligned to %s, alignment overhead +%.3f%%\n",
           grouped(kv->layout.bytes_per_block), grouped(kv->layout.bytes_unaligned),
           grouped(kv->layout.alignment), percent(kv->layout.overhead_ppm));
    text_advice(kv);
    printf("  bytes per token   %.6g of index K; %.6g of whole blocks%s\n",
           kv->index_bytes_per_token, kv->bytes_per_token,
           kv->group[0].owners && kv->group[1].owners
               ? ", of one size for both ratios: one is part empty"
               : "");
    printf("  page stride       %s bytes\n", grouped(facts->page_stride));
    if (in->memory >= 0)
        printf("  blocks            %s in %s bytes: %s tokens\n", grouped(kv->blocks),
               grouped(in->memory), grouped(kv->tokens));
}

/* What a rank sends for a row: a source's candidates for the blocks and for its own selection. */
static void text_ranks(const plan_inputs *in) {
    const tamis_model *m = &in->model.model;
    int64_t selection = 4 * (1 + 2 * (int64_t)m->index_topk);
    printf("  context parallel degree %d: supported; the bytes are those of one rank, on its "
           "processors\n",
           in->options.context_parallel);
    printf("  a rank sends for a row at most %s bytes", grouped(selection));
    if (m->candidate_source_layer_id >= 0)
        printf(", at the source %s",
               grouped(selection + 4 * (2 * (int64_t)m->candidate_topk_blocks - 1)));
    printf("\n");
}

static void text_workspace(const plan_inputs *in, const plan_facts *facts) {
    const tamis_plan_limits *l = &in->limits;
    printf("\nworkspace: %s bytes for %s rows\n", grouped(facts->workspace_bytes),
           grouped(facts->max_rows));
    printf("  the largest of %s requests * (1 + %d drafts), %s tokens, %s rows of a graph; %d "
           "threads, contexts to %s\n",
           grouped(l->max_requests), l->draft_tokens, grouped(l->max_batched_tokens),
           grouped(l->largest_graph), l->threads, grouped(l->max_context));
    if (in->options.context_parallel > 1) {
        text_ranks(in);
        return;
    }
    printf("  on a GPU instead: %s bytes of device memory", grouped(facts->cuda_bytes));
    if (in->cuda)
        printf("; device 0, %s, runs it", facts->device.name);
    printf("\n");
}

static void text_chunks(const plan_inputs *in, const plan_facts *facts) {
    printf("\nrows of a prefill chunk whose logits take %d MiB\n",
           in->settings.settings.prefill_budget_mb);
    printf("  %10s %10s %8s %8s\n", "context", "positions", "dense", "sparse");
    for (int i = 0; i < PLAN_CHUNKS; i++) {
        const plan_chunk *c = &facts->chunks[i];
        printf("  %10s %10s %8s %8s\n", grouped(c->context), grouped(c->positions),
               grouped(c->dense_rows), c->sparse_rows < 0 ? "-" : grouped(c->sparse_rows));
    }
}

static double share(int64_t dense, int64_t sparse) {
    return dense > 0 ? 100.0 * (1.0 - (double)sparse / (double)dense) : 0;
}

static void text_savings(const plan_inputs *in, const plan_facts *facts) {
    printf("\npositions scored for the newest token: by arithmetic, not measured\n");
    if (in->settings.settings.indexer_sparse_logits == TAMIS_SPARSE_OFF)
        printf("  indexer_sparse_logits is false: consumers score as many as `dense' says\n");
    printf("  %10s %33s %33s\n", "", "consumers", "all layers");
    printf("  %10s %12s %12s %7s %12s %12s %7s\n", "context", "dense", "sparse", "saved", "dense",
           "sparse", "saved");
    for (int i = 0; i < PLAN_SAVINGS; i++) {
        const plan_saving *s = &facts->savings[i];
        printf("  %10s %12s %12s %6.1f%% %12s %12s %6.1f%%\n", grouped(s->context),
               grouped(s->consumers_dense), grouped(s->consumers_sparse),
               share(s->consumers_dense, s->consumers_sparse), grouped(s->all_dense),
               grouped(s->all_sparse), share(s->all_dense, s->all_sparse));
    }
}

void plan_text(const plan_inputs *in, const plan_facts *facts) {
    text_model(in, facts);
    text_roles(facts);
    text_kv(in, facts);
    text_workspace(in, facts);
    text_chunks(in, facts);
    text_savings(in, facts);
}

void plan_failures(const plan_inputs *in, const plan_facts *facts) {
    for (int32_t i = 0; i < facts->failed; i++) {
        char text[512];
        tamis_requirement_text(&facts->failures[i], text, sizeof text);
        fail("%s: %s", in->config, text);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *json_failures(const plan_facts *facts) {
    json_t *all = json_array();
    for (int32_t i = 0; i < facts->failed; i++) {
        const tamis_requirement *f = &facts->failures[i];
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:o, s:s}", "id", f->id, "setting",
                                             f->setting, "required", f->required, "found",
                                             json_text(f->found), "way_out", f->way_out));
    }
    return all;
}

static json_t *id_or_null(int32_t id) {
    return id < 0 ? json_null() : json_integer(id);
}

static json_t *json_roles(const plan_facts *facts) {
    json_t *all = json_array();
    for (int32_t i = 0; i < facts->range_count; i++) {
        const plan_range *range = &facts->ranges[i];
        json_array_append_new(
            all, json_pack("{s:i, s:i, s:s, s:i, s:o, s:o}", "first", range->first, "last",
                           range->last, "role", tamis_role_name(range->role.role), "ratio",
                           range->role.ratio, "k_owner", id_or_null(range->role.k_owner), "source",
                           id_or_null(range->role.source)));
    }
    return all;
}

static json_t *json_settings(const tamis_settings *s) {
    json_t *sparse = s->indexer_sparse_logits == TAMIS_SPARSE_AUTO
                         ? json_string("auto")
                         : json_boolean(s->indexer_sparse_logits);
    return json_pack("{s:s, s:o, s:s, s:i, s:s}", "indexer_kv_dtype", s->indexer_kv_dtype,
                     "indexer_sparse_logits", sparse, "topk_backend", s->topk_backend,
                     "prefill_budget_mb", s->prefill_budget_mb, "numerics", s->numerics);
}

static json_t *json_kv(const plan_inputs *in, const plan_facts *facts) {
    const plan_kv *kv = &facts->kv;
    json_t *groups = json_array();
    for (int32_t ratio = 1; ratio <= 2; ratio++)
        if (kv->group[ratio - 1].owners)
            json_array_append_new(groups,
                                  json_pack("{s:i, s:i, s:I, s:I}", "ratio", ratio, "owners",
                                            kv->group[ratio - 1].owners, "bytes",
                                            (json_int_t)kv->group[ratio - 1].bytes, "tokens",
                                            (json_int_t)in->options.page_size * ratio));
    json_t *out = json_pack(
        "{s:i, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:f, s:I, s:f, s:f}", "page_size",
        in->options.page_size, "index_page_bytes", (json_int_t)kv->index_page_bytes,
        "index_page_padding", (json_int_t)kv->index_page_padding, "page_stride",
        (json_int_t)facts->page_stride, "groups", groups, "index_row_bytes",
        (json_int_t)kv->index_row_bytes, "bytes_unaligned", (json_int_t)kv->layout.bytes_unaligned,
        "alignment", (json_int_t)kv->layout.alignment, "bytes_per_block",
        (json_int_t)kv->layout.bytes_per_block, "overhead_percent",
        percent(kv->layout.overhead_ppm), "page_size_without_overhead",
        (json_int_t)kv->page_size_without_overhead, "index_bytes_per_token",
        kv->index_bytes_per_token, "bytes_per_token", kv->bytes_per_token);
    if (in->memory >= 0) {
        json_object_set_new(out, "memory", json_integer(in->memory));
        json_object_set_new(out, "blocks", json_integer(kv->blocks));
        json_object_set_new(out, "tokens", json_integer(kv->tokens));
    }
    return out;
}

static json_t *json_chunks(const plan_facts *facts) {
    json_t *all = json_array();
    for (int i = 0; i < PLAN_CHUNKS; i++) {
        const plan_chunk *c = &facts->chunks[i];
        json_array_append_new(
            all, json_pack("{s:I, s:I, s:I, s:o}", "context", (json_int_t)c->context, "positions",
                           (json_int_t)c->positions, "dense_rows", (json_int_t)c->dense_rows,
                           "sparse_rows",
                           c->sparse_rows < 0 ? json_null() : json_integer(c->sparse_rows)));
    }
    return all;
}

static json_t *json_savings(const plan_facts *facts) {
    json_t *all = json_array();
    for (int i = 0; i < PLAN_SAVINGS; i++) {
        const plan_saving *s = &facts->savings[i];
        json_array_append_new(
            all, json_pack("{s:I, s:I, s:I, s:I, s:I}", "context", (json_int_t)s->context,
                           "consumers_dense", (json_int_t)s->consumers_dense, "consumers_sparse",
                           (json_int_t)s->consumers_sparse, "all_dense", (json_int_t)s->all_dense,
                           "all_sparse", (json_int_t)s->all_sparse));
    }
    return all;
}

void plan_json(const plan_inputs *in, const plan_facts *facts) {
    json_t *out =
        json_pack("{s:o, s:o, s:b, s:o, s:o, s:o}", "config", json_text(in->config), "attention",
                  json_text(in->attention), "supported", facts->failed == 0, "failures",
                  json_failures(facts), "settings", json_settings(&in->settings.settings), "roles",
                  facts->ranges ? json_roles(facts) : json_null());
    if (!facts->failed)
        json_object_update_new(
            out, json_pack("{s:s, s:I, s:I, s:o, s:i, s:s?, s:o, s:o, s:o}", "tier", facts->tier,
                           "max_rows", (json_int_t)facts->max_rows, "workspace_bytes",
                           (json_int_t)facts->workspace_bytes, "cuda_plan_bytes",
                           facts->cuda_bytes < 0 ? json_null() : json_integer(facts->cuda_bytes),
                           "context_parallel", in->options.context_parallel, "device",
                           in->cuda ? facts->device.name : NULL, "kv", json_kv(in, facts), "chunks",
                           json_chunks(facts), "positions_scored", json_savings(facts)));
    print_json(out);
}
