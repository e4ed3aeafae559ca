/* SPDX-License-Identifier: MIT */
/* requirements_run.c: what the cache, the settings, the limits and the machine must be. */
#include <stdio.h>
#include <string.h>

#include <tamis/cache.h>
#include <tamis/stages.h>

#include "config/requirements.h"
#include "plan/plan.h"

int tamis_require_options(const tamis_subject *s, tamis_requirement *out) {
    if (s->options == NULL) {
        return tamis_found_text(out, NULL, 0);
    }
    uint32_t size = s->options->struct_size;
    return tamis_found_number(out, size, size == sizeof *s->options);
}

int tamis_require_settings(const tamis_subject *s, tamis_requirement *out) {
    return tamis_found_text(out, NULL, s->settings != NULL);
}

int tamis_require_settings_size(const tamis_subject *s, tamis_requirement *out) {
    uint32_t size = s->settings->struct_size;
    if (size == sizeof *s->settings && s->settings->reserved != 0) {
        tamis_at_setting(out, "settings.reserved");
        return tamis_found_number(out, s->settings->reserved, 0);
    }
    return tamis_found_number(out, size, size == sizeof *s->settings);
}

/* ---- index K ------------------------------------------------------------------------------- */

static int is_one_of(const char *word, const char *const *words, size_t count) {
    for (size_t i = 0; word && i < count; i++) {
        if (strcmp(word, words[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

int tamis_require_kv_dtype_known(const tamis_subject *s, tamis_requirement *out) {
    static const char *const known[] = {"mxfp4", "fp8", "f32", "bf16"};
    const char *dtype = s->settings->indexer_kv_dtype;
    return tamis_found_text(out, dtype, is_one_of(dtype, known, sizeof known / sizeof *known));
}

int tamis_require_kv_dtype_supported(const tamis_subject *s, tamis_requirement *out) {
    const char *dtype = s->settings->indexer_kv_dtype;
    return tamis_found_text(out, dtype, strcmp(dtype, "mxfp4") == 0);
}

int tamis_require_layout(const tamis_subject *s, tamis_requirement *out) {
    int32_t layout = s->options->k_layout;
    return tamis_found_number(out, layout,
                              layout >= TAMIS_K_MXFP4_PAGE && layout <= TAMIS_K_MXFP4_ROW);
}

static int paged(const tamis_subject *s) {
    return s->options->k_layout == TAMIS_K_MXFP4_PAGE;
}

int tamis_require_pages_unused(const tamis_subject *s, tamis_requirement *out) {
    int32_t size = s->options->page_size;
    int64_t stride = s->options->page_stride;
    if (size == 0) {
        tamis_at_setting(out, "page_stride");
    }
    return tamis_found_number(out, size ? size : stride, paged(s) || (size == 0 && stride == 0));
}

int tamis_require_page_size(const tamis_subject *s, tamis_requirement *out) {
    int32_t size = s->options->page_size;
    return tamis_found_number(out, size, !paged(s) || (size >= 8 && size % 8 == 0));
}

int tamis_require_page_block(const tamis_subject *s, tamis_requirement *out) {
    int32_t size = s->options->page_size, block = s->model->candidate_block_size;
    if (block == 0) { /* one-level */
        return 1;
    }
    snprintf(out->required, sizeof out->required, "a multiple of candidate_block_size %d", block);
    return tamis_found_number(out, size, size % block == 0);
}

int tamis_require_page_align(const tamis_subject *s, tamis_requirement *out) {
    int32_t align = s->options->page_align;
    return tamis_found_number(out, align, align >= 16 && (align & (align - 1)) == 0);
}

int tamis_require_page_stride(const tamis_subject *s, tamis_requirement *out) {
    int64_t stride = s->options->page_stride;
    int64_t least = s->options->page_size * tamis_k_row_bytes(s->model->index_head_dim);
    snprintf(out->required, sizeof out->required, "0 or at least %lld bytes, a page's",
             (long long)least);
    return tamis_found_number(out, stride, !paged(s) || stride == 0 || stride >= least);
}

int tamis_require_page_stride_multiple(const tamis_subject *s, tamis_requirement *out) {
    int64_t stride = s->options->page_stride;
    return tamis_found_number(out, stride, !paged(s) || stride % 16 == 0);
}

int tamis_require_page_stride_align(const tamis_subject *s, tamis_requirement *out) {
    int64_t stride = s->options->page_stride;
    int32_t align = s->options->page_align;
    snprintf(out->required, sizeof out->required, "a multiple of page_align %d", align);
    return tamis_found_number(out, stride, !paged(s) || stride % align == 0);
}

/* ---- how to run ---------------------------------------------------------------------------- */

int tamis_require_sparse_logits(const tamis_subject *s, tamis_requirement *out) {
    int32_t sparse = s->settings->indexer_sparse_logits;
    return tamis_found_number(out, sparse,
                              sparse >= TAMIS_SPARSE_OFF && sparse <= TAMIS_SPARSE_AUTO);
}

int tamis_require_prefill_budget(const tamis_subject *s, tamis_requirement *out) {
    int32_t budget = s->settings->prefill_budget_mb;
    return tamis_found_number(out, budget, budget >= 1);
}

int tamis_require_numerics_known(const tamis_subject *s, tamis_requirement *out) {
    static const char *const known[] = {"exact", "bf16", "dg_bf16", "ref_bf16"};
    const char *numerics = s->settings->numerics;
    return tamis_found_text(out, numerics,
                            is_one_of(numerics, known, sizeof known / sizeof *known));
}

int tamis_require_numerics_serving(const tamis_subject *s, tamis_requirement *out) {
    static const char *const serving[] = {"exact", "bf16"};
    const char *numerics = s->settings->numerics;
    return tamis_found_text(out, numerics,
                            is_one_of(numerics, serving, sizeof serving / sizeof *serving));
}

/* Whether a name is auto or a tier of this build; `required` lists them. */
static int tier_known(const char *name, tamis_requirement *out) {
    int known = name && strcmp(name, "auto") == 0;
    const char *tier;
    snprintf(out->required, sizeof out->required, "auto");
    for (int32_t i = 0; (tier = tamis_tier_name(i, NULL)) != NULL; i++) {
        size_t used = strlen(out->required);
        snprintf(out->required + used, sizeof out->required - used, " or %s", tier);
        known = known || (name && strcmp(name, tier) == 0);
    }
    return tamis_found_text(out, name, known);
}

/* Whether this machine runs a known name; auto is what it runs. */
static int tier_supported(const char *name, tamis_requirement *out) {
    int32_t runs = 1;
    const char *tier;
    for (int32_t i = 0; (tier = tamis_tier_name(i, &runs)) != NULL; i++) {
        if (strcmp(name, tier) == 0) {
            return tamis_found_text(out, name, runs);
        }
    }
    return 1;
}

/* NULL is auto, as for tamis_backend_create. */
static const char *tier_of(const tamis_subject *s) {
    return s->options->tier ? s->options->tier : "auto";
}

int tamis_require_backend_known(const tamis_subject *s, tamis_requirement *out) {
    return tier_known(s->settings->topk_backend, out);
}

int tamis_require_backend_supported(const tamis_subject *s, tamis_requirement *out) {
    return tier_supported(s->settings->topk_backend, out);
}

int tamis_require_tier_known(const tamis_subject *s, tamis_requirement *out) {
    return tier_known(tier_of(s), out);
}

int tamis_require_tier_supported(const tamis_subject *s, tamis_requirement *out) {
    return tier_supported(tier_of(s), out);
}

int tamis_require_context_parallel(const tamis_subject *s, tamis_requirement *out) {
    int32_t ranks = s->options->context_parallel;
    return tamis_found_number(out, ranks, ranks >= 1 && ranks <= TAMIS_MAX_RANKS);
}

int tamis_require_decode_parallel(const tamis_subject *s, tamis_requirement *out) {
    int32_t ranks = s->options->decode_parallel;
    return tamis_found_number(out, ranks, ranks == 1);
}

/* ---- limits and memory --------------------------------------------------------------------- */

int tamis_require_limits(const tamis_subject *s, tamis_requirement *out) {
    uint32_t size = s->limits->struct_size;
    return tamis_found_number(out, size, size == sizeof *s->limits);
}

static int within(int64_t value, int64_t least, int64_t most, tamis_requirement *out) {
    return tamis_found_number(out, value, value >= least && value <= most);
}

int tamis_require_max_requests(const tamis_subject *s, tamis_requirement *out) {
    return within(s->limits->max_requests, 1, 65536, out);
}

int tamis_require_max_tokens(const tamis_subject *s, tamis_requirement *out) {
    return within(s->limits->max_batched_tokens, 1, 1 << 24, out);
}

int tamis_require_drafts(const tamis_subject *s, tamis_requirement *out) {
    return within(s->limits->draft_tokens, 0, 255, out);
}

int tamis_require_graph(const tamis_subject *s, tamis_requirement *out) {
    return within(s->limits->largest_graph, 0, 1 << 24, out);
}

int tamis_require_threads(const tamis_subject *s, tamis_requirement *out) {
    return within(s->limits->threads, 1, 1024, out);
}

int tamis_require_max_context(const tamis_subject *s, tamis_requirement *out) {
    return within(s->limits->max_context, 1, INT32_MAX, out);
}

int tamis_require_workspace_limit(const tamis_subject *s, tamis_requirement *out) {
    return within(s->options->workspace_limit, 0, INT64_MAX, out);
}

int tamis_require_workspace(const tamis_subject *s, tamis_requirement *out) {
    const tamis_plan_shape shape = {.model = s->model,
                                    .sparse_logits = s->settings->indexer_sparse_logits};
    int64_t limit = s->options->limits ? s->options->workspace_limit : 0;
    int64_t bytes = tamis_plan_bytes_for(&shape, s->limits, NULL);
    snprintf(out->required, sizeof out->required, "0 or at least %lld bytes, a plan's",
             (long long)bytes);
    return tamis_found_number(out, limit, bytes >= 0 && (limit == 0 || bytes <= limit));
}
