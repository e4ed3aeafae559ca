/* SPDX-License-Identifier: MIT */
/*
 * plan.h: limits fixed once, and steps made inside them.
 *
 * Steps are those of docs/spec.md, section 6, of the two-level indexer of DeepSeek-V4.1. They are
 * made in src/plan and tested in tests/plan; selections follow docs/numerics.md and are those of
 * the stages (src/kernels/ref/<stage>.c, tests/kernels/check_<stage>.c).
 *
 * An engine creates an indexer (indexer.h) once, a plan for its limits once, and a step for every
 * forward pass. A step is a set of plain arrays in the plan's workspace, made by one call from
 * sequence lengths, query starts and page tables; tables are pointed to, never copied.
 */
#ifndef TAMIS_PLAN_H
#define TAMIS_PLAN_H

#include <tamis/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tamis_indexer tamis_indexer; /* indexer.h */

/* Limits of a plan. A larger step is refused. */
typedef struct tamis_plan_limits {
    uint32_t struct_size;
    int32_t max_requests;       /* 1 .. 65536 requests in a step */
    int32_t max_batched_tokens; /* 1 .. 2^24 query tokens in a step */
    int32_t draft_tokens;       /* 0 .. 255 draft tokens a decode request verifies */
    int32_t largest_graph;      /* rows of the largest captured graph; 0: none */
    int32_t threads;            /* 1 .. 1024 slices that run calls are cut into at most */
    int64_t max_context;        /* tokens of the longest request, 1 .. 2^31 - 1 */
} tamis_plan_limits;

/* threads 1 and all else 0: max_requests, max_batched_tokens and max_context must be set, 0 is
 * refused. */
TAMIS_API void tamis_plan_limits_default(tamis_plan_limits *limits);

/* max(max_requests * (1 + draft_tokens), max_batched_tokens, largest_graph); -1 when invalid. */
TAMIS_API int64_t tamis_plan_max_rows(const tamis_plan_limits *limits);

/*
 * A plan lives in memory of the caller: `tamis_plan_bytes` says how much, aligned to 64, from the
 * code that lays it out. It is used by one thread at a time, except that run calls for different
 * slices of one step may run at once. Not movable.
 */
typedef struct tamis_plan tamis_plan;

/* Bytes of a plan with these limits; -1 (and the error) when a limit is invalid, or the indexer's
 * context_parallel is not 1: a plan takes K for all of it. */
TAMIS_API int64_t tamis_plan_bytes(const tamis_indexer *indexer, const tamis_plan_limits *limits,
                                   tamis_error *error);

/*
 * Lays a plan out in memory, which ends every plan and step that was in it. The indexer must
 * outlive it. There is nothing to destroy.
 * Errors: TAMIS_ERROR_ARGUMENT (a NULL), _STRUCT_SIZE and _LIMIT (limits), _REQUIREMENT (an indexer
 * of several ranks), _WORKSPACE (memory NULL, misaligned or too small). On error *plan is NULL.
 */
TAMIS_API tamis_status tamis_plan_init(const tamis_indexer *indexer,
                                       const tamis_plan_limits *limits, void *memory, int64_t bytes,
                                       tamis_plan **plan, tamis_error *error);

/* What an engine knows about a forward pass. Arrays are read by the call; page tables by later
 * runs. */
typedef struct tamis_batch {
    uint32_t struct_size;
    int32_t requests;    /* 0 .. max_requests */
    int64_t tokens;      /* query tokens in all */
    int64_t padded_rows; /* rows the arrays are padded to, e.g. a graph's; 0: as many as tokens */
    const int64_t *context;     /* [requests] tokens of each request, new ones included */
    const int32_t *query_start; /* [requests + 1] first new token of each in the flat batch */
    const int32_t *k_start[2];  /* [ratio - 1]: [requests] first K row of each request, for layouts
                                   without pages; NULL: all 0 */
    const int32_t *page_table[2]; /* [ratio - 1]: [requests][stride] pages of that ratio's index K;
                                     NULL for a ratio that no layer has, or layouts without pages */
    int64_t page_table_stride[2]; /* elements */
    int64_t page_table_width[2];  /* entries of a row that may be read */
} tamis_batch;

