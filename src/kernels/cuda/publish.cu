/* SPDX-License-Identifier: MIT */
/*
 * publish.cu: the best blocks of each row, the newest always among them, as one list or two.
 *
 * By one CTA maxima are read twice: for a bound that enough blocks reach (each thread keeps eight
 * of its best), then for the candidates at or above it, few more than are wanted. Of long rows the
 * bound is first guessed from a sample, and found over all where candidates say that it was a bad
 * guess. Where candidates do not fit (scores mostly equal), the cut is found over the maxima
 * themselves. By a cluster of CTAs they are read once and stay in registers; a short row's are all
 * candidates, of a CTA a list.
 */
#include "guard.cuh"
#include "pool.cuh"
#include "publish_args.h"

namespace tamis {

constexpr int kPublishThreads = 512, kBoundLists = 2, kBoundLevels = 4, kAtOnce = 8;
/* Maxima of a row from which a bound, and a guess of it, cost less than they save. */
constexpr int kBounded = 7424, kGuessed = 16384;
constexpr int kCandidates = 8192, kListBytes = kCandidates * 8, kMostBlocks = TAMIS_MAX_TOPK + 1;

/* A row's blocks as keys. */
struct Maxima {
    const float *line;
    int n;
    uint32_t newest; /* its key: first of all, or 0 where it is listed apart */

    __device__ float load(int i) const {
        return i < n ? line[i] : 0.0f;
    }
    __device__ uint32_t key_of(int i, float value) const {
        return i >= n ? 0 : i == n - 1 ? newest : pool_key(value);
    }
};

/* One in eight of a row's maxima, sixteen neighbours at a time, without the newest. */
struct Sample {
    const float *line;
    int n;

