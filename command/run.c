/* SPDX-License-Identifier: MIT */
/*
 * run.c: selects positions for every row of every layer of a trace. One layer's results are held at
 * a time, besides the published blocks; the result file is written layer by layer.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "select_cuda.h"

typedef struct run_options {
    common_options common;
    const char *trace;
    const char *result; /* -o; NULL: results are not kept */
    const char *layers; /* --layers; NULL: all */
    int32_t numerics;
    int scores, slots, dense;
    int cuda; /* --backend */
} run_options;

/* What the table says of a layer. */
typedef struct layer_line {
    int chosen; /* by --layers */
    int64_t scored, selected;
    double seconds;
} layer_line;

typedef struct run_state {
    const run_options *options;
    const tamis_trace *trace;
    selector select;
    safetensors_writer *writer; /* NULL without -o */
    layer_output out;
    int32_t *counts; /* [layer_count][rows] */
    layer_line *lines;
    int32_t width; /* blocks per row; 0 when the model is one-level */
} run_state;

enum {
    OPTION_SCORES = 0x2001,
    OPTION_SLOTS,
    OPTION_NUMERICS,
    OPTION_LAYERS,
    OPTION_DENSE,
    OPTION_BACKEND
};

static const struct argp_option option_list[] = {
    {"output", 'o', "RESULT", 0,
     "Write the selections to RESULT, a safetensors file: selected.<layer>, count.<layer>, blocks",
     1},
    {"scores", OPTION_SCORES, NULL, 0, "Also write score.<layer>, the f32 scores of the selected",
     1},
    {"slots", OPTION_SLOTS, NULL, 0,
     "Also write slot.<layer>, the K row of each selected position over all requests", 1},
    {"numerics", OPTION_NUMERICS, "CLASS", 0, "exact (default) or bf16", 2},
    {"layers", OPTION_LAYERS, "LIST", 0,
     "Only these layers, for example 20,24. A consumer brings the source it reads along", 2},
    {"dense", OPTION_DENSE, NULL, 0,
     "Consumers score their whole context and mask by the blocks: the same results, for comparison",
     2},
    {"backend", OPTION_BACKEND, "cpu|cuda", 0,
     "Where the work is done (default: cpu). cuda is the first NVIDIA GPU; the same results", 2},
    COMMON_OPTION_TIER,
    COMMON_OPTION_THREADS,
    COMMON_OPTION_JSON,
    {0}};

