/* SPDX-License-Identifier: MIT */
/*
 * launch.c: every stage as one kernel. Grids depend on the arguments' fields alone, never on
 * lengths: kernels stride over what is live, so that a captured graph serves any step.
 */
#include "fail.h"
#include "kernels/check.h"
#include "kernels/cuda/consume_args.h"
#include "kernels/cuda/launch.h"
#include "kernels/rows.h"

enum {
    MAX_GRID_Y = 65535,
    CTAS_PER_MULTIPROCESSOR = 4,
    MAX_CTAS_PER_ROW = 1024,
    GATHER_CTAS_PER_INTERVAL = 64,
    FAST_CTAS_PER_MULTIPROCESSOR = 2,
    FAST_WARPS = 8,
    STEP_BLOCKS = 4,      /* of a warp of the fast scorer */
    GROUP_STEPS = 8,      /* at most */
    POOL_COLUMNS = 16384, /* whose keys fit shared memory */
    SPLIT_WARPS = 16,
    COPIED_STEPS = 3, /* of a warp, at most, where wgmma could have them */
    BUSY_WARPS = 4,   /* of those, at least, where a row has several CTAs */
    LIVE_CTAS = 4,    /* of a multiprocessor */
    PUBLISH_CTAS = 2, /* of a multiprocessor at a time */
    TEAM_CTAS = 8,    /* of publish.cu's clusters */
    TEAM_BLOCKS = 131072,
    TEAM_ROWS = 16,
    CANDIDATE_BYTES = 8192 * 8
};

static const unsigned threads_of[TAMIS_CUDA_KERNEL_COUNT] = {
#define TAMIS_CUDA_KERNEL(name, threads, shared) threads,
#include "kernels/cuda/kernels.inc"
#undef TAMIS_CUDA_KERNEL
};

/* Enough CTAs to fill the device; rows have them in equal parts. */
static tamis_grid grid_of_rows(const tamis_cuda *cuda, int64_t rows) {
    int64_t all = (int64_t)CTAS_PER_MULTIPROCESSOR * cuda->multiprocessors;
    int64_t each = rows > 0 ? all / rows : 0;
    each = each < 1 ? 1 : tamis_least(each, MAX_CTAS_PER_ROW);
    return (tamis_grid){each, tamis_least(rows, MAX_GRID_Y), 0};
}

static tamis_grid grid_of_row_ctas(int64_t rows) {
    return (tamis_grid){tamis_least(rows, MAX_GRID_Y), 1, 0};
}

/* One warp an item, four to a CTA. */
static tamis_grid grid_of_warps(const tamis_cuda *cuda, int64_t items) {
    int64_t all = (int64_t)16 * cuda->multiprocessors;
    return (tamis_grid){tamis_least((items + 3) / 4, all), 1, 0};
}

tamis_status tamis_cuda_launch(const tamis_cuda *cuda, int kernel, tamis_grid grid, void *stream,
                               void **parameters, tamis_error *error) {
    if (grid.x == 0 || grid.y == 0) {
        return TAMIS_OK;
    }
    return tamis_cuda_checked(cuda,
                              cuda->driver.launch(cuda->kernels[kernel], (unsigned)grid.x,
                                                  (unsigned)grid.y, 1, threads_of[kernel], 1, 1,
                                                  (unsigned)grid.shared, stream, parameters, NULL),
                              "cuLaunchKernel", error);
}

tamis_status tamis_cuda_launch_early(const tamis_cuda *cuda, int kernel, tamis_grid grid,
                                     void *stream, void **parameters, tamis_error *error) {
    tamis_cu_launch_attribute early = {.id = TAMIS_CU_LAUNCH_EARLY, .value.allowed = 1};
    tamis_cu_launch launch = {.grid_x = (unsigned)grid.x,
                              .grid_y = (unsigned)grid.y,
                              .grid_z = 1,
                              .block_x = threads_of[kernel],
                              .block_y = 1,
                              .block_z = 1,
                              .shared_bytes = (unsigned)grid.shared,
                              .stream = stream,
                              .attributes = &early,
                              .attribute_count = 1};
    if (!cuda->early || grid.x == 0 || grid.y == 0) {
        return tamis_cuda_launch(cuda, kernel, grid, stream, parameters, error);
    }
    return tamis_cuda_checked(
        cuda, cuda->driver.launch_early(&launch, cuda->kernels[kernel], parameters, NULL),
        "cuLaunchKernelEx", error);
}

