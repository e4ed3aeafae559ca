/* SPDX-License-Identifier: MIT */
/*
 * plan_cuda.c: a plan in device memory, and steps made there.
 *
 * As on the CPU one function walks the layout, so that sizes and addresses cannot disagree. The
 * host keeps capacities alone; whatever changes from replay to replay of a graph lies on the
 * device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/address.h"
#include "fail.h"
#include "kernels/cuda/plan_cuda.h"

enum {
    STEP_THREADS = 256,
    OWN_BYTES = 17 << 20, /* of a source: lists of TAMIS_TILE_ROWS rows at topk 512 */
    GROUP_ROWS = 8192, /* of a tile that keeps no scores: more would not fill the device better */
    LONGEST_BESIDE_RAISED = 1 << 24 /* the scores of one row then fit beside decoded K */
};

static const int64_t work_most = (int64_t)256 << 20; /* with decoded K and lists */

/* ---- decoded K ---- */

int64_t tamis_cuda_raised_capacity(const tamis_indexer *indexer, const tamis_plan_limits *limits) {
    const tamis_model *model = &indexer->model;
    int64_t longest = tamis_plan_longest_row(model, limits);
    int32_t page = indexer->page_size;
    int fits = indexer->k_layout == TAMIS_K_MXFP4_PAGE && model->index_n_heads == 32 &&
               model->index_head_dim == 128 && (page & (page - 1)) == 0 &&
               indexer->page_stride % 16 == 0;
    if (!fits || tamis_plan_max_rows(limits) < TAMIS_RAISED_ROWS ||
        longest > LONGEST_BESIDE_RAISED) {
        return 0;
    }
    return tamis_round_up(longest < TAMIS_RAISED_MOST ? longest : TAMIS_RAISED_MOST,
                          TAMIS_RAISED_TILE);
}

/* Blocks that hold a source's own selection: docs/numerics.md. */
static int64_t own_blocks(const tamis_indexer *indexer) {
    return (int64_t)indexer->model.index_topk + 1;
}

static int64_t starts_of(const tamis_source_room *room) {
    return room->rows / TAMIS_TILE_RUN + 2;
}

static int64_t room_bytes(const tamis_indexer *indexer, const tamis_source_room *room) {
    return tamis_round_up(room->lists * own_blocks(indexer) * 4, 64) +
           2 * tamis_round_up(room->rows * 4, 64) + tamis_round_up(starts_of(room) * 4, 64);
}

/* ---- tiles ---- */

int64_t tamis_cuda_fitting(int64_t bytes, int64_t each, int64_t rows) {
    const int64_t most = bytes / each;
    if (most >= rows) {
        return rows;
    }
    return most > TAMIS_TILE_RUN ? most / TAMIS_TILE_RUN * TAMIS_TILE_RUN : most < 1 ? 1 : most;
}

tamis_source_room tamis_cuda_source_room(const tamis_indexer *indexer,
                                         const tamis_plan_limits *limits) {
    const int64_t rows = tamis_plan_max_rows(limits);
    const int64_t raised = tamis_cuda_raised_capacity(indexer, limits) * TAMIS_RAISED_BYTES;
    tamis_source_room room;
    const int64_t longest = tamis_plan_longest_row(&indexer->model, limits);
    const int64_t each =
        tamis_maxima_units(longest, tamis_model_block_size(&indexer->model)) * TAMIS_MAXIMA_UNIT;
    room.lists = tamis_least(OWN_BYTES / (own_blocks(indexer) * 4), 2 * rows);
    room.rows = tamis_least(tamis_least(room.lists, rows), TAMIS_TILE_ROWS);
    const int64_t left = work_most - raised - room_bytes(indexer, &room);
    const int64_t most = left / TAMIS_MAXIMA_UNIT * TAMIS_MAXIMA_UNIT;
    room.maxima = tamis_least(room.rows * each, most > each ? most : each);
    return room;
}

/* ---- routes ---- */

/*
 * As measured on an H200 at the released sizes: docs/benchmarks-gpu.md, "The crossover of auto".
 * [decoded]: K of most rows. From decoded K listed blocks cost least a row in steps that fill 132
 * multiprocessors, with one row each, two or four, and the most in those of few rows more;
 * decode's kernel takes the others' below 512 rows.
 */
