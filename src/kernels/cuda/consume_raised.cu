/* SPDX-License-Identifier: MIT */
/*
 * consume_raised.cu: a consumer's rows whose K was decoded before (raised_k.h), by Hopper's wgmma:
 * fragments of A come from memory straight into registers. A warpgroup takes a row, or, where rows
 * are few, two or four take a part of one each; four share a multiprocessor, and each has two
 * tiles' products under way, then the loads of the next two. Included after consume_sm90.cu.
 */
#include "consume_row.cuh"
#include "kernels/cuda/raised_k.h"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tamis {
namespace hopper {

constexpr int kRingTurns = 16;              /* turns whose blocks are placed */
constexpr int kBatchTurns = kRingTurns / 2; /* placed at a time: a block a lane */
constexpr uint32_t kNoPlace = 0x7FFFFFFFu;

template <int kWarps> struct RaisedShared {
    RowShared<kWarps> row;
    /* Of a warp's turn and half warp: first positions of both tiles' blocks, of any where there is
     * none; then the same, kNoPlace where there is none. */
    uint4 places[kWarps][kRingTurns][2];
    struct { /* of the list, which few instructions ask for */
        const int32_t *blocks;
        int32_t count, length, first;
    } list;
};

/* The fragments of a tile: the lane's of the block at `place`. Not before a product that reads the
 * same registers was waited for. */
__device__ inline void load_tile(uint32_t (&tile)[4][4], const uint8_t *codes, uint32_t place) {
    const uint8_t *at = codes + (uint64_t)place * 128;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3},[%4];"
                     : "=r"(tile[j][0]), "=r"(tile[j][1]), "=r"(tile[j][2]), "=r"(tile[j][3])
                     : "l"(at + 256 * j));
    }
}

/* Turns that each warpgroup takes, one after another; the last may be none of the row's. */
template <int kWarps> __device__ inline int32_t turns_of(int32_t blocks) {
    constexpr int kAtOnce = kTurn * kWarps / kGroupWarps;
    return (blocks + kAtOnce - 1) / kAtOnce;
}

/*
 * Rows that begin together are at the same turn for long. Where their lists name most of what they
 * see, so that all load the same blocks, they wait for the same lines, which nobody loaded before:
 * there a row that is `turned` begins at a turn of its multiprocessor's, and its first follows
 * behind its last. Where rows are many, or four warpgroups wait, that costs more than it saves.
 */
template <bool kTurned, int kWarps>
__device__ inline int32_t first_turn(const RaisedShared<kWarps> &s, int32_t turns) {
    uint32_t multiprocessor = 0;
    if (kTurned && s.list.length <= 2 * kBlock * s.list.count) {
        asm("mov.u32 %0,%%smid;" : "=r"(multiprocessor));
    }
    return (int32_t)(multiprocessor % (uint32_t)turns);
}

/* The blocks that a warp takes of its warpgroup's turns. */
template <int kWarps, bool kTurned> struct Placer {
    RaisedShared<kWarps> &s;
    int32_t next, id; /* of the lane's block in the batch that is placed next */

    __device__ int32_t id_at(int32_t i) const {
        return i < s.list.count ? __ldg(s.list.blocks + i) : -1;
    }
    __device__ void turn_back() {
        if (kTurned) {
            const int32_t all = kTurn * turns_of<kWarps>(s.list.count);
            next -= next >= all * (int32_t)(threadIdx.x / kGroupThreads + 1) ? all : 0;
        }
    }
    /* start: of the warp's in its first turn. */
    __device__ Placer(RaisedShared<kWarps> &shared, int32_t start) : s(shared) {
        const int32_t lane = threadIdx.x & 31;
        next = start + kTurn * (lane / 4) + (lane & 3);
        turn_back();
        id = id_at(next);
    }
    /* Those of kBatchTurns turns, from ring place `turn` on. Whole warp. */
    __device__ void place(uint32_t turn) {
        const uint32_t lane = threadIdx.x & 31, first = (uint32_t)s.list.first;
        const bool in = (uint32_t)id <= (uint32_t)(s.list.length - 1) / kBlock;
        const uint32_t place = first + kBlock * (uint32_t)id;
        uint32_t *to =
            (uint32_t *)&s.places[threadIdx.x / 32][turn + lane / 4][lane >> 1 & 1] + (lane & 1);
        to[0] = in ? place : first;
        to[2] = in ? place : kNoPlace;
        next += kTurn * kBatchTurns;
        turn_back();
        id = id_at(next);
        __syncwarp();
    }
};