static error_t parse_run(int key, char *arg, struct argp_state *state) {
    run_options *run = state->input;
    switch (key) {
    case 'o':
        run->result = arg;
        return 0;
    case OPTION_SCORES:
        run->scores = 1;
        return 0;
    case OPTION_SLOTS:
        run->slots = 1;
        return 0;
    case OPTION_DENSE:
        run->dense = 1;
        return 0;
    case OPTION_LAYERS:
        run->layers = arg;
        return 0;
    case OPTION_BACKEND:
        run->cuda = strcmp(arg, "cuda") == 0;
        if (!run->cuda && strcmp(arg, "cpu") != 0)
            usage_error(state, "--backend: required cpu or cuda, found '%s'", arg);
        return 0;
    case OPTION_NUMERICS:
        run->numerics = numerics_of(arg);
        if (run->numerics != TAMIS_NUMERICS_EXACT && run->numerics != TAMIS_NUMERICS_BF16)
            usage_error(state, "--numerics: required exact or bf16, found '%s'", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (run->trace)
            usage_error(state, "one TRACE is taken, found '%s' as well", arg);
        run->trace = arg;
        return 0;
    case ARGP_KEY_END:
        if (!run->trace)
            usage_error(state, "a TRACE is needed; see tamis run --help");
        if ((run->scores || run->slots) && !run->result)
            usage_error(state, "--scores and --slots need -o RESULT");
        if (run->cuda && run->common.tier)
            usage_error(state, "--tier names kernels of the CPU: required --backend cpu");
        return 0;
    default:
        return common_parse(key, arg, state, &run->common);
    }
}

static const struct argp run_argp = {
    .options = option_list,
    .parser = parse_run,
    .args_doc = "TRACE",
    .doc = "Select positions for every row and layer of TRACE and print one table."
           "\vFull layers and the candidate source score every visible position; the source also "
           "publishes its best blocks, and consumers score only inside those. Reuse layers score "
           "nothing. Memory is the trace plus a bounded workspace and the results of one layer."};

/* ---- which layers -----------------------------------------------------------------------------
 */

static int32_t index_of_layer(const tamis_trace *trace, int64_t layer) {
    for (int32_t i = 0; i < trace->layer_count; i++)
        if (trace->layers[i].layer == layer)
            return i;
    return -1;
}

/* Marks the layers of --layers. The list is short and comma-separated. */
static int choose_layers(run_state *run) {
    const tamis_trace *trace = run->trace;
    const char *at = run->options->layers;
    for (int32_t i = 0; i < trace->layer_count; i++)
        run->lines[i].chosen = !at;
    while (at) {
        char *end;
        long long layer = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ','))
            return fail("--layers: required layer numbers with commas, found '%s'", at);
        int32_t i = index_of_layer(trace, layer);
        if (i < 0 || !trace->layers[i].present)
            return fail("--layers: required a layer that selects and that the trace holds, "
                        "found %lld",
                        layer);
        run->lines[i].chosen = 1;
        if (trace->layers[i].role.role == TAMIS_ROLE_CONSUMER) {
            int32_t source = index_of_layer(trace, trace->layers[i].role.source);
            run->lines[source].chosen = trace->layers[source].present;
        }
        at = *end ? end + 1 : NULL;
    }
    return STATUS_GOOD;
}

static int runs(const run_state *run, int32_t i) {
    return run->lines[i].chosen && run->trace->layers[i].present;
}

static int prepare_blocks(run_state *run) {
    const tamis_trace *trace = run->trace;
    int32_t consumer = -1;
    for (int32_t i = trace->layer_count - 1; i >= 0; i--)
        if (runs(run, i) && trace->layers[i].role.role == TAMIS_ROLE_CONSUMER)
            consumer = trace->layers[i].layer;
    run->width = trace->model.candidate_topk_blocks;
    return selector_take_blocks(&run->select, consumer);
}

static int prepare_output(run_state *run) {
    const tamis_trace *trace = run->trace;
    size_t rows = (size_t)trace->rows + 1, cells = rows * (size_t)trace->model.index_topk;
    run->out.positions = malloc(cells * sizeof *run->out.positions);
    run->counts = malloc(rows * (size_t)trace->layer_count * sizeof *run->counts);
    if (run->options->slots)
        run->out.slots = malloc(cells * sizeof *run->out.slots);
    if (run->options->scores)
        run->out.scores = malloc(cells * sizeof *run->out.scores);
    if (!run->out.positions || !run->counts || (run->options->slots && !run->out.slots) ||
        (run->options->scores && !run->out.scores))
        return fail("%s: no memory for the results of %" PRId64 " rows", trace->path, trace->rows);
    return STATUS_GOOD;
}

/* ---- the result file --------------------------------------------------------------------------
 */

enum { NAME_SIZE = 32 };

