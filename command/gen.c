/* SPDX-License-Identifier: MIT */
/*
 * gen.c: writes a synthetic trace of any size in bounded memory. Codes go to the file as they are
 * made; scales, which the format stores after all codes, are kept: 4 bytes a position.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "gen.h"
#include "trace.h"

typedef struct gen_options {
    common_options common;
    const char *out;
    int64_t positions, rows, seed;
    int32_t heads, dim, topk, blocks, block_size, ratio, consumers, full, requests;
    uint32_t hazards;
    int spread;
} gen_options;

enum { CHUNK = 4096, MAX_POSITIONS = 1048576, NAME_SIZE = 32 };
enum {
    OPTION_POSITIONS = 0x3001,
    OPTION_ROWS,
    OPTION_HEADS,
    OPTION_DIM,
    OPTION_TOPK,
    OPTION_BLOCKS,
    OPTION_BLOCK_SIZE,
    OPTION_RATIO,
    OPTION_LAYERS,
    OPTION_FULL,
    OPTION_REQUESTS,
    OPTION_SEED,
    OPTION_HAZARD,
    OPTION_ROWS_AT
};

static const struct argp_option option_list[] = {
    {"positions", OPTION_POSITIONS, "N", 0, "Positions over all requests (131072; at most 1048576)",
     1},
    {"rows", OPTION_ROWS, "N", 0, "Query rows over all requests (64)", 1},
    {"rows-at", OPTION_ROWS_AT, "WHERE", 0,
     "end (default): the newest tokens of each request; spread: evenly over its whole context", 1},
    {"requests", OPTION_REQUESTS, "N", 0,
     "Requests that share rows and positions, later ones longer (1)", 1},
    {"seed", OPTION_SEED, "N", 0, "Seed: the same seed and options give the same bytes (1)", 1},
    {"heads", OPTION_HEADS, "N", 0, "Heads, a multiple of 4 up to 64 (32)", 2},
    {"dim", OPTION_DIM, "N", 0, "Head dimension, 64 or 128 (128)", 2},
    {"topk", OPTION_TOPK, "N", 0, "Positions a row selects, up to 4096 (512)", 2},
    {"blocks", OPTION_BLOCKS, "N", 0, "Blocks a row publishes, up to 4096 (2048)", 2},
    {"block-size", OPTION_BLOCK_SIZE, "N", 0, "Positions of a block, 8 or 16 (8)", 2},
    {"ratio", OPTION_RATIO, "N", 0, "Tokens per position, 1 or 2 (1)", 2},
    {"layers", OPTION_LAYERS, "N", 0, "Consumer layers after the candidate source, up to 32 (4)",
     2},
    {"full", OPTION_FULL, "N", 0, "Full layers before it, each with keys of its own, up to 8 (0)",
     2},
    {"hazard", OPTION_HAZARD, "NAME", 0, "Mix in a hazard (listed below); may be given again", 3},
    COMMON_OPTION_JSON,
    {0}};

static void add_hazard(const struct argp_state *state, const char *name, uint32_t *hazards) {
#define MATCH(id, bit, text, what)                                                                 \
    if (strcmp(name, text) == 0) {                                                                 \
        *hazards |= HAZARD_##id;                                                                   \
        return;                                                                                    \
    }
    HAZARD_LIST(MATCH)
#undef MATCH
#define NAME(id, bit, text, what) " " text
    usage_error(state, "--hazard: required one of" HAZARD_LIST(NAME) ", found '%s'", name);
#undef NAME
}

static int32_t one_of(const struct argp_state *state, const char *name, const char *arg, int32_t a,
                      int32_t b) {
    int64_t value = parse_number(state, name, arg, a, b);
    if (value != a && value != b)
        usage_error(state, "%s: required %d or %d, found '%s'", name, (int)a, (int)b, arg);
    return (int32_t)value;
}

static error_t parse_shape(int key, char *arg, struct argp_state *state, gen_options *gen) {
    switch (key) {
    case OPTION_POSITIONS:
        gen->positions = parse_number(state, "--positions", arg, 1, MAX_POSITIONS);
        return 0;
    case OPTION_ROWS:
        gen->rows = parse_number(state, "--rows", arg, 1, MAX_POSITIONS);
        return 0;
    case OPTION_HEADS:
        gen->heads = (int32_t)parse_number(state, "--heads", arg, 4, TAMIS_MAX_HEADS);
        if (gen->heads % 4)
            usage_error(state, "--heads: required a multiple of 4, found '%s'", arg);
        return 0;
    case OPTION_DIM:
        gen->dim = one_of(state, "--dim", arg, 64, 128);
        return 0;
    case OPTION_TOPK:
        gen->topk = (int32_t)parse_number(state, "--topk", arg, 1, TAMIS_MAX_TOPK);
        return 0;
    case OPTION_BLOCKS:
        gen->blocks = (int32_t)parse_number(state, "--blocks", arg, 1, TAMIS_MAX_BLOCKS);
        return 0;
    case OPTION_BLOCK_SIZE:
        gen->block_size = one_of(state, "--block-size", arg, 8, 16);
        return 0;
    case OPTION_RATIO:
        gen->ratio = one_of(state, "--ratio", arg, 1, 2);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_gen(int key, char *arg, struct argp_state *state) {
    gen_options *gen = state->input;
    switch (key) {
    case OPTION_LAYERS:
        gen->consumers = (int32_t)parse_number(state, "--layers", arg, 0, 32);
        return 0;
    case OPTION_FULL:
        gen->full = (int32_t)parse_number(state, "--full", arg, 0, 8);
        return 0;
    case OPTION_REQUESTS:
        gen->requests = (int32_t)parse_number(state, "--requests", arg, 1, 65536);
        return 0;
    case OPTION_SEED:
        gen->seed = parse_number(state, "--seed", arg, 0, INT64_MAX);
        return 0;
    case OPTION_HAZARD:
        add_hazard(state, arg, &gen->hazards);
        return 0;
    case OPTION_ROWS_AT:
        if (strcmp(arg, "end") != 0 && strcmp(arg, "spread") != 0)
            usage_error(state, "--rows-at: required end or spread, found '%s'", arg);
        gen->spread = arg[0] == 's';
        return 0;
    case ARGP_KEY_ARG:
        if (gen->out)
            usage_error(state, "one OUT is taken, found '%s' as well", arg);
        gen->out = arg;
        return 0;
    case ARGP_KEY_END:
        if (!gen->out)
            usage_error(state, "a file to write is needed; see tamis gen --help");
        return 0;
    default: {
        error_t taken = parse_shape(key, arg, state, gen);
        return taken == ARGP_ERR_UNKNOWN ? common_parse(key, arg, state, &gen->common) : taken;
    }
    }
}

#define HAZARD_LINE(id, bit, text, what) "\n  " text ": " what
static const struct argp gen_argp = {
    .options = option_list,
    .parser = parse_gen,
    .args_doc = "OUT",
    .doc = "Write a synthetic trace to OUT: MXFP4 keys, queries and weights with the statistics "
           "of trained ones. Numbers in parentheses are defaults."
           "\vHazards:" HAZARD_LIST(HAZARD_LINE)};

/* ---- the step: requests, contexts, rows -------------------------------------------------------
 */

