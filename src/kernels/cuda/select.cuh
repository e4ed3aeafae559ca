/* SPDX-License-Identifier: MIT */
/*
 * select.cuh: the best `want` of n keys by one CTA, in linear time whatever the keys are.
 *
 * Three radix passes (11, 11, 10 bits) find the key of the last one taken and how many equal to it
 * are in; one more pass hands out the items in ascending order, so equal keys go to the lowest
 * items.
 */
#ifndef TAMIS_CUDA_SELECT_CUH
#define TAMIS_CUDA_SELECT_CUH

#include "common.cuh"

namespace tamis {

constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32, kBins = 2048;

struct SelectShared {
    uint32_t bins[kBins];
    uint32_t above[kSelectWarps], equal[kSelectWarps];
    uint32_t bin, rest; /* of the pass: the bin that holds the cut, items wanted inside it */
    uint32_t valid;
};

/* Finds the bin in which the want-th largest lies, by warp 0. */
__device__ inline void find_bin(SelectShared &s, uint32_t want) {
    int lane = threadIdx.x & 31;
    if (threadIdx.x >= 32) {
        return;
    }
    constexpr int kEach = kBins / 32; /* bins of a lane, highest lane first */
    uint32_t sum = 0;
    for (int i = 0; i < kEach; i++) {
        sum += s.bins[lane * kEach + i];
    }
    uint32_t from = sum; /* items in this lane's bins and above */
    for (int d = 1; d < 32; d *= 2) {
        uint32_t other = __shfl_down_sync(kAll, from, d);
        from += lane + d < 32 ? other : 0;
    }
    if (from >= want && from - sum < want) { /* one lane holds the cut */
        uint32_t above = from - sum;
        int bin = lane * kEach + kEach - 1;
        while (above + s.bins[bin] < want) {
            above += s.bins[bin--];
        }
        s.bin = (uint32_t)bin;
        s.rest = want - above;
    }
}

/* One pass over the keys that share `prefix` above `shift` + bits. */
template <class Key>
__device__ inline void radix_pass(SelectShared &s, int64_t n, Key key, uint32_t prefix,
                                  uint32_t mask, int shift, uint32_t bins, uint32_t want) {
    for (int i = threadIdx.x; i < kBins; i += kSelectThreads) {
        s.bins[i] = 0;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += kSelectThreads) {
        uint32_t k = key(i);
        if ((k & mask) == prefix) {
            atomicAdd(&s.bins[k >> shift & (bins - 1)], 1u);
        }
    }
    __syncthreads();
    find_bin(s, want);
    __syncthreads();
}

/*
 * Calls take(i, rank) for each item taken, rank ascending with i. Requires want <= n items whose
 * key may be taken. Whole CTA; leaves at a barrier.
 */
template <class Key, class Take>
__device__ inline void select(SelectShared &s, int64_t n, uint32_t want, Key key, Take take) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    if (want == 0) {
        return;
    }
    radix_pass(s, n, key, 0, 0, 21, 2048, want);
    uint32_t cut = s.bin << 21, rest = s.rest;
    __syncthreads();
    radix_pass(s, n, key, cut, 0xFFE00000u, 10, 2048, rest);
    cut |= s.bin << 10;
    rest = s.rest;
    __syncthreads();
    radix_pass(s, n, key, cut, 0xFFFFFC00u, 0, 1024, rest);
    cut |= s.bin;
    rest = s.rest;
    __syncthreads();
    uint32_t above = 0, equal = 0; /* items of earlier rounds */
    for (int64_t base = 0; base < n; base += kSelectThreads) {
        int64_t i = base + threadIdx.x;
        uint32_t k = i < n ? key(i) : 0;
        bool is_above = i < n && k > cut, is_equal = i < n && k == cut;
        unsigned above_lanes = __ballot_sync(kAll, is_above);
        unsigned equal_lanes = __ballot_sync(kAll, is_equal);
        if (lane == 0) {
            s.above[warp] = (uint32_t)__popc(above_lanes);
            s.equal[warp] = (uint32_t)__popc(equal_lanes);
        }
        __syncthreads();
        uint32_t my_above = above, my_equal = equal;
        for (int w = 0; w < kSelectWarps; w++) {
            my_above += w < warp ? s.above[w] : 0;
            my_equal += w < warp ? s.equal[w] : 0;
            above += s.above[w];
            equal += s.equal[w];
        }
        unsigned below = (1u << lane) - 1;
        my_above += (uint32_t)__popc(above_lanes & below);
        my_equal += (uint32_t)__popc(equal_lanes & below);
        if (is_above || (is_equal && my_equal < rest)) {
            take(i, my_above + min(my_equal, rest));
        }
        __syncthreads();
    }
}

} // namespace tamis

#endif
