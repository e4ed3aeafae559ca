/* SPDX-License-Identifier: MIT */
/*
 * stages.h: every stage as a call, and the two levels composed of them.
 *
 * The method is the two-level indexer of DeepSeek-V4.1, restated in docs/spec.md; docs/numerics.md
 * has the arithmetic to the bit. src/kernels/ref/<stage>.c is each stage's reference (source and
 * dense: src/indexer), tests/kernels/check_<stage>.c its test.
 *
 * Each call takes a backend, its arguments and a slice (ith of nth, 0 <= ith < nth): it does that
 * share of the work on the calling thread. All slices together, in any order or at once, do all of
 * it; results never depend on the split. Arguments start with struct_size and have a _default()
 * that sets it and zeroes the rest; unknown sizes and non-zero reserved fields are refused.
 *
 * Everything is checked before anything is written: on an error no output was touched. Block ids
 * may hold any bits (those that name no visible block are dropped). Inputs and outputs must not
 * overlap. Output columns beyond the documented width are never touched, so padded rows keep their
 * padding.
 *
 *   TAMIS_ERROR_...  of a stage call, when
 *   ARGUMENT     backend, args or a needed pointer is NULL (a workspace, too); ith, nth, a count, a
 *                size, a type or a stride is out of its range; a request is no row of page_table;
 *                a list with `physical` is not as that says
 *   STRUCT_SIZE  struct_size is not the one that _default sets; a reserved field is not 0
 *   LAYOUT       K's layout, page size, strides or pointers; blocks that straddle pages; a page
 *                table or `physical` where the layout has no pages
 *   GEOMETRY     heads or head_dim; a query's head_dim that is not K's
 *   LENGTH       an interval, position, slot, page id or start outside K, its page table, the
 *                rotary table or the destination; counts or columns above the width
 *   NUMERICS     an unknown class, or one that the tier does not offer
 *   WORKSPACE    too few bytes, or not aligned to 64
 *
 * Arrays are aligned to their element, which nothing checks; codes and scales may lie anywhere.
 * Without rows (tokens, destination rows) arrays are not read and may be NULL, but for k_insert's
 * norm_weight and eps. With rows only those that say so may; lists (candidates, blocks) may not,
 * however narrow. A stride is read when there are two rows or more.
 *
 * The calling thread's floating-point control state is set to round-to-nearest with subnormals on
 * for the call and restored after it.
 */
#ifndef TAMIS_STAGES_H
#define TAMIS_STAGES_H

#include <tamis/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- backend ------------------------------------------------------------------------------- */

/* A set of kernels. Immutable after creation; may be shared by threads. */
typedef struct tamis_backend tamis_backend;

/*
 * Makes the backend of a tier: "ref", "avx2", or "auto" (also NULL): the best that this machine
 * runs. Reads no environment. Errors: TAMIS_ERROR_TIER for a name that is unknown or that this
 * machine or build does not support; TAMIS_ERROR_MEMORY. On error *backend is NULL.
 */
TAMIS_API tamis_status tamis_backend_create(const char *tier, tamis_backend **backend,
                                            tamis_error *error);
TAMIS_API void tamis_backend_destroy(tamis_backend *backend); /* NULL is fine */

/* The tier's name: "ref", "avx2". */
TAMIS_API const char *tamis_backend_tier(const tamis_backend *backend);

/* Name of tier i of this build, lowest first, NULL past the last; *supported: this machine runs it.
 */
TAMIS_API const char *tamis_tier_name(int32_t i, int32_t *supported);

/* ---- preparing ----------------------------------------------------------------------------- */

/* Rotary tables: row p holds cos of 32 pairs, then sin of 32 pairs, of token position p. */
typedef struct tamis_rope {
    const void *table;  /* [positions][64] */
    int32_t type;       /* TAMIS_F32 or TAMIS_BF16 */
    int32_t reserved;   /* 0 */
    int64_t positions;  /* rows of table */
    int64_t row_stride; /* elements, >= 64 */
} tamis_rope;

/*
 * q_prepare: bf16 queries rotated, rounded to bf16, quantised to MXFP4; weights scaled.
 * The last 64 dims turn at the token's position in adjacent pairs: e' = e cos - o sin,
 * o' = o cos + e sin, in f32 without contraction. Weights: f32(w) * f32(1 / sqrt(D * heads)).
 * Weights are skipped when both of their pointers are NULL. A group of 32 that holds a NaN or an
 * infinity gets scale 255 and codes 0: every score with it is NaN.
 */
