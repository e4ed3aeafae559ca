/* SPDX-License-Identifier: MIT */
/*
 * decode_sm90.cu: the scores of decode.cu by Hopper's wgmma: a warp has a run of the row's blocks,
 * four a step, and warps go in step by fours. Their places lie in shared memory before the first
 * step, and K comes to registers two steps ahead. K's bytes are unsigned, around 96: what that adds
 * to a head's dot, a product of constants with `bias` takes away, which is one instruction, where
 * signs would be sixteen. In an image without sm_90a the kernel is not there. Included after
 * decode.cu.
 */
#include "raised.cuh"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tamis {
namespace hopper {

constexpr int kSplitBlocks = 128; /* of a warp, at most: a row of one CTA */

/* A warp's own. */
struct SplitWarp {
    Table tables[4];                                    /* by how far below the largest */
    uint32_t codes[kSplitBlocks], scales[kSplitBlocks]; /* places */
    uint8_t visible[kSplitBlocks];                      /* positions */
};

/*
 * Two matrices of 32 columns k whose product is -96 times the sum of a head's codes. factors: 192,
 * but 96 where k % 16 > 13, in any row. heads: minus half that sum, shared out over 14 threads of
 * two columns each, and what is odd of it under 96.
 */
struct alignas(128) SplitBias {
    uint8_t heads[4][2][8][16]; /* [head / 8][k / 16][head % 8][k % 16] */
    uint8_t factors[8][16];
};

struct SplitMemory {
    uint32_t codes[32][32]; /* of the query: as FastQuery's, in the 128-byte swizzle */
    SplitBias bias;
    float weights[4][8]; /* of chain c: heads 2 c, 2 c + 1, 8 + 2 c, .. */
    /* Of each warp: all blocks are there, with all positions, and nothing is rounded. */
    alignas(4) uint8_t plain[kSplitWarps];
    PickRow row;
    union {
        SplitWarp warps[kSplitWarps];
        PickLists lists; /* once the row is scored */
    };
};

/* Descriptors: the query's four steps; the bias's factors, one tile for all, and heads. Not const:
 * what is known while compiling is made anew before every product. */
constexpr uint32_t kSplitBiasAt = (kSharedBase + offsetof(SplitMemory, bias)) / 16;
__constant__ uint64_t kSplitMatrix[4] = {
    0x4000004000010000u | (kSharedBase / 16), 0x4000004000010000u | (kSharedBase / 16 + 2),
    0x4000004000010000u | (kSharedBase / 16 + 4), 0x4000004000010000u | (kSharedBase / 16 + 6)};
__constant__ uint64_t kSplitBias[2] = {kSplitBiasAt + offsetof(SplitBias, factors) / 16,
                                       0x0000001000080000u | kSplitBiasAt};

__device__ inline void multiply_query(uint32_t (&d)[16], uint32_t (&a)[4][4]) {
    /* Else what makes them may move behind the fence, and ptxas ends each product at once. */
#pragma unroll
    for (int i = 0; i < 16; i++) {
        asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
    }
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    multiply_constants(d, kSplitBias[0], kSplitBias[1]);
    multiply_unsigned(d, a[0], kSplitMatrix[0]);
    multiply_unsigned(d, a[1], kSplitMatrix[1]);
    multiply_unsigned(d, a[2], kSplitMatrix[2]);
    multiply_unsigned(d, a[3], kSplitMatrix[3]);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* ---- q ---- */

/* The thread's part of SplitBias; sum: of its own codes. Whether the row's fits. */
__device__ inline bool store_bias(SplitBias &bias, int32_t sum) {
    const int h = threadIdx.x / 16, i = threadIdx.x % 16;
#pragma unroll
    for (int d = 1; d < 16; d *= 2) {
        sum += __shfl_xor_sync(kAll, sum, d);
    }
    const int32_t half = -(sum >> 1), size = abs(half);
    int32_t share = min(max(size - 254 * (i - i / 8), 0), 254), first;
    share = half < 0 ? -share : share;
    first = share >> 1;
    if (i % 8 == 7) {
        share = first = i == 7 ? -(sum & 1) : 0;
    }
    *(uint16_t *)&bias.heads[h / 8][i / 8][h % 8][2 * (i % 8)] =
        (uint16_t)((first & 255) | (share - first) << 8);
    if (threadIdx.x < 32) {
        ((uint32_t *)bias.factors)[threadIdx.x] = threadIdx.x % 4 == 3 ? 0x6060C0C0u : 0xC0C0C0C0u;
    }
    return size <= 254 * 14;
}

/* As store_fast_query, but without its barrier. */
__device__ inline bool store_split_query(SplitMemory &s, const SplitQuery &q,
                                         const tamis_sparse_mqa_logits_args &a) {
    const int h = threadIdx.x / 16, i = threadIdx.x % 16, c = i / 4;
    const FastScales scales = fast_scales(q.scale_word());
    const uint32_t factor = prmt(scales.factors, 0, 0x4440u | (uint32_t)c);
    const uint32_t low = kLow * factor, high = kHigh * factor;
    int32_t sum = 0;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const uint32_t code = decode4_signed(low, high, q.bits >> (16 * e));
        s.codes[h][4 * ((2 * (i % 4) + e) ^ (h & 7)) + c] = code;
        sum = __dp4a((int32_t)code, 0x01010101, sum);
    }
    const bool fits = store_bias(s.bias, sum);
    const float w =
        __fmul_rn(weight_of_bits(q.raw, q.weights_type, q.numerics), tamis_ue8m0(scales.largest));
    const float weight = __fmul_rn(w, kWeightUnit);
    if (i == 0) {
        s.weights[h % 8 / 2][h / 8 * 2 + h % 2] = weight;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    return fits && !scales.wide && scales.largest != TAMIS_SCALE_NAN &&
           __fmul_rn(weight, 1.0f / kWeightUnit) == w; /* false for NaN */
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

/* A warp's blocks behind its first 32. */
struct SplitRest {
    int32_t ids[kSplitBlocks / 32];
    uint32_t wheres[kSplitBlocks / 32];

    __device__ void load(const Listed &list, int32_t at, int each) {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int g = 1; g < kSplitBlocks / 32; g++) {
            const int32_t i = at + 32 * g + lane;
            ids[g] = -1;
            wheres[g] = 0;
            if (32 * g + lane < each && i < list.count) {
                ids[g] = (int32_t)load_word(list.blocks + i);
                if (list.physical) {
                    wheres[g] = load_word(list.physical + i);
                }
            }
        }
    }
    __device__ bool put(SplitWarp &s, const tamis_k_cache &k, const Listed &list, int32_t at,
                        int each) const {
        bool whole = true;
#pragma unroll
        for (int g = 1; g < kSplitBlocks / 32; g++) {
            if (32 * g < each) {
                const int32_t i = 32 * g + (int)(threadIdx.x & 31);
                const bool seen = (uint32_t)ids[g] <= (uint32_t)(list.length - 1) / kBlock;
                const int32_t id = seen ? ids[g] : -1;
                const uint32_t where = list.physical ? wheres[g] : listed_where(list, at + i, id);
                whole &= put_place(s, k, list, i, id, seen ? where : 0) || i >= each;
            }
        }
        return whole;
    }
};

/* The lane's 16 bytes of two blocks. */
struct SplitHalf {
    uint4 x, y;
};

/* What a warp has of K, or waits for: two steps of two halves, and the lane's own scales. */
struct SplitAhead {
    SplitHalf half[4];
    uint32_t scales[2];
};

/* Loads of one step after another. */
struct SplitKeys {
    const uint8_t *codes, *scales; /* of the lane, in any block */
    uint32_t places, own;          /* where this step's places lie, and the lane's own scales' */

    __device__ SplitKeys(const SplitWarp &s, const uint8_t *base) {
        const uint32_t lane = threadIdx.x & 31;
        codes = opaque(base + lane * 16);
        scales = opaque(base + lane / 4 * 4);
        places = (uint32_t)__cvta_generic_to_shared(s.codes);
        own = (uint32_t)__cvta_generic_to_shared(s.scales + (lane & 3));
    }
    /* half, step: from this step's first. */
    __device__ void load(SplitHalf &to, int half) const {
        uint32_t x, y;
        asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(x), "=r"(y) : "r"(places + 8 * half));
        to.x = load_chunk(codes + (uint64_t)x * 16);
        to.y = load_chunk(codes + (uint64_t)y * 16);
    }
    __device__ void load_scales(uint32_t &to, int step) const {
        uint32_t at;
        asm volatile("ld.shared.u32 %0,[%1];" : "=r"(at) : "r"(own + 16 * step));
        to = load_word(scales + (uint64_t)at * 16);
    }
    /* Step t, 0 or 1, of the warp's. */
    __device__ void begin(SplitAhead &ahead, int32_t steps, int t) const {
        if (t < steps) {
            load_scales(ahead.scales[t], t);
            load(ahead.half[2 * t], 2 * t);
            load(ahead.half[2 * t + 1], 2 * t + 1);
        }
    }
    __device__ void advance() {
        places += 16;
        own += 16;
    }
};

/* As unsigned bytes, of table_of. */
__device__ inline void decode_unsigned(uint32_t (&a)[4][4], const SplitHalf &k, const Table &tx,
                                       const Table &ty) {
    decode_pair(a, k.x, k.y, tx, ty, decode4_biased);
}

/* ---- scores ---- */

/* What a warp keeps while it scores. */
struct SplitScorer {
    Weights weights;
    uint32_t unit, tables;
    Chains chains;

