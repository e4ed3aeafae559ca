/* SPDX-License-Identifier: MIT */
/*
 * check.c: holds a result against the oracle. Rows are judged by the pool, one at a time to
 * whichever thread is free; what is said depends on the rows alone.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "made.h"

typedef struct check_options {
    common_options common;
    const char *trace;
    const char *result; /* NULL: results inside the trace, or made by the backend */
    int64_t rows;       /* to sample; 0: all */
    int32_t numerics;
    const char *backend; /* that selects; NULL: selections are given */
} check_options;

enum { OPTION_ROWS = 0x4001, OPTION_NUMERICS, OPTION_BACKEND };

static const struct argp_option option_list[] = {
    {"rows", OPTION_ROWS, "N", 0,
     "Rows to recompute, evenly spread with the first and the last always among them, or all (16)",
     1},
    {"numerics", OPTION_NUMERICS, "CLASS", 0,
     "The class that the result claims: exact (default), bf16, dg_bf16 or ref_bf16", 1},
    {"backend", OPTION_BACKEND, "cpu|cuda", 0,
     "Select here and judge that, instead of a RESULT. cuda is the first NVIDIA GPU", 1},
    COMMON_OPTION_THREADS,
    COMMON_OPTION_JSON,
    {0}};

static error_t parse_check(int key, char *arg, struct argp_state *state) {
    check_options *check = state->input;
    switch (key) {
    case OPTION_ROWS:
        check->rows =
            strcmp(arg, "all") == 0 ? 0 : parse_number(state, "--rows", arg, 1, INT32_MAX);
        return 0;
    case OPTION_NUMERICS:
        check->numerics = numerics_of(arg);
        if (!check->numerics)
            usage_error(state, "--numerics: required exact, bf16, dg_bf16 or ref_bf16, found '%s'",
                        arg);
        return 0;
    case OPTION_BACKEND:
        check->backend = arg;
        if (strcmp(arg, "cuda") != 0 && strcmp(arg, "cpu") != 0)
            usage_error(state, "--backend: required cpu or cuda, found '%s'", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 1)
            usage_error(state, "TRACE and RESULT are taken, found '%s' as well", arg);
        *(state->arg_num ? &check->result : &check->trace) = arg;
        return 0;
    case ARGP_KEY_END:
        if (!check->trace)
            usage_error(state, "a TRACE is needed; see tamis check --help");
        if (check->backend && check->result)
            usage_error(state, "--backend selects what is judged: required no RESULT, found '%s'",
                        check->result);
        if (check->backend && check->numerics != TAMIS_NUMERICS_EXACT &&
            check->numerics != TAMIS_NUMERICS_BF16)
            usage_error(state, "--numerics: required exact or bf16 with --backend, found %s",
                        numerics_name(check->numerics));
        return 0;
    default:
        return common_parse(key, arg, state, &check->common);
    }
}

static const struct argp check_argp = {
    .options = option_list,
    .parser = parse_check,
    .args_doc = "TRACE [RESULT]",
    .doc = "Hold the selections in RESULT, those inside TRACE, or with --backend those made here, "
           "against an independent computation of both levels."
           "\vThe last line is `check: exact, R rows x L layers' (or the class of --numerics) and "
           "the exit status 0 when every judged row is right to the position. Otherwise it begins "
           "`check: WRONG', `check: rounding only (CLASS)' or `check: tie order only', and the "
           "exit status is 1. Consumers are judged by the oracle's own blocks; where the result's "
           "blocks differ, also by those, so that one fault is reported once."};

/* ---- sampling and judging ---------------------------------------------------------------------
 */

static int choose_rows(check_state *c, int64_t wanted) {
    int64_t rows = c->judge.trace->rows;
    c->sampled = wanted == 0 || wanted > rows ? rows : wanted;
    if (c->sampled == 1 && rows > 1)
        c->sampled = 2;
    size_t lists = (size_t)c->judge.trace->layer_count + 1;
    c->rows = calloc((size_t)c->sampled + 1, sizeof *c->rows);
    c->findings = calloc(((size_t)c->sampled + 1) * lists, sizeof *c->findings);
    c->tallies = calloc(lists, sizeof *c->tallies);
    if (!c->rows || !c->findings || !c->tallies)
        return fail("%s: no memory for %" PRId64 " rows", c->judge.trace->path, c->sampled);
    for (int64_t i = 0; i < c->sampled; i++)
        c->rows[i] = c->sampled > 1 ? i * (rows - 1) / (c->sampled - 1) : 0;
    return STATUS_GOOD;
}

