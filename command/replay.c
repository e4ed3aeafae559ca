/* SPDX-License-Identifier: MIT */
/*
 * replay.c: a server's life replayed: the options, the statements in their order, and the report.
 * The first list that is not the oracle's ends the replay.
 */
#include "replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tamis/shards.h>

enum {
    OPTION_CHUNK = 0x6001,
    OPTION_PAGE_SIZE,
    OPTION_BACKEND,
    OPTION_GRAPH,
    OPTION_RANKS,
    OPTION_SPARSE,
    OPTION_ROWS,
    OPTION_DIGEST,
    OPTION_PLANT,
    OPTION_GENERATE,
    OPTION_STEPS,
    OPTION_PRINT
};

static const struct argp_option option_list[] = {
    {"chunk", OPTION_CHUNK, "N", 0, "Prefill at most N tokens of a request in a step", 1},
    {"page-size", OPTION_PAGE_SIZE, "N", 0, "Positions of a page, instead of the script's", 1},
    {"sparse", OPTION_SPARSE, "on|off|auto", 0, "indexer_sparse_logits (on)", 1},
    {"backend", OPTION_BACKEND, "cpu|cuda", 0,
     "Where steps run: the CPU (default) or the first NVIDIA GPU", 2},
    {"graph", OPTION_GRAPH, NULL, 0,
     "On a GPU: capture a step of each size once and replay it for all others", 2},
    {"ranks", OPTION_RANKS, "N", 0,
     "Spread K over N ranks of a context-parallel group, threads of this process", 2},
    {"rows", OPTION_ROWS, "N", 0, "Judge at most N rows of each step (default: all)", 3},
    {"digest", OPTION_DIGEST, NULL, 0,
     "Print a digest of every selection and published block: the same for every chunk, page size, "
     "thread count, tier, "
     "backend and number of ranks",
     3},
    {"generate", OPTION_GENERATE, "SEED", 0, "Run a random script instead of SCRIPT", 4},
    {"steps", OPTION_STEPS, "N", 0, "With --generate: about N steps (300)", 4},
    {"print", OPTION_PRINT, NULL, 0, "With --generate: print the script, run nothing", 4},
    {"plant", OPTION_PLANT, "NAME", OPTION_HIDDEN, "", 5},
    COMMON_OPTION_TIER,
    COMMON_OPTION_THREADS,
    COMMON_OPTION_JSON,
    {0}};

static int32_t choose(const struct argp_state *state, const char *name, const char *arg,
                      const char *const *words, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (strcmp(words[i], arg) == 0)
            return i;
    usage_error(state, "%s: required one of --help's, found '%s'", name, arg);
}

static void check_options(const struct argp_state *state, const replay_options *o) {
    if (!o->generate && !o->script)
        usage_error(state, "a SCRIPT or --generate is needed; see tamis replay --help");
    if (o->generate && o->script)
        usage_error(state, "--generate: required no SCRIPT, found '%s'", o->script);
    if (!o->generate && (o->print || o->steps))
        usage_error(state, "%s: required --generate, found none", o->print ? "--print" : "--steps");
    if (o->graph && !o->cuda)
        usage_error(state, "--graph: required --backend cuda, found cpu");
    if (o->cuda && o->ranks)
        usage_error(state, "--ranks: required --backend cpu, found cuda");
    if (o->cuda && o->common.tier)
        usage_error(state, "--tier: required --backend cpu, found cuda");
}

