/* SPDX-License-Identifier: MIT */
/*
 * shards.h: context parallel. The positions of a request lie spread over ranks, each of which holds
 * K of its own blocks alone; together they select, to the bit, what one rank with all of K selects.
 *
 * Why it is exact: scores have a total order (docs/numerics.md), so the best n of the whole are
 * among the best n of each rank, and merging those by the same order gives them. A rank's positions
 * keep their order (its K is its blocks one after the other), so ties at a lower position stay ties
 * at a lower position. The pinned block needs no vote: every rank knows the row's length.
 * docs/context-parallel.md is the manual: what travels, how to write a transport, what it costs.
 * Tests: tests/shards. Reference: src/shards/shard_stages.c.
 *
 * Words: a *rank* is one of the group's processes or threads; a *shard* says which blocks a rank
 * owns; an *own* position counts only the rank's own positions of a request, in ascending order.
 */
#ifndef TAMIS_SHARDS_H
#define TAMIS_SHARDS_H

#include <tamis/indexer.h>
#include <tamis/pool.h>
#include <tamis/stages.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TAMIS_MAX_RANKS = 64 };

/* ---- which blocks a rank owns -------------------------------------------------------------- */

/*
 * Intervals of blocks, first .. last-1, ascending within a request, for the whole of a request or
 * for as much of it as it may grow to. Blocks and positions are in units of one ratio. Own position
 * p of a request is position p of its K: through the rank's own page table, or from its K start.
 */
typedef struct tamis_shard {
    uint32_t struct_size;
    int32_t rank;          /* 0 .. ranks-1 */
    int32_t ranks;         /* 1 .. TAMIS_MAX_RANKS */
    int32_t block_size;    /* 8 or 16 */
    int64_t requests;      /* 0 or more */
    const int64_t *start;  /* [requests + 1] first interval of each request: ascending from 0 */
    const int32_t *first;  /* [start[requests]] */
    const int32_t *last;   /* [start[requests]] */
    const int32_t *before; /* [start[requests]] tamis_shard_index writes it: the rank's own blocks
                              of the request before the interval */
} tamis_shard;

/* Rank 0 of 1 without requests. */
TAMIS_API void tamis_shard_default(tamis_shard *shard);

/*
 * Checks a shard and makes its index in before[start[requests]], which it then points to. All calls
 * below take an indexed shard. Whether the ranks' shards fit together, tamis_shards_step checks.
 * Errors: TAMIS_ERROR_STRUCT_SIZE; TAMIS_ERROR_ARGUMENT: a NULL, ranks, a rank, a block size,
 * starts that do not ascend; TAMIS_ERROR_SHARD: intervals that are empty, overlap, do not ascend or
 * pass position 2^31. On error neither before nor the shard changed.
 */
TAMIS_API tamis_status tamis_shard_index(tamis_shard *shard, int32_t *before, tamis_error *error);

/* Own positions among the first `visible` of a request. -1 for a request that the shard lacks. */
TAMIS_API int64_t tamis_shard_length(const tamis_shard *shard, int64_t request, int64_t visible);

/* The own position of a position, -1 when another rank owns it. And back: -1 past the last. */
TAMIS_API int64_t tamis_shard_own(const tamis_shard *shard, int64_t request, int64_t position);
TAMIS_API int64_t tamis_shard_position(const tamis_shard *shard, int64_t request, int64_t own);

/* ---- stages --------------------------------------------------------------------------------- */

/*
 * What a rank does with its own part, and what all do with what they exchanged. They are stages as
 * those of stages.h: slices over rows, everything checked first, the same errors, and
 * TAMIS_ERROR_SHARD for a shard that is not indexed. Rows are the same on every rank; `visible` is
 * a row's length in the whole request. Candidates of a rank: ids (blocks or positions of the
 * request) ascending, with their scores and a count, then -1 and -inf.
 *
 * A source layer: tamis_mqa_logits over own K (rows.ke = tamis_shard_length) for block maxima;
 * shard_blocks; exchange; shard_publish. Its selection and a full layer's: the best topk own
 * positions (tamis_source with blocks NULL); shard_positions; exchange; shard_topk.
 * A consumer layer: shard_lists; tamis_consume over own K; shard_positions; exchange; shard_topk.
 */

/*
 * shard_blocks: the best min(topk_blocks - 1, n) of the n own blocks before the row's newest block,
 * which is published by rule, whoever owns it. Ids are the request's.
 */
