/* SPDX-License-Identifier: MIT */
/*
 * indexer.h: the object an engine holds. Everything it needs is checked once, at creation, and all
 * failures are reported together; nothing falls back during a step.
 *
 * The two-level indexer of DeepSeek-V4.1 (docs/spec.md) on the arithmetic of docs/numerics.md: what
 * a layer selects is what the stages select (src/kernels/ref/<stage>.c is the reference,
 * tests/kernels/check_<stage>.c its test). Layers, stamps and refusals are tested in tests/plan,
 * the two levels' properties in tests/indexer, requirements in tests/config.
 */
#ifndef TAMIS_INDEXER_H
#define TAMIS_INDEXER_H

#include <tamis/config.h>
#include <tamis/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {                       /* indexer_sparse_logits */
       TAMIS_SPARSE_OFF = 0, /* consumers score everything and mask */
       TAMIS_SPARSE_ON = 1,
       TAMIS_SPARSE_AUTO = 2 /* per row, where its length is known: up to the pool everything is
                                scored, beyond it the listed blocks; on a GPU see cuda.h */
};

/* The attention config's keys. Strings must outlive the call they are given to. */
typedef struct tamis_settings {
    uint32_t struct_size;
    int32_t indexer_sparse_logits; /* TAMIS_SPARSE_*; default off */
    int32_t prefill_budget_mb;     /* default 512 */
    int32_t reserved;
    const char *indexer_kv_dtype; /* default "mxfp4" */
    const char *topk_backend;     /* "auto" (default), or a tier's name */
    const char *numerics;         /* "exact" (default) or "bf16" */
} tamis_settings;

TAMIS_API void tamis_settings_default(tamis_settings *settings);

/* All that decides whether an indexer can run. Everything pointed to is copied. */
typedef struct tamis_indexer_options {
    uint32_t struct_size;
    int32_t k_layout; /* TAMIS_K_*; default TAMIS_K_MXFP4_PAGE */
    const tamis_model *model;
    const tamis_settings *settings;  /* start from tamis_settings_default */
    const char *tier;                /* as tamis_backend_create takes it; NULL: "auto" */
    int32_t page_size;               /* slots of an index-K page */
    int32_t page_align;              /* bytes, default 16: what page_stride must be a multiple of */
    int64_t page_stride;             /* bytes; 0: the smallest that fits */
    int32_t context_parallel;        /* ranks that share a request's positions: 1 .. 64. More than
                                        one run through tamis_shards (shards.h), on a CPU; their
                                        plans are refused */
    int32_t decode_parallel;         /* ranks that share decode's positions; 1 is supported */
    const tamis_plan_limits *limits; /* or NULL: not checked here */
    int64_t workspace_limit;         /* bytes a plan of these limits may take; 0: no limit */
} tamis_indexer_options;

TAMIS_API void tamis_indexer_options_default(tamis_indexer_options *options);

/* One failed requirement. Texts are NUL-terminated. */
typedef struct tamis_requirement {
    char id[32];      /* stable: "page-size-multiple" */
    char setting[64]; /* what to change: "page_size" */
    char required[128];
    char found[96];
    char way_out[128]; /* which setting avoids it */
} tamis_requirement;

/*
 * Checks every requirement and writes the failed ones, in the table's order, to failures[capacity].
 * Returns how many failed, which may be more than capacity; 0: an indexer can be created.
 */
TAMIS_API int32_t tamis_indexer_supported(const tamis_indexer_options *options,
                                          tamis_requirement *failures, int32_t capacity);

/* "ID SETTING: required REQUIRED, found FOUND; WAY_OUT" in text[size]; returns its length. */
TAMIS_API int32_t tamis_requirement_text(const tamis_requirement *failure, char *text,
                                         int64_t size);

/* Number of requirements and the id of requirement i (NULL past the last): the table, for
 * documents. */
TAMIS_API int32_t tamis_requirement_count(void);
TAMIS_API const char *tamis_requirement_id(int32_t i);

/*
 * Creates an indexer. Immutable; may be shared by threads and plans. It allocates, which plans,
 * steps and runs on a CPU never do.
 * Errors: TAMIS_ERROR_REQUIREMENT, naming the first that failed (tamis_indexer_supported has them
 * all); TAMIS_ERROR_MEMORY; TAMIS_ERROR_ARGUMENT when indexer is NULL. On error *indexer is NULL.
 */
TAMIS_API tamis_status tamis_indexer_create(const tamis_indexer_options *options,
                                            tamis_indexer **indexer, tamis_error *error);