static error_t parse_replay(int key, char *arg, struct argp_state *state) {
    static const char *const backends[] = {"cpu", "cuda"}, *const sparse[] = {"off", "on", "auto"};
    replay_options *o = state->input;
    switch (key) {
    case OPTION_CHUNK:
        o->chunk = parse_number(state, "--chunk", arg, 1, 1 << 16);
        return 0;
    case OPTION_PAGE_SIZE:
        o->page_size = (int32_t)parse_number(state, "--page-size", arg, 8, 1 << 16);
        return 0;
    case OPTION_BACKEND:
        o->cuda = choose(state, "--backend", arg, backends, 2);
        return 0;
    case OPTION_GRAPH:
        o->graph = 1;
        return 0;
    case OPTION_RANKS:
        o->ranks = (int32_t)parse_number(state, "--ranks", arg, 1, TAMIS_MAX_RANKS);
        return 0;
    case OPTION_SPARSE:
        o->sparse = choose(state, "--sparse", arg, sparse, 3);
        return 0;
    case OPTION_ROWS:
        o->rows = parse_number(state, "--rows", arg, 1, INT32_MAX);
        return 0;
    case OPTION_DIGEST:
        o->digest = 1;
        return 0;
    case OPTION_PLANT:
        o->plant = replay_plant_of(arg);
        if (!o->plant)
            usage_error(state, "--plant: required a fault of docs/replay.md, found '%s'", arg);
        return 0;
    case OPTION_GENERATE:
        o->generate = 1;
        o->seed = parse_number(state, "--generate", arg, 0, INT64_MAX);
        return 0;
    case OPTION_STEPS:
        o->steps = parse_number(state, "--steps", arg, 1, 1000000);
        return 0;
    case OPTION_PRINT:
        o->print = 1;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 1)
            usage_error(state, "SCRIPT and TRACE are taken, found '%s' as well", arg);
        *(state->arg_num ? &o->trace : &o->script) = arg;
        return 0;
    case ARGP_KEY_END:
        check_options(state, o);
        return 0;
    default:
        return common_parse(key, arg, state, &o->common);
    }
}

static const struct argp replay_argp = {
    .options = option_list,
    .parser = parse_replay,
    .args_doc = "SCRIPT [TRACE]\n--generate SEED",
    .doc = "Replay a server's life: requests of SCRIPT arrive, are prefilled in chunks, decode "
           "with drafts, share prefixes, are preempted, saved, restored and finish, on pages that "
           "others have left dirty. Every selection of every layer is held against an oracle that "
           "knows the histories of requests and nothing of pages."
           "\vThe exit status is 0 when all are right, 1 when one is not or the library refused a "
           "step, and 2 for a script that cannot be read or done. docs/replay.md has the form of "
           "scripts. With TRACE, rows of its tensors stand in for made ones."};

/* ---- report -------------------------------------------------------------------------------- */

static void report(const replay *r, int status, double seconds) {
    const replay_engine *e = r->world.engine;
    const char *machine = e ? e->calls->machine(e) : "nothing run";
    const char *verdict = status == STATUS_WRONG ? "WRONG" : e ? "exact" : "refused as required";
    char digest[20];
    snprintf(digest, sizeof digest, "%016" PRIx64, r->digest);
    if (r->options->common.json) {
        print_json(json_pack(
            "{s:o, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:o, s:f}", "script",
            json_text(r->script.file), "backend", r->options->cuda ? "cuda" : "cpu", "machine",
            machine, "steps", (json_int_t)r->steps, "rows", (json_int_t)r->rows, "judged",
            (json_int_t)r->judged, "digest", digest, "verdict", verdict, "mismatch",
            json_text(*r->verdict ? r->verdict : NULL), "seconds", seconds));
        return;
    }
    if (r->options->digest && e)
        printf("digest: %s\n", digest);
    printf("replay: %s, %s steps, %s rows, %s lists judged, %s, %.1f s\n", verdict,
           grouped(r->steps), grouped(r->rows), grouped(r->judged), machine, seconds);
}

/* ---- setting up ---------------------------------------------------------------------------- */

static void make_model(const replay_script *s, tamis_model *model) {
    int two_levels = s->source >= 0;
    *model = (tamis_model){.struct_size = sizeof *model,
                           .num_layers = s->layers,
                           .compress_ratios = s->ratio,
                           .kv_source_layer_ids = s->owner,
                           .index_source_layer_ids = s->index,
                           .num_kv_sources = s->owners,
                           .num_index_sources = s->indexes,
                           .candidate_source_layer_id = s->source,
                           .candidate_topk_blocks = two_levels ? s->blocks : 0,
                           .candidate_block_size = two_levels ? s->block_size : 0,
                           .index_n_heads = s->heads,
                           .index_head_dim = s->dim,
                           .index_topk = s->topk};
}