tamis_status tamis_cuda_check_call(const tamis_cuda *cuda, const void *args, tamis_error *error) {
    tamis_cu_handle context = NULL;
    TAMIS_NEED(cuda != NULL, TAMIS_ERROR_ARGUMENT, "cuda", "an object", 0);
    TAMIS_NEED(args != NULL, TAMIS_ERROR_ARGUMENT, "args", "arguments", 0);
    TAMIS_TRY(
        tamis_cuda_checked(cuda, cuda->driver.context_get(&context), "cuCtxGetCurrent", error));
    if (context != cuda->context) {
        return tamis_fail(error, TAMIS_ERROR_CUDA, "context",
                          "the context that the object was created in", "%s",
                          context ? "another one" : "none");
    }
    return TAMIS_OK;
}

int64_t tamis_cuda_limit(const tamis_rows *rows, const tamis_k_cache *k) {
    int64_t limit =
        k->layout == TAMIS_K_MXFP4_PAGE ? rows->page_table_width * k->page_size : k->size;
    return tamis_least(limit, INT32_MAX);
}

/* The kernel of a geometry among the four that follow `first`: heads 32 or 64, D 64 or 128. */
static int geometry(int first, const tamis_query *query) {
    return first + (query->heads > 32 ? 2 : 0) + (query->head_dim == 128 ? 1 : 0);
}

/* What score_fast.cuh asks for: its geometry, blocks of 8 in pages, aligned codes, 32-bit places.
 */
static int scores_fast(const tamis_sparse_mqa_logits_args *a) {
    const tamis_k_cache *k = &a->k;
    const tamis_query *q = &a->query;
    int64_t page_blocks = k->page_size / 8;
    uintptr_t strides = (uintptr_t)(q->codes_row_stride | q->codes_head_stride | k->stride);
    return q->heads == 32 && q->head_dim == 128 && a->block_size == 8 &&
           k->layout == TAMIS_K_MXFP4_PAGE && a->rows.ks == NULL && page_blocks > 0 &&
           (page_blocks & (page_blocks - 1)) == 0 && k->size > 0 &&
           k->stride / 16 <= UINT32_MAX / k->size &&
           (((uintptr_t)k->codes | (uintptr_t)q->codes | strides) & 15) == 0;
}

static int64_t pool_bytes(int64_t columns) {
    return (columns + 31) / 32 * 34 * 4;
}

tamis_status tamis_cuda_queue_mqa_logits(const tamis_cuda *cuda, const tamis_mqa_logits_args *args,
                                         int32_t fill, const tamis_raised_k *raised,
                                         const tamis_row_tile *tile, const tamis_score_tile *scores,
                                         void *stream, tamis_error *error) {
    tamis_mqa_logits_args a = *args;
    tamis_row_tile t = tile ? *tile : (tamis_row_tile){0};
    tamis_score_tile s = scores ? *scores : (tamis_score_tile){0};
    void *parameters[] = {&a, &fill, &t, &s};
    if (tamis_cuda_source_is_fast(args)) {
        return tamis_cuda_queue_source(cuda, args, fill, raised, tile, scores, stream, error);
    }
    return tamis_cuda_launch(cuda, geometry(TAMIS_CUDA_mqa_logits_smxx_h32_d64, &a.query),
                             grid_of_rows(cuda, a.rows.count), stream, parameters, error);
}