/* Tensors in the order in which they become known; counts last, so that i64 stays aligned. */
static int64_t list_tensors(const run_state *run, safetensors_tensor *tensors, char *names) {
    const tamis_trace *trace = run->trace;
    int64_t n = 0;
#define ADD(type, size, columns, ...)                                                              \
    do {                                                                                           \
        char *name_ = names + n * NAME_SIZE;                                                       \
        snprintf(name_, NAME_SIZE, __VA_ARGS__);                                                   \
        tensors[n++] =                                                                             \
            (safetensors_tensor){.name = name_,                                                    \
                                 .dtype = (type),                                                  \
                                 .rank = (columns) ? 2 : 1,                                        \
                                 .shape = {trace->rows, (columns)},                                \
                                 .bytes = trace->rows * ((columns) ? (columns) : 1) * (size)};     \
    } while (0)
    for (int32_t i = 0; i < trace->layer_count; i++) {
        if (!runs(run, i))
            continue;
        int32_t layer = trace->layers[i].layer, topk = trace->model.index_topk;
        if (run->options->slots)
            ADD(SAFETENSORS_I64, 8, topk, "slot.%d", (int)layer);
        ADD(SAFETENSORS_I32, 4, topk, "selected.%d", (int)layer);
        if (run->options->scores)
            ADD(SAFETENSORS_F32, 4, topk, "score.%d", (int)layer);
        if (trace->layers[i].role.role == TAMIS_ROLE_SOURCE)
            ADD(SAFETENSORS_I32, 4, run->width, "blocks");
    }
    for (int32_t i = 0; i < trace->layer_count; i++)
        if (runs(run, i))
            ADD(SAFETENSORS_I32, 4, 0, "count.%d", (int)trace->layers[i].layer);
#undef ADD
    return n;
}

static int begin_result(run_state *run) {
    struct stat trace, result;
    if (!run->options->result)
        return STATUS_GOOD;
    if (stat(run->options->trace, &trace) == 0 && stat(run->options->result, &result) == 0 &&
        trace.st_dev == result.st_dev && trace.st_ino == result.st_ino)
        return fail("%s: RESULT would replace TRACE", run->options->result);
    size_t most = (size_t)run->trace->layer_count * 4 + 1;
    safetensors_tensor *tensors = calloc(most, sizeof *tensors);
    char *names = calloc(most, NAME_SIZE);
    const char *metadata[] = {"format",   "tamis-result/1",
                              "numerics", numerics_name(run->options->numerics),
                              "about",    "selections of tamis run"};
    tamis_error error = {.status = TAMIS_ERROR_MEMORY, .argument = "RESULT"};
    tamis_status status = TAMIS_ERROR_MEMORY;
    if (tensors && names)
        status = safetensors_writer_begin(
            run->options->result, tensors, list_tensors(run, tensors, names), metadata,
            sizeof metadata / sizeof *metadata / 2, &run->writer, &error);
    free(tensors);
    free(names);
    return status == TAMIS_OK ? STATUS_GOOD : fail_error(run->options->result, &error);
}

static int write_array(run_state *run, const void *data, int64_t bytes) {
    tamis_error error = {0};
    if (!run->writer || safetensors_writer_data(run->writer, data, bytes, &error) == TAMIS_OK)
        return STATUS_GOOD;
    return fail_error(run->options->result, &error);
}

static int write_layer(run_state *run, int32_t i) {
    int64_t rows = run->trace->rows, cells = rows * run->trace->model.index_topk;
    int status = STATUS_GOOD;
    if (run->out.slots)
        status = write_array(run, run->out.slots, cells * 8);
    if (status == STATUS_GOOD)
        status = write_array(run, run->out.positions, cells * 4);
    if (status == STATUS_GOOD && run->out.scores)
        status = write_array(run, run->out.scores, cells * 4);
    if (status == STATUS_GOOD && run->trace->layers[i].role.role == TAMIS_ROLE_SOURCE)
        status = write_array(run, run->select.blocks, rows * run->width * 4);
    return status;
}

static int write_counts(run_state *run) {
    int64_t rows = run->trace->rows;
    int status = STATUS_GOOD;
    for (int32_t i = 0; i < run->trace->layer_count && status == STATUS_GOOD; i++)
        if (runs(run, i))
            status = write_array(run, run->counts + i * rows, rows * 4);
    return status;
}

/* The rename that makes the file appear. */
static int commit_result(run_state *run) {
    tamis_error error = {0};
    safetensors_writer *writer = run->writer;
    run->writer = NULL; /* commit frees it, whatever it returns */
    if (!writer || safetensors_writer_commit(writer, &error) == TAMIS_OK)
        return STATUS_GOOD;
    return fail_error(run->options->result, &error);
}

/* ---- the work ---------------------------------------------------------------------------------
 */

