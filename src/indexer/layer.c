/* SPDX-License-Identifier: MIT */
/*
 * layer.c: run calls: what a call must be, stamps, slices (spec 6). Nothing here allocates, locks,
 * prints or reads the environment; everything is checked before anything is written.
 */
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "indexer/layer.h"
#include "indexer/lines.h"
#include "kernels/check_parts.h"
#include "kernels/fpenv.h"

void tamis_layer_args_default(tamis_layer_args *args) {
    memset(args, 0, sizeof *args);
    args->struct_size = (uint32_t)sizeof *args;
}

static tamis_status fail_stamp(tamis_error *error, const char *required, const char *found) {
    return tamis_fail(error, TAMIS_ERROR_STAMP, "step", required, "%s", found);
}

static tamis_status check_k(const tamis_indexer *indexer, const tamis_layer_args *a,
                            tamis_error *error) {
    TAMIS_NEED(a->k.layout == indexer->k_layout, TAMIS_ERROR_LAYOUT, "k.layout",
               "the indexer's k_layout", a->k.layout);
    TAMIS_NEED(a->k.head_dim == indexer->model.index_head_dim, TAMIS_ERROR_GEOMETRY, "k.head_dim",
               "the model's index_head_dim", a->k.head_dim);
    if (a->k.layout == TAMIS_K_MXFP4_PAGE) {
        TAMIS_NEED(a->k.page_size == indexer->page_size, TAMIS_ERROR_LAYOUT, "k.page_size",
                   "the indexer's page_size", a->k.page_size);
        TAMIS_NEED(a->k.stride == indexer->page_stride, TAMIS_ERROR_LAYOUT, "k.stride",
                   "the indexer's page_stride", a->k.stride);
        TAMIS_NEED(a->k.size <= INT32_MAX / (a->k.page_size / 8), TAMIS_ERROR_LAYOUT, "k.size",
                   "below 2^31 blocks of 8 positions", a->k.size);
    }
    return TAMIS_OK;
}

static tamis_status check_outputs(const tamis_layer *layer, int64_t rows, tamis_error *error) {
    TAMIS_NEED(layer->selection.topk == layer->indexer->model.index_topk, TAMIS_ERROR_ARGUMENT,
               "selection.topk", "the model's index_topk, or 0", layer->selection.topk);
    TAMIS_TRY(tamis_check_selection(&layer->selection, rows, error));
    if (layer->args->blocks) {
        TAMIS_NEED(layer->role.role == TAMIS_ROLE_SOURCE, TAMIS_ERROR_ARGUMENT, "args.blocks",
                   "NULL: only a candidate source publishes", layer->args->layer);
        TAMIS_TRY(tamis_check_stride(rows, layer->args->blocks_stride, layer->topk_blocks,
                                     "args.blocks_stride", error));
    }
    return TAMIS_OK;
}

/* The step must be the plan's last: an older one's arrays are gone. */
static tamis_status check_step(const tamis_plan *plan, const tamis_step *step, tamis_error *error) {
    TAMIS_NEED(plan != NULL, TAMIS_ERROR_ARGUMENT, "plan", "a plan", 0);
    TAMIS_NEED(step != NULL, TAMIS_ERROR_ARGUMENT, "step", "a step", 0);
    TAMIS_NEED(step->struct_size == sizeof *step, TAMIS_ERROR_STRUCT_SIZE, "step.struct_size",
               "a step that tamis_step_make made", step->struct_size);
    if (step->plan != plan || step->nonce != plan->nonce) {
        return fail_stamp(error, "a step of this plan", "a step of another plan");
    }
    TAMIS_NEED(step->serial == plan->serial && step->serial == plan->counts.serial,
               TAMIS_ERROR_STAMP, "step.serial", "the plan's last step", step->serial);
    TAMIS_NEED(step->counts == &plan->counts && plan->counts.rows >= 0 &&
                   plan->counts.rows <= plan->max_rows,
               TAMIS_ERROR_LIMIT, "step.counts.rows", "0 .. the plan's rows", plan->counts.rows);
    return TAMIS_OK;
}

tamis_rows tamis_layer_rows(const tamis_layer *layer, const tamis_step *step, int64_t count,
                            int64_t requests) {
    int k = layer->role.ratio - 1;
    int pages = layer->indexer->k_layout == TAMIS_K_MXFP4_PAGE;
    tamis_rows rows = {0};
    rows.count = count;
    rows.ks = pages ? NULL : step->ks[k];
    rows.ke = step->ke[k];
    rows.request = step->request;
    if (pages) {
        rows.page_table = step->page_table[k];
        rows.page_table_stride = step->page_table_stride[k];
        rows.page_table_width = step->page_table_width[k];
        rows.requests = requests;
    }
    return rows;
}

