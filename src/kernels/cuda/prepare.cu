/* SPDX-License-Identifier: MIT */
/*
 * prepare.cu: q_prepare and k_insert. A warp does one head or key: lane l holds elements l, l + 32,
 * .., so a scale group is a warp wide and a rotated pair lies in neighbouring lanes. Products and
 * sums are written out, never contracted.
 */
#include "common.cuh"

namespace tamis {

/* Rotates the last 64 dims; x[g] is element 32 g + lane. */
template <int GROUPS>
__device__ inline void rotate(float (&x)[GROUPS], const tamis_rope &rope, int64_t position) {
    const int lane = threadIdx.x & 31;
    position = clamp(position, 0, rope.positions - 1);
#pragma unroll
    for (int g = GROUPS - 2; g < GROUPS; g++) {
        int64_t at = position * rope.row_stride + (32 * (g - (GROUPS - 2)) + lane) / 2;
        float c = tamis_load_float(rope.table, rope.type, at);
        float s = tamis_load_float(rope.table, rope.type, at + 32);
        float other = __shfl_xor_sync(kAll, x[g], 1);
        float product = __fmul_rn(other, s);
        x[g] = lane & 1 ? __fadd_rn(__fmul_rn(x[g], c), product)
                        : __fsub_rn(__fmul_rn(x[g], c), product);
    }
}

/* Rounds to bf16, quantises and stores a row. */
template <int GROUPS>
__device__ inline void store_row(const float (&x)[GROUPS], uint8_t *codes, uint8_t *scales) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float y = tamis_round_bf16(x[g]);
        uint32_t amax = __reduce_max_sync(kAll, __float_as_uint(y) & 0x7FFFFFFFu);
        bool finite = amax < 0x7F800000u;
        uint32_t scale = finite ? tamis_scale_from_amax(__uint_as_float(amax)) : TAMIS_SCALE_NAN;
        float inverse = __uint_as_float((254u - (finite ? scale : 127u)) << 23);
        uint32_t code = finite ? tamis_e2m1_from_f32(__fmul_rn(y, inverse)) : 0;
        uint32_t high = __shfl_down_sync(kAll, code, 1);
        if ((lane & 1) == 0) {
            codes[16 * g + lane / 2] = (uint8_t)(code | high << 4);
        }
        if (lane == 0) {
            scales[g] = (uint8_t)scale;
        }
    }
}

/* w * scale. A NaN keeps its payload, quieted, as CPUs have it. */
__device__ inline float scaled(float w, float scale) {
    return tamis_is_nan(w) ? __uint_as_float(__float_as_uint(w) | 0x00400000u)
                           : __fmul_rn(w, scale);
}

template <int GROUPS> __device__ inline void q_prepare(const tamis_q_prepare_args &a) {
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32;
    const float scale = (float)(1.0 / sqrt((double)a.head_dim * a.heads));
    int64_t first = (int64_t)blockIdx.x * warps + threadIdx.x / 32;
    for (int64_t i = first; i < a.tokens * a.heads; i += (int64_t)gridDim.x * warps) {
        int64_t t = i / a.heads, h = i % a.heads;
        const uint16_t *q = a.q + t * a.q_token_stride + h * a.q_head_stride;
        float x[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            x[g] = tamis_f32_from_bf16(q[32 * g + lane]);
        }
        rotate(x, a.rope, a.positions[t]);
        store_row(x, a.codes + t * a.codes_row_stride + h * a.codes_head_stride,
                  a.scales + t * a.scales_row_stride + h * a.scales_head_stride);
        if (a.weights_in && lane == 0) {
            float w =
                tamis_load_float(a.weights_in, a.weights_in_type, t * a.weights_in_stride + h);
            tamis_store_float(a.weights_out, a.weights_out_type, t * a.weights_out_stride + h,
                              scaled(w, scale));
        }
    }
}

/* 1 / sqrt(mean square + eps): the sum folds halves, as the specification fixes. */
template <int GROUPS> __device__ inline float inverse_rms(const float (&x)[GROUPS], float eps) {
    float p = __fmul_rn(x[0], x[0]);
#pragma unroll
    for (int g = 1; g < GROUPS; g++) {
        p = __fadd_rn(p, __fmul_rn(x[g], x[g]));
    }
#pragma unroll
    for (int n = 16; n > 0; n /= 2) {
        p = __fadd_rn(p, __shfl_xor_sync(kAll, p, n));
    }
    p = __shfl_sync(kAll, p, 0);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(p, 32.0f * GROUPS), eps)));
}

template <int GROUPS> __device__ inline void k_insert(const tamis_k_insert_args &a) {
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32;
    int64_t slots = a.k.size * (a.k.layout == TAMIS_K_MXFP4_PAGE ? a.k.page_size : 1);
    int64_t first = (int64_t)blockIdx.x * warps + threadIdx.x / 32;
    for (int64_t t = first; t < a.tokens; t += (int64_t)gridDim.x * warps) {
        int64_t slot = a.slots[t], position = a.positions[t];
        if (slot < 0 || slot >= slots || position < 0 || (position + 1) % a.ratio != 0) {
            continue;
        }
        float x[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            x[g] = tamis_f32_from_bf16(a.x[t * a.x_stride + 32 * g + lane]);
        }
        float r = inverse_rms(x, *a.eps);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            float weight = tamis_load_float(a.norm_weight, a.norm_weight_type, 32 * g + lane);
            x[g] = tamis_round_bf16(__fmul_rn(__fmul_rn(x[g], r), weight));
        }
        rotate(x, a.rope, position / a.ratio * a.ratio);
        tamis_k_row row = tamis_k_at_slot(&a.k, slot);
        store_row(x, row.codes, row.scales);
    }
}

} // namespace tamis

extern "C" __global__ void __launch_bounds__(128)
    tamis_q_prepare_smxx(const __grid_constant__ tamis_q_prepare_args a) {
    if (a.head_dim == 128) {
        tamis::q_prepare<4>(a);
    } else {
        tamis::q_prepare<2>(a);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    tamis_k_insert_smxx(const __grid_constant__ tamis_k_insert_args a) {
    if (a.k.head_dim == 128) {
        tamis::k_insert<4>(a);
    } else {
        tamis::k_insert<2>(a);
    }
}
