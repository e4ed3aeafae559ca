/* SPDX-License-Identifier: MIT */
/*
 * source_sm90.cu: source.cuh by Hopper's wgmma. A warpgroup multiplies 64 positions in its
 * registers by the 256 heads of eight rows in shared memory, in two products of four rows: one is
 * summed while the other runs. K is decoded there, or was before (raised_k.h). In an image without
 * sm_90a the kernels are not there.
 *
 * While wgmma runs a scheduler issues another instruction in one cycle of four, and each one more
 * costs its own. ptxas lets them overlap where a product has registers of its own, none is under
 * way where the loop turns, and what is read follows a wait that names it.
 */
#include "kernels/cuda/raised_k.h"
#include "source.cuh"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tamis {

constexpr int kGroups = 2; /* warpgroups */

/* The product of 64 positions and half kHalf of the heads: rows 2 c + kHalf. */
template <int kHalf>
__device__ inline void multiply_half(uint32_t (&d)[64], const uint32_t (&a)[4][4]) {
    hopper::multiply(d, a, (hopper::kSharedBase + kHalf * 128 * 128) / 16);
}

/* What a lane 4 r + c reads of a tile: chunk c of positions 2 r and 2 r + 1 of its warp's sixteen,
 * and their scales. */
struct RawTile {
    uint4 x, y;
    uint32_t word_x, word_y;
};

/* A tile's A fragments, and the scales of the lane's two positions. */
struct Fragments {
    uint32_t a[4][4];
    float scale[2];
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

/* The lane's first position; the next one is its second. */
__device__ inline int32_t position_of_lane(int32_t tile) {
    return tile * kSourceTile + (int)(threadIdx.x % 128 / 4) * 2;
}

/* Tiles of a run, K from its pages. next() decodes a tile and asks for the one two turns on. */
struct PagedTiles {
    Pages k;
    RawTile raw;
    uint32_t depths;

    __device__ void ask(int32_t tile) {
        const int c = threadIdx.x & 3;
        const int32_t j = position_of_lane(tile);
        const uint32_t page_x = page_at(k, j), page_y = page_at(k, j + 1);
        raw.x = codes_at(k, page_x, j, c);
        raw.y = codes_at(k, page_y, j + 1, c);
        raw.word_x = scales_at(k, page_x, j);
        raw.word_y = scales_at(k, page_y, j + 1);
    }

    __device__ void begin(int32_t tile) {
        depths = 0;
        ask(tile);
    }

    __device__ void next(Fragments &to, int32_t tile) {
        const uint32_t own = 0x4440u | threadIdx.x & 3;
        const OwnScales own_x = own_scales(raw.word_x), own_y = own_scales(raw.word_y);
        uint32_t x[8], y[8];
        depths |= own_x.depth | own_y.depth;
        decode_chunk(raw.x, raise_of(prmt(own_x.depth, 0, own)), x);
        decode_chunk(raw.y, raise_of(prmt(own_y.depth, 0, own)), y);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            to.a[j][0] = x[2 * j];
            to.a[j][1] = y[2 * j];
            to.a[j][2] = x[2 * j + 1];
            to.a[j][3] = y[2 * j + 1];
        }
        to.scale[0] = tamis_ue8m0(own_x.largest);
        to.scale[1] = tamis_ue8m0(own_y.largest);
        ask(tile + kGroups);
    }

    __device__ void seen(const Fragments &) {
    }

    __device__ bool wide() const {
        return (depths & 0xFCFCFCFCu) != 0;
    }
};

/* The same of raised K: what is asked for is what is multiplied. */
struct RaisedTiles {
    const uint4 *codes; /* the lane's first chunk of tile 0 */
    const float2 *scales;
    int32_t last; /* tile that holds the run's last position */
    uint32_t signs;

    __device__ void begin(int32_t) {
        signs = 0;
    }

