/* SPDX-License-Identifier: MIT */
/* indexer.h: what an indexer keeps of the options it was made from. */
#ifndef TAMIS_SRC_INDEXER_H
#define TAMIS_SRC_INDEXER_H

#include "indexer/backend.h"

struct tamis_indexer {
    tamis_backend backend;
    tamis_model model;       /* its arrays are this object's */
    tamis_layer_role *roles; /* [model.num_layers] */
    int32_t sparse_logits;   /* TAMIS_SPARSE_* */
    int32_t numerics;        /* TAMIS_NUMERICS_* */
    int32_t k_layout;
    int32_t page_size;
    int64_t page_stride;
    int32_t context_parallel; /* ranks; with more than one tamis_shards alone runs its layers */
};

/* Block size and published blocks of a model; 8 and 0 when it has one level. */
int32_t tamis_model_block_size(const tamis_model *model);
int32_t tamis_model_topk_blocks(const tamis_model *model);

#endif
