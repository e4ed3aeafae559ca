/* SPDX-License-Identifier: MIT */
/*
 * decode.cu: the consumer of few rows: a row's blocks are scored by many CTAs, and the last of them
 * to finish selects. Scores go through memory that lies in L2; the count of CTAs that are done
 * starts and ends at 0, so that a graph can be replayed. Follows consume.cu, whose rows it reads.
 *
 * A row is a chain of waits: for its length, its query, K, the other CTAs, their scores. What can
 * be asked for at once is.
 */
#include "guard.cuh"
#include "kernels/cuda/consume_args.h"
#include "split_select.cuh"

namespace tamis {

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

/* ---- q ---- */

/* Of the row, a thread's eight codes, their head's scales and weight: where they lie is known
 * before the row is, and nothing waits for what was asked for. */
struct SplitQuery {
    const uint8_t *codes, *scales, *weight;
    int32_t weights_type, numerics;
    uint32_t bits, scale[4], raw; /* scale: one word, or four bytes */

    __device__ SplitQuery(const tamis_query &view, int64_t r, int32_t how)
        : weights_type(view.weights_type), numerics(how) {
        const int h = threadIdx.x / 16, i = threadIdx.x % 16;
        const QueryRow row = query_row(view, r);
        codes = opaque(row.codes + h * view.codes_head_stride + 4 * i);
        scales = opaque(row.scales + h * view.scales_head_stride);
        weight =
            opaque((const uint8_t *)row.weights + h * (view.weights_type == TAMIS_BF16 ? 2 : 4));
    }
    __device__ void load() {
        bits = load_word(codes);
        scale[0] = scale[1] = scale[2] = scale[3] = 0;
        asm volatile("{.reg .pred p; setp.ne.b32 p,%5,0; @!p ld.global.nc.u32 %0,[%4];"
                     "@p ld.global.nc.u8 %0,[%4]; @p ld.global.nc.u8 %1,[%4+1];"
                     "@p ld.global.nc.u8 %2,[%4+2]; @p ld.global.nc.u8 %3,[%4+3];}"
                     : "+r"(scale[0]), "+r"(scale[1]), "+r"(scale[2]), "+r"(scale[3])
                     : "l"(scales), "r"((uint32_t)(uintptr_t)scales & 3));
        if (weights_type == TAMIS_BF16) {
            asm volatile("{.reg .u16 h; ld.global.nc.u16 h,[%1]; cvt.u32.u16 %0,h;}"
                         : "=r"(raw)
                         : "l"(weight));
        } else {
            raw = load_word(weight);
        }
    }
    /* What is asked for before this is asked for before the words are waited for: ptxas, which else
     * makes what it can of them first, does not know that the grid is flat. */
    __device__ void hold() {
        const uint32_t zero = __shfl_sync(kAll, blockIdx.z, 0);
        bits |= zero;
        raw |= zero;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scale[i] |= zero;
        }
    }
    __device__ uint32_t scale_word() const {
        return scale[0] | scale[1] << 8 | scale[2] << 16 | scale[3] << 24;
    }
    /* Only here are they waited for. */
    __device__ QueryBits<kSplitThreads> words() const {
        return {{bits}, {scale_word()}, {raw}, weights_type, numerics};
    }
};

/* ---- scores ---- */

/* The first of a warp's blocks that the lane loads, and where it lies. */
struct FirstBlock {
    int32_t id;
    uint32_t where;
};

/* What stands for a column: its score's bits. A NaN of the GPU's own is never kNoScore. */
__device__ inline uint32_t split_score(bool live, float score) {
    return live ? __float_as_uint(score) : kNoScore;
}

/* What the fast path leaves of a warp's groups. Apart, for the registers that it takes. */
__device__ __noinline__ void score_slowly(const tamis_sparse_mqa_logits_args &a, int64_t r,
                                          int first, int stride, int steps, bool all) {
    uint32_t *const scores = (uint32_t *)a.logits + r * a.logits_stride;
    score_left(
        a, listed_of(a, r), r, first, stride, steps, all,
        [&](int32_t column, bool live, float score) { scores[column] = split_score(live, score); });
}

/*
 * As score_listed where a warp has no more than two blocks, half of group `group` of four: the
 * shortest way from K to scores. id, where: of the lane's block, of lanes 0 and 1. Two warps may
 * write the same ones.
 */