    __device__ void next(Fragments &to, int32_t tile) {
        const int64_t at = min(tile, last);
        const uint4 *from = codes + at * (kSourceTile * 128 / 16);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint4 x = load_chunk(from + 16 * j);
            to.a[j][0] = x.x, to.a[j][1] = x.y, to.a[j][2] = x.z, to.a[j][3] = x.w;
        }
        const float2 scale = __ldg(scales + at * (kSourceTile / 2));
        to.scale[0] = scale.x, to.scale[1] = scale.y;
    }

    __device__ void seen(const Fragments &t) {
        signs |= __float_as_uint(t.scale[0]) | __float_as_uint(t.scale[1]);
    }

    __device__ bool wide() const {
        return signs >> 31;
    }
};

/* kMaxima, kLogits: what is written. */
template <bool kMaxima, bool kLogits> struct HopperRun {
    const tamis_mqa_logits_args &a;
    SourceShared &s;
    const tamis_raised_k &raised;

    /* s.codes is read by the asynchronous proxy. */
    __device__ void publish() const {
        if (threadIdx.x == 0 &&
            (uint32_t)__cvta_generic_to_shared(s.codes) != hopper::kSharedBase) {
            atomicOr(&s.slow, (1u << kRunRows) - 1);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }

    /* What the lane does with scores of a tile: it ends with the maximum of a block of row 2 c +
     * bit 0 of r, stored if the block begins before `bound`. */
    struct Store {
        int32_t end;      /* position where the tiles end */
        int32_t shortest; /* of the rows */
        int32_t tiles;    /* before this one the lane stores */
        int shift;
        float *to;      /* in tile 0 */
        float *line[2]; /* of scores of rows 2 c and 2 c + 1, at the lane's positions of tile 0 */
    };

    __device__ Store store_of(const Run &run, int32_t end) const {
        const int lane = threadIdx.x & 31, place = 2 * (lane & 3) + lane / 4 % 2;
        const int32_t block = position_of_lane(0) & -a.block_size;
        const bool stores = a.block_max && (a.block_size == 16 ? lane < 8 : (lane & 8) == 0);
        Store o;
        o.end = (int32_t)min((int64_t)end * kSourceTile, (int64_t)INT32_MAX);
        o.shortest = o.end;
        for (int i = 0; i < run.count; i++) {
            o.shortest = min(o.shortest, s.length[i]);
        }
        if (kLogits) { /* elsewhere positions are stored one by one */
            const uintptr_t lines = (uintptr_t)a.logits | (uintptr_t)((s.line[0] | s.stride) * 4);
            const bool pairs =
                a.logits_type == TAMIS_F32 && run.count == kRunRows && (lines & 7) == 0;
            o.shortest = pairs ? o.shortest : 0;
            o.line[0] = (float *)a.logits + s.line[2 * (lane & 3)] + position_of_lane(0);
            o.line[1] = o.line[0] + s.stride;
        }
        if (!kMaxima) {
            return o;
        }
        const int64_t begin = (int64_t)min(s.length[place], o.end) - block + kSourceTile - 1;
        o.tiles = stores ? (int32_t)(begin / kSourceTile) : 0;
        o.shift = a.block_size == 16 ? 2 : 3;
        o.to = maxima_of_row(a.block_max, a.block_max_stride, s.rows.at,
                             run.row + min(place, run.count - 1)) +
               block / a.block_size;
        return o;
    }

    /* Whether scores of a tile are rounded, or not all of visible positions that go in pairs. */
    __device__ bool is_rare(const Store &o, int32_t tile) const {
        return a.numerics == TAMIS_NUMERICS_BF16 || (tile + 1) * kSourceTile > o.shortest;
    }

    /* Where they are not, those of row 2 c + i. */
    __device__ void keep(const Store &o, int32_t tile, int i, const float (&score)[4]) const {
        float2 pair;
        pair.x = stored_logit(score[2 * i]);
        pair.y = stored_logit(score[2 * i + 1]);
        *(float2 *)(o.line[i] + (int64_t)tile * kSourceTile) = pair;
    }

    /* Then, those of row 2 c + i. */
    __device__ void finish(const Run &run, const Store &o, int32_t tile, int i,
                           float (&score)[4]) const {
        const int place = 2 * (threadIdx.x & 3) + i;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const int32_t j = position_of_lane(tile) + b;
            float &own = score[2 * i + b];
            if (a.numerics == TAMIS_NUMERICS_BF16) {
                own = tamis_round_bf16(own);
            }
            if (j >= min(s.length[place], o.end)) {
                own = kMaxima ? __uint_as_float(TAMIS_NAN_BITS) : own;
            } else if (kLogits) {
                store_logit(a, s.line[place], j, own);
            }
        }
    }

    /* score[2 i + b]: of row 2 c + i at the lane's position b. */
    __device__ void store(const Store &o, int32_t tile, const float (&score)[4]) const {
        if (!kMaxima) {
            return;
        }
        const int lane = threadIdx.x & 31;
        const float x = fmaxf(score[0], score[1]), y = fmaxf(score[2], score[3]);
        const bool odd = lane & 4;
        float best = fmaxf(odd ? y : x, __shfl_xor_sync(kAll, odd ? x : y, 4));
        best = fmaxf(best, __shfl_xor_sync(kAll, best, 8));
        if (a.block_size == 16) {
            best = fmaxf(best, __shfl_xor_sync(kAll, best, 16));
        }
        if (tile < o.tiles) {
            o.to[(int64_t)tile << o.shift] = stored_maximum(best);
        }
    }

    /* Volatile, so that they are asked for before a wait. */
    __device__ void load_weights(float4 (&w)[8], int i) const {
        const uint32_t at =
            (uint32_t)__cvta_generic_to_shared(s.weights[2 * (threadIdx.x & 3) + i]);
#pragma unroll
        for (int t = 0; t < 8; t++) {
            asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];"
                         : "=f"(w[t].x), "=f"(w[t].y), "=f"(w[t].z), "=f"(w[t].w)
                         : "r"(at + 16 * t));
        }
    }

    __device__ static void sum(const float4 (&weight)[8], const uint32_t (&d)[64],
                               const float (&scale)[2], int i, float (&score)[4]) {
        float p[2][4]; /* chains of both positions */
#pragma unroll
        for (int t = 0; t < 16; t++) {
            const float4 w = weight[t / 2];
            const float first_w = t % 2 ? w.z : w.x, second_w = t % 2 ? w.w : w.y;
#pragma unroll
            for (int b = 0; b < 2; b++) {
                float sum = t < 4 ? 0.0f : p[b][t % 4];
                sum = __fmaf_rn(first_w, relu_of(d[4 * t + 2 * b]), sum);
                p[b][t % 4] = __fmaf_rn(second_w, relu_of(d[4 * t + 2 * b + 1]), sum);
            }
        }
#pragma unroll
        for (int b = 0; b < 2; b++) {
            score[2 * i + b] = __fmul_rn(
                __fadd_rn(__fadd_rn(p[b][0], p[b][1]), __fadd_rn(p[b][2], p[b][3])), scale[b]);
        }
    }

    /* Tiles first, first + kGroups .. before end, for the warpgroup. */
    template <class Tiles>
    __device__ void score_tiles(const Run &run, int32_t first, int32_t end, Tiles &tiles) const {
        first = __shfl_sync(kAll, first, 0); /* what is the same in a warp, ptxas keeps as such */
        end = __shfl_sync(kAll, end, 0);
        const Store out = store_of(run, end);
        Fragments x, y;
        tiles.begin(first);
        tiles.next(x, first);
        tiles.next(y, first + kGroups);
        float4 w0[8], w1[8];
        load_weights(w0, 0);
        load_weights(w1, 1);
        float score[4], last[4]; /* of the tile, and of the one before */
        int32_t before = INT32_MAX;
        last[0] = last[1] = last[2] = last[3] = 0.0f;
#pragma unroll 1
        for (int32_t tile = first; tile < end; tile += 2 * kGroups) {
            uint32_t d[64], e[64];
            /* The branches also keep sums ahead of the next wait. */
            bool rare = is_rare(out, tile);
            multiply_half<0>(d, x.a);
            multiply_half<1>(e, x.a);
            store(out, before, last);
            hopper::multiply_wait<1>(d);
            sum(w0, d, x.scale, 0, score);
            if (rare) {
                finish(run, out, tile, 0, score);
            } else if (kLogits) {
                keep(out, tile, 0, score);
            }
            multiply_half<0>(d, y.a);
            hopper::multiply_wait<1>(e);
            sum(w1, e, x.scale, 1, score);
            if (rare) {
                finish(run, out, tile, 1, score);
            } else if (kLogits) {
                keep(out, tile, 1, score);
            }
            tiles.seen(x);
            multiply_half<1>(e, y.a);
            store(out, tile, score);
            rare = is_rare(out, tile + kGroups);
            tiles.next(x, tile + 2 * kGroups);
            hopper::multiply_wait<1>(d);
            sum(w0, d, y.scale, 0, last);
            if (rare) {
                finish(run, out, tile + kGroups, 0, last);
            } else if (kLogits) {
                keep(out, tile + kGroups, 0, last);
            }
            tiles.seen(y);
            const float scale[2] = {y.scale[0], y.scale[1]};
            hopper::multiply_wait<0>(e);
            tiles.next(y, tile + 3 * kGroups);
            sum(w1, e, scale, 1, last);
            if (rare) {
                finish(run, out, tile + kGroups, 1, last);
            } else if (kLogits) {
                keep(out, tile + kGroups, 1, last);
            }
            before = tile + kGroups;
        }
        store(out, before, last);
    }

    __device__ bool score(const Run &run, int32_t first, int32_t end) const {
        const int32_t tile = first + (int)threadIdx.x / 128;
        const int64_t at = raised.codes ? raised_at(run) : -1;
        if (at >= 0) {
            const int thread = threadIdx.x % 128;
            RaisedTiles tiles = {(const uint4 *)raised.codes + at * 8 + thread / 16 * 64 +
                                     thread % 16,
                                 (const float2 *)raised.scales + (at + position_of_lane(0)) / 2,
                                 (run.longest - 1) / kSourceTile, 0};
            score_tiles(run, tile, end, tiles);
            return tiles.wide();
        }
        PagedTiles tiles;
        tiles.k = pages_of(a, run);
        score_tiles(run, tile, end, tiles);
        return tiles.wide();
    }

    /* Where raised K of the run's request begins, or -1. */
    __device__ int64_t raised_at(const Run &run) const {
        const int64_t request = request_of(a.rows, run.row);
        return run.start == 0 ? raised.first[request] : -1;
    }
};

