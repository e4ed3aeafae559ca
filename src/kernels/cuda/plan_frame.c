/* SPDX-License-Identifier: MIT */
/*
 * plan_frame.c: what a layer has around its tiles: the gate that hides what is not this step's, K
 * decoded once, the cut of rows into tiles, the stamp of its last lists. They read and write what
 * the device alone knows, so that a graph's replay finds its own.
 */
#include "fail.h"
#include "kernels/cuda/plan_run.h"

enum { GATE_THREADS = 256, RAISE_CTAS = 8 /* of a multiprocessor */ };

static tamis_raised_from from_of(const tamis_layer_run *run) {
    const tamis_rows *rows = &run->layer.rows;
    tamis_raised_from from = {0};
    from.codes = run->layer.args->k.codes;
    from.page_table = rows->page_table;
    from.page_table_stride = rows->page_table_stride;
    from.requests = rows->requests;
    from.limit = run->limit;
    from.owner = run->layer.role.k_owner;
    return from;
}

tamis_gate_args tamis_cuda_gate_of(const tamis_layer_run *run) {
    const tamis_cuda_plan *plan = run->plan;
    const tamis_rows *rows = &run->layer.rows;
    tamis_gate_args gate = {0};
    gate.counts = plan->counts;
    gate.stamp = plan->stamp;
    gate.ks = rows->ks;
    gate.ke = rows->ke;
    gate.gated[0] = plan->gated[0];
    gate.gated[1] = run->dense ? plan->gated[1] : NULL;
    gate.routes = plan->routes;
    gate.status = plan->status_device;
    gate.rows = rows->count;
    gate.limit = run->limit;
    gate.above = run->dense_rows.above;
    gate.most = run->dense_rows.most;
    gate.k_size = run->layer.args->k.size;
    gate.layer = run->layer.args->layer;
    gate.source = run->layer.role.role == TAMIS_ROLE_CONSUMER ? run->layer.role.source : -1;
    if (run->decoded && gate.source >= 0) {
        gate.raised = plan->raised_stamp;
        gate.from = from_of(run);
        gate.first = plan->raised.first;
        gate.usable = plan->usable;
        gate.requests = plan->limits.max_requests;
        gate.capacity = plan->raised_capacity;
    }
    return gate;
}

tamis_status tamis_cuda_queue_gate(tamis_layer_run *run, tamis_error *error) {
    tamis_gate_args gate = tamis_cuda_gate_of(run);
    void *parameters[] = {&gate};
    int64_t ctas = (gate.rows + GATE_THREADS - 1) / GATE_THREADS;
    run->layer.rows.ke = gate.gated[0];
    return tamis_cuda_launch(run->plan->cuda, TAMIS_CUDA_gate_smxx, (tamis_grid){ctas, 1, 0},
                             run->stream, parameters, error);
}

static tamis_status queue_place(const tamis_layer_run *run, tamis_error *error) {
    const tamis_cuda_plan *plan = run->plan;
    tamis_place_args place = {0};
    void *parameters[] = {&place};
    place.to = run->raised;
    place.stamp = plan->raised_stamp;
    place.request = run->layer.rows.request;
    place.ke = run->layer.rows.ke;
    place.count = plan->raised_rows;
    place.rows = run->layer.rows.count;
    place.requests = run->layer.rows.requests;
    place.most = plan->limits.max_requests;
    place.capacity = plan->raised_capacity;
    return tamis_cuda_launch(plan->cuda, TAMIS_CUDA_raise_place_smxx, (tamis_grid){1, 1, 0},
                             run->stream, parameters, error);
}

tamis_status tamis_cuda_queue_raise(const tamis_layer_run *run, tamis_error *error) {
    const tamis_cuda_plan *plan = run->plan;
    tamis_raise_args raise = {0};
    void *parameters[] = {&raise};
    tamis_grid grid = {(int64_t)RAISE_CTAS * plan->cuda->multiprocessors, 1, 0};
    TAMIS_TRY(queue_place(run, error));
    raise.to = run->raised;
    raise.k = run->layer.args->k;
    raise.page_table = run->layer.rows.page_table;
    raise.page_table_stride = run->layer.rows.page_table_stride;
    raise.requests = run->layer.rows.requests;
    raise.stamp = plan->raised_stamp;
    raise.counts = plan->counts;
    raise.from = from_of(run);
    return tamis_cuda_launch(plan->cuda, TAMIS_CUDA_raise_k_smxx, grid, run->stream, parameters,
                             error);
}

tamis_stamp_args tamis_cuda_stamp_of(const tamis_layer_run *run) {
    const tamis_cuda_plan *plan = run->plan;
    tamis_stamp_args stamp = {0};
    stamp.counts = plan->counts;
    stamp.stamp = plan->stamp;
    stamp.status = plan->status_device;
    stamp.rows = run->layer.rows.count;
    stamp.k_size = run->layer.args->k.size;
    stamp.layer = run->layer.args->layer;
    return stamp;
}

tamis_status tamis_cuda_queue_cut(const tamis_layer_run *run, const tamis_rows *rows,
                                  int64_t longest, int64_t tiles, tamis_error *error) {
    const tamis_cuda_plan *plan = run->plan;
    tamis_tile_args cut = {0};
    void *parameters[] = {&cut};
    cut.ks = rows->ks;
    cut.ke = rows->ke;
    cut.starts = plan->tile_starts;
    cut.at = plan->tile_at;
    cut.rows = rows->count;
    cut.limit = longest;
    cut.units = (uint32_t)(plan->room.maxima / TAMIS_MAXIMA_UNIT);
    cut.tiles = (uint32_t)tiles;
    cut.block_size = run->layer.block_size;
    return tamis_cuda_launch(plan->cuda, TAMIS_CUDA_tile_rows_smxx, (tamis_grid){1, 1, 0},
                             run->stream, parameters, error);
}
