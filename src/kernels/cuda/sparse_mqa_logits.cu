/* SPDX-License-Identifier: MIT */
/* sparse_mqa_logits.cu: scores of the positions inside listed blocks. A tile is sixteen columns. */
#include "score.cuh"

namespace tamis {

/* Local position of column c, or -1 when it is no visible one. */
__device__ inline int64_t listed_position(const tamis_sparse_mqa_logits_args &a, const Row &row,
                                          const int32_t *blocks, int64_t valid, int64_t c) {
    int64_t size = a.block_size;
    if (c >= valid) {
        return -1;
    }
    int64_t j = (blocks[c / size] - row.start / size) * size + c % size;
    return j >= 0 && j < row.length ? j : -1;
}

__device__ inline tamis_k_row listed_key(const tamis_sparse_mqa_logits_args &a, const Row &row,
                                         int64_t r, int64_t c, int64_t j) {
    if (a.physical) {
        int64_t size = a.block_size;
        return tamis_k_at_slot(&a.k,
                               a.physical[r * a.physical_stride + c / size] * size + c % size);
    }
    return key_at(a.k, row.pages, row.start + j);
}

template <int HEADS, int GROUPS>
__device__ inline void sparse_mqa_logits(const tamis_sparse_mqa_logits_args &a) {
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32;
    const int64_t first = ((int64_t)blockIdx.x * warps + threadIdx.x / 32) * kTile;
    const int64_t step = (int64_t)gridDim.x * warps * kTile, end = a.width * a.block_size;
    for (int64_t r = blockIdx.y; r < a.rows.count; r += gridDim.y) {
        Row row = row_of(a.rows, r, positions_of(a.rows, a.k));
        const int32_t *blocks = a.blocks + r * a.blocks_stride;
        int64_t listed = a.counts ? clamp(a.counts[r], 0, a.width) : a.width;
        int64_t valid = row.length > 0 ? listed * a.block_size : 0;
        if (first >= end) {
            continue;
        }
        Query<HEADS, GROUPS> q;
        if (first < valid) {
            q = load_query<HEADS, GROUPS>(a.query, r, a.numerics);
        }
        for (int64_t base = first; base < end; base += step) {
            Keys keys;
            float score[2] = {-INFINITY, -INFINITY};
            bool live[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int64_t c = base + 8 * i + lane / 4;
                int64_t j = listed_position(a, row, blocks, valid, c);
                live[i] = j >= 0;
                keys.codes[i] = keys.scales[i] = nullptr;
                if (live[i]) {
                    tamis_k_row key = listed_key(a, row, r, c, j);
                    keys.codes[i] = key.codes;
                    keys.scales[i] = key.scales;
                }
            }
            if (base < valid) {
                score_tile(q, a.query, r, keys, score);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int64_t c = base + 8 * i + lane / 4;
                if ((lane & 3) == 0 && c < end) {
                    tamis_store_float(a.logits, a.logits_type, r * a.logits_stride + c,
                                      live[i] ? score[i] : -INFINITY);
                }
            }
        }
    }
}

} // namespace tamis

#define TAMIS_SPARSE_MQA_LOGITS(heads, dim)                                                        \
    extern "C" __global__ void __launch_bounds__(128)                                              \
        tamis_sparse_mqa_logits_smxx_h##heads##_d##dim(                                            \
            const __grid_constant__ tamis_sparse_mqa_logits_args a) {                              \
        tamis::sparse_mqa_logits<heads, dim / 32>(a);                                              \
    }
TAMIS_SPARSE_MQA_LOGITS(32, 64)
TAMIS_SPARSE_MQA_LOGITS(32, 128)
TAMIS_SPARSE_MQA_LOGITS(64, 64)
TAMIS_SPARSE_MQA_LOGITS(64, 128)
