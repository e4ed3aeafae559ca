/* SPDX-License-Identifier: MIT */
/*
 * test_requirements.c: each row of the table triggered alone, all that can fail together, and the
 * form of the report (spec 7.2). A row without a case fails `every_row_has_a_case`.
 *
 * The linker wraps tamis_tier_name so that every machine has one tier that it does not run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "scene.h"

enum { MOST = 64 };

const char *__real_tamis_tier_name(int32_t i, int32_t *supported);
const char *__wrap_tamis_tier_name(int32_t i, int32_t *supported);

const char *__wrap_tamis_tier_name(int32_t i, int32_t *supported) {
    const char *real = __real_tamis_tier_name(i, supported);
    if (real || i < 1 || !__real_tamis_tier_name(i - 1, NULL)) {
        return real;
    }
    if (supported) {
        *supported = 0;
    }
    return "foreign";
}

/* X(case, id, setting, found, what is wrong) */
#define CASES(X)                                                                                   \
    X(options_null, "options-size", "options.struct_size", "NULL", given = NULL)                   \
    X(options_size, "options-size", "options.struct_size", "8", s->options.struct_size = 8)        \
    X(settings_null, "settings-given", "settings", "NULL", s->options.settings = NULL)             \
    X(settings_size, "settings-size", "settings.struct_size", "4", s->settings.struct_size = 4)    \
    X(settings_reserved, "settings-size", "settings.reserved", "7", s->settings.reserved = 7)      \
    X(model_null, "model-given", "model", "NULL", s->options.model = NULL)                         \
    X(model_size, "model-size", "model.struct_size", "0", s->model.struct_size = 0)                \
    X(no_layers, "layers", "compress_ratios", "0", s->model.num_layers = 0)                        \
    X(layers_negative, "layers", "compress_ratios", "-2147483648",                                 \
      s->model.num_layers = INT32_MIN)                                                             \
    X(too_many_layers, "layers", "compress_ratios", "65537", s->model.num_layers = 65537)          \
    X(no_ratios, "layers", "compress_ratios", "NULL", s->model.compress_ratios = NULL)             \
    X(ratio_4, "ratio", "compress_ratios[7]", "4", s->ratios[7] = 4)                               \
    X(ratio_negative, "ratio", "compress_ratios[42]", "-1", s->ratios[42] = -1)                    \
    X(no_blocks, "two-level-keys", "candidate_topk_blocks", "0",                                   \
      s->model.candidate_topk_blocks = 0)                                                          \
    X(blocks_negative, "two-level-keys", "candidate_topk_blocks", "-5",                            \
      s->model.candidate_topk_blocks = -5)                                                         \
    X(no_block_size, "two-level-keys", "candidate_block_size", "0",                                \
      s->model.candidate_block_size = 0)                                                           \
    X(no_source, "two-level-keys", "candidate_source_layer_id",                                    \
      "-1 with candidate_topk_blocks 2048 and block_size 8",                                       \
      s->model.candidate_source_layer_id = -1)                                                     \
    X(source_negative, "two-level-keys", "candidate_source_layer_id", "-2 with",                   \
      s->model.candidate_source_layer_id = -2)                                                     \
    X(block_12, "block-multiple", "candidate_block_size", "12",                                    \
      s->model.candidate_block_size = 12)                                                          \
    X(block_24, "block-supported", "candidate_block_size", "24",                                   \
      s->model.candidate_block_size = 24)                                                          \
    X(blocks_4097, "topk-blocks-limit", "candidate_topk_blocks", "4097",                           \
      s->model.candidate_topk_blocks = 4097)                                                       \
    X(topk_0, "topk-limit", "index_topk", "0", s->model.index_topk = 0)                            \
    X(topk_4097, "topk-limit", "index_topk", "4097", s->model.index_topk = 4097)                   \
    X(pool_505, "pool-covers-topk", "candidate_topk_blocks", "64 * 8 - 7 = 505, index_topk 512",   \
      s->model.candidate_topk_blocks = 64)                                                         \
    X(pool_511, "pool-covers-topk", "candidate_topk_blocks", "65 * 8 - 7 = 513, index_topk 514",   \
      (s->model.candidate_topk_blocks = 65, s->model.index_topk = 514))                            \
    X(heads_0, "heads", "index_n_heads", "0", s->model.index_n_heads = 0)                          \
    X(heads_30, "heads", "index_n_heads", "30", s->model.index_n_heads = 30)                       \
    X(heads_68, "heads", "index_n_heads", "68", s->model.index_n_heads = 68)                       \
    X(dim_96, "head-dim", "index_head_dim", "96", s->model.index_head_dim = 96)                    \
    X(consumer_ratio, "consumer-ratio", "compress_ratios[24]", "2", s->ratios[24] = 2)             \
    X(source_ratio, "consumer-ratio", "compress_ratios[24]", "1", s->ratios[20] = 2)               \
    X(source_not_kv, "model-roles", "candidate_source_layer_id", "21",                             \
      (s->index[4] = 21, s->model.candidate_source_layer_id = 21))                                 \
    X(source_not_index, "model-roles", "candidate_source_layer_id", "22",                          \
      s->model.candidate_source_layer_id = 22)                                                     \
    X(foreign_owner, "model-roles", "kv_source_layer_ids", "23",                                   \
      (s->kv[0] = 2, s->kv[1] = 14, s->kv[2] = 20, s->kv[3] = 23))                                 \
    X(no_owner, "model-roles", "kv_source_layer_ids", "-1", s->kv[0] = 3)                          \
    X(layer_ratio, "model-roles", "kv_source_layer_ids", "2", (s->kv[1] = 5, s->ratios[5] = 1))    \
    X(index_of_ratio_0, "model-roles", "compress_ratios[36]", "0", s->ratios[36] = 0)              \
    X(ids_unsorted, "model-roles", "index_source_layer_ids[1]", "2", s->index[1] = 2)              \
    X(id_too_large, "model-roles", "index_source_layer_ids[7]", "43", s->index[7] = 43)            \
    X(ids_null, "model-roles", "kv_source_layer_ids", "4", s->model.kv_source_layer_ids = NULL)    \
    X(ids_negative, "model-roles", "index_source_layer_ids", "-8",                                 \
      s->model.num_index_sources = -8)                                                             \
    X(dtype_unknown, "kv-dtype-known", "indexer_kv_dtype", "\"int4\"",                             \
      s->settings.indexer_kv_dtype = "int4")                                                       \
    X(dtype_null, "kv-dtype-known", "indexer_kv_dtype", "NULL",                                    \
      s->settings.indexer_kv_dtype = NULL)                                                         \
    X(dtype_fp8, "kv-dtype-supported", "indexer_kv_dtype", "\"fp8\"",                              \
      s->settings.indexer_kv_dtype = "fp8")                                                        \
    X(layout_0, "layout-known", "k_layout", "0", s->options.k_layout = 0)                          \
    X(layout_4, "layout-known", "k_layout", "4", s->options.k_layout = 4)                          \
    X(split_with_pages, "pages-unused", "page_size", "64",                                         \
      s->options.k_layout = TAMIS_K_MXFP4_SPLIT)                                                   \
    X(row_with_stride, "pages-unused", "page_stride", "68",                                        \
      (s->options.k_layout = TAMIS_K_MXFP4_ROW, s->options.page_size = 0,                          \
       s->options.page_stride = 68))                                                               \
    X(page_0, "page-size-multiple", "page_size", "0", s->options.page_size = 0)                    \
    X(page_negative, "page-size-multiple", "page_size", "-8", s->options.page_size = -8)           \
    X(page_60, "page-size-multiple", "page_size", "60", s->options.page_size = 60)                 \
    X(page_8_block_16, "page-size-block", "page_size", "8",                                        \
      (s->options.page_size = 8, s->model.candidate_block_size = 16))                              \
    X(align_8, "page-align", "page_align", "8", s->options.page_align = 8)                         \
    X(align_48, "page-align", "page_align", "48", s->options.page_align = 48)                      \
    X(align_negative, "page-align", "page_align", "-2147483648",                                   \
      s->options.page_align = INT32_MIN)                                                           \
    X(stride_small, "page-stride-size", "page_stride", "4336", s->options.page_stride = 4336)      \
    X(stride_negative, "page-stride-size", "page_stride", "-16", s->options.page_stride = -16)     \
    X(stride_odd, "page-stride-multiple", "page_stride", "4360", s->options.page_stride = 4360)    \
    X(stride_unaligned, "page-stride-align", "page_stride", "4352",                                \
      (s->options.page_stride = 4352, s->options.page_align = 512))                                \
    X(sparse_3, "sparse-logits-known", "indexer_sparse_logits", "3",                               \
      s->settings.indexer_sparse_logits = 3)                                                       \
    X(sparse_negative, "sparse-logits-known", "indexer_sparse_logits", "-1",                       \
      s->settings.indexer_sparse_logits = -1)                                                      \
    X(budget_0, "prefill-budget", "prefill_budget_mb", "0", s->settings.prefill_budget_mb = 0)     \
    X(numerics_unknown, "numerics-known", "numerics", "\"fp16\"", s->settings.numerics = "fp16")   \
    X(numerics_null, "numerics-known", "numerics", "NULL", s->settings.numerics = NULL)            \
    X(numerics_judging, "numerics-serving", "numerics", "\"dg_bf16\"",                             \
      s->settings.numerics = "dg_bf16")                                                            \
    X(backend_unknown, "topk-backend-known", "topk_backend", "\"radix; \?x\?\"",                   \
      s->settings.topk_backend = "radix; \"x\n")                                                   \
    X(backend_null, "topk-backend-known", "topk_backend", "NULL", s->settings.topk_backend = NULL) \
    X(backend_foreign, "topk-backend-supported", "topk_backend", "\"foreign\"",                    \
      s->settings.topk_backend = "foreign")                                                        \
    X(tier_unknown, "tier-known", "tier", "\"AVX2\"", s->options.tier = "AVX2")                    \
    X(tier_empty, "tier-known", "tier", "\"\"", s->options.tier = "")                              \
    X(tier_foreign, "tier-supported", "tier", "\"foreign\"", s->options.tier = "foreign")          \
    X(context_ranks, "context-parallel", "context_parallel", "65",                                 \
      s->options.context_parallel = 65)                                                            \
    X(decode_ranks, "decode-parallel", "decode_parallel", "0", s->options.decode_parallel = 0)     \
    X(limits_size, "limits-size", "limits.struct_size", "1", s->limits.struct_size = 1)            \
    X(requests_0, "limit-requests", "limits.max_requests", "0", s->limits.max_requests = 0)        \
    X(requests_many, "limit-requests", "limits.max_requests", "65537",                             \
      s->limits.max_requests = 65537)                                                              \
    X(tokens_0, "limit-tokens", "limits.max_batched_tokens", "0",                                  \
      s->limits.max_batched_tokens = 0)                                                            \
    X(tokens_many, "limit-tokens", "limits.max_batched_tokens", "16777217",                        \
      s->limits.max_batched_tokens = (1 << 24) + 1)                                                \
    X(drafts_negative, "limit-drafts", "limits.draft_tokens", "-1", s->limits.draft_tokens = -1)   \
    X(drafts_many, "limit-drafts", "limits.draft_tokens", "256", s->limits.draft_tokens = 256)     \
    X(graph_negative, "limit-graph", "limits.largest_graph", "-1", s->limits.largest_graph = -1)   \
    X(threads_0, "limit-threads", "limits.threads", "0", s->limits.threads = 0)                    \
    X(threads_many, "limit-threads", "limits.threads", "1025", s->limits.threads = 1025)           \
    X(context_0, "limit-context", "limits.max_context", "0", s->limits.max_context = 0)            \
    X(context_huge, "limit-context", "limits.max_context", "2147483648",                           \
      s->limits.max_context = INT64_C(1) << 31)                                                    \
    X(limit_negative, "workspace-limit", "workspace_limit", "-1", s->options.workspace_limit = -1) \
    X(workspace_1, "workspace-fits", "workspace_limit", "1", s->options.workspace_limit = 1)