/* Creation fails: as the script requires, or with what it did not expect. */
static int judge_refusal(replay *r, const tamis_requirement *failures, int32_t count) {
    char text[512] = "nothing failed";
    const char *wanted = r->script.refused;
    for (int32_t i = 0; i < count; i++)
        if (strcmp(failures[i].id, wanted) == 0)
            return STATUS_GOOD;
    if (count > 0)
        tamis_requirement_text(&failures[0], text, sizeof text);
    if (!wanted[0])
        return fail("%s: the indexer cannot be created: %s", r->script.file, text);
    snprintf(r->verdict, sizeof r->verdict, "%s: creation must be refused by %s: %.200s",
             r->script.file, wanted, text);
    return STATUS_WRONG;
}

static int create_indexer(replay *r) {
    const replay_script *s = &r->script;
    const char *tier = r->options->common.tier ? r->options->common.tier : getenv("TAMIS_TIER");
    tamis_indexer_options options;
    tamis_settings settings;
    tamis_model model;
    tamis_requirement failures[16];
    tamis_error error = {0};
    make_model(s, &model);
    tamis_settings_default(&settings);
    settings.indexer_sparse_logits = r->options->sparse;
    settings.numerics = numerics_name(s->numerics);
    tamis_plan_limits_default(&r->setup.limits);
    r->setup.limits.max_requests = s->max_requests;
    r->setup.limits.max_batched_tokens = s->max_tokens;
    r->setup.limits.draft_tokens = s->drafts;
    r->setup.limits.largest_graph = r->options->graph ? s->max_tokens : 0;
    r->setup.limits.threads = r->options->common.threads;
    r->setup.limits.max_context = s->max_context;
    tamis_indexer_options_default(&options);
    options.model = &model;
    options.settings = &settings;
    options.tier = tier;
    options.page_size = r->setup.page_size;
    options.page_align = s->page_align;
    options.context_parallel =
        r->options->ranks && s->context_parallel == 1 ? r->options->ranks : s->context_parallel;
    options.decode_parallel = s->decode_parallel;
    options.limits = &r->setup.limits;
    int32_t failed = tamis_indexer_supported(&options, failures, 16);
    if (failed > 0 || s->refused[0])
        return judge_refusal(r, failures, failed < 16 ? failed : 16);
    if (s->context_parallel != 1 && s->context_parallel != r->options->ranks)
        return replay_script_error(s, s->head_line[0], "context_parallel",
                                   "1, or the number of --ranks", "%d", (int)s->context_parallel);
    if (tamis_indexer_create(&options, &r->setup.indexer, &error) != TAMIS_OK)
        return fail_error(s->file, &error);
    for (int32_t i = 0; i < s->layers; i++) {
        r->roles[i] = *tamis_indexer_role(r->setup.indexer, i);
        r->used[i] = r->roles[i].role == TAMIS_ROLE_REUSE ? r->roles[i].source : i;
    }
    return STATUS_GOOD;
}

static int open_engine(replay *r) {
    tamis_error error = {0};
    replay_setup *setup = &r->setup;
    setup->options = r->options;
    setup->script = &r->script;
    setup->inputs = &r->inputs;
    setup->roles = r->roles;
    setup->page_stride = r->world.page_stride;
    setup->pages_each = r->world.pages_each;
    setup->pages[0] = r->world.pool[0].count;
    setup->pages[1] = r->world.pool[1].count;
    r->world.engine = (r->options->cuda    ? replay_cuda_open
                       : r->options->ranks ? replay_ranks_open
                                           : replay_cpu_open)(setup, &error);
    return r->world.engine ? STATUS_GOOD
                           : fail_error(r->options->cuda ? "--backend cuda" : "replay", &error);
}