typedef struct tamis_q_prepare_args {
    uint32_t struct_size;
    int32_t heads;            /* 4..64, a multiple of 4 */
    int32_t head_dim;         /* D: 64 or 128 */
    int32_t weights_in_type;  /* TAMIS_F32 or TAMIS_BF16 */
    int32_t weights_out_type; /* TAMIS_F32 or TAMIS_BF16: the f32 product rounded once */
    int32_t reserved;
    int64_t tokens;           /* T >= 0 */
    const uint16_t *q;        /* bf16 [T][heads][D] */
    int64_t q_token_stride;   /* elements */
    int64_t q_head_stride;    /* elements */
    const int64_t *positions; /* [T] 0 .. rope.positions-1 */
    tamis_rope rope;
    const void *weights_in;     /* [T][heads] */
    int64_t weights_in_stride;  /* elements */
    uint8_t *codes;             /* out [T][heads][D/2] */
    uint8_t *scales;            /* out [T][heads][D/32] */
    void *weights_out;          /* out [T][heads] */
    int64_t codes_row_stride;   /* bytes */
    int64_t codes_head_stride;  /* bytes */
    int64_t scales_row_stride;  /* bytes */
    int64_t scales_head_stride; /* bytes */
    int64_t weights_out_stride; /* elements */
} tamis_q_prepare_args;

/*
 * k_insert: bf16 keys normalised (RMSNorm), rounded, rotated at the position of their group's first
 * token, rounded, quantised as q_prepare does and stored in their slot. A token is skipped when its
 * slot is negative or when it is not the last of its group ((position + 1) % ratio != 0); its
 * position and slot are checked all the same. Slots must differ.
 * RMSNorm in f32: y_i = bf16((x_i * r) * g_i), r = 1 / sqrt(p_0 / D + eps), root and quotient
 * correctly rounded. p_0 is the sum of squares: p_i = ((x_i^2 + x_(i+32)^2) + x_(i+64)^2) +
 * x_(i+96)^2 for i < 32, then p_i += p_(i+n) for n = 16, 8, 4, 2, 1. At D = 64 p_i has the first
 * two terms, and all dims turn.
 */
typedef struct tamis_k_insert_args {
    uint32_t struct_size;
    int32_t ratio;            /* 1 or 2 */
    int32_t norm_weight_type; /* TAMIS_F32 or TAMIS_BF16 */
    int32_t reserved;
    int64_t tokens;           /* T >= 0 */
    const uint16_t *x;        /* bf16 [T][D] */
    int64_t x_stride;         /* elements */
    const int64_t *positions; /* [T] token positions, 0 .. rope.positions-1 */
    const int64_t *slots;     /* [T] PAGE: page * page_size + slot; SPLIT, ROW: K row; < 0: skip */
    const void *norm_weight;  /* [D] */
    const float *eps;         /* [1] added to the mean square, 0 or more */
    tamis_rope rope;
    tamis_k_cache k; /* written */
} tamis_k_insert_args;

/*
 * k_gather: the K of each row's interval (rows.ks .. rows.ke of its request) copied to contiguous
 * rows, codes and scales apart, for callers with ragged kernels. Interval i's local position j goes
 * to destination row start[i] + j. Other destination rows are not touched. Intervals of one call
 * must not overlap there.
 */
typedef struct tamis_k_gather_args {
    uint32_t struct_size;
    int32_t reserved;
    tamis_k_cache k;
    tamis_rows rows;
    const int64_t *start;  /* [rows.count] */
    int64_t size;          /* destination rows; every interval must fit */
    uint8_t *codes;        /* out [size][D/2] */
    uint8_t *scales;       /* out [size][D/32] */
    int64_t codes_stride;  /* bytes */
    int64_t scales_stride; /* bytes */
} tamis_k_gather_args;

/* ---- scoring ------------------------------------------------------------------------------- */

/*
 * mqa_logits: score(r, j) = sum over heads of w[r][h] * max(0, q[r][h] . k[j]) for every visible
 * position, in the arithmetic of the numerics class; docs/numerics.md has it to the bit.
 * Columns are local positions: j >= len holds -inf up to `columns`. With block_max, also the
 * largest score of each block of block_size (see block_max), with or without logits; one of the two
 * must be there.
 */