/* By clusters where they pay: few rows, whose maxima fit a cluster's registers. */
tamis_status tamis_cuda_queue_lists(const tamis_cuda *cuda, const tamis_publish_job *job,
                                    void *stream, tamis_error *error) {
    tamis_publish_job j = *job;
    tamis_grid grid = grid_of_row_ctas(j.rows.count);
    void *parameters[] = {&j};
    grid.shared = CANDIDATE_BYTES;
    if (j.tile.starts) { /* a tile may hold few of the rows, or none */
        grid.x = tamis_least(grid.x, (int64_t)PUBLISH_CTAS * cuda->multiprocessors);
    } else if (cuda->kernels[TAMIS_CUDA_publish_team_sm90] && j.rows.count <= TEAM_ROWS &&
               j.limit <= (int64_t)TEAM_BLOCKS * j.block_size) {
        grid.x *= TEAM_CTAS;
        grid.shared = 2 * CANDIDATE_BYTES; /* the CTA's own, too */
        return tamis_cuda_launch(cuda, TAMIS_CUDA_publish_team_sm90, grid, stream, parameters,
                                 error);
    }
    return tamis_cuda_launch(cuda, TAMIS_CUDA_publish_smxx, grid, stream, parameters, error);
}

tamis_status tamis_cuda_queue_publish(const tamis_cuda *cuda, const tamis_publish_args *args,
                                      int64_t limit, void *stream, tamis_error *error) {
    tamis_publish_job job = {0};
    job.rows = args->rows;
    job.block_max = args->block_max;
    job.block_max_stride = args->block_max_stride;
    job.limit = limit;
    job.block_size = args->block_size;
    job.list[0].blocks = args->blocks;
    job.list[0].blocks_stride = args->blocks_stride;
    job.list[0].counts = args->counts;
    job.list[0].width = args->topk_blocks;
    return tamis_cuda_queue_lists(cuda, &job, stream, error);
}

tamis_status tamis_cuda_queue_expand(const tamis_cuda *cuda, const tamis_expand_args *args,
                                     const int32_t *listed, uint32_t *zeroed, int64_t limit,
                                     void *stream, tamis_error *error) {
    tamis_expand_args a = *args;
    tamis_grid grid = grid_of_row_ctas(a.rows.count);
    void *parameters[] = {&a, &listed, &zeroed, &limit};
    grid.shared = 4;
    while (grid.shared < a.width * 4) { /* the kernel sorts a power of two */
        grid.shared *= 2;
    }
    return tamis_cuda_launch(cuda, TAMIS_CUDA_expand_smxx, grid, stream, parameters, error);
}

tamis_status tamis_cuda_queue_sparse_mqa_logits(const tamis_cuda *cuda,
                                                const tamis_sparse_mqa_logits_args *args,
                                                void *stream, tamis_error *error) {
    tamis_sparse_mqa_logits_args a = *args;
    int64_t ctas = (int64_t)FAST_CTAS_PER_MULTIPROCESSOR * cuda->multiprocessors;
    int64_t each = a.rows.count > 0 && ctas > a.rows.count ? ctas / a.rows.count : 1;
    int64_t steps = a.width / (each * FAST_WARPS * STEP_BLOCKS);
    int32_t group = (int32_t)tamis_least(steps < 1 ? 1 : steps, GROUP_STEPS);
    void *parameters[] = {&a, &group};
    if (scores_fast(args)) {
        tamis_grid grid = {each, tamis_least(a.rows.count, MAX_GRID_Y), 0};
        return tamis_cuda_launch(cuda, TAMIS_CUDA_sparse_mqa_logits_fast_smxx, grid, stream,
                                 parameters, error);
    }
    return tamis_cuda_launch(cuda, geometry(TAMIS_CUDA_sparse_mqa_logits_smxx_h32_d64, &a.query),
                             grid_of_rows(cuda, a.rows.count), stream, parameters, error);
}

/* A row's CTAs: as many as the device has for it. Steps of a warp: 0 where they are two blocks,
 * else its part of the row; by mma.sync where K takes longer than products do, or no group is
 * longer. behind: a kernel of the same call. */