tamis_status tamis_layer_resolve(const tamis_indexer *indexer, const tamis_layer_args *args,
                                 int64_t rows, tamis_layer *layer, tamis_error *error) {
    TAMIS_NEED(args != NULL, TAMIS_ERROR_ARGUMENT, "args", "arguments", 0);
    TAMIS_NEED_SIZE(args);
    TAMIS_NEED(args->layer >= 0 && args->layer < indexer->model.num_layers, TAMIS_ERROR_ARGUMENT,
               "args.layer", "a layer of the model", args->layer);
    layer->indexer = indexer;
    layer->args = args;
    layer->role = indexer->roles[args->layer];
    layer->block_size = tamis_model_block_size(&indexer->model);
    layer->topk_blocks = tamis_model_topk_blocks(&indexer->model);
    layer->selection = args->selection;
    if (layer->selection.topk == 0) {
        layer->selection.topk = indexer->model.index_topk;
    }
    TAMIS_TRY(check_k(indexer, args, error));
    TAMIS_NEED(args->query.heads == indexer->model.index_n_heads, TAMIS_ERROR_GEOMETRY,
               "query.heads", "the model's index_n_heads", args->query.heads);
    TAMIS_TRY(tamis_check_query(&args->query, &args->k, rows, error));
    TAMIS_TRY(check_outputs(layer, rows, error));
    if (layer->role.role == TAMIS_ROLE_NONE || layer->role.role == TAMIS_ROLE_REUSE) {
        return tamis_fail(error, TAMIS_ERROR_ARGUMENT, "args.layer", "a layer that selects", "%s",
                          tamis_role_name(layer->role.role));
    }
    return TAMIS_OK;
}

/* Resolves and checks what source and consumer runs share. */
static tamis_status resolve(tamis_plan *plan, const tamis_step *step, const tamis_layer_args *args,
                            int32_t ith, int32_t nth, tamis_layer *layer, tamis_error *error) {
    TAMIS_TRY(check_step(plan, step, error));
    TAMIS_NEED(nth >= 1 && nth <= plan->limits.threads, TAMIS_ERROR_LIMIT, "nth",
               "1 .. the plan's threads", nth);
    TAMIS_NEED(ith >= 0 && ith < nth, TAMIS_ERROR_ARGUMENT, "ith", "0 .. nth-1", ith);
    layer->plan = plan;
    layer->step = step;
    TAMIS_TRY(tamis_layer_resolve(plan->indexer, args, step->counts->rows, layer, error));
    layer->rows = tamis_layer_rows(layer, step, step->counts->rows, step->counts->requests);
    /* Blocks were placed, and pages checked, when they were published: check_stamp. */
    return layer->role.role == TAMIS_ROLE_CONSUMER
               ? tamis_k_cache_check(&args->k, error)
               : tamis_check_rows(&layer->rows, &args->k, error);
}

/* ---- stamps ---------------------------------------------------------------------------------- */

/* A slice begins to publish: the first one writes the stamp, the others must agree with it. */
static tamis_status open_publish(const tamis_layer *layer, int32_t ith, int32_t nth,
                                 tamis_error *error) {
    tamis_plan *plan = layer->plan;
    uint64_t mine = tamis_stamp_word(layer->step->serial, layer->args->layer, nth), seen = 0;
    if (!atomic_compare_exchange_strong(&plan->stamp.opened, &seen, mine) && seen != mine) {
        return fail_stamp(error, "one publish a step, cut into the same slices",
                          "a publish of another layer or another cut");
    }
    uint64_t last = atomic_exchange(&plan->slice[ith], layer->step->serial);
    if (last == layer->step->serial) {
        return fail_stamp(error, "one publish a step", "a second publish");
    }
    atomic_store(&plan->stamp.rows, layer->rows.count);
    atomic_store(&plan->stamp.k_size, layer->args->k.size);
    return TAMIS_OK;
}

static void close_publish(const tamis_layer *layer) {
    atomic_fetch_add(&layer->plan->stamp.closed, 1);
}

static tamis_status check_stamp(const tamis_layer *layer, tamis_error *error) {
    tamis_stamp *stamp = &layer->plan->stamp;
    uint64_t opened = atomic_load(&stamp->opened);
    int32_t nth = (int32_t)(opened & 0xFFFF);
    if (opened == 0) {
        return fail_stamp(error, "published blocks of this step", "none yet");
    }
    if (opened != tamis_stamp_word(layer->step->serial, layer->role.source, nth)) {
        return fail_stamp(error, "the blocks of this layer's source", "another layer's");
    }
    if (atomic_load(&stamp->closed) != nth) {
        return fail_stamp(error, "a complete publish", "slices that have not finished");
    }
    if (atomic_load(&stamp->rows) != layer->rows.count) {
        return fail_stamp(error, "the rows that were published", "other rows");
    }
    TAMIS_NEED(layer->args->k.size >= atomic_load(&stamp->k_size), TAMIS_ERROR_LENGTH, "k.size",
               "the size that the source published against, or more", layer->args->k.size);
    return TAMIS_OK;
}

/* ---- calls ------------------------------------------------------------------------------------
 */

