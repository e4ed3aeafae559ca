/* SPDX-License-Identifier: MIT */
/*
 * plan_run.c: one layer of a step on the device, tile of rows after tile of rows.
 *
 *   source    gate, then K of requests with many rows decoded (raised_k.h), then per tile: block
 *             maxima -> publish, also the best topk + 1 blocks (docs/numerics.md: they hold the
 *             layer's own selection), the last tile's with the stamp; behind the tiles of a stretch
 *             of rows: scores of those -> topk
 *   consumer  gate with the stamp, then per tile: scores of the placed blocks -> topk; on the dense
 *             route, after all tiles of the other, scores of everything -> topk of those at listed
 *             positions; of few rows all that is one kernel, which does the gate's work, too
 *
 * The route of a row cannot be the host's to choose: it knows no length. Where a plan has rows of
 * both, both are queued, and the gate leaves each row no positions on the other's. Lists ascend, so
 * nothing is expanded.
 */
#include <stddef.h>

#include "cache/address.h"
#include "fail.h"
#include "kernels/check_parts.h"
#include "kernels/cuda/plan_run.h"
#include "kernels/rows.h"

/* Rows r .. of a run, at most a tile of them; or all of a stretch, of which the device knows the
 * tile's. */
typedef struct row_tile {
    int64_t r;
    tamis_row_tile of;       /* starts NULL: all */
    tamis_score_tile scores; /* routes NULL: all */
    int last;                /* of the layer's */
    tamis_rows rows;
    tamis_query query;
    tamis_selection selection;
} row_tile;

/* A list of blocks per row and where they lie. */
typedef struct block_list {
    int32_t *blocks, *placed, *counts;
    int32_t width;
} block_list;

static int paged(const tamis_layer_run *run) {
    return run->layer.indexer->k_layout == TAMIS_K_MXFP4_PAGE;
}

/* Positions that a row sees at most, as far as the host knows. */
static int64_t longest(const tamis_layer_run *run) {
    return tamis_least(run->limit, run->plan->longest);
}

/* Of a row's block maxima, then. */
static int64_t maxima_units(const tamis_layer_run *run) {
    return tamis_maxima_units(longest(run), run->layer.block_size);
}

static row_tile tile_at(const tamis_layer_run *run, int64_t r, int64_t rows) {
    row_tile t;
    int64_t left = run->end - r;
    t.r = r;
    t.of = (tamis_row_tile){0};
    t.scores = (tamis_score_tile){0};
    t.rows = tamis_rows_at(&run->layer.rows, r);
    t.rows.count = tamis_least(left, rows);
    t.last = r + t.rows.count == run->layer.rows.count;
    t.query = tamis_query_at(&run->layer.args->query, r);
    t.selection = tamis_selection_at(&run->layer.selection, r);
    return t;
}

static block_list published(const tamis_layer_run *run, const row_tile *t) {
    int64_t at = t->r * run->layer.topk_blocks;
    block_list l = {run->plan->blocks + at, run->plan->placed + at, run->plan->blocks_count + t->r,
                    run->layer.topk_blocks};
    return l;
}

/* Without pages ids are places. Many rows leave no room for places: their kernels find them. */
static block_list own(const tamis_layer_run *run, const row_tile *t) {
    const tamis_cuda_plan *plan = run->plan;
    const int32_t width = run->layer.selection.topk + 1;
    const int64_t rows = run->end - run->first, at = t->r - run->first;
    const int beside = paged(run) && 2 * rows <= plan->room.lists;
    block_list l = {plan->own + at * width, NULL, plan->own_count + at, width};
    if (!paged(run)) {
        l.placed = l.blocks;
        l.blocks = NULL;
    } else if (beside) {
        l.placed = l.blocks + rows * width;
    }
    return l;
}

/* ---- checks ---- */

static tamis_status check_step(const tamis_cuda_plan *plan, const tamis_step *step,
                               tamis_error *error) {
    TAMIS_NEED(step != NULL, TAMIS_ERROR_ARGUMENT, "step", "a step", 0);
    TAMIS_NEED(step->struct_size == sizeof *step, TAMIS_ERROR_STRUCT_SIZE, "step.struct_size",
               "a step that tamis_cuda_step_make made", step->struct_size);
    if (step->counts != plan->counts) {
        return tamis_fail(error, TAMIS_ERROR_STAMP, "step", "a step of this plan", "%s",
                          "a step of another plan");
    }
    TAMIS_NEED(step->serial == plan->made, TAMIS_ERROR_STAMP, "step.serial", "the plan's last step",
               step->serial);
    return TAMIS_OK;
}