static tamis_status queue_split(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                                const tamis_selection *selection, uint32_t *done,
                                const int32_t *taken, const tamis_gate_args *layer, int behind,
                                void *stream, tamis_error *error) {
    tamis_sparse_mqa_logits_args a = *score;
    tamis_selection out = *selection;
    tamis_gate_args gate = layer ? *layer : (tamis_gate_args){0};
    int64_t most = (a.width + BUSY_WARPS * STEP_BLOCKS - 1) / (BUSY_WARPS * STEP_BLOCKS);
    int64_t parts = tamis_least(cuda->multiprocessors / a.rows.count, most);
    parts = parts < 1 ? 1 : parts;
    const int64_t at_once = parts * SPLIT_WARPS * STEP_BLOCKS;
    const int64_t part = (a.width + at_once - 1) / at_once;
    const int by_wgmma = part > COPIED_STEPS && cuda->kernels[TAMIS_CUDA_consume_split_sm90];
    int32_t steps = (int32_t)(by_wgmma ? part : tamis_least(part, GROUP_STEPS));
    int kernel = TAMIS_CUDA_consume_split_smxx;
    tamis_grid grid = {parts, a.rows.count, TAMIS_CONSUME_SPLIT_BYTES};
    if (at_once / 2 >= a.width) {
        steps = 0;
    } else if (by_wgmma) {
        kernel = TAMIS_CUDA_consume_split_sm90;
        grid.shared = TAMIS_CONSUME_SPLIT_SM90_BYTES;
    } else if (part <= GROUP_STEPS) {
        kernel = TAMIS_CUDA_consume_copied_smxx;
        grid.shared = TAMIS_CONSUME_COPIED_BYTES;
    }
    void *parameters[] = {&a, &out, &done, (void *)&taken, &steps, &gate};
    return (behind ? tamis_cuda_launch_early : tamis_cuda_launch)(cuda, kernel, grid, stream,
                                                                  parameters, error);
}

int tamis_cuda_consume_is_grouped(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                                  const tamis_selection *out, int64_t from) {
    return scores_fast(score) && score->width * score->block_size <= POOL_COLUMNS &&
           tamis_cuda_consumes_in_groups(cuda, score, out, from);
}

/* Whether there is scratch for the scores of decode.cu, in whole steps, and it takes such rows. */
static int can_split(const tamis_sparse_mqa_logits_args *score, const uint32_t *done) {
    uintptr_t scratch = (uintptr_t)score->logits | (uintptr_t)(score->logits_stride * 4);
    const int64_t step = STEP_BLOCKS * score->block_size;
    const int64_t columns = (score->width * score->block_size + step - 1) / step * step;
    return scores_fast(score) && columns <= POOL_COLUMNS && score->logits_stride >= columns &&
           done && (scratch & 15) == 0;
}

int tamis_cuda_consume_is_split(const tamis_sparse_mqa_logits_args *score, const uint32_t *done,
                                int64_t from) {
    return score->rows.count > 0 && score->rows.count < from && can_split(score, done);
}

/* Whole waves from decoded K, then the few rows that are left, a row by some multiprocessors. */
static tamis_status queue_waves(const tamis_cuda *cuda, const tamis_sparse_mqa_logits_args *score,
                                const tamis_selection *out, const tamis_raised_k *raised,
                                uint32_t *done, void *stream, tamis_error *error) {
    const int64_t rows = score->rows.count, first = tamis_cuda_rows_in_waves(cuda, rows);
    tamis_sparse_mqa_logits_args a = *score;
    a.rows.count = first;
    TAMIS_TRY(tamis_cuda_queue_consume_raised(cuda, &a, out, raised, NULL, stream, error));
    if (first == rows) {
        return TAMIS_OK;
    }
    a.rows = tamis_rows_at(&a.rows, first);
    a.rows.count = rows - first;
    a.query = tamis_query_at(&a.query, first);
    a.blocks += first * a.blocks_stride;
    a.counts = a.counts ? a.counts + first : NULL;
    a.physical = a.physical ? a.physical + first * a.physical_stride : NULL;
    a.logits = (float *)a.logits + first * a.logits_stride;
    const tamis_selection rest = tamis_selection_at(out, first);
    return queue_split(cuda, &a, &rest, done + first, NULL, NULL, 1, stream, error);
}

