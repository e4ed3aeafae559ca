/* SPDX-License-Identifier: MIT */
/*
 * consume_sm90.cu: a consumer's listed blocks scored by Hopper's wgmma and selected in the same
 * kernel: a warpgroup takes a row, or two neighbouring ones whose lists have much in common. Then K
 * of the blocks that both list is loaded and decoded once. The bits of score.cuh for rows of the
 * exact class whose spans are at most 3; the others are left to consume_fast_smxx.
 *
 * Codes become signed bytes raised by 3 - depth of their group, so four chained MMAs give the dot.
 * In an image without sm_90a the kernels are not there. Included after consume.cu.
 */
#include <type_traits>

#include "candidates.cuh"
#include "kernels/cuda/consume_args.h"
#include "kernels/cuda/raised_k.h"
#include "raised.cuh"
#include "union.cuh"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tamis {
namespace hopper {

constexpr int kTurn = 16;   /* blocks of a turn: four a warp */
constexpr int kBatch = 256; /* blocks placed at a time */
constexpr int kStages = 2;  /* the turn whose codes are on their way, and the one at work */

/* Hides where p comes from, so that it stays one register pair. */
__device__ inline const uint8_t *opaque(const uint8_t *p) {
    asm("" : "+l"(p));
    return p;
}

/* ---- what a CTA shares ---- */

/* As FastQuery's, in the 128-byte swizzle. */
template <int kRows> struct alignas(1024) GroupCodes { uint32_t codes[kRows * 32][32]; };

template <int kRows> struct alignas(16) GroupShared {
    Table tables[4];            /* of a group that lies this deep below the largest */
    float weights[kRows][4][8]; /* of chain c: heads 2 c, 2 c + 1, 8 + 2 c, .. */
    uint32_t places[kBatch], scales[kBatch];
    uint16_t ranks[kBatch]; /* in the list or the entries */
    uint16_t live[kBatch];  /* bit 8 m + r: position r of the block counts for row m */
    uint32_t sums[kGroupWarps][2];
    struct Run {
        RowPool rows[kRows];
        union {
            uint4 ring[kStages][kGroupWarps][4][32];
            struct { /* of the row that is written */
                uint32_t bits[kMaxColumns / 32];
                uint16_t before[kMaxColumns / 32];
            } marks;
        };
    };
    union {
        Run run;
        typename std::conditional<kRows == 2, UnionSet, int>::type set;
    };
};

/* ---- the query ---- */

/* Row r; whether it is fast. Whole CTA; leaves at a barrier. */
__device__ inline bool load_group_query(float (*weights)[8], uint32_t (*codes)[32],
                                        const tamis_query &view, int64_t r) {
    const int lane = threadIdx.x & 31, t = threadIdx.x / 32, c = lane & 3;
    const QueryRow row = query_row(view, r);
    const int h = 8 * t + lane / 4;
    const Scales k = scales_of<4>(load32(row.scales + h * view.scales_head_stride));
    const uint32_t raise = kFastSpan - min(k.depth >> (8 * c) & 255u, (uint32_t)kFastSpan);
    bool fast = k.span <= kFastSpan && !k.nan;
    const uint4 x = __ldg((const uint4 *)(row.codes + h * view.codes_head_stride) + c);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t half = words[j / 2] >> (16 * (j % 2));
        uint32_t code = prmt(kLow << raise, kHigh << raise, half) + 0x80808080u -
                        prmt(kLow << raise, kHigh << raise, half ^ 0x8888u);
        codes[h][4 * (j ^ (h & 7)) + c] = code ^ 0x80808080u;
    }
    if (lane < 8) {
        const int own = 8 * t + lane;
        const Scales o = scales_of<4>(load32(row.scales + own * view.scales_head_stride));
        const float w = __fmul_rn(weight_of(view, row.weights, own, false), tamis_ue8m0(o.largest));
        const float weight = __fmul_rn(w, kWeightUnit);
        fast &= __fmul_rn(weight, 1.0f / kWeightUnit) == w; /* false for NaN */
        weights[lane / 2][2 * t + (lane & 1)] = weight;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    return __syncthreads_and(fast);
}

/* ---- lists ---- */

/* The positions of block id that row `list` sees, as bits. */
__device__ inline uint32_t live_of(const Listed &list, int32_t id) {
    const int32_t visible = min(kBlock, list.length - id * kBlock);
    return visible > 0 ? (1u << visible) - 1 : 0;
}

/* Places blocks at .. at + kBatch - 1, those from `end` on as none. Whole CTA; leaves at a barrier.
 */
template <int kRows>
__device__ inline void place_batch(GroupShared<kRows> &s, const tamis_k_cache &k,
                                   const Listed (&lists)[kRows], const Blocks &blocks, int32_t at,
                                   int32_t end) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (int b = 0; b < kBatch / kGroupThreads; b++) {
        const int i = threadIdx.x + b * kGroupThreads;
        uint32_t live = 0, rank = (uint32_t)(at + i);
        Place p = {0, 0, 0};
        if (kRows == 1) {
            const int32_t id = listed_id(lists[0], at + i);
            p = place_of(k, lists[0], id, listed_where(lists[0], at + i, id));
            live = id < 0 ? 0 : live_of(lists[0], id);
        } else if (at + i < end) {
            rank = blocks.order[at + i];
            const uint32_t entry = blocks.entries[rank];
            const int32_t id = (int32_t)(entry >> 2);
            Listed paged = lists[0];
            paged.physical = nullptr;
            p = place_of(k, paged, id, listed_where(paged, 0, id));
            live = (entry & 1 ? live_of(lists[0], id) : 0) |
                   (entry & 2 ? live_of(lists[kRows - 1], id) << 8 : 0);
        }
        s.places[i] = p.codes;
        s.scales[i] = p.scales;
        s.ranks[i] = (uint16_t)rank;
        s.live[i] = (uint16_t)live;
    }
    __syncthreads();
}

