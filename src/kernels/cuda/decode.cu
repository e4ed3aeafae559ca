/* SPDX-License-Identifier: MIT */
/*
 * decode.cu: the consumer of few rows: a row's blocks are scored by many CTAs, and the last of them
 * to finish selects. Keys go through memory that lies in L2; the count of CTAs that are done starts
 * and ends at 0, so that a graph can be replayed. Follows consume.cu, whose rows it reads.
 *
 * A row is a chain of waits: for its length, its query, K, the other CTAs, their keys. What can be
 * asked for at once is, and loops stay rolled, since code comes from memory, too.
 */
#include "guard.cuh"
#include "kernels/cuda/consume_args.h"
#include "pool.cuh"

namespace tamis {

/* One CTA a multiprocessor: 128 registers, and as many threads as that leaves to select. */
constexpr int kSplitThreads = 512, kSplitWarps = kSplitThreads / 32;

constexpr int kSplitColumns = 32 * kSplitThreads; /* 8 quads of keys a thread */

/* What the CTA that selects has of the row, */
struct SplitRow {
    Pool<kSplitThreads> pool;
    Item few[kFew];               /* those of the cut's bin */
    uint32_t bits[kSplitThreads]; /* the row's columns: those that are in */
    uint32_t listed, in_bin;
    bool last;
};

/* and where the row was scored. */
union SplitLists {
    struct { /* quads with keys that reach the bound, and their first columns */
        uint4 quads[kSplitColumns / 4];
        uint16_t columns[kSplitColumns / 4];
    };
    uint16_t order[kSplitColumns]; /* columns that are in, when quads are no more asked for */
};

/* ---- a row ---- */

/* What a row's kernel must know of it first, a lane a word: length, request, count, whether it is
 * taken. */
__device__ inline int32_t load_row_words(const tamis_sparse_mqa_logits_args &a,
                                         const int32_t *taken, int64_t r) {
    const int lane = threadIdx.x & 31;
    const int32_t *from = a.rows.ke;
    from = lane == 1 && a.rows.request ? a.rows.request : from;
    from = lane == 2 && a.counts ? a.counts : from;
    from = lane == 3 && taken ? taken : from;
    return __ldg(from + r);
}

/* As listed_of, from those words. */
__device__ inline Listed listed_of(const tamis_sparse_mqa_logits_args &a, int64_t r, int32_t words,
                                   bool seen) {
    const int64_t limit = min(positions_of(a.rows, a.k), (int64_t)INT32_MAX);
    const int32_t length = __shfl_sync(kAll, words, 0), count = __shfl_sync(kAll, words, 2);
    const int32_t request = a.rows.request ? __shfl_sync(kAll, words, 1) : 0;
    Listed list;
    list.blocks = a.blocks + r * a.blocks_stride;
    list.physical = a.physical ? a.physical + r * a.physical_stride : nullptr;
    list.pages =
        a.rows.page_table + clamp(request, 0, a.rows.requests - 1) * a.rows.page_table_stride;
    list.length = seen ? max(min(length, (int32_t)limit), 0) : 0;
    list.count = a.counts ? max(min(count, (int32_t)a.width), 0) : (int32_t)a.width;
    list.count = list.length > 0 ? list.count : 0;
    list.page_shift = (uint32_t)__ffs(a.k.page_size / kBlock) - 1;
    return list;
}

/* Whether this CTA is the last of the row's `parts`: then it sees what the others wrote. */
__device__ inline bool is_last(uint32_t *done, uint32_t parts, bool &shared) {
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0,[%1],1;"
                     : "=r"(before)
                     : "l"(done)
                     : "memory");
        shared = before == parts - 1;
        if (shared) {
            *done = 0;
        }
    }
    __syncthreads();
    return shared;
}

/* What the fast path leaves of a warp's groups. Apart, for the registers that it takes. */
__device__ __noinline__ void score_slowly(const tamis_sparse_mqa_logits_args &a, int64_t r,
                                          int first, int stride, int steps, bool all) {
    uint32_t *const keys = (uint32_t *)a.logits + r * a.logits_stride;
    score_left(a, listed_of(a, r), r, first, stride, steps, all,
               [&](int32_t column, bool live, float score) {
                   keys[column] = live ? key_of_score(score) : 0;
               });
}

