/* SPDX-License-Identifier: MIT */
/*
 * pool.cuh: a bound that enough of the keys reach which the threads of a CTA hold, and a list of
 * those, for publish.cu; 0 is no key.
 *
 * Every warp finds a bound that its share of the best keys of its half threads reach, and the least
 * of these stands. What reaches it goes to a list in shared memory, in order.
 *
 * Keys are held in quads: quad i of a thread is the columns quad_column(chunk, i) .. + 3, where
 * each warp has `chunk` columns. So loads of 16 bytes are dense and columns ascend by warp, quad,
 * lane.
 */
#ifndef TAMIS_CUDA_POOL_CUH
#define TAMIS_CUDA_POOL_CUH

#include "cut.cuh"

namespace tamis {

/* Columns of a warp: whole quads of all its lanes. */
__device__ inline int chunk_of(int columns, int warps) {
    return ((columns + warps - 1) / warps + 127) / 128 * 128;
}

/* Of this thread's quad i: its first column. */
__device__ inline int quad_column(int chunk, int i) {
    return (int)threadIdx.x / 32 * chunk + 128 * i + 4 * ((int)threadIdx.x & 31);
}

__device__ inline uint32_t most_of(const uint4 &k) {
    return max(max(k.x, k.y), max(k.z, k.w));
}

__device__ inline Spread reduce(const Spread &x) {
    return {__reduce_max_sync(kAll, x.high), __reduce_min_sync(kAll, x.bound),
            __reduce_add_sync(kAll, x.sure)};
}

/*
 * The best key, and a bound that `sure` keys reach, in every thread; sure is 0 where warps have too
 * few keys for `quota` each. even and odd: best keys of the thread's half.
 */
template <int THREADS>
__device__ inline Spread bound_of(Pool<THREADS> &s, uint32_t even, uint32_t odd, uint32_t quota) {
    constexpr int kWarps = THREADS / 32;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    auto reached = [&](uint32_t by) {
        return (uint32_t)(__popc(__ballot_sync(kAll, even >= by)) +
                          __popc(__ballot_sync(kAll, odd >= by)));
    };
    Spread mine;
    mine.high = __reduce_max_sync(kAll, max(even, odd));
    uint32_t low = __reduce_min_sync(kAll, min(even - 1u, odd - 1u)) + 1u, top = mine.high;
    const bool enough = reached(1) >= quota;
    if (enough) {
        for (uint32_t count = kAll; low < top && count > quota + quota / 4;) {
            const uint32_t middle = low + (top - low) / 2 + 1, found = reached(middle);
            low = found >= quota ? middle : low;
            top = found >= quota ? top : middle - 1;
            count = found >= quota ? found : count;
        }
    }
    mine.bound = enough ? low - 1u : kAll;
    mine.sure = enough ? quota : 0;
    if (lane == 0) {
        s.warp[warp] = mine;
    }
    __syncthreads();
    Spread all = {0, kAll, 0};
    return reduce(lane < kWarps ? s.warp[lane] : all);
}

/* Ranks of marks in the order of columns. */
template <int QUADS> struct Ranks {
    static constexpr int kWords = (QUADS + 7) / 8;
    uint32_t before[2 * kWords]; /* lower lanes' in a quad, a byte each: even
                                    quads, odd quads */
    uint32_t all[2 * kWords];    /* the warp's */
    uint32_t base, total;        /* lower warps', the CTA's */

    /* Rank of the first mark of quad i, given those of the quads before it in `base`. */
    __device__ uint32_t first(int i) const {
        return base + (before[i / 8 * 2 + i % 2] >> (i % 8 / 2 * 8) & 255u);
    }
    __device__ void next(int i) {
        base += all[i / 8 * 2 + i % 2] >> (i % 8 / 2 * 8) & 255u;
    }
};

template <int THREADS, int QUADS>
__device__ inline Ranks<QUADS> rank_marks(uint32_t (&sums)[THREADS / 32],
                                          const uint32_t (&marks)[(QUADS + 7) / 8]) {
    constexpr int kWarps = THREADS / 32;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    Ranks<QUADS> ranks;
    uint32_t total = 0;
#pragma unroll
    for (int w = 0; w < Ranks<QUADS>::kWords; w++) {
        uint32_t pairs = marks[w] - (marks[w] >> 1 & 0x55555555u);
        uint32_t counts = (pairs & 0x33333333u) + (pairs >> 2 & 0x33333333u);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t own = counts >> (4 * h) & 0x0F0F0F0Fu;
            uint32_t sum = sum_to_lane<uint32_t>(own); /* at most 128 a byte */
            ranks.before[2 * w + h] = sum - own;
            ranks.all[2 * w + h] = __shfl_sync(kAll, sum, 31);
            total = __dp4a(ranks.all[2 * w + h], 0x01010101u, total);
        }
    }
    if (lane == 0) {
        sums[warp] = total;
    }
    __syncthreads();
    total = lane < kWarps ? sums[lane] : 0;
    ranks.base = __reduce_add_sync(kAll, lane < warp ? total : 0);
    ranks.total = __reduce_add_sync(kAll, total);
    return ranks;
}

/* Stores an item where `yes`, in this CTA's shared memory or (sm_90) a cluster's. */
__device__ inline void store_if(uint32_t address, uint32_t key, uint32_t id, bool yes) {
#if !defined(__CUDA_ARCH__)
    if (yes) {
        *(uint2 *)__cvta_shared_to_generic(address) = make_uint2(key, id);
    }
#elif __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; setp.ne.u32 p,%0,0; @p "
                 "st.shared::cluster.v2.u32 [%1],{%2,%3};}" ::"r"((uint32_t)yes),
                 "r"(address), "r"(key), "r"(id)
                 : "memory");
#else
    asm volatile("{.reg .pred p; setp.ne.u32 p,%0,0; @p st.shared.v2.u32 [%1],{%2,%3};}" ::"r"(
                     (uint32_t)yes),
                 "r"(address), "r"(key), "r"(id)
                 : "memory");
#endif
}

/* The marked keys and their columns to the list at `address`, in order; the thread's quads begin at
 * `column`. */
template <int QUADS, class Quad>
__device__ inline void list_marks(Ranks<QUADS> ranks, const uint32_t (&marks)[(QUADS + 7) / 8],
                                  int quads, Quad quad, uint32_t column, uint32_t address) {
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        if (i < quads) {
            const uint4 key = quad(i);
            const uint32_t four = marks[i / 8] >> (4 * (i % 8)), id = column + 128 * i;
            uint32_t at = address + 8 * ranks.first(i);
            store_if(at, key.x, id, four & 1);
            at += 8 * (four & 1);
            store_if(at, key.y, id + 1, four & 2);
            at += 4 * (four & 2);
            store_if(at, key.z, id + 2, four & 4);
            at += 2 * (four & 4);
            store_if(at, key.w, id + 3, four & 8);
        }
        ranks.next(i);
    }
}

} // namespace tamis

#endif