static tamis_mqa_logits_args score_of(const tamis_layer_run *run, tamis_rows rows,
                                      tamis_query query) {
    tamis_mqa_logits_args score = {0};
    score.numerics = run->layer.indexer->numerics;
    score.k = run->layer.args->k;
    score.rows = rows;
    score.query = query;
    score.block_size = run->layer.block_size;
    score.logits_type = TAMIS_F32;
    return score;
}

/* Not in steps of a row a request, as far as each has one: none can then have enough. */
static void use_decoded(tamis_layer_run *run, int consumer) {
    const tamis_cuda_plan *plan = run->plan;
    tamis_mqa_logits_args score = score_of(run, run->layer.rows, run->layer.args->query);
    run->raised = plan->raised;
    run->raised.first = consumer ? plan->usable : plan->raised.first;
    run->decoded = plan->raised.codes != NULL && run->limit > 0 &&
                   plan->rows - plan->requests + 1 >= TAMIS_RAISED_ROWS &&
                   tamis_cuda_source_is_fast(&score);
    run->whole = run->decoded && plan->rows >= TAMIS_RAISED_ROWS * plan->requests;
}

static tamis_status begin(tamis_cuda_plan *plan, const tamis_step *step,
                          const tamis_layer_args *args, int consumer, void *stream,
                          tamis_layer_run *run, tamis_error *error) {
    TAMIS_NEED(plan != NULL, TAMIS_ERROR_ARGUMENT, "plan", "a plan", 0);
    TAMIS_TRY(tamis_cuda_check_call(plan->cuda, args, error));
    TAMIS_TRY(check_step(plan, step, error));
    TAMIS_TRY(tamis_layer_resolve(plan->indexer, args, plan->rows, &run->layer, error));
    TAMIS_TRY(tamis_layer_need_role(&run->layer, consumer, error));
    run->plan = plan;
    run->stream = stream;
    run->layer.plan = NULL;
    run->layer.step = step;
    /* A step without requests has padding alone, which reads no page table. */
    run->layer.rows =
        tamis_layer_rows(&run->layer, step, plan->rows, plan->requests > 0 ? plan->requests : 1);
    run->gates = 0;
    run->first = 0;
    run->end = run->layer.rows.count;
    run->limit = tamis_cuda_limit(&run->layer.rows, &args->k);
    if (paged(run) && run->layer.rows.page_table == NULL) {
        run->layer.rows.page_table_width = 0;
        run->limit = 0;
    }
    use_decoded(run, consumer);
    const tamis_dense_rows none = {-1, -1};
    run->dense_rows = consumer ? tamis_cuda_dense_rows(plan, run->whole, longest(run)) : none;
    run->dense = run->dense_rows.most >= 0;
    run->sparse = run->dense_rows.most < longest(run);
    return tamis_check_device_rows(&run->layer.rows, &args->k, error);
}

/* ---- kernels ---- */

/* A list's ids and places, as one list of a publish. */
static tamis_block_list list_to(const tamis_layer_run *run, block_list l) {
    tamis_block_list to = {0};
    to.blocks = l.blocks;
    to.counts = l.counts;
    to.placed = l.placed;
    to.blocks_stride = to.placed_stride = to.width = l.width;
    to.page_size = run->layer.args->k.page_size;
    return to;
}

/* The step's list, where the layer is a source, and its own, where it selects. */
static tamis_status queue_lists(const tamis_layer_run *run, const row_tile *t, int selects,
                                tamis_error *error) {
    const tamis_layer_args *args = run->layer.args;
    const int source = run->layer.role.role == TAMIS_ROLE_SOURCE;
    const int wider = source && selects && own(run, t).width > run->layer.topk_blocks;
    tamis_publish_job job = {0};
    job.rows = t->rows;
    job.tile = t->of;
    job.block_max = (float *)run->plan->work;
    job.block_max_stride = maxima_units(run) * (TAMIS_MAXIMA_UNIT / 4);
    job.limit = longest(run);
    job.block_size = run->layer.block_size;
    if (source) {
        tamis_block_list *list = &job.list[wider];
        *list = list_to(run, published(run, t));
        list->copy = args->blocks ? args->blocks + t->r * args->blocks_stride : NULL;
        list->copy_stride = args->blocks_stride;
        job.stamp = t->last ? tamis_cuda_stamp_of(run) : job.stamp;
    }
    if (selects) {
        job.list[source && !wider] = list_to(run, own(run, t));
    }
    return tamis_cuda_queue_lists(run->plan->cuda, &job, run->stream, error);
}

