/* SPDX-License-Identifier: MIT */
/*
 * decode_sm90.cu: decode.cu by Hopper's wgmma: a warpgroup scores 16 blocks at a time, four a warp,
 * in two tiles. K goes from memory to shared memory, a step ahead. In an image without sm_90a the
 * kernel is not there. Included after decode.cu.
 */
#include "raised.cuh"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tamis {
namespace hopper {

/* What a CTA shares to score. */
struct SplitShared {
    FastQuery query;     /* the row's codes, in the 128-byte swizzle */
    Table tables[4];     /* of a group that lies this deep below the largest */
    float weights[4][8]; /* of chain c: heads 2 c, 2 c + 1, 8 + 2 c, .. */
};

/* ---- q ---- */

/* What a thread holds of the row's query: word i % 16 of head i / 16, that head's scales, and in
 * the head's first thread its weight. */
struct QueryWord {
    uint32_t codes, scales;
    float weight;
};

__device__ inline QueryWord load_query_word(const tamis_query &view, int64_t r, bool round) {
    const int h = threadIdx.x / 16, i = threadIdx.x % 16;
    const QueryRow row = query_row(view, r);
    QueryWord q;
    q.codes = __ldg((const uint32_t *)(row.codes + h * view.codes_head_stride) + i);
    q.scales = load32(row.scales + h * view.scales_head_stride);
    q.weight = i == 0 ? weight_of(view, row.weights, h, round) : 0.0f;
    return q;
}

/* Puts the thread's codes to shared memory as store_fast_query does, and to *weight, if it is not
 * NULL, w' * unit of the head. Whether they are fast, as far as the thread sees. */
__device__ inline bool store_codes(FastQuery &q, const QueryWord &bits, float *weight) {
    const int h = threadIdx.x / 16, i = threadIdx.x % 16, c = i / 4;
    const FastScales s = fast_scales(bits.scales);
    const uint32_t factor = prmt(s.factors, 0, 0x4440u | (uint32_t)c);
    const uint32_t low = kLow * factor, high = kHigh * factor;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const uint32_t half = bits.codes >> (16 * e);
        /* Around 128, then around 0. */
        const uint32_t code = prmt(low, high, half) + 0x80808080u - prmt(low, high, half ^ 0x8888u);
        q.codes[h][4 * ((2 * (i % 4) + e) ^ (h & 7)) + c] = code ^ 0x80808080u;
    }
    const float w = __fmul_rn(bits.weight, tamis_ue8m0(s.largest));
    const float scaled = __fmul_rn(w, kWeightUnit);
    if (weight) {
        *weight = scaled;
    }
    return !s.wide && s.largest != TAMIS_SCALE_NAN &&
           __fmul_rn(scaled, 1.0f / kWeightUnit) == w; /* false for NaN */
}

/* Whether the row is fast. Whole CTA; leaves at a barrier. */
__device__ inline bool store_query_word(SplitShared &s, const QueryWord &bits) {
    const int h = threadIdx.x / 16;
    const bool first = threadIdx.x % 16 == 0;
    const bool fast =
        store_codes(s.query, bits, first ? &s.weights[h % 8 / 2][h / 8 * 2 + h % 2] : nullptr);
    if (threadIdx.x < 4) {
        s.tables[threadIdx.x] = raised_table(8u >> threadIdx.x);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    return __syncthreads_and(fast);
}

/* ---- K ---- */

/* K of a step of the warp and the next, in shared memory: a lane copies what it reads itself, so
 * that registers are left for the products, and nothing waits for another. */
struct CopiedKeys {
    uint32_t now, next; /* the lane's places; scales lie behind all lanes' codes */

    /* Asks for blocks from and from + 1, and the scales of the step at i. */
    __device__ void first(const uint8_t *base, const Place &at, int i, int from) {
        const int lane = threadIdx.x & 31;
        const uint8_t *own = base + lane / 4 * 4;
        copy(0, base, at, from);
        copy(1, base, at, from + 1);
        own += (uint64_t)__shfl_sync(kAll, at.scales, i + (lane & 3)) * 16;
        asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(next + 2048 - 12 * lane),
                     "l"(own)
                     : "memory");
    }
    __device__ void second(const uint8_t *base, const Place &at, int i) {
        copy(2, base, at, i + 2);
        copy(3, base, at, i + 3);
    }
    /* What was asked for is there, and is now. */
    __device__ void arrive() {
        const uint32_t other = now;
        asm volatile("cp.async.wait_all;" ::: "memory");
        now = next;
        next = other;
    }
    __device__ uint4 codes(int b) const {
        return load_shared(now + 512 * b);
    }
    __device__ uint32_t scales() const {
        uint32_t word;
        asm volatile("ld.shared.u32 %0,[%1];"
                     : "=r"(word)
                     : "r"(now + 2048 - 12 * (threadIdx.x & 31)));
        return word;
    }

  private:
    __device__ void copy(int b, const uint8_t *base, const Place &at, int i) {
        const uint8_t *own = base + (threadIdx.x & 31) * 16;
        own += (uint64_t)__shfl_sync(kAll, at.codes, i) * 16;
        asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(next + 512 * b), "l"(own)
                     : "memory");
    }
};
constexpr uint32_t kCopiedBytes = 2048 + 128; /* of a warp's step */
static_assert(2 * kCopiedBytes * TAMIS_SPLIT_WARPS == TAMIS_SPLIT_COPIED, "what the launcher adds");