    __device__ float load(int i) const {
        return i < n ? line[i / 16 * 128 + i % 16] : 0.0f;
    }
    __device__ uint32_t key_of(int i, float value) const {
        return i >= n ? 0 : pool_key(value);
    }
};

__device__ inline Maxima maxima_of(const tamis_publish_job &a, const uint32_t *at, int64_t r,
                                   const Row &row) {
    return {maxima_of_row(a.block_max, a.block_max_stride, at, r),
            (int)tamis_blocks_of(min(row.length, a.limit), a.block_size), TAMIS_KEY_PINNED};
}

/* A row's list, its ids by rank in shared memory, by the threads of one CTA. */
__device__ inline void write_list(const tamis_block_list &to, const tamis_publish_job &a, int64_t r,
                                  const Row &row, const int32_t *ids, uint32_t count) {
    const int32_t anchor = (int32_t)(row.start / a.block_size);
    const uint32_t size = (uint32_t)a.block_size, page_size = (uint32_t)to.page_size;
    for (uint32_t i = threadIdx.x; i < (uint32_t)to.width; i += blockDim.x) {
        int32_t id = i < count ? ids[i] : -1, placed = -1;
        if (to.blocks) {
            to.blocks[r * to.blocks_stride + i] = id;
        }
        if (to.copy) {
            to.copy[r * to.copy_stride + i] = id;
        }
        if (to.placed) {
            if (id >= 0 && to.page_size) { /* of whole blocks */
                const uint32_t position = (uint32_t)id * size, page = position / page_size;
                placed = (int32_t)((uint32_t)row.pages[page] * (page_size / size) +
                                   position % page_size / size);
            } else if (id >= 0) {
                placed = id + anchor;
            }
            to.placed[r * to.placed_stride + i] = placed;
        }
    }
    if (to.counts && threadIdx.x == 0) {
        to.counts[r] = (int32_t)count;
    }
}

template <int THREADS> struct PublishShared {
    Pool<THREADS> pool;
    int32_t order[kMostBlocks];
    uint32_t above[2][THREADS / 32], tied[2][THREADS / 32];
};

/* How many keys a thread keeps of those that reach `key`, over the CTA. Calls alternate `round`. */
__device__ inline uint32_t kept_above(PublishShared<kPublishThreads> &s,
                                      const uint32_t (&best)[kBoundLists][kBoundLevels],
                                      uint32_t key, int round) {
    const int lane = threadIdx.x & 31;
    uint32_t n = 0;
#pragma unroll
    for (int i = 0; i < kBoundLists * kBoundLevels; i++) {
        n += best[i / kBoundLevels][i % kBoundLevels] >= key;
    }
    n = __reduce_add_sync(kAll, n);
    if (lane == 0) {
        s.tied[round][threadIdx.x / 32] = n;
    }
    __syncthreads();
    return __reduce_add_sync(kAll, lane < kPublishThreads / 32 ? s.tied[round][lane] : 0);
}

/* A key that `want` of the maxima reach and, as a rule, few more; or 1. Threads keep the best of
 * each of their lists, at least twice as many in all as are wanted, and halve between the least and
 * the largest of these. */
template <class View>
__device__ inline uint32_t bound_of_maxima(PublishShared<kPublishThreads> &s, const View &maxima,
                                           uint32_t want) {
    constexpr int kWarps = kPublishThreads / 32;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t best[kBoundLists][kBoundLevels] = {};
    for (int base = threadIdx.x; base < maxima.n; base += kAtOnce * kPublishThreads) {
        float value[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) {
            value[j] = maxima.load(base + j * kPublishThreads);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) {
            uint32_t key = maxima.key_of(base + j * kPublishThreads, value[j]);
            uint32_t(&list)[kBoundLevels] = best[j % kBoundLists];
#pragma unroll
            for (int l = 0; l < kBoundLevels; l++) {
                uint32_t more = max(list[l], key);
                key = min(list[l], key);
                list[l] = more;
            }
        }
    }
    uint32_t least = kAll, most = 0;
#pragma unroll
    for (int i = 0; i < kBoundLists; i++) {
        least = min(least, best[i][kBoundLevels - 1]);
        most = max(most, best[i][0]);
    }
    least = __reduce_min_sync(kAll, least);
    most = __reduce_max_sync(kAll, most);
    if (lane == 0) {
        s.above[0][warp] = least;
        s.above[1][warp] = most;
    }
    __syncthreads();
    uint32_t low = __reduce_min_sync(kAll, lane < kWarps ? s.above[0][lane] : kAll);
    uint32_t high = __reduce_max_sync(kAll, lane < kWarps ? s.above[1][lane] : 0); /* the pin's */
    uint32_t n = kPublishThreads * kBoundLists * kBoundLevels;
    low = n < want ? 0 : low;
#pragma unroll 1
    for (int round = 0; high - low > 1 && n > want + want / 8; round ^= 1) {
        const uint32_t middle = low + (high - low) / 2;
        const uint32_t reached = kept_above(s, best, middle, round);
        if (reached >= want) {
            low = middle;
            n = reached;
        } else {
            high = middle;
        }
    }
    __syncthreads();
    return max(low, 1u);
}

/* take(i, rank, key) for every key above the cut's and the first `rest` equal ones, ascending.
 * Returns how many. Whole CTA. */
template <int THREADS, class Take>
__device__ inline uint32_t visit_in_order(PublishShared<THREADS> &s, const Maxima &maxima,
                                          const Cut &cut, Take take) {
    constexpr int kWarps = THREADS / 32;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const unsigned below = (1u << lane) - 1;
    uint32_t above = 0, tied = 0; /* of earlier rounds */
    int first = warp * 32 * kAtOnce + lane, round = 0;
    float value[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) {
        value[j] = maxima.load(first + 32 * j);
    }
    for (int base = 0; base < maxima.n; base += kAtOnce * THREADS, round ^= 1) {
        uint32_t key[kAtOnce], is_above[kAtOnce], is_tied[kAtOnce], sum_above = 0, sum_tied = 0;
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) {
            key[j] = maxima.key_of(first + 32 * j, value[j]);
            is_above[j] = __ballot_sync(kAll, key[j] > cut.key);
            is_tied[j] = cut.rest ? __ballot_sync(kAll, key[j] == cut.key) : 0;
            sum_above += (uint32_t)__popc(is_above[j]);
            sum_tied += (uint32_t)__popc(is_tied[j]);
        }
        if (lane == 0) {
            s.above[round][warp] = sum_above;
            s.tied[round][warp] = sum_tied;
        }
        const int now = first;
        first += kAtOnce * THREADS;
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) { /* of the next round */
            value[j] = maxima.load(first + 32 * j);
        }
        __syncthreads();
        const uint32_t warp_above = lane < kWarps ? s.above[round][lane] : 0;
        const uint32_t warp_tied = lane < kWarps ? s.tied[round][lane] : 0;
        uint32_t a = above + __reduce_add_sync(kAll, lane < warp ? warp_above : 0);
        uint32_t t = tied + __reduce_add_sync(kAll, lane < warp ? warp_tied : 0);
        above += __reduce_add_sync(kAll, warp_above);
        tied += __reduce_add_sync(kAll, warp_tied);
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) {
            uint32_t my_above = a + (uint32_t)__popc(is_above[j] & below);
            uint32_t my_tied = t + (uint32_t)__popc(is_tied[j] & below);
            a += (uint32_t)__popc(is_above[j]);
            t += (uint32_t)__popc(is_tied[j]);
            if (is_above[j] >> lane & 1 || (is_tied[j] >> lane & 1 && my_tied < cut.rest)) {
                take(now + 32 * j, my_above + min(my_tied, cut.rest), key[j]);
            }
        }
    }
    __syncthreads();
    return above + min(tied, cut.rest);
}