/* Spoils a good scene; returns the options to give. */
#define DEFINE(name, id, setting, found, wrong)                                                    \
    static const tamis_indexer_options *spoil_##name(scene *s) {                                   \
        const tamis_indexer_options *given = &s->options;                                          \
        wrong;                                                                                     \
        return given;                                                                              \
    }
CASES(DEFINE)

static const struct a_case {
    const char *name, *id, *setting, *found;
    const tamis_indexer_options *(*spoil)(scene *s);
} cases[] = {
#define ENTER(name, id, setting, found, wrong) {#name, id, setting, found, spoil_##name},
    CASES(ENTER)};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

static int32_t row_of(const char *id) {
    for (int32_t i = 0; i < tamis_requirement_count(); i++) {
        if (strcmp(tamis_requirement_id(i), id) == 0) {
            return i;
        }
    }
    fail_msg("no requirement is called %s", id);
    return -1;
}

/* A failed requirement's line, taken apart as its documentation says. */
static void check_text(const tamis_requirement *f) {
    char text[512];
    int32_t length = tamis_requirement_text(f, text, sizeof text);
    assert_int_equal(length, strlen(text));
    for (int32_t i = 0; i < length; i++) {
        assert_in_range(text[i], 0x20, 0x7e);
    }
    char *setting = strchr(text, ' ') + 1, *required = strstr(setting, ": required ");
    char *found = strstr(required, ", found "), *way_out = text;
    for (char *at = text; (at = strstr(at, "; ")) != NULL; at += 2) {
        way_out = at;
    }
    setting[-1] = *required = *found = *way_out = '\0';
    assert_string_equal(text, f->id);
    assert_string_equal(setting, f->setting);
    assert_null(strchr(setting, ' '));
    assert_string_equal(required + strlen(": required "), f->required);
    assert_string_equal(found + strlen(", found "), f->found);
    assert_string_equal(way_out + 2, f->way_out);
    assert_true(f->required[0] && f->found[0] && f->way_out[0]);
    /* None was cut. */
    assert_true(strlen(f->id) < sizeof f->id - 1 && strlen(f->setting) < sizeof f->setting - 1);
    assert_true(strlen(f->required) < sizeof f->required - 1);
    assert_true(strlen(f->way_out) < sizeof f->way_out - 1);
}