typedef struct tamis_mqa_logits_args {
    uint32_t struct_size;
    int32_t numerics; /* TAMIS_NUMERICS_* */
    tamis_k_cache k;
    tamis_rows rows;
    tamis_query query;
    int32_t logits_type;      /* TAMIS_F32 or TAMIS_BF16 (the f32 score rounded once) */
    int32_t block_size;       /* 8 or 16; read only with block_max */
    int64_t columns;          /* width of logits, >= every len */
    void *logits;             /* out [R][columns] or NULL */
    int64_t logits_stride;    /* elements */
    float *block_max;         /* out [R][ceil(len / block_size)] or NULL */
    int64_t block_max_stride; /* elements, >= the widest row */
} tamis_mqa_logits_args;

/*
 * block_max: the largest score of each block's visible positions, in the order of scores: NaN below
 * everything, -0 equal to +0 (a block whose largest is a zero holds +0; all NaN holds NaN).
 */
typedef struct tamis_block_max_args {
    uint32_t struct_size;
    int32_t block_size;  /* 8 or 16 */
    int32_t logits_type; /* TAMIS_F32 or TAMIS_BF16 */
    int32_t reserved;
    tamis_rows rows;          /* count, ks, ke */
    const void *logits;       /* [R][len] */
    int64_t logits_stride;    /* elements */
    float *block_max;         /* out [R][ceil(len / block_size)] */
    int64_t block_max_stride; /* elements */
} tamis_block_max_args;

/*
 * publish: the best min(topk_blocks, ceil(len / block_size)) blocks of each row, ids ascending, -1
 * in the rest. The block of the newest visible position is always among them. len = 0: none.
 */
typedef struct tamis_publish_args {
    uint32_t struct_size;
    int32_t block_size;  /* 8 or 16 */
    int32_t topk_blocks; /* 1..4096 */
    int32_t reserved;
    tamis_rows rows;          /* count, ks, ke */
    const float *block_max;   /* [R][ceil(len / block_size)] */
    int64_t block_max_stride; /* elements */
    int32_t *blocks;          /* out [R][topk_blocks], ids local to the row's interval */
    int64_t blocks_stride;    /* elements */
    int32_t *counts;          /* out [R] or NULL */
} tamis_publish_args;

enum { /* tamis_expand_args.flags */
       TAMIS_EXPAND_KEEP_DUPLICATES = 1,
       TAMIS_EXPAND_FIXED_WIDTH = 2 /* fill the tail by repeating the last id, not with -1 */
};

/*
 * expand: candidate lists of any kind made into ascending sparse blocks. Ids in any order,
 * repeated, negative or out of range are allowed; those with 0 <= id < ceil(len / candidate_size)
 * stay. Each becomes candidate_size / block_size sparse blocks; those beyond ceil(len / block_size)
 * are dropped. Ids out are anchored at ks / block_size: block i covers the positions i * block_size
 * + ks % block_size onward. A row without blocks is filled with ks / block_size when FIXED_WIDTH.
 * Width out = width * candidate_size / block_size.
 */
typedef struct tamis_expand_args {
    uint32_t struct_size;
    int32_t candidate_size;    /* a multiple of block_size, at most 128 */
    int32_t block_size;        /* 8 or 16 */
    int32_t flags;             /* TAMIS_EXPAND_* */
    tamis_rows rows;           /* count, ks, ke */
    int64_t width;             /* candidates per row, 0..4096 */
    const int32_t *candidates; /* [R][width] local to the row's interval */
    int64_t candidates_stride; /* elements */
    int32_t *blocks;           /* out [R][width out] */
    int64_t blocks_stride;     /* elements */
    int32_t *counts;           /* out [R] blocks before the tail, or NULL */
    int32_t *columns; /* out [R] valid columns: (n-1) * block_size + the last block's visible
                         positions; 0 when n = 0; or NULL */
} tamis_expand_args;

/*
 * sparse_mqa_logits: scores of the positions inside listed blocks. Column c of row r is position
 * blocks[r][c / S] * S + ks % S + c % S with S = block_size, ids anchored as expand writes them.
 * Columns whose position is not in [ks, ke), and those of blocks past counts[r], hold -inf.
 */