/* Four maxima of one row as a quad, from memory. */
__device__ inline uint4 quad_at(const Maxima &maxima, int column) {
    uint4 q;
    q.x = maxima.key_of(column, maxima.load(column));
    q.y = maxima.key_of(column + 1, maxima.load(column + 1));
    q.z = maxima.key_of(column + 2, maxima.load(column + 2));
    q.w = maxima.key_of(column + 3, maxima.load(column + 3));
    return q;
}

/* The best `want` of the maxima to s.order, without candidates. */
template <int THREADS>
__device__ inline void order_all(PublishShared<THREADS> &s, const Maxima &maxima, uint32_t want) {
    const int chunk = chunk_of(maxima.n, THREADS / 32);
    const Cut cut = cut_of_all<THREADS, 0>(s.pool, chunk / 128, TAMIS_KEY_PINNED, want, [&](int i) {
        return quad_at(maxima, quad_column(chunk, i));
    });
    visit_in_order(s, maxima, cut, [&](int i, uint32_t rank, uint32_t) { s.order[rank] = i; });
}

/* A row's candidates: what of the maxima reaches `low`, in order, but for the newest where it is
 * listed apart. */
struct Found {
    const Item *items;
    uint32_t count, low, high; /* high: the best key */
};

/* One of the job's lists of a row: from its candidates, or, where they were too many, from all. */
template <int THREADS>
__device__ inline void write_best(PublishShared<THREADS> &s, const tamis_publish_job &a,
                                  const tamis_block_list &to, int64_t r, const Row &row,
                                  Maxima maxima, const Found &found) {
    const uint32_t all = min((uint32_t)to.width, (uint32_t)maxima.n);
    if (found.count > kCandidates) {
        maxima.newest = TAMIS_KEY_PINNED;
        order_all(s, maxima, all);
    } else {
        const uint32_t want = maxima.newest == 0 && all > 0 ? all - 1 : all;
        if (want == found.count) {
            for (uint32_t i = threadIdx.x; i < want; i += THREADS) {
                s.order[i] = (int32_t)found.items[i].id;
            }
        } else if (want > 0) {
            best_of_list<THREADS, kCandidates / THREADS / 4>(s.pool, found.items, found.count,
                                                             found.low, found.high, want, s.order);
        }
        if (want < all && threadIdx.x == 0) {
            s.order[want] = maxima.n - 1;
        }
        __syncthreads();
    }
    write_list(to, a, r, row, s.order, all);
}

} // namespace tamis