static void every_row_has_a_case(void **state) {
    (void)state;
    for (int32_t i = 0; i < tamis_requirement_count(); i++) {
        int triggered = 0;
        for (int c = 0; c < CASE_COUNT; c++) {
            triggered += strcmp(cases[c].id, tamis_requirement_id(i)) == 0;
        }
        if (!triggered) {
            fail_msg("requirement %s has no case", tamis_requirement_id(i));
        }
        for (int32_t j = 0; j < i; j++) {
            assert_string_not_equal(tamis_requirement_id(i), tamis_requirement_id(j));
        }
    }
    assert_null(tamis_requirement_id(-1));
    assert_null(tamis_requirement_id(tamis_requirement_count()));
}

static void each_alone(void **state) {
    (void)state;
    for (int c = 0; c < CASE_COUNT; c++) {
        scene s;
        tamis_requirement f[MOST];
        scene_make(&s);
        int32_t count = tamis_indexer_supported(cases[c].spoil(&s), f, MOST);
        if (count != 1 || strcmp(f[0].id, cases[c].id) || strcmp(f[0].setting, cases[c].setting) ||
            strncmp(f[0].found, cases[c].found, strlen(cases[c].found))) {
            fail_msg("%s: %d failures, the first %s %s found %s", cases[c].name, count, f[0].id,
                     f[0].setting, f[0].found);
        }
        check_text(&f[0]);
    }
}

