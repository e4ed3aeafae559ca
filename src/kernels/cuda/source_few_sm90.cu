/* SPDX-License-Identifier: MIT */
/*
 * source_few_sm90.cu: block maxima of everything that a few rows see, by Hopper's wgmma in the form
 * of consume_sm90.cu: a warpgroup decodes 128 or 256 positions a turn in its registers and
 * multiplies them by the heads of one row, two or four neighbouring ones. It is small, so that
 * three or four share a multiprocessor, and K comes through shared memory turns ahead: a lane
 * copies what it reads itself, without barriers. The bits of score.cuh.
 *
 * CTAs have equal, contiguous shares of the turns of all runs; every warp counts them for itself.
 * In an image without sm_90a the kernels are not there. Included after source.cuh.
 */
#include "raised.cuh"
#include "source.cuh"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tamis {
namespace hopper {

constexpr int kFewThreads = 128, kFewWarps = 4;

/* A turn is 128 positions, 32 a warp, or twice that, where shared memory has room for it. */
template <int kRows> constexpr int kFewHalves = kRows == 4 ? 1 : 2;
template <int kRows> constexpr int kFewTurn = 128 * kFewHalves<kRows>;
template <int kRows> constexpr int kFewOwn = 32 * kFewHalves<kRows>;
/* Turns whose K is there or on its way. */
template <int kRows> constexpr int kFewStages = kRows == 4 ? 3 : 2;
/* CTAs of a multiprocessor, as launch_source.c queues them. */
template <int kRows> constexpr int kFewCtas = kRows == 4 ? 3 : 4;

template <int kHalves> struct FewTurn {
    uint4 codes[4 * kHalves][32]; /* by lane */
    uint32_t scales[kHalves][32]; /* by lane */
};

/* Turns of a run that a CTA scores. */
struct FewPart {
    int64_t row;
    int32_t count, longest, first, end;
};

template <int kRows> struct alignas(1024) FewShared {
    uint32_t codes[kRows * 32][32]; /* as SourceShared's, heads in order */
    FewTurn<kFewHalves<kRows>> ring[kFewStages<kRows>][kFewWarps];
    Table tables[4];            /* of a group that lies this deep below the largest */
    float weights[kRows][4][8]; /* of chain c: heads 2 c, 2 c + 1, 8 + 2 c, .. */
    FewPart parts[32];
    int32_t length[kRows];
    uint32_t slow; /* rows that are not fast, a bit each */
    TileRows rows; /* of the call */
};

/* ---- q ---- */

/* Row r as row `place`. Whole CTA; s.slow was made 0 before a barrier, and one follows. */
template <int kRows>
__device__ inline void load_few_row(FewShared<kRows> &s, const tamis_mqa_logits_args &a, int64_t r,
                                    int place) {
    const tamis_query &view = a.query;
    const int lane = threadIdx.x & 31, t = threadIdx.x / 32, c = lane & 3, h = 8 * t + lane / 4;
    const QueryRow row = query_row(view, r);
    const Scales k = scales_of<4>(load32(row.scales + h * view.scales_head_stride));
    const uint32_t depth = min(k.depth >> (8 * c) & 255u, (uint32_t)kFastSpan);
    const uint4 x = __ldg((const uint4 *)(row.codes + h * view.codes_head_stride) + c);
    float w = weight_of(view, row.weights, h, a.numerics == TAMIS_NUMERICS_BF16);
    uint32_t code[8];
    decode_chunk(x, 1u << (kFastSpan - depth), code);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        s.codes[32 * place + h][4 * (j ^ (h & 7)) + c] = code[j];
    }
    w = __fmul_rn(w, tamis_ue8m0(k.largest));
    const float weight = __fmul_rn(w, kSourceUnit);
    if (c == 0) {
        s.weights[place][h % 8 / 2][2 * t + h % 2] = weight;
    }
    if (k.span > kFastSpan || k.nan || !(__fmul_rn(weight, 1.0f / kSourceUnit) == w)) { /* NaN */
        atomicOr(&s.slow, 1u << place);
    }
}

/* ---- K ---- */

