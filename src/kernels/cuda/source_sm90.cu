/* SPDX-License-Identifier: MIT */
/*
 * source_sm90.cu: source.cuh by Hopper's wgmma. A warpgroup multiplies 64 positions, decoded in its
 * registers, by the 256 heads of eight rows in shared memory; two warpgroups take turns, one at its
 * sums while the other multiplies. In an image without sm_90a the kernels are not there.
 */
#include "kernels/cuda/raised_k.h"
#include "source.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tamis {

constexpr int kGroups = 2; /* warpgroups */

/* K-major lines of 128 bytes in the 128-byte swizzle, eight every 1,024 bytes; from step j's 32
 * bytes on. `at`: address / 16, below 2^14. */
__device__ inline uint64_t matrix_of(uint32_t at, int j) {
    uint64_t matrix;
    asm("mov.b64 %0,{%1,%2};" : "=l"(matrix) : "r"((at | 1u << 16) + 2 * j), "r"(64 | 1 << 30));
    return matrix;
}

#define TAMIS_R4(d, i)  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define TAMIS_R16(d, i) TAMIS_R4(d, i), TAMIS_R4(d, i + 4), TAMIS_R4(d, i + 8), TAMIS_R4(d, i + 12)
#define TAMIS_R64(d, i)                                                                            \
    TAMIS_R16(d, i), TAMIS_R16(d, i + 16), TAMIS_R16(d, i + 32), TAMIS_R16(d, i + 48)
#define TAMIS_R128(d) TAMIS_R64(d, 0), TAMIS_R64(d, 64)

/* d (+)= a times 32 bytes of each of 256 heads. */
template <int kAdd>
__device__ inline void multiply_async(uint32_t (&d)[128], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},"
                 "{%128,%129,%130,%131},%132,%133;"
                 : TAMIS_R128(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd));
}

__device__ inline void multiply_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void multiply_end() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ inline void multiply_wait(uint32_t (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" : TAMIS_R128(d)::"memory");
}

/* What a lane reads of a tile: chunk c of positions r and 8 + r of its warp's sixteen, and their
 * scales. */
struct RawTile {
    uint4 x, y;
    uint32_t word_x, word_y;
};

/* 8 >> depth, 0 for any depth above 3. */
__device__ inline uint32_t raise_of(uint32_t depth) {
    uint32_t d;
    asm("shr.b32 %0,%1,%2;" : "=r"(d) : "r"(8), "r"(depth));
    return d;
}

/* A position's scales: the largest byte, and each one's distance to it. */
struct OwnScales {
    uint32_t largest, depth;
};

__device__ inline OwnScales own_scales(uint32_t word) {
    OwnScales s;
    uint32_t pair = __vmaxu2(word & 0x00FF00FFu, word >> 8 & 0x00FF00FFu);
    s.largest = max(pair & 0xFFFFu, pair >> 16);
    s.depth = s.largest * 0x01010101u - word;
    return s;
}

template <bool kLogits> struct HopperRun {
    const tamis_mqa_logits_args &a;
    SourceShared &s;

    /* s.codes is read by the asynchronous proxy. */
    __device__ void publish() const {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }

    /* The lane's first position; 8 on is its second. */
    __device__ static int32_t position_at(int32_t tile) {
        const int lane = threadIdx.x & 31;
        return tile * kSourceTile + (int)(threadIdx.x / 32 % 4) * 16 + lane / 4;
    }

    __device__ static RawTile load(const Pages &k, int32_t tile) {
        const int c = threadIdx.x & 3;
        const int32_t j = position_at(tile);
        const uint32_t page_x = page_at(k, j), page_y = page_at(k, j + 8);
        RawTile raw;
        raw.x = codes_at(k, page_x, j, c);
        raw.y = codes_at(k, page_y, j + 8, c);
        raw.word_x = scales_at(k, page_x, j);
        raw.word_y = scales_at(k, page_y, j + 8);
        return raw;
    }

    __device__ static void decode(const RawTile &raw, uint32_t depth_x, uint32_t depth_y,
                                  uint32_t (&to)[4][4]) {
        const uint32_t own = 0x4440u | threadIdx.x & 3;
        uint32_t x[8], y[8];
        decode_chunk(raw.x, raise_of(prmt(depth_x, 0, own)), x);
        decode_chunk(raw.y, raise_of(prmt(depth_y, 0, own)), y);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            to[j][0] = x[2 * j];
            to[j][1] = y[2 * j];
            to[j][2] = x[2 * j + 1];
            to[j][3] = y[2 * j + 1];
        }
    }

    /* score[2 i + b]: of row 2 c + i at the lane's position b. */
    __device__ void store(const Run &run, int32_t tile, int32_t shortest, float (&score)[4],
                          float *maxima) const {
        const int lane = threadIdx.x & 31, c = lane & 3;
        if (a.numerics == TAMIS_NUMERICS_BF16) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                score[i] = tamis_round_bf16(score[i]);
            }
        }
        if (kLogits) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int place = 2 * c + i / 2;
                const int32_t j = position_at(tile) + 8 * (i % 2);
                if (j < s.length[place]) {
                    store_logit(a, run.row + place, j, score[i]);
                }
            }
            if (!a.block_max) {
                return;
            }
        }
        if ((tile + 1) * kSourceTile > shortest) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int32_t j = position_at(tile) + 8 * (i % 2);
                score[i] = j < s.length[2 * c + i / 2] ? score[i] : __uint_as_float(TAMIS_NAN_BITS);
            }
        }
        /* Bits 0 and 1 of r choose which of four the lane ends with: row 2 c + bit 0, block bit 1.
         */
        const bool odd = lane & 4, upper = lane & 8;
        float x =
            fmaxf(odd ? score[2] : score[0], __shfl_xor_sync(kAll, odd ? score[0] : score[2], 4));
        float y =
            fmaxf(odd ? score[3] : score[1], __shfl_xor_sync(kAll, odd ? score[1] : score[3], 4));
        float best = fmaxf(upper ? y : x, __shfl_xor_sync(kAll, upper ? x : y, 8));
        best = fmaxf(best, __shfl_xor_sync(kAll, best, 16));
        const int32_t block = tile * kSourceTile + (int)(threadIdx.x / 32 % 4) * 16 + (lane & 8);
        if (a.block_size == 16) {
            best = fmaxf(best, __shfl_xor_sync(kAll, best, 8));
            if (lane < 8 && block < s.length[2 * c + lane / 4 % 2]) {
                maxima[block / 16] = stored_maximum(best);
            }
        } else if (lane < 16 && block < s.length[2 * c + lane / 4 % 2]) {
            maxima[block / 8] = stored_maximum(best);
        }
    }

    __device__ bool score(const Run &run, int32_t first, int32_t end) const {
        const int lane = threadIdx.x & 31, c = lane & 3;
        float *maxima = a.block_max + (run.row + 2 * c + lane / 4 % 2) * a.block_max_stride;
        const Pages k = pages_of(a, run);
        const uint32_t q = (uint32_t)__cvta_generic_to_shared(s.codes) / 16;
        float4 weight[2][8];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            weight[i / 8][i % 8] = *(const float4 *)&s.weights[2 * c + i / 8][4 * (i % 8)];
        }
        int32_t shortest = run.longest;
        for (int i = 0; i < run.count; i++) {
            shortest = min(shortest, s.length[i]);
        }
        int32_t tile = first + (int)threadIdx.x / 128;
        RawTile raw = load(k, tile);
        uint32_t depths = 0;