/* A batch without requests. */
TAMIS_API void tamis_batch_default(tamis_batch *batch);

/* How much of a step's arrays is used. It lies where the arrays lie: on a GPU no host reads it. */
typedef struct tamis_step_counts {
    uint64_t serial;        /* which step of its plan it is, from 1 */
    int64_t rows;           /* decode_rows + prefill_rows + padding */
    int64_t decode_rows;    /* of requests with at most 1 + draft_tokens new tokens */
    int64_t prefill_rows;   /* of all others */
    int64_t requests;       /* in the batch, with and without new tokens */
    int64_t max_visible[2]; /* [ratio - 1] positions that the longest row sees */
} tamis_step_counts;

/*
 * A step: one entry for each row, decode rows first, then prefill rows, request by request, then
 * padding. Plain arrays, at the same addresses for every step of a plan, so that a kernel can fill
 * them and a captured graph can read them. Row r is query token token[r] of the flat batch: queries
 * are read and selections written at that index, so an engine keeps its own order. Padding rows see
 * nothing; their selections, at their own index, are all -1.
 */
typedef struct tamis_step {
    uint32_t struct_size;
    int32_t nonce;   /* of the plan that made it */
    uint64_t serial; /* of the step that this struct stands for */
    const tamis_plan *plan;
    tamis_step_counts *counts;    /* [1] */
    int32_t *token;               /* [max_rows] index in the flat batch; padding: its own row */
    int32_t *request;             /* [max_rows] */
    int32_t *ks[2];               /* [ratio - 1]: [max_rows] first K row: 0 where K has pages */
    int32_t *ke[2];               /* [ratio - 1]: [max_rows] ks + positions the row sees */
    const int32_t *page_table[2]; /* the batch's */
    int64_t page_table_stride[2];
    int64_t page_table_width[2];
} tamis_step;

/*
 * Makes a step: O(requests + rows), no allocation. A plan has one step at a time: making the next
 * ends the last, and no run of it may be in progress. *step is written whole, whatever it held: its
 * size changes with TAMIS_ABI_VERSION alone. On error *step is untouched and the plan's last step
 * still good.
 * TAMIS_ERROR_LIMIT: requests, tokens, padded rows or a context above the plan's limits.
 * TAMIS_ERROR_LENGTH: a context below its new tokens, or one that its page table or k_start has no
 * room for. TAMIS_ERROR_ARGUMENT: a NULL that is needed; query starts that do not ascend from 0 to
 * tokens; padded rows below tokens; a page table's stride or width. TAMIS_ERROR_STRUCT_SIZE: batch.
 */
TAMIS_API tamis_status tamis_step_make(tamis_plan *plan, const tamis_batch *batch, tamis_step *step,
                                       tamis_error *error);

/*
 * Whether every row of a ratio sees at most topk positions: its selection is 0..visible-1 (slots:
 * those through the page table), no q is needed, and an engine may write it by itself instead of
 * running the layer. 0 for a ratio other than 1 and 2, for NULL, and for a step on a device, whose
 * counts no host reads. Never bake the answer into a captured graph.
 */
TAMIS_API int32_t tamis_step_is_short(const tamis_step *step, int32_t ratio, int32_t topk);

/* ---- chunks of a prefill ------------------------------------------------------------------- */

/* Query rows of a chunk for engines that store f32 logits of rows x positions within budget_bytes:
 * max(1, budget / 4 / positions). -1 when an argument is not positive. */
TAMIS_API int64_t tamis_chunk_rows_dense(int64_t budget_bytes, int64_t positions);

/* The same for the sparse path of columns bf16 logits a row: positions count at least
 * (columns * 2 + 3) / 4 and otherwise as they are. */
TAMIS_API int64_t tamis_chunk_rows_sparse(int64_t budget_bytes, int64_t positions, int64_t columns);

#ifdef __cplusplus
}
#endif
#endif