/*
 * All blocks of the row's list into the pool. Turn i: blocks 16 i .. 16 i + 15, four a warp. Lane
 * l has in tile t of a turn rows of the product for positions 2 p and 2 p + 1 of block 2 (l / 16) +
 * t of the four, p = l / 4 % 4, and ends with position 2 p + (l & 1) of tile l >> 1 & 1. Returns
 * whether one of its positions is wide.
 */
template <int kWarps, bool kTurned>
__device__ inline bool score_raised(RaisedShared<kWarps> &s, const tamis_raised_k &raised,
                                    uint32_t topk, Best &best) {
    constexpr uint32_t kGroups = kWarps / kGroupWarps, kColumns = kTurn * kBlock;
    const uint32_t lane = threadIdx.x & 31, half = lane >> 4, warp = threadIdx.x / 32;
    const uint32_t own = 2 * (lane / 4 & 3) + (lane & 1), below = (1u << lane) - 1;
    const uint8_t *const codes = opaque(raised.codes + (lane & 15) * 16);
    const uint8_t *const scales = opaque((const uint8_t *)(raised.scales + own));
    const int32_t end = s.list.first + s.list.length - (int32_t)own;
    const Chains chains;
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared(&s.places[warp][0][half]);
    const int32_t turns = turns_of<kWarps>(s.list.count);
    const int32_t start = kGroups == 1 ? 0 : (int32_t)(warp / kGroupWarps) * turns * kTurn;
    const int32_t turn = first_turn<kTurned>(s, turns);
    const uint32_t first = (uint32_t)(start + kTurn * turn) + 4 * (warp % kGroupWarps);
    uint32_t column = (first + 2 * half + (lane >> 1 & 1)) * kBlock + own;
    uint32_t wide = 0, slot = 0;
    Segment segment(s.row.pool);
    const Weights weights = load_weights(s.row.weights);
    auto load_scale = [&](const uint4 &at) {
        const uint32_t place =
            __float_as_uint(choose(chains.upper, __uint_as_float(at.w), __uint_as_float(at.z)));
        float scale = __uint_as_float(TAMIS_NAN_BITS); /* which no floor lets pass */
        if ((int32_t)place < end) {
            scale = __ldg((const float *)(scales + (uint64_t)place * 4));
        }
        return scale;
    };
    Placer<kWarps, kTurned> placer(s, (int32_t)first);
    placer.place(0);
    placer.place(kBatchTurns);
    uint4 at = load_shared(ring);
    uint32_t tile0[4][4], tile1[4][4];
    load_tile(tile0, codes, at.x);
    load_tile(tile1, codes, at.y);
    float coming = load_scale(at);
#pragma unroll 1
    for (int32_t left = turns; left > 0; left--) {
        uint32_t d0[16], d1[16];
        float p[4];
        const float scale = coming;
        slot = (slot + sizeof s.places[0][0]) % sizeof s.places[0];
        multiply(d0, tile0, kSharedBase / 16);
        multiply(d1, tile1, kSharedBase / 16);
        at = load_shared(ring + slot);
        multiply_wait<1>(d0);
        load_tile(tile0, codes, at.x);
        coming = load_scale(at);
        weigh_signed(weights, d0, p[0], p[1]);
        multiply_wait<0>(d1);
        load_tile(tile1, codes, at.y);
        weigh_signed(weights, d1, p[2], p[3]);
        segment.offer(__fmul_rn(chains.add(p), scale), column, best.floor, below);
        wide |= __float_as_uint(scale); /* its sign */
        column += kColumns;
        if (kTurned && left == turn + 1) {
            column -= (uint32_t)turns_of<kWarps>(s.list.count) * kColumns;
        }
        if (slot % (kRound * sizeof s.places[0][0]) == 0) {
            const uint32_t seen = kTurned ? (uint32_t)(turns_of<kWarps>(s.list.count) - left + 1)
                                          : (column - (uint32_t)start * kBlock) / kColumns;
            make_room(s.row, segment, best, topk, seen * (kGroups * kColumns));
            if (slot % (sizeof s.places[0] / 2) == 0) {
                placer.place((slot / sizeof s.places[0][0]) ^ kBatchTurns);
            }
        }
    }
    best.count = segment.count();
    return wide >> 31;
}