typedef struct worker {
    judge_scratch *scratch;
    tally *tallies; /* [layer_count + 1], summed afterwards */
} worker;

typedef struct judging {
    check_state *check;
    worker *workers;
    atomic_llong next, done;
    progress bar; /* worker 0 draws: it is the thread that began it */
} judging;

static void judge_rows(void *context, int32_t ith, int32_t nth) {
    judging *job = context;
    check_state *c = job->check;
    int64_t lists = c->judge.trace->layer_count + 1;
    (void)nth;
    for (int64_t i; (i = atomic_fetch_add(&job->next, 1)) < c->sampled;) {
        judge_row(&c->judge, job->workers[ith].scratch, c->rows[i], c->findings + i * lists,
                  job->workers[ith].tallies);
        int64_t done = atomic_fetch_add(&job->done, 1) + 1;
        if (ith == 0)
            progress_show(&job->bar, done);
    }
}

static void add_tallies(tally *to, const tally *from, int32_t lists) {
    for (int32_t i = 0; i < lists; i++) {
        for (int k = 0; k < CLASSES; k++) {
            to[i].common[k] += from[i].common[k];
            to[i].recalled[k] += from[i].recalled[k];
        }
        to[i].selected += from[i].selected;
        to[i].full += from[i].full;
    }
}

static int judge_all(check_state *c, tamis_pool *pool) {
    int32_t threads = tamis_pool_threads(pool), lists = c->judge.trace->layer_count + 1;
    judging job = {.check = c, .workers = calloc((size_t)threads, sizeof(worker))};
    int good = job.workers != NULL;
    for (int32_t i = 0; good && i < threads; i++) {
        job.workers[i].scratch = judge_scratch_new(&c->judge);
        job.workers[i].tallies = calloc((size_t)lists, sizeof(tally));
        good = job.workers[i].scratch && job.workers[i].tallies;
    }
    if (good) {
        progress_begin(&job.bar, "check", c->sampled);
        tamis_pool_run(pool, judge_rows, &job);
        progress_end(&job.bar);
    }
    for (int32_t i = 0; job.workers && i < threads; i++) {
        if (good)
            add_tallies(c->tallies, job.workers[i].tallies, lists);
        judge_scratch_free(job.workers[i].scratch);
        free(job.workers[i].tallies);
    }
    free(job.workers);
    return good ? STATUS_GOOD : fail("%s: no memory to judge it", c->judge.trace->path);
}

/* The worst verdict, and the fewest classes that explain all rounding: one if one does. */
static void conclude(check_state *c) {
    int64_t lists = c->sampled * (c->judge.trace->layer_count + 1);
    uint32_t all = ~0u, any = 0;
    for (int64_t i = 0; i < lists; i++) {
        const finding *f = &c->findings[i];
        c->verdict = f->verdict > c->verdict ? f->verdict : c->verdict;
        all &= f->verdict == VERDICT_ROUNDING ? f->classes : ~0u;
        any |= f->classes;
    }
    size_t at = 0;
    for (int32_t k = 1; k < CLASSES; k++) {
        if (!((all & any ? all : any) & any & 1u << k) || (all & any && at))
            continue;
        at += (size_t)snprintf(c->rounding + at, sizeof c->rounding - at, "%s%s", at ? ", " : "",
                               numerics_name(k));
    }
}

/* ---- what is judged ---------------------------------------------------------------------------
 */

/* Count tensors are optional; a wrong dtype or shape is bad input, a wrong number is judged. */
static int find_counts(const tamis_trace *trace, const safetensors *file, const char *path,
                       const int32_t **counts) {
    for (int32_t i = 0; file && i < trace->layer_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "count.%d", (int)trace->layers[i].layer);
        const safetensors_tensor *t = safetensors_find(file, name);
        if (!t)
            continue;
        if (t->dtype != SAFETENSORS_I32 || t->rank != 1 || t->shape[0] != trace->rows)
            return fail("%s: %s: required I32 [%" PRId64 "], found another dtype or shape", path,
                        name, trace->rows);
        counts[i] = t->data;
    }
    return STATUS_GOOD;
}

