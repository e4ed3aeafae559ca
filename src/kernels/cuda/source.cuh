/* SPDX-License-Identifier: MIT */
/*
 * source.cuh: everything a row sees, scored for up to eight neighbouring rows of one request at a
 * time (a run), so that K is loaded and decoded once for all of them: what the portable kernel
 * (source_smxx.cu) and Hopper's (source_sm90.cu) share. The bits of score.cuh.
 *
 * K and q become signed bytes raised by 3 - depth of their group, so four chained integer MMAs give
 * the whole dot s, |s| < 2^20.2, with nothing to take away. Read as a float, an s >= 0 is the
 * subnormal s * 2^-149 and a negative one is a NaN; one multiplication by 2^127 that saturates
 * makes them max(0, s) * 2^-22, exactly. What was scaled is put back into the weights where that is
 * exact. Rows where it is not, wide rows, and tiles with a wide position are scored again by
 * score_tile, after the same CTA has written what the fast path makes of them.
 *
 * CTAs have equal, contiguous shares of all tiles of all runs, counted by live length.
 */
#ifndef TAMIS_CUDA_SOURCE_CUH
#define TAMIS_CUDA_SOURCE_CUH

#include "score_fast.cuh"
#include "source_runs.cuh"

namespace tamis {

constexpr float kSourceUnit = 16384.0f; /* 2^22 of relu_of / 2^8 of doubled, raised codes */

/* max(0, s) * 2^-22 of an integer |s| <= 2^22. */
__device__ inline float relu_of(uint32_t s) {
    float d;
    asm("mul.rn.sat.f32 %0,%1,%2;" : "=f"(d) : "f"(__uint_as_float(s)), "f"(0x1p127f));
    return d;
}

__device__ inline void mma_signed(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                  uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_signed_start(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

/* Magnitudes raised, and 128 less them. */
__device__ inline Table signed_table(uint32_t factor) {
    Table t;
    t.low = kLow * factor;
    t.high = kHigh * factor;
    t.less_low = 0x80808080u - t.low;
    t.less_high = 0x80808080u - t.high;
    return t;
}

/* Four codes of the low half of x as signed raised bytes. bare = x & 0x7777. */
__device__ inline uint32_t decode4_signed(const Table &t, uint32_t x, uint32_t bare) {
    return (2 * prmt(t.low, t.high, x) + prmt(t.less_low, t.less_high, bare)) ^ 0x80808080u;
}

/* A lane's 16 bytes: words 2 j and 2 j + 1 are the low and the high half of word j. */
__device__ inline void decode_chunk(uint4 x, uint32_t factor, uint32_t (&out)[8]) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    const Table t = signed_table(factor);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t bare = words[j] & 0x77777777u;
        out[2 * j] = decode4_signed(t, words[j], bare);
        out[2 * j + 1] = decode4_signed(t, words[j] >> 16, bare >> 16);
    }
}

/* ---- K ---- */

struct Pages {
    const uint8_t *base;
    const int32_t *pages;
    uint32_t stride, shift, mask; /* stride: in units of 16 bytes */
    int32_t start, last;          /* last: the run's last visible position */
};

__device__ inline Pages pages_of(const tamis_mqa_logits_args &a, const Run &run) {
    Pages p;
    p.base = a.k.codes;
    p.pages = run.pages;
    p.stride = (uint32_t)(a.k.stride / 16);
    p.shift = (uint32_t)__ffs(a.k.page_size) - 1;
    p.mask = (uint32_t)a.k.page_size - 1;
    p.start = run.start;
    p.last = run.longest - 1;
    return p;
}

/* A position that can be read: `position`, or the last. */
__device__ inline uint32_t readable(const Pages &p, int32_t position) {
    return (uint32_t)(p.start + min(position, p.last));
}

/* The page's place, in units of 16 bytes. */
__device__ inline uint32_t page_at(const Pages &p, int32_t position) {
    return load_word(p.pages + (readable(p, position) >> p.shift)) * p.stride;
}

/* Chunk c of the position's codes; `page` is its page's place. */
__device__ inline uint4 codes_at(const Pages &p, uint32_t page, int32_t position, int c) {
    uint32_t place = page + (readable(p, position) & p.mask) * 4 + (uint32_t)c;
    return load_chunk(p.base + (uint64_t)place * 16);
}

__device__ inline uint32_t scales_at(const Pages &p, uint32_t page, int32_t position) {
    uint32_t slot = readable(p, position) & p.mask;
    return load_word(p.base + (uint64_t)(page + (p.mask + 1) * 4) * 16 + slot * 4);
}

/* ---- q ---- */

/* Where head h of a run's row lies: an accumulator fragment then gives lane c of each four all
 * heads of rows 2 c and 2 c + 1. */
__device__ inline int line_of(int place, int h) {
    return place % 2 * 128 + h / 2 * 8 + place / 2 * 2 + h % 2;
}

__device__ inline uint32_t &word_of(SourceShared &s, int line, int j, int c) {
    return s.codes[line][4 * (j ^ line % 8) + c];
}

/* Rows row .. row + count - 1 into s.codes and s.weights; s.slow gets those that are not fast. The
 * caller made s.slow 0 before a barrier, and has one after. */
__device__ inline void load_rows(const tamis_mqa_logits_args &a, int64_t first, int count,
                                 SourceShared &s) {
    const tamis_query &view = a.query;
    const bool round = a.numerics == TAMIS_NUMERICS_BF16;
    const int c = threadIdx.x & 3;
    for (int i = threadIdx.x / 4; i < count * 32; i += kSourceThreads / 4) {
        const int h = i % 32;
        const QueryRow row = query_row(view, first + i / 32);
        const Scales scales = scales_of<4>(load32(row.scales + h * view.scales_head_stride));
        const uint32_t depth = min(scales.depth >> (8 * c) & 255u, (uint32_t)kFastSpan);
        uint4 x = __ldg((const uint4 *)(row.codes + h * view.codes_head_stride) + c);
        uint32_t code[8];
        decode_chunk(x, 1u << (kFastSpan - depth), code);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            word_of(s, line_of(i / 32, h), j, c) = code[j];
        }
        if (c == 0) {
            float w = weight_of(view, row.weights, h, round);
            w = __fmul_rn(w, tamis_ue8m0(scales.largest));
            float weight = __fmul_rn(w, kSourceUnit);
            s.weights[i / 32][h] = weight;
            if (scales.span > kFastSpan || scales.nan ||
                !(__fmul_rn(weight, 1.0f / kSourceUnit) == w)) { /* NaN, too */
                atomicOr(&s.slow, 1u << (i / 32));
            }
        }
    }
}