typedef struct tamis_shard_blocks_args {
    uint32_t struct_size;
    int32_t topk_blocks; /* 1..4096 */
    tamis_shard shard;
    int64_t rows;             /* R >= 0 */
    const int32_t *visible;   /* [R] 0 or more */
    const int32_t *request;   /* [R] of the shard, or NULL: all 0 */
    const float *block_max;   /* [R][own blocks that the row sees] */
    int64_t block_max_stride; /* elements */
    int64_t width;            /* candidates a row may have: at least min(topk_blocks - 1, blocks
                                 before the newest of the longest row); at most 4096 */
    int32_t *ids;             /* out [R][width] */
    int64_t ids_stride;       /* elements */
    float *scores;            /* out [R][width] */
    int64_t scores_stride;    /* elements */
    int32_t *counts;          /* out [R] */
} tamis_shard_blocks_args;

/*
 * shard_publish: what tamis_publish writes, from the candidates of all ranks. Ids that a row cannot
 * have are dropped.
 */
typedef struct tamis_shard_publish_args {
    uint32_t struct_size;
    int32_t block_size;         /* 8 or 16 */
    int32_t topk_blocks;        /* 1..4096 */
    int32_t ranks;              /* 1..TAMIS_MAX_RANKS */
    int64_t rows;               /* R >= 0 */
    const int32_t *visible;     /* [R] 0 or more */
    int64_t width;              /* of a rank's candidates, 0..4096 */
    const int32_t *ids;         /* [ranks][R][width] */
    int64_t ids_stride;         /* elements, row to row */
    int64_t ids_rank_stride;    /* elements, rank to rank */
    const float *scores;        /* [ranks][R][width] */
    int64_t scores_stride;      /* elements, row to row */
    int64_t scores_rank_stride; /* elements, rank to rank */
    const int32_t *counts;      /* [ranks][R] 0..width */
    int64_t counts_rank_stride; /* elements, rank to rank */
    int32_t *blocks;            /* out [R][topk_blocks] ids ascending, -1 tail */
    int64_t blocks_stride;      /* elements */
    int32_t *block_counts;      /* out [R] or NULL */
} tamis_shard_publish_args;

/*
 * shard_lists: the published blocks that the rank owns, as own blocks: what tamis_consume over own
 * K takes. Published ids may hold any bits and come in any order; those not owned are dropped.
 */
typedef struct tamis_shard_lists_args {
    uint32_t struct_size;
    int32_t reserved;
    tamis_shard shard;
    int64_t rows;           /* R >= 0 */
    const int32_t *request; /* [R] of the shard, or NULL: all 0 */
    int64_t width;          /* ids per row, 0..4096 */
    const int32_t *blocks;  /* [R][width] */
    int64_t blocks_stride;  /* elements */
    const int32_t *counts;  /* [R] ids that count, or NULL: all */
    int32_t *own;           /* out [R][width] own blocks in the order of blocks, -1 tail */
    int64_t own_stride;     /* elements */
    int32_t *own_counts;    /* out [R] */
} tamis_shard_lists_args;

/*
 * shard_positions: own positions become the request's, in place. What is no own position becomes
 * -1.
 */
typedef struct tamis_shard_positions_args {
    uint32_t struct_size;
    int32_t reserved;
    tamis_shard shard;
    int64_t rows;             /* R >= 0 */
    const int32_t *request;   /* [R] of the shard, or NULL: all 0 */
    int64_t width;            /* 0..4096 */
    int32_t *positions;       /* in and out [R][width] */
    int64_t positions_stride; /* elements */
} tamis_shard_positions_args;

/*
 * shard_topk: the best min(topk, all) of all ranks' candidates in the order of scores, ascending,
 * -1 tail: what tamis_topk selects among all of the positions. selection.slots is NULL: where a
 * position lies is its owner's to say (shard_slots).
 */
typedef struct tamis_shard_topk_args {
    uint32_t struct_size;
    int32_t ranks;                 /* 1..TAMIS_MAX_RANKS */
    int64_t rows;                  /* R >= 0 */
    int64_t width;                 /* of a rank's candidates, 0..4096 */
    const int32_t *positions;      /* [ranks][R][width] */
    int64_t positions_stride;      /* elements, row to row */
    int64_t positions_rank_stride; /* elements, rank to rank */
    const float *scores;           /* [ranks][R][width] */
    int64_t scores_stride;         /* elements, row to row */
    int64_t scores_rank_stride;    /* elements, rank to rank */
    const int32_t *counts;         /* [ranks][R] 0..width */
    int64_t counts_rank_stride;    /* elements, rank to rank */
    tamis_selection selection;
} tamis_shard_topk_args;

/*
 * shard_slots: where each selected position lies in the rank's own K, -1 for a position that
 * another rank owns and for the tail. rows are those of own K: ks, request, page table; ke is not
 * read.
 */