static int has_source(const tamis_trace *trace) {
    for (int32_t i = 0; i < trace->layer_count; i++)
        if (trace->layers[i].present && trace->layers[i].role.role == TAMIS_ROLE_SOURCE)
            return 1;
    return 0;
}

/* Blocks of a trace without its source are an input to its consumers, not a result. */
static int take_lists(check_state *c, const tamis_trace *trace, const tamis_result *result,
                      const int32_t **selected) {
    int source = has_source(trace);
    for (int32_t i = 0; i < trace->layer_count; i++) {
        selected[i] = result ? result->selected[i] : trace->layers[i].selected;
        c->layers += trace->layers[i].present && selected[i] != NULL;
    }
    c->judge.selected = selected;
    c->judge.blocks = !source ? NULL : result ? result->blocks : trace->blocks;
    if (c->layers || c->judge.blocks)
        return STATUS_GOOD;
    return result
               ? fail("%s: it holds no selection of a layer that %s holds", c->result, trace->path)
               : fail("%s: it holds no results: a RESULT is needed", trace->path);
}

static int check_lists(check_state *c, const check_options *options, const tamis_result *result,
                       const safetensors *file, const int32_t *const *made_counts) {
    const tamis_trace *trace = c->judge.trace;
    size_t layers = (size_t)trace->layer_count + 1;
    const int32_t **selected = calloc(layers, sizeof *selected);
    const int32_t **counts = calloc(layers, sizeof *counts);
    tamis_pool *pool = NULL;
    c->judge.counts = counts;
    int status = selected && counts ? take_lists(c, trace, result, selected) : fail("no memory");
    if (status == STATUS_GOOD)
        status = find_counts(trace, file, c->result, counts);
    for (int32_t i = 0; status == STATUS_GOOD && made_counts && i < trace->layer_count; i++)
        counts[i] = made_counts[i];
    if (status == STATUS_GOOD)
        status = choose_rows(c, options->rows);
    if (status == STATUS_GOOD)
        status = open_pool(&options->common, &pool);
    if (status == STATUS_GOOD)
        status = judge_all(c, pool);
    if (status == STATUS_GOOD) {
        conclude(c);
        (options->common.json ? check_report_json : check_report_text)(c);
        status = c->verdict == VERDICT_GOOD ? STATUS_GOOD : STATUS_WRONG;
    }
    tamis_pool_destroy(pool);
    free(selected);
    free(counts);
    free(c->rows);
    free(c->findings);
    free(c->tallies);
    return status;
}

static int check_given(check_state *c, const check_options *options) {
    tamis_result *result = NULL;
    safetensors *file = NULL;
    tamis_error error = {0};
    int status = STATUS_GOOD;
    if (options->result &&
        (tamis_result_open(options->result, c->judge.trace, &result, &error) != TAMIS_OK ||
         safetensors_open(options->result, &file, &error) != TAMIS_OK))
        status = fail_error(options->result, &error);
    else
        status = check_lists(c, options, result, file, NULL);
    safetensors_close(file);
    tamis_result_close(result);
    return status;
}

static int check_made(check_state *c, const check_options *options) {
    made_result made = {0};
    int status = make_result(c->judge.trace, strcmp(options->backend, "cuda") == 0,
                             &options->common, options->numerics, &made);
    c->backend = options->backend;
    c->machine = made.machine;
    if (status == STATUS_GOOD)
        status = check_lists(c, options, &made.result, NULL, made.result_counts);
    made_result_free(&made);
    return status;
}

int command_check(int argc, char **argv) {
    check_options check = {.rows = 16, .numerics = TAMIS_NUMERICS_EXACT};
    common_defaults(&check.common);
    argp_parse(&check_argp, argc, argv, 0, NULL, &check);
    tamis_trace *trace = NULL;
    tamis_error error = {0};
    if (tamis_trace_open(check.trace, &trace, &error) != TAMIS_OK)
        return fail_error(check.trace, &error);
    check_state state = {.judge = {.trace = trace, .numerics = check.numerics},
                         .result = check.result ? check.result : check.trace};
    int status = (check.backend ? check_made : check_given)(&state, &check);
    tamis_trace_close(trace);
    return status;
}