/* ---- outputs ---- */

/* A block's maximum as it is stored: one NaN, one zero. */
__device__ inline float stored_maximum(float best) {
    return tamis_canonical(best);
}

/* A logit as it is stored: one NaN. */
__device__ inline float stored_logit(float score) {
    return tamis_is_nan(score) ? __uint_as_float(TAMIS_NAN_BITS) : score;
}

__device__ inline void store_logit(const tamis_mqa_logits_args &a, int64_t line, int32_t position,
                                   float score) {
    tamis_store_float(a.logits, a.logits_type, line + position, stored_logit(score));
}

/* ---- what the fast path leaves ---- */

/* Tiles first .. end - 1 of the run: slow rows everywhere, other rows where sixteen positions have
 * a wide one. maxima_at: as of TileRows; lines: of the run's rows, where there are scores. Whole
 * CTA, of any number of warps. */
template <bool kLogits>
__device__ inline void score_left(const tamis_mqa_logits_args &a, const uint32_t *maxima_at,
                                  const int64_t *lines, const Run &run, int32_t first, int32_t end,
                                  uint32_t slow) {
    const int lane = threadIdx.x & 31;
    const Pages k = pages_of(a, run);
#pragma unroll 1
    for (int i = 0; i < run.count; i++) {
        const int64_t r = run.row + i;
        const int32_t length = source_length(a, r);
        const bool all = slow >> i & 1;
        auto q = load_query<32, 4>(a.query, r, a.numerics);
#pragma unroll 1
        for (int32_t base = first * kSourceTile + (int)threadIdx.x / 32 * kTile;
             base < min(end * kSourceTile, length); base += (int)blockDim.x / 32 * kTile) {
            Keys keys;
            bool live[2], wide = false;
            float score[2];
#pragma unroll
            for (int b = 0; b < 2; b++) {
                int32_t j = base + 8 * b + lane / 4;
                live[b] = j < length;
                uint32_t at = readable(k, j);
                const uint8_t *page = k.base + (uint64_t)page_at(k, j) * 16;
                keys.codes[b] = live[b] ? page + (at & k.mask) * 64 : nullptr;
                keys.scales[b] = live[b] ? page + (k.mask + 1) * 64 + (at & k.mask) * 4 : nullptr;
                wide |= live[b] && fast_scales(load32(keys.scales[b])).wide;
            }
            if (!all && !__any_sync(kAll, wide)) {
                continue;
            }
            score_tile(q, a.query, r, keys, score);
            float best[2];
#pragma unroll
            for (int b = 0; b < 2; b++) {
                int32_t j = base + 8 * b + lane / 4;
                if (a.logits && (lane & 3) == 0 && live[b]) {
                    store_logit(a, kLogits ? lines[i] : r * a.logits_stride, j, score[b]);
                }
                uint32_t key = live[b] ? tamis_order_key(score[b]) : 0;
                best[b] = score_of_key(__reduce_max_sync(kAll, key));
            }
            if (a.block_max && lane == 0) {
                float *out = maxima_of_row(a.block_max, a.block_max_stride, maxima_at, r);
                if (a.block_size == 16) {
                    out[base / 16] = stored_maximum(fmaxf(best[0], best[1]));
                } else {
                    out[base / 8] = best[0];
                    if (base + 8 < length) {
                        out[base / 8 + 1] = best[1];
                    }
                }
            }
        }
    }
}

