/* SPDX-License-Identifier: MIT */
/* bench.c: `tamis bench`: every stage and both levels against scoring everything, in one run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_cuda.h"
#include "command.h"

enum {
    OPTION_SHAPE = 0x2001,
    OPTION_STAGE,
    OPTION_SECONDS,
    OPTION_REPEATS,
    OPTION_LISTS,
    OPTION_CACHE,
    OPTION_CLOCK,
    OPTION_ALL,
    OPTION_LIST,
    OPTION_SCALING,
    OPTION_COMPARE_TIERS,
    OPTION_VERBOSE,
    OPTION_HUGE_PAGES,
    OPTION_BACKEND
};

enum { SHAPES_MOST = 64 };

typedef struct arguments {
    common_options common;
    bench_options bench;
    const char *shapes[SHAPES_MOST];
    int count, list, cuda;
} arguments;

static const struct argp_option options[] = {
    {"shape", OPTION_SHAPE, "NAME|FILE", 0, "A shape to measure; may be repeated", 1},
    {"all", OPTION_ALL, NULL, 0, "Every named shape, not only the default ones", 1},
    {"list", OPTION_LIST, NULL, 0, "Print the named shapes and stop", 1},
    {"stage", OPTION_STAGE, "NAME", 0, "Measure this stage only; may be repeated", 2},
    {"lists", OPTION_LISTS, "local|random|both", 0, "Candidate lists (default: the shape's)", 2},
    {"cache", OPTION_CACHE, "warm|cold|both", 0,
     "warm: after an untimed run of the same call; cold: after writing twice L2 + L3 of other "
     "memory (default: warm, and cold for consume of decode shapes)",
     2},
    {"huge-pages", OPTION_HUGE_PAGES, NULL, 0,
     "Ask the system for K in huge pages, as an engine's pool may lie", 2},
    {"backend", OPTION_BACKEND, "cpu|cuda", 0,
     "cuda: source and consume on the first NVIDIA GPU, every row of a shape, against dense there",
     2},
    {"seconds", OPTION_SECONDS, "S", 0, "Time for each contestant of a line (default: 0.3)", 3},
    {"repeats", OPTION_REPEATS, "N", 0, "Exactly N timed runs of each contestant, 1..201", 3},
    {"clock", OPTION_CLOCK, "wall|cpu", 0,
     "cpu: time that the slowest slice's thread ran, for a machine shared with others: waiting, "
     "for "
     "others and for each other, does not count (default: wall)",
     3},
    {"compare-tiers", OPTION_COMPARE_TIERS, NULL, 0, "Time the ref tier in the same run", 4},
    {"scaling", OPTION_SCALING, NULL, 0, "Also 1 and 2 threads in one run", 4},
    {"verbose", OPTION_VERBOSE, NULL, 0, "Print the statistics that the inputs reached", 4},
    {"threads", OPTION_THREADS, "N", 0, "Threads to work with (default: 1)", 91},
    COMMON_OPTION_JSON,
    COMMON_OPTION_TIER,
    {0},
};

static int32_t one_of(const struct argp_state *state, const char *option, const char *arg,
                      const char *first, const char *second) {
    if (strcmp(arg, first) == 0)
        return 1;
    if (strcmp(arg, second) == 0)
        return 2;
    if (strcmp(arg, "both") != 0)
        usage_error(state, "%s: required %s, %s or both, found '%s'", option, first, second, arg);
    return 3;
}

static void parse_stage(const struct argp_state *state, const char *arg, bench_options *bench) {
    int stage = stage_of(arg);
    if (stage < 0)
        usage_error(state, "--stage: required a stage of tamis/stages.h, found '%s'", arg);
    bench->stages |= 1 << stage;
}

static double parse_seconds(const struct argp_state *state, const char *arg) {
    char *end;
    double seconds = strtod(arg, &end);
    if (end == arg || *end || !(seconds > 0 && seconds <= 3600))
        usage_error(state, "--seconds: required above 0, at most 3600, found '%s'", arg);
    return seconds;
}

static void parse_cache(const struct argp_state *state, const char *arg, bench_options *bench) {
    int32_t kinds = one_of(state, "--cache", arg, "warm", "cold");
    bench->warm = kinds & 1;
    bench->cold = kinds >> 1;
}

/* What says nothing about a GPU is refused rather than ignored. */
static void check_cuda(const struct argp_state *state, const arguments *a) {
    const bench_options *b = &a->bench;
    const char *given = b->cold >= 0            ? "--cache"
                        : b->rules.cpu_clock    ? "--clock"
                        : b->huge_pages         ? "--huge-pages"
                        : b->compare_tiers      ? "--compare-tiers"
                        : b->scaling            ? "--scaling"
                        : b->verbose            ? "--verbose"
                        : a->common.tier        ? "--tier"
                        : a->common.threads > 1 ? "--threads"
                                                : NULL;
    if (given)
        usage_error(state, "%s: required --backend cpu, found cuda", given);
    if (b->stages & ~(1 << STAGE_source | 1 << STAGE_consume))
        usage_error(state, "--stage: required source or consume with --backend cuda");
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case OPTION_SHAPE:
        if (a->count == SHAPES_MOST)
            usage_error(state, "--shape: required at most %d of them", SHAPES_MOST);
        a->shapes[a->count++] = arg;
        return 0;
    case OPTION_STAGE:
        parse_stage(state, arg, &a->bench);
        return 0;
    case OPTION_SECONDS:
        a->bench.rules.seconds = parse_seconds(state, arg);
        return 0;
    case OPTION_REPEATS:
        a->bench.rules.repeats = (int)parse_number(state, "--repeats", arg, 1, CONTEST_RUNS);
        return 0;
    case OPTION_LISTS:
        a->bench.lists = one_of(state, "--lists", arg, "local", "random");
        return 0;
    case OPTION_CACHE:
        parse_cache(state, arg, &a->bench);
        return 0;
    case OPTION_HUGE_PAGES:
        a->bench.huge_pages = 1;
        return 0;
    case OPTION_CLOCK:
        if (strcmp(arg, "wall") != 0 && strcmp(arg, "cpu") != 0)
            usage_error(state, "--clock: required wall or cpu, found '%s'", arg);
        a->bench.rules.cpu_clock = strcmp(arg, "cpu") == 0;
        return 0;
    case OPTION_BACKEND:
        a->cuda = strcmp(arg, "cuda") == 0;
        if (!a->cuda && strcmp(arg, "cpu") != 0)
            usage_error(state, "--backend: required cpu or cuda, found '%s'", arg);
        return 0;
    case OPTION_ALL:
        a->bench.all = 1;
        return 0;
    case OPTION_LIST:
        a->list = 1;
        return 0;
    case OPTION_SCALING:
        a->bench.scaling = 1;
        return 0;
    case OPTION_COMPARE_TIERS:
        a->bench.compare_tiers = 1;
        return 0;
    case OPTION_VERBOSE:
        a->bench.verbose = 1;
        return 0;
    case ARGP_KEY_END:
        if (a->cuda)
            check_cuda(state, a);
        return 0;
    case ARGP_KEY_ARG:
        usage_error(state, "no argument is taken, found '%s'; a shape is named by --shape", arg);
    default:
        return common_parse(key, arg, state, &a->common);
    }
}