TAMIS_API void tamis_indexer_destroy(tamis_indexer *indexer); /* NULL is fine */

/* The role of a layer; NULL for a layer the model does not have. */
TAMIS_API const tamis_layer_role *tamis_indexer_role(const tamis_indexer *indexer, int32_t layer);

/* The tier that its CPU runs use, "auto" resolved: "ref", "avx2". A topk_backend of its own does
 * not show here. */
TAMIS_API const char *tamis_indexer_tier(const tamis_indexer *indexer);

/* ---- running a layer ------------------------------------------------------------------------ */

/* One layer's arrays, aligned to their element (codes and scales: anywhere). Queries and selections
 * are indexed by query token, see tamis_step. */
typedef struct tamis_layer_args {
    uint32_t struct_size;
    int32_t layer;
    tamis_k_cache k;           /* of the layer's K owner */
    tamis_query query;         /* [tokens] rows */
    tamis_selection selection; /* [rows] rows; topk is the model's or 0 for the model's */
    int32_t *blocks;       /* source, optional copy out: [rows][topk_blocks], -1 tail; else NULL */
    int64_t blocks_stride; /* elements */
} tamis_layer_args;

TAMIS_API void tamis_layer_args_default(tamis_layer_args *args);

/*
 * Errors of the four run calls, all found before anything is written:
 *
 *   TAMIS_ERROR_...
 *   ARGUMENT     a NULL that is needed; ith; a layer that the model does not have or whose role is
 *                another call's; a topk that is not the model's; blocks of a layer that publishes
 *                none; a stride or type
 *   LIMIT        nth above limits.threads
 *   LENGTH       positions or page ids outside K (source, full); a K smaller than the one that was
 *                published against (consumer)
 *   LAYOUT       a K of another layout, page size or stride than the indexer's
 *   GEOMETRY     heads or head_dim that are not the model's
 *   STRUCT_SIZE  args, a reserved field, or a step that no tamis_step_make wrote
 *   STAMP        a step that is not this plan's last; see also each call
 */

/*
 * source_run: a source or full layer. Scores everything, selects, and (source) publishes the step's
 * blocks into the plan with a stamp: plan, step, layer, rows. Every slice ith of nth, nth <=
 * limits.threads, once. A second publish in one step is TAMIS_ERROR_STAMP.
 */
TAMIS_API tamis_status tamis_source_run(tamis_plan *plan, const tamis_step *step,
                                        const tamis_layer_args *args, int32_t ith, int32_t nth,
                                        tamis_error *error);

/*
 * consumer_run: a consumer layer. Refused with TAMIS_ERROR_STAMP, and nothing written, unless the
 * plan's blocks carry the stamp of this very step, of the layer's own source, with the same rows,
 * and are complete: before the publish, after another step's publish, with other rows, from another
 * plan.
 */
TAMIS_API tamis_status tamis_consumer_run(tamis_plan *plan, const tamis_step *step,
                                          const tamis_layer_args *args, int32_t ith, int32_t nth,
                                          tamis_error *error);

/*
 * The same for a few rows on many threads, in two calls: every slice of _score, the host's barrier,
 * every slice of _merge, both cut by the same nth, and a barrier before the plan's next call.
 * Source, full and consumer layers. The same bytes as the whole form. Refused with
 * TAMIS_ERROR_STAMP: a merge without all of its scores, and any run while scores of another layer
 * wait for their merge.
 */
TAMIS_API tamis_status tamis_layer_score(tamis_plan *plan, const tamis_step *step,
                                         const tamis_layer_args *args, int32_t ith, int32_t nth,
                                         tamis_error *error);
TAMIS_API tamis_status tamis_layer_merge(tamis_plan *plan, const tamis_step *step,
                                         const tamis_layer_args *args, int32_t ith, int32_t nth,
                                         tamis_error *error);

/* Counters of a plan, for tests and tuning. */
typedef struct tamis_plan_counters {
    uint32_t struct_size;
    int32_t reserved;
    uint64_t steps;       /* made */
    uint64_t expanded;    /* rows whose blocks were expanded and translated to slots */
    uint64_t consumed;    /* consumer rows run */
    uint64_t sparse_rows; /* consumer rows by the sparse route */
    uint64_t dense_rows;  /* consumer rows by the dense route */
} tamis_plan_counters;

/* Writes *counters whole, whatever it held. */
TAMIS_API void tamis_plan_count(const tamis_plan *plan, tamis_plan_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
