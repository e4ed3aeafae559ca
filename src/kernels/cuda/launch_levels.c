/* SPDX-License-Identifier: MIT */
/*
 * launch_levels.c: the two levels composed of stages, tile of rows after tile of rows, in a
 * workspace whose size depends on the arguments' fields alone.
 *
 *   consume  expand -> sparse_mqa_logits and topk, in one kernel where that is faster
 *   source   mqa_logits (block maxima) -> publish, also a list of the best topk + 1 blocks, which
 *            hold the row's own selection -> consume over these
 *   dense    mqa_logits (scores) -> expand -> topk of the scores at listed positions
 */
#include <stddef.h>

#include "cache/address.h"
#include "fail.h"
#include "kernels/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/rows.h"

static const int64_t tile_bytes = (int64_t)256 << 20;

/* Bytes of one row in each part of the workspace: parts are tile after tile of equal lines. */
typedef struct parts {
    int64_t scores; /* of all positions, or block maxima */
    int64_t blocks; /* expanded, or a source's own */
    int64_t counts; /* how many, and how many CTAs of the row are done: a half each */
    int64_t pool;   /* scores of the blocks' positions */
    int64_t rows;   /* of a tile */
} parts;

static int64_t line(int64_t elements) {
    return tamis_round_up(elements * 4, 64);
}

static int64_t row_bytes(const parts *p) {
    return p->scores + p->blocks + p->counts + p->pool;
}

static void fit(parts *p, int64_t rows) {
    int64_t each = row_bytes(p), most = each > 0 ? tile_bytes / each : rows;
    most = most < 1 ? 1 : most;
    p->rows = most < rows ? most : rows;
}

static void *part_at(void *workspace, const parts *p, int64_t before) {
    return (uint8_t *)workspace + before * p->rows;
}

/* ---- consume ---- */

static void add_consumer(parts *p, int64_t width, int32_t block_size) {
    p->blocks = line(width);
    p->counts = 64;
    p->pool = line(tamis_round_up(width * block_size, 32)); /* whole steps of decode.cu */
}

static parts consume_parts(const tamis_consume_args *args) {
    parts p = {0};
    add_consumer(&p, args->width, args->block_size);
    fit(&p, args->rows.count);
    return p;
}

/* The rows r .. r + count - 1 of a consumer. */
static tamis_consume_args consume_at(const tamis_consume_args *args, int64_t r, int64_t count) {
    tamis_consume_args tile = *args;
    tile.rows = tamis_rows_at(&args->rows, r);
    tile.rows.count = count;
    tile.query = tamis_query_at(&args->query, r);
    tile.blocks = args->blocks ? args->blocks + r * args->blocks_stride : NULL;
    tile.counts = args->counts ? args->counts + r : NULL;
    tile.physical = args->physical ? args->physical + r * args->physical_stride : NULL;
    tile.selection = tamis_selection_at(&args->selection, r);
    return tile;
}

static uint32_t *done_of(void *workspace, const parts *p) {
    return (uint32_t *)part_at(workspace, p, p->scores + p->blocks) + p->rows * (p->counts / 8);
}

/* Expands the lists of a tile into its blocks and counts. */
static tamis_status expand_tile(const tamis_cuda *cuda, const tamis_consume_args *tile,
                                const parts *p, void *workspace, void *stream, tamis_error *error) {
    tamis_expand_args expand = {0};
    expand.candidate_size = expand.block_size = tile->block_size;
    expand.rows = tile->rows;
    expand.width = tile->width;
    expand.candidates = tile->blocks;
    expand.candidates_stride = tile->blocks_stride;
    expand.blocks = part_at(workspace, p, p->scores);
    expand.blocks_stride = p->blocks / 4;
    expand.counts = part_at(workspace, p, p->scores + p->blocks);
    return tamis_cuda_queue_expand(cuda, &expand, tile->counts, done_of(workspace, p),
                                   tamis_cuda_limit(&tile->rows, &tile->k), stream, error);
}