/*
 * As score_listed where a warp has no more than two blocks, half of group `group` of four: the
 * shortest way from K to keys. id, where: of the lane's block, of lanes 0 and 1. Two warps may
 * write the same keys.
 */
template <class Sink>
__device__ inline void score_two(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                 int64_t r, int group, FastQuery &query,
                                 const QueryBits<kSplitThreads> &bits, int32_t id, uint32_t where,
                                 Sink sink) {
    const int lane = threadIdx.x & 31, c = lane & 1;
    const int32_t at = kStepBlocks * group + (int)threadIdx.x / 32 % 2 * 2;
    const Place now = place_of(a.k, list, id, where);
    const uint8_t *const scales = a.k.codes + lane / 4 * 4;
    const uint4 x = load_codes(a.k.codes, now, 0), y = load_codes(a.k.codes, now, 1);
    const FastScales own = fast_scales(
        __ldg((const uint32_t *)(scales + (uint64_t)__shfl_sync(kAll, now.scales, c) * 16)));
    const bool live = lane / 4 < __shfl_sync(kAll, now.visible, c);
    const bool fast = store_fast_query(query, bits), wide = __any_sync(kAll, live && own.wide);
    if (at >= list.count) {
        return;
    }
    if (fast && !wide) {
        uint32_t total[4][4];
        float first, second;
        const Multiplier multiplier(query);
        multiplier.multiply(decode_tile(x, y, own_factor(own, 0), own_factor(own, 1)), total);
        weigh(query.heads, total, first, second);
        float sum = __fadd_rn(c ? second : first, __shfl_xor_sync(kAll, c ? first : second, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, 2));
        if ((lane & 2) == 0) {
            const float score = finish_score(sum, own.largest, a.numerics);
            sink((at + c) * kBlock + lane / 4, live, score);
        }
    } else {
        score_slowly(a, r, group, list.count, 1, !fast);
    }
}

/* ---- selection: thread t has the quads t, t + 512, .. of the row's keys ---- */

__device__ inline int own_column(int quad) {
    return 4 * (quad * kSplitThreads + (int)threadIdx.x);
}

__device__ inline void load_keys(const uint32_t *keys, int columns, uint4 (&held)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        held[i] = make_uint4(0, 0, 0, 0);
        if (own_column(i) < columns) {
            held[i] = *(const uint4 *)(keys + own_column(i));
        }
    }
}

/* Marks of the thread's keys as bits of columns. */
__device__ inline void put_marks(uint32_t *bits, uint32_t marks) {
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        const uint32_t four = marks >> (4 * i) & 15u;
        if (four) {
            atomicOr(&bits[own_column(i) / 32], four << own_column(i) % 32);
        }
    }
}

/* The row's best as bits of columns, however its keys lie. Whole CTA; apart, since it is rare. */
__device__ __noinline__ void take_any(SplitRow &s, const uint32_t *keys, int columns,
                                      uint32_t topk) {
    uint4 held[8];
    uint32_t marks[1], reach[1], total;
    load_keys(keys, columns, held);
    auto quad = [&](int i) { return held[i]; };
    const Cut cut = cut_of_all<kSplitThreads, 8>(s.pool, 8, kAll, topk, quad);
    marks_above<8>(cut.key, 8, quad, marks);
    put_marks(s.bits, marks[0]);
    if (cut.rest) {
        marks_above<8>(cut.key - 1u, 8, quad, reach);
        put_marks(s.pool.bins, reach[0] ^ marks[0]); /* zero, since the cut is found */
        __syncthreads();
        uint32_t tied = s.pool.bins[threadIdx.x];
        uint32_t rank = scan_counts<kSplitThreads>(s.pool.tied, (uint32_t)__popc(tied), &total);
        for (; tied && rank < cut.rest; tied &= tied - 1, rank++) {
            s.bits[threadIdx.x] |= tied & (0u - tied);
        }
    }
}

/* Of the cut's bin, the best `rest`. Whole CTA; from a barrier. */
__device__ inline void take_few(SplitRow &s, uint32_t members, uint32_t rest) {
    const uint32_t lane = threadIdx.x & 31;
    const Item other = lane < members ? s.few[lane] : Item{0, 0};
#pragma unroll 1
    for (uint32_t i = threadIdx.x / 32; i < members; i += kSplitWarps) {
        const Item mine = s.few[i];
        const bool better = other.key > mine.key || (other.key == mine.key && other.id < mine.id);
        if ((uint32_t)__popc(__ballot_sync(kAll, better)) < rest && lane == 0) {
            atomicOr(&s.bits[mine.id / 32], 1u << mine.id % 32);
        }
    }
}