int tamis_cuda_consume_goes_in_waves(const tamis_cuda *cuda,
                                     const tamis_sparse_mqa_logits_args *score,
                                     const tamis_selection *out, const uint32_t *done,
                                     const tamis_raised_k *raised) {
    return tamis_cuda_consumes_raised(cuda, score, out, raised) && can_split(score, done) &&
           tamis_cuda_rows_in_waves(cuda, score->rows.count) > 0;
}

tamis_status tamis_cuda_queue_consume(const tamis_cuda *cuda,
                                      const tamis_sparse_mqa_logits_args *score,
                                      const tamis_topk_args *topk, uint32_t *done, int32_t *taken,
                                      const uint32_t *listed, const tamis_raised_k *raised,
                                      const tamis_gate_args *gate, int64_t limit, void *stream,
                                      tamis_error *error) {
    tamis_sparse_mqa_logits_args a = *score;
    tamis_selection out = topk->selection;
    const int32_t *none = NULL;
    void *parameters[] = {&a, &out, (void *)&none, (void *)&listed};
    int64_t columns = a.width * a.block_size;
    const int64_t from = tamis_cuda_groups_from(cuda, a.width, raised != NULL, raised && !taken);
    int split = tamis_cuda_consume_is_split(score, done, from);
    if (!taken && tamis_cuda_consume_goes_in_waves(cuda, score, &out, done, raised)) {
        return queue_waves(cuda, score, &out, raised, done, stream, error);
    }
    if (tamis_cuda_consume_is_grouped(cuda, score, &out, from)) {
        return tamis_cuda_queue_consume_groups(cuda, score, &out, raised, listed, stream, error);
    }
    if (split) {
        const int some = taken && tamis_cuda_consumes_raised(cuda, score, &out, raised);
        if (some) {
            TAMIS_TRY(
                tamis_cuda_queue_consume_raised(cuda, score, &out, raised, taken, stream, error));
        }
        return queue_split(cuda, score, &out, done, some ? taken : NULL, gate, some, stream, error);
    }
    if (!scores_fast(score) || columns > POOL_COLUMNS || a.rows.count < TAMIS_CUDA_GROUPS_FROM) {
        TAMIS_TRY(tamis_cuda_queue_sparse_mqa_logits(cuda, score, stream, error));
        return tamis_cuda_queue_topk(cuda, topk, 0, NULL, limit, stream, error);
    }
    tamis_grid grid = grid_of_row_ctas(a.rows.count);
    grid.shared = pool_bytes(columns);
    return tamis_cuda_launch(cuda, TAMIS_CUDA_consume_fast_smxx, grid, stream, parameters, error);
}

tamis_status tamis_cuda_queue_topk(const tamis_cuda *cuda, const tamis_topk_args *args, int32_t how,
                                   const tamis_score_tile *scores, int64_t limit, void *stream,
                                   tamis_error *error) {
    tamis_topk_args a = *args;
    tamis_score_tile s = scores ? *scores : (tamis_score_tile){0};
    tamis_grid grid = grid_of_row_ctas(a.rows.count);
    void *parameters[] = {&a, &how, &limit, &s};
    if ((how & TAMIS_TOPK_LIVE_ONLY) || s.routes) { /* few may be: CTAs without a row cost, too */
        grid.x = tamis_least(grid.x, (int64_t)LIVE_CTAS * cuda->multiprocessors);
    }
    if (a.width > POOL_COLUMNS) {
        return tamis_cuda_launch(cuda, TAMIS_CUDA_topk_smxx, grid, stream, parameters, error);
    }
    return (scores ? tamis_cuda_launch_early : tamis_cuda_launch)(cuda, TAMIS_CUDA_topk_pool_smxx,
                                                                  grid, stream, parameters, error);
}