#pragma unroll 1
        for (; tile < end; tile += kGroups) {
            uint32_t d[128], x[4][4];
            const OwnScales own_x = own_scales(raw.word_x), own_y = own_scales(raw.word_y);
            depths |= own_x.depth | own_y.depth;
            decode(raw, own_x.depth, own_y.depth, x);
            multiply_begin();
            multiply_async<0>(d, x[0], matrix_of(q, 0));
            multiply_async<1>(d, x[1], matrix_of(q, 1));
            multiply_async<1>(d, x[2], matrix_of(q, 2));
            multiply_async<1>(d, x[3], matrix_of(q, 3));
            multiply_end();
            raw = load(k, tile + kGroups);
            multiply_wait(d);
            float score[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float p[2][4]; /* chains of both positions */
#pragma unroll
                for (int t = 0; t < 16; t++) {
                    const uint32_t *total = &d[64 * i + 4 * t];
                    const float4 w = weight[i][t / 2];
                    const float first_w = t % 2 ? w.z : w.x, second_w = t % 2 ? w.w : w.y;
#pragma unroll
                    for (int b = 0; b < 2; b++) {
                        float sum = t < 4 ? 0.0f : p[b][t % 4];
                        sum = __fmaf_rn(first_w, relu_of(total[2 * b]), sum);
                        p[b][t % 4] = __fmaf_rn(second_w, relu_of(total[2 * b + 1]), sum);
                    }
                }
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    score[2 * i + b] = __fmul_rn(
                        __fadd_rn(__fadd_rn(p[b][0], p[b][1]), __fadd_rn(p[b][2], p[b][3])),
                        tamis_ue8m0(b ? own_y.largest : own_x.largest));
                }
            }
            store(run, tile, shortest, score, maxima);
        }
        return (depths & 0xFCFCFCFCu) != 0;
    }
};

template <bool kLogits>
__device__ inline void source_hopper(const tamis_mqa_logits_args &a, bool fill) {
    __shared__ SourceShared s; /* not dynamic: its matrix is then a constant */
    source_share<kLogits>(a, s, HopperRun<kLogits>{a, s});
    if (kLogits && fill) {
        fill_logits(a);
    }
}

} // namespace tamis

/* Block maxima alone, and logits with or without them. */
extern "C" __global__ void __launch_bounds__(tamis::kSourceThreads, 1)
    tamis_mqa_maxima_fast_sm90(const __grid_constant__ tamis_mqa_logits_args a, int32_t fill,
                               const __grid_constant__ tamis_raised_k raised) {
    (void)raised;
    tamis::source_hopper<false>(a, fill != 0);
}
extern "C" __global__ void __launch_bounds__(tamis::kSourceThreads, 1)
    tamis_mqa_logits_fast_sm90(const __grid_constant__ tamis_mqa_logits_args a, int32_t fill,
                               const __grid_constant__ tamis_raised_k raised) {
    (void)raised;
    tamis::source_hopper<true>(a, fill != 0);
}

#endif