static int set_up(replay *r, const tamis_trace *trace) {
    const replay_script *s = &r->script;
    r->again = 1;
    r->plant.kind = r->options->plant;
    int status = replay_inputs_make(&r->inputs, s, trace);
    if (status == STATUS_GOOD)
        status = replay_world_make(&r->world, s, r->setup.page_size);
    if (status == STATUS_GOOD)
        status = replay_flight_make(&r->flight, s, r->world.pages_each);
    if (status == STATUS_GOOD)
        status = replay_plant_make(&r->plant, s, r->world.pages_each);
    if (status == STATUS_GOOD)
        status = open_backend(&r->options->common, &r->setup.backend);
    if (status == STATUS_GOOD)
        status = open_pool(&r->options->common, &r->setup.pool);
    if (status != STATUS_GOOD)
        return status;
    r->judge = replay_judge_new(s, &r->inputs, r->setup.pool);
    return r->judge ? open_engine(r) : fail("%s: no memory to judge it", s->file);
}

static void tear_down(replay *r) {
    if (r->world.engine)
        r->world.engine->calls->close(r->world.engine);
    replay_judge_free(r->judge);
    tamis_pool_destroy(r->setup.pool);
    tamis_backend_destroy(r->setup.backend);
    tamis_indexer_destroy(r->setup.indexer);
    replay_plant_free(&r->plant);
    replay_flight_free(&r->flight);
    replay_world_free(&r->world);
    replay_inputs_free(&r->inputs);
}

static int run_script(replay *r, const tamis_trace *trace) {
    double start = seconds_now();
    r->setup.page_size = r->options->page_size ? r->options->page_size : r->script.page_size;
    int status = create_indexer(r);
    if (status == STATUS_GOOD && r->setup.indexer) {
        status = set_up(r, trace);
        if (status == STATUS_GOOD)
            status = replay_statements(r);
    }
    if (status != STATUS_BAD)
        report(r, status, seconds_now() - start);
    if (status == STATUS_WRONG)
        fail("%s", r->verdict);
    tear_down(r);
    return status;
}

/* The whole file as text, or NULL and why. A device may have no end. */
static char *read_file(const char *path) {
    enum { MOST_BYTES = 1 << 28 };
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0, room = 0, got = 1;
    while (file && got > 0 && size <= MOST_BYTES) {
        if (size + 4096 > room) {
            char *grown = realloc(text, room = 2 * room + 8192);
            if (!grown)
                break;
            text = grown;
        }
        got = fread(text + size, 1, 4095, file);
        size += got;
    }
    int good = file && got == 0 && !ferror(file);
    if (size > MOST_BYTES)
        fail("%s: required a script of at most 256 MiB, found more", path);
    else if (!good)
        fail("%s: %s", path, strerror(errno ? errno : ENOMEM));
    else
        text[size] = 0;
    if (file)
        fclose(file);
    if (good && strlen(text) != size) {
        fail("%s: required text, found a byte 0", path);
        good = 0;
    }
    if (!good)
        free(text);
    return good ? text : NULL;
}

int command_replay(int argc, char **argv) {
    replay_options options = {.sparse = TAMIS_SPARSE_ON};
    char name[48];
    common_defaults(&options.common);
    argp_parse(&replay_argp, argc, argv, 0, NULL, &options);
    replay *r = calloc(1, sizeof *r);
    tamis_trace *trace = NULL;
    tamis_error error = {0};
    if (!r)
        return fail("no memory");
    snprintf(name, sizeof name, "generated-%" PRId64, options.seed);
    r->options = &options;
    char *text = options.generate
                     ? replay_generate((uint64_t)options.seed, options.steps ? options.steps : 300)
                     : read_file(options.script);
    int status = text ? STATUS_GOOD : options.generate ? fail("no memory") : STATUS_BAD;
    if (status == STATUS_GOOD && options.print) {
        fputs(text, stdout);
    } else if (status == STATUS_GOOD) {
        catch_signals();
        if (options.trace && tamis_trace_open(options.trace, &trace, &error) != TAMIS_OK)
            status = fail_error(options.trace, &error);
        if (status == STATUS_GOOD)
            status = replay_script_read(&r->script, options.generate ? name : options.script, text);
        if (status == STATUS_GOOD)
            status = run_script(r, trace);
        replay_script_free(&r->script);
    }
    tamis_trace_close(trace);
    free(text);
    free(r);
    return status;
}