/* ---- public calls: check, queue ---- */

#define CHECK_STAGE(name)                                                                          \
    do {                                                                                           \
        TAMIS_TRY(tamis_cuda_check_call(cuda, args, error));                                       \
        TAMIS_TRY(tamis_check_##name(args, TAMIS_CHECK_DEVICE, error));                            \
    } while (0)

tamis_status tamis_cuda_q_prepare(const tamis_cuda *cuda, const tamis_q_prepare_args *args,
                                  void *stream, tamis_error *error) {
    CHECK_STAGE(q_prepare);
    tamis_q_prepare_args a = *args;
    void *parameters[] = {&a};
    return tamis_cuda_launch(cuda, TAMIS_CUDA_q_prepare_smxx,
                             grid_of_warps(cuda, a.tokens * a.heads), stream, parameters, error);
}

tamis_status tamis_cuda_k_insert(const tamis_cuda *cuda, const tamis_k_insert_args *args,
                                 void *stream, tamis_error *error) {
    CHECK_STAGE(k_insert);
    tamis_k_insert_args a = *args;
    void *parameters[] = {&a};
    return tamis_cuda_launch(cuda, TAMIS_CUDA_k_insert_smxx, grid_of_warps(cuda, a.tokens), stream,
                             parameters, error);
}

tamis_status tamis_cuda_k_gather(const tamis_cuda *cuda, const tamis_k_gather_args *args,
                                 void *stream, tamis_error *error) {
    CHECK_STAGE(k_gather);
    tamis_k_gather_args a = *args;
    void *parameters[] = {&a};
    tamis_grid grid = {GATHER_CTAS_PER_INTERVAL, tamis_least(a.rows.count, MAX_GRID_Y), 0};
    return tamis_cuda_launch(cuda, TAMIS_CUDA_k_gather_smxx, grid, stream, parameters, error);
}

tamis_status tamis_cuda_block_max(const tamis_cuda *cuda, const tamis_block_max_args *args,
                                  void *stream, tamis_error *error) {
    CHECK_STAGE(block_max);
    tamis_block_max_args a = *args;
    void *parameters[] = {&a};
    return tamis_cuda_launch(cuda, TAMIS_CUDA_block_max_smxx, grid_of_rows(cuda, a.rows.count),
                             stream, parameters, error);
}

tamis_status tamis_cuda_mqa_logits(const tamis_cuda *cuda, const tamis_mqa_logits_args *args,
                                   void *stream, tamis_error *error) {
    CHECK_STAGE(mqa_logits);
    return tamis_cuda_queue_mqa_logits(cuda, args, 1, NULL, NULL, NULL, stream, error);
}

tamis_status tamis_cuda_publish(const tamis_cuda *cuda, const tamis_publish_args *args,
                                void *stream, tamis_error *error) {
    CHECK_STAGE(publish);
    int64_t limit = tamis_least(args->block_max_stride * args->block_size, INT32_MAX);
    return tamis_cuda_queue_publish(cuda, args, limit, stream, error);
}

tamis_status tamis_cuda_expand(const tamis_cuda *cuda, const tamis_expand_args *args, void *stream,
                               tamis_error *error) {
    CHECK_STAGE(expand);
    return tamis_cuda_queue_expand(cuda, args, NULL, NULL, INT32_MAX, stream, error);
}

tamis_status tamis_cuda_sparse_mqa_logits(const tamis_cuda *cuda,
                                          const tamis_sparse_mqa_logits_args *args, void *stream,
                                          tamis_error *error) {
    CHECK_STAGE(sparse_mqa_logits);
    return tamis_cuda_queue_sparse_mqa_logits(cuda, args, stream, error);
}

tamis_status tamis_cuda_topk(const tamis_cuda *cuda, const tamis_topk_args *args, void *stream,
                             tamis_error *error) {
    CHECK_STAGE(topk);
    return tamis_cuda_queue_topk(cuda, args, 0, NULL, INT32_MAX, stream, error);
}