__device__ inline uint32_t kept_in_register(uint32_t x) {
    asm("" : "+r"(x));
    return x;
}

/* A warp's positions of turns, copied to shared memory one turn after another. */
template <int kRows> struct FewKeys {
    static constexpr int kHalves = kFewHalves<kRows>, kTurn = kFewTurn<kRows>,
                         kOwn = kFewOwn<kRows>;
    const Run &run;
    const Pages k;
    const uint8_t *codes, *scales; /* of the lane, in a page at k.base */
    uint32_t page;                 /* of the turn that is next */
    int32_t at, end;               /* the warp's first position of it, and past the last turn */
    int32_t whole;                 /* up to here a turn's positions are there and lie in one page */
    uint32_t ring, to_scales;      /* the lane's first place, and from a place to its scales */

    __device__ FewKeys(const tamis_mqa_logits_args &a, const Run &run, int32_t first, int32_t end,
                       uint32_t ring, uint32_t scales_at)
        : run(run), k(pages_of(a, run)), at(own_of(first)), end(min(own_of(end), run.longest)),
          ring(kept_in_register(ring)), to_scales(kept_in_register(scales_at - ring)) {
        const uint32_t lane = threadIdx.x & 31;
        const bool paged = (k.start & (kOwn - 1)) == 0 && k.mask + 1 >= kOwn;
        whole = paged ? min(this->end, run.longest - kOwn + 1) : 0;
        codes = opaque(k.base + lane * 16);
        scales = opaque(k.base + ((k.mask + 1) * 64 + (8 * (lane & 3) + lane / 4) * 4));
        page = page_of(at);
    }

    __device__ static int32_t own_of(int32_t turn) {
        return turn * kTurn + (int)(threadIdx.x / 32) * kOwn;
    }

    __device__ uint32_t page_of(int32_t position) const {
        return load_word(k.pages + (readable(k, position) >> k.shift));
    }

    __device__ void copy(uint32_t to) {
        if (at < whole) {
            const uint32_t place = page * k.stride, slot = (uint32_t)(k.start + at) & k.mask;
            const uint8_t *p = codes + (uint64_t)(place + slot * 4) * 16;
            const uint8_t *q = opaque(scales + (uint64_t)place * 16) + (uint64_t)slot * 4;
#pragma unroll
            for (int b = 0; b < 4 * kHalves; b++) {
                asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to + 512 * b),
                             "l"(p + 512 * b));
            }
#pragma unroll
            for (int h = 0; h < kHalves; h++) {
                asm volatile(
                    "cp.async.ca.shared.global [%0],[%1],4;" ::"r"(to + to_scales + 128 * h),
                    "l"(q + 128 * h));
            }
            page = page_of(at + kTurn);
        } else if (at < end) {
            copy_apart(to);
        }
        at += kTurn;
        asm volatile("cp.async.commit_group;");
    }

    /* Positions one by one; what the run does not see becomes 0. */
    __device__ void copy_apart(uint32_t to) const {
        const int lane = threadIdx.x & 31, r = lane / 4, c = lane & 3;
#pragma unroll 1
        for (int b = 0; b < 5 * kHalves; b++) {
            const int h = b - 4 * kHalves; /* scales of a half, or block b */
            const int32_t j = at + r + (h < 0 ? 8 * b : 32 * h + 8 * c);
            const uint32_t page = page_at(k, j), slot = readable(k, j) & k.mask;
            const uint8_t *p = k.base + (uint64_t)page * 16;
            if (h < 0) {
                asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to + 512 * b),
                             "l"(p + slot * 64 + c * 16), "r"(j < run.longest ? 16 : 0));
            } else {
                asm volatile(
                    "cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(to + to_scales + 128 * h),
                    "l"(p + (k.mask + 1) * 64 + slot * 4), "r"(j < run.longest ? 4 : 0));
            }
        }
    }
};

/* ---- maxima ---- */

/* Of kCount scores of position `lane / 4` of blocks `lane % 4`: the one whose maximum the lane ends
 * with, and whether it is the one that stores. */
