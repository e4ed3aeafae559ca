/* SPDX-License-Identifier: MIT */
/*
 * plan.c: `tamis plan`: whether a deployment can run, and what it takes.
 *
 * Options are held here to what an int32 or a size can say; whether a value can run is the
 * requirements' to judge, so that all faults are told together.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum {
    OPTION_ATTENTION = 0x3001,
    OPTION_REQUESTS,
    OPTION_TOKENS,
    OPTION_DRAFTS,
    OPTION_GRAPH,
    OPTION_CONTEXT,
    OPTION_PAGE_SIZE,
    OPTION_PAGE_ALIGN,
    OPTION_PAGE_STRIDE,
    OPTION_MEMORY,
    OPTION_MAIN_ROW,
    OPTION_MAIN_ALIGN,
    OPTION_CONTEXT_PARALLEL,
    OPTION_DECODE_PARALLEL,
    OPTION_WORKSPACE,
    OPTION_BACKEND
};

static const struct argp_option plan_options[] = {
    {"attention", OPTION_ATTENTION, "FILE", 0, "Attention config, JSON (default: its defaults)", 1},
    {"max-requests", OPTION_REQUESTS, "N", 0, "Requests in a step (default: 256)", 2},
    {"max-batched-tokens", OPTION_TOKENS, "N", 0, "Query tokens in a step (default: 8192)", 2},
    {"drafts", OPTION_DRAFTS, "N", 0, "Draft tokens that a decode request verifies (default: 0)",
     2},
    {"largest-graph", OPTION_GRAPH, "N", 0, "Rows of the largest captured graph (default: 0)", 2},
    {"max-context", OPTION_CONTEXT, "N", 0, "Tokens of the longest request (default: 1048576)", 2},
    {"page-size", OPTION_PAGE_SIZE, "N", 0, "Positions of an index-K page (default: 128)", 3},
    {"page-align", OPTION_PAGE_ALIGN, "N", 0, "Bytes that an index-K page is aligned to (16)", 3},
    {"page-stride", OPTION_PAGE_STRIDE, "BYTES", 0,
     "From a layer's page to its next (default: a block)", 3},
    {"memory", OPTION_MEMORY, "SIZE", 0, "Memory for KV blocks: bytes, or 40GiB", 3},
    {"main-row-bytes", OPTION_MAIN_ROW, "N", 0,
     "Bytes of a main K/V row that shares blocks with index K (default: none)", 3},
    {"main-align", OPTION_MAIN_ALIGN, "N", 0, "Bytes that its pages are aligned to (default: 1)",
     3},
    {"workspace-limit", OPTION_WORKSPACE, "SIZE", 0, "Most that a plan may take (default: any)", 3},
    {"context-parallel", OPTION_CONTEXT_PARALLEL, "N", 0,
     "Ranks that share a request's positions (default: 1)", 4},
    {"decode-parallel", OPTION_DECODE_PARALLEL, "N", 0,
     "Ranks that share decode's positions (default: 1)", 4},
    {"backend", OPTION_BACKEND, "cpu|cuda", 0,
     "Where it would run (default: cpu). cuda requires that the first NVIDIA GPU of this machine "
     "runs it and holds it",
     5},
    COMMON_OPTION_JSON,
    COMMON_OPTION_THREADS,
    COMMON_OPTION_TIER,
    {0},
};

static int32_t parse_int(const struct argp_state *state, const char *name, const char *arg) {
    return (int32_t)parse_number(state, name, arg, INT32_MIN, INT32_MAX);
}

/* "42949672960" or "40GiB". */
static int64_t parse_size(const struct argp_state *state, const char *name, const char *arg) {
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    char *end;
    errno = 0;
    long long value = strtoll(arg, &end, 10);
    for (int i = 0; !errno && end != arg && value >= 0 && i < 5; i++)
        if (strcmp(end, units[i]) == 0 && value <= INT64_MAX >> (10 * i))
            return value << (10 * i);
    usage_error(state, "%s: required bytes, or KiB, MiB, GiB or TiB as in 40GiB, found '%s'", name,
                arg);
}