static tamis_topk_args topk_of_tile(const tamis_consume_args *tile, const parts *p,
                                    void *workspace) {
    tamis_topk_args topk = {0};
    topk.logits_type = TAMIS_F32;
    topk.block_size = tile->block_size;
    topk.rows = tile->rows;
    topk.width = tile->width * tile->block_size;
    topk.blocks = part_at(workspace, p, p->scores);
    topk.blocks_stride = p->blocks / 4;
    topk.page_size = tile->k.page_size;
    topk.selection = tile->selection;
    return topk;
}

/* Selects among the blocks that the workspace lists. */
static tamis_status select_tile(const tamis_cuda *cuda, const tamis_consume_args *tile,
                                const parts *p, void *workspace, void *stream, tamis_error *error) {
    tamis_topk_args topk = topk_of_tile(tile, p, workspace);
    tamis_sparse_mqa_logits_args score = {0};
    score.numerics = tile->numerics;
    score.k = tile->k;
    score.rows = tile->rows;
    score.query = tile->query;
    score.block_size = tile->block_size;
    score.logits_type = TAMIS_F32;
    score.width = tile->width;
    score.blocks = topk.blocks;
    score.blocks_stride = topk.blocks_stride;
    score.counts = part_at(workspace, p, p->scores + p->blocks);
    score.logits = part_at(workspace, p, p->scores + p->blocks + p->counts);
    score.logits_stride = p->pool / 4;
    score.physical = tile->physical;
    score.physical_stride = tile->physical_stride;
    topk.logits = score.logits;
    topk.logits_stride = score.logits_stride;
    return tamis_cuda_queue_consume(cuda, &score, &topk, done_of(workspace, p), NULL, NULL, NULL,
                                    NULL, tamis_cuda_limit(&tile->rows, &tile->k), stream, error);
}

static tamis_status consume_tile(const tamis_cuda *cuda, const tamis_consume_args *tile,
                                 const parts *p, void *workspace, void *stream,
                                 tamis_error *error) {
    TAMIS_TRY(expand_tile(cuda, tile, p, workspace, stream, error));
    return select_tile(cuda, tile, p, workspace, stream, error);
}

int64_t tamis_cuda_consume_workspace(const tamis_cuda *cuda, const tamis_consume_args *args) {
    if (cuda == NULL || args == NULL ||
        tamis_check_consume(args, TAMIS_CHECK_DEVICE, NULL) != TAMIS_OK) {
        return -1;
    }
    parts p = consume_parts(args);
    return p.rows * row_bytes(&p);
}

tamis_status tamis_cuda_consume(const tamis_cuda *cuda, const tamis_consume_args *args,
                                void *stream, tamis_error *error) {
    TAMIS_TRY(tamis_cuda_check_call(cuda, args, error));
    TAMIS_TRY(tamis_check_consume(args, TAMIS_CHECK_DEVICE, error));
    parts p = consume_parts(args);
    TAMIS_TRY(tamis_check_workspace(args->workspace, args->workspace_bytes, p.rows * row_bytes(&p),
                                    error));
    for (int64_t r = 0; r < args->rows.count; r += p.rows) {
        int64_t left = args->rows.count - r;
        tamis_consume_args tile = consume_at(args, r, left < p.rows ? left : p.rows);
        TAMIS_TRY(consume_tile(cuda, &tile, &p, args->workspace, stream, error));
    }
    return TAMIS_OK;
}

/* ---- source ---- */

static int selects(const tamis_selection *out) {
    return out->positions || out->slots || out->scores || out->counts;
}

static parts source_parts(const tamis_source_args *args) {
    parts p = {0};
    p.scores = line(tamis_blocks_of(tamis_cuda_limit(&args->rows, &args->k), args->block_size) + 1);
    if (selects(&args->selection)) {
        add_consumer(&p, args->selection.topk + 1, args->block_size);
    }
    fit(&p, args->rows.count);
    return p;
}

