/* SPDX-License-Identifier: MIT */
/*
 * expand.cu: candidate lists of any kind made into ascending sparse blocks. One CTA a row sorts the
 * row's candidates in shared memory (bitonic: never worse for a hostile list); ids that name no
 * visible block sort last.
 */
#include "common.cuh"

namespace tamis {

constexpr int kExpandThreads = 512;

__device__ inline void sort_ids(int32_t *ids, int n) {
    for (int size = 2; size <= n; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += kExpandThreads) {
                int j = i ^ stride;
                bool descending = (i & size) != 0;
                if (j > i && (ids[i] > ids[j]) != descending) {
                    int32_t id = ids[i];
                    ids[i] = ids[j];
                    ids[j] = id;
                }
            }
        }
    }
    __syncthreads();
}

/* First index whose id is not below `id`. */
__device__ inline int lower_bound(const int32_t *ids, int n, int64_t id) {
    int low = 0, high = n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (ids[middle] < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Exclusive sum over the CTA of one flag a thread; *total gets the sum. */
__device__ inline int scan(bool flag, int *warps, int *total) {
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    unsigned lanes = __ballot_sync(kAll, flag);
    if (lane == 0) {
        warps[warp] = __popc(lanes);
    }
    __syncthreads();
    int before = __popc(lanes & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < kExpandThreads / 32; w++) {
        before += w < warp ? warps[w] : 0;
        all += warps[w];
    }
    __syncthreads();
    *total = all;
    return before;
}

} // namespace tamis

extern "C" __global__ void __launch_bounds__(tamis::kExpandThreads)
    tamis_expand_smxx(const __grid_constant__ tamis_expand_args a, const int32_t *listed,
                      uint32_t *zeroed, int64_t limit) {
    extern __shared__ int32_t ids[];
    __shared__ int warps[tamis::kExpandThreads / 32];
    int padded = 1;
    while (padded < a.width) {
        padded *= 2;
    }
    const int64_t each = a.candidate_size / a.block_size, width = a.width * each;
    const bool keep = a.flags & TAMIS_EXPAND_KEEP_DUPLICATES;
    for (int64_t r = blockIdx.x; r < a.rows.count; r += gridDim.x) {
        tamis::Row row = tamis::row_of(a.rows, r, limit);
        int64_t given = listed ? tamis::clamp(listed[r], 0, a.width) : a.width;
        int64_t candidates = tamis_blocks_of(row.length, a.candidate_size);
        int64_t blocks = tamis_blocks_of(row.length, a.block_size);
        int32_t anchor = (int32_t)(row.start / a.block_size);
        int32_t *out = a.blocks + r * a.blocks_stride;
        __syncthreads();
        for (int i = threadIdx.x; i < padded; i += tamis::kExpandThreads) {
            int32_t id = i < given ? a.candidates[r * a.candidates_stride + i] : -1;
            ids[i] = id >= 0 && id < candidates ? id : INT32_MAX;
        }
        __syncthreads();
        bool ascending = true; /* published lists are */
        for (int i = threadIdx.x; i < padded - 1; i += tamis::kExpandThreads) {
            ascending &= ids[i] <= ids[i + 1];
        }
        if (!__syncthreads_and(ascending)) {
            tamis::sort_ids(ids, padded);
        }
        int n = tamis::lower_bound(ids, padded, INT32_MAX); /* ids that are visible */
        /* The last candidate may reach past the last block. */
        int64_t last_each = n == 0 ? 0 : min(each, blocks - (int64_t)ids[n - 1] * each);
        int64_t written = 0; /* blocks of earlier rounds, duplicates dropped */
        for (int base = 0; base < n; base += tamis::kExpandThreads) {
            int i = base + threadIdx.x, fresh = 0;
            bool first = i < n && (i == 0 || ids[i - 1] != ids[i]);
            int rank = tamis::scan(first, warps, &fresh);
            int32_t id = i < n ? ids[i] : 0;
            int64_t mine = i < n && ids[i] == ids[n - 1] ? last_each : each;
            if (i < n && keep) {
                int from = tamis::lower_bound(ids, n, id);
                int repeats = tamis::lower_bound(ids, n, (int64_t)id + 1) - from;
                for (int64_t k = 0; k < mine; k++) {
                    out[from * each + k * repeats + (i - from)] = (int32_t)(id * each + k) + anchor;
                }
            } else if (first) {
                for (int64_t k = 0; k < mine; k++) {
                    out[(written + rank) * each + k] = (int32_t)(id * each + k) + anchor;
                }
            }
            written += fresh;
        }
        int64_t count = 0;
        if (n > 0) {
            int from = tamis::lower_bound(ids, n, ids[n - 1]);
            count = keep ? from * each + (n - from) * last_each : (written - 1) * each + last_each;
        }
        /* The last block listed is the last candidate's last one. */
        int64_t last = n == 0 ? 0 : (int64_t)ids[n - 1] * each + last_each - 1;
        int32_t fill = !(a.flags & TAMIS_EXPAND_FIXED_WIDTH) ? -1 : (int32_t)last + anchor;
        for (int64_t i = count + threadIdx.x; i < width; i += tamis::kExpandThreads) {
            out[i] = fill;
        }
        if (threadIdx.x == 0) {
            if (zeroed) {
                zeroed[r] = 0;
            }
            int64_t tail = min((int64_t)a.block_size, row.length - last * a.block_size);
            if (a.columns) {
                a.columns[r] = count == 0 ? 0 : (int32_t)((count - 1) * a.block_size + tail);
            }
            if (a.counts) {
                a.counts[r] = (int32_t)count;
            }
        }
    }
}