static error_t parse_limit(int key, char *arg, struct argp_state *state, tamis_plan_limits *l) {
    switch (key) {
    case OPTION_REQUESTS:
        l->max_requests = parse_int(state, "--max-requests", arg);
        return 0;
    case OPTION_TOKENS:
        l->max_batched_tokens = parse_int(state, "--max-batched-tokens", arg);
        return 0;
    case OPTION_DRAFTS:
        l->draft_tokens = parse_int(state, "--drafts", arg);
        return 0;
    case OPTION_GRAPH:
        l->largest_graph = parse_int(state, "--largest-graph", arg);
        return 0;
    case OPTION_CONTEXT:
        l->max_context = parse_number(state, "--max-context", arg, INT64_MIN, INT64_MAX);
        return 0;
    case OPTION_THREADS:
        l->threads = parse_int(state, "--threads", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_indexer(int key, char *arg, struct argp_state *state,
                             tamis_indexer_options *o) {
    switch (key) {
    case OPTION_PAGE_SIZE:
        o->page_size = parse_int(state, "--page-size", arg);
        return 0;
    case OPTION_PAGE_ALIGN:
        o->page_align = parse_int(state, "--page-align", arg);
        return 0;
    case OPTION_PAGE_STRIDE:
        o->page_stride = parse_number(state, "--page-stride", arg, INT64_MIN, INT64_MAX);
        return 0;
    case OPTION_CONTEXT_PARALLEL:
        o->context_parallel = parse_int(state, "--context-parallel", arg);
        return 0;
    case OPTION_DECODE_PARALLEL:
        o->decode_parallel = parse_int(state, "--decode-parallel", arg);
        return 0;
    case OPTION_WORKSPACE:
        o->workspace_limit = parse_size(state, "--workspace-limit", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_plan(int key, char *arg, struct argp_state *state) {
    plan_inputs *in = state->input;
    switch (key) {
    case OPTION_ATTENTION:
        in->attention = arg;
        return 0;
    case OPTION_MEMORY:
        in->memory = parse_size(state, "--memory", arg);
        return 0;
    case OPTION_MAIN_ROW:
        in->main_row_bytes = parse_number(state, "--main-row-bytes", arg, 1, INT32_MAX);
        return 0;
    case OPTION_MAIN_ALIGN:
        in->main_align = parse_number(state, "--main-align", arg, 1, INT32_MAX);
        return 0;
    case OPTION_BACKEND:
        in->cuda = strcmp(arg, "cuda") == 0;
        if (!in->cuda && strcmp(arg, "cpu") != 0)
            usage_error(state, "--backend: required cpu or cuda, found '%s'", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (in->config)
            usage_error(state, "one CONFIG is taken, found also '%s'", arg);
        in->config = arg;
        return 0;
    case ARGP_KEY_END:
        if (!in->config)
            usage_error(state, "a CONFIG is needed; see tamis plan --help");
        if (in->main_align && !in->main_row_bytes)
            usage_error(state, "--main-align: required --main-row-bytes with it, found none");
        if (in->cuda && in->common.tier)
            usage_error(state, "--tier names kernels of the CPU: required --backend cpu");
        return 0;
    default:
        break;
    }
    if (parse_limit(key, arg, state, &in->limits) == 0 ||
        parse_indexer(key, arg, state, &in->options) == 0)
        return 0;
    return common_parse(key, arg, state, &in->common);
}

static const struct argp plan_argp = {
    .options = plan_options,
    .parser = parse_plan,
    .args_doc = "CONFIG",
    .doc = "Check a deployment, from a model's config.json, and print what it takes: roles of "
           "layers, bytes of KV memory, workspace, chunks of a prefill, positions that consumers "
           "need not score.\vEvery requirement that is not met is told in a line of its own, "
           "with the setting that avoids it, and the exit status is 2. The figures follow by "
           "arithmetic from the configuration; nothing is measured. Only --backend cuda asks for a "
           "device.",
};

static void defaults(plan_inputs *in) {
    *in = (plan_inputs){.memory = -1};
    common_defaults(&in->common);
    tamis_settings_default(&in->settings.settings);
    tamis_plan_limits_default(&in->limits);
    in->limits.max_requests = 256;
    in->limits.max_batched_tokens = 8192;
    in->limits.max_context = 1048576;
    in->limits.threads = in->common.threads;
    tamis_indexer_options_default(&in->options);
    in->options.page_size = 128;
}

static int read_files(plan_inputs *in) {
    tamis_error error = {0};
    if (tamis_config_read(in->config, &in->model, &error) != TAMIS_OK)
        return fail_error(in->config, &error);
    if (in->attention && tamis_settings_read(in->attention, &in->settings, &error) != TAMIS_OK)
        return fail_error(in->attention, &error);
    in->options.model = &in->model.model;
    in->options.settings = &in->settings.settings;
    in->options.limits = &in->limits;
    in->options.tier = in->common.tier ? in->common.tier : getenv("TAMIS_TIER");
    return STATUS_GOOD;
}

static int tell(const plan_inputs *in, const plan_facts *facts) {
    if (in->common.json)
        plan_json(in, facts);
    else if (facts->failed)
        plan_failures(in, facts);
    else
        plan_text(in, facts);
    return facts->failed ? STATUS_BAD : STATUS_GOOD;
}

int command_plan(int argc, char **argv) {
    plan_inputs in;
    plan_facts facts = {0};
    defaults(&in);
    argp_parse(&plan_argp, argc, argv, 0, NULL, &in);
    int status = read_files(&in);
    if (status == STATUS_GOOD)
        status = plan_find(&in, &facts);
    if (status == STATUS_GOOD)
        status = tell(&in, &facts);
    plan_free(&facts);
    tamis_model_file_free(&in.model);
    tamis_settings_file_free(&in.settings);
    return status;
}