/* ---- rows ---- */

/* Row r: the best of its pool, ascending. Whole CTA; from and to a barrier. */
template <int kRows>
__device__ inline void write_best(GroupShared<kRows> &s, RowPool &pool, Best &best,
                                  const tamis_selection &out, int64_t r, const Listed &list,
                                  const Blocks &blocks, int32_t page_size) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t count = sum_of_cta(s.sums, lane == 0 ? best.count : 0, 0);
    __syncthreads();
    if (count > (uint32_t)out.topk) {
        thin(s.sums, pool, best, (uint32_t)out.topk, (uint32_t)out.topk);
        count = (uint32_t)out.topk;
    }
    auto &marks = s.run.marks;
    const uint32_t words = (uint32_t)(blocks.count + 3) / 4; /* bits are columns */
    for (uint32_t i = threadIdx.x; i < words; i += kGroupThreads) {
        marks.bits[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = lane; i < best.count; i += 32) {
        const uint32_t column = pool.columns[warp][i];
        atomicOr(&marks.bits[column / 32], 1u << column % 32);
    }
    __syncthreads();
    uint32_t before = 0; /* marks of earlier words; every warp counts them all */
    for (uint32_t base = 0; base < words; base += 32) {
        const uint32_t own = base + lane < words ? (uint32_t)__popc(marks.bits[base + lane]) : 0;
        uint32_t sum = own;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            uint32_t other = __shfl_up_sync(kAll, sum, d);
            sum += lane >= d ? other : 0;
        }
        if (warp == base / 32 % kGroupWarps && base + lane < words) {
            marks.before[base + lane] = (uint16_t)(before + sum - own);
        }
        before += __shfl_sync(kAll, sum, 31);
    }
    __syncthreads();
    for (uint32_t i = lane; i < best.count; i += 32) {
        const uint32_t column = pool.columns[warp][i];
        const int64_t rank =
            marks.before[column / 32] + __popc(marks.bits[column / 32] & ((1u << column % 32) - 1));
        const int64_t id = kRows == 2 ? (int64_t)(blocks.entries[column / kBlock] >> 2)
                                      : (int64_t)list.blocks[column / kBlock];
        const int64_t j = id * kBlock + column % kBlock;
        if (out.positions) {
            out.positions[r * out.positions_stride + rank] = (int32_t)j;
        }
        if (out.slots) {
            out.slots[r * out.slots_stride + rank] = tamis_slot_of(list.pages, page_size, j);
        }
        if (out.scores) {
            out.scores[r * out.scores_stride + rank] =
                tamis_canonical(score_of_key(pool.keys[warp][i]));
        }
    }
    for (int64_t i = count + threadIdx.x; i < out.topk; i += kGroupThreads) {
        if (out.positions) {
            out.positions[r * out.positions_stride + i] = -1;
        }
        if (out.slots) {
            out.slots[r * out.slots_stride + i] = -1;
        }
        if (out.scores) {
            out.scores[r * out.scores_stride + i] = -INFINITY;
        }
    }
    if (out.counts && threadIdx.x == 0) {
        out.counts[r] = (int32_t)count;
    }
    __syncthreads();
}