/*
 * As bound_of, by halves of scores, of which few lie around 0, where most keys do; a third of the
 * way first, where scores that are normal have the share that is asked for. Eight steps at most:
 * then more keys reach it.
 */
__device__ inline Spread bound_of_scores(Pool<kSplitThreads> &s, uint32_t even, uint32_t odd,
                                         uint32_t quota) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const float x = score_of_key(even - 1u), y = score_of_key(odd - 1u); /* NaN: none */
    auto reached = [&](float by) {
        return (uint32_t)(__popc(__ballot_sync(kAll, x >= by)) +
                          __popc(__ballot_sync(kAll, y >= by)));
    };
    Spread mine;
    mine.high = __reduce_max_sync(kAll, max(even, odd));
    float low = score_of_key(__reduce_min_sync(kAll, min(even - 1u, odd - 1u)));
    float top = score_of_key(mine.high - 1u), part = 1.0f / 3;
    uint32_t count = reached(low);
    const bool enough = count >= quota;
#pragma unroll 1
    for (int i = 0; i < 8 && enough && count > quota + quota / 2; i++) {
        const float middle = __fmaf_rn(__fsub_rn(top, low), part, low);
        const uint32_t found = reached(middle);
        low = found >= quota ? middle : low;
        top = found >= quota ? top : middle;
        count = found >= quota ? found : count;
        part = 0.5f;
    }
    mine.bound = enough ? pool_key(low) - 1u : kAll;
    mine.sure = enough ? quota : 0;
    if (lane == 0) {
        s.warp[warp] = mine;
    }
    __syncthreads();
    const Spread none = {0, kAll, 0};
    return reduce(lane < kSplitWarps ? s.warp[lane] : none);
}

/* Lists the quads that have a key which reaches a bound that enough keys do. Returns how many, from
 * a barrier on, or 0: there is no such bound. Whole CTA. */
__device__ inline uint32_t list_quads(SplitRow &s, SplitLists &lists, const uint32_t *keys,
                                      int columns, uint32_t topk, Spread &spread) {
    uint4 held[8];
    uint32_t best[8], even = 0, odd = 0, own = 0;
    load_keys(keys, columns, held);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        best[i] = most_of(held[i]);
        even = max(even, i % 2 ? 0 : best[i]);
        odd = max(odd, i % 2 ? best[i] : 0);
    }
    const uint32_t full = (uint32_t)min(columns / 128, kSplitWarps);
    spread = bound_of_scores(s.pool, even, odd, full ? (topk + full - 1) / full : topk);
    if (spread.sure < topk) {
        return 0;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        own += best[i] > spread.bound;
    }
    const uint32_t sum = sum_to_lane<uint32_t>(own);
    uint32_t at = (threadIdx.x & 31) == 31 ? atomicAdd(&s.listed, sum) : 0;
    at = __shfl_sync(kAll, at, 31) + sum - own;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (best[i] > spread.bound) {
            lists.quads[at] = held[i];
            lists.columns[at++] = (uint16_t)own_column(i);
        }
    }
    __syncthreads();
    return s.listed;
}

/*
 * The row's best `topk` as bits of columns. Those above a bound are counted in bins of how far
 * their score lies above the bound's, as floats have it: 128 bins for each halving of that
 * distance, so that neither scores around 0 nor a few far above the others meet in one bin. What is
 * in the cut's bin is ranked. Whole CTA; leaves at a barrier.
 */
