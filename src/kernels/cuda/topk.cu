/* SPDX-License-Identifier: MIT */
/*
 * topk.cu: the best columns of each row, ascending, as positions, slots and scores. One CTA a row.
 * Keys are shifted by one, so that 0 is left for columns that are not valid.
 */
#include "select.cuh"
#include "topk_args.h"

namespace tamis {

struct Columns {
    const tamis_topk_args &a;
    int64_t r, columns;
    Row row;
    bool gather; /* the logit of a column lies at its position */

    __device__ int64_t position(int64_t c) const {
        int64_t j = c;
        if (a.blocks) { /* blocks of 8 or 16: no division */
            const int shift = a.block_size == 8 ? 3 : 4;
            int64_t block = a.blocks[r * a.blocks_stride + (c >> shift)];
            j = ((block - (row.start >> shift)) << shift) + (c & (a.block_size - 1));
        }
        return j >= 0 && j < row.length ? j : -1;
    }
    __device__ float logit(int64_t c, int64_t j) const {
        return tamis_load_float(a.logits, a.logits_type, r * a.logits_stride + (gather ? j : c));
    }
    __device__ uint32_t key(int64_t c) const {
        int64_t j = position(c);
        return j < 0 ? 0 : 1 + tamis_order_key(logit(c, j));
    }
    __device__ void write(int64_t rank, int64_t c) const {
        const tamis_selection &out = a.selection;
        int64_t j = c < 0 ? -1 : position(c);
        if (out.positions) {
            out.positions[r * out.positions_stride + rank] = (int32_t)j;
        }
        if (out.slots) {
            out.slots[r * out.slots_stride + rank] =
                c < 0 ? -1 : tamis_slot_of(row.pages, a.page_size, row.start + j);
        }
        if (out.scores) {
            out.scores[r * out.scores_stride + rank] =
                c < 0 ? -INFINITY : tamis_canonical(logit(c, j));
        }
    }
};

/* Valid columns of the row, in every thread. */
__device__ inline uint32_t count_valid(SelectShared &s, const Columns &columns) {
    if (!columns.a.blocks) {
        return (uint32_t)min(columns.columns, columns.row.length);
    }
    if (threadIdx.x == 0) {
        s.valid = 0;
    }
    __syncthreads();
    uint32_t mine = 0;
    for (int64_t c = threadIdx.x; c < columns.columns; c += kSelectThreads) {
        mine += columns.position(c) >= 0;
    }
    mine = __reduce_add_sync(kAll, mine);
    if ((threadIdx.x & 31) == 0) {
        atomicAdd(&s.valid, mine);
    }
    __syncthreads();
    return s.valid;
}

/* Columns and interval of row r. */
__device__ inline Columns columns_of(const tamis_topk_args &a, int64_t r, bool gather,
                                     int64_t limit) {
    int64_t width = a.columns ? clamp(a.columns[r], 0, a.width) : a.width;
    Row row = {0, INT64_MAX, nullptr};
    if (a.rows.ke) {
        int64_t pages = a.rows.page_table_width * a.page_size;
        bool paged = a.selection.slots && a.rows.page_table && a.page_size;
        row = row_of(a.rows, r, paged ? min(pages, limit) : limit);
    }
    return {a, r, width, row, gather};
}

/* What follows the row's `want` columns. */
__device__ inline void write_tail(const Columns &columns, uint32_t want) {
    const tamis_selection &out = columns.a.selection;
    for (int64_t i = want + threadIdx.x; i < out.topk; i += blockDim.x) {
        columns.write(i, -1);
    }
    if (out.counts && threadIdx.x == 0) {
        out.counts[columns.r] = (int32_t)want;
    }
}

} // namespace tamis

extern "C" __global__ void __launch_bounds__(tamis::kSelectThreads)
    tamis_topk_smxx(const __grid_constant__ tamis_topk_args a, int32_t how, int64_t limit) {
    __shared__ tamis::SelectShared shared;
    for (int64_t r = blockIdx.x; r < a.rows.count; r += gridDim.x) {
        const tamis::Columns columns = tamis::columns_of(a, r, how & TAMIS_TOPK_GATHER, limit);
        if ((how & TAMIS_TOPK_LIVE_ONLY) && columns.row.length == 0) {
            continue;
        }
        uint32_t want = min(tamis::count_valid(shared, columns), (uint32_t)a.selection.topk);
        tamis::select(
            shared, columns.columns, want, [&](int64_t c) { return columns.key(c); },
            [&](int64_t c, uint32_t rank) { columns.write(rank, c); });
        tamis::write_tail(columns, want);
        __syncthreads();
    }
}

/* The same for rows whose keys fit shared memory. */
extern "C" __global__ void __launch_bounds__(tamis::kPoolThreads)
    tamis_topk_pool_smxx(const __grid_constant__ tamis_topk_args a, int32_t how, int64_t limit) {
    extern __shared__ uint32_t keys[];
    __shared__ tamis::PoolShared shared;
    constexpr int kAtOnce = 8; /* loads in flight */
    const int words = (int)((a.width + 31) / 32);
    tamis::clear_bins(shared);
    for (int64_t r = blockIdx.x; r < a.rows.count; r += gridDim.x) {
        const tamis::Columns columns = tamis::columns_of(a, r, how & TAMIS_TOPK_GATHER, limit);
        if ((how & TAMIS_TOPK_LIVE_ONLY) && columns.row.length == 0) {
            continue;
        }
        for (int base = threadIdx.x; base < 32 * words; base += kAtOnce * tamis::kPoolThreads) {
            uint32_t key[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; i++) {
                int c = base + i * tamis::kPoolThreads;
                key[i] = c < columns.columns ? columns.key(c) : 0;
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; i++) {
                int c = base + i * tamis::kPoolThreads;
                if (c < 32 * words) {
                    tamis::put_key(shared, keys, c, key[i]);
                }
            }
        }
        __syncthreads();
        uint32_t want = tamis::select_counted(
            shared, keys, tamis::marks_of(keys, words), words, (uint32_t)a.selection.topk,
            [&](int c, uint32_t rank) { columns.write(rank, c); });
        tamis::write_tail(columns, want);
        __syncthreads();
    }
}
