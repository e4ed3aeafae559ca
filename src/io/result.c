/* SPDX-License-Identifier: MIT */
/*
 * result.c: opens a file of selections against the trace they were made from. Dtypes and shapes
 * are checked; values are what the file was written to have judged, so they may be anything.
 */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

#include "trace_parts.h"

typedef struct result_reader {
    tamis_result result; /* first: what callers hold */
    safetensors *file;
    io_arena arena;
} result_reader;

static tamis_status check_format(const safetensors *file, tamis_error *error) {
    const char *format = safetensors_metadata(file, "format");
    if (format && strcmp(format, "tamis-result/1") != 0 && strcmp(format, "tamis-trace/1") != 0) {
        return io_fail(error, TAMIS_ERROR_FORMAT, "__metadata__.format",
                       "tamis-result/1 or tamis-trace/1, where given", format);
    }
    return TAMIS_OK;
}

static tamis_status load_selected(const result_reader *in, const tamis_trace *trace,
                                  const int32_t **selected, int *found, tamis_error *error) {
    const int64_t shape[2] = {trace->rows, trace->model.index_topk};
    for (int32_t i = 0; i < trace->layer_count; i++) {
        const safetensors_tensor *t;
        tamis_status status =
            io_find(in->file, io_format("selected.%d", trace->layers[i].layer).text, IO_DTYPE(I32),
                    2, shape, &t, error);
        if (status) {
            return status;
        }
        selected[i] = t ? t->data : NULL;
        *found |= t != NULL;
    }
    return TAMIS_OK;
}

static tamis_status load(result_reader *in, const tamis_trace *trace, tamis_error *error) {
    const int64_t shape[2] = {trace->rows, trace->model.candidate_topk_blocks};
    const safetensors_tensor *blocks = NULL;
    int found = 0;
    const int32_t **selected =
        io_arena_alloc(&in->arena, trace->layer_count, (int64_t)sizeof *selected);
    tamis_status status =
        selected ? check_format(in->file, error) : io_no_memory(error, "selected");
    if (!status) {
        status = load_selected(in, trace, selected, &found, error);
    }
    if (!status && trace->model.candidate_source_layer_id >= 0) {
        status = io_find(in->file, "blocks", IO_DTYPE(I32), 2, shape, &blocks, error);
    }
    if (!status && !found && !blocks) {
        status = io_fail(error, TAMIS_ERROR_FORMAT, "selected",
                         "selected.LAYER of an index source of the trace, or blocks", "none");
    }
    in->result.selected = selected;
    in->result.blocks = blocks ? blocks->data : NULL;
    return status;
}

tamis_status tamis_result_open(const char *path, const tamis_trace *trace, tamis_result **result,
                               tamis_error *error) {
    *result = NULL;
    result_reader *in = calloc(1, sizeof *in);
    if (!in) {
        return io_no_memory(error, "file");
    }
    tamis_status status = safetensors_open(path, &in->file, error);
    if (!status) {
        status = load(in, trace, error);
    }
    if (status) {
        tamis_result_close(&in->result);
        return status;
    }
    *result = &in->result;
    return TAMIS_OK;
}

void tamis_result_close(tamis_result *result) {
    if (!result) {
        return;
    }
    result_reader *in = (result_reader *)(void *)result;
    safetensors_close(in->file);
    io_arena_free(&in->arena);
    free(in);
}