/* Creation refuses what the report names, by its first failure. */
static void creation_agrees(void **state) {
    (void)state;
    for (int c = 0; c < CASE_COUNT; c++) {
        scene s;
        tamis_error error = {0};
        tamis_indexer *indexer = (tamis_indexer *)&s;
        scene_make(&s);
        assert_int_equal(tamis_indexer_create(cases[c].spoil(&s), &indexer, &error),
                         TAMIS_ERROR_REQUIREMENT);
        assert_null(indexer);
        assert_string_equal(error.argument, cases[c].setting);
    }
}

/* Two faults at once: something is reported, in the table's order, and no row twice. */
static void each_pair(void **state) {
    (void)state;
    for (int a = 0; a < CASE_COUNT; a++) {
        for (int b = 0; b < CASE_COUNT; b++) {
            scene s;
            tamis_requirement f[MOST];
            scene_make(&s);
            const tamis_indexer_options *given = cases[a].spoil(&s);
            given = cases[b].spoil(&s) ? given : NULL;
            int32_t count = tamis_indexer_supported(given, f, MOST);
            int mended = s.options.k_layout != TAMIS_K_MXFP4_PAGE && s.options.page_size == 0 &&
                         s.options.page_stride == 0; /* a page of 0 where none is wanted */
            if (count < !mended || count > MOST) {
                fail_msg("%s, %s: %d failures", cases[a].name, cases[b].name, count);
            }
            for (int32_t i = 0; i < count; i++) {
                check_text(&f[i]);
                assert_true(i == 0 || row_of(f[i].id) > row_of(f[i - 1].id));
            }
        }
    }
}