/* What a row takes that is scored from pages after all. */
struct SlowRow {
    PoolShared pool;
    FastQuery query;
    uint32_t taken[TAMIS_CONSUME_MAX_STEPS], tied[TAMIS_CONSUME_MAX_STEPS];
};

/* Row r by the first kFastThreads of the CTA, its keys to its line of a.logits. Apart, for the
 * registers that it takes. */
__device__ __noinline__ void consume_slowly(const tamis_sparse_mqa_logits_args &a,
                                            const tamis_selection &out, int64_t r, SlowRow &s) {
    clear_bins(s.pool);
    consume_fast(a, out, r, (uint32_t *)a.logits + r * a.logits_stride, {s.taken, s.tied}, s.pool,
                 s.query);
}

/*
 * Rows whose request has decoded K; nothing is to be done for those of the dense route. The rest is
 * left with done 0. done NULL, of several warpgroups: it is done here from pages, which is for
 * steps that leave hardly any, since a kernel behind this one costs 3 to 4 us.
 */
template <int kWarps, bool kTurned>
__device__ inline void consume_raised(const tamis_sparse_mqa_logits_args &a,
                                      const tamis_selection &out, int32_t *done,
                                      const tamis_raised_k &raised) {
    extern __shared__ __align__(1024) uint8_t memory[];
    auto &s = *(RaisedShared<kWarps> *)memory;
    const int64_t r = blockIdx.x;
    wait_for_kernel_before();
    if (raised.dense && raised.dense[r] > 0) {
        if (done && threadIdx.x == 0) {
            done[r] = 1;
        }
        return;
    }
    const Listed list = listed_of(a, r);
    const int64_t request = request_of(a.rows, r);
    const int32_t first = raised.first[request];
    bool whole = false;
    if (list.count == 0 || (first >= 0 && list.length <= raised.length[request])) {
        if (threadIdx.x == 0) {
            s.list.blocks = list.blocks;
            s.list.count = list.count;
            s.list.length = list.length;
            s.list.first = first;
        }
        whole = consume_row(s.row, a, out, list, r, [&](Best &best) {
            return score_raised<kWarps, kTurned>(s, raised, (uint32_t)out.topk, best);
        });
    }
    if (done && threadIdx.x == 0) {
        done[r] = whole;
    }
    if (kWarps > kGroupWarps && !done && !whole) {
        __syncthreads(); /* shared memory was the other form's */
        if (threadIdx.x < kFastThreads) {
            consume_slowly(a, out, r, *(SlowRow *)memory);
        }
    }
}

static_assert(sizeof(RaisedShared<4>) == TAMIS_CONSUME_RAISED_BYTES, "consume_args.h");
static_assert(sizeof(RaisedShared<8>) == TAMIS_CONSUME_RAISED2_BYTES, "consume_args.h");
static_assert(sizeof(SlowRow) <= sizeof(RaisedShared<8>), "it lies there");
static_assert(sizeof(RaisedShared<16>) == TAMIS_CONSUME_RAISED4_BYTES, "consume_args.h");

} // namespace hopper
} // namespace tamis

extern "C" __global__ void __launch_bounds__(128, 4)
    tamis_consume_raised_sm90(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                              const __grid_constant__ tamis_selection out, int32_t *done,
                              const __grid_constant__ tamis_raised_k raised) {
    tamis::hopper::consume_raised<4, false>(a, out, done, raised);
}

extern "C" __global__ void __launch_bounds__(128, 4)
    tamis_consume_raised1_sm90(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                               const __grid_constant__ tamis_selection out, int32_t *done,
                               const __grid_constant__ tamis_raised_k raised) {
    tamis::hopper::consume_raised<4, true>(a, out, done, raised);
}

extern "C" __global__ void __launch_bounds__(256, 2)
    tamis_consume_raised2_sm90(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                               const __grid_constant__ tamis_selection out, int32_t *done,
                               const __grid_constant__ tamis_raised_k raised) {
    tamis::hopper::consume_raised<8, true>(a, out, done, raised);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    tamis_consume_raised4_sm90(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                               const __grid_constant__ tamis_selection out, int32_t *done,
                               const __grid_constant__ tamis_raised_k raised) {
    tamis::hopper::consume_raised<16, false>(a, out, done, raised);
}

#endif
