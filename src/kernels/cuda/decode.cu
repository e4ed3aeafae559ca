/* SPDX-License-Identifier: MIT */
/*
 * decode.cu: the consumer of few rows: a row's blocks are scored by many CTAs, each of which lists
 * the best of its own; the last of them to finish merges the lists. Keys and lists go through
 * memory that lies in L2; the count of CTAs that are done starts and ends at 0, so that a graph can
 * be replayed. Follows consume.cu, whose rows it reads.
 *
 * A step of one row is a chain of waits: for ids, K, the other CTAs' lists, and for code, of which
 * every line that runs comes from memory. So nothing is loaded that is not there, loops stay
 * rolled, and what is rare lies apart.
 */
#include "merge.cuh"

namespace tamis {

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

/* The groups of blocks that a warp scores: first, first + parts * turn, .. */
struct WarpShare {
    int parts, turn; /* CTAs of the row; groups that one scores at a time */
    int place;       /* of the first of this warp's groups among the CTA's */
    int half;        /* of each group, where it is halved */
    int shift;       /* of a group's columns */

    __device__ explicit WarpShare(const tamis_split &split) {
        const int warp = (int)threadIdx.x / 32;
        parts = (int)gridDim.x;
        turn = TAMIS_SPLIT_WARPS >> split.halve;
        place = warp >> split.halve;
        half = warp & split.halve;
        shift = __ffs(kBlock * split.each) - 1;
    }
    __device__ int first() const {
        return place * parts + (int)blockIdx.x;
    }
    /* Where the CTA keeps the key of one of its columns, and the column of such a place. */
    __device__ int place_of(int column) const {
        const uint32_t group = (uint32_t)column >> shift;
        return (int)(group / (uint32_t)parts << shift) + (column & ((1 << shift) - 1));
    }
    __device__ int column_of(int place) const {
        const int group = place >> shift;
        return ((group * parts + (int)blockIdx.x) << shift) + (place & ((1 << shift) - 1));
    }
};

/* To L2, before it is known that the row has a query: where there is none, nothing happens. */
__device__ inline void prefetch_query(const tamis_query &view, int64_t r) {
    const int h = (int)threadIdx.x - (kSplitThreads - 32);
    if (h >= 0) {
        const QueryRow row = query_row(view, r);
        const uint8_t *const from[3] = {
            row.codes + h * view.codes_head_stride, row.scales + h * view.scales_head_stride,
            (const uint8_t *)row.weights + (view.weights_type == TAMIS_BF16 ? 2 : 4) * h};
#pragma unroll
        for (int i = 0; i < 3; i++) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from[i]));
        }
    }
}

/* Where keys go: to the CTA's own, `each` blocks' after one another, and to the row's, by column,
 * for when the lists do not serve. */
struct KeySink {
    uint32_t *made, *row;

    __device__ void put(int place, int column, uint32_t key) const {
        made[place] = key;
        row[column] = key;
    }
};

/* Where a row's selection goes: pages are powers of two of blocks, so that nothing is divided. */
struct Writer {
    int32_t *positions;
    int64_t *slots;
    float *scores;

    __device__ Writer(const tamis_selection &out, int64_t r)
        : positions(out.positions ? out.positions + r * out.positions_stride : nullptr),
          slots(out.slots ? out.slots + r * out.slots_stride : nullptr),
          scores(out.scores ? out.scores + r * out.scores_stride : nullptr) {
    }
    /* Entry `rank`: a column of block id, whose key is *key. */
    __device__ void write(uint32_t rank, const Listed &list, int32_t id, uint32_t column,
                          const uint32_t *key) const {
        if (positions) {
            positions[rank] = id * kBlock + (int32_t)(column % kBlock);
        }
        if (slots) {
            const int32_t in_page = id & ((1 << list.page_shift) - 1);
            const int64_t page = __ldg(list.pages + (id >> list.page_shift));
            slots[rank] = (page * (1 << list.page_shift) + in_page) * kBlock + column % kBlock;
        }
        if (scores) {
            scores[rank] = tamis_canonical(score_of_key(__ldcg(key) - 1));
        }
    }
    __device__ void none(uint32_t rank) const {
        if (positions) {
            positions[rank] = -1;
        }
        if (slots) {
            slots[rank] = -1;
        }
        if (scores) {
            scores[rank] = -INFINITY;
        }
    }
};