/* ---- scores ---- */

/* Tiles by wgmma, four warps at a time. */
struct Tiles {
    Weights weights;
    uint32_t matrix, tables, total[2][16];
    uint32_t codes[4][4];

    __device__ explicit Tiles(const SplitShared &s)
        : weights(load_weights(s.weights)),
          matrix((uint32_t)__cvta_generic_to_shared(&s.query) / 16),
          tables((uint32_t)__cvta_generic_to_shared(s.tables)) {
    }
    __device__ static uint32_t largest(const TurnScales &own) {
        return own.largest & 255u;
    }
    __device__ static bool wide(const TurnScales &own) {
        return own.wide && largest(own) != TAMIS_SCALE_NAN;
    }
    /* Of the lane's group at block b of the step. */
    __device__ Table table(const TurnScales &own, int b) const {
        const int lane = threadIdx.x & 31;
        const uint32_t depths = __shfl_sync(kAll, own.depths, (lane & ~3) + b);
        const uint4 t = load_shared(add_bytes(tables, depths, 16u << (8 * (lane & 3))));
        return {t.x, t.y, t.z, t.w};
    }
    /* Blocks `block` and the next of the step. */
    template <int kTile>
    __device__ void start(uint4 x, uint4 y, const TurnScales &own, int block = 2 * kTile) {
        decode_pair(codes, x, y, table(own, block), table(own, block + 1));
        multiply(total[kTile], codes, matrix);
    }
    template <int kTile> __device__ void wait() {
        multiply_wait<0>(total[kTile]);
    }
    template <int kTile> __device__ void weigh(float &sum_x, float &sum_y) {
        weigh_signed(weights, total[kTile], sum_x, sum_y);
    }
};

/* The blocks that the fast path leaves, to the keys. Apart, for the registers it takes, and given
 * nothing that would have to lie in memory for it. */
__device__ __noinline__ void score_left_blocks(const tamis_sparse_mqa_logits_args &a,
                                               const tamis_split &split, uint32_t *made, bool all) {
    const int64_t r = blockIdx.y;
    const WarpShare share(split);
    const Listed list = listed_of(a, r);
    const KeySink to = {made, (uint32_t *)a.logits + r * a.logits_stride};
    score_left(a, list, r, share.first(), share.parts * share.turn, split.each / kStepBlocks, all,
               [&](int32_t column, bool live, float score) {
                   to.put(share.place_of(column), column, live ? key_of_score(score) : 0);
               });
}

/* The key of a lane's own position, of its chains' sum. */
__device__ inline uint32_t finish_key(float sum, uint32_t largest, bool round) {
    float score = __fmul_rn(sum, tamis_ue8m0(largest)); /* NaN of a NaN scale */
    if (round) {
        score = tamis_round_bf16(score);
    }
    return pool_key(score);
}

/* One tile a warp, and nothing after it: half of a step. */
__device__ inline bool score_half(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                  const WarpShare &share, const Place &now, CopiedKeys &keys,
                                  Tiles &tiles, const KeySink &to) {
    const int lane = threadIdx.x & 31, c = lane & 3;
    const int32_t at = share.first() * kStepBlocks;
    const int32_t behind = share.place % 2 * share.parts * kStepBlocks; /* warps go in step */
    if (at - behind >= list.count) {
        return false;
    }
    keys.arrive();
    const TurnScales own = turn_scales(keys.scales());
    const bool seen = own_is_live(now, 0), wide = __any_sync(kAll, seen && tiles.wide(own));
    float p[4], first, second;
    tiles.start<0>(keys.codes(0), keys.codes(1), own, 2 * share.half);
    tiles.wait<0>();
    tiles.weigh<0>(first, second);
    p[0] = p[2] = first;
    p[1] = p[3] = second;
    const uint32_t key =
        finish_key(add_chains(p), tiles.largest(own), a.numerics == TAMIS_NUMERICS_BF16);
    if (c / 2 == share.half && !wide && at < list.count) {
        to.put((share.place * kStepBlocks + c) * kBlock + lane / 4, (at + c) * kBlock + lane / 4,
               seen ? key : 0);
    }
    return wide;
}

/*
 * Step after step of the warp's groups: whether one is left to score_left. `now` and keys: the
 * first step's. K is loaded a step ahead, if there is one. Where warps go in step, the first one's
 * groups come first, and end last.
 */
