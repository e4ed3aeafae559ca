/* SPDX-License-Identifier: MIT */
/*
 * consume_sm90.cu: a consumer's listed blocks scored by Hopper's wgmma from pages and selected in
 * the same kernel: a warpgroup takes a row. The bits of score.cuh for rows of the exact class whose
 * spans are at most 3; the others are left to consume_fast_smxx.
 *
 * Codes become signed bytes raised by 3 - depth of their group, so four chained MMAs give the dot.
 * In an image without sm_90a the kernels are not there. Included after consume.cu.
 */
#include "consume_row.cuh"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tamis {
namespace hopper {

constexpr int kBatch = 256; /* blocks placed at a time */
constexpr int kStages = 2;  /* the turn whose codes are on their way, and the one at work */

struct PagesShared {
    RowShared<kGroupWarps> row;
    Table tables[4]; /* of a group that lies this deep below the largest */
    uint32_t places[kBatch], scales[kBatch];
    uint8_t live[kBatch]; /* bit r: position r of the block counts */
    uint4 ring[kStages][kGroupWarps][4][32];
};

/* Places blocks at .. at + kBatch - 1. Whole CTA; leaves at a barrier. */
__device__ inline void place_batch(PagesShared &s, const tamis_k_cache &k, const Listed &list,
                                   int32_t at) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (int b = 0; b < kBatch / kGroupThreads; b++) {
        const int i = threadIdx.x + b * kGroupThreads;
        const int32_t id = listed_id(list, at + i);
        const Place p = place_of(k, list, id, listed_where(list, at + i, id));
        s.places[i] = p.codes;
        s.scales[i] = p.scales;
        s.live[i] = (uint8_t)((1u << p.visible) - 1);
    }
    __syncthreads();
}

/*
 * All blocks of the row's list into the pool. Turn i of a batch: blocks 16 i .. 16 i + 15, four a
 * warp, in two tiles of two. Lane 4 r + c ends with position r of the warp's block c. Returns
 * whether one of its positions is wide.
 */
__device__ inline bool score_pages(PagesShared &s, const tamis_k_cache &k, const Listed &list,
                                   uint32_t topk, Best &best) {
    const uint32_t lane = threadIdx.x & 31, c = lane & 3, warp = threadIdx.x / 32;
    const uint8_t *const codes = opaque(k.codes + lane * 16);
    const uint8_t *const scales = opaque(k.codes + lane / 4 * 4);
    const uint32_t unit = 16u << (8 * c), below = (1u << lane) - 1;
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared(&s.ring[0][warp][0][lane]);
    constexpr uint32_t kStageBytes = sizeof s.ring[0];
    const Weights weights = load_weights(s.row.weights);
    Segment segment(s.row.pool);
    bool wide = false;
    /* A lane copies what it reads itself. */
    auto copy = [&](uint32_t to, uint32_t i) {
        const uint4 at = *(const uint4 *)&s.places[i];
        const uint32_t places[4] = {at.x, at.y, at.z, at.w};
#pragma unroll
        for (int b = 0; b < 4; b++) {
            asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to + 512 * b),
                         "l"(codes + (uint64_t)places[b] * 16));
        }
        asm volatile("cp.async.commit_group;");
    };
    auto load_word = [&](uint32_t i) {
        return __ldg((const uint32_t *)(scales + (uint64_t)s.scales[i + c] * 16));
    };
    const uint32_t tables = (uint32_t)__cvta_generic_to_shared(s.tables);
    auto table = [&](uint32_t depths, int b) {
        const uint4 t =
            load_shared(add_bytes(tables, __shfl_sync(kAll, depths, (lane & ~3u) + b), unit));
        return Table{t.x, t.y, t.z, t.w};
    };
#pragma unroll 1
    for (int32_t at = 0; at < list.count; at += kBatch) {
        place_batch(s, k, list, at);
        const uint32_t last = (uint32_t)min(kBatch, list.count - at) + 4 * warp;
        uint32_t i = 4 * warp, stage = ring;
        uint32_t word = load_word(i);
        copy(ring, i);
#pragma unroll 1
        for (; i < last; i += kTurn) {
            float p[4];
            uint32_t d0[16], d1[16];
            const TurnScales own = turn_scales(word);
            word = load_word((i + kTurn) & (kBatch - 1));
            copy(2 * ring + kStageBytes - stage,
                 (i + kTurn) & (kBatch - 1)); /* the last: in vain */
            const bool live = s.live[i + c] >> (lane / 4) & 1;
            asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
#pragma unroll
            for (int b = 0; b < 4; b += 2) {
                uint32_t(&d)[16] = b ? d1 : d0;
                uint32_t t[4][4];
                decode_pair(t, load_shared(stage + 512 * b), load_shared(stage + 512 * b + 512),
                            table(own.depths, b), table(own.depths, b + 1));
                multiply(d, t, kSharedBase / 16);
                multiply_wait<0>(d);
                weigh_signed(weights, d, p[b], p[b + 1]);
            }
            stage = 2 * ring + kStageBytes - stage;
            const bool nan = (own.largest & 0xFFu) == TAMIS_SCALE_NAN;
            wide |= live && own.wide && !nan;
            const float scale = live && !nan ? __uint_as_float(max(own.largest << 23, 0x00400000u))
                                             : __uint_as_float(TAMIS_NAN_BITS);
            segment.offer(__fmul_rn(add_chains(p), scale),
                          ((uint32_t)at + i + c) * kBlock + lane / 4, best.floor, below);
            if ((i & (kRound - 1) * kTurn) == (kRound - 1) * kTurn) {
                make_room(s.row, segment, best, topk,
                          ((uint32_t)at + i - 4 * warp + kTurn) * kBlock);
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    best.count = segment.count();
    return wide;
}

} // namespace hopper
} // namespace tamis

static_assert(sizeof(tamis::hopper::PagesShared) == TAMIS_CONSUME_ROWS_BYTES, "consume_args.h");

/* Rows one by one: all (fresh: done holds nothing yet), or those that are not done. What it leaves
 * has done 0. listed: as of consume_fast_smxx. */
extern "C" __global__ void __launch_bounds__(tamis::hopper::kGroupThreads, 5)
    tamis_consume_rows_sm90(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                            const __grid_constant__ tamis_selection out, int32_t *done,
                            int32_t fresh, const uint32_t *listed) {
    tamis::wait_for_kernel_before();
    if (listed && *listed == 0) {
        return;
    }
    extern __shared__ __align__(1024) uint8_t memory[];
    auto &s = *(tamis::hopper::PagesShared *)memory;
    if (threadIdx.x < 4) { /* seen past the barrier after a row's query */
        s.tables[threadIdx.x] = tamis::hopper::raised_table(8u >> threadIdx.x);
    }
#pragma unroll 1
    for (int64_t r = blockIdx.x; r < a.rows.count; r += gridDim.x) {
        if (!fresh && done[r]) {
            continue;
        }
        const tamis::Listed list = tamis::listed_of(a, r);
        const bool whole =
            tamis::hopper::consume_row(s.row, a, out, list, r, [&](tamis::hopper::Best &best) {
                return tamis::hopper::score_pages(s, a.k, list, (uint32_t)out.topk, best);
            });
        __syncthreads(); /* all have read done[r], and the next row writes its query */
        if (threadIdx.x == 0) {
            done[r] = whole;
        }
    }
}

#endif