__device__ inline void take_best(SplitRow &s, SplitLists &lists, const uint32_t *keys, int columns,
                                 uint32_t topk) {
    Spread spread;
    const uint32_t quads = list_quads(s, lists, keys, columns, topk, spread);
    const float base = score_of_key(spread.bound);
    const uint32_t reach = __float_as_uint(__fsub_rn(score_of_key(spread.high - 1u), base));
    /* How far below the best a key lies. What is below the bound, and NaN, lies further than all
     * that reaches it, but where those are infinite: then all share a bin. */
    auto down_of = [&](uint32_t key) {
        const uint32_t order = key - 1u;
        const uint32_t flip = (uint32_t)((int32_t)~order >> 31) | 0x80000000u;
        return (reach - __float_as_uint(__fsub_rn(__uint_as_float(order ^ flip), base))) >> 16;
    };
    /* visit(keys, first column) for the quads. */
    auto visit_listed = [&](auto visit) {
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < quads; i += kSplitThreads) {
            const uint4 four = lists.quads[i];
            const uint32_t held[4] = {four.x, four.y, four.z, four.w};
            visit(held, (uint32_t)lists.columns[i]);
        }
    };
    visit_listed([&](const uint32_t(&four)[4], uint32_t) {
#pragma unroll
        for (int k = 0; k < 4; k++) { /* bin 0 is not counted */
            const uint32_t down = down_of(four[k]);
            count_if(s.pool.bins + kRangeBins - 1 - min(down, kRangeBins - 1u),
                     down < kRangeBins - 1u);
        }
    });
    __syncthreads();
    find_range(s.pool, topk);
    const uint32_t cut = kRangeBins - 1u - s.pool.bin, rest = s.pool.rest;
    const uint32_t members = s.pool.members, some = members > rest; /* of the bin */
    if (quads == 0 || (some && members > kFew)) {
        take_any(s, keys, columns, topk);
        __syncthreads();
        return;
    }
    visit_listed([&](const uint32_t(&four)[4], uint32_t column) {
        uint32_t in = 0, at_cut = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t down = down_of(four[k]);
            in |= down + some <= cut ? 1u << k : 0;
            at_cut |= down == cut ? some << k : 0;
        }
        if (in) {
            atomicOr(&s.bits[column / 32], in << column % 32);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (at_cut >> k & 1) {
                s.few[atomicAdd(&s.in_bin, 1u)] = {four[k], column + k};
            }
        }
    });
    __syncthreads();
    if (some) {
        take_few(s, members, rest);
        __syncthreads();
    }
}

/* ---- output ---- */

/* Entry `rank` of row r. */
__device__ inline void write_split(const tamis_selection &out, int64_t r, int64_t rank,
                                   int32_t position, int64_t slot, float score) {
    if (out.positions) {
        out.positions[r * out.positions_stride + rank] = position;
    }
    if (out.slots) {
        out.slots[r * out.slots_stride + rank] = slot;
    }
    if (out.scores) {
        out.scores[r * out.scores_stride + rank] = score;
    }
}

/* The entries of row r behind its `taken` positions. */
__device__ inline void write_none(const tamis_selection &out, int64_t r, uint32_t taken) {
#pragma unroll 1
    for (uint32_t i = taken + threadIdx.x; i < (uint32_t)out.topk; i += kSplitThreads) {
        write_split(out, r, i, -1, -1, -INFINITY);
    }
    if (out.counts && threadIdx.x == 0) {
        out.counts[r] = (int32_t)taken;
    }
}

/* The columns that are in, ascending. Whole CTA, from a barrier. */
__device__ inline void write_taken(SplitRow &s, SplitLists &lists, const tamis_selection &out,
                                   int64_t r, const Listed &list, const uint32_t *keys) {
    uint32_t bits = s.bits[threadIdx.x], taken;
    uint32_t rank = scan_counts<kSplitThreads>(s.pool.above, (uint32_t)__popc(bits), &taken);
#pragma unroll 1
    for (; bits; bits &= bits - 1) {
        lists.order[rank++] = (uint16_t)(32 * threadIdx.x + (uint32_t)__ffs((int)bits) - 1);
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < taken; i += kSplitThreads) {
        const int32_t column = lists.order[i], id = __ldg(list.blocks + column / kBlock);
        int64_t slot = 0;
        if (out.slots) {
            const int64_t page = __ldg(list.pages + (id >> list.page_shift));
            const int32_t in_page = id & ((1 << list.page_shift) - 1);
            slot = ((page << list.page_shift) + in_page) * kBlock + column % kBlock;
        }
        write_split(out, r, i, id * kBlock + column % kBlock, slot,
                    out.scores ? tamis_canonical(score_of_key(keys[column] - 1u)) : 0.0f);
    }
    write_none(out, r, taken);
}

/* The first of a warp's blocks that the lane loads, and where it lies. */
struct FirstBlock {
    int32_t id;
    uint32_t where;
};

/*
 * A row of few: score(list, first) makes the keys of the blocks that this CTA has of it; `at`: the
 * place in the list of the lane's first. Whole CTA, once.
 */