typedef struct tamis_shard_slots_args {
    uint32_t struct_size;
    int32_t page_size; /* with a page table; else 0 */
    tamis_shard shard;
    tamis_rows rows;
    int64_t width;            /* 0..4096 */
    const int32_t *positions; /* [R][width] of the request */
    int64_t positions_stride; /* elements */
    int64_t *slots;           /* out [R][width] */
    int64_t slots_stride;     /* elements */
} tamis_shard_slots_args;

/* One line for each stage: X(name). Declares tamis_NAME_args_default and tamis_NAME. */
#define TAMIS_SHARD_STAGE_LIST(X)                                                                  \
    X(shard_blocks)                                                                                \
    X(shard_publish)                                                                               \
    X(shard_lists)                                                                                 \
    X(shard_positions)                                                                             \
    X(shard_topk)                                                                                  \
    X(shard_slots)

#define TAMIS_SHARD_STAGE_DECLARE(name)                                                            \
    TAMIS_API void tamis_##name##_args_default(tamis_##name##_args *args);                         \
    TAMIS_API tamis_status tamis_##name(const tamis_backend *backend,                              \
                                        const tamis_##name##_args *args, int32_t ith, int32_t nth, \
                                        tamis_error *error);
TAMIS_SHARD_STAGE_LIST(TAMIS_SHARD_STAGE_DECLARE)
#undef TAMIS_SHARD_STAGE_DECLARE

/* ---- a transport ---------------------------------------------------------------------------- */

/*
 * Gathers `bytes` bytes of every rank, in the order of ranks, to receive[ranks * bytes]. Every rank
 * calls it, as often and in the same order, with the same bytes (a positive multiple of 8). Returns
 * 0, or anything else when it failed: it is not called again then. A rank that does not come must
 * not keep the others for ever: they fail after a time of the transport's. Buffers are aligned to
 * 64 and do not overlap.
 */
typedef int32_t tamis_allgather(void *context, const void *send, void *receive, int64_t bytes);

/* Called once after a call that failed: this rank will not come again, and the others' calls, those
 * that wait among them, should fail without waiting for it. */
typedef void tamis_leave(void *context);

/* How a rank reaches the others. Owned by the rank that uses it. */
typedef struct tamis_transport {
    uint32_t struct_size;
    int32_t rank;     /* 0 .. ranks-1 */
    int32_t ranks;    /* 1 .. TAMIS_MAX_RANKS */
    int32_t reserved; /* 0 */
    void *context;
    tamis_allgather *allgather;
    tamis_leave *leave; /* or NULL: the others find out as their time runs out */
} tamis_transport;

/* Ranks that are threads of one process. */
typedef struct tamis_local_group tamis_local_group;

/*
 * Makes a group of `ranks`. A call that waits longer than timeout_ms for the others (0: it waits
 * for ever) fails on every rank, as do calls with other bytes than the others' and all calls after
 * one that failed.
 * Errors: TAMIS_ERROR_ARGUMENT, TAMIS_ERROR_MEMORY. On error *group is NULL.
 */
TAMIS_API tamis_status tamis_local_group_create(int32_t ranks, int64_t timeout_ms,
                                                tamis_local_group **group, tamis_error *error);
/* Not while a rank uses it. NULL is fine. */
TAMIS_API void tamis_local_group_destroy(tamis_local_group *group);

/* The transport of one rank, for one thread at a time. Errors: TAMIS_ERROR_ARGUMENT. */
TAMIS_API tamis_status tamis_local_group_transport(tamis_local_group *group, int32_t rank,
                                                   tamis_transport *transport, tamis_error *error);

/* Makes all calls fail, those that wait among them: for a rank that gives up. */
TAMIS_API void tamis_local_group_break(tamis_local_group *group);

/* ---- a rank of a group ---------------------------------------------------------------------- */

/*
 * A rank's end of the group: it runs the layers of an indexer whose context_parallel is the number
 * of ranks. It lives in memory of the caller and is used by one thread, which may bring a pool.
 *
 * Its calls are collective: every rank makes the same calls in the same order, with the same batch,
 * layer, queries and weights, its own K, page tables and outputs. A call that fails on one rank, in
 * its arguments or in the transport, fails on all of them and touches no output anywhere: ranks
 * agree before they work, and again before they write. The rank at fault returns its own error, the
 * others TAMIS_ERROR_RANKS, which names it. Two things are not compared: queries and weights.
 */
typedef struct tamis_shards tamis_shards;

