/* SPDX-License-Identifier: MIT */
/*
 * raised.cuh: codes as signed bytes raised by 3 - depth of their group, and the weighted sum of
 * what integer MMAs make of them. What can leave the ALU pipe does, since wgmma holds the FMA pipe
 * up, but not that one: 16-bit shifts and sums of bytes are integer dot products.
 */
#ifndef TAMIS_CUDA_RAISED_CUH
#define TAMIS_CUDA_RAISED_CUH

#include "score_fast.cuh"

namespace tamis {
namespace hopper {

constexpr float kWeightUnit = 16384.0f; /* 2^22 of relu_bits / 2^8 of doubled, raised codes */

/* max(0, s) * 2^-22 of an integer |s| <= 2^22: a negative one is a NaN, which saturates to 0. */
__device__ inline float relu_bits(uint32_t s) {
    float d;
    asm("mul.rn.sat.f32 %0,%1,%2;" : "=f"(d) : "f"(__uint_as_float(s)), "f"(0x1p127f));
    return d;
}

/* 16 bytes of shared memory. */
__device__ inline uint4 load_shared(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from));
    return x;
}

/* x >> 16, off the pipe that decodes. */
__device__ inline uint32_t upper_half(uint32_t x) {
    uint32_t d;
    asm("dp2a.lo.u32.u32 %0,%1,%2,%3;" : "=r"(d) : "r"(x), "r"(0x0100u), "r"(0u));
    return d;
}

/* `to` and the bytes of x, each times that of `by`. */
__device__ inline uint32_t add_bytes(uint32_t to, uint32_t x, uint32_t by) {
    uint32_t d;
    asm("dp4a.u32.u32 %0,%1,%2,%3;" : "=r"(d) : "r"(x), "r"(by), "r"(to));
    return d;
}

/* Bits of `yes` where mask has ones, else of `no`. */
__device__ inline float choose(uint32_t mask, float yes, float no) {
    uint32_t d;
    asm("lop3.b32 %0,%1,%2,%3,0xCA;"
        : "=r"(d)
        : "r"(mask), "r"(__float_as_uint(yes)), "r"(__float_as_uint(no)));
    return __uint_as_float(d);
}

/* A lane's x through a shuffle, since the compiler makes anew every time what it can. */
__device__ inline uint32_t kept(uint32_t x) {
    return __shfl_sync(kAll, x, (int)(threadIdx.x & 31));
}

/* add_chains by masks that a lane keeps. */
struct Chains {
    uint32_t odd, upper;

    __device__ Chains()
        : odd(kept(0u - (threadIdx.x & 1))), upper(kept(0u - (threadIdx.x >> 1 & 1))) {
    }
    __device__ float add(const float (&p)[4]) const {
        const float x =
            __fadd_rn(choose(odd, p[1], p[0]), __shfl_xor_sync(kAll, choose(odd, p[0], p[1]), 1));
        const float y =
            __fadd_rn(choose(odd, p[3], p[2]), __shfl_xor_sync(kAll, choose(odd, p[2], p[3]), 1));
        return __fadd_rn(choose(upper, y, x), __shfl_xor_sync(kAll, choose(upper, x, y), 2));
    }
};

struct TurnScales {
    uint32_t largest, depths, wide; /* largest: in both halves; depths: a byte each; wide: not 0 */
};

__device__ inline TurnScales turn_scales(uint32_t word) {
    TurnScales s;
    uint32_t pair = __vmaxu2(prmt(word, 0, 0x4240), prmt(word, 0, 0x4341));
    pair = __vmaxu2(pair, prmt(pair, 0, 0x1032));
    uint32_t depth = pair * 0x0101u - word;
    s.largest = pair;
    s.wide = depth & 0xFCFCFCFCu;
    s.depths = depth & 0x03030303u;
    return s;
}

/* Magnitudes raised, and 128 less them. */
__device__ inline Table raised_table(uint32_t factor) {
    Table t;
    t.low = kLow * factor;
    t.high = kHigh * factor;
    t.less_low = 0x80808080u + (0u - kLow) * factor;
    t.less_high = 0x80808080u + (0u - kHigh) * factor;
    return t;
}

__device__ inline uint32_t decode_half(const Table &t, uint32_t x, uint32_t bare) {
    return decode4_biased(t, x, bare) ^ 0x80808080u;
}

/* The lane's 16 bytes of two blocks; half(table, codes, bare): four of them, of the low half. */
template <class Half>
__device__ inline void decode_pair(uint32_t (&a)[4][4], const uint4 &x, const uint4 &y,
                                   const Table &tx, const Table &ty, Half half) {
    const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t bx = xs[j] & 0x77777777u, by = ys[j] & 0x77777777u;
        a[j][0] = half(tx, xs[j], bx);
        a[j][1] = half(ty, ys[j], by);
        a[j][2] = half(tx, upper_half(xs[j]), upper_half(bx));
        a[j][3] = half(ty, upper_half(ys[j]), upper_half(by));
    }
}

/* As signed bytes, of raised_table. */
__device__ inline void decode_pair(uint32_t (&a)[4][4], uint4 x, uint4 y, const Table &tx,
                                   const Table &ty) {
    decode_pair(a, x, y, tx, ty, decode_half);
}

/* The lane's chain of both positions. */
struct Weights {
    float w[8];
};

__device__ inline Weights load_weights(const float (&weights)[4][8]) {
    const float4 low = *(const float4 *)&weights[threadIdx.x & 3][0];
    const float4 high = *(const float4 *)&weights[threadIdx.x & 3][4];
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ inline void weigh_signed(const Weights &weights, const uint32_t *total, float &sum_x,
                                    float &sum_y) {
    const float(&w)[8] = weights.w;
    sum_x = sum_y = 0.0f;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        sum_x = __fmaf_rn(w[2 * t], relu_bits(total[4 * t]), sum_x);
        sum_y = __fmaf_rn(w[2 * t], relu_bits(total[4 * t + 2]), sum_y);
        sum_x = __fmaf_rn(w[2 * t + 1], relu_bits(total[4 * t + 1]), sum_x);
        sum_y = __fmaf_rn(w[2 * t + 1], relu_bits(total[4 * t + 3]), sum_y);
    }
}

} // namespace hopper
} // namespace tamis

#endif