int64_t tamis_cuda_source_workspace(const tamis_cuda *cuda, const tamis_source_args *args) {
    if (cuda == NULL || args == NULL ||
        tamis_check_source(args, TAMIS_CHECK_DEVICE, NULL) != TAMIS_OK) {
        return -1;
    }
    parts p = source_parts(args);
    return p.rows * row_bytes(&p);
}

/* A source's own selection, as a consumer's arguments without its list. */
static tamis_consume_args consumer_of(const tamis_source_args *args) {
    tamis_consume_args consume = {0};
    consume.numerics = args->numerics;
    consume.k = args->k;
    consume.rows = args->rows;
    consume.query = args->query;
    consume.block_size = args->block_size;
    consume.width = args->selection.topk + 1;
    consume.selection = args->selection;
    return consume;
}

static tamis_status score_tile(const tamis_cuda *cuda, const tamis_consume_args *tile,
                               const parts *p, void *workspace, void *stream, tamis_error *error) {
    tamis_mqa_logits_args score = {0};
    score.numerics = tile->numerics;
    score.k = tile->k;
    score.rows = tile->rows;
    score.query = tile->query;
    score.block_size = tile->block_size;
    score.block_max = workspace;
    score.block_max_stride = p->scores / 4;
    return tamis_cuda_queue_mqa_logits(cuda, &score, 0, NULL, NULL, NULL, stream, error);
}

/* The caller's list of the tile's rows r, r + 1, .. and the tile's own, the wider one first. */
static tamis_status publish_tile(const tamis_cuda *cuda, const tamis_source_args *args,
                                 const tamis_consume_args *tile, int64_t r, const parts *p,
                                 void *stream, tamis_error *error) {
    tamis_publish_job job = {0};
    int own = selects(&args->selection),
        wider = own && args->blocks && tile->width > args->topk_blocks;
    job.block_size = args->block_size;
    job.rows = tile->rows;
    job.block_max = args->workspace;
    job.block_max_stride = p->scores / 4;
    job.limit = tamis_cuda_limit(&tile->rows, &tile->k);
    if (args->blocks) {
        tamis_block_list *list = &job.list[wider];
        list->width = args->topk_blocks;
        list->blocks = args->blocks + r * args->blocks_stride;
        list->blocks_stride = args->blocks_stride;
        list->counts = args->counts ? args->counts + r : NULL;
    }
    if (own) {
        tamis_block_list *list = &job.list[args->blocks && !wider];
        list->width = (int32_t)tile->width;
        list->placed = part_at(args->workspace, p, p->scores);
        list->placed_stride = p->blocks / 4;
        list->counts = part_at(args->workspace, p, p->scores + p->blocks);
        job.zeroed = done_of(args->workspace, p);
    }
    return tamis_cuda_queue_lists(cuda, &job, stream, error);
}

static tamis_status source_tile(const tamis_cuda *cuda, const tamis_source_args *args, int64_t r,
                                int64_t count, const parts *p, void *stream, tamis_error *error) {
    tamis_consume_args whole = consumer_of(args), tile = consume_at(&whole, r, count);
    TAMIS_TRY(score_tile(cuda, &tile, p, args->workspace, stream, error));
    if (args->blocks || selects(&args->selection)) {
        TAMIS_TRY(publish_tile(cuda, args, &tile, r, p, stream, error));
    }
    return selects(&args->selection) ? select_tile(cuda, &tile, p, args->workspace, stream, error)
                                     : TAMIS_OK;
}