/* The row's selection, of which each thread has 32 columns, and the ids of their blocks. Whole CTA.
 */
__device__ inline void write_marks(Merge &s, const tamis_selection &out, const Listed &list,
                                   const uint32_t *keys, uint32_t marks, const int32_t (&ids)[4]) {
    const Writer to(out, blockIdx.y);
    uint32_t want;
    uint32_t rank = scan_counts<kSplitThreads>(s.sums, (uint32_t)__popc(marks), &want);
#pragma unroll 1
    for (; marks; marks &= marks - 1) {
        const uint32_t bit = (uint32_t)__ffs((int)marks) - 1;
        const int32_t low = bit & 8 ? ids[1] : ids[0], high = bit & 8 ? ids[3] : ids[2];
        to.write(rank++, list, bit & 16 ? high : low, bit, keys + 32 * threadIdx.x + bit);
    }
#pragma unroll 1
    for (uint32_t i = want + threadIdx.x; i < (uint32_t)out.topk; i += kSplitThreads) {
        to.none(i);
    }
    if (out.counts && threadIdx.x == 0) {
        out.counts[blockIdx.y] = (int32_t)want;
    }
}

/* Marks of the row's best of all keys. Apart: it is rare, and long. */
__device__ __noinline__ uint32_t take_all(Merge &s, const uint32_t *keys, int columns,
                                          uint32_t topk) {
    return take_all_keys(s, keys, columns, topk);
}

/* What listed_of reads of a row, by one load: one after another they are a microsecond each. */
__device__ inline int32_t load_row_bits(const tamis_sparse_mqa_logits_args &a, int64_t r) {
    const int lane = threadIdx.x & 31;
    const int32_t *from = lane == 1 && a.rows.request ? a.rows.request : a.rows.ke;
    from = lane == 2 && a.counts ? a.counts : from;
    return __ldg(from + r);
}

__device__ inline Listed listed_of(const tamis_sparse_mqa_logits_args &a, int64_t r, int32_t bits,
                                   int32_t limit, bool pages) {
    const int32_t length = __shfl_sync(kAll, bits, 0), count = __shfl_sync(kAll, bits, 2);
    Listed list;
    list.blocks = a.blocks + r * a.blocks_stride;
    list.physical = a.physical ? a.physical + r * a.physical_stride : nullptr;
    list.pages = nullptr;
    list.length = max(min(length, limit), 0);
    list.count = a.counts ? max(min(count, (int32_t)a.width), 0) : (int32_t)a.width;
    list.count = list.length > 0 ? list.count : 0;
    list.page_shift = (uint32_t)__ffs(a.k.page_size / kBlock) - 1;
    if (pages) {
        const int32_t request = a.rows.request ? __shfl_sync(kAll, bits, 1) : 0;
        list.pages =
            a.rows.page_table + clamp(request, 0, a.rows.requests - 1) * a.rows.page_table_stride;
    }
    return list;
}

/* Ids of the blocks that the thread's 32 columns are of. */
__device__ inline void load_ids(const Listed &list, int32_t (&ids)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = 4 * (int)threadIdx.x + i;
        ids[i] = at < list.count ? __ldg(list.blocks + at) : 0;
    }
}

/* The CTA's list `at` of its keys from `own` on. Apart, so that the scorer's registers are its own.
 */
__device__ __noinline__ void list_keys(const uint32_t *keys, int own, const tamis_split &split,
                                       Lists lists, int at) {
    const WarpShare share(split);
    at += (int)blockIdx.x * split.lists;
    make_list(keys, split, lists.items + at * split.slots, lists.least + at,
              [&](int i) { return share.column_of(own + i); });
}

/*
 * A row of decode.cu: score(list, share, id, where, to) makes the keys of its listed blocks. What
 * the first groups want is loaded before the row's length and count are known.
 */
