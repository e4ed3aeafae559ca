/* SPDX-License-Identifier: MIT */
/* made.c: the selections of a whole trace made in memory: what `run -o` writes, without the file.
 */
#include "made.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "select_cuda.h"

static int select_layers(selector *s, made_result *made) {
    const tamis_trace *trace = s->trace;
    size_t rows = (size_t)trace->rows + 1, topk = (size_t)trace->model.index_topk;
    for (int32_t i = 0; i < trace->layer_count; i++) {
        if (!trace->layers[i].present)
            continue;
        tamis_error error = {0};
        double seconds;
        layer_output out = {.positions = malloc(rows * topk * sizeof(int32_t)),
                            .counts = malloc(rows * sizeof(int32_t))};
        made->selected[i] = out.positions;
        made->counts[i] = out.counts;
        if (!out.positions || !out.counts)
            return fail("%s: no memory for the selections of %" PRId64 " rows", trace->path,
                        trace->rows);
        if (selector_run(s, &trace->layers[i], &out, &seconds, &error) != TAMIS_OK)
            return fail_error(trace->path, &error);
    }
    return STATUS_GOOD;
}

static int select_all(selector *s, made_result *made) {
    const tamis_trace *trace = s->trace;
    int32_t consumer = -1, present = 0;
    progress bar;
    for (int32_t i = trace->layer_count - 1; i >= 0; i--) {
        present += trace->layers[i].present;
        if (trace->layers[i].present && trace->layers[i].role.role == TAMIS_ROLE_CONSUMER)
            consumer = trace->layers[i].layer;
    }
    int status = selector_take_blocks(s, consumer);
    if (status != STATUS_GOOD)
        return status;
    s->bar = &bar;
    progress_begin(&bar, "select", present * trace->rows);
    status = select_layers(s, made);
    progress_end(&bar);
    return status;
}

static int open_selector(selector *s, int cuda, const common_options *common, tamis_backend **cpu,
                         char *machine, size_t size) {
    if (cuda) {
        int status = cuda_selector_open(&s->cuda);
        if (status == STATUS_GOOD)
            snprintf(machine, size, "CUDA on %s", cuda_selector_name(s->cuda));
        return status;
    }
    int status = open_backend(common, cpu);
    if (status != STATUS_GOOD)
        return status;
    s->backend = *cpu;
    snprintf(machine, size, "tier %s, %d threads", tamis_backend_tier(*cpu), (int)common->threads);
    return open_pool(common, &s->pool);
}

int make_result(const tamis_trace *trace, int cuda, const common_options *common, int32_t numerics,
                made_result *made) {
    static const volatile int never;
    size_t layers = (size_t)trace->layer_count + 1;
    selector s = {.trace = trace, .numerics = numerics, .stop = &never};
    tamis_backend *cpu = NULL;
    made->layers = trace->layer_count;
    made->selected = calloc(layers, sizeof *made->selected);
    made->counts = calloc(layers, sizeof *made->counts);
    int status = made->selected && made->counts ? STATUS_GOOD : fail("no memory");
    if (status == STATUS_GOOD)
        status = open_selector(&s, cuda, common, &cpu, made->machine, sizeof made->machine);
    if (status == STATUS_GOOD)
        status = select_all(&s, made);
    made->blocks = s.blocks;
    s.blocks = NULL; /* kept */
    made->result = (tamis_result){(const int32_t *const *)made->selected, made->blocks};
    made->result_counts = (const int32_t *const *)made->counts;
    selector_free(&s);
    cuda_selector_close(s.cuda);
    tamis_pool_destroy(s.pool);
    tamis_backend_destroy(cpu);
    return status;
}

void made_result_free(made_result *made) {
    int32_t **lists[] = {made->selected, made->counts};
    for (int k = 0; k < 2; k++) {
        for (int32_t i = 0; lists[k] && i < made->layers; i++)
            free(lists[k][i]);
        free(lists[k]);
    }
    free(made->blocks);
}