/* Positions whose scores the layer needs: all that are visible, or those in the row's blocks. */
static int64_t count_scored(const run_state *run, const tamis_trace_layer *layer) {
    int64_t total = 0, size = run->trace->model.candidate_block_size;
    int pooled = layer->role.role == TAMIS_ROLE_CONSUMER && !run->options->dense;
    for (int64_t r = 0; r < run->trace->rows; r++) {
        int64_t visible = (int64_t)layer->ke[r] - layer->ks[r];
        if (!pooled)
            total += visible;
        for (int32_t c = 0; pooled && c < run->width; c++) {
            int64_t start = run->select.blocks[r * run->width + c] * size;
            int64_t in_block = visible - start < size ? visible - start : size;
            total += start >= 0 && in_block > 0 ? in_block : 0;
        }
    }
    return total;
}

static int run_layer(run_state *run, int32_t i) {
    const tamis_trace_layer *layer = &run->trace->layers[i];
    layer_line *line = &run->lines[i];
    tamis_error error = {0};
    run->out.counts = run->counts + i * run->trace->rows;
    tamis_status status = selector_run(&run->select, layer, &run->out, &line->seconds, &error);
    if (status != TAMIS_OK)
        return fail_error(run->options->trace, &error);
    if (check_stopped() != STATUS_GOOD)
        return STATUS_BAD;
    line->scored = count_scored(run, layer);
    for (int64_t r = 0; r < run->trace->rows; r++)
        line->selected += run->out.counts[r];
    return write_layer(run, i);
}

static int run_layers(run_state *run) {
    int64_t chosen = 0;
    for (int32_t i = 0; i < run->trace->layer_count; i++)
        chosen += runs(run, i);
    progress bar;
    run->select.bar = &bar;
    progress_begin(&bar, "run", chosen * run->trace->rows);
    int status = STATUS_GOOD;
    for (int32_t i = 0; i < run->trace->layer_count && status == STATUS_GOOD; i++)
        if (runs(run, i))
            status = run_layer(run, i);
    progress_end(&bar);
    return status == STATUS_GOOD ? write_counts(run) : status;
}

/* ---- the report -------------------------------------------------------------------------------
 */

static double ns_per_row(double seconds, int64_t rows) {
    return rows ? 1e9 * seconds / (double)rows : 0;
}

static void report_text(const run_state *run) {
    const tamis_trace *trace = run->trace;
    layer_line total = {0};
    int layers = 0;
    printf("%5s  %-8s  %8s  %18s  %12s  %12s\n", "layer", "role", "rows", "positions scored",
           "ns per row", "selected");
    for (int32_t i = 0; i < trace->layer_count; i++) {
        const tamis_trace_layer *layer = &trace->layers[i];
        const layer_line *line = &run->lines[i];
        const char *role = tamis_role_name(layer->role.role);
        if (!runs(run, i)) {
            printf("%5d  %-8s  %8s\n", (int)layer->layer, role,
                   layer->present ? "skipped" : "absent");
            continue;
        }
        printf("%5d  %-8s  %8s  %18s  %12s  %12s\n", (int)layer->layer, role, grouped(trace->rows),
               grouped(line->scored), grouped((int64_t)ns_per_row(line->seconds, trace->rows)),
               grouped(line->selected));
        total.scored += line->scored;
        total.selected += line->selected;
        total.seconds += line->seconds;
        layers++;
    }
    printf("total  %-8s  %8s  %18s  %12s  %12s\n", "", grouped(trace->rows * layers),
           grouped(total.scored), grouped((int64_t)ns_per_row(total.seconds, trace->rows * layers)),
           grouped(total.selected));
    if (run->select.cuda)
        printf("CUDA on %s", cuda_selector_name(run->select.cuda));
    else
        printf("tier %s, %d threads", tamis_backend_tier(run->select.backend),
               (int)run->options->common.threads);
    printf(", numerics %s%s%s\n", numerics_name(run->options->numerics),
           run->options->result ? "; written: " : "",
           run->options->result ? run->options->result : "");
}

