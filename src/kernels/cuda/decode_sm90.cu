/* SPDX-License-Identifier: MIT */
/*
 * decode_sm90.cu: the scores of decode.cu by Hopper's wgmma: a warp has a run of the row's blocks,
 * four a step, and warps go in step by fours. Their places lie in shared memory before the first
 * step, and K is copied there, steps ahead: a lane copies what it reads itself, without barriers.
 * In an image without sm_90a the kernel is not there. Included after decode.cu.
 */
#include "raised.cuh"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tamis {
namespace hopper {

constexpr int kSplitStages = 4;   /* steps of K that are there or on their way */
constexpr int kSplitBlocks = 128; /* of a warp, at most: a row of one CTA */

/* K of a step, by lane. */
struct SplitStage {
    uint4 codes[kStepBlocks][32];
    uint32_t scales[32];
};

/* A warp's own. */
struct SplitWarp {
    SplitStage ring[kSplitStages];
    uint32_t codes[kSplitBlocks], scales[kSplitBlocks]; /* places */
    uint8_t visible[kSplitBlocks];                      /* positions */
};

struct SplitMemory {
    uint32_t codes[32][32]; /* of the query: as FastQuery's, in the 128-byte swizzle */
    Table tables[4];        /* of a group that lies this deep below the largest */
    float weights[4][8];    /* of chain c: heads 2 c, 2 c + 1, 8 + 2 c, .. */
    SplitRow row;
    union {
        SplitWarp warps[kSplitWarps];
        SplitLists lists; /* once the row is scored */
    };
};

/* Descriptors of the query's four steps. Not const: what is known while compiling is made anew
 * before every product. */
__constant__ uint64_t kSplitMatrix[4] = {
    0x4000004000010000u | (kSharedBase / 16), 0x4000004000010000u | (kSharedBase / 16 + 2),
    0x4000004000010000u | (kSharedBase / 16 + 4), 0x4000004000010000u | (kSharedBase / 16 + 6)};

__device__ inline void multiply_query(uint32_t (&d)[16], const uint32_t (&a)[4][4]) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    multiply_async<0>(d, a[0], kSplitMatrix[0]);
    multiply_async<1>(d, a[1], kSplitMatrix[1]);
    multiply_async<1>(d, a[2], kSplitMatrix[2]);
    multiply_async<1>(d, a[3], kSplitMatrix[3]);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* ---- q ---- */

/* As store_fast_query. */
__device__ inline bool store_split_query(SplitMemory &s, const QueryBits<kSplitThreads> &bits) {
    const int h = threadIdx.x / 16, i = threadIdx.x % 16, c = i / 4;
    const FastScales scales = fast_scales(bits.scales[0]);
    const uint32_t factor = prmt(scales.factors, 0, 0x4440u | (uint32_t)c);
    const uint32_t low = kLow * factor, high = kHigh * factor;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        s.codes[h][4 * ((2 * (i % 4) + e) ^ (h & 7)) + c] =
            decode4_signed(low, high, bits.codes[0] >> (16 * e));
    }
    const float w = __fmul_rn(bits.weight[0], tamis_ue8m0(scales.largest));
    const float weight = __fmul_rn(w, kWeightUnit);
    if (i == 0) {
        s.weights[h % 8 / 2][h / 8 * 2 + h % 2] = weight;
    }
    if (threadIdx.x < 4) {
        s.tables[threadIdx.x] = raised_table(8u >> threadIdx.x);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    return __syncthreads_and(!scales.wide && scales.largest != TAMIS_SCALE_NAN &&
                             __fmul_rn(weight, 1.0f / kWeightUnit) == w); /* false for NaN */
}

/* ---- K ---- */

/* Puts the warp's block i to shared memory; whether all of it counts. */
__device__ inline bool put_place(SplitWarp &s, const tamis_k_cache &k, const Listed &list, int i,
                                 int32_t id, uint32_t where) {
    const Place p = place_of(k, list, id, where);
    s.codes[i] = p.codes;
    s.scales[i] = p.scales;
    s.visible[i] = (uint8_t)p.visible;
    return p.visible == kBlock;
}

/* Copies of one step after another. */
struct SplitKeys {
    const uint8_t *codes, *scales; /* of the lane, in any block */
    uint32_t places, own; /* where the next step's places lie, and the lane's own scales' */

