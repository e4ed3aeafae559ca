/* SPDX-License-Identifier: MIT */
/*
 * split_select.cuh: how a row of decode.cu is selected by one CTA once its scores are made, and how
 * it is written. Apart from scoring, so that a CPU can run it (tests/cuda/emulated_selection.cpp).
 */
#ifndef TAMIS_CUDA_SPLIT_SELECT_CUH
#define TAMIS_CUDA_SPLIT_SELECT_CUH

#include "listed.cuh"
#include "picks.cuh"

namespace tamis {

/* One CTA a multiprocessor: 128 registers, and as many threads as that leaves to select. */
constexpr int kSplitThreads = kPickThreads, kSplitWarps = kPickWarps;
constexpr uint32_t kNoScore = 0xFFFFFFFFu; /* where a column has none: a NaN, which no score is */

/* Predicates, not branches: a warp's loads go out together. */
__device__ inline float load_if(const float *at, uint32_t yes) {
    float x = 0.0f;
#ifdef __CUDA_ARCH__
    asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; @p ld.global.f32 %0,[%1];}"
                 : "+f"(x)
                 : "l"(at), "r"(yes)
                 : "memory");
#else
    x = yes ? *at : x;
#endif
    return x;
}

/* A row's scores in its scratch. */
struct ScratchScores {
    const float *own; /* the thread's first */
    int columns;

    __device__ ScratchScores(const float *scores, int count)
        : own(scores + threadIdx.x), columns(count) {
#ifdef __CUDA_ARCH__
        asm("" : "+l"(own)); /* one address, to which offsets are added */
#endif
    }
    __device__ void load(float (&x)[kOwnColumns]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) { /* what sets the bound first */
#pragma unroll
            for (int i = half; i < kOwnColumns; i += 2) {
                x[i] = own_column(i) < columns ? own[i * kPickThreads] : __uint_as_float(kNoScore);
            }
        }
    }
    __device__ uint32_t key(int column) const {
        const float x = column < columns ? own[column - (int)threadIdx.x] : 0.0f;
        return column >= columns || __float_as_uint(x) == kNoScore ? 0 : pool_key(x);
    }
    template <int N> __device__ void scores(const uint32_t (&bits)[N], float (&to)[N]) const {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int64_t at = (int64_t)index_of(bits[k]) * (4 * kPickThreads);
            to[k] = load_if((const float *)((const char *)own + at), bits[k]);
        }
    }
};

/* ---- output ---- */

/* Where a row's selection goes; NULL: nowhere. */
struct RowOutput {
    int32_t *positions, *count;
    int64_t *slots;
    float *scores;
    uint32_t topk;
};

__device__ inline RowOutput output_of(const tamis_selection &out, int64_t r) {
    RowOutput row;
    row.positions = out.positions ? out.positions + r * out.positions_stride : nullptr;
    row.slots = out.slots ? out.slots + r * out.slots_stride : nullptr;
    row.scores = out.scores ? out.scores + r * out.scores_stride : nullptr;
    row.count = out.counts ? out.counts + r : nullptr;
    row.topk = (uint32_t)out.topk;
    return row;
}

/* Entries from .. below topk: none. */
__device__ inline void write_none(const RowOutput &out, uint32_t from) {
#pragma unroll 1
    for (uint32_t i = from + threadIdx.x; i < out.topk; i += kSplitThreads) {
        if (out.positions) {
            out.positions[i] = -1;
        }
        if (out.slots) {
            out.slots[i] = -1;
        }
        if (out.scores) {
            out.scores[i] = -INFINITY;
        }
    }
    if (out.count && threadIdx.x == 0) {
        *out.count = (int32_t)from;
    }
}

/*
 * Selects a row of `columns` from its scores and writes it. Whole CTA, from a barrier. A function
 * of its own: what scoring had in registers or put aside is not in the way.
 */
__device__ __noinline__ void select_row(PickRow &s, PickLists &lists, const float *scores,
                                        int columns, const int32_t *blocks, const int32_t *pages,
                                        uint32_t page_shift, RowOutput out) {
    const uint32_t taken = take_best(s, lists, ScratchScores(scores, columns), out.topk);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < taken; i += kSplitThreads) {
        const int32_t column = lists.order[i], id = __ldg(blocks + column / kBlock);
        if (out.positions) {
            out.positions[i] = id * kBlock + column % kBlock;
        }
        if (out.slots) {
            const int64_t page = __ldg(pages + (id >> page_shift));
            const int32_t in_page = id & ((1 << page_shift) - 1);
            out.slots[i] = ((page << page_shift) + in_page) * kBlock + column % kBlock;
        }
        if (out.scores) {
            out.scores[i] = tamis_canonical(scores[column]);
        }
    }
    write_none(out, taken);
}

} // namespace tamis

#endif
