/* SPDX-License-Identifier: MIT */
/*
 * topk.cu: the best columns of each row, ascending, as positions, slots and scores. One CTA a row.
 * Keys are shifted by one, so that 0 is left for columns that are not valid.
 */
#include "pool.cuh"
#include "select.cuh"
#include "topk_args.h"

namespace tamis {

struct Columns {
    const tamis_topk_args &a;
    int64_t r, line, columns;
    Row row;
    const int32_t *blocks; /* of the row; NULL: columns are positions */
    bool gather;           /* the logit of a column lies at its position */

    __device__ int64_t position(int64_t c) const {
        int64_t j = c;
        if (blocks) { /* of 8 or 16: no division */
            const int shift = a.block_size == 8 ? 3 : 4;
            int64_t block = blocks[c >> shift];
            j = ((block - (row.start >> shift)) << shift) + (c & (a.block_size - 1));
        }
        return j >= 0 && j < row.length ? j : -1;
    }
    __device__ float logit(int64_t c, int64_t j) const {
        return tamis_load_float(a.logits, a.logits_type, line + (gather ? j : c));
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
    if (!columns.blocks) {
        return (uint32_t)columns.columns;
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

/* Columns and interval of row r: those past its length are none, where no list says otherwise. */
__device__ inline Columns columns_of(const tamis_topk_args &a, int64_t r, int64_t line, int32_t how,
                                     int64_t limit) {
    int64_t width = a.columns ? clamp(a.columns[r], 0, a.width) : a.width;
    Row row = {0, INT64_MAX, nullptr};
    if (a.rows.ke) {
        int64_t pages = a.rows.page_table_width * a.page_size;
        bool paged = a.selection.slots && a.rows.page_table && a.page_size;
        row = row_of(a.rows, r, paged ? min(pages, limit) : limit);
    }
    const bool whole = (how & TAMIS_TOPK_WHOLE) && row.length <= width;
    const int32_t *blocks = a.blocks && !whole ? a.blocks + r * a.blocks_stride : nullptr;
    width = blocks ? width : min(width, row.length);
    return {a, r, line, width, row, blocks, (how & TAMIS_TOPK_GATHER) != 0};
}

/* Whether rows that see nothing are left alone: another kernel wrote theirs, if it had any row. */
__device__ inline bool leaves_empty(int32_t how, const tamis_score_tile &tile) {
    return (how & TAMIS_TOPK_LIVE_ONLY) && (tile.routes == nullptr || tile.routes->listed);
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
    tamis_topk_smxx(const __grid_constant__ tamis_topk_args a, int32_t how, int64_t limit,
                    const __grid_constant__ tamis_score_tile tile) {
    __shared__ tamis::SelectShared shared;
    const tamis::ScoreRows rows = tamis::rows_of(tile, a.rows.count, a.logits_stride);
    const bool live_only = tamis::leaves_empty(how, tile);
    for (int64_t r = rows.first + blockIdx.x; r < rows.end; r += gridDim.x) {
        const tamis::Columns columns = tamis::columns_of(a, r, rows.line(r), how, limit);
        if (live_only && columns.row.length == 0) {
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

namespace tamis {

constexpr int kPoolTopkThreads = 512, kPoolTopkQuads = 8;
constexpr int kPoolItems = 4096; /* of its list */

/* This thread's quads: where the first logit lies, and how many of the four columns are visible. */
template <int QUADS> struct Quads {
    int32_t at[QUADS];
    int live[QUADS];
};

/* Ids first, all in flight. Elements of a quad lie in one block. */
template <int QUADS> __device__ inline Quads<QUADS> place_quads(const Columns &columns, int chunk) {
    const tamis_topk_args &a = columns.a;
    const int shift = a.block_size == 8 ? 3 : 4;
    const int64_t anchor = columns.row.start >> shift;
    const int32_t *blocks = columns.blocks;
    int32_t id[QUADS];
    Quads<QUADS> quads;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const int c = quad_column(chunk, i);
        const bool load = blocks && 128 * i < chunk && c < columns.columns;
        id[i] = 0;
        if (load) {
            id[i] = __ldg(blocks + (c >> shift));
        }
    }
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const int c = quad_column(chunk, i);
        const int64_t in_block = c & (a.block_size - 1);
        const int64_t j = blocks ? ((id[i] - anchor) << shift) + in_block : c;
        const int64_t most = min(columns.row.length - j, columns.columns - c);
        quads.live[i] = 128 * i < chunk && j >= 0 ? (int)clamp(most, 0, 4) : 0;
        quads.at[i] = columns.gather ? (int32_t)j : c;
    }
    return quads;
}

/* The keys of quads. Whole ones that are aligned take one load, all of them in flight. */
template <int QUADS>
__device__ inline void load_quads(const Columns &columns, const Quads<QUADS> &quads,
                                  uint4 (&keys)[QUADS]) {
    const tamis_topk_args &a = columns.a;
    const int64_t line = columns.line;
    const float *logits = (const float *)a.logits + line;
    const bool aligned = a.logits_type == TAMIS_F32 && ((uintptr_t)logits & 15) == 0;
    float4 x[QUADS];
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (aligned && quads.live[i] == 4) {
            x[i] = __ldg((const float4 *)(logits + quads.at[i]));
        }
    }
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const int live = quads.live[i];
        if (live > 0 && !(aligned && live == 4)) {
            const int64_t at = line + quads.at[i];
            x[i].x = tamis_load_float(a.logits, a.logits_type, at);
            x[i].y = tamis_load_float(a.logits, a.logits_type, at + min(1, live - 1));
            x[i].z = tamis_load_float(a.logits, a.logits_type, at + min(2, live - 1));
            x[i].w = tamis_load_float(a.logits, a.logits_type, at + min(3, live - 1));
        }
        keys[i].x = live > 0 ? pool_key(x[i].x) : 0;
        keys[i].y = live > 1 ? pool_key(x[i].y) : 0;
        keys[i].z = live > 2 ? pool_key(x[i].z) : 0;
        keys[i].w = live > 3 ? pool_key(x[i].w) : 0;
    }
}

/* Rows of pools, keys in registers: THREADS * 4 * QUADS columns at most. */
template <int THREADS, int QUADS>
__device__ inline void topk_pool(const tamis_topk_args &a, int32_t how, int64_t limit,
                                 const tamis_score_tile &tile) {
    __shared__ Pool<THREADS> shared;
    __shared__ Item list[kPoolItems];
    uint16_t *order = (uint16_t *)list;
    wait_for_kernel_before();
    const ScoreRows rows = rows_of(tile, a.rows.count, a.logits_stride);
    const bool live_only = leaves_empty(how, tile);
    pool_begin(shared);
    for (int64_t r = rows.first + blockIdx.x; r < rows.end; r += gridDim.x) {
        const Columns columns = columns_of(a, r, rows.line(r), how, limit);
        if (live_only && columns.row.length == 0) {
            continue;
        }
        const int chunk = chunk_of((int)columns.columns, THREADS / 32);
        uint4 keys[QUADS];
        load_quads<QUADS>(columns, place_quads<QUADS>(columns, chunk), keys);
        const uint32_t want = best_of_pool<THREADS, QUADS, kPoolItems>(
            shared, list, (int)columns.columns, (uint32_t)a.selection.topk,
            [&](int i) { return keys[i]; }, order);
        for (uint32_t i = threadIdx.x; i < want; i += THREADS) {
            columns.write(i, order[i]);
        }
        write_tail(columns, want);
        __syncthreads();
    }
}

} // namespace tamis

/* The same for pools of 16,384 columns at most. */
extern "C" __global__ void __launch_bounds__(tamis::kPoolTopkThreads, 2)
    tamis_topk_pool_smxx(const __grid_constant__ tamis_topk_args a, int32_t how, int64_t limit,
                         const __grid_constant__ tamis_score_tile tile) {
    tamis::topk_pool<tamis::kPoolTopkThreads, tamis::kPoolTopkQuads>(a, how, limit, tile);
}