static const tamis_auto_band bands[2][8] = {
    {{512, 0, 14, 1}, {264, 0, 10, 1}, {200, 0, 8, 1}, {133, 0, 10, 1}, {0}},
    {{896, 2, 10, 1},
     {528, 1, 12, 1},
     {480, 4, 8, 0},
     {264, 3, 9, 1},
     {241, 0, 0, 0},
     {185, 6, 8, 1},
     {133, 2, 9, 1},
     {0}}};

static int64_t widest_band(void) {
    int32_t widest = 0;
    for (int decoded = 0; decoded < 2; decoded++) {
        for (const tamis_auto_band *band = bands[decoded]; band->rows > 0; band++) {
            widest = band->to > widest ? band->to : widest;
        }
    }
    return widest;
}

/* Whether runs of neighbouring rows of a request, which are scored together, are full but for a
 * quarter of them, as far as all requests have as many. */
static int fills_runs(int64_t rows, int64_t requests) {
    const int64_t each = rows / requests, places = tamis_round_up(each, TAMIS_TILE_RUN);
    return each >= TAMIS_CUDA_AUTO_SHARE && 4 * each >= 3 * places;
}

static const tamis_auto_band *band_of(const tamis_cuda_plan *plan, int decoded) {
    const tamis_auto_band *band = bands[decoded];
    if (plan->band != NULL) {
        return plan->band;
    }
    if (!fills_runs(plan->rows, plan->requests)) {
        return NULL;
    }
    while (plan->rows < band->rows) {
        band++;
    }
    return band;
}

static int64_t pool_of(const tamis_model *model) {
    return (int64_t)tamis_model_topk_blocks(model) * tamis_model_block_size(model);
}

static tamis_dense_rows auto_rows(const tamis_cuda_plan *plan, int decoded, int64_t longest) {
    const tamis_dense_rows none = {-1, -1};
    const int64_t pool = pool_of(&plan->indexer->model);
    const tamis_auto_band *band = plan->requests > 0 ? band_of(plan, decoded) : NULL;
    if (band == NULL) {
        return none;
    }
    const int64_t from = band->from * pool / TAMIS_CUDA_AUTO_PARTS;
    const int64_t to = band->to * pool / TAMIS_CUDA_AUTO_PARTS;
    if (longest <= from || (longest > to && !band->mixed)) {
        return none;
    }
    /* Where none can be too long, the other route is not queued for short ones. */
    return (tamis_dense_rows){longest > to ? from : -1, to};
}

tamis_dense_rows tamis_cuda_dense_rows(const tamis_cuda_plan *plan, int decoded, int64_t longest) {
    switch (plan->indexer->sparse_logits) {
    case TAMIS_SPARSE_OFF:
        return (tamis_dense_rows){-1, INT32_MAX};
    case TAMIS_SPARSE_AUTO:
        return auto_rows(plan, decoded, longest);
    default:
        return (tamis_dense_rows){-1, -1};
    }
}

/* ---- tilings ---- */

static tamis_tiling tiling_in(int64_t bytes, int64_t scores, int64_t rows) {
    tamis_tiling t;
    t.each = tamis_round_up(scores > 1 ? scores : 1, 32) * 4; /* whole steps of decode.cu */
    t.rows = tamis_cuda_fitting(bytes, t.each, rows);
    return t;
}

static tamis_tiling scores_tiling(int64_t scores, const tamis_indexer *indexer,
                                  const tamis_plan_limits *limits) {
    const int64_t raised = tamis_cuda_raised_capacity(indexer, limits) * TAMIS_RAISED_BYTES;
    tamis_source_room room = tamis_cuda_source_room(indexer, limits);
    return tiling_in(work_most - raised - room_bytes(indexer, &room), scores,
                     tamis_plan_max_rows(limits));
}

tamis_tiling tamis_cuda_sparse_tiling(const tamis_indexer *indexer, const tamis_plan_limits *limits,
                                      int64_t width) {
    return scores_tiling(width * tamis_model_block_size(&indexer->model), indexer, limits);
}

tamis_tiling tamis_cuda_group_tiling(const tamis_indexer *indexer,
                                     const tamis_plan_limits *limits) {
    tamis_tiling t = scores_tiling(1, indexer, limits); /* rounded up: a word is enough */
    t.rows = tamis_least(t.rows, GROUP_ROWS);
    return t;
}