    __device__ explicit SplitScorer(const SplitWarp &s)
        : unit(kept(16u << (8 * (threadIdx.x & 3)))),
          tables((uint32_t)__cvta_generic_to_shared(s.tables)) {
    }
    __device__ Table table(uint32_t depths, int b) const {
        const uint4 t = load_shared(add_bytes(tables, __shfl_sync(kAll, depths, b, 4), unit));
        return {t.x, t.y, t.z, t.w};
    }
    __device__ float finish(const float (&p)[4], uint32_t largest) const {
        float scale = __uint_as_float(max(largest << 23, 0x00400000u)); /* 2^-127: subnormal */
        scale = (largest & 255u) == TAMIS_SCALE_NAN ? __uint_as_float(TAMIS_NAN_BITS) : scale;
        return __fmul_rn(chains.add(p), scale);
    }
};

/* Steps that a warp takes, while others of its four have any. */
struct SplitRun {
    int32_t at, steps; /* first block; steps of all four */
};

/* Where scores go: of step t, to `to`, the lane's place of step 0's. */
template <bool kPlain> struct SplitSink {
    int32_t left;     /* blocks of the row from the warp's first one on */
    uint32_t visible; /* where the lane's positions of a block lie */
    bool round;
    uint32_t wide; /* not 0: a position was */

    __device__ void put(int32_t t, uint32_t *to, float score, uint32_t is_wide) {
        if (kPlain) {
            wide |= is_wide;
            *to = split_score(true, score);
            return;
        }
        uint32_t seen;
        asm volatile("ld.shared.u8 %0,[%1];" : "=r"(seen) : "r"(visible + 4 * t));
        const bool live = (threadIdx.x & 31) / 4 < seen;
        score = round ? tamis_round_bf16(score) : score;
        wide |= live ? is_wide : 0;
        if (4 * t < left) {
            *to = split_score(live, score);
        }
    }
};

/*
 * The scores of the warp's steps to `to`, the lane's place of the first one's. a: the first half,
 * decoded; own: the first step's scales. A half is multiplied while the one before is weighed; the
 * next step's tables are asked for under a step's last product.
 */
template <bool kPlain>
__device__ inline bool score_run(const SplitRun &run, SplitSink<kPlain> sink,
                                 const SplitScorer &scorer, SplitKeys keys, SplitAhead &ahead,
                                 uint32_t (&a)[4][4], TurnScales own, uint32_t *to) {
    uint32_t d0[16], d1[16];
    Table tx, ty;
    TurnScales before = {};
    float p[4];
    auto put = [&](int32_t t, uint32_t *at) {
        weigh_signed(scorer.weights, d1, p[2], p[3]);
        sink.put(t, at, scorer.finish(p, before.largest), before.wide);
    };
    auto step = [&](int32_t t, int slot) {
        const bool more = t + 2 < run.steps;
        multiply_query(d0, a);
        keys.advance();
        if (more) {
            keys.load(ahead.half[2 * slot], 2);
            keys.load_scales(ahead.scales[slot], 1);
        }
        if (t > 0) {
            put(t - 1, to + (slot ? 0 : 32));
        }
        tx = scorer.table(own.depths, 2);
        ty = scorer.table(own.depths, 3);
        multiply_wait<0>(d0);
        decode_unsigned(a, ahead.half[2 * slot + 1], tx, ty);
        multiply_query(d1, a);
        if (more) {
            keys.load(ahead.half[2 * slot + 1], 3);
        }
        weigh_signed(scorer.weights, d0, p[0], p[1]);
        before = own;
        own = turn_scales(ahead.scales[slot ^ 1]);
        tx = scorer.table(own.depths, 0);
        ty = scorer.table(own.depths, 1);
        multiply_wait<0>(d1);
    };
    step(0, 0);
#pragma unroll 1
    for (int32_t t = 1; t < run.steps; t += 2) {
        decode_unsigned(a, ahead.half[2], tx, ty);
        step(t, 1);
        if (t + 1 == run.steps) {
            break;
        }
        decode_unsigned(a, ahead.half[0], tx, ty);
        step(t + 1, 0);
        to += 64;
    }
    put(run.steps - 1, to + (run.steps % 2 ? 0 : 32));
    return sink.wide != 0;
}

/* The blocks first .. end - 1 that score_run leaves. Apart, for the registers it takes. */
__device__ __noinline__ void score_run_slowly(const tamis_sparse_mqa_logits_args &a, int64_t r,
                                              int32_t first, int32_t end, bool all) {
    Listed list = listed_of(a, r);
    uint32_t *const scores = (uint32_t *)a.logits + r * a.logits_stride;
    list.count = min(list.count, end);
    score_left(
        a, list, r, first / kStepBlocks, 1, 1, all,
        [&](int32_t column, bool live, float score) { scores[column] = split_score(live, score); });
}

/*
 * Scores of a row's blocks to its scratch. place: this warp among those of the row's CTAs, each of
 * which has `steps` steps of blocks; first: the lane's first block. Whole CTA.
 */
__device__ inline void score_split(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                   int place, int steps, SplitMemory &s, const FirstBlock &first,
                                   SplitQuery &query) {
    const int lane = threadIdx.x & 31, each = kStepBlocks * steps;
    const int lead = place - (int)threadIdx.x / 32 % 4 * (int)gridDim.x; /* of the warp's four */
    const int64_t r = blockIdx.y;
    SplitWarp &warp = s.warps[threadIdx.x / 32];
    /* The same for all lanes, and ptxas sees it. */
    const int32_t taken = __reduce_max_sync(kAll, min(steps, steps_of(list.count) - lead * steps));
    const SplitRun run = {place * each, taken};
    SplitRest rest;
    SplitAhead ahead = {};
    const SplitKeys keys(warp, a.k.codes);
    /* Before K, behind which they would wait. */
    query.load();
    if (each > 32) {
        rest.load(list, run.at, each);
    }
    bool whole = put_place(warp, a.k, list, lane, first.id, first.where) || lane >= each;
    if (lane < 4) {
        warp.tables[lane] = table_of(8u >> lane);
    }
    __syncwarp();
    keys.begin(ahead, run.steps, 0);
    const bool good = store_split_query(s, query, a);
    /* Not before: other warps' queries and first steps would wait behind it. */
    keys.begin(ahead, run.steps, 1);
    if (each > 32) {
        whole &= rest.put(warp, a.k, list, run.at, each);
    }
    const bool round = a.numerics == TAMIS_NUMERICS_BF16;
    whole = __all_sync(kAll, whole) && !round;
    if (lane == 0) {
        s.plain[threadIdx.x / 32] = whole;
    }
    SplitScorer scorer(warp);
    uint32_t half[4][4];
    const TurnScales own = turn_scales(ahead.scales[0]);
    decode_unsigned(half, ahead.half[0], scorer.table(own.depths, 0), scorer.table(own.depths, 1));
    const bool based = (uint32_t)__cvta_generic_to_shared(&s) == kSharedBase;
    const bool fast = __syncthreads_and(good) && based;
    bool left = !fast;
    if (fast && run.steps > 0) {
        scorer.weights = load_weights(s.weights);
        uint32_t *const to = (uint32_t *)a.logits + r * a.logits_stride + run.at * kBlock +
                             8 * (lane & 3) + lane / 4;
        const uint32_t visible = (uint32_t)__cvta_generic_to_shared(&warp.visible[lane & 3]);
        auto score = [&](auto sink) {
            left = score_run(run, sink, scorer, keys, ahead, half, own, to);
        };
        /* Four warps multiply together, so they take the same loop. */
        const uint32_t four = *(const uint32_t *)&s.plain[threadIdx.x / 128 * 4];
        if (__any_sync(kAll, four != 0x01010101u)) {
            score(SplitSink<false>{list.count - run.at, visible, round, 0});
        } else {
            score(SplitSink<true>{});
        }
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
                  [&](const Listed &list, const FirstBlock &first, SplitQuery &query) {
                      hopper::score_split(a, list, place, steps, s, first, query);
                  });
}

#endif