/* Logits past a row's length up to a.columns. */
__device__ inline void fill_logits(const tamis_mqa_logits_args &a) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t r = 0; r < a.rows.count; r++) {
        int64_t j = source_length(a, r) + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
        for (; j < a.columns; j += step) {
            tamis_store_float(a.logits, a.logits_type, r * a.logits_stride + j, -INFINITY);
        }
    }
}

/* ---- one row ---- */

/* Tiles first .. end - 1 of row `place` of the run, whose q is in s: a warp takes 32 positions at a
 * time, lane 4 r + c ends with position 8 c + r. Whether a position was wide. */
template <bool kLogits>
__device__ inline bool score_one(const tamis_mqa_logits_args &a, const Run &run, int place,
                                 int32_t first, int32_t end, SourceShared &s) {
    constexpr int kAhead = 2, kStep = 32;
    const int lane = threadIdx.x & 31, r = lane / 4, c = lane & 3;
    const Pages k = pages_of(a, run);
    const int64_t row = run.row + place;
    const int32_t length = s.length[place];
    const bool round = a.numerics == TAMIS_NUMERICS_BF16;
    float *const out = maxima_of_row(a.block_max, a.block_max_stride, s.rows.at, row);
    int32_t base = first * kSourceTile + (int)threadIdx.x / 32 * kStep;
    const int32_t hop = kSourceWarps * kStep;
    end = min(end * (int64_t)kSourceTile, (int64_t)length);
    bool wide = false;
    uint4 x[kAhead][4];
    uint32_t word[kAhead];
    auto load = [&](int i, int32_t at) {
        word[i] = scales_at(k, page_at(k, at + 8 * c + r), at + 8 * c + r);
#pragma unroll
        for (int b = 0; b < 4; b++) {
            x[i][b] = codes_at(k, page_at(k, at + 8 * b + r), at + 8 * b + r, c);
        }
    };
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
        load(i, base + i * hop);
    }
    uint32_t code[4][8];
    float2 weight[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            code[t][j] = word_of(s, line_of(place, 8 * t + r), j, c);
        }
        weight[t] = *(const float2 *)&s.weights[place][8 * t + 2 * c];
    }
