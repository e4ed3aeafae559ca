/* SPDX-License-Identifier: MIT */
/*
 * decode.cu: the consumer of few rows: a row's blocks are scored by many CTAs,
 * and the last of them to finish selects. Keys go through memory that lies in
 * L2; the count of CTAs that are done starts and ends at 0, so that a graph can
 * be replayed. Follows consume.cu, whose rows it reads.
 */
#include "pool.cuh"

namespace tamis {

/* One CTA a multiprocessor: 128 registers, and as many threads as that leaves
 * to select. */
constexpr int kSplitThreads = 512, kSplitWarps = kSplitThreads / 32, kSplitQuads = 8;
constexpr int kSplitItems = 4096; /* of the list of a pool */

/* Whether this CTA is the last of the row's `parts`: then it sees what the
 * others wrote. */
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

template <int THREADS, int QUADS>
__device__ inline void consume_split(const tamis_sparse_mqa_logits_args &a,
                                     const tamis_selection &out, uint32_t *done, int32_t steps) {
    constexpr int kWarps = THREADS / 32;
    __shared__ FastQuery query;
    __shared__ Pool<THREADS> pool;
    __shared__ Item items[kSplitItems];
    uint16_t *order = (uint16_t *)items;
    __shared__ bool last;
    const int first = (int)threadIdx.x / 32 * (int)gridDim.x + (int)blockIdx.x;
    const int64_t end = a.width * kBlock;
    for (int64_t r = blockIdx.y; r < a.rows.count; r += gridDim.y) {
        uint32_t *keys = (uint32_t *)a.logits + r * a.logits_stride;
        /* What the first steps want is loaded before the row's length and count are
         * known. */
        const int64_t at = (int64_t)first * kStepBlocks * steps + (threadIdx.x & 31);
        int32_t id = -1;
        uint32_t where = 0;
        if (at < a.width) {
            id = __ldg(a.blocks + r * a.blocks_stride + at);
            where = a.physical ? (uint32_t)__ldg(a.physical + r * a.physical_stride + at) : 0;
        }
        const Listed list = listed_of(a, r);
        if (list.count > 0) {
            const bool seen =
                at < list.count && (uint32_t)id <= (uint32_t)(list.length - 1) / kBlock;
            id = seen ? id : -1;
            where = a.physical ? where : listed_where(list, (int32_t)at, id);
            const QueryBits bits = load_query_bits(a.query, r, a.numerics);
            score_listed(a, list, r, first, (int)gridDim.x * kWarps, steps, query, bits, id,
                         seen ? where : 0, [&](int32_t column, bool live, float score) {
                             if (column < end) {
                                 keys[column] = live ? key_of_score(score) : 0;
                             }
                         });
        }
        /* A row without blocks is the first CTA's alone. */
        if (list.count > 0 ? !is_last(done + r, gridDim.x, last) : blockIdx.x != 0) {
            continue;
        }
        const int columns = list.count * kBlock, chunk = chunk_of(columns, kWarps);
        uint4 held[QUADS];
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const int column = quad_column(chunk, i);
            held[i] = make_uint4(0, 0, 0, 0);
            if (128 * i < chunk && column < columns) {
                held[i] = __ldcg((const uint4 *)(keys + column));
            }
        }
        pool_begin(pool);
        const uint32_t want = best_of_pool<THREADS, QUADS, kSplitItems>(
            pool, items, columns, (uint32_t)out.topk, [&](int i) { return held[i]; }, order);
        for (uint32_t i = threadIdx.x; i < (uint32_t)out.topk; i += THREADS) {
            write_column(out, r, i, list, a.k.page_size, keys, i < want ? (int)order[i] : -1);
        }
        if (out.counts && threadIdx.x == 0) {
            out.counts[r] = (int32_t)want;
        }
        __syncthreads();
    }
}

} // namespace tamis

/* a.logits: scratch for keys, rows of 16-byte alignment. done: [rows.count]
 * zeros. Grid: parts of a row, rows. */
extern "C" __global__ void __launch_bounds__(tamis::kSplitThreads, 1)
    tamis_consume_split_smxx(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                             const __grid_constant__ tamis_selection out, uint32_t *done,
                             int32_t steps) {
    tamis::consume_split<tamis::kSplitThreads, tamis::kSplitQuads>(a, out, done, steps);
}
