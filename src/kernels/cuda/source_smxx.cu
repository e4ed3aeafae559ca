/* SPDX-License-Identifier: MIT */
/*
 * source_smxx.cu: source.cuh by mma.sync, for any GPU. A warp has one row of the run, its q in
 * registers; the CTA decodes 64 positions of K into shared memory, while it multiplies the 64
 * before.
 */
#include "source.cuh"

namespace tamis {

/* codes: a position's 128 bytes in the order of SourceShared.codes; 16 more, so that eight
 * positions lie in different banks at offsets that an instruction holds. */
struct KBuffer {
    uint32_t codes[kSourceTile][36];
    float scale[kSourceTile];
};

struct PortableShared {
    SourceShared common;
    KBuffer k[2];
};

__device__ inline void load_matrix(uint32_t (&d)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address));
}

constexpr uint32_t kSixteen =
    sizeof KBuffer::codes / (kSourceTile / 16); /* bytes of 16 positions */

template <bool kLogits> struct PortableRun {
    const tamis_mqa_logits_args &a;
    PortableShared &shared;

    __device__ void publish() const {
    }

    /* The thread's 16 bytes of a tile, and their position's scales. */
    __device__ static void load(const Pages &k, int32_t tile, uint4 &x, uint32_t &word) {
        const int32_t j = tile * kSourceTile + (int)threadIdx.x / 4;
        const uint32_t page = page_at(k, j);
        x = codes_at(k, page, j, threadIdx.x & 3);
        word = scales_at(k, page, j);
    }

    /* Whether the position is wide. */
    __device__ static bool decode(KBuffer &to, uint4 x, uint32_t word) {
        const int place = threadIdx.x / 4, c = threadIdx.x & 3;
        const FastScales own = fast_scales(word);
        uint32_t code[8];
        decode_chunk(x, prmt(own.factors, 0, 0x4440u | (uint32_t)c), code);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            to.codes[place][4 * j + c] = code[j];
        }
        if (c == 0) {
            to.scale[place] = tamis_ue8m0(own.largest);
        }
        return own.wide;
    }

    /* Chains of 16 positions: lane 4 r + c has chain c of positions r and 8 + r. */
    __device__ static void chains(const uint32_t (&code)[4][8], const float2 (&weight)[4],
                                  uint32_t address, float &x, float &y) {
        uint32_t total[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t frag[4];
            load_matrix(frag, address + 32 * j);
#pragma unroll
            for (int t = 0; t < 4; t++) {
                if (j == 0) {
                    mma_signed_start(total[t], frag, code[t][0], code[t][1]);
                } else {
                    mma_signed(total[t], frag, code[t][2 * j], code[t][2 * j + 1]);
                }
            }
        }
        x = y = 0.0f;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            x = __fmaf_rn(weight[t].x, relu_of(total[t][0]), x);
            y = __fmaf_rn(weight[t].x, relu_of(total[t][2]), y);
            x = __fmaf_rn(weight[t].y, relu_of(total[t][1]), x);
            y = __fmaf_rn(weight[t].y, relu_of(total[t][3]), y);
        }
    }

    /* The warp's row at a tile: lane 4 r + c has positions 8 c + r and 32 + 8 c + r. */
    __device__ void store(int64_t line, float *out, int32_t tile, int32_t length,
                          float (&score)[2]) const {
        const int lane = threadIdx.x & 31, c = lane & 3;
        const int32_t base = tile * kSourceTile;
        if (a.numerics == TAMIS_NUMERICS_BF16) {
            score[0] = tamis_round_bf16(score[0]);
            score[1] = tamis_round_bf16(score[1]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int32_t j = base + 32 * i + 8 * c + lane / 4;
            if (base + kSourceTile > length && j >= length) {
                score[i] = __uint_as_float(TAMIS_NAN_BITS);
            }
            if (kLogits && j < length) {
                store_logit(a, line, j, score[i]);
            }
        }
        if (kLogits && !a.block_max) {
            return;
        }
        const bool upper = lane & 4;
        float best = fmaxf(upper ? score[1] : score[0],
                           __shfl_xor_sync(kAll, upper ? score[0] : score[1], 4));
        best = fmaxf(best, __shfl_xor_sync(kAll, best, 8));
        best = fmaxf(best, __shfl_xor_sync(kAll, best, 16)); /* lane i < 8: block i */
        if (a.block_size == 16) {
            best = fmaxf(best, __shfl_xor_sync(kAll, best, 1));
            if (lane < 8 && lane % 2 == 0 && base + 8 * lane < length) {
                out[tile * 4 + lane / 2] = stored_maximum(best);
            }
        } else if (lane < 8 && base + 8 * lane < length) {
            out[tile * 8 + lane] = stored_maximum(best);
        }
    }

    __device__ bool score(const Run &run, int32_t first, int32_t end) const {
        const int lane = threadIdx.x & 31, r = lane / 4, c = lane & 3;
        const int place = threadIdx.x / 32; /* of the warp's row; without one it scores nothing */
        SourceShared &s = shared.common;
        const Pages k = pages_of(a, run);
        uint4 x;
        uint32_t word, code[4][8];
        float2 weight[4];
        load(k, first, x, word);
#pragma unroll
        for (int t = 0; t < 4; t++) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                code[t][j] = word_of(s, line_of(place, 8 * t + r), j, c);
            }
            weight[t] = *(const float2 *)&s.weights[place][8 * t + 2 * c];
        }
        const int32_t length = s.length[place];
        const int64_t row = run.row + min(place, run.count - 1);
        float *const out = maxima_of_row(a.block_max, a.block_max_stride, s.rows.at, row);
        const uint32_t own =
            (uint32_t)__cvta_generic_to_shared(&shared.k[0].codes[lane & 15][lane / 16 * 4]);
        bool wide = decode(shared.k[0], x, word);
        load(k, first + 1, x, word);
        __syncthreads();
