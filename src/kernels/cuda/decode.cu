/* SPDX-License-Identifier: MIT */
/*
 * decode.cu: the consumer of few rows: a row's blocks are scored by many CTAs, and the last of them
 * to finish selects. Keys go through memory that lies in L2; the count of CTAs that are done starts
 * and ends at 0, so that a graph can be replayed. Follows consume.cu, whose rows it reads.
 */
#include "pool.cuh"

namespace tamis {

/* One CTA a multiprocessor: 128 registers, and as many threads as that leaves to select. */
constexpr int kSplitThreads = 512, kSplitWarps = kSplitThreads / 32;
constexpr int kSplitItems = 4096; /* of the list of a pool */
/* Up to so many columns all threads have some, in quads; a source's own selection is so short. */
constexpr int kSplitQuads = 3, kShortColumns = 4 * kSplitQuads * kSplitThreads;

/* Whether this CTA is the last of the row's `parts`: then it sees what the others wrote. */
__device__ inline bool is_last(uint32_t *done, uint32_t parts, bool &shared) {
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0,[%1],1;"
                     : "=r"(before)
                     : "l"(done)
                     : "memory");
        shared = before == parts - 1;
        if (shared) {
            *done = 0;
        }
    }
    __syncthreads();
    return shared;
}

/* Where a column's key lies in scratch: a thread that selects has the 32 columns of one step, in
 * quads that lie dense over threads. */
__device__ inline int scratch_place(int32_t column, int all_steps) {
    return (column % 32 / 4 * all_steps + column / 32) * 4 + column % 4;
}

/* Columns of the best `topk` keys of a row, ascending, to order, which may lie on the list; how
 * many. Whole CTA. */
__device__ inline uint32_t select_short(Pool<kSplitThreads> &pool, Item *items,
                                        const uint32_t *keys, int columns, int all_steps,
                                        uint32_t topk, uint16_t *order) {
    const int chunk = chunk_of(columns, kSplitWarps);
    uint4 held[kSplitQuads];
#pragma unroll
    for (int i = 0; i < kSplitQuads; i++) {
        const int column = quad_column(chunk, i);
        held[i] = make_uint4(0, 0, 0, 0);
        if (128 * i < chunk && column < columns) {
            held[i] = *(const uint4 *)(keys + scratch_place(column, all_steps));
        }
    }
    pool_begin(pool);
    auto quad = [&](int i) { return held[i]; };
    return best_of_pool<kSplitThreads, kSplitQuads, kSplitItems>(pool, items, columns, topk, quad,
                                                                 order);
}

/* The same of any length that scratch has room for. */
__device__ inline uint32_t select_long(Pool<kSplitThreads> &pool, Item *items, const uint32_t *keys,
                                       int columns, int all_steps, uint32_t topk, uint16_t *order) {
    uint4 held[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        held[i] = make_uint4(0, 0, 0, 0);
        if (32 * (int)threadIdx.x < columns) {
            held[i] = *((const uint4 *)keys + i * all_steps + threadIdx.x);
        }
    }
    pool_begin(pool);
    auto again = [&](uint32_t bit) {
        return keys[scratch_place((int32_t)(32 * threadIdx.x + bit), all_steps)];
    };
    return best_of_threads<kSplitThreads, kSplitItems>(pool, items, columns, topk, held, again,
                                                       order);
}

/* The selection of a row that sees nothing here: none, the other route's, or padding. */
__device__ inline void write_none(const tamis_selection &out, int64_t r, const Listed &list,
                                  int32_t page_size) {
    for (int64_t i = threadIdx.x; i < out.topk; i += kSplitThreads) {
        write_column(out, r, i, list, page_size, nullptr, -1);
    }
    if (out.counts && threadIdx.x == 0) {
        out.counts[r] = 0;
    }
}

} // namespace tamis

/* a.logits: scratch for keys, rows of 16-byte alignment and whole steps. done: [rows.count] zeros.
 * taken: rows that are done already and are left alone, or NULL. Grid: parts of a row, rows. */
extern "C" __global__ void __launch_bounds__(tamis::kSplitThreads, 1)
    tamis_consume_split_smxx(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                             const __grid_constant__ tamis_selection out, uint32_t *done,
                             const int32_t *taken, int32_t steps) {
    using namespace tamis;
    __shared__ FastQuery query;
    __shared__ Pool<kSplitThreads> pool;
    __shared__ Item items[kSplitItems];
    __shared__ bool last;
    uint16_t *order = (uint16_t *)items;
    const int first = (int)threadIdx.x / 32 * (int)gridDim.x + (int)blockIdx.x;
    const int all_steps = steps_of((int32_t)a.width);
    for (int64_t r = blockIdx.y; r < a.rows.count; r += gridDim.y) {
        uint32_t *keys = (uint32_t *)a.logits + r * a.logits_stride;
        /* What the first steps want is loaded before the row's length and count are known. */
        const int64_t at = (int64_t)first * kStepBlocks * steps + (threadIdx.x & 31);
        int32_t id = -1;
        uint32_t where = 0;
        if (at < a.width) {
            id = __ldg(a.blocks + r * a.blocks_stride + at);
            where = a.physical ? (uint32_t)__ldg(a.physical + r * a.physical_stride + at) : 0;
        }
        if (taken && taken[r]) {
            continue;
        }
        const Listed list = listed_of(a, r);
        if (list.count == 0) { /* no CTA waits for another here */
            if (blockIdx.x == 0) {
                write_none(out, r, list, a.k.page_size);
            }
            continue;
        }
        const bool seen = at < list.count && (uint32_t)id <= (uint32_t)(list.length - 1) / kBlock;
        id = seen ? id : -1;
        where = a.physical ? where : listed_where(list, (int32_t)at, id);
        const QueryBits bits = load_query_bits(a.query, r, a.numerics);
        score_listed(a, list, r, first, (int)gridDim.x * kSplitWarps, steps, query, bits, id,
                     seen ? where : 0, [&](int32_t column, bool live, float score) {
                         keys[scratch_place(column, all_steps)] = live ? key_of_score(score) : 0;
                     });
        if (!is_last(done + r, gridDim.x, last)) {
            continue;
        }
        const int columns = list.count * kBlock;
        const uint32_t want =
            columns <= kShortColumns
                ? select_short(pool, items, keys, columns, all_steps, (uint32_t)out.topk, order)
                : select_long(pool, items, keys, columns, all_steps, (uint32_t)out.topk, order);
        for (uint32_t i = threadIdx.x; i < (uint32_t)out.topk; i += kSplitThreads) {
            const int column = i < want ? (int)order[i] : -1;
            write_column(out, r, i, list, a.k.page_size,
                         keys + (scratch_place(column, all_steps) - column), column);
        }
        if (out.counts && threadIdx.x == 0) {
            out.counts[r] = (int32_t)want;
        }
        __syncthreads();
    }
}