/* One CTA a row. Dynamic shared memory: the candidates. */
extern "C" __global__ void __launch_bounds__(tamis::kPublishThreads, 2)
    tamis_publish_smxx(const __grid_constant__ tamis_publish_job a) {
    extern __shared__ tamis::Item candidates[];
    __shared__ tamis::PublishShared<tamis::kPublishThreads> s;
    tamis::put_stamp(a.stamp);
    tamis::pool_begin(s.pool);
    const tamis::TileRows rows = tamis::rows_of(a.tile, a.rows.count);
    for (int64_t r = rows.first + blockIdx.x; r < rows.end; r += gridDim.x) {
        const tamis::Row row = tamis::row_of(a.rows, r, INT32_MAX);
        const tamis::Maxima maxima = tamis::maxima_of(a, rows.at, r, row);
        const uint32_t most = (uint32_t)min(maxima.n, a.list[0].width);
        if (a.zeroed && threadIdx.x == 0) {
            a.zeroed[r] = 0;
        }
        auto list = [&](uint32_t low) {
            return tamis::visit_in_order(s, maxima, {low - 1, 0, 0},
                                         [&](int i, uint32_t rank, uint32_t key) {
                                             if (rank < tamis::kCandidates) {
                                                 candidates[rank] = {key, (uint32_t)i};
                                             }
                                         });
        };
        uint32_t bound = 1, count = 0;
        const bool guesses = maxima.n >= tamis::kGuessed;
#pragma unroll 1
        for (int turn = guesses ? 0 : 1; turn < 2 && (count < most || count > tamis::kCandidates);
             turn++) {
            if (turn == 0) {
                const tamis::Sample sample = {maxima.line, (maxima.n - 1) / 128 * 16};
                /* By 1.7 times as many as are wanted: neighbours are alike. */
                bound = tamis::bound_of_maxima(s, sample, most / 8 + most / 11);
            } else if (maxima.n > tamis::kBounded) {
                bound = tamis::bound_of_maxima(s, maxima, most);
            }
            count = list(bound);
        }
        for (int l = 0; l < 2 && a.list[l].width > 0; l++) {
            tamis::write_best(s, a, a.list[l], r, row, maxima,
                              {candidates, count, bound, TAMIS_KEY_PINNED});
            __syncthreads();
        }
    }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
namespace tamis {

constexpr int kTeamThreads = 1024, kTeamWarps = kTeamThreads / 32, kTeamSize = 8, kTeamQuads = 4;

__device__ inline int team_rank() {
    uint32_t rank;
    asm("mov.u32 %0,%%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

__device__ inline void team_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* What lies in shared memory here, in the CTA of a rank. */
template <class T> __device__ inline T *at_rank(T *mine, int rank) {
    uint64_t there;
    asm("mapa.u64 %0,%1,%2;" : "=l"(there) : "l"((uint64_t)mine), "r"(rank));
    return (T *)there;
}

__device__ inline uint32_t shared_at_rank(const void *mine, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0,%1,%2;"
        : "=r"(there)
        : "r"((uint32_t)__cvta_generic_to_shared(mine)), "r"(rank));
    return there;
}

/* This thread's maxima as quads, all loads in flight. */
__device__ inline void load_maxima(const Maxima &maxima, int start, int chunk,
                                   uint4 (&keys)[kTeamQuads]) {
    const bool aligned = ((uintptr_t)maxima.line & 15) == 0;
    float4 value[kTeamQuads];
#pragma unroll
    for (int i = 0; i < kTeamQuads; i++) {
        const int c = start + quad_column(chunk, i);
        value[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (aligned && 128 * i < chunk && c + 3 < maxima.n) {
            value[i] = __ldg((const float4 *)(maxima.line + c));
        }
    }
#pragma unroll
    for (int i = 0; i < kTeamQuads; i++) {
        const int c = start + quad_column(chunk, i);
        if (128 * i >= chunk || c >= maxima.n) {
            keys[i] = make_uint4(0, 0, 0, 0);
        } else if (aligned && c + 3 < maxima.n) {
            keys[i] =
                make_uint4(maxima.key_of(c, value[i].x), maxima.key_of(c + 1, value[i].y),
                           maxima.key_of(c + 2, value[i].z), maxima.key_of(c + 3, value[i].w));
        } else {
            keys[i] = quad_at(maxima, c);
        }
    }
}

/* All of a short row's maxima, but for the newest, as candidates. */
__device__ inline Found take_all(PublishShared<kTeamThreads> &s, const Maxima &maxima, Item *to) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t low = kAll, high = 0;
    for (int i = threadIdx.x; i < maxima.n - 1; i += kTeamThreads) {
        const uint32_t key = maxima.key_of(i, maxima.load(i));
        to[i] = {key, (uint32_t)i};
        low = min(low, key);
        high = max(high, key);
    }
    low = __reduce_min_sync(kAll, low);
    high = __reduce_max_sync(kAll, high);
    if (lane == 0) {
        s.above[0][warp] = low;
        s.above[1][warp] = high;
    }
    __syncthreads();
    return {to, (uint32_t)max(maxima.n - 1, 0), __reduce_min_sync(kAll, s.above[0][lane]),
            __reduce_max_sync(kAll, s.above[1][lane])};
}

static_assert(kTeamWarps == 32, "a lane a warp");

/* What the cluster's CTAs tell each other. */
struct TeamShared {
    Spread spreads[kTeamSize];
    uint32_t counts[2][kTeamSize];
};

/* A row's candidates in the first `lists` CTAs of its cluster: each CTA lists its own behind
 * kCandidates items of its shared memory, then sends them there. Whole cluster. */
__device__ inline Found take_together(PublishShared<kTeamThreads> &s, TeamShared &team,
                                      const Maxima &maxima, uint32_t most, int lists,
                                      Item *candidates) {
    constexpr int kQuads = kTeamQuads;
    const int lane = threadIdx.x & 31, rank = team_rank();
    const int chunk = chunk_of(maxima.n, kTeamWarps * kTeamSize);
    const int start = rank * kTeamWarps * chunk;
    const uint32_t full = chunk ? (uint32_t)(maxima.n / chunk) : 0;
    uint4 keys[kQuads];
    load_maxima(maxima, start, chunk, keys);
    auto quad = [&](int i) { return keys[i]; };
    Spread spread =
        bound_of(s.pool, max(most_of(keys[0]), most_of(keys[2])),
                 max(most_of(keys[1]), most_of(keys[3])), full ? (most + full - 1) / full : most);
    team_sync(); /* every CTA has begun */
    if (threadIdx.x < kTeamSize) {
        at_rank(team.spreads, (int)threadIdx.x)[rank] = spread;
    }
    team_sync();
    const Spread none = {0, kAll, 0};
    spread = reduce(lane < kTeamSize ? team.spreads[lane] : none);
    uint32_t below = spread.sure < most ? 0 : spread.bound, low = below, top = spread.high;
    uint32_t marks[1], all, before, total;
    Item *const own = candidates + kCandidates;
    /* Where a part of the row has few good blocks, its warps' bounds let too many through: then the
     * bound is halved towards the best key until what reaches it fits, and is enough. */
    for (int round = 0;; round ^= 1) {
        marks_above<kQuads>(below, chunk / 128, quad, marks);
        const Ranks<kQuads> ranks = rank_marks<kTeamThreads, kQuads>(s.pool.tied, marks);
        total = ranks.total;
        if (threadIdx.x < kTeamSize) {
            at_rank(team.counts[round], (int)threadIdx.x)[rank] = total;
        }
        if (total <= kCandidates) {
            list_marks<kQuads>(ranks, marks, chunk / 128, quad,
                               (uint32_t)(start + quad_column(chunk, 0)),
                               (uint32_t)__cvta_generic_to_shared(own));
        }
        team_sync();
        const uint32_t mine = lane < kTeamSize ? team.counts[round][lane] : 0;
        all = __reduce_add_sync(kAll, mine);
        before = __reduce_add_sync(kAll, lane < rank ? mine : 0);
        if (all >= most && all <= kCandidates) {
            break;
        }
        (all < most ? top : low) = below;
        below = low + (top - low) / 2;
        if (below == low) { /* equal keys */
            all = kAll;
            break;
        }
    }
    if (all <= kCandidates) {
        for (int l = 0; l < lists; l++) {
            const uint32_t to = shared_at_rank(candidates + before, l);
            for (uint32_t i = threadIdx.x; i < total; i += kTeamThreads) {
                store_if(to + 8 * i, own[i].key, own[i].id, true);
            }
        }
    }
    team_sync();
    return {candidates, all, below + 1, spread.high};
}

} // namespace tamis

/* One cluster a row, for rows of at most 131,072 blocks in equal strides, one CTA of it a list. Of
 * short rows nobody waits for another CTA. Dynamic shared memory: the candidates of a row, and the
 * CTA's own. */
extern "C" __global__ void __cluster_dims__(tamis::kTeamSize)
    __launch_bounds__(tamis::kTeamThreads, 1)
        tamis_publish_team_sm90(const __grid_constant__ tamis_publish_job a) {
    extern __shared__ tamis::Item candidates[];
    __shared__ tamis::PublishShared<tamis::kTeamThreads> s;
    __shared__ tamis::TeamShared team;
    tamis::put_stamp(a.stamp);
    const int64_t r = blockIdx.x / tamis::kTeamSize;
    const int rank = tamis::team_rank(), lists = a.list[1].width > 0 ? 2 : 1;
    const tamis::Row row = tamis::row_of(a.rows, r, INT32_MAX);
    tamis::Maxima maxima = tamis::maxima_of(a, nullptr, r, row);
    const uint32_t most = (uint32_t)max(0, min(maxima.n, a.list[0].width) - 1);
    maxima.newest = 0; /* the last of every list; so keys lie close together */
    if (a.zeroed && rank == 0 && threadIdx.x == 0) {
        a.zeroed[r] = 0;
    }
    tamis::pool_begin(s.pool);
    tamis::Found found = {};
    if (maxima.n > tamis::kCandidates) {
        found = tamis::take_together(s, team, maxima, most, lists, candidates);
    } else if (rank < lists) {
        found = tamis::take_all(s, maxima, candidates);
    }
    if (rank < lists) {
        tamis::write_best(s, a, a.list[rank], r, row, maxima, found);
    }
}
#endif