template <int kCount> __device__ inline int few_entry() {
    const int lane = threadIdx.x & 31;
    return kCount == 1 ? 0 : kCount == 2 ? lane / 16 : lane / 16 * 2 + lane / 8 % 2;
}
template <int kCount> __device__ inline bool few_stores() {
    const int lane = threadIdx.x & 31;
    return (lane & (kCount == 1 ? 28 : kCount == 2 ? 12 : 4)) == 0;
}

__device__ inline float exchange_max(float low, float high, int bit) {
    const bool upper = threadIdx.x & (unsigned)bit;
    return fmaxf(upper ? high : low, __shfl_xor_sync(kAll, upper ? low : high, bit));
}

/* The maximum of score few_entry() over its block's positions. */
template <int kCount> __device__ inline float few_maximum(const float (&score)[kCount]) {
    float best;
    if (kCount == 4) {
        best = exchange_max(exchange_max(score[0], score[2 % kCount], 16),
                            exchange_max(score[1 % kCount], score[3 % kCount], 16), 8);
    } else {
        best = kCount == 2 ? exchange_max(score[0], score[1 % kCount], 16)
                           : fmaxf(score[0], __shfl_xor_sync(kAll, score[0], 16));
        best = fmaxf(best, __shfl_xor_sync(kAll, best, 8));
    }
    return fmaxf(best, __shfl_xor_sync(kAll, best, 4));
}

/* ---- the work ---- */

/* Scores of a half turn, from the lane's place of it on; returns its scales. Lane 4 r + c ends with
 * position r of the warp's block c of the half. */
template <int kRows>
__device__ inline TurnScales score_half(FewShared<kRows> &s, uint32_t from, uint32_t scales,
                                        uint32_t unit, const Weights &kept, bool round,
                                        float (&score)[kRows]) {
    const uint32_t q = (uint32_t)__cvta_generic_to_shared(s.codes) / 16;
    const uint32_t tables = (uint32_t)__cvta_generic_to_shared(s.tables);
    uint32_t word;
    asm volatile("ld.shared.u32 %0,[%1];" : "=r"(word) : "r"(scales));
    const TurnScales own = turn_scales(word);
    auto table = [&](int b) {
        const uint4 t = load_shared(add_bytes(tables, __shfl_sync(kAll, own.depths, b, 4), unit));
        return Table{t.x, t.y, t.z, t.w};
    };
    float p[kRows][4];
    uint32_t d0[16 * kRows], d1[16 * kRows];
#pragma unroll
    for (int b = 0; b < 4; b += 2) {
        uint32_t(&d)[16 * kRows] = b ? d1 : d0;
        uint32_t t[4][4];
        decode_pair(t, load_shared(from + 512 * b), load_shared(from + 512 * b + 512), table(b),
                    table(b + 1));
        multiply(d, t, q);
        multiply_wait<0>(d);
#pragma unroll
        for (int m = 0; m < kRows; m++) {
            weigh_signed(kRows == 1 ? kept : load_weights(s.weights[m]), d + 16 * m, p[m][b],
                         p[m][b + 1]);
        }
    }
    float scale = __uint_as_float(max(own.largest << 23, 0x00400000u)); /* 2^-127: subnormal */
    scale = (own.largest & 255u) == TAMIS_SCALE_NAN ? __uint_as_float(TAMIS_NAN_BITS) : scale;
#pragma unroll
    for (int m = 0; m < kRows; m++) {
        score[m] = __fmul_rn(add_chains(p[m]), scale);
        if (round) {
            score[m] = tamis_round_bf16(score[m]);
        }
    }
    return own;
}