/*
 * Scores blocks from .. end - 1 for kUsed rows, row `place` first. Turn i of a batch: blocks 16 i
 * .. 16 i + 15, four a warp, in two tiles of two. Lane 4 r + c ends with position r of the warp's
 * block c. worst: the largest magnitude, above what is finite where the fast path leaves a
 * position.
 */
template <int kRows, int kUsed>
__device__ inline void score_part(const tamis_sparse_mqa_logits_args &a, GroupShared<kRows> &s,
                                  uint32_t q, const Listed (&lists)[kRows], const Blocks &blocks,
                                  int32_t from, int32_t end, int place, uint32_t topk,
                                  Best (&best)[kUsed], uint32_t (&worst)[kUsed]) {
    const uint32_t lane = threadIdx.x & 31, c = lane & 3, warp = threadIdx.x / 32;
    const uint8_t *const codes = opaque(a.k.codes + lane * 16);
    const uint8_t *const scales = opaque(a.k.codes + lane / 4 * 4);
    const uint32_t unit = 16u << (8 * c), below = (1u << lane) - 1;
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared(&s.run.ring[0][warp][0][lane]);
    constexpr uint32_t kStageBytes = sizeof s.run.ring[0];
    const Weights kept = load_weights(s.weights[place]); /* of a single row */
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
    auto read = [&](uint32_t from, int b) {
        uint4 x;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(from + 512 * b));
        return x;
    };
    auto load_word = [&](uint32_t i) {
        return __ldg((const uint32_t *)(scales + (uint64_t)s.scales[i + c] * 16));
    };
    const uint32_t tables = (uint32_t)__cvta_generic_to_shared(s.tables);
    auto table = [&](uint32_t depths, int b) {
        Table t;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                     : "=r"(t.low), "=r"(t.high), "=r"(t.less_low), "=r"(t.less_high)
                     : "r"(add_bytes(tables, __shfl_sync(kAll, depths, (lane & ~3u) + b), unit)));
        return t;
    };
