/* SPDX-License-Identifier: MIT */
/* layer.h: one layer of a step, resolved: what the row functions of layer_rows.c work on. */
#ifndef TAMIS_INDEXER_LAYER_H
#define TAMIS_INDEXER_LAYER_H

#include "indexer/indexer.h"
#include "plan/plan.h"

typedef struct tamis_layer {
    tamis_plan *plan;
    const tamis_step *step;
    const tamis_indexer *indexer;
    const tamis_layer_args *args;
    tamis_layer_role role;
    tamis_rows rows;           /* of the layer's ratio; ks NULL where K has pages */
    tamis_selection selection; /* with topk resolved */
    int32_t block_size;
    int32_t topk_blocks;
} tamis_layer;

/*
 * What CPU and CUDA runs share. resolve fills all but plan, step and rows, and checks the arguments
 * of a call over `rows` rows as far as no array of theirs is read.
 */
tamis_status tamis_layer_resolve(const tamis_indexer *indexer, const tamis_layer_args *args,
                                 int64_t rows, tamis_layer *layer, tamis_error *error);
tamis_status tamis_layer_need_role(const tamis_layer *layer, int consumer, tamis_error *error);
tamis_rows tamis_layer_rows(const tamis_layer *layer, const tamis_step *step, int64_t count,
                            int64_t requests);

/* Whole form: everything of row r. `own` is the slice whose line and scratch are used. */
void tamis_layer_source_row(const tamis_layer *layer, int64_t r, int32_t own);
void tamis_layer_consumer_row(const tamis_layer *layer, int64_t r, int32_t own);

/* Split form: row r's scores into line or scratch r, cut in nth; then the rest of row r. */
void tamis_layer_score_row(const tamis_layer *layer, int64_t r, int32_t ith, int32_t nth);
void tamis_layer_merge_row(const tamis_layer *layer, int64_t r);

/* Whether row r takes the dense route (spec 7.1). */
int tamis_layer_is_dense(const tamis_layer *layer, int64_t r);

#endif
