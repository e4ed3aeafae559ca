/* SPDX-License-Identifier: MIT */
/*
 * mqa_logits.cu: dense scores of every visible position and their block maxima. A warp does tiles
 * of sixteen positions; CTAs of a row stride over its live length, so a short row costs little in a
 * grid made for a long one.
 */
#include "score.cuh"

namespace tamis {

/* The largest key of each block in a tile, in every lane; 0 stands for no visible position or NaN.
 */
__device__ inline void tile_maxima(const float (&score)[2], const bool (&live)[2], int block_size,
                                   uint32_t (&best)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        best[i] = live[i] ? tamis_order_key(score[i]) : 0;
        best[i] = __reduce_max_sync(kAll, best[i]);
    }
    if (block_size == 16) {
        best[0] = best[1] = max(best[0], best[1]);
    }
}

/* Without fill, logits past a row's length keep what they hold. */
template <int HEADS, int GROUPS>
__device__ inline void mqa_logits(const tamis_mqa_logits_args &a, bool fill,
                                  const tamis_row_tile &tile, const tamis_score_tile &scores) {
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32;
    const int64_t first = ((int64_t)blockIdx.x * warps + threadIdx.x / 32) * kTile;
    const int64_t step = (int64_t)gridDim.x * warps * kTile;
    int64_t limit = positions_of(a.rows, a.k);
    if (a.logits) {
        limit = min(limit, a.columns); /* columns >= every length, or lengths are clamped */
    }
    const TileRows rows = rows_of(tile, a.rows.count);
    const ScoreRows lines = rows_of(scores, a.rows.count, a.logits_stride);
    const int64_t last = min(rows.end, lines.end);
    for (int64_t r = max(rows.first, lines.first) + blockIdx.y; r < last; r += gridDim.y) {
        Row row = row_of(a.rows, r, positions_of(a.rows, a.k));
        int64_t length = min(row.length, limit);
        if (a.block_max) {
            length = min(length, a.block_max_stride * a.block_size);
        }
        int64_t end = a.logits && fill ? max(length, a.columns) : length;
        if (first >= end) {
            continue;
        }
        const int64_t line = lines.line(r);
        auto q = load_query<HEADS, GROUPS>(a.query, r, a.numerics);
        for (int64_t base = first; base < end; base += step) {
            Keys keys;
            float score[2];
            bool live[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int64_t j = base + 8 * i + lane / 4;
                live[i] = j < length;
                keys.codes[i] = keys.scales[i] = nullptr;
                if (live[i]) {
                    tamis_k_row key = key_at(a.k, row.pages, row.start + j);
                    keys.codes[i] = key.codes;
                    keys.scales[i] = key.scales;
                }
            }
            score_tile(q, a.query, r, keys, score);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int64_t j = base + 8 * i + lane / 4;
                if (a.logits && (lane & 3) == 0 && j < end) {
                    tamis_store_float(a.logits, a.logits_type, line + j,
                                      live[i] ? score[i] : -INFINITY);
                }
            }
            if (a.block_max) {
                uint32_t best[2];
                tile_maxima(score, live, a.block_size, best);
                float *out = maxima_of_row(a.block_max, a.block_max_stride, rows.at, r) +
                             base / a.block_size;
                if (lane == 0 && base < length) {
                    out[0] = score_of_key(best[0]);
                }
                if (lane == 0 && a.block_size == 8 && base + 8 < length) {
                    out[1] = score_of_key(best[1]);
                }
            }
        }
    }
}

} // namespace tamis

/* ctas: of a multiprocessor; ptxas would give one of them registers for two where three fit. */
#define TAMIS_MQA_LOGITS(heads, dim, ctas)                                                         \
    extern "C" __global__ void __launch_bounds__(128, ctas)                                        \
        tamis_mqa_logits_smxx_h##heads##_d##dim(const __grid_constant__ tamis_mqa_logits_args a,   \
                                                int32_t fill,                                      \
                                                const __grid_constant__ tamis_row_tile tile,       \
                                                const __grid_constant__ tamis_score_tile scores) { \
        tamis::mqa_logits<heads, dim / 32>(a, fill != 0, tile, scores);                            \
    }
TAMIS_MQA_LOGITS(32, 64, 4)
TAMIS_MQA_LOGITS(32, 128, 3)
TAMIS_MQA_LOGITS(64, 64, 3)
TAMIS_MQA_LOGITS(64, 128, 2)
