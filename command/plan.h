/* SPDX-License-Identifier: MIT */
/*
 * plan.h: the parts of `tamis plan`: what is asked (plan.c), what follows (plan_facts.c), how it is
 * told (plan_report.c). Nothing is measured: every figure follows from the configuration.
 */
#ifndef TAMIS_COMMAND_PLAN_H
#define TAMIS_COMMAND_PLAN_H

#include <tamis/tamis.h>

#include "command.h"
#include "config_file.h"

typedef struct plan_inputs {
    common_options common;
    const char *config, *attention; /* paths; attention may be NULL */
    tamis_model_file model;
    tamis_settings_file settings;
    tamis_plan_limits limits;
    tamis_indexer_options options;
    int64_t memory;                     /* bytes for KV; -1: not given */
    int64_t main_row_bytes, main_align; /* main K/V rows in the same blocks; 0: none */
    int cuda;                           /* --backend */
} plan_inputs;

/* Layers one after another with one role. */
typedef struct plan_range {
    int32_t first, last;
    tamis_layer_role role;
} plan_range;

/* K owners of one ratio: their pages lie in one block, which holds page_size * ratio tokens. */
typedef struct plan_group {
    int32_t owners;
    int64_t bytes; /* of their pages */
} plan_group;

typedef struct plan_kv {
    tamis_kv_layout layout;
    plan_group group[2]; /* [ratio - 1] */
    int64_t index_row_bytes, index_page_bytes, index_page_padding;
    double index_bytes_per_token;       /* of index K alone, unpadded */
    double bytes_per_token;             /* of whole blocks */
    int64_t page_size_without_overhead; /* of index K in a pool of its own */
    int64_t blocks, tokens;             /* that the memory holds; -1 without memory */
} plan_kv;

enum { PLAN_CHUNKS = 9, PLAN_SAVINGS = 4 };

typedef struct plan_chunk {
    int64_t context, positions;      /* positions at the smallest ratio that selects */
    int64_t dense_rows, sparse_rows; /* sparse -1: a one-level model */
} plan_chunk;

/* Positions scored for the newest token of a context. */
typedef struct plan_saving {
    int64_t context;
    int64_t consumers_dense, consumers_sparse;
    int64_t all_dense, all_sparse; /* by every layer that selects */
} plan_saving;

typedef struct plan_facts {
    tamis_requirement *failures; /* [failed] */
    int32_t failed;
    tamis_cuda_device device; /* with --backend cuda, where it is met */
    plan_range *ranges;       /* NULL when the roles cannot be derived */
    int32_t range_count;
    /* below only when no requirement failed */
    char tier[32];
    int64_t max_rows, workspace_bytes, page_stride;
    int64_t cuda_bytes; /* of device memory for a plan there; -1: none for several ranks */
    plan_kv kv;
    plan_chunk chunks[PLAN_CHUNKS];
    plan_saving savings[PLAN_SAVINGS];
} plan_facts;

/* Returns STATUS_GOOD, also when requirements failed, or has said why not. Fills in the inputs'
 * page_stride where it is 0: pages of one layer lie a block apart. */
int plan_find(plan_inputs *inputs, plan_facts *facts);
void plan_free(plan_facts *facts);

/* Appends to the failures what keeps this machine's GPU from running a plan at all, and, once the
 * bytes are known, from holding it. */
void plan_find_device(const plan_inputs *inputs, plan_facts *facts);
void plan_fit_device(const plan_inputs *inputs, plan_facts *facts);

void plan_json(const plan_inputs *inputs, const plan_facts *facts);
void plan_text(const plan_inputs *inputs, const plan_facts *facts);
/* Each failure in a line of its own on stderr. */
void plan_failures(const plan_inputs *inputs, const plan_facts *facts);

#endif