static tamis_status queue_maxima(const tamis_layer_run *run, const row_tile *t,
                                 tamis_error *error) {
    tamis_mqa_logits_args score = score_of(run, t->rows, t->query);
    score.block_max = (float *)run->plan->work;
    score.block_max_stride = maxima_units(run) * (TAMIS_MAXIMA_UNIT / 4);
    return tamis_cuda_queue_mqa_logits(run->plan->cuda, &score, 0,
                                       run->decoded ? &run->raised : NULL, &t->of, NULL,
                                       run->stream, error);
}

/* Scores of everything a row sees. */
static tamis_status queue_scores(const tamis_layer_run *run, const row_tile *t,
                                 tamis_error *error) {
    tamis_mqa_logits_args score = score_of(run, t->rows, t->query);
    score.logits = run->plan->work;
    score.logits_stride = score.columns = run->tiling.each / 4;
    return tamis_cuda_queue_mqa_logits(run->plan->cuda, &score, 0,
                                       run->decoded ? &run->raised : NULL, NULL, &t->scores,
                                       run->stream, error);
}

/* Selection among listed blocks. */
static tamis_topk_args topk_of(const tamis_layer_run *run, const row_tile *t, block_list l) {
    tamis_topk_args topk = {0};
    topk.logits_type = TAMIS_F32;
    topk.block_size = run->layer.block_size;
    topk.rows = t->rows;
    topk.logits = run->plan->work;
    topk.logits_stride = run->tiling.each / 4;
    topk.width = (int64_t)l.width * run->layer.block_size;
    topk.blocks = paged(run) ? l.blocks : l.placed;
    topk.blocks_stride = l.width;
    topk.page_size = run->layer.args->k.page_size;
    topk.selection = t->selection;
    return topk;
}

/* What topk selects from. */
static tamis_sparse_mqa_logits_args listed_of(const tamis_layer_run *run, const row_tile *t,
                                              block_list l, const tamis_topk_args *topk) {
    tamis_sparse_mqa_logits_args score = {0};
    score.numerics = run->layer.indexer->numerics;
    score.k = run->layer.args->k;
    score.rows = t->rows;
    score.query = t->query;
    score.block_size = run->layer.block_size;
    score.logits_type = TAMIS_F32;
    score.width = l.width;
    score.blocks = topk->blocks;
    score.blocks_stride = l.width;
    score.counts = l.counts;
    score.logits = run->plan->work;
    score.logits_stride = topk->logits_stride;
    score.physical = paged(run) ? l.placed : NULL;
    score.physical_stride = l.width;
    return score;
}

static tamis_status queue_sparse(const tamis_layer_run *run, const row_tile *t, block_list l,
                                 tamis_error *error) {
    tamis_topk_args topk = topk_of(run, t, l);
    tamis_sparse_mqa_logits_args score = listed_of(run, t, l, &topk);
    tamis_gate_args gate = {0};
    if (run->gates) {
        gate = tamis_cuda_gate_of(run);
    }
    tamis_raised_k raised = run->raised;
    raised.dense = run->dense ? run->plan->gated[1] + t->r : NULL;
    return tamis_cuda_queue_consume(
        run->plan->cuda, &score, &topk, run->plan->done + t->r,
        run->whole ? NULL : run->plan->taken + t->r, run->dense ? &run->plan->routes->listed : NULL,
        run->decoded ? &raised : NULL, run->gates ? &gate : NULL, run->limit, run->stream, error);
}

/*
 * Rows of the sparse route, where there are any, have written theirs by then. A row that sees no
 * more than the pool has every block on its list, which is then not read.
 */
static tamis_status queue_dense(const tamis_layer_run *run, const row_tile *t, block_list l,
                                tamis_error *error) {
    row_tile dense = *t;
    dense.rows.ke = run->plan->gated[1] + t->r;
    tamis_topk_args topk = topk_of(run, &dense, l);
    const int32_t live_only = run->sparse ? TAMIS_TOPK_LIVE_ONLY : 0;
    topk.width = tamis_least(topk.width, longest(run));
    TAMIS_TRY(queue_scores(run, &dense, error));
    return tamis_cuda_queue_topk(run->plan->cuda, &topk,
                                 TAMIS_TOPK_GATHER | TAMIS_TOPK_WHOLE | live_only, &t->scores,
                                 run->limit, run->stream, error);
}