typedef struct step {
    int32_t *context; /* [requests] tokens */
    int32_t *request; /* [rows] */
    int64_t *token;   /* [rows] */
    int64_t keys;     /* positions over all requests */
} step;

/* Request i gets a share of i+1 parts; odd ones end inside a group when there are groups. */
static int make_step(const gen_options *gen, step *s) {
    int64_t requests = gen->requests, parts = requests * (requests + 1) / 2, row = 0;
    s->context = calloc((size_t)requests, sizeof *s->context);
    s->request = calloc((size_t)gen->rows, sizeof *s->request);
    s->token = calloc((size_t)gen->rows, sizeof *s->token);
    if (!s->context || !s->request || !s->token)
        return fail("%s: no memory for %" PRId64 " rows", gen->out, gen->rows);
    for (int64_t i = 0; i < requests; i++) {
        int64_t before = gen->positions * (i * (i + 1) / 2) / parts;
        int64_t positions = gen->positions * ((i + 1) * (i + 2) / 2) / parts - before;
        int64_t context = positions * gen->ratio + (gen->ratio - 1) * (i % 2);
        int64_t rows = gen->rows / requests + (i < gen->rows % requests);
        if (rows > context)
            return fail("--rows: required at most the %" PRId64 " tokens of request %" PRId64
                        ", found %" PRId64,
                        context, i, rows);
        s->context[i] = (int32_t)context;
        s->keys += positions;
        for (int64_t m = 0; m < rows; m++, row++) {
            s->request[row] = (int32_t)i;
            s->token[row] = gen->spread ? (m + 1) * context / rows - 1 : context - rows + m;
        }
    }
    return STATUS_GOOD;
}

