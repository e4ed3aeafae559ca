/* SPDX-License-Identifier: MIT */
/* plan_cuda.h: what a plan keeps on the host, and where its arrays lie on the device. */
#ifndef TAMIS_CUDA_PLAN_CUDA_H
#define TAMIS_CUDA_PLAN_CUDA_H

#include "indexer/layer.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/raised_k.h"
#include "kernels/cuda/step_args.h"

/*
 * `auto`: which rows of a step take the dense route, where neighbouring rows share their K, so that
 * a position's score costs less: those that see more than `from` eighths of the pool, at most `to`.
 * Where some may see more and the band is not `mixed`, all rows take the other: kernels that turn
 * out to have no row would cost what they gain.
 */
typedef struct tamis_auto_band {
    int64_t rows; /* of steps from so many on */
    int32_t from, to, mixed;
} tamis_auto_band;

enum {
    TAMIS_CUDA_AUTO_SHARE = 8, /* rows for each request at least: of fewer none takes it */
    TAMIS_CUDA_AUTO_PARTS = 8  /* of the pool, in which bands are */
};

/* Rows that share the scratch of scores. */
typedef struct tamis_tiling {
    int64_t each; /* bytes of a row */
    int64_t rows; /* of a tile */
} tamis_tiling;

/*
 * A source runs over stretches of rows. Each has a list of blocks a row for the layer's own
 * selection, made tile by tile with the published ones and read for the whole stretch behind its
 * tiles. Where a stretch may need several tiles, its device cuts them (tile_args.h).
 */
typedef struct tamis_source_room {
    int64_t rows;   /* of a stretch at most */
    int64_t lists;  /* of topk + 1 ids each: those past the rows of a short stretch hold places */
    int64_t maxima; /* bytes for block maxima of a tile: of one row at least */
} tamis_source_room;

struct tamis_cuda_plan {
    const tamis_cuda *cuda;
    const tamis_indexer *indexer;
    tamis_plan_limits limits;
    int64_t max_rows;
    int64_t longest;             /* positions of the longest row */
    const tamis_auto_band *band; /* of every step, for tests; NULL: as measured */
    uint64_t made;               /* steps that the host has queued */
    int64_t rows, requests;      /* of the last of them */
    /* On the device. */
    tamis_step_counts *counts;
    tamis_device_stamp *stamp;
    int32_t *token, *request, *ks[2], *ke[2]; /* [max_rows] */
    int32_t *gated[2];    /* [dense route]: [max_rows] ke of the layer that runs, ks in rows of the
                             other route */
    uint32_t *done;       /* [max_rows] 0 between kernels */
    int32_t *taken;       /* [max_rows] scratch: rows that a kernel before has done */
    tamis_routes *routes; /* of the step's consumers */
    int32_t *blocks, *blocks_count, *placed; /* as in tamis_plan */
    tamis_source_room room;
    /* Of a stretch. */
    int32_t *own, *own_count; /* [room.lists][topk + 1], [room.rows] */
    int32_t *tile_starts;     /* [room.rows / TAMIS_TILE_RUN + 2] */
    uint32_t *tile_at;        /* [room.rows] */
    uint8_t *work;            /* [work_bytes] of one tile */
    int64_t work_bytes;
    tamis_raised_k raised;   /* codes NULL: the plan has no room, or the device no kernel, for it */
    int64_t raised_capacity; /* positions */
    tamis_raised_stamp *raised_stamp;
    int32_t *usable, *raised_rows; /* [max_requests] raised.first for a consumer, scratch */
    /* Pinned. */
    uint32_t *status, *status_device;
};

/* Positions of K that the plan has room to decode, a multiple of 64: 0 where none can be. */
int64_t tamis_cuda_raised_capacity(const tamis_indexer *indexer, const tamis_plan_limits *limits);
/* Beside that K. */
tamis_source_room tamis_cuda_source_room(const tamis_indexer *indexer,
                                         const tamis_plan_limits *limits);
/* Of `rows` rows of `each` bytes those that fit, whole runs of them: one at least. */
int64_t tamis_cuda_fitting(int64_t bytes, int64_t each, int64_t rows);
/* Tiles of rows whose scores stay inside the plan's workspace, beside all that: rows that select
 * from `width` listed blocks each. */
tamis_tiling tamis_cuda_sparse_tiling(const tamis_indexer *indexer, const tamis_plan_limits *limits,
                                      int64_t width);
/* The same where consume_sm90.cu takes them, which keeps no scores. */
tamis_tiling tamis_cuda_group_tiling(const tamis_indexer *indexer, const tamis_plan_limits *limits);
/* Of a consumer's dense route, which runs behind the other in the same scratch: rows of at most
 * `longest` positions, which is at most what tamis_cuda_dense_longest says. */
tamis_tiling tamis_cuda_dense_tiling(const tamis_cuda_plan *plan, int64_t longest);
int64_t tamis_cuda_dense_longest(const tamis_indexer *indexer, const tamis_plan_limits *limits);
/* Rows of the dense route see more positions than `above`, or none, and at most `most`: -1 where no
 * row takes it, INT32_MAX where all do. */
typedef struct tamis_dense_rows {
    int64_t above, most;
} tamis_dense_rows;
/* Those of the plan's step, whose rows see at most `longest`, most of them decoded K or not. */
tamis_dense_rows tamis_cuda_dense_rows(const tamis_cuda_plan *plan, int decoded, int64_t longest);
#endif