#pragma unroll 1
    for (int32_t at = from; at < end; at += kBatch) {
        place_batch(s, a.k, lists, blocks, at, end);
        const uint32_t last = (uint32_t)min(kBatch, end - at) + 4 * warp;
        uint32_t i = 4 * warp, stage = ring;
        uint32_t word = load_word(i);
        copy(ring, i);
#pragma unroll 1
        for (; i < last; i += kTurn) {
            float p[kUsed][4];
            uint32_t d0[16 * kUsed], d1[16 * kUsed];
            const TurnScales own = turn_scales(word);
            word = load_word((i + kTurn) & (kBatch - 1));
            copy(2 * ring + kStageBytes - stage,
                 (i + kTurn) & (kBatch - 1)); /* the last: in vain */
            const uint32_t live = (uint32_t)s.live[i + c] >> (lane / 4 + 8 * place);
            const uint32_t column = (uint32_t)s.ranks[i + c] * kBlock + lane / 4;
            asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
#pragma unroll
            for (int b = 0; b < 4; b += 2) {
                uint32_t(&d)[16 * kUsed] = b ? d1 : d0;
                uint32_t t[4][4];
                decode_pair(t, read(stage, b), read(stage, b + 1), table(own.depths, b),
                            table(own.depths, b + 1));
                multiply(d, t, q);
                multiply_wait<0>(d);
#pragma unroll
                for (int m = 0; m < kUsed; m++) {
                    weigh_signed(kUsed == 1 ? kept : load_weights(s.weights[place + m]), d + 16 * m,
                                 p[m][b], p[m][b + 1]);
                }
            }
            stage = 2 * ring + kStageBytes - stage;
            const float scale =
                __uint_as_float(own.wide ? TAMIS_NAN_BITS : max(own.largest << 23, 0x00400000u));
#pragma unroll
            for (int m = 0; m < kUsed; m++) {
                const float score = __fmul_rn(add_chains(p[m]), scale);
                const bool counts = live & 1u << 8 * m;
                worst[m] = max(worst[m], counts ? __float_as_uint(score) & 0x7FFFFFFFu : 0);
                const uint32_t key = ordered_key(score);
                const bool pass = counts && key >= best[m].floor;
                const uint32_t lanes = __ballot_sync(kAll, pass);
                const uint32_t to = best[m].count + (uint32_t)__popc(lanes & below);
                if (pass) {
                    s.run.rows[place + m].keys[warp][to] = key;
                    s.run.rows[place + m].columns[warp][to] = (uint16_t)column;
                }
                best[m].count += (uint32_t)__popc(lanes);
            }
            if ((i & (kRound - 1) * kTurn) == (kRound - 1) * kTurn) {
                bool full = false;
#pragma unroll
                for (int m = 0; m < kUsed; m++) {
                    full |= best[m].count > kSegment - 32 * kRound;
                }
                if (__syncthreads_or(full)) {
#pragma unroll
                    for (int m = 0; m < kUsed; m++) {
                        thin(s.sums, s.run.rows[place + m], best[m], topk, topk + topk / 4);
                    }
                }
            }
        }
    }
}

/* Rows first .. first + kRows - 1 from their blocks to what they select; done: whether they are. */
template <int kRows>
__device__ inline void consume_group(const tamis_sparse_mqa_logits_args &a,
                                     const tamis_selection &out, GroupShared<kRows> &s,
                                     const Listed (&lists)[kRows], const Blocks &blocks,
                                     int64_t first, int32_t *done) {
    __shared__ GroupCodes<kRows> q;
    bool fast[kRows], any = false;
    Best best[kRows];
    if (threadIdx.x < 4) {
        s.tables[threadIdx.x] = raised_table(8u >> threadIdx.x);
    }
#pragma unroll
    for (int m = 0; m < kRows; m++) {
        /* A row that sees nothing may have no query. */
        fast[m] = blocks.count == 0 ||
                  load_group_query(s.weights[m], q.codes + 32 * m, a.query, first + m);
        any |= fast[m] && blocks.count > 0;
        best[m] = {0, 1};
    }
    uint32_t worst[kRows] = {};
    const uint32_t matrix = (uint32_t)__cvta_generic_to_shared(&q) / 16;
    if (any && kRows == 2) {
        score_part<kRows, kRows>(a, s, matrix, lists, blocks, 0, blocks.both, 0, (uint32_t)out.topk,
                                 best, worst);
#pragma unroll 1
        for (int m = 0; m < 2; m++) {
            const int32_t from = blocks.both + (m ? blocks.first : 0);
            Best own[1] = {m ? best[kRows - 1] : best[0]};
            uint32_t own_worst[1] = {0};
            score_part<kRows, 1>(a, s, matrix + 256 * m, lists, blocks, from,
                                 m ? blocks.count : from + blocks.first, m, (uint32_t)out.topk, own,
                                 own_worst);
            if (m) {
                best[kRows - 1] = own[0];
                worst[kRows - 1] = max(worst[kRows - 1], own_worst[0]);
            } else {
                best[0] = own[0];
                worst[0] = max(worst[0], own_worst[0]);
            }
        }
    } else if (any) {
        Best own[1] = {best[0]};
        uint32_t own_worst[1] = {0};
        score_part<kRows, 1>(a, s, matrix, lists, blocks, 0, blocks.count, 0, (uint32_t)out.topk,
                             own, own_worst);
        best[0] = own[0];
        worst[0] = own_worst[0];
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    uint32_t odd = 0;
#pragma unroll
    for (int m = 0; m < kRows; m++) {
        odd |= __syncthreads_or(worst[m] >= 0x7F800000u) ? 1u << m : 0;
    }
#pragma unroll
    for (int m = 0; m < kRows; m++) {
        const bool whole = fast[m] && !(odd >> m & 1);
        if (whole) {
            write_best(s, s.run.rows[m], best[m], out, first + m, lists[m], blocks, a.k.page_size);
        }
        if (threadIdx.x == 0) {
            done[first + m] = whole;
        }
    }
}

} // namespace hopper
} // namespace tamis