/* Turns first .. end - 1 of a run whose q is in s; whether a position was wide. */
template <int kRows>
__device__ inline bool score_few(const tamis_mqa_logits_args &a, const Run &run, int32_t first,
                                 int32_t end, FewShared<kRows> &s, FewKeys<kRows> &keys) {
    using Own = FewKeys<kRows>;
    constexpr int kHalves = Own::kHalves, kCount = kRows * kHalves, kStages = kFewStages<kRows>;
    constexpr uint32_t kStageBytes = sizeof s.ring[0];
    const uint32_t lane = threadIdx.x & 31, c = lane & 3;
    const uint32_t ring = keys.ring, unit = kept_in_register(16u << (8 * c));
    const bool round = a.numerics == TAMIS_NUMERICS_BF16, wider = a.block_size == 16;
    const int row = few_entry<kCount>() / kHalves, half = few_entry<kCount>() % kHalves;
    int32_t shortest = s.length[0], own_length = few_stores<kCount>() ? s.length[row] : 0;
    for (int m = 1; m < kRows; m++) {
        shortest = min(shortest, s.length[m]);
    }
    if (wider && (c & 1)) {
        own_length = 0;
    }
    /* Positions left from the warp's next ones on, and from the lane's next block on. */
    int32_t left = shortest - Own::own_of(first);
    own_length -= Own::own_of(first) + 32 * half + 8 * (int32_t)c;
    float *out = maxima_of_row(a.block_max, a.block_max_stride, s.rows.at,
                               run.row + min(row, run.count - 1)) +
                 (Own::own_of(first) / 8 + 4 * half + (int32_t)c >> (wider ? 1 : 0));
    out = opaque(out);
    uint32_t stage = ring, free = ring + (kStages - 1) * kStageBytes;
    const Weights kept = load_weights(s.weights[0]); /* of a single row */
    uint32_t wide = 0;
#pragma unroll 1
    for (int32_t turn = first; turn < end; turn++) {
        keys.copy(free);
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
        float score[kCount];
        uint32_t depths[kHalves];
#pragma unroll
        for (int h = 0; h < kHalves; h++) {
            float own[kRows];
            depths[h] = score_half<kRows>(s, stage + 2048 * h, stage + keys.to_scales + 128 * h,
                                          unit, kept, round, own)
                            .wide;
#pragma unroll
            for (int m = 0; m < kRows; m++) {
                score[m * kHalves + h] = own[m];
            }
        }
        free = stage;
        stage = stage == ring + (kStages - 1) * kStageBytes ? ring : stage + kStageBytes;
        if (left < Own::kOwn) {
#pragma unroll
            for (int h = 0; h < kHalves; h++) {
                const int32_t j = Own::own_of(turn) + 32 * h + 8 * (int32_t)c + (int32_t)lane / 4;
#pragma unroll
                for (int m = 0; m < kRows; m++) {
                    float &x = score[m * kHalves + h];
                    x = j < s.length[m] ? x : __uint_as_float(TAMIS_NAN_BITS);
                }
                depths[h] = j < run.longest ? depths[h] : 0;
            }
        }
#pragma unroll
        for (int h = 0; h < kHalves; h++) {
            wide |= depths[h];
        }
        left -= Own::kTurn;
        float best = few_maximum(score);
        if (wider) {
            best = fmaxf(best, __shfl_xor_sync(kAll, best, 1));
        }
        if (own_length > 0) { /* the block's first position is there */
            asm volatile("st.global.f32 [%0],%1;" ::"l"(out), "f"(stored_maximum(best)) : "memory");
        }
        own_length -= Own::kTurn;
        out += Own::kTurn / 8 >> (wider ? 1 : 0);
    }
    return wide != 0;
}