template <class Score>
__device__ inline void consume_split(const tamis_sparse_mqa_logits_args &a,
                                     const tamis_selection &out, uint32_t *done,
                                     const int32_t *taken, const tamis_gate_args &gate, int64_t at,
                                     SplitRow &s, SplitLists &lists, Score score) {
    const int64_t r = blockIdx.y;
    /* What the first blocks want is loaded before the row's length and count are known. */
    FirstBlock first = {-1, 0};
    if (at < a.width) {
        first.id = __ldg(a.blocks + r * a.blocks_stride + at);
        first.where = a.physical ? (uint32_t)__ldg(a.physical + r * a.physical_stride + at) : 0;
    }
    const int32_t words = load_row_words(a, taken, r);
    const uint64_t guard = gate.counts ? load_guard(gate) : 0;
    pool_begin(s.pool);
    s.bits[threadIdx.x] = 0;
    s.listed = s.in_bin = 0;
    if (taken && __shfl_sync(kAll, words, 3)) {
        return;
    }
    const uint32_t fault = gate.counts ? fault_of(gate, guard) : 0;
    const Listed list = listed_of(a, r, words, fault == 0);
    if (fault && blockIdx.x + blockIdx.y == 0 && threadIdx.x == 0) {
        report(gate.status, fault, gate.layer);
    }
    if (list.count == 0) { /* no CTA waits for another here */
        if (blockIdx.x == 0) {
            write_none(out, r, 0);
        }
        return;
    }
    const bool seen = at < list.count && (uint32_t)first.id <= (uint32_t)(list.length - 1) / kBlock;
    first.id = seen ? first.id : -1;
    if (a.physical == nullptr) {
        first.where = listed_where(list, (int32_t)at, first.id);
    }
    first.where = seen ? first.where : 0;
    score(list, first);
    if (!is_last(done + r, gridDim.x, s.last)) {
        return;
    }
    const uint32_t *const keys = (const uint32_t *)a.logits + r * a.logits_stride;
    take_best(s, lists, keys, list.count * kBlock, (uint32_t)out.topk);
    write_taken(s, lists, out, r, list, keys);
}

struct SplitShared {
    FastQuery query;
    SplitRow row;
    SplitLists lists;
};

static_assert(sizeof(SplitShared) == TAMIS_CONSUME_SPLIT_BYTES, "consume_args.h");

} // namespace tamis

/*
 * a.logits: scratch for keys, rows of 16-byte alignment and whole steps. done: [rows.count] zeros.
 * taken: rows that are done already and are left alone, or NULL. steps: of a warp's groups; 0: it
 * has two blocks. gate: the layer's, where no kernel before did its work; else its counts are NULL.
 * Grid: parts of a row, rows.
 */
extern "C" __global__ void __launch_bounds__(tamis::kSplitThreads, 1)
    tamis_consume_split_smxx(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                             const __grid_constant__ tamis_selection out, uint32_t *done,
                             const int32_t *taken, int32_t steps,
                             const __grid_constant__ tamis_gate_args gate) {
    using namespace tamis;
    extern __shared__ __align__(1024) uint8_t memory[];
    SplitShared &s = *(SplitShared *)memory;
    const int64_t r = blockIdx.y;
    const int warp = (int)threadIdx.x / 32, lane = threadIdx.x & 31;
    const int group = (steps ? warp : warp / 2) * (int)gridDim.x + (int)blockIdx.x;
    const int at = group * kStepBlocks * max(steps, 1) + lane + (steps ? 0 : warp % 2 * 2);
    auto score = [&](const Listed &list, const FirstBlock &first) {
        uint32_t *const keys = (uint32_t *)a.logits + r * a.logits_stride;
        auto put = [&](int32_t column, bool live, float x) {
            keys[column] = live ? key_of_score(x) : 0;
        };
        const auto bits = load_query_bits<kSplitThreads>(a.query, r, a.numerics);
        if (steps == 0) {
            score_two(a, list, r, group, s.query, bits, first.id, first.where, put);
            return;
        }
        const int stride = (int)gridDim.x * kSplitWarps;
        score_listed(a, list, r, group, stride, steps, s.query, bits, first.id, first.where, put,
                     [&](bool all) { score_slowly(a, r, group, stride, steps, all); });
    };
    consume_split(a, out, done, taken, gate, at, s.row, s.lists, score);
}