template <class Score>
__device__ inline void consume_split(const tamis_sparse_mqa_logits_args &a,
                                     const tamis_selection &out, uint32_t *done,
                                     const int32_t *taken, const tamis_split &split, uint32_t *made,
                                     Merge &merge, Score score) {
    __shared__ bool last;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int64_t r = blockIdx.y;
    const WarpShare share(split);
    const int32_t at = share.first() * split.each + lane, width = (int32_t)a.width;
    if (taken && __ldg(taken + r)) {
        return;
    }
    uint32_t *const keys = (uint32_t *)a.logits + r * a.logits_stride;
    int32_t id = -1;
    uint32_t where = 0;
    if (at < width) {
        id = __ldg(a.blocks + r * a.blocks_stride + at);
        where = a.physical ? (uint32_t)__ldg(a.physical + r * a.physical_stride + at) : 0;
    }
    const int32_t row = load_row_bits(a, r);
    prefetch_query(a.query, r);
    const int count = split.lists * split.quads * 128;
#pragma unroll 1
    for (int i = 4 * (int)threadIdx.x; i < count; i += 4 * kSplitThreads) {
        *(uint4 *)(made + i) = make_uint4(0, 0, 0, 0);
    }
    merge_begin(merge);
    const Listed list = listed_of(a, r, row, split.limit, !a.physical || out.slots);
    int32_t ids[4] = {0, 0, 0, 0};
    uint32_t marks = 0;
    if (list.count == 0) { /* no CTA waits for another here */
        if (blockIdx.x == 0) {
            write_marks(merge, out, list, keys, marks, ids);
        }
        return;
    }
    const bool seen = at < list.count && (uint32_t)id <= (uint32_t)(list.length - 1) / kBlock;
    id = seen ? id : -1;
    where = a.physical ? where : listed_where(list, at, id);
    score(list, share, id, seen ? where : 0, KeySink{made, keys});
    Lists lists;
    lists.items = (uint2 *)(keys + 32 * steps_of(width));
    lists.least = (uint32_t *)(lists.items + TAMIS_SPLIT_SLOTS);
    __syncthreads();
    if (warp < split.lists && split.slots) {
        const int own = 128 * split.quads * warp;
        list_keys(made + own, own, split, lists, warp);
    }
    if (!is_last(done + r, gridDim.x, last)) {
        return;
    }
    load_ids(list, ids);
    const uint32_t all = (uint32_t)split.lists * gridDim.x;
    int want = -1;
    if (all * (uint32_t)split.slots > kSplitThreads * 4) {
        marks =
            take_from_lists<6>(merge, lists, all, (uint32_t)split.slots, (uint32_t)out.topk, &want);
    } else if (split.slots) {
        marks =
            take_from_lists<4>(merge, lists, all, (uint32_t)split.slots, (uint32_t)out.topk, &want);
    }
    if (want < 0) {
        marks = take_all(merge, keys, steps_of(list.count) * 32, (uint32_t)out.topk);
    }
    write_marks(merge, out, list, keys, marks, ids);
}

} // namespace tamis

/*
 * a.logits: scratch, rows of 16-byte alignment; of a row its keys, whole steps, then its lists.
 * done: [rows.count] zeros. taken: rows that are done already and are left alone, or NULL. Grid:
 * parts of a row, rows. Dynamic shared memory: tamis_split_bytes.
 */
extern "C" __global__ void __launch_bounds__(tamis::kSplitThreads, 1)
    tamis_consume_split_smxx(const __grid_constant__ tamis_sparse_mqa_logits_args a,
                             const __grid_constant__ tamis_selection out, uint32_t *done,
                             const int32_t *taken, const __grid_constant__ tamis_split split) {
    extern __shared__ __align__(16) uint32_t made[];
    __shared__ tamis::FastQuery query;
    __shared__ tamis::Merge merge;
    auto score = [&](const tamis::Listed &list, const tamis::WarpShare &share, int32_t id,
                     uint32_t where, const tamis::KeySink &to) {
        const int64_t r = blockIdx.y;
        tamis::score_listed(
            a, list, r, share.first(), share.parts * share.turn, split.each / tamis::kStepBlocks,
            query, tamis::load_query_bits(a.query, r, a.numerics), id, where,
            [&](int32_t column, bool live, float x) {
                to.put(share.place_of(column), column, live ? tamis::key_of_score(x) : 0);
            });
    };
    tamis::consume_split(a, out, done, taken, split, made, merge, score);
}