/* Part i of the CTA's work. Whole CTA. */
template <int kRows>
__device__ inline void few_part(const tamis_mqa_logits_args &a, int i, FewShared<kRows> &s) {
    __syncthreads(); /* the part before is no longer read */
    const FewPart &part = s.parts[i];
    const int64_t first_row = part.row;
    if (threadIdx.x == 0) {
        s.slow = 0;
    }
    if (threadIdx.x < kRows) {
        const int m = threadIdx.x;
        s.length[m] = m < part.count ? source_length(a, first_row + m) : 0;
    }
    const Row row = row_of(a.rows, first_row, positions_of(a.rows, a.k));
    const Run run = {first_row, part.count, part.longest, (int32_t)row.start, row.pages};
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    FewKeys<kRows> keys(a, run, part.first, part.end,
                        (uint32_t)__cvta_generic_to_shared(&s.ring[0][warp].codes[0][lane]),
                        (uint32_t)__cvta_generic_to_shared(&s.ring[0][warp].scales[0][lane]));
    for (int m = 0; m < kFewStages<kRows> - 1; m++) { /* while q is loaded */
        keys.copy(keys.ring + m * (uint32_t)sizeof s.ring[0]);
    }
    __syncthreads();
    for (int m = 0; m < part.count; m++) {
        load_few_row(s, a, first_row + m, m);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (__syncthreads_or(score_few(a, run, part.first, part.end, s, keys)) || s.slow) {
        constexpr int kTiles = kFewTurn<kRows> / kSourceTile;
        score_left<false>(a, s.rows.at, nullptr, run, part.first * kTiles, part.end * kTiles,
                          s.slow);
    }
}

template <int kRows>
__device__ inline void source_few(const tamis_mqa_logits_args &a, const tamis_row_tile &tile) {
    __shared__ FewShared<kRows> s;
    const int lane = threadIdx.x & 31;
    const TileRows rows = rows_of(tile, a.rows.count);
    if (threadIdx.x == 0) {
        s.rows = rows;
    }
    auto scan = [&](int64_t base, int32_t &count, int32_t &longest) {
        const bool starts = run_at<kRows>(a, rows.end, base + lane, count, longest);
        return starts ? (int32_t)((longest + (int64_t)kFewTurn<kRows> - 1) / kFewTurn<kRows>) : 0;
    };
    if (threadIdx.x < 4) {
        s.tables[threadIdx.x] = raised_table(8u >> threadIdx.x);
    }
    int32_t count, longest, units;
    int64_t all = 0, at = 0; /* units: at all, and before a row */
    for (int64_t base = rows.first; base < rows.end; base += 32) {
        units = scan(base, count, longest);
        all += __reduce_add_sync(kAll, (uint32_t)units);
    }
    const int64_t next = (int64_t)blockIdx.x + 1;
    const int64_t lo = all / gridDim.x * blockIdx.x + all % gridDim.x * blockIdx.x / gridDim.x;
    const int64_t hi = all / gridDim.x * next + all % gridDim.x * next / gridDim.x;
    for (int64_t base = rows.first; base < rows.end && at < hi; base += 32) {
        if (rows.end - rows.first > 32) {
            units = scan(base, count, longest);
        }
        int64_t sum = sum_to_lane<int64_t>(units);
        const int64_t from = at + sum - units;
        const int32_t first = (int32_t)max(lo - from, (int64_t)0);
        const int32_t end = (int32_t)min(hi - from, (int64_t)units);
        const uint32_t mine = __ballot_sync(kAll, first < end);
        at += __shfl_sync(kAll, sum, 31);
        __syncthreads();
        if (threadIdx.x < 32 && first < end) {
            s.parts[__popc(mine & ((1u << lane) - 1))] = {base + lane, count, longest, first, end};
        }
        for (int i = 0; i < __popc(mine); i++) {
            few_part(a, i, s);
        }
    }
}

} // namespace hopper
} // namespace tamis

/* Rows one by one, two at a time, four at a time. */
extern "C" __global__ void __launch_bounds__(tamis::hopper::kFewThreads, tamis::hopper::kFewCtas<1>)
    tamis_mqa_maxima_few1_sm90(const __grid_constant__ tamis_mqa_logits_args a,
                               const __grid_constant__ tamis_row_tile tile) {
    tamis::hopper::source_few<1>(a, tile);
}
extern "C" __global__ void __launch_bounds__(tamis::hopper::kFewThreads, tamis::hopper::kFewCtas<2>)
    tamis_mqa_maxima_few2_sm90(const __grid_constant__ tamis_mqa_logits_args a,
                               const __grid_constant__ tamis_row_tile tile) {
    tamis::hopper::source_few<2>(a, tile);
}
extern "C" __global__ void __launch_bounds__(tamis::hopper::kFewThreads, tamis::hopper::kFewCtas<4>)
    tamis_mqa_maxima_few4_sm90(const __grid_constant__ tamis_mqa_logits_args a,
                               const __grid_constant__ tamis_row_tile tile) {
    tamis::hopper::source_few<4>(a, tile);
}

#endif
