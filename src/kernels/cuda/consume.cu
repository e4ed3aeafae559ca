/* SPDX-License-Identifier: MIT */
/*
 * consume.cu: listed blocks scored by the fast path (score_fast.cuh), to scores in memory or, with
 * one CTA a row, straight to the row's selection: the keys of a row's columns stay in shared
 * memory, where the first radix pass is counted as they are made.
 */
#include "score_fast.cuh"
#include "select.cuh"

namespace tamis {

/* Two CTAs a multiprocessor: 128 registers, and one row scores while another selects. */
constexpr int kFastThreads = kPoolThreads, kFastWarps = kFastThreads / 32;

/* Steps of a warp that `blocks` blocks take: 32 columns each. */
__device__ inline int steps_of(int32_t blocks) {
    return (blocks + kStepBlocks - 1) / kStepBlocks;
}

/* PAGE, ks NULL, blocks of 8: the launcher saw to it. */
__device__ inline Listed listed_of(const tamis_sparse_mqa_logits_args &a, int64_t r) {
    Row row = row_of(a.rows, r, positions_of(a.rows, a.k));
    Listed list;
    list.blocks = a.blocks + r * a.blocks_stride;
    list.physical = a.physical ? a.physical + r * a.physical_stride : nullptr;
    list.pages = row.pages;
    list.length = (int32_t)row.length;
    list.count = (int32_t)(a.counts ? clamp(a.counts[r], 0, a.width) : a.width);
    list.count = row.length > 0 ? list.count : 0;
    list.page_shift = (uint32_t)__ffs(a.k.page_size / kBlock) - 1;
    return list;
}

/* 1 + tamis_order_key of a score whose NaN is one. */
__device__ inline uint32_t key_of_score(float score) {
    uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f)); /* -0 becomes +0 */
    uint32_t key = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
    return __float_as_uint(score) == TAMIS_NAN_BITS ? 1 : key + 1;
}

/* Entry `rank` of a row's selection: a column, or -1. */
__device__ inline void write_column(const tamis_selection &out, int64_t r, int64_t rank,
                                    const Listed &list, int32_t page_size, const uint32_t *keys,
                                    int column) {
    const bool none = column < 0;
    int64_t j = none ? -1 : (int64_t)list.blocks[column / kBlock] * kBlock + column % kBlock;
    if (out.positions) {
        out.positions[r * out.positions_stride + rank] = (int32_t)j;
    }
    if (out.slots) {
        out.slots[r * out.slots_stride + rank] =
            none ? -1 : tamis_slot_of(list.pages, page_size, j);
    }
    if (out.scores) {
        out.scores[r * out.scores_stride + rank] =
            none ? -INFINITY : tamis_canonical(score_of_key(keys[column] - 1));
    }
}

/* Row r: its keys to `keys`, its selection from there. Whole CTA of kFastThreads, bins cleared. */
__device__ inline void consume_fast(const tamis_sparse_mqa_logits_args &a,
                                    const tamis_selection &out, int64_t r, uint32_t *keys,
                                    const Marks &marks, PoolShared &shared, FastQuery &query) {
    const Listed list = listed_of(a, r);
    if (list.count > 0) {
        score_listed<kFastThreads>(a, list, r, (int)threadIdx.x / 32, kFastWarps, kMaxSteps, query,
                                   [&](int32_t column, bool live, float score) {
                                       put_key(shared, keys, column,
                                               live ? key_of_score(score) : 0);
                                   });
    }
    __syncthreads();
    auto write = [&](int column, int64_t rank) {
        write_column(out, r, rank, list, a.k.page_size, keys, column);
    };
    const uint32_t want =
        select_counted(shared, keys, marks, steps_of(list.count), (uint32_t)out.topk, write);
    for (int64_t i = want + threadIdx.x; i < out.topk; i += kFastThreads) {
        write(-1, i);
    }
    if (out.counts && threadIdx.x == 0) {
        out.counts[r] = (int32_t)want;
    }
}

} // namespace tamis

/* Scores to a.logits; a row's groups of 4 * steps blocks over the warps of gridDim.x CTAs. */
extern "C" __global__ void __launch_bounds__(tamis::kFastThreads, 2)
    tamis_sparse_mqa_logits_fast_smxx(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                                      int32_t steps) {
    __shared__ tamis::FastQuery query;
    const int64_t end = a.width * tamis::kBlock;
    const int warp = (int)(blockIdx.x * tamis::kFastWarps + threadIdx.x / 32);
    const int warps = (int)gridDim.x * tamis::kFastWarps;
    for (int64_t r = blockIdx.y; r < a.rows.count; r += gridDim.y) {
        const tamis::Listed list = tamis::listed_of(a, r);
        auto store = [&](int64_t column, float score) {
            if (column < end) {
                tamis_store_float(a.logits, a.logits_type, r * a.logits_stride + column, score);
            }
        };
        if (list.count > 0) {
            tamis::score_listed<tamis::kFastThreads>(a, list, r, warp, warps, steps, query,
                                                     [&](int32_t column, bool live, float score) {
                                                         store(column, live ? score : -INFINITY);
                                                     });
        }
        int64_t written = (int64_t)tamis::steps_of(list.count) * 32;
        int64_t mine = written + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
        for (int64_t column = mine; column < end; column += (int64_t)gridDim.x * blockDim.x) {
            store(column, -INFINITY);
        }
        __syncthreads(); /* the next row writes query */
    }
}

/* One CTA a row, but for rows that are done (NULL: none is). listed: 0 where there is nothing to be
 * done, or NULL. Dynamic shared memory: 34 words for each four blocks of a.width. */
extern "C" __global__ void __launch_bounds__(tamis::kFastThreads, 2)
    tamis_consume_fast_smxx(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                            const __grid_constant__ tamis_selection out, const int32_t *done,
                            const uint32_t *listed) {
    extern __shared__ uint32_t keys[];
    __shared__ tamis::PoolShared shared;
    __shared__ tamis::FastQuery query;
    tamis::wait_for_kernel_before();
    if (listed && *listed == 0) {
        return;
    }
    const tamis::Marks marks = tamis::marks_of(keys, tamis::steps_of((int32_t)a.width));
    tamis::clear_bins(shared);
    for (int64_t r = blockIdx.x; r < a.rows.count; r += gridDim.x) {
        if (done && done[r]) {
            continue;
        }
        tamis::consume_fast(a, out, r, keys, marks, shared, query);
        __syncthreads();
    }
}