static void report_json(const run_state *run) {
    const tamis_trace *trace = run->trace;
    json_t *layers = json_array();
    for (int32_t i = 0; i < trace->layer_count; i++) {
        const tamis_trace_layer *layer = &trace->layers[i];
        const layer_line *line = &run->lines[i];
        json_t *entry = json_pack("{s:i, s:s, s:b, s:b}", "layer", (int)layer->layer, "role",
                                  tamis_role_name(layer->role.role), "present", (int)layer->present,
                                  "run", runs(run, i));
        if (runs(run, i)) {
            json_object_set_new(entry, "rows", json_integer(trace->rows));
            json_object_set_new(entry, "positions_scored", json_integer(line->scored));
            json_object_set_new(entry, "ns_per_row",
                                json_real(ns_per_row(line->seconds, trace->rows)));
            json_object_set_new(entry, "selected", json_integer(line->selected));
        }
        json_array_append_new(layers, entry);
    }
    const cuda_selector *cuda = run->select.cuda;
    const char *tier = cuda ? NULL : tamis_backend_tier(run->select.backend);
    print_json(json_pack("{s:o, s:s, s:s?, s:s?, s:i, s:s, s:b, s:I, s:o, s:o}", "trace",
                         json_text(run->options->trace), "backend", cuda ? "cuda" : "cpu", "device",
                         cuda ? cuda_selector_name(cuda) : NULL, "tier", tier, "threads",
                         (int)run->options->common.threads, "numerics",
                         numerics_name(run->options->numerics), "dense", run->options->dense,
                         "rows", (json_int_t)trace->rows, "result", json_text(run->options->result),
                         "layers", layers));
}

static int run_trace(run_state *run) {
    run->lines = calloc((size_t)run->trace->layer_count + 1, sizeof *run->lines);
    if (!run->lines)
        return fail("%s: no memory for its layers", run->options->trace);
    int status = choose_layers(run);
    if (status == STATUS_GOOD)
        status = prepare_blocks(run);
    if (status == STATUS_GOOD)
        status = prepare_output(run);
    if (status == STATUS_GOOD)
        status = begin_result(run);
    if (status == STATUS_GOOD)
        status = run_layers(run);
    if (status != STATUS_GOOD)
        return status;
    (run->options->common.json ? report_json : report_text)(run);
    /* The file is the last to appear: a report that is lost takes it along. */
    status = flush_output(check_stopped());
    return status == STATUS_GOOD ? commit_result(run) : status;
}

static void run_free(run_state *run) {
    if (run->writer)
        safetensors_writer_abort(run->writer);
    selector_free(&run->select);
    free(run->out.positions);
    free(run->out.slots);
    free(run->out.scores);
    free(run->counts);
    free(run->lines);
}

int command_run(int argc, char **argv) {
    run_options run = {.numerics = TAMIS_NUMERICS_EXACT};
    common_defaults(&run.common);
    argp_parse(&run_argp, argc, argv, 0, NULL, &run);
    tamis_backend *backend = NULL;
    tamis_pool *pool = NULL;
    tamis_trace *trace = NULL;
    tamis_error error = {0};
    cuda_selector *cuda = NULL;
    int status = run.cuda ? cuda_selector_open(&cuda) : open_backend(&run.common, &backend);
    if (status == STATUS_GOOD && !run.cuda)
        status = open_pool(&run.common, &pool);
    if (status == STATUS_GOOD && tamis_trace_open(run.trace, &trace, &error) != TAMIS_OK)
        status = fail_error(run.trace, &error);
    if (status == STATUS_GOOD) {
        run_state state = {.options = &run, .trace = trace};
        state.select = (selector){.trace = trace,
                                  .backend = backend,
                                  .pool = pool,
                                  .cuda = cuda,
                                  .numerics = run.numerics,
                                  .dense = run.dense,
                                  .stop = &stopped};
        catch_signals();
        status = run_trace(&state);
        run_free(&state);
    }
    tamis_trace_close(trace);
    cuda_selector_close(cuda);
    tamis_pool_destroy(pool);
    tamis_backend_destroy(backend);
    return status;
}