__device__ inline bool score_steps(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                   const tamis_split &split, const WarpShare &share, Place now,
                                   CopiedKeys &keys, int32_t id, Tiles &tiles, const KeySink &to) {
    const int lane = threadIdx.x & 31, c = lane & 3;
    const uint8_t *const base = a.k.codes;
    const int32_t hop = share.parts * share.turn * split.each;
    const int32_t behind = share.place % 4 * share.parts * split.each;
    int32_t at = share.first() * split.each;
    int32_t place = (share.place * split.each + c) * kBlock + lane / 4;
    uint32_t where = 0;
    bool left = false;
    int i = 0;
#pragma unroll 1
    while (at - behind < list.count) {
        float p[4];
        keys.arrive();
        const TurnScales own = turn_scales(keys.scales());
        const uint32_t largest = tiles.largest(own);
        const bool seen = own_is_live(now, i), inside = at + i < list.count;
        const bool wide = __any_sync(kAll, seen && tiles.wide(own));
        const int32_t own_place = place + i * kBlock;
        const int32_t column = (at + i + c) * kBlock + lane / 4;
        if (i == 0) { /* of the next group */
            where = listed_where(list, at + hop + lane, id);
        }
        tiles.start<0>(keys.codes(0), keys.codes(1), own);
        const uint4 third = keys.codes(2), fourth = keys.codes(3);
        i += kStepBlocks;
        if (i == split.each || at - behind + i >= list.count) {
            i = 0;
            at += hop;
            place += share.turn * split.each * kBlock;
            now = place_of(a.k, list, id, where);
            id = listed_id(list, at + hop + lane);
        }
        const bool more = at - behind < list.count;
        if (more) {
            keys.first(base, now, i, i);
        }
        tiles.wait<0>();
        tiles.start<1>(third, fourth, own);
        if (more) {
            keys.second(base, now, i);
        }
        tiles.weigh<0>(p[0], p[1]);
        tiles.wait<1>();
        tiles.weigh<1>(p[2], p[3]);
        const uint32_t key = finish_key(add_chains(p), largest, a.numerics == TAMIS_NUMERICS_BF16);
        left |= wide;
        if (inside && !wide) {
            to.put(own_place, column, seen ? key : 0);
        }
    }
    return left;
}

/* As score_listed, of the warp's share, to the CTA's keys: `each` blocks' after one another. K's
 * first loads come before those of the query. ring: of all warps' keys. */
__device__ inline void score_share(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                   const tamis_split &split, const WarpShare &share, SplitShared &s,
                                   uint32_t ring, int32_t id, uint32_t where, const KeySink &to) {
    const uint8_t *const base = a.k.codes;
    const int32_t hop = share.parts * share.turn * split.each;
    const int32_t at = share.first() * split.each + (threadIdx.x & 31);
    const Place now = place_of(a.k, list, id, where);
    const uint32_t own = ring + threadIdx.x / 32 * 2 * kCopiedBytes + (threadIdx.x & 31) * 16;
    CopiedKeys keys = {own, own + kCopiedBytes};
    if (at - (int)(threadIdx.x & 31) < list.count) {
        keys.first(base, now, 0, 2 * share.half);
        if (!split.halve) {
            keys.second(base, now, 0);
        }
    }
    const QueryWord bits = load_query_word(a.query, blockIdx.y, a.numerics == TAMIS_NUMERICS_BF16);
    id = split.halve ? -1 : listed_id(list, at + hop);
    const bool fast = store_query_word(s, bits);
    bool left = true;
    if (fast) {
        Tiles tiles(s);
        left = split.halve ? score_half(a, list, share, now, keys, tiles, to)
                           : score_steps(a, list, split, share, now, keys, id, tiles, to);
    }
    if (left && share.half == 0) {
        score_left_blocks(a, split, to.made, !fast);
    }
}

} // namespace hopper
} // namespace tamis

/* As tamis_consume_split_smxx. */
extern "C" __global__ void __launch_bounds__(tamis::kSplitThreads, 1)
    tamis_consume_split_sm90(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                             const __grid_constant__ tamis_selection out, uint32_t *done,
                             const int32_t *taken, const __grid_constant__ tamis_split split) {
    using namespace tamis;
    extern __shared__ __align__(16) uint32_t made[];
    __shared__ __align__(1024) hopper::SplitShared shared;
    __shared__ Merge merge;
    const uint32_t ring =
        (uint32_t)__cvta_generic_to_shared(made + 128 * split.lists * split.quads);
    consume_split(a, out, done, taken, split, made, merge,
                  [&](const Listed &list, const WarpShare &share, int32_t id, uint32_t where,
                      const KeySink &to) {
                      hopper::score_share(a, list, split, share, shared, ring, id, where, to);
                  });
}

#endif