template <bool kMaxima, bool kLogits, class Tile>
__device__ inline void source_hopper(const tamis_mqa_logits_args &a, bool fill,
                                     const tamis_raised_k &raised, const Tile &tile) {
    __shared__ SourceShared s; /* not dynamic: its matrix is then a constant */
    source_share<kLogits>(a, tile, s, HopperRun<kMaxima, kLogits>{a, s, raised});
    if (kLogits && fill) {
        fill_logits(a);
    }
}

} // namespace tamis

/* Block maxima, logits, and both. */
extern "C" __global__ void __launch_bounds__(tamis::kSourceThreads, 1)
    tamis_mqa_maxima_fast_sm90(const __grid_constant__ tamis_mqa_logits_args a, int32_t fill,
                               const __grid_constant__ tamis_raised_k raised,
                               const __grid_constant__ tamis_row_tile tile) {
    tamis::source_hopper<true, false>(a, fill != 0, raised, tile);
}
extern "C" __global__ void __launch_bounds__(tamis::kSourceThreads, 1)
    tamis_mqa_logits_fast_sm90(const __grid_constant__ tamis_mqa_logits_args a, int32_t fill,
                               const __grid_constant__ tamis_raised_k raised,
                               const __grid_constant__ tamis_score_tile tile) {
    tamis::wait_for_kernel_before();
    tamis::source_hopper<false, true>(a, fill != 0, raised, tile);
}
extern "C" __global__ void __launch_bounds__(tamis::kSourceThreads, 1)
    tamis_mqa_both_fast_sm90(const __grid_constant__ tamis_mqa_logits_args a, int32_t fill,
                             const __grid_constant__ tamis_raised_k raised,
                             const __grid_constant__ tamis_score_tile tile) {
    tamis::source_hopper<true, true>(a, fill != 0, raised, tile);
}

#endif