static void run_rows(const tamis_layer *layer, int32_t ith, int32_t nth) {
    int64_t r, end;
    tamis_slice(layer->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        if (layer->role.role == TAMIS_ROLE_CONSUMER) {
            tamis_layer_consumer_row(layer, r, ith);
        } else {
            tamis_layer_source_row(layer, r, ith);
        }
    }
}

/* What a layer's slice needs before it may write: its stamp, or the right to publish. */
static tamis_status begin_outputs(const tamis_layer *layer, int32_t ith, int32_t nth,
                                  tamis_error *error) {
    if (layer->role.role == TAMIS_ROLE_CONSUMER) {
        return check_stamp(layer, error);
    }
    return layer->role.role == TAMIS_ROLE_SOURCE ? open_publish(layer, ith, nth, error) : TAMIS_OK;
}

static void end_outputs(const tamis_layer *layer) {
    if (layer->role.role == TAMIS_ROLE_SOURCE) {
        close_publish(layer);
    }
}

static tamis_status run_whole(const tamis_layer *layer, int32_t ith, int32_t nth,
                              tamis_error *error) {
    TAMIS_TRY(tamis_lines_enter(layer->plan, ith, error));
    tamis_status status = begin_outputs(layer, ith, nth, error);
    if (status == TAMIS_OK) {
        uint64_t saved = tamis_fp_enter();
        run_rows(layer, ith, nth);
        tamis_fp_leave(saved);
        end_outputs(layer);
    }
    tamis_lines_leave(layer->plan, ith);
    return status;
}

tamis_status tamis_layer_need_role(const tamis_layer *layer, int consumer, tamis_error *error) {
    if ((layer->role.role == TAMIS_ROLE_CONSUMER) != consumer) {
        return tamis_fail(error, TAMIS_ERROR_ARGUMENT, "args.layer",
                          consumer ? "a consumer" : "a source or full layer", "%s",
                          tamis_role_name(layer->role.role));
    }
    return TAMIS_OK;
}

tamis_status tamis_source_run(tamis_plan *plan, const tamis_step *step,
                              const tamis_layer_args *args, int32_t ith, int32_t nth,
                              tamis_error *error) {
    tamis_layer layer;
    TAMIS_TRY(resolve(plan, step, args, ith, nth, &layer, error));
    TAMIS_TRY(tamis_layer_need_role(&layer, 0, error));
    return run_whole(&layer, ith, nth, error);
}

tamis_status tamis_consumer_run(tamis_plan *plan, const tamis_step *step,
                                const tamis_layer_args *args, int32_t ith, int32_t nth,
                                tamis_error *error) {
    tamis_layer layer;
    TAMIS_TRY(resolve(plan, step, args, ith, nth, &layer, error));
    TAMIS_TRY(tamis_layer_need_role(&layer, 1, error));
    return run_whole(&layer, ith, nth, error);
}

/* Rows are cut over positions when there are fewer than slices: each then has a line of its own. */
static int is_split(const tamis_layer *layer, int32_t nth) {
    return layer->rows.count < nth;
}

tamis_status tamis_layer_score(tamis_plan *plan, const tamis_step *step,
                               const tamis_layer_args *args, int32_t ith, int32_t nth,
                               tamis_error *error) {
    tamis_layer layer;
    uint64_t word;
    TAMIS_TRY(resolve(plan, step, args, ith, nth, &layer, error));
    if (layer.role.role == TAMIS_ROLE_CONSUMER) {
        TAMIS_TRY(check_stamp(&layer, error));
    }
    if (layer.role.role == TAMIS_ROLE_SOURCE &&
        atomic_load(&plan->slice[ith]) == layer.step->serial) {
        return fail_stamp(error, "one publish a step", "a second publish");
    }
    if (!is_split(&layer, nth)) {
        return TAMIS_OK; /* the merge does it all */
    }
    TAMIS_TRY(tamis_lines_claim(&layer, ith, nth, &word, error));
    uint64_t saved = tamis_fp_enter();
    for (int64_t r = 0; r < layer.rows.count; r++) {
        tamis_layer_score_row(&layer, r, ith, nth);
    }
    tamis_fp_leave(saved);
    tamis_lines_scored(plan, ith, word);
    return TAMIS_OK;
}

tamis_status tamis_layer_merge(tamis_plan *plan, const tamis_step *step,
                               const tamis_layer_args *args, int32_t ith, int32_t nth,
                               tamis_error *error) {
    tamis_layer layer;
    uint64_t word;
    int64_t r, end;
    TAMIS_TRY(resolve(plan, step, args, ith, nth, &layer, error));
    if (!is_split(&layer, nth)) {
        return run_whole(&layer, ith, nth, error);
    }
    TAMIS_TRY(tamis_lines_merge(&layer, ith, nth, &word, error));
    TAMIS_TRY(begin_outputs(&layer, ith, nth, error));
    uint64_t saved = tamis_fp_enter();
    tamis_slice(layer.rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        tamis_layer_merge_row(&layer, r);
    }
    tamis_fp_leave(saved);
    end_outputs(&layer);
    tamis_lines_merged(plan, ith, word);
    return TAMIS_OK;
}