/* ---- calls ---- */

static int selects(const tamis_selection *out) {
    return out->positions || out->slots || out->scores || out->counts;
}

static tamis_status source_tile(const tamis_layer_run *run, const row_tile *t, tamis_error *error) {
    const int own_selection = selects(&t->selection);
    TAMIS_TRY(queue_maxima(run, t, error));
    if (own_selection || run->layer.role.role == TAMIS_ROLE_SOURCE) {
        return queue_lists(run, t, own_selection, error);
    }
    return TAMIS_OK;
}

static tamis_status own_tile(const tamis_layer_run *run, const row_tile *t, tamis_error *error) {
    return queue_sparse(run, t, own(run, t), error);
}

static tamis_status sparse_tile(const tamis_layer_run *run, const row_tile *t, tamis_error *error) {
    return queue_sparse(run, t, published(run, t), error);
}

typedef tamis_status queue_tile(const tamis_layer_run *run, const row_tile *t, tamis_error *error);

/* Rows of each tile of the rows first .. end - 1 of a layer's, at most `most`. */
static int64_t cut(const tamis_layer_run *run, int64_t most) {
    const int64_t rows = run->end - run->first;
    return tamis_tile_rows((uint32_t)rows, (uint32_t)tamis_least(most, rows));
}

static tamis_status queue_tiles(const tamis_layer_run *run, int64_t most, queue_tile *queue,
                                tamis_error *error) {
    const int64_t rows = cut(run, most);
    for (int64_t r = run->first; r < run->end; r += rows) {
        row_tile t = tile_at(run, r, rows);
        TAMIS_TRY(queue(run, &t, error));
    }
    return TAMIS_OK;
}

static int64_t groups_from(const tamis_layer_run *run, int64_t width) {
    return tamis_cuda_groups_from(run->plan->cuda, width, run->decoded, run->whole);
}

typedef block_list list_of(const tamis_layer_run *run, const row_tile *t);

/* Selection from lists. Larger tiles where no scores are kept, if that holds for the last and
 * smallest. */
static tamis_status queue_listed(tamis_layer_run *run, list_of *list, queue_tile *queue,
                                 tamis_error *error) {
    const tamis_cuda_plan *plan = run->plan;
    run->tiling = tamis_cuda_group_tiling(plan->indexer, &plan->limits);
    const int64_t rows = run->end - run->first, each = cut(run, run->tiling.rows);
    row_tile last = tile_at(run, run->first + (rows > 0 ? (rows - 1) / each * each : 0), each);
    block_list l = list(run, &last);
    tamis_topk_args topk = topk_of(run, &last, l);
    tamis_sparse_mqa_logits_args score = listed_of(run, &last, l, &topk);
    const tamis_tiling sparse = tamis_cuda_sparse_tiling(plan->indexer, &plan->limits, l.width);
    const int grouped = tamis_cuda_consume_is_grouped(plan->cuda, &score, &topk.selection,
                                                      groups_from(run, l.width));
    score.logits_stride = sparse.each / 4;
    if (!grouped || (run->whole && rows <= sparse.rows &&
                     tamis_cuda_consume_goes_in_waves(plan->cuda, &score, &topk.selection,
                                                      plan->done, &run->raised))) {
        run->tiling = sparse;
    }
    return queue_tiles(run, run->tiling.rows, queue, error);
}

/* Tiles that the device cuts, as many as rows need that are as long as the host knows. */
static tamis_status queue_cut_tiles(const tamis_layer_run *run, int64_t units, tamis_error *error) {
    row_tile t = tile_at(run, run->first, run->end - run->first);
    const int64_t each = maxima_units(run),
                  tiles = tamis_tiles_of(t.rows.count * each, each, units);
    TAMIS_TRY(tamis_cuda_queue_cut(run, &t.rows, longest(run), tiles, error));
    t.of.starts = run->plan->tile_starts;
    t.of.at = run->plan->tile_at;
    const int last = t.last;
    for (; t.of.index < tiles; t.of.index++) {
        t.last = last && t.of.index == tiles - 1;
        TAMIS_TRY(source_tile(run, &t, error));
    }
    return TAMIS_OK;
}

/* Where the scores of all rows may not fit, as many tiles as the longest would need that the host
 * can think of; the device fills them by the longest that there is. The room of decoded K lies
 * behind the scratch: what K leaves of it scores have, too. */