tamis_status tamis_cuda_source(const tamis_cuda *cuda, const tamis_source_args *args, void *stream,
                               tamis_error *error) {
    TAMIS_TRY(tamis_cuda_check_call(cuda, args, error));
    TAMIS_TRY(tamis_check_source(args, TAMIS_CHECK_DEVICE, error));
    parts p = source_parts(args);
    TAMIS_TRY(tamis_check_workspace(args->workspace, args->workspace_bytes, p.rows * row_bytes(&p),
                                    error));
    for (int64_t r = 0; r < args->rows.count; r += p.rows) {
        int64_t left = args->rows.count - r;
        TAMIS_TRY(source_tile(cuda, args, r, left < p.rows ? left : p.rows, &p, stream, error));
    }
    return TAMIS_OK;
}

/* ---- dense ---- */

static parts dense_parts(const tamis_dense_args *args) {
    parts p = {0};
    p.scores = line(tamis_cuda_limit(&args->rows, &args->k) + 1);
    if (args->blocks) {
        p.blocks = line(args->width);
        p.counts = 64;
    }
    fit(&p, args->rows.count);
    return p;
}

int64_t tamis_cuda_dense_workspace(const tamis_cuda *cuda, const tamis_dense_args *args) {
    if (cuda == NULL || args == NULL ||
        tamis_check_dense(args, TAMIS_CHECK_DEVICE, NULL) != TAMIS_OK) {
        return -1;
    }
    parts p = dense_parts(args);
    return p.rows * row_bytes(&p);
}

/* The consumer that a dense call stands for. */
static tamis_consume_args masked_consumer(const tamis_dense_args *args) {
    tamis_consume_args consume = {0};
    consume.numerics = args->numerics;
    consume.k = args->k;
    consume.rows = args->rows;
    consume.query = args->query;
    consume.block_size = args->block_size;
    consume.width = args->blocks ? args->width : 0;
    consume.blocks = args->blocks;
    consume.blocks_stride = args->blocks_stride;
    consume.counts = args->counts;
    consume.selection = args->selection;
    return consume;
}

static tamis_status dense_tile(const tamis_cuda *cuda, const tamis_consume_args *tile,
                               const parts *p, void *workspace, void *stream, tamis_error *error) {
    int64_t limit = tamis_cuda_limit(&tile->rows, &tile->k);
    tamis_topk_args topk = topk_of_tile(tile, p, workspace);
    tamis_mqa_logits_args score = {0};
    score.numerics = tile->numerics;
    score.k = tile->k;
    score.rows = tile->rows;
    score.query = tile->query;
    score.logits_type = TAMIS_F32;
    score.columns = limit;
    score.logits = workspace;
    score.logits_stride = p->scores / 4;
    TAMIS_TRY(tamis_cuda_queue_mqa_logits(cuda, &score, 0, NULL, NULL, NULL, stream, error));
    topk.logits = score.logits;
    topk.logits_stride = score.logits_stride;
    if (tile->blocks) {
        TAMIS_TRY(expand_tile(cuda, tile, p, workspace, stream, error));
    } else {
        topk.blocks = NULL;
        topk.width = limit;
    }
    return tamis_cuda_queue_topk(cuda, &topk, TAMIS_TOPK_GATHER, NULL, limit, stream, error);
}

tamis_status tamis_cuda_dense(const tamis_cuda *cuda, const tamis_dense_args *args, void *stream,
                              tamis_error *error) {
    TAMIS_TRY(tamis_cuda_check_call(cuda, args, error));
    TAMIS_TRY(tamis_check_dense(args, TAMIS_CHECK_DEVICE, error));
    parts p = dense_parts(args);
    TAMIS_TRY(tamis_check_workspace(args->workspace, args->workspace_bytes, p.rows * row_bytes(&p),
                                    error));
    tamis_consume_args whole = masked_consumer(args);
    for (int64_t r = 0; r < args->rows.count; r += p.rows) {
        int64_t left = args->rows.count - r;
        tamis_consume_args tile = consume_at(&whole, r, left < p.rows ? left : p.rows);
        TAMIS_TRY(dense_tile(cuda, &tile, &p, args->workspace, stream, error));
    }
    return TAMIS_OK;
}