static const struct argp bench_argp = {
    .options = options,
    .parser = parse,
    .doc = "Time every stage and both levels against scoring everything, in turns in one run.\v"
           "Times are medians per row; spread is (90th - 10th percentile) / median; TSC/pos are "
           "ticks of the time-stamp counter for each position that the stage handles; ratio is "
           "dense / sparse. `timed' is the rows of one timed run: the last ones of the shape, as "
           "many as the time allows, since a row of a large prefill costs what its neighbours "
           "do. The dense opponent of consume scores all and masks by the same lists, that of "
           "source is a full layer, that of sparse_mqa_logits is mqa_logits, that of topk is topk "
           "over the whole row. Shapes are small text files: see bench/shapes.",
};

/* ---- the shapes of a run ------------------------------------------------------------------------
 */

static int choose_shapes(const arguments *a, bench_shape **shapes, int *count) {
    int status = STATUS_GOOD;
    if (a->count == 0) {
        status = shape_all(shapes, count);
        int kept = 0;
        for (int i = 0; i < *count; i++)
            if (a->bench.all || a->list || (*shapes)[i].by_default)
                (*shapes)[kept++] = (*shapes)[i];
        *count = kept;
        return status;
    }
    *shapes = calloc((size_t)a->count, sizeof **shapes);
    if (!*shapes)
        return fail("no memory for shapes");
    for (*count = 0; status == STATUS_GOOD && *count < a->count; ++*count)
        status = shape_find(a->shapes[*count], *shapes + *count);
    return status;
}