static tamis_status queue_dense_tiles(const tamis_layer_run *run, tamis_error *error) {
    const tamis_cuda_plan *plan = run->plan;
    row_tile t = tile_at(run, 0, run->end);
    const uint32_t rows = (uint32_t)t.rows.count;
    if (run->sparse || run->tiling.rows < t.rows.count) {
        t.scores.routes = plan->routes;
    }
    t.scores.both = (uint32_t)run->sparse;
    t.scores.stride = (uint32_t)(run->tiling.each / 4);
    t.scores.room = (uint32_t)(plan->work_bytes / 4);
    if (run->decoded) {
        const uint8_t *end = plan->raised.codes + plan->raised_capacity * 128;
        t.scores.spare = (uint32_t)((end - plan->work) / 4) - t.scores.room;
    }
    const uint32_t each = tamis_score_rows(rows, t.scores.stride, t.scores.room);
    for (uint32_t r = 0; r < rows; r += each, t.scores.index++) {
        TAMIS_TRY(queue_dense(run, &t, published(run, &t), error));
    }
    return TAMIS_OK;
}

/* The device need not cut what fits, and cannot where hardly a run of rows does. */
static tamis_status queue_stretch(tamis_layer_run *run, tamis_error *error) {
    const int64_t rows = run->end - run->first, each = maxima_units(run);
    const int64_t units = run->plan->room.maxima / TAMIS_MAXIMA_UNIT;
    if (rows * each <= units || 2 * TAMIS_TILE_RUN * each > units) {
        int64_t most = each > 0 ? tamis_cuda_fitting(units, each, rows) : rows;
        TAMIS_TRY(queue_tiles(run, most, source_tile, error));
    } else {
        TAMIS_TRY(queue_cut_tiles(run, units, error));
    }
    return selects(&run->layer.selection) ? queue_listed(run, own, own_tile, error) : TAMIS_OK;
}

tamis_status tamis_cuda_source_run(tamis_cuda_plan *plan, const tamis_step *step,
                                   const tamis_layer_args *args, void *stream, tamis_error *error) {
    tamis_layer_run run;
    TAMIS_TRY(begin(plan, step, args, 0, stream, &run, error));
    TAMIS_TRY(tamis_cuda_queue_gate(&run, error));
    if (run.decoded) {
        TAMIS_TRY(tamis_cuda_queue_raise(&run, error));
    }
    const int64_t rows = run.end;
    for (; run.first < rows; run.first = run.end) {
        run.end = tamis_least(rows, run.first + plan->room.rows);
        TAMIS_TRY(queue_stretch(&run, error));
    }
    return TAMIS_OK;
}

/* Whether all that a consumer queues is one kernel of few rows. */
static int is_one_split(tamis_layer_run *run) {
    const int64_t rows = run->end;
    if (!run->sparse || run->dense || run->decoded || rows == 0) {
        return 0;
    }
    row_tile t = tile_at(run, 0, rows);
    block_list l = published(run, &t);
    run->tiling = tamis_cuda_sparse_tiling(run->plan->indexer, &run->plan->limits, l.width);
    tamis_topk_args topk = topk_of(run, &t, l);
    tamis_sparse_mqa_logits_args score = listed_of(run, &t, l, &topk);
    const int64_t from = groups_from(run, l.width);
    return rows <= run->tiling.rows && tamis_cuda_consume_is_split(&score, run->plan->done, from) &&
           !tamis_cuda_consume_is_grouped(run->plan->cuda, &score, &topk.selection, from);
}

tamis_status tamis_cuda_consumer_run(tamis_cuda_plan *plan, const tamis_step *step,
                                     const tamis_layer_args *args, void *stream,
                                     tamis_error *error) {
    tamis_layer_run run;
    TAMIS_TRY(begin(plan, step, args, 1, stream, &run, error));
    run.gates = is_one_split(&run);
    if (!run.gates) {
        TAMIS_TRY(tamis_cuda_queue_gate(&run, error));
    }
    if (run.sparse) {
        TAMIS_TRY(queue_listed(&run, published, sparse_tile, error));
    }
    if (run.dense) {
        run.tiling = tamis_cuda_dense_tiling(plan, tamis_least(run.dense_rows.most, longest(&run)));
        TAMIS_TRY(queue_dense_tiles(&run, error));
    }
    return TAMIS_OK;
}