/* All that is wrong with a bad deployment, in one report. */
static void all_at_once(void **state) {
    (void)state;
    static const char *const expected[] = {
        "ratio",
        "block-multiple",
        "topk-blocks-limit",
        "topk-limit",
        "heads",
        "head-dim",
        "kv-dtype-known",
        "page-size-multiple",
        "page-align",
        "page-stride-multiple",
        "sparse-logits-known",
        "prefill-budget",
        "numerics-known",
        "topk-backend-known",
        "tier-known",
        "context-parallel",
        "decode-parallel",
        "limit-requests",
        "limit-tokens",
        "limit-drafts",
        "limit-graph",
        "limit-threads",
        "limit-context",
        "workspace-limit",
    };
    enum { EXPECTED = sizeof expected / sizeof *expected };
    scene s;
    tamis_requirement f[MOST], again[MOST];
    scene_make(&s);
    spoil_ratio_4(&s), spoil_blocks_4097(&s), spoil_block_12(&s), spoil_topk_0(&s);
    spoil_heads_30(&s), spoil_dim_96(&s), spoil_dtype_unknown(&s), spoil_page_60(&s);
    spoil_align_48(&s), spoil_stride_odd(&s), spoil_sparse_3(&s), spoil_budget_0(&s);
    spoil_numerics_unknown(&s), spoil_backend_unknown(&s), spoil_tier_unknown(&s);
    spoil_context_ranks(&s), spoil_decode_ranks(&s), spoil_requests_0(&s), spoil_tokens_0(&s);
    spoil_drafts_many(&s), spoil_graph_negative(&s), spoil_threads_0(&s), spoil_context_0(&s);
    spoil_limit_negative(&s);
    assert_int_equal(tamis_indexer_supported(&s.options, f, MOST), EXPECTED);
    for (int i = 0; i < EXPECTED; i++) {
        assert_string_equal(f[i].id, expected[i]);
        check_text(&f[i]);
    }
    assert_int_equal(tamis_indexer_supported(&s.options, again, MOST), EXPECTED);
    assert_memory_equal(f, again, EXPECTED * sizeof *f);
}

/* Faults that rest on nothing of each other, found at the second kind of rows. */
static void deeper_rows_at_once(void **state) {
    (void)state;
    static const char *const expected[] = {
        "block-supported",        "pool-covers-topk", "consumer-ratio",    "model-roles",
        "kv-dtype-supported",     "page-stride-size", "page-stride-align", "numerics-serving",
        "topk-backend-supported", "tier-supported",
    };
    enum { EXPECTED = sizeof expected / sizeof *expected };
    scene s;
    tamis_requirement f[MOST];
    scene_make(&s);
    spoil_block_24(&s), spoil_consumer_ratio(&s), spoil_dtype_fp8(&s), spoil_stride_small(&s);
    spoil_no_owner(&s), spoil_numerics_judging(&s), spoil_backend_foreign(&s),
        spoil_tier_foreign(&s);
    s.options.page_align = 512;
    s.model.candidate_topk_blocks = 20;
    assert_int_equal(tamis_indexer_supported(&s.options, f, MOST), EXPECTED);
    for (int i = 0; i < EXPECTED; i++) {
        assert_string_equal(f[i].id, expected[i]);
    }
}

static void good_ones(void **state) {
    (void)state;
    static const char *const tiers[] = {NULL, "auto", "ref"}, *const classes[] = {"exact", "bf16"};
    for (int i = 0; i < 3 * 2 * 3 * 2; i++) {
        scene s;
        tamis_requirement f;
        tamis_indexer *indexer = NULL;
        scene_make(&s);
        s.options.tier = tiers[i % 3];
        s.settings.numerics = classes[i / 3 % 2];
        s.settings.indexer_sparse_logits = i / 6 % 3;
        if (i / 18) {
            scene_one_level(&s);
        }
        if (tamis_indexer_supported(&s.options, &f, 1)) {
            fail_msg("%s %s found %s", f.id, f.setting, f.found);
        }
        assert_int_equal(tamis_indexer_create(&s.options, &indexer, NULL), TAMIS_OK);
        tamis_indexer_destroy(indexer);
    }
}