typedef struct tamis_shards_options {
    uint32_t struct_size;
    int32_t tile_rows;     /* rows that one exchange carries, 1 .. 65536; default 64 */
    int64_t max_intervals; /* of all requests of a step, of one ratio; 1 .. 2^28, default 65536 */
    const tamis_plan_limits *limits; /* as a plan's; threads: slices that work is cut into */
    const tamis_transport *transport;
    tamis_pool *pool; /* of at most limits.threads, the caller's; NULL: the calling thread alone */
} tamis_shards_options;

TAMIS_API void tamis_shards_options_default(tamis_shards_options *options);

/*
 * Bytes of a rank: O(max_rows * (topk_blocks + topk)) + ranks * O(tile_rows * (topk_blocks + topk)
 * + max_intervals) + threads * O(max_context / block_size). -1 (and the error) when an option is
 * invalid.
 */
TAMIS_API int64_t tamis_shards_bytes(const tamis_indexer *indexer,
                                     const tamis_shards_options *options, tamis_error *error);

/*
 * Lays a rank out in memory. Collective: refused unless all ranks have the same model, numerics,
 * options and limits; pool, threads and max_context may differ. Indexer, transport and pool must
 * outlive it. There is nothing to destroy. Errors: TAMIS_ERROR_ARGUMENT, _STRUCT_SIZE, _LIMIT
 * (options, a transport's rank or ranks), _REQUIREMENT (an indexer of another context_parallel),
 * _WORKSPACE (memory); _RANKS (other ranks differ or failed); _TRANSPORT. On error *shards is NULL.
 * A rank without a usable transport cannot tell the others, which then wait for it as long as their
 * transport does.
 */
TAMIS_API tamis_status tamis_shards_init(const tamis_indexer *indexer,
                                         const tamis_shards_options *options, void *memory,
                                         int64_t bytes, tamis_shards **shards, tamis_error *error);

/* What a rank knows about a forward pass. */
typedef struct tamis_shards_batch {
    uint32_t struct_size;
    int32_t reserved;
    tamis_batch batch; /* contexts, query starts, padding: the same on all ranks. Page tables, their
                          strides and widths, K starts: of own K, this rank's */
    tamis_shard shard[2];   /* [ratio - 1] of the batch's requests; need not be indexed. Read for a
                               ratio that layers select with */
    const int64_t *held[2]; /* [ratio - 1]: [requests] own positions whose K this rank holds: those
                               of context / ratio. Another number is refused: a page table made for
                               another split */
} tamis_shards_batch;

TAMIS_API void tamis_shards_batch_default(tamis_shards_batch *batch);

/*
 * Makes a step; collective. Row r is query token r of the flat batch, then padding. Shards are
 * copied, page tables pointed to. Together the shards must own every block of a request from 0 to
 * the last that anyone owns, once, and every visible one. They are exchanged and compared only when
 * a rank's differ from those of the step before.
 * Errors: TAMIS_ERROR_LIMIT, _LENGTH, _ARGUMENT, _STRUCT_SIZE as tamis_step_make; _LENGTH also for
 * a page table too narrow for the own positions, or another `held`; _LIMIT also for intervals above
 * max_intervals; _SHARD: a shard that is invalid or of other requests, rank or block size, shards
 * that overlap or leave a block to nobody; _RANKS, _TRANSPORT. On error the last step is still
 * good.
 */
TAMIS_API tamis_status tamis_shards_step(tamis_shards *shards, const tamis_shards_batch *batch,
                                         tamis_error *error);

/*
 * Source and full layers; consumer layers. Collective. What they write is what tamis_source_run and
 * tamis_consumer_run write on one rank, whatever indexer_sparse_logits says, but for slots: those
 * of own K, -1 where another rank owns the position. args->k is own K.
 * Errors: those of the indexer's run calls but for ith and nth; _RANKS, _TRANSPORT.
 */
TAMIS_API tamis_status tamis_shards_source_run(tamis_shards *shards, const tamis_layer_args *args,
                                               tamis_error *error);
TAMIS_API tamis_status tamis_shards_consumer_run(tamis_shards *shards, const tamis_layer_args *args,
                                                 tamis_error *error);

/* What a rank has exchanged, for tests and tuning. */
typedef struct tamis_shards_counters {
    uint32_t struct_size;
    int32_t reserved;
    uint64_t calls;          /* of allgather */
    uint64_t bytes_sent;     /* by this rank, once for all receivers */
    uint64_t list_exchanges; /* steps whose shards were compared */
} tamis_shards_counters;

/* Writes *counters whole, whatever it held. */
TAMIS_API void tamis_shards_count(const tamis_shards *shards, tamis_shards_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