static int list_shapes(const bench_shape *shapes, int count, int json) {
    json_t *names = json ? json_array() : NULL;
    for (int i = 0; i < count; i++)
        if (json)
            json_array_append_new(names, json_string(shapes[i].name));
        else
            printf("%-18s%s\n", shapes[i].name, shapes[i].by_default ? " default" : "");
    if (json)
        print_json(json_pack("{s:o}", "shapes", names));
    return STATUS_GOOD;
}

/* ---- the run ------------------------------------------------------------------------------------
 */

static int run_text(const bench_options *o, const bench_shape *shapes, int count) {
    int status = STATUS_GOOD;
    machine_text();
    if (o->rules.cpu_clock)
        printf("times are of the slowest slice's CPU clock, TSC ticks are computed from them\n");
    for (int i = 0; status == STATUS_GOOD && i < count; i++)
        status = bench_cells(o, &shapes[i], NULL, NULL);
    if (status == STATUS_GOOD && o->checks)
        status = bench_checks(o, NULL);
    return status;
}

static int run_json(const bench_options *o, const bench_shape *shapes, int count) {
    progress bar;
    int status = STATUS_GOOD;
    json_t *results = json_array(), *inputs = json_array(), *checks = json_object();
    progress_begin(&bar, "bench", count + 1);
    for (int i = 0; status == STATUS_GOOD && i < count; i++) {
        status = bench_cells(o, &shapes[i], results, inputs);
        progress_show(&bar, i + 1);
    }
    if (status == STATUS_GOOD && o->checks)
        status = bench_checks(o, checks);
    progress_end(&bar);
    json_t *all = json_pack("{s:o, s:s, s:o, s:o, s:o}", "machine", machine_json(), "clock",
                            o->rules.cpu_clock ? "cpu" : "wall", "results", results, "inputs",
                            inputs, "checks", checks);
    if (status == STATUS_GOOD)
        print_json(all);
    else
        json_decref(all);
    return status;
}

static int open_lower(bench_options *o, tamis_backend **lower) {
    tamis_error error = {0};
    if (!o->compare_tiers || strcmp(tamis_backend_tier(o->backend), "ref") == 0)
        return STATUS_GOOD;
    if (tamis_backend_create("ref", lower, &error) != TAMIS_OK)
        return fail_error("ref", &error);
    o->lower = *lower;
    return STATUS_GOOD;
}

static int run(arguments *a, const bench_shape *shapes, int count) {
    tamis_backend *backend = NULL, *lower = NULL;
    int status = open_backend(&a->common, &backend);
    if (status == STATUS_GOOD)
        status = open_pool(&a->common, &a->bench.pool);
    if (status == STATUS_GOOD) {
        a->bench.backend = backend;
        status = open_lower(&a->bench, &lower);
    }
    if (status == STATUS_GOOD)
        status = (a->common.json ? run_json : run_text)(&a->bench, shapes, count);
    contest_end();
    if (a->bench.pool)
        tamis_pool_destroy(a->bench.pool);
    tamis_backend_destroy(lower);
    tamis_backend_destroy(backend);
    return status;
}

int command_bench(int argc, char **argv) {
    arguments a = {
        .bench = {
            .lists = LISTS_LOCAL | LISTS_RANDOM, .warm = 1, .cold = -1, .rules = {.seconds = 0.3}}};
    bench_shape *shapes = NULL;
    int count = 0;
    common_defaults(&a.common);
    a.common.threads = 1;
    argp_parse(&bench_argp, argc, argv, 0, NULL, &a);
    /* A question about one stage or shape gets its answer only. */
    a.bench.json = a.common.json;
    a.bench.checks = a.bench.scaling || (a.count == 0 && a.bench.stages == 0);
    if (a.bench.stages == 0)
        a.bench.stages = (1 << STAGES) - 1;
    int status = choose_shapes(&a, &shapes, &count);
    if (status == STATUS_GOOD)
        status = a.list   ? list_shapes(shapes, count, a.common.json)
                 : a.cuda ? bench_cuda(&a.bench, shapes, count)
                          : run(&a, shapes, count);
    free(shapes);
    return status;
}