#pragma unroll 1
    for (; base < end; base += kAhead * hop) {
#pragma unroll
        for (int i = 0; i < kAhead; i++) {
            const int32_t at = base + i * hop;
            if (at >= end) {
                break;
            }
            const FastScales own = fast_scales(word[i]);
            float p[4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t a0[8], a1[8], total[4][4];
                decode_chunk(x[i][2 * half], own_factor(own, 2 * half), a0);
                decode_chunk(x[i][2 * half + 1], own_factor(own, 2 * half + 1), a1);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint32_t frag[4] = {a0[2 * j], a1[2 * j], a0[2 * j + 1], a1[2 * j + 1]};
#pragma unroll
                    for (int t = 0; t < 4; t++) {
                        if (j == 0) {
                            mma_signed_start(total[t], frag, code[t][0], code[t][1]);
                        } else {
                            mma_signed(total[t], frag, code[t][2 * j], code[t][2 * j + 1]);
                        }
                    }
                }
                p[2 * half] = p[2 * half + 1] = 0.0f;
#pragma unroll
                for (int t = 0; t < 4; t++) {
                    p[2 * half] = __fmaf_rn(weight[t].x, relu_of(total[t][0]), p[2 * half]);
                    p[2 * half + 1] = __fmaf_rn(weight[t].x, relu_of(total[t][2]), p[2 * half + 1]);
                    p[2 * half] = __fmaf_rn(weight[t].y, relu_of(total[t][1]), p[2 * half]);
                    p[2 * half + 1] = __fmaf_rn(weight[t].y, relu_of(total[t][3]), p[2 * half + 1]);
                }
            }
            load(i, at + kAhead * hop);
            float score = __fmul_rn(add_chains(p), tamis_ue8m0(own.largest));
            score = round ? tamis_round_bf16(score) : score;
            const int32_t j = at + 8 * c + r;
            const bool live = j < length;
            wide |= live && own.wide;
            if (kLogits && live) {
                store_logit(a, s.line[place], j, score);
            }
            if (!kLogits || a.block_max) {
                float best = live ? score : __uint_as_float(TAMIS_NAN_BITS);
#pragma unroll
                for (int b = 4; b < 32; b *= 2) {
                    best = fmaxf(best, __shfl_xor_sync(kAll, best, b));
                }
                if (a.block_size == 16) {
                    best = fmaxf(best, __shfl_xor_sync(kAll, best, 1));
                }
                /* A block's first position, c's block, is there. */
                if (r == 0 && live && (a.block_size == 8 || (c & 1) == 0)) {
                    out[j >> (a.block_size == 16 ? 4 : 3)] = stored_maximum(best);
                }
            }
        }
    }
    return wide;
}

/* ---- the kernel ---- */

/* Tiles first .. end - 1 of a run. Whole CTA. */
template <bool kLogits, class Many>
__device__ inline void score_run(const tamis_mqa_logits_args &a, const Run &run, int32_t first,
                                 int32_t end, SourceShared &s, const Many &many) {
    __syncthreads(); /* the run before is no longer read */
    if (threadIdx.x < kRunRows) {
        const int place = threadIdx.x;
        s.length[place] = place < run.count ? source_length(a, run.row + place) : 0;
        if (kLogits) {
            s.line[place] = (run.row + place - s.rows.first) * s.stride;
        }
    }
    if (threadIdx.x == 0) {
        s.slow = 0;
    }
    __syncthreads();
    load_rows(a, run.row, run.count, s);
    many.publish();
    __syncthreads();
    bool left = false;
    if (run.count > kFewRows) {
        left = many.score(run, first, end);
    } else {
        for (int place = 0; place < run.count; place++) {
            left |= score_one<kLogits>(a, run, place, first, end, s);
        }
    }
    if (__syncthreads_or(left || s.slow)) {
        score_left<kLogits>(a, s.rows.at, s.line, run, first, end, s.slow);
    }
}

/* Scans rows of a wave, kSourceThreads from `base` on, those among which unit `lo` is, or later
 * ones up to unit `hi`. `at`: units before them. false: there are none. */
template <bool kLogits>
__device__ inline bool scan_to(const tamis_mqa_logits_args &a, int64_t wave, int64_t lo, int64_t hi,
                               int &base, int64_t &at, SourceShared &s) {
    const int64_t rows = min(s.rows.end - wave, (int64_t)kWaveRows);
    for (; base < rows && at < hi; base += kSourceThreads) {
        int64_t here = 0;
        for (int i = base / 32; i < (base + kSourceThreads) / 32 && 32 * i < rows; i++) {
            here += s.chunks[i];
        }
        if (at + here > lo) {
            scan_rows<kLogits>(a, wave + base, s);
            return true;
        }
        at += here;
    }
    return false;
}

/* The last of the scanned rows that begins by unit `lo` of them. */
__device__ inline int begun_by(int64_t lo, const SourceShared &s) {
    int i = 0;
    for (int step = kSourceThreads / 2; step > 0; step /= 2) {
        i += s.before[i + step] <= lo ? step : 0;
    }
    return i;
}

/*
 * Where a CTA begins its units lo .. hi - 1, to do those before that last: at a multiple of its
 * share of tiles, or with a run. All CTAs then go through the same parts of their runs at a time,
 * and what one has read the others find in L2. Where K stays there anyway, at lo.
 */
