/* SPDX-License-Identifier: MIT */
/*
 * guard.cuh: whether a layer's rows and blocks are those of the step (step_args.h), and the stamp.
 * Every CTA that asks waits for memory, so that a warp asks for all of it at once.
 */
#ifndef TAMIS_CUDA_GUARD_CUH
#define TAMIS_CUDA_GUARD_CUH

#include <cstddef>

#include "common.cuh"
#include "step_args.h"

namespace tamis {

/* A lane's word of the step's counts and the stamp. */
__device__ inline uint64_t load_guard(const tamis_gate_args &a) {
    static_assert(
        offsetof(tamis_step_counts, rows) == 8 && offsetof(tamis_device_stamp, rows) == 8 &&
            offsetof(tamis_device_stamp, k_size) == 16 && offsetof(tamis_device_stamp, layer) == 24,
        "a lane's word");
    const int lane = threadIdx.x & 31;
    const uint64_t *counts = (const uint64_t *)a.counts, *stamp = (const uint64_t *)a.stamp;
    return lane < 2 ? counts[lane] : stamp[min(lane - 2, 3)];
}

/* What load_guard found: 0, or TAMIS_CUDA_PLAN_*. Whole warp. */
__device__ inline uint32_t fault_of(const tamis_gate_args &a, uint64_t word) {
    const int lane = threadIdx.x & 31;
    const uint64_t serial = __shfl_sync(kAll, word, 0);
    const bool good = lane == 0   ? word != 0
                      : lane == 2 ? word == serial
                      : lane == 4 ? (int64_t)word <= a.k_size
                      : lane == 5 ? (int32_t)word == a.source
                                  : (int64_t)word == a.rows; /* 1 and 3 */
    const uint32_t all = __ballot_sync(kAll, good);
    if ((all & 3) != 3) {
        return TAMIS_CUDA_PLAN_OTHER_ROWS;
    }
    return a.source < 0 || (all >> 2 & 15) == 15 ? 0 : TAMIS_CUDA_PLAN_STALE_BLOCKS;
}

/*
 * The host's word: the first fault stays. Two faults at the same moment may both find it empty;
 * either is one to tell. Host memory takes plain stores on every system, atomics not on all.
 */
__device__ inline void report(uint32_t *status, uint32_t fault, int32_t layer) {
    volatile uint32_t *word = status;
    if (*word == 0) {
        *word = fault | (uint32_t)layer << 8;
        __threadfence_system();
    }
}

/* Marks the step's blocks as published, if that is asked for: one thread of the grid, the last of a
 * CTA, which has least to do. */
__device__ inline void put_stamp(const tamis_stamp_args &a) {
    if (a.stamp == nullptr || blockIdx.x > 0 || threadIdx.x != blockDim.x - 1) {
        return;
    }
    const bool twice = a.stamp->serial == a.counts->serial;
    a.stamp->serial = a.counts->serial;
    a.stamp->rows = a.rows;
    a.stamp->k_size = a.k_size;
    a.stamp->layer = twice ? TAMIS_STAMP_TWICE : a.layer;
    if (twice) {
        report(a.status, TAMIS_CUDA_PLAN_PUBLISHED_TWICE, a.layer);
    }
}

} // namespace tamis

#endif