/* ---- the file ---------------------------------------------------------------------------------
 */

typedef struct file_state {
    const gen_options *gen;
    const step *step;
    const tamis_backend *backend;
    safetensors_writer *writer;
    uint8_t *codes;  /* a chunk */
    uint8_t *scales; /* a whole tensor */
    float *weights;  /* a whole tensor */
    progress bar;
    int64_t done;
} file_state;

static int32_t layers_of(const gen_options *gen) {
    return gen->full + 1 + gen->consumers;
}

static int32_t owner_of(const gen_options *gen, int32_t layer) {
    return layer < gen->full ? layer : gen->full;
}

static json_t *range(int32_t count, int32_t first, int32_t step_by) {
    json_t *list = json_array();
    for (int32_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(first + i * step_by));
    return list;
}

static char *model_text(const gen_options *gen) {
    int32_t layers = layers_of(gen);
    json_t *model = json_pack(
        "{s:i, s:o, s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:i}", "num_hidden_layers", (int)layers,
        "compress_ratios", range(layers, gen->ratio, 0), "kv_source_layer_ids",
        range(gen->full + 1, 0, 1), "index_source_layer_ids", range(layers, 0, 1),
        "candidate_source_layer_id", (int)gen->full, "candidate_topk_blocks", (int)gen->blocks,
        "candidate_block_size", (int)gen->block_size, "index_n_heads", (int)gen->heads,
        "index_head_dim", (int)gen->dim, "index_topk", (int)gen->topk);
    char *text = json_dumps(model, JSON_COMPACT);
    json_decref(model);
    return text;
}

