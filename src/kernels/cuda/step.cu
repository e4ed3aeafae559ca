/* SPDX-License-Identifier: MIT */
/*
 * step.cu: a step's arrays from lengths that only the device knows, and the guard of its blocks.
 * Row r is query token r of the flat batch; whatever the arrays hold, rows stay inside the plan's
 * limits.
 */
#include "guard.cuh"

namespace tamis {

/* The request that token r belongs to: the last whose start is not above r. */
__device__ inline int32_t request_of(const tamis_step_fill &a, int64_t r) {
    int32_t low = 0, high = a.requests;
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (a.query_start[middle] <= r) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

__device__ inline bool is_from(const tamis_raised_from &x, const tamis_raised_from &y) {
    return x.codes == y.codes && x.page_table == y.page_table &&
           x.page_table_stride == y.page_table_stride && x.requests == y.requests &&
           x.limit == y.limit && x.owner == y.owner;
}

/* Adds a warp's rows to the step's counts. Whole warp: one atomic operation for all of them. */
__device__ inline void count_warp(tamis_step_counts &to, int64_t visible, bool decodes,
                                  bool prefills) {
    const uint32_t most = __reduce_max_sync(kAll, (uint32_t)visible);
    const int decoded = __popc(__ballot_sync(kAll, decodes));
    const int prefilled = __popc(__ballot_sync(kAll, prefills));
    if ((threadIdx.x & 31) == 0) {
        for (int k = 0; k < 2; k++) {
            atomicMax((long long *)&to.max_visible[k], (long long)(most >> k));
        }
        atomicAdd((unsigned long long *)&to.decode_rows, (unsigned long long)decoded);
        atomicAdd((unsigned long long *)&to.prefill_rows, (unsigned long long)prefilled);
    }
}

/* Decoded K of another step or another layer's is not there. Whole grid. */
__device__ inline void show_raised(const tamis_gate_args &a) {
    const bool own = a.raised->serial == a.counts->serial && is_from(a.raised->from, a.from);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.requests;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int32_t first = a.first[i];
        a.usable[i] = own ? first : -1;
        if (a.gated[1] && first >= 0) {
            atomicMax(&a.routes->decoded, (uint32_t)(a.capacity - first));
        }
    }
}

/* What a lane found of its rows: positions of the longest of the dense route, whether any takes the
 * other. Whole warp. */
__device__ inline void raise_routes(const tamis_gate_args &a, uint32_t longest, bool listed) {
    longest = __reduce_max_sync(kAll, longest);
    listed = __any_sync(kAll, listed);
    if ((threadIdx.x & 31) == 0 && longest > 0) {
        atomicMax(&a.routes->longest, longest);
    }
    if ((threadIdx.x & 31) == 0 && listed) {
        a.routes->listed = 1;
    }
}

/* The next serial, empty counts. One thread. */
__device__ inline void begin_step(const tamis_step_fill &a) {
    tamis_step_counts counts = {};
    counts.serial = a.counts->serial + 1;
    counts.rows = a.rows;
    counts.requests = a.requests;
    *a.counts = counts;
    *a.routes = tamis_routes{};
}

} // namespace tamis

/* Begins a step of more rows than one CTA has. */
extern "C" __global__ void tamis_step_begin_smxx(const __grid_constant__ tamis_step_fill a) {
    tamis::begin_step(a);
}

/* One CTA begins the step, too. */
extern "C" __global__ void __launch_bounds__(256)
    tamis_step_rows_smxx(const __grid_constant__ tamis_step_fill a) {
    if (gridDim.x == 1) {
        if (threadIdx.x == 0) {
            tamis::begin_step(a);
        }
        __syncthreads();
    }
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t base = (int64_t)blockIdx.x * blockDim.x; base < a.rows; base += step) {
        const int64_t r = base + threadIdx.x;
        int32_t i = a.requests > 0 ? tamis::request_of(a, r) : 0;
        int64_t first = a.requests > 0 ? a.query_start[i] : 0;
        int64_t fresh = a.requests > 0 ? a.query_start[i + 1] - first : 0;
        bool padding = r >= a.tokens || r < first || r - first >= fresh;
        int64_t context = padding ? 0 : tamis::clamp(a.context[i], 0, a.max_context);
        int64_t end = padding ? 0 : tamis::clamp(context - fresh + (r - first) + 1, 0, context);
        if (r < a.rows) {
            a.token[r] = (int32_t)r;
            a.request[r] = padding ? 0 : i;
        }
        for (int k = 0; k < 2; k++) {
            int64_t start = !padding && a.k_start[k] ? a.k_start[k][i] : 0;
            start = tamis::clamp(start, 0, INT32_MAX - (end >> k));
            if (r < a.rows) {
                a.ks[k][r] = (int32_t)start;
                a.ke[k][r] = (int32_t)(start + (end >> k));
            }
        }
        const bool decodes = fresh <= a.decode_threshold;
        tamis::count_warp(*a.counts, end, !padding && decodes, !padding && !decodes);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    tamis_gate_smxx(const __grid_constant__ tamis_gate_args a) {
    tamis::let_next_kernel_wait();
    const uint32_t fault = tamis::fault_of(a, tamis::load_guard(a));
    uint32_t longest = 0;
    bool listed = false;
    for (int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; r < a.rows;
         r += (int64_t)gridDim.x * blockDim.x) {
        int64_t start = a.ks ? a.ks[r] : 0, end = a.ke[r];
        end = fault ? start : tamis::clamp(end, start, max(start, a.limit));
        const int64_t length = end - start;
        const bool dense = a.gated[1] && length <= a.most && (length == 0 || length > a.above);
        a.gated[0][r] = (int32_t)(dense ? start : end);
        if (a.gated[1]) {
            a.gated[1][r] = (int32_t)(dense ? end : start);
        }
        longest = max(longest, dense ? (uint32_t)length : 0);
        listed |= !dense;
    }
    if (a.gated[1]) {
        tamis::raise_routes(a, longest, listed);
    }
    if (a.usable) {
        tamis::show_raised(a);
    }
    if (fault && blockIdx.x == 0 && threadIdx.x == 0) {
        tamis::report(a.status, fault, a.layer);
    }
}
