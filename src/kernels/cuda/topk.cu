/* SPDX-License-Identifier: MIT */
/*
 * topk.cu: the best columns of each row, ascending, as positions, slots and scores. One CTA a row.
 * Keys are shifted by one, so that 0 is left for columns that are not valid.
 */
#include "picks.cuh"
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
                c < 0 ? -1 : tamis_slot_of(pages_of(a.rows, r), a.page_size, row.start + j);
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

/* What lies there where `sign` is not negative, else `none`. Predicates, not branches: a warp's
 * loads go out together. */
__device__ inline uint32_t word_if(const void *at, int32_t sign, uint32_t none) {
#ifdef __CUDA_ARCH__
    asm volatile("{.reg .pred p; setp.ge.s32 p,%2,0; @p ld.global.nc.u32 %0,[%1];}"
                 : "+r"(none)
                 : "l"(at), "r"(sign));
    return none;
#else
    return sign >= 0 ? *(const uint32_t *)at : none;
#endif
}
/* A score, else a NaN. */
__device__ inline float score_if(const float *at, int32_t sign) {
    return __uint_as_float(word_if(at, sign, TAMIS_NAN_BITS));
}
__device__ inline float score_if(const uint16_t *at, int32_t sign) {
    uint32_t x = TAMIS_NAN_BITS >> 16;
#ifdef __CUDA_ARCH__
    asm volatile("{.reg .pred p; setp.ge.s32 p,%2,0; @p ld.global.nc.u16 %0,[%1];}"
                 : "+r"(x)
                 : "l"(at), "r"(sign));
#else
    x = sign >= 0 ? *at : x;
#endif
    return __uint_as_float(x << 16);
}
/* An id, else -1. */
__device__ inline int32_t id_if(const int32_t *at, int32_t sign) {
    return (int32_t)word_if(at, sign, 0xFFFFFFFFu);
}

/* Scores of a row of at most kPickColumns columns. Those of a thread lie at one place of their
 * blocks. */
struct PoolScores {
    int columns;
    const int32_t *blocks;
    const void *logits; /* the row's */
    uint32_t anchor;    /* block in which the row starts */
    int32_t length;     /* where there are blocks */
    int shift;
    bool wide, gather; /* f32, not bf16 */

    __device__ explicit PoolScores(const Columns &of)
        : columns((int)of.columns), blocks(of.blocks), shift(of.a.block_size == 8 ? 3 : 4),
          wide(of.a.logits_type == TAMIS_F32), gather(of.gather) {
        logits = (const uint8_t *)of.a.logits + of.line * (wide ? 4 : 2);
        anchor = (uint32_t)(of.row.start >> shift);
        length = (int32_t)min(of.row.length, (int64_t)INT32_MAX);
    }
    /* Position in its row of column c, which is of block id; -1: none. */
    __device__ int32_t position(int c, int32_t id) const {
        const uint32_t block = (uint32_t)id - anchor; /* far beyond the row where id is less */
        const int32_t j = (int32_t)(block << shift) + (c & ((1 << shift) - 1));
        return block <= (uint32_t)INT32_MAX >> shift && j < length ? j : -1;
    }
    __device__ float logit(int32_t at) const {
        return wide ? score_if((const float *)logits + at, at)
                    : score_if((const uint16_t *)logits + at, at);
    }
    /* Scores that lie there, where that is not negative. */
    template <class T, int N>
    __device__ void load_at(const int32_t (&at)[N], float (&to)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            to[i] = score_if((const T *)logits + at[i], at[i]);
        }
    }
    template <class T> __device__ void load_as(float (&x)[kOwnColumns]) const {
        const int last = columns - 1;
        if (!blocks) {
            const T *const own = (const T *)logits + threadIdx.x;
#pragma unroll
            for (int half = 0; half < 2; half++) { /* what sets the bound first */
#pragma unroll
                for (int i = half; i < kOwnColumns; i += 2) {
                    x[i] = score_if(own + i * kPickThreads, last - own_column(i));
                }
            }
            return;
        }
        const int32_t *const own = blocks + (threadIdx.x >> shift);
        const int step = kPickThreads >> shift;
        int32_t at[kOwnColumns];
#pragma unroll
        for (int i = 0; i < kOwnColumns; i++) {
            at[i] = id_if(own + i * step, last - own_column(i));
        }
#pragma unroll
        for (int i = 0; i < kOwnColumns; i++) {
            at[i] = position((int)threadIdx.x, at[i]);
            at[i] = gather || at[i] < 0 ? at[i] : own_column(i);
        }
        load_at<T>(at, x);
    }
    __device__ void load(float (&x)[kOwnColumns]) const {
        wide ? load_as<float>(x) : load_as<uint16_t>(x);
    }
    /* Where the score of a column lies; -1: it has none. */
    __device__ int32_t at(int c) const {
        if (c >= columns || !blocks) {
            return c < columns ? c : -1;
        }
        const int32_t j = position(c, __ldg(blocks + (c >> shift)));
        return j >= 0 && !gather ? c : j;
    }
    __device__ uint32_t key(int c) const {
        const int32_t place = at(c);
        return place < 0 ? 0 : pool_key(logit(place));
    }
    template <int N> __device__ void scores(const uint32_t (&bits)[N], float (&to)[N]) const {
        int32_t at[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            at[k] = bits[k] ? own_column(index_of(bits[k])) : -1;
        }
        if (blocks && gather) {
#pragma unroll
            for (int k = 0; k < N; k++) {
                at[k] = id_if(blocks + (at[k] >> shift), at[k]);
            }
#pragma unroll
            for (int k = 0; k < N; k++) {
                at[k] = position((int)threadIdx.x, at[k]);
            }
        }
        wide ? load_at<float>(at, to) : load_at<uint16_t>(at, to);
    }
};

/* Rows of pools, one after another. */
__device__ inline void topk_pool(const tamis_topk_args &a, int32_t how, int64_t limit,
                                 const tamis_score_tile &tile, PickRow &shared, PickLists &lists) {
    wait_for_kernel_before();
    const ScoreRows rows = rows_of(tile, a.rows.count, a.logits_stride);
    const bool live_only = leaves_empty(how, tile);
    select_begin(shared);
    for (int64_t r = rows.first + blockIdx.x; r < rows.end; r += gridDim.x) {
        const Columns columns = columns_of(a, r, rows.line(r), how, limit);
        if (live_only && columns.row.length == 0) {
            continue;
        }
        const uint32_t want =
            take_best(shared, lists, PoolScores(columns), (uint32_t)a.selection.topk);
        for (uint32_t i = threadIdx.x; i < want; i += kPickThreads) {
            columns.write(i, lists.order[i]);
        }
        write_tail(columns, want); /* the next row's order comes behind barriers */
    }
}

} // namespace tamis

/* The same for pools of 16,384 columns at most. */
extern "C" __global__ void __launch_bounds__(tamis::kPickThreads, 2)
    tamis_topk_pool_smxx(const __grid_constant__ tamis_topk_args a, int32_t how, int64_t limit,
                         const __grid_constant__ tamis_score_tile tile) {
    __shared__ tamis::PickRow shared;
    __shared__ tamis::PickLists lists;
    tamis::topk_pool(a, how, limit, tile, shared, lists);
}