    __device__ SplitKeys(const SplitWarp &s, const uint8_t *base) {
        const uint32_t lane = threadIdx.x & 31;
        codes = opaque(base + lane * 16);
        scales = opaque(base + lane / 4 * 4);
        places = (uint32_t)__cvta_generic_to_shared(s.codes);
        own = (uint32_t)__cvta_generic_to_shared(s.scales + (lane & 3));
    }
    /* `ahead`: steps from the next one. */
    __device__ void copy(uint32_t to, uint32_t to_scales, int ahead) const {
        const uint4 at = load_shared(places + 16 * ahead);
        const uint32_t from[4] = {at.x, at.y, at.z, at.w};
        uint32_t word;
        asm volatile("ld.shared.u32 %0,[%1];" : "=r"(word) : "r"(own + 16 * ahead));
#pragma unroll
        for (int b = 0; b < 4; b++) {
            asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to + 512 * b),
                         "l"(codes + (uint64_t)from[b] * 16)
                         : "memory");
        }
        asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(to_scales),
                     "l"(scales + (uint64_t)word * 16)
                     : "memory");
    }
    __device__ static void commit() {
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

/* ---- scores ---- */

/* What a warp keeps while it scores. */
struct SplitScorer {
    Weights weights;
    uint32_t unit;
    Chains chains;

    __device__ explicit SplitScorer(const SplitMemory &s)
        : weights(load_weights(s.weights)), unit(kept(16u << (8 * (threadIdx.x & 3)))) {
    }

    __device__ Table table(uint32_t depths, int b) const {
        constexpr uint32_t tables = kSharedBase + (uint32_t)offsetof(SplitMemory, tables);
        const uint4 t = load_shared(add_bytes(tables, __shfl_sync(kAll, depths, b, 4), unit));
        return {t.x, t.y, t.z, t.w};
    }

    /* The score of the lane's position of a step that is there; not 0: the position is wide. */
    __device__ float score(uint32_t from, uint32_t scales, uint32_t &wide) const {
        uint32_t word, d0[16], d1[16], t[4][4];
        float p[4];
        asm volatile("ld.shared.u32 %0,[%1];" : "=r"(word) : "r"(scales));
        const TurnScales own = turn_scales(word);
        wide = own.wide;
        decode_pair(t, load_shared(from), load_shared(from + 512), table(own.depths, 0),
                    table(own.depths, 1));
        multiply_query(d0, t);
        const uint4 x = load_shared(from + 1024), y = load_shared(from + 1536);
        const Table tx = table(own.depths, 2), ty = table(own.depths, 3);
        multiply_wait<0>(d0);
        decode_pair(t, x, y, tx, ty);
        multiply_query(d1, t);
        weigh_signed(weights, d0, p[0], p[1]);
        multiply_wait<0>(d1);
        weigh_signed(weights, d1, p[2], p[3]);
        float scale = __uint_as_float(max(own.largest << 23, 0x00400000u)); /* 2^-127: subnormal */
        scale = (own.largest & 255u) == TAMIS_SCALE_NAN ? __uint_as_float(TAMIS_NAN_BITS) : scale;
        return __fmul_rn(chains.add(p), scale);
    }
};

/* Steps that a warp takes, while others of its four have any. */
struct SplitRun {
    int32_t at, steps; /* first block; steps of all four */
    bool plain;        /* all blocks are there, with all positions, and nothing is rounded */
};

/*
 * The keys of the warp's steps to `to`, the lane's place of the first one's; whether a position was
 * wide. K of the first kSplitStages - 1 steps was asked for.
 */
__device__ inline bool score_run(const SplitWarp &s, const Listed &list, const SplitRun &run,
                                 bool round, const SplitScorer &scorer, SplitKeys keys,
                                 uint32_t *to) {
    constexpr uint32_t kStage = sizeof(SplitStage);
    const uint32_t lane = threadIdx.x & 31;
    uint32_t now = (uint32_t)__cvta_generic_to_shared(&s.ring[0].codes[0][lane]);
    uint32_t other = now + 2 * kStage, any = 0;
    const uint32_t own = kept((uint32_t)__cvta_generic_to_shared(&s.ring[0].scales[lane]) - now);
    const uint32_t visible = (uint32_t)__cvta_generic_to_shared(&s.visible[lane & 3]);
    auto one = [&](int32_t t, int half) {
        uint32_t wide;
        asm volatile("cp.async.wait_group %0;" ::"n"(kSplitStages - 2) : "memory");
        if (t + kSplitStages - 1 < run.steps) {
            const uint32_t free = half ? now : other + kStage;
            keys.copy(free, free + own, half + kSplitStages - 1);
        }
        keys.commit();
        const uint32_t from = now + half * kStage;
        float score = scorer.score(from, from + own, wide);
        if (run.plain) {
            to[32 * half] = pool_key(score);
        } else {
            uint32_t seen;
            asm volatile("ld.shared.u8 %0,[%1];" : "=r"(seen) : "r"(visible + 4 * t));
            const bool live = lane / 4 < seen;
            score = round ? tamis_round_bf16(score) : score;
            wide = live ? wide : 0;
            if (run.at + 4 * t < list.count) {
                to[32 * half] = live ? pool_key(score) : 0;
            }
        }
        any |= wide;
    };
#pragma unroll 1
    for (int32_t t = 0; t < run.steps; t += 2) {
        one(t, 0);
        if (t + 1 == run.steps) {
            break;
        }
        one(t + 1, 1);
        const uint32_t next = other;
        other = now;
        now = next;
        keys.places += 32;
        keys.own += 32;
        to += 64;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    return any != 0;
}

/* The blocks first .. end - 1 that score_run leaves. Apart, for the registers it takes. */
__device__ __noinline__ void score_run_slowly(const tamis_sparse_mqa_logits_args &a, int64_t r,
                                              int32_t first, int32_t end, bool all) {
    Listed list = listed_of(a, r);
    uint32_t *const keys = (uint32_t *)a.logits + r * a.logits_stride;
    list.count = min(list.count, end);
    score_left(a, list, r, first / kStepBlocks, 1, 1, all,
               [&](int32_t column, bool live, float score) {
                   keys[column] = live ? key_of_score(score) : 0;
               });
}

/*
 * Keys of a row's blocks to its scratch. place: this warp among those of the row's CTAs, each of
 * which has `steps` steps of blocks; first: the lane's first block. Whole CTA.
 */
__device__ inline void score_split(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                   int place, int steps, SplitMemory &s, const FirstBlock &first) {
    const int lane = threadIdx.x & 31, each = kStepBlocks * steps;
    const int lead = place - (int)threadIdx.x / 32 % 4 * (int)gridDim.x; /* of the warp's four */
    const int64_t r = blockIdx.y;
    uint32_t *const row_keys = (uint32_t *)a.logits + r * a.logits_stride;
    /* Before K, behind which it would wait. */
    const auto bits = load_query_bits<kSplitThreads>(a.query, r, a.numerics);
    SplitWarp &warp = s.warps[threadIdx.x / 32];
    SplitRun run = {place * each, min(steps, steps_of(list.count) - lead * steps), true};
    SplitKeys keys(warp, a.k.codes);
    constexpr uint32_t kStage = sizeof(SplitStage);
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared(&warp.ring[0].codes[0][lane]);
    const uint32_t own = (uint32_t)__cvta_generic_to_shared(&warp.ring[0].scales[lane]);
    int32_t ids[kSplitBlocks / 32];
    uint32_t wheres[kSplitBlocks / 32];
#pragma unroll
    for (int g = 1; g < kSplitBlocks / 32; g++) {
        const int32_t i = run.at + 32 * g + lane;
        ids[g] = -1;
        wheres[g] = 0;
        if (32 * g + lane < each && i < list.count) {
            ids[g] = __ldg(list.blocks + i);
            wheres[g] = list.physical ? (uint32_t)__ldg(list.physical + i) : 0;
        }
    }
    bool whole = put_place(warp, a.k, list, lane, first.id, first.where) || lane >= each;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSplitStages - 1; i++) {
        if (i < run.steps) {
            keys.copy(ring + i * kStage, own + i * kStage, i);
        }
        keys.commit();
    }
#pragma unroll
    for (int g = 1; g < kSplitBlocks / 32; g++) {
        if (32 * g < each) {
            const int32_t i = 32 * g + lane;
            const bool seen = (uint32_t)ids[g] <= (uint32_t)(list.length - 1) / kBlock;
            const int32_t next = seen ? ids[g] : -1;
            const uint32_t at = list.physical ? wheres[g] : listed_where(list, run.at + i, next);
            whole &= put_place(warp, a.k, list, i, next, seen ? at : 0) || i >= each;
        }
    }
    const bool round = a.numerics == TAMIS_NUMERICS_BF16;
    run.plain = __all_sync(kAll, whole) && !round;
    const bool based = (uint32_t)__cvta_generic_to_shared(&s) == kSharedBase;
    const bool fast = store_split_query(s, bits) && based;
    bool left = true;
    if (fast) {
        left = score_run(warp, list, run, round, SplitScorer(s), keys,
                         row_keys + run.at * kBlock + 8 * (lane & 3) + lane / 4);
    } else {
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
    if (__any_sync(kAll, left)) {
        score_run_slowly(a, r, run.at, run.at + each, !fast);
    }
}

static_assert(sizeof(SplitMemory) == TAMIS_CONSUME_SPLIT_SM90_BYTES, "consume_args.h");

} // namespace hopper
} // namespace tamis

/* As tamis_consume_split_smxx; steps: of a warp, which has no more, at least one. */
extern "C" __global__ void __launch_bounds__(tamis::kSplitThreads, 1)
    tamis_consume_split_sm90(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                             const __grid_constant__ tamis_selection out, uint32_t *done,
                             const int32_t *taken, int32_t steps,
                             const __grid_constant__ tamis_gate_args gate) {
    using namespace tamis;
    extern __shared__ __align__(1024) uint8_t memory[];
    hopper::SplitMemory &s = *(hopper::SplitMemory *)memory;
    const int place = (int)threadIdx.x / 32 * (int)gridDim.x + (int)blockIdx.x;
    const int at = place * kStepBlocks * steps + (int)(threadIdx.x & 31);
    consume_split(a, out, done, taken, gate, at, s.row, s.lists,
                  [&](const Listed &list, const FirstBlock &first) {
                      hopper::score_split(a, list, place, steps, s, first);
                  });
}

#endif