static void hazard_words(uint32_t hazards, char *text, size_t size) {
    size_t at = 0;
    text[0] = 0;
#define WORD(id, bit, name, what)                                                                  \
    if (hazards & HAZARD_##id)                                                                     \
        at += (size_t)snprintf(text + at, size - at, "%s%s", at ? " " : "", name);
    HAZARD_LIST(WORD)
#undef WORD
}

/* Tensors in the order of writing: 8-byte, 4-byte, then single bytes, so that all are aligned. */
static int64_t list_tensors(const gen_options *gen, const step *s, safetensors_tensor *tensors,
                            char *names) {
    int64_t n = 0, rows = gen->rows, heads = gen->heads, codes = gen->dim / 2;
    int64_t scales = gen->dim / 32;
#define ADD(type, size, dims, a, b, c, ...)                                                        \
    do {                                                                                           \
        char *name_ = names + n * NAME_SIZE;                                                       \
        snprintf(name_, NAME_SIZE, __VA_ARGS__);                                                   \
        tensors[n++] = (safetensors_tensor){.name = name_,                                         \
                                            .dtype = (type),                                       \
                                            .rank = (dims),                                        \
                                            .shape = {(a), (b), (c)},                              \
                                            .bytes = (a) * (b) * (c) * (size)};                    \
    } while (0)
    ADD(SAFETENSORS_I64, 8, 1, rows, 1, 1, "position");
    ADD(SAFETENSORS_I32, 4, 1, rows, 1, 1, "request");
    ADD(SAFETENSORS_I32, 4, 1, (int64_t)gen->requests, 1, 1, "context");
    for (int32_t l = 0; l < layers_of(gen); l++) {
        ADD(SAFETENSORS_F32, 4, 2, rows, heads, 1, "w.%d", (int)l);
        ADD(SAFETENSORS_U8, 1, 3, rows, heads, codes, "q.%d.codes", (int)l);
        ADD(SAFETENSORS_U8, 1, 3, rows, heads, scales, "q.%d.scales", (int)l);
    }
    for (int32_t l = 0; l <= gen->full; l++) {
        ADD(SAFETENSORS_U8, 1, 2, s->keys, codes, 1, "k.%d.codes", (int)l);
        ADD(SAFETENSORS_U8, 1, 2, s->keys, scales, 1, "k.%d.scales", (int)l);
    }
#undef ADD
    return n;
}

static int begin_file(file_state *f) {
    const gen_options *gen = f->gen;
    size_t most = 3 + 5 * (size_t)layers_of(gen);
    safetensors_tensor *tensors = calloc(most, sizeof *tensors);
    char *names = calloc(most, NAME_SIZE), *model = model_text(gen), hazards[128], about[256];
    hazard_words(gen->hazards, hazards, sizeof hazards);
    snprintf(about, sizeof about, "synthetic values, seed %" PRId64 ", hazards: %s", gen->seed,
             hazards[0] ? hazards : "none");
    const char *metadata[] = {"format", "tamis-trace/1", "model", model, "about", about};
    tamis_error error = {.status = TAMIS_ERROR_MEMORY, .argument = "OUT"};
    tamis_status status = TAMIS_ERROR_MEMORY;
    if (tensors && names && model)
        status =
            safetensors_writer_begin(gen->out, tensors, list_tensors(gen, f->step, tensors, names),
                                     metadata, 3, &f->writer, &error);
    free(tensors);
    free(names);
    free(model);
    return status == TAMIS_OK ? STATUS_GOOD : fail_error(gen->out, &error);
}

static tamis_status write_codes(file_state *f, int64_t rows, int64_t bytes, tamis_error *error) {
    f->done += rows;
    progress_show(&f->bar, f->done);
    return safetensors_writer_data(f->writer, f->codes, bytes, error);
}

static tamis_status write_keys(file_state *f, int32_t layer, tamis_error *error) {
    const gen_options *gen = f->gen;
    int64_t keys = f->step->keys, groups = gen->dim / 32;
    synth s;
    synth_keys(&s, f->backend, gen->hazards, gen->dim, (uint64_t)gen->seed, layer);
    tamis_status status = TAMIS_OK;
    for (int64_t j = 0; j < keys && status == TAMIS_OK && !stopped; j += CHUNK) {
        int64_t count = keys - j < CHUNK ? keys - j : CHUNK;
        status = synth_next_keys(&s, count, f->codes, f->scales + j * groups, error);
        if (status == TAMIS_OK)
            status = write_codes(f, count, count * gen->dim / 2, error);
    }
    return status == TAMIS_OK && !stopped
               ? safetensors_writer_data(f->writer, f->scales, keys * groups, error)
               : status;
}

/* The format puts weights first, so the queries are made twice: they are few. */
static tamis_status write_queries(file_state *f, int32_t layer, tamis_error *error) {
    const gen_options *gen = f->gen;
    int64_t rows = gen->rows, groups = (int64_t)gen->heads * gen->dim / 32;
    int64_t chunk = CHUNK / gen->heads;
    tamis_status status = TAMIS_OK;
    for (int pass = 0; pass < 2 && status == TAMIS_OK; pass++) {
        synth s;
        synth_queries(&s, f->backend, gen->hazards, gen->heads, gen->dim, (uint64_t)gen->seed,
                      layer, owner_of(gen, layer));
        for (int64_t r = 0; r < rows && status == TAMIS_OK && !stopped; r += chunk) {
            int64_t count = rows - r < chunk ? rows - r : chunk;
            status = synth_next_queries(&s, count, f->codes, f->scales + r * groups,
                                        f->weights + r * gen->heads, error);
            if (status == TAMIS_OK && pass == 1)
                status = write_codes(f, 0, count * gen->heads * gen->dim / 2, error);
        }
        if (status == TAMIS_OK && pass == 0 && !stopped)
            status = safetensors_writer_data(f->writer, f->weights, rows * gen->heads * 4, error);
    }
    return status == TAMIS_OK && !stopped
               ? safetensors_writer_data(f->writer, f->scales, rows * groups, error)
               : status;
}

static tamis_status write_step(file_state *f, tamis_error *error) {
    const step *s = f->step;
    int64_t rows = f->gen->rows;
    tamis_status status = safetensors_writer_data(f->writer, s->token, rows * 8, error);
    if (status == TAMIS_OK)
        status = safetensors_writer_data(f->writer, s->request, rows * 4, error);
    if (status == TAMIS_OK)
        status =
            safetensors_writer_data(f->writer, s->context, (int64_t)f->gen->requests * 4, error);
    return status;
}

/* A signal ends a loop early, between two writes: then the file is cut short and goes. */
static int write_file(file_state *f) {
    tamis_error error = {0};
    tamis_status status = write_step(f, &error);
    for (int32_t l = 0; l < layers_of(f->gen) && status == TAMIS_OK && !stopped; l++)
        status = write_queries(f, l, &error);
    for (int32_t l = 0; l <= f->gen->full && status == TAMIS_OK && !stopped; l++)
        status = write_keys(f, l, &error);
    return status == TAMIS_OK ? check_stopped() : fail_error(f->gen->out, &error);
}

static int commit_file(file_state *f) {
    tamis_error error = {0};
    safetensors_writer *writer = f->writer;
    f->writer = NULL; /* commit frees it, whatever it returns */
    return safetensors_writer_commit(writer, &error) == TAMIS_OK ? STATUS_GOOD
                                                                 : fail_error(f->gen->out, &error);
}

static void report(const gen_options *gen, const step *s) {
    char hazards[128];
    hazard_words(gen->hazards, hazards, sizeof hazards);
    if (gen->common.json) {
        print_json(json_pack("{s:o, s:I, s:I, s:i, s:i, s:I, s:s}", "trace", json_text(gen->out),
                             "positions", (json_int_t)s->keys, "rows", (json_int_t)gen->rows,
                             "requests", (int)gen->requests, "layers", (int)layers_of(gen), "seed",
                             (json_int_t)gen->seed, "hazards", hazards));
        return;
    }
    printf("%s: %s positions, %s rows, %d requests, %d layers, seed %" PRId64 ", hazards: %s\n",
           gen->out, grouped(s->keys), grouped(gen->rows), (int)gen->requests, (int)layers_of(gen),
           gen->seed, hazards[0] ? hazards : "none");
}

static int make_file(file_state *f) {
    const gen_options *gen = f->gen;
    int64_t vectors = gen->rows * gen->heads;
    int64_t most = vectors > f->step->keys ? vectors : f->step->keys;
    f->codes = malloc((size_t)CHUNK * (size_t)gen->dim / 2);
    f->scales = malloc((size_t)most * (size_t)gen->dim / 32);
    f->weights = malloc((size_t)vectors * sizeof *f->weights);
    int status =
        f->codes && f->scales && f->weights ? begin_file(f) : fail("%s: no memory", gen->out);
    if (status == STATUS_GOOD) {
        progress_begin(&f->bar, "gen", f->step->keys * (gen->full + 1));
        status = write_file(f);
        progress_end(&f->bar);
    }
    if (status == STATUS_GOOD) {
        /* The file is the last to appear: a report that is lost takes it along. */
        report(gen, f->step);
        status = flush_output(STATUS_GOOD);
    }
    if (status == STATUS_GOOD)
        status = commit_file(f);
    if (f->writer)
        safetensors_writer_abort(f->writer);
    free(f->codes);
    free(f->scales);
    free(f->weights);
    return status;
}

int command_gen(int argc, char **argv) {
    gen_options gen = {.positions = 131072,
                       .rows = 64,
                       .seed = 1,
                       .heads = 32,
                       .dim = 128,
                       .topk = 512,
                       .blocks = 2048,
                       .block_size = 8,
                       .ratio = 1,
                       .consumers = 4,
                       .requests = 1};
    common_defaults(&gen.common);
    argp_parse(&gen_argp, argc, argv, 0, NULL, &gen);
    tamis_backend *backend = NULL;
    step s = {0};
    int status = open_backend(&gen.common, &backend);
    if (status == STATUS_GOOD)
        status = make_step(&gen, &s);
    if (status == STATUS_GOOD) {
        catch_signals();
        file_state f = {.gen = &gen, .step = &s, .backend = backend};
        status = make_file(&f);
    }
    free(s.context);
    free(s.request);
    free(s.token);
    tamis_backend_destroy(backend);
    return status;
}