typedef struct tamis_sparse_mqa_logits_args {
    uint32_t struct_size;
    int32_t numerics; /* TAMIS_NUMERICS_* */
    tamis_k_cache k;
    tamis_rows rows;
    tamis_query query;
    int32_t block_size;      /* 8 or 16 */
    int32_t logits_type;     /* TAMIS_F32 or TAMIS_BF16 (the f32 score rounded once) */
    int64_t width;           /* blocks per row, 0..65536 */
    const int32_t *blocks;   /* [R][width], any bits */
    int64_t blocks_stride;   /* elements */
    const int32_t *counts;   /* [R] blocks that count, or NULL: all */
    void *logits;            /* out [R][width * block_size] */
    int64_t logits_stride;   /* elements */
    const int32_t *physical; /* [R][width] where each block lies, or NULL: page * (page_size /
                                block_size) + its place in the page. PAGE, ks NULL; blocks must then
                                be ascending visible ids, then -1 alone */
    int64_t physical_stride; /* elements */
} tamis_sparse_mqa_logits_args;

/* ---- selecting ----------------------------------------------------------------------------- */

/*
 * topk: the best min(topk, valid) columns of each row in the order of scores (higher first, -0
 * equals +0, NaN last, equal scores by lower column), then ascending, -1 in the rest.
 * Without blocks a column is a local position and valid means column < min(columns, len), or
 * columns alone where rows.ke is NULL. With blocks (anchored, ascending, as expand writes them)
 * column c stands for the local position of blocks[c / S] * S + c % S and only visible positions
 * are valid; positions are written instead of columns.
 */
typedef struct tamis_topk_args {
    uint32_t struct_size;
    int32_t logits_type; /* TAMIS_F32 or TAMIS_BF16 */
    int32_t block_size;  /* 8 or 16; read only with blocks */
    int32_t reserved;
    tamis_rows rows;        /* count, ks, ke; with selection.slots also the page table */
    const void *logits;     /* [R][width] */
    int64_t logits_stride;  /* elements */
    int64_t width;          /* columns of logits, 0 .. 2^31-1 */
    const int32_t *columns; /* [R] leading columns that count, 0..width, or NULL: all */
    const int32_t *blocks;  /* [R][width / block_size] or NULL */
    int64_t blocks_stride;  /* elements */
    int32_t page_size;      /* with selection.slots and a page table; else 0 */
    int32_t reserved2;
    tamis_selection selection;
} tamis_topk_args;

/* ---- the two levels ------------------------------------------------------------------------ */

/*
 * consume: each row's best topk positions inside its published blocks, by this layer's scores.
 * Lists may hold any bits and any order (see expand); ascending unique ids cost nothing extra.
 */
typedef struct tamis_consume_args {
    uint32_t struct_size;
    int32_t numerics; /* TAMIS_NUMERICS_* */
    tamis_k_cache k;
    tamis_rows rows;
    tamis_query query;
    int32_t block_size; /* of the published blocks: 8 or 16 */
    int32_t reserved;
    int64_t width;         /* ids per row, 0..4096 */
    const int32_t *blocks; /* [R][width] ids local to the row's interval; -1 is no block */
    int64_t blocks_stride; /* elements */
    const int32_t *counts; /* [R] ids that count, or NULL: all */
    tamis_selection selection;
    void *workspace; /* tamis_consume_workspace bytes, aligned to 64 */
    int64_t workspace_bytes;
    const int32_t *physical; /* [R][width] where each block lies, or NULL: page * (page_size /
                                block_size) + its place in the page. PAGE, ks NULL; blocks must then
                                be ascending visible ids, then -1 alone */
    int64_t physical_stride; /* elements */
} tamis_consume_args;

/*
 * source: scores every visible position, publishes the best topk_blocks blocks (when blocks is not
 * NULL) and selects the row's own best topk positions (when a selection output is not NULL). With
 * blocks NULL it is a *full* layer. Never stores a row's scores: one f32 per block.
 */
typedef struct tamis_source_args {
    uint32_t struct_size;
    int32_t numerics; /* TAMIS_NUMERICS_* */
    tamis_k_cache k;
    tamis_rows rows;
    tamis_query query;
    int32_t block_size;    /* 8 or 16 */
    int32_t topk_blocks;   /* 1..4096; read only with blocks */
    int32_t *blocks;       /* out [R][topk_blocks] ids ascending, -1 tail; or NULL */
    int64_t blocks_stride; /* elements */
    int32_t *counts;       /* out [R] published blocks, or NULL */
    tamis_selection selection;
    void *workspace; /* tamis_source_workspace bytes, aligned to 64 */
    int64_t workspace_bytes;
} tamis_source_args;