static_assert(sizeof(tamis::hopper::GroupShared<1>) == TAMIS_CONSUME_ROWS_BYTES &&
                  sizeof(tamis::hopper::GroupShared<2>) == TAMIS_CONSUME_PAIRS_BYTES &&
                  tamis::hopper::kMaxTopk == TAMIS_CONSUME_MAX_TOPK &&
                  tamis::hopper::kMaxColumns == tamis::kBlock * TAMIS_CONSUME_MAX_WIDTH,
              "consume_args.h");

/* Pairs of rows whose lists have much in common. What it leaves has done 0. entries: 3 a.width
 * words a pair. */
extern "C" __global__ void __launch_bounds__(tamis::hopper::kGroupThreads, 4)
    tamis_consume_pairs_sm90(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                             const __grid_constant__ tamis_selection out, uint32_t *entries,
                             int32_t *done) {
    extern __shared__ __align__(16) uint8_t memory[];
    auto &s = *(tamis::hopper::GroupShared<2> *)memory;
    const int64_t first = (int64_t)blockIdx.x * 2;
    const tamis::Listed lists[2] = {tamis::listed_of(a, first),
                                    tamis::listed_of(a, min(first + 1, a.rows.count - 1))};
    uint32_t *mine = entries + blockIdx.x * TAMIS_CONSUME_PAIR_WORDS * a.width;
    tamis::hopper::Blocks blocks = {};
    if (first + 1 < a.rows.count && lists[0].pages == lists[1].pages && lists[0].count > 0 &&
        lists[1].count > 0 && max(lists[0].length, lists[1].length) <= 8 * tamis::hopper::kMaxIds &&
        tamis::hopper::have_in_common(lists[0], lists[1])) {
        blocks = tamis::hopper::make_union(s.set, lists, mine, (uint16_t *)(mine + 2 * a.width));
    }
    if (blocks.count > 0) {
        tamis::hopper::consume_group<2>(a, out, s, lists, blocks, first, done);
    } else if (first + threadIdx.x < min(first + 2, a.rows.count)) {
        done[first + threadIdx.x] = 0;
    }
}

/* Rows one by one: all (fresh: done holds nothing yet), or those that are not done. */
extern "C" __global__ void __launch_bounds__(tamis::hopper::kGroupThreads, 5)
    tamis_consume_rows_sm90(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                            const __grid_constant__ tamis_selection out, int32_t *done,
                            int32_t fresh, const __grid_constant__ tamis_raised_k raised) {
    (void)raised;
    extern __shared__ __align__(16) uint8_t memory[];
    auto &s = *(tamis::hopper::GroupShared<1> *)memory;
    const int64_t r = blockIdx.x;
    if (!fresh && done[r]) {
        return;
    }
    const tamis::Listed lists[1] = {tamis::listed_of(a, r)};
    tamis::hopper::consume_group<1>(a, out, s, lists, {nullptr, nullptr, lists[0].count, 0, 0}, r,
                                    done);
}

#endif