static void good_at_the_bounds(void **state) {
    (void)state;
    scene s;
    scene_make(&s);
    s.model.candidate_block_size = 16;
    s.model.candidate_topk_blocks = TAMIS_MAX_BLOCKS;
    s.model.index_topk = TAMIS_MAX_TOPK;
    s.options.page_size = 16;
    s.options.page_stride = s.options.page_align = 2048;
    s.limits.max_context = INT32_MAX;
    s.limits.largest_graph = 1 << 24;
    s.limits.draft_tokens = 255;
    assert_int_equal(tamis_indexer_supported(&s.options, NULL, 0), 0);
    scene_make(&s);
    s.model.candidate_topk_blocks = 65; /* 65 * 8 - 7 = 513 */
    s.model.index_topk = 513;
    s.options.k_layout = TAMIS_K_MXFP4_ROW;
    s.options.page_size = 0;
    assert_int_equal(tamis_indexer_supported(&s.options, NULL, 0), 0);
    s.options.limits = NULL; /* not checked, and nor is their workspace */
    s.options.workspace_limit = 1;
    assert_int_equal(tamis_indexer_supported(&s.options, NULL, 0), 0);
}

static void workspace_to_the_byte(void **state) {
    (void)state;
    scene s;
    tamis_indexer *indexer = NULL;
    scene_make(&s);
    assert_int_equal(tamis_indexer_create(&s.options, &indexer, NULL), TAMIS_OK);
    int64_t bytes = tamis_plan_bytes(indexer, &s.limits, NULL);
    tamis_indexer_destroy(indexer);
    s.options.workspace_limit = bytes;
    assert_int_equal(tamis_indexer_supported(&s.options, NULL, 0), 0);
    s.options.workspace_limit = bytes - 1;
    assert_int_equal(tamis_indexer_supported(&s.options, NULL, 0), 1);
}

static void capacity_is_kept(void **state) {
    (void)state;
    scene s;
    tamis_requirement f[4], poison;
    scene_make(&s);
    spoil_heads_30(&s), spoil_page_60(&s), spoil_tier_unknown(&s);
    memset(&poison, 0xA5, sizeof poison);
    for (int32_t capacity = -1; capacity < 4; capacity++) {
        memset(f, 0xA5, sizeof f);
        assert_int_equal(tamis_indexer_supported(&s.options, f, capacity), 3);
        for (int32_t i = capacity > 0 ? capacity : 0; i < 4; i++) {
            assert_memory_equal(&f[i], &poison, sizeof poison);
        }
    }
    assert_int_equal(tamis_indexer_supported(&s.options, NULL, 4), 3);
}

static void text_is_cut(void **state) {
    (void)state;
    scene s;
    tamis_requirement f;
    char text[512], small[8];
    scene_make(&s);
    spoil_heads_30(&s);
    assert_int_equal(tamis_indexer_supported(&s.options, &f, 1), 1);
    int32_t length = tamis_requirement_text(&f, text, sizeof text);
    assert_string_equal(text, "heads index_n_heads: required 4 .. 64, a multiple of 4, found 30; "
                              "use a model of 4, 8 .. 64 indexer heads");
    memset(small, 'x', sizeof small);
    assert_int_equal(tamis_requirement_text(&f, small, 6), length);
    assert_string_equal(small, "heads");
    assert_int_equal(small[6], 'x');
    assert_int_equal(tamis_requirement_text(&f, small, 0), length);
    assert_int_equal(tamis_requirement_text(&f, NULL, 0), length);
}

/* A string of any length and bytes stays on its line. */
static void hostile_strings(void **state) {
    (void)state;
    scene s;
    tamis_requirement f;
    char text[300];
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (char)(i + 1);
    }
    text[sizeof text - 1] = '\0';
    for (size_t length = 80; length < 100; length++) {
        char cut[300];
        scene_make(&s);
        snprintf(cut, length + 1, "%s", text);
        s.settings.indexer_kv_dtype = cut;
        assert_int_equal(tamis_indexer_supported(&s.options, &f, 1), 1);
        assert_int_equal(strlen(f.found), (length < 93 ? length : 93) + 2);
        check_text(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_a_case),
        cmocka_unit_test(each_alone),
        cmocka_unit_test(creation_agrees),
        cmocka_unit_test(each_pair),
        cmocka_unit_test(all_at_once),
        cmocka_unit_test(deeper_rows_at_once),
        cmocka_unit_test(good_ones),
        cmocka_unit_test(good_at_the_bounds),
        cmocka_unit_test(workspace_to_the_byte),
        cmocka_unit_test(capacity_is_kept),
        cmocka_unit_test(text_is_cut),
        cmocka_unit_test(hostile_strings),
    };
    return cmocka_run_group_tests_name("config.requirements", tests, NULL, NULL);
}