/*
 * dense: scores everything and selects, masked by published blocks when blocks is not NULL: the
 * results of consume (or of a full layer) at the price of scoring all. For comparison, and for the
 * mode that scores all.
 */
typedef struct tamis_dense_args {
    uint32_t struct_size;
    int32_t numerics; /* TAMIS_NUMERICS_* */
    tamis_k_cache k;
    tamis_rows rows;
    tamis_query query;
    int32_t block_size; /* of the published blocks: 8 or 16; read only with blocks */
    int32_t reserved;
    int64_t width;         /* ids per row, 0..4096 */
    const int32_t *blocks; /* [R][width] or NULL: no mask */
    int64_t blocks_stride; /* elements */
    const int32_t *counts; /* [R] ids that count, or NULL: all */
    tamis_selection selection;
    void *workspace; /* tamis_dense_workspace bytes, aligned to 64 */
    int64_t workspace_bytes;
} tamis_dense_args;

/* Workspace bytes when the work is cut into nth slices; -1 when the arguments
 * are invalid. */
TAMIS_API int64_t tamis_consume_workspace(const tamis_consume_args *args, int32_t nth);
TAMIS_API int64_t tamis_source_workspace(const tamis_source_args *args, int32_t nth);
TAMIS_API int64_t tamis_dense_workspace(const tamis_dense_args *args, int32_t nth);

/*
 * The two levels for a few rows (decode) on many threads: every slice of score, the host's barrier,
 * every slice of merge, and a barrier before the workspace is used again. Score splits one row over
 * its positions; merge selects. The same results as tamis_consume and tamis_source; the workspace,
 * shared by all slices, holds the scores of every row's pool (consume) or the block maxima of every
 * row (source).
 * Score and merge take the same nth and the same arguments, and nobody writes the workspace between
 * them. No stamp checks that here, and breaking it selects wrongly in silence; tamis_layer_score
 * and _merge (indexer.h) check it. nth has no cap but the workspace. Errors are those of the whole
 * form.
 */
TAMIS_API int64_t tamis_consume_split_workspace(const tamis_consume_args *args, int32_t nth);
TAMIS_API tamis_status tamis_consume_score(const tamis_backend *backend,
                                           const tamis_consume_args *args, int32_t ith, int32_t nth,
                                           tamis_error *error);
TAMIS_API tamis_status tamis_consume_merge(const tamis_backend *backend,
                                           const tamis_consume_args *args, int32_t ith, int32_t nth,
                                           tamis_error *error);
TAMIS_API int64_t tamis_source_split_workspace(const tamis_source_args *args, int32_t nth);
TAMIS_API tamis_status tamis_source_score(const tamis_backend *backend,
                                          const tamis_source_args *args, int32_t ith, int32_t nth,
                                          tamis_error *error);
TAMIS_API tamis_status tamis_source_merge(const tamis_backend *backend,
                                          const tamis_source_args *args, int32_t ith, int32_t nth,
                                          tamis_error *error);

/* One line for each call: X(name). Declares tamis_NAME_args_default and tamis_NAME. */
#define TAMIS_STAGE_LIST(X)                                                                        \
    X(q_prepare)                                                                                   \
    X(k_insert)                                                                                    \
    X(k_gather)                                                                                    \
    X(mqa_logits)                                                                                  \
    X(block_max)                                                                                   \
    X(publish)                                                                                     \
    X(expand)                                                                                      \
    X(sparse_mqa_logits)                                                                           \
    X(topk)                                                                                        \
    X(consume)                                                                                     \
    X(source)                                                                                      \
    X(dense)

#define TAMIS_STAGE_DECLARE(name)                                                                  \
    TAMIS_API void tamis_##name##_args_default(tamis_##name##_args *args);                         \
    TAMIS_API tamis_status tamis_##name(const tamis_backend *backend,                              \
                                        const tamis_##name##_args *args, int32_t ith, int32_t nth, \
                                        tamis_error *error);
TAMIS_STAGE_LIST(TAMIS_STAGE_DECLARE)
#undef TAMIS_STAGE_DECLARE

#ifdef __cplusplus
}
#endif
#endif