#pragma unroll 1
        for (int32_t tile = first; tile < end; tile++) {
            const int from = (tile - first) & 1;
            bool next_wide = decode(shared.k[from ^ 1], x, word);
            load(k, tile + 2, x, word);
            const uint32_t address = own + from * (uint32_t)sizeof(KBuffer);
            float score[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float p[4];
                chains(code, weight, address + 2 * i * kSixteen, p[0], p[1]);
                chains(code, weight, address + (2 * i + 1) * kSixteen, p[2], p[3]);
                score[i] = __fmul_rn(add_chains(p), shared.k[from].scale[32 * i + 8 * c + r]);
            }
            if (place < run.count) {
                store(kLogits ? s.line[place] : 0, out, tile, length, score);
            }
            wide |= tile + 1 < end && next_wide;
            __syncthreads();
        }
        return wide;
    }
};

template <bool kLogits, class Tile>
__device__ inline void source_portable(const tamis_mqa_logits_args &a, bool fill,
                                       const Tile &tile) {
    extern __shared__ __align__(1024) uint8_t memory[];
    PortableShared &shared = *(PortableShared *)memory;
    source_share<kLogits>(a, tile, shared.common, PortableRun<kLogits>{a, shared});
    if (kLogits && fill) {
        fill_logits(a);
    }
}

} // namespace tamis

static_assert(sizeof(tamis::PortableShared) == 61440, "kernels.inc");

/* Block maxima alone, and logits with or without them. Dynamic shared memory: a PortableShared. */
extern "C" __global__ void __launch_bounds__(tamis::kSourceThreads, 2)
    tamis_mqa_maxima_fast_smxx(const __grid_constant__ tamis_mqa_logits_args a, int32_t fill,
                               const __grid_constant__ tamis_row_tile tile) {
    tamis::source_portable<false>(a, fill != 0, tile);
}
extern "C" __global__ void __launch_bounds__(tamis::kSourceThreads, 2)
    tamis_mqa_logits_fast_smxx(const __grid_constant__ tamis_mqa_logits_args a, int32_t fill,
                               const __grid_constant__ tamis_score_tile tile) {
    tamis::source_portable<true>(a, fill != 0, tile);
}