template <class Sink>
__device__ inline void score_two(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                 int64_t r, int group, FastQuery &query, const SplitQuery &bits,
                                 int32_t id, uint32_t where, Sink sink) {
    const int lane = threadIdx.x & 31, c = lane & 1;
    const int32_t at = kStepBlocks * group + (int)threadIdx.x / 32 % 2 * 2;
    const Place now = place_of(a.k, list, id, where);
    const uint8_t *const scales = a.k.codes + lane / 4 * 4;
    const uint4 x = load_codes(a.k.codes, now, 0), y = load_codes(a.k.codes, now, 1);
    const FastScales own = fast_scales(
        __ldg((const uint32_t *)(scales + (uint64_t)__shfl_sync(kAll, now.scales, c) * 16)));
    const bool live = lane / 4 < __shfl_sync(kAll, now.visible, c);
    const bool fast = store_fast_query(query, bits.words());
    const bool wide = __any_sync(kAll, live && own.wide);
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

/* Of global memory to shared, past registers: a load that ptxas cannot move. */
__device__ inline void copy_word(uint32_t *to, const uint8_t *from) {
    asm volatile(
        "cp.async.ca.shared.global [%0],[%1],4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

__device__ inline void copy_chunk(uint4 *to, const uint8_t *from) {
    asm volatile(
        "cp.async.cg.shared.global [%0],[%1],16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

__device__ inline void end_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all but the last three ends of copies were those of copies that are there. */
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group 3;" ::: "memory");
}

/* A warp's K, two steps of it: a lane's 16 bytes of each block, and its own scales. */
struct CopiedK {
    uint4 blocks[2 * kStepBlocks][32];
    uint32_t scales[2][32];
};

/*
 * As score_listed where a warp has one group, K two steps ahead. Its first half is asked for before
 * the query is waited for, the next ones once that is stored: little stands before a query, and
 * nothing is asked for late. Through shared memory, since ptxas moves loads to registers behind
 * what waits for the query. Whole CTA; k: the warp's.
 */
template <class Sink, class Rest>
__device__ inline void score_copied(const tamis_sparse_mqa_logits_args &a, const Listed &list,
                                    int group, int steps, FastQuery &query, SplitQuery &bits,
                                    CopiedK &k, const FirstBlock &first, Sink sink, Rest rest) {
    const int lane = threadIdx.x & 31, c = lane & 3;
    const int32_t at = group * kStepBlocks * steps;
    /* Blocks that are not there lie at place 0: all warps without any would read that one. */
    const int32_t own_steps = __reduce_max_sync(kAll, min(steps, steps_of(list.count - at)));
    const Place place = place_of(a.k, list, first.id, first.where);
    auto copy = [&](int half) {
        if (half < 2 * own_steps) {
            const int b = 2 * half, slot = b % 8;
            if (half % 2 == 0) {
                const uint64_t where = __shfl_sync(kAll, place.scales, b + c);
                copy_word(&k.scales[half / 2 % 2][lane], a.k.codes + lane / 4 * 4 + where * 16);
            }
            const uint64_t x = __shfl_sync(kAll, place.codes, b);
            const uint64_t y = __shfl_sync(kAll, place.codes, b + 1);
            copy_chunk(&k.blocks[slot][lane], a.k.codes + lane * 16 + x * 16);
            copy_chunk(&k.blocks[slot + 1][lane], a.k.codes + lane * 16 + y * 16);
        }
        end_copies();
    };
    bits.load();
    copy(0);
    bits.hold();
    const bool fast = store_fast_query(query, bits.words(), [&] {
        copy(1);
        copy(2);
        copy(3);
    });
    const Multiplier multiplier(query);
    bool left = !fast;
#pragma unroll 1
    for (int t = 0; t < own_steps; t++) {
        const uint4(*const blocks)[32] = k.blocks + t % 2 * kStepBlocks;
        float p[4];
        uint32_t total[4][4];
        wait_for_copies();
        const FastScales own = fast_scales(k.scales[t % 2][lane]);
        Tile tile =
            decode_tile(blocks[0][lane], blocks[1][lane], own_factor(own, 0), own_factor(own, 1));
        copy(2 * t + 4);
        multiplier.multiply(tile, total);
        weigh(query.heads, total, p[0], p[1]);
        wait_for_copies();
        tile =
            decode_tile(blocks[2][lane], blocks[3][lane], own_factor(own, 2), own_factor(own, 3));
        copy(2 * t + 5);
        multiplier.multiply(tile, total);
        weigh(query.heads, total, p[2], p[3]);
        const float score = finish_score(add_chains(p), own.largest, a.numerics);
        const bool live = own_is_live(place, kStepBlocks * t);
        const bool wide = __any_sync(kAll, live && own.wide);
        left |= wide;
        if (fast && !wide) {
            sink((at + kStepBlocks * t + c) * kBlock + lane / 4, live, score);
        }
    }
    if (left) {
        rest(!fast);
    }
}

/*
 * A row of few: score(list, first, query) makes the scores of the blocks that this CTA has of it;
 * `at`: the place in the list of the lane's first. Whole CTA, once.
 */
template <class Score>
__device__ inline void consume_split(const tamis_sparse_mqa_logits_args &a,
                                     const tamis_selection &out, uint32_t *done,
                                     const int32_t *taken, const tamis_gate_args &gate, int64_t at,
                                     PickRow &s, PickLists &lists, Score score) {
    const int64_t r = blockIdx.y;
    wait_for_kernel_before();
    /* What the first blocks want is loaded before the row's length and count are known. */
    FirstBlock first = {-1, 0};
    if (at < a.width) {
        first.id = __ldg(a.blocks + r * a.blocks_stride + at);
        first.where = a.physical ? (uint32_t)__ldg(a.physical + r * a.physical_stride + at) : 0;
    }
    const int32_t words = load_row_words(a, taken, r);
    const uint64_t guard = gate.counts ? load_guard(gate) : 0;
    SplitQuery query(a.query, r, a.numerics);
    select_begin(s);
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
            write_none(output_of(out, r), 0);
        }
        return;
    }
    const bool seen = at < list.count && (uint32_t)first.id <= (uint32_t)(list.length - 1) / kBlock;
    first.id = seen ? first.id : -1;
    if (a.physical == nullptr) {
        first.where = listed_where(list, (int32_t)at, first.id);
    }
    first.where = seen ? first.where : 0;
    score(list, first, query);
    if (!is_last(done + r, gridDim.x, s.last)) {
        return;
    }
    const float *const scores = (const float *)a.logits + r * a.logits_stride;
    select_row(s, lists, scores, list.count * kBlock, list.blocks, list.pages, list.page_shift,
               output_of(out, r));
}

struct SplitShared {
    FastQuery query;
    PickRow row;
    PickLists lists;
};

struct CopiedShared {
    FastQuery query;
    PickRow row;
    union {
        CopiedK k[kSplitWarps];
        PickLists lists; /* once the row is scored */
    };
};

static_assert(sizeof(SplitShared) == TAMIS_CONSUME_SPLIT_BYTES, "consume_args.h");
static_assert(sizeof(CopiedShared) == TAMIS_CONSUME_COPIED_BYTES, "consume_args.h");

} // namespace tamis

/*
 * a.logits: scratch for scores, rows of 16-byte alignment and whole steps. done: [rows.count]
 * zeros. taken: rows that are done already and are left alone, or NULL. steps: of a warp's groups;
 * 0: it has two blocks. gate: the layer's, where no kernel before did its work; else its counts are
 * NULL. Grid: parts of a row, rows.
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
    auto score = [&](const Listed &list, const FirstBlock &first, SplitQuery &query) {
        uint32_t *const scores = (uint32_t *)a.logits + r * a.logits_stride;
        auto put = [&](int32_t column, bool live, float x) {
            scores[column] = split_score(live, x);
        };
        query.load();
        if (steps == 0) {
            score_two(a, list, r, group, s.query, query, first.id, first.where, put);
            return;
        }
        const int stride = (int)gridDim.x * kSplitWarps;
        score_listed(a, list, r, group, stride, steps, s.query, query, first.id, first.where, put,
                     [&](bool all) { score_slowly(a, r, group, stride, steps, all); });
    };
    consume_split(a, out, done, taken, gate, at, s.row, s.lists, score);
}

/* The same where a warp has one group, of 1 to kMaxSteps steps. */
extern "C" __global__ void __launch_bounds__(tamis::kSplitThreads, 1)
    tamis_consume_copied_smxx(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                              const __grid_constant__ tamis_selection out, uint32_t *done,
                              const int32_t *taken, int32_t steps,
                              const __grid_constant__ tamis_gate_args gate) {
    using namespace tamis;
    extern __shared__ __align__(1024) uint8_t memory[];
    CopiedShared &s = *(CopiedShared *)memory;
    const int64_t r = blockIdx.y;
    const int warp = (int)threadIdx.x / 32, group = warp * (int)gridDim.x + (int)blockIdx.x;
    const int at = group * kStepBlocks * steps + (int)(threadIdx.x & 31);
    auto score = [&](const Listed &list, const FirstBlock &first, SplitQuery &query) {
        uint32_t *const scores = (uint32_t *)a.logits + r * a.logits_stride;
        score_copied(
            a, list, group, steps, s.query, query, s.k[warp], first,
            [&](int32_t column, bool live, float x) { scores[column] = split_score(live, x); },
            [&](bool all) { score_slowly(a, r, group, (int)gridDim.x * kSplitWarps, steps, all); });
    };
    consume_split(a, out, done, taken, gate, at, s.row, s.lists, score);
}
