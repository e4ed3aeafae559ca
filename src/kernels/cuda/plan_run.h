/* SPDX-License-Identifier: MIT */
/* plan_run.h: one layer of a step on its way to a stream, and the kernels around its tiles. */
#ifndef TAMIS_CUDA_PLAN_RUN_H
#define TAMIS_CUDA_PLAN_RUN_H

#include "kernels/cuda/plan_cuda.h"

typedef struct tamis_layer_run {
    tamis_cuda_plan *plan;
    tamis_layer layer;   /* its rows end where the gate lets them */
    tamis_tiling tiling; /* of the scores that are queued */
    int64_t first, end;  /* rows of the stretch that is queued */
    int64_t limit;       /* positions that K holds */
    int sparse, dense;   /* whether rows may take that route */
    tamis_dense_rows dense_rows;
    int gates;   /* whether the one kernel that is queued does the gate's work, too */
    int decoded; /* whether K may be there decoded: raised */
    int whole;   /* and then of most rows, by how many requests there are */
    tamis_raised_k raised;
    void *stream;
} tamis_layer_run;

/* Of rows that no gate was queued for. */
tamis_gate_args tamis_cuda_gate_of(const tamis_layer_run *run);
/* Rows then end at plan->gated[0], on the dense route at plan->gated[1]. */
tamis_status tamis_cuda_queue_gate(tamis_layer_run *run, tamis_error *error);
/* Rows then find K of their requests in run->raised. */
tamis_status tamis_cuda_queue_raise(const tamis_layer_run *run, tamis_error *error);
/* Rows of at most `longest` positions in `tiles` tiles: to plan->tile_starts and tile_at. */
tamis_status tamis_cuda_queue_cut(const tamis_layer_run *run, const tamis_rows *rows,
                                  int64_t longest, int64_t tiles, tamis_error *error);
/* Of a source's last lists. */
tamis_stamp_args tamis_cuda_stamp_of(const tamis_layer_run *run);

#endif
