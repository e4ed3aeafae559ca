/* SPDX-License-Identifier: MIT */
/* config.h: a model's indexer settings and the role of each layer, derived from them. */
#ifndef TAMIS_CONFIG_H
#define TAMIS_CONFIG_H

#include <stdint.h>

#include <tamis/status.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {                          /* role of a layer */
       TAMIS_ROLE_NONE = 0,     /* ratio 0: no indexer */
       TAMIS_ROLE_FULL = 1,     /* scores its whole visible context */
       TAMIS_ROLE_SOURCE = 2,   /* candidate source: scores everything and publishes blocks */
       TAMIS_ROLE_CONSUMER = 3, /* scores only inside the published blocks */
       TAMIS_ROLE_REUSE = 4     /* uses the last selection of a layer before it */
};

/* Values of a model, named as its config.json names them. */
typedef struct tamis_model {
    uint32_t struct_size;                  /* sizeof(tamis_model) */
    int32_t num_layers;                    /* entries of compress_ratios */
    const int32_t *compress_ratios;        /* [num_layers] 0, 1 or 2 */
    const int32_t *kv_source_layer_ids;    /* [num_kv_sources] ascending */
    const int32_t *index_source_layer_ids; /* [num_index_sources] ascending */
    int32_t num_kv_sources;
    int32_t num_index_sources;
    int32_t candidate_source_layer_id; /* -1: a one-level model */
    int32_t candidate_topk_blocks;     /* 1..4096; 0 when one-level */
    int32_t candidate_block_size;      /* 8 or 16; 0 when one-level */
    int32_t index_n_heads;             /* 4..64, a multiple of 4 */
    int32_t index_head_dim;            /* 64 or 128 */
    int32_t index_topk;                /* 1..4096 */
} tamis_model;

/* What tamis_model_roles writes for each layer. */
typedef struct tamis_layer_role {
    int32_t role;    /* TAMIS_ROLE_* */
    int32_t ratio;   /* tokens per position; 0 for ROLE_NONE */
    int32_t k_owner; /* the nearest K owner at or before it; -1 for ROLE_NONE, and for a
                        REUSE layer before the first owner */
    int32_t source;  /* CONSUMER: the candidate source; REUSE: the layer whose selection it uses
                        (-1 when no index source comes before it); else -1 */
} tamis_layer_role;

/*
 * Derives roles[num_layers] (spec 1): the nearest kv source at or before a layer owns its K; the
 * index source named candidate_source_layer_id publishes; index sources after it that read its K
 * consume; every other index source is full; every other compressed layer reuses.
 * Errors: TAMIS_ERROR_STRUCT_SIZE; TAMIS_ERROR_ARGUMENT (a NULL); TAMIS_ERROR_MODEL naming the key
 * and the layer. On error roles are untouched.
 */
TAMIS_API tamis_status tamis_model_roles(const tamis_model *model, tamis_layer_role *roles,
                                         tamis_error *error);

/* The word for a role: "none", "full", "source", "consumer", "reuse"; "unknown" otherwise. */
TAMIS_API const char *tamis_role_name(int32_t role);

/*
 * Positions that the token at this 0-based position sees: (token + 1) / ratio in 64 bits, only
 * completed groups. 0 for a negative token or a ratio below 1.
 */
TAMIS_API int64_t tamis_visible(int64_t token, int32_t ratio);

#ifdef __cplusplus
}
#endif
#endif