template <bool kLogits>
__device__ inline int64_t turn_of(const tamis_mqa_logits_args &a, int64_t wave, int64_t all,
                                  int64_t lo, int64_t hi, SourceShared &s) {
    const int64_t rows = min(s.rows.end - wave, (int64_t)kWaveRows);
    const int64_t share = (hi - lo) / kManyCost<kLogits> * kManyCost<kLogits>;
    int64_t at = 0;
    int base = 0;
    if (all / rows < kFarUnits<kLogits> || share == 0 ||
        !scan_to<kLogits>(a, wave, lo, hi, base, at, s)) {
        return lo;
    }
    const int i = begun_by(lo - at, s);
    const int64_t from = at + s.before[i];
    const int64_t turn = from + min((lo - from + share - 1) / share * share, (int64_t)s.units[i]);
    __syncthreads(); /* s.before and others are written again */
    return turn < hi ? turn : lo;
}

/* Units lo .. hi - 1 of kWaveRows rows. */
template <bool kLogits, class Many>
__device__ inline void score_units(const tamis_mqa_logits_args &a, int64_t wave, int64_t lo,
                                   int64_t hi, SourceShared &s, const Many &many) {
    int64_t at = 0;
    for (int base = 0; scan_to<kLogits>(a, wave, lo, hi, base, at, s); base += kSourceThreads) {
        for (int i = begun_by(lo - at, s); i < kSourceThreads && at + s.before[i] < hi; i++) {
            const int32_t units = s.units[i];
            const int64_t from = at + s.before[i];
            if (from + units <= lo) {
                continue;
            }
            const Row row = row_of(a.rows, wave + base + i, positions_of(a.rows, a.k));
            const Run run = {wave + base + i, s.count[i], s.longest[i], (int32_t)row.start,
                             row.pages};
            const int cost = cost_of<kLogits>(run.count);
            const int32_t first = lo <= from ? 0 : (int32_t)((lo - from + cost - 1) / cost);
            const int32_t end = (int32_t)((min(hi, from + units) - from + cost - 1) / cost);
            if (first < end) {
                score_run<kLogits>(a, run, first, end, s, many);
            }
        }
        at += s.before[kSourceThreads - 1] + s.units[kSourceThreads - 1];
        __syncthreads(); /* s.units and others are written again */
    }
}

/*
 * The CTA's share of kWaveRows rows. many.score(run, first, end) does tiles of a run of more than
 * kFewRows rows, and says whether a position was wide; many.publish() follows writes of s.codes.
 */
template <bool kLogits, class Many>
__device__ inline void source_wave(const tamis_mqa_logits_args &a, int64_t wave, SourceShared &s,
                                   const Many &many) {
    const int64_t all = scan_wave<kLogits>(a, wave, s), next = (int64_t)blockIdx.x + 1;
    const int64_t lo = all / gridDim.x * blockIdx.x + all % gridDim.x * blockIdx.x / gridDim.x;
    const int64_t hi = all / gridDim.x * next + all % gridDim.x * next / gridDim.x;
    const int64_t turn = turn_of<kLogits>(a, wave, all, lo, hi, s);
#pragma unroll 1
    for (int part = 0; part < (turn > lo ? 2 : 1); part++) {
        score_units<kLogits>(a, wave, part ? lo : turn, part ? turn : hi, s, many);
    }
}

/* To s.rows and s.stride. One thread. */
__device__ inline void take_rows(const tamis_mqa_logits_args &a, const tamis_row_tile &tile,
                                 SourceShared &s) {
    s.rows = rows_of(tile, a.rows.count);
}

__device__ inline void take_rows(const tamis_mqa_logits_args &a, const tamis_score_tile &tile,
                                 SourceShared &s) {
    const ScoreRows rows = rows_of(tile, a.rows.count, a.logits_stride);
    s.rows = {rows.first, rows.end, nullptr};
    s.stride = rows.stride;
}

/* Tile: of block maxima, or of scores. */
template <bool kLogits, class Tile, class Many>
__device__ inline void source_share(const tamis_mqa_logits_args &a, const Tile &tile,
                                    SourceShared &s, const Many &many) {
    if (threadIdx.x == 0) {
        take_rows(a, tile, s);
    }
    __syncthreads();
    for (int64_t wave = s.rows.first; wave < s.rows.end; wave += kWaveRows) {
        source_wave<kLogits>(a, wave, s, many);
        __syncthreads(); /* s.chunks, too */
    }
}

} // namespace tamis

#endif