int64_t tamis_cuda_dense_longest(const tamis_indexer *indexer, const tamis_plan_limits *limits) {
    const tamis_model *model = &indexer->model;
    const int64_t longest = tamis_plan_longest_row(model, limits), pool = pool_of(model);
    switch (pool > 0 ? indexer->sparse_logits : TAMIS_SPARSE_ON) {
    case TAMIS_SPARSE_OFF:
        return longest;
    case TAMIS_SPARSE_AUTO:
        return tamis_least(widest_band() * pool / TAMIS_CUDA_AUTO_PARTS, longest);
    default:
        return 0;
    }
}

tamis_tiling tamis_cuda_dense_tiling(const tamis_cuda_plan *plan, int64_t longest) {
    return tiling_in(plan->work_bytes, longest, plan->max_rows);
}

static int64_t work_bytes(const tamis_indexer *indexer, const tamis_plan_limits *limits) {
    const int never = indexer->sparse_logits == TAMIS_SPARSE_OFF;
    const int64_t blocks = never ? 0 : tamis_model_topk_blocks(&indexer->model);
    const tamis_tiling tilings[] = {
        tamis_cuda_sparse_tiling(indexer, limits, own_blocks(indexer)),
        tamis_cuda_sparse_tiling(indexer, limits, blocks), tamis_cuda_group_tiling(indexer, limits),
        scores_tiling(tamis_cuda_dense_longest(indexer, limits), indexer, limits)};
    int64_t most = tamis_cuda_source_room(indexer, limits).maxima;
    for (int i = 0; i < (int)(sizeof tilings / sizeof *tilings); i++) {
        int64_t bytes = tilings[i].each * tilings[i].rows;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- layout ---- */

/* Returns all bytes; *cleared gets those before the workspace. */
static int64_t lay_out(const tamis_indexer *indexer, const tamis_plan_limits *limits,
                       uint8_t *memory, tamis_cuda_plan *plan, int64_t *cleared) {
    int64_t at = 0, rows = tamis_plan_max_rows(limits);
    int64_t blocks = tamis_model_topk_blocks(&indexer->model);
    int64_t raised = tamis_cuda_raised_capacity(indexer, limits);
    int64_t requests = raised > 0 ? limits->max_requests : 0;
    plan->counts = tamis_plan_take(memory, &at, (int64_t)sizeof *plan->counts);
    plan->stamp = tamis_plan_take(memory, &at, (int64_t)sizeof *plan->stamp);
    plan->token = tamis_plan_take(memory, &at, rows * 4);
    plan->request = tamis_plan_take(memory, &at, rows * 4);
    for (int i = 0; i < 2; i++) {
        plan->ks[i] = tamis_plan_take(memory, &at, rows * 4);
        plan->ke[i] = tamis_plan_take(memory, &at, rows * 4);
    }
    for (int i = 0; i < 2; i++) {
        plan->gated[i] = tamis_plan_take(memory, &at, rows * 4);
    }
    plan->done = tamis_plan_take(memory, &at, rows * 4);
    plan->taken = tamis_plan_take(memory, &at, rows * 4);
    plan->routes = tamis_plan_take(memory, &at, (int64_t)sizeof *plan->routes);
    plan->blocks = tamis_plan_take(memory, &at, rows * blocks * 4);
    plan->blocks_count = tamis_plan_take(memory, &at, rows * 4);
    plan->placed = tamis_plan_take(memory, &at, rows * blocks * 4);
    plan->raised_stamp = tamis_plan_take(memory, &at, (int64_t)sizeof *plan->raised_stamp);
    plan->raised.first = tamis_plan_take(memory, &at, requests * 4);
    plan->raised.length = tamis_plan_take(memory, &at, requests * 4);
    plan->usable = tamis_plan_take(memory, &at, requests * 4);
    plan->raised_rows = tamis_plan_take(memory, &at, requests * 4);
    *cleared = at;
    plan->room = tamis_cuda_source_room(indexer, limits);
    plan->own = tamis_plan_take(memory, &at, plan->room.lists * own_blocks(indexer) * 4);
    plan->own_count = tamis_plan_take(memory, &at, plan->room.rows * 4);
    plan->tile_starts = tamis_plan_take(memory, &at, starts_of(&plan->room) * 4);
    plan->tile_at = tamis_plan_take(memory, &at, plan->room.rows * 4);
    plan->work_bytes = work_bytes(indexer, limits);
    plan->work = tamis_plan_take(memory, &at, plan->work_bytes);
    plan->raised.codes = tamis_plan_take(memory, &at, raised * 128); /* behind work: scores */
    plan->raised.scales = tamis_plan_take(memory, &at, raised * 4);
    plan->raised.codes = raised > 0 ? plan->raised.codes : NULL;
    plan->raised_capacity = raised;
    return at;
}

int64_t tamis_cuda_plan_bytes(const tamis_indexer *indexer, const tamis_plan_limits *limits,
                              tamis_error *error) {
    tamis_cuda_plan counted;
    int64_t cleared;
    if (indexer == NULL) {
        tamis_fail(error, TAMIS_ERROR_ARGUMENT, "indexer", "an indexer", "NULL");
        return -1;
    }
    if (tamis_plan_check_ranks(indexer, error) != TAMIS_OK ||
        tamis_plan_check_limits(limits, error) != TAMIS_OK) {
        return -1;
    }
    return lay_out(indexer, limits, NULL, &counted, &cleared);
}

/* ---- creation ---- */

static tamis_status pin_status(tamis_cuda_plan *plan, tamis_error *error) {
    const tamis_driver *driver = &plan->cuda->driver;
    void *word = NULL;
    tamis_cu_pointer device = 0;
    TAMIS_TRY(tamis_cuda_checked(
        plan->cuda, driver->host_alloc(&word, sizeof *plan->status, TAMIS_CU_HOST_MAPPED),
        "cuMemHostAlloc", error));
    plan->status = word;
    *plan->status = 0;
    TAMIS_TRY(tamis_cuda_checked(plan->cuda, driver->host_pointer(&device, word, 0),
                                 "cuMemHostGetDevicePointer", error));
    plan->status_device = (uint32_t *)(uintptr_t)device;
    return TAMIS_OK;
}

static tamis_status fill(tamis_cuda_plan *plan, const tamis_plan_limits *limits, void *memory,
                         void *stream, tamis_error *error) {
    int64_t cleared;
    plan->limits = *limits;
    plan->max_rows = tamis_plan_max_rows(limits);
    plan->longest = tamis_plan_longest_row(&plan->indexer->model, limits);
    lay_out(plan->indexer, limits, memory, plan, &cleared);
    if (!tamis_cuda_reads_raised(plan->cuda)) {
        plan->raised.codes = NULL;
    }
    TAMIS_TRY(pin_status(plan, error));
    return tamis_cuda_checked(plan->cuda,
                              plan->cuda->driver.memory_set((tamis_cu_pointer)(uintptr_t)memory, 0,
                                                            (size_t)cleared, stream),
                              "cuMemsetD8Async", error);
}

tamis_status tamis_cuda_plan_create(const tamis_cuda *cuda, const tamis_indexer *indexer,
                                    const tamis_plan_limits *limits, void *memory, int64_t bytes,
                                    void *stream, tamis_cuda_plan **out, tamis_error *error) {
    char required[60];
    TAMIS_NEED(out != NULL, TAMIS_ERROR_ARGUMENT, "plan", "a place for the pointer", 0);
    *out = NULL;
    TAMIS_TRY(tamis_cuda_check_call(cuda, cuda, error));
    TAMIS_NEED(indexer != NULL, TAMIS_ERROR_ARGUMENT, "indexer", "an indexer", 0);
    TAMIS_TRY(tamis_plan_check_ranks(indexer, error));
    TAMIS_TRY(tamis_plan_check_limits(limits, error));
    int64_t needed = tamis_cuda_plan_bytes(indexer, limits, NULL);
    snprintf(required, sizeof required, "at least %lld", (long long)needed);
    TAMIS_NEED(bytes >= needed, TAMIS_ERROR_WORKSPACE, "bytes", required, bytes);
    TAMIS_NEED(memory != NULL && (uintptr_t)memory % 256 == 0, TAMIS_ERROR_WORKSPACE, "memory",
               "a pointer aligned to 256 bytes", (uintptr_t)memory % 256);
    tamis_cuda_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) {
        return tamis_fail(error, TAMIS_ERROR_MEMORY, "plan", "memory", "none");
    }
    plan->cuda = cuda;
    plan->indexer = indexer;
    tamis_status status = fill(plan, limits, memory, stream, error);
    if (status != TAMIS_OK) {
        tamis_cuda_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return TAMIS_OK;
}

void tamis_cuda_plan_destroy(tamis_cuda_plan *plan) {
    if (plan != NULL) {
        if (plan->status) {
            plan->cuda->driver.host_free(plan->status);
        }
        free(plan);
    }
}

uint32_t tamis_cuda_plan_status(const tamis_cuda_plan *plan) {
    return __atomic_load_n(plan->status, __ATOMIC_ACQUIRE);
}

void tamis_cuda_plan_clear(tamis_cuda_plan *plan) {
    __atomic_store_n(plan->status, 0, __ATOMIC_RELEASE);
}

/* ---- steps ---- */

static tamis_status check_batch(const tamis_cuda_plan *plan, const tamis_batch *batch,
                                tamis_error *error) {
    TAMIS_TRY(tamis_batch_check_fields(batch, plan->limits.max_requests, plan->max_rows, error));
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        if (plan->indexer->k_layout == TAMIS_K_MXFP4_PAGE && batch->tokens > 0 &&
            tamis_model_ratio_selects(&plan->indexer->model, ratio)) {
            TAMIS_TRY(tamis_batch_check_table(batch, ratio, error));
        }
    }
    return TAMIS_OK;
}

static tamis_status queue_step(const tamis_cuda_plan *plan, const tamis_batch *batch, int64_t rows,
                               void *stream, tamis_error *error) {
    tamis_step_fill fill = {0};
    void *parameters[] = {&fill};
    tamis_grid one = {1, 1, 0}, grid = {(rows + STEP_THREADS - 1) / STEP_THREADS, 1, 0};
    int paged = plan->indexer->k_layout == TAMIS_K_MXFP4_PAGE;
    fill.counts = plan->counts;
    fill.token = plan->token;
    fill.request = plan->request;
    for (int k = 0; k < 2; k++) {
        fill.ks[k] = plan->ks[k];
        fill.ke[k] = plan->ke[k];
        fill.k_start[k] = paged ? NULL : batch->k_start[k];
    }
    fill.routes = plan->routes;
    fill.context = batch->context;
    fill.query_start = batch->query_start;
    fill.rows = rows;
    fill.tokens = batch->tokens;
    fill.max_context = plan->limits.max_context;
    fill.requests = batch->requests;
    fill.decode_threshold = 1 + plan->limits.draft_tokens;
    if (grid.x != 1) {
        TAMIS_TRY(tamis_cuda_launch(plan->cuda, TAMIS_CUDA_step_begin_smxx, one, stream, parameters,
                                    error));
    }
    return tamis_cuda_launch(plan->cuda, TAMIS_CUDA_step_rows_smxx, grid, stream, parameters,
                             error);
}

tamis_status tamis_cuda_step_make(tamis_cuda_plan *plan, const tamis_batch *batch, tamis_step *step,
                                  void *stream, tamis_error *error) {
    TAMIS_NEED(plan != NULL, TAMIS_ERROR_ARGUMENT, "plan", "a plan", 0);
    TAMIS_NEED(batch != NULL, TAMIS_ERROR_ARGUMENT, "batch", "a tamis_batch", 0);
    TAMIS_NEED(step != NULL, TAMIS_ERROR_ARGUMENT, "step", "a tamis_step", 0);
    TAMIS_TRY(tamis_cuda_check_call(plan->cuda, batch, error));
    TAMIS_TRY(check_batch(plan, batch, error));
    int64_t rows = batch->padded_rows > 0 ? batch->padded_rows : batch->tokens;
    TAMIS_TRY(queue_step(plan, batch, rows, stream, error));
    plan->made++;
    plan->rows = rows;
    plan->requests = batch->requests;
    memset(step, 0, sizeof *step);
    step->struct_size = (uint32_t)sizeof *step;
    step->serial = plan->made;
    step->counts = plan->counts;
    step->token = plan->token;
    step->request = plan->request;
    for (int k = 0; k < 2; k++) {
        step->ks[k] = plan->ks[k];
        step->ke[k] = plan->ke[k];
        step->page_table[k] = batch->page_table[k];
        step->page_table_stride[k] = batch->page_table_stride[k];
        step->page_table_width[k] = batch->page_table_width[k];
    }
    return TAMIS_OK;
}
