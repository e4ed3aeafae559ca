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
        sum += s.bins[lane * kEach + (i + lane) % kEach]; /* lanes in different banks */
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

/*
 * The same for keys that fit shared memory, by a CTA of kPoolThreads. Whoever makes the keys counts
 * their top 11 bits on the way; one pass over them then marks a bit a column, and the other two
 * digits are refined among the marked alone.
 */
constexpr int kPoolThreads = 256, kPoolWarps = kPoolThreads / 32;

struct PoolShared {
    uint32_t bins[kBins];
    uint32_t sums[kPoolWarps];
    uint32_t bin, rest; /* of a pass, as above */
    uint32_t total;     /* of what it counted */
};

/* Sum of the values of lower threads (and of all, in *all). Whole CTA; leaves at a barrier. */
__device__ inline uint32_t scan_threads(PoolShared &s, uint32_t value, uint32_t *all) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t sum = sum_to_lane<uint32_t>(value);
    if (lane == 31) {
        s.sums[warp] = sum;
    }
    __syncthreads();
    uint32_t before = 0;
    *all = 0;
#pragma unroll
    for (int w = 0; w < kPoolWarps; w++) {
        before += w < warp ? s.sums[w] : 0;
        *all += s.sums[w];
    }
    __syncthreads();
    return before + sum - value;
}

/* The bin of the want-th largest, want at most what was counted. Clears the bins. Whole CTA. */
__device__ inline void find_cut(PoolShared &s, int64_t most) {
    constexpr int kEach = kBins / kPoolThreads;
    uint32_t bins[kEach], sum = 0, total;
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        bins[i] = s.bins[threadIdx.x * kEach + i];
        s.bins[threadIdx.x * kEach + i] = 0;
        sum += bins[i];
    }
    uint32_t below = scan_threads(s, sum, &total);
    uint32_t want = (uint32_t)min(most, (int64_t)total), above = total - below - sum;
    if (threadIdx.x == 0) {
        s.total = total;
    }
    if (above < want && above + sum >= want) {
#pragma unroll
        for (int i = kEach - 1; i >= 0; i--) {
            if (above < want && above + bins[i] >= want) {
                s.bin = threadIdx.x * kEach + i;
                s.rest = want - above;
            }
            above += bins[i];
        }
    }
    __syncthreads();
}

/* Columns as bits: those taken, those equal to the cut in the digits seen so far. */
struct Marks {
    uint32_t *taken, *tied;
};

/* Keeps of the tied columns those whose next digit is the cut's, takes those above. A thread owns
 * the words first .. end - 1. */
__device__ inline void refine(PoolShared &s, const uint32_t *keys, Marks m, int first, int end,
                              int shift, uint32_t digits, uint32_t want) {
    for (int w = first; w < end; w++) {
        for (uint32_t left = m.tied[w]; left; left &= left - 1) {
            atomicAdd(&s.bins[keys[32 * w + __ffs((int)left) - 1] >> shift & digits], 1u);
        }
    }
    __syncthreads();
    find_cut(s, want);
    for (int w = first; w < end; w++) {
        for (uint32_t left = m.tied[w]; left; left &= left - 1) {
            uint32_t bit = left & (0u - left);
            uint32_t digit = keys[32 * w + __ffs((int)left) - 1] >> shift & digits;
            m.taken[w] |= digit > s.bin ? bit : 0;
            m.tied[w] ^= digit != s.bin ? bit : 0;
        }
    }
}

/*
 * The best `topk` of the columns, counted by their top 11 bits in s.bins; key 0 is no column. Calls
 * take(column, rank) as select() does; returns how many. Whole CTA; leaves the bins cleared.
 */
template <class Take>
__device__ inline uint32_t select_counted(PoolShared &s, const uint32_t *keys, Marks m, int words,
                                          uint32_t topk, Take take) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    find_cut(s, topk);
    const uint32_t want = min(topk, s.total), bin = s.bin;
    uint32_t rest = s.rest, all;
    if (want == 0) {
        return 0;
    }
    for (int w = warp; w < words; w += kPoolWarps) {
        uint32_t key = keys[32 * w + lane];
        uint32_t taken = __ballot_sync(kAll, key >> 21 > bin);
        uint32_t tied = __ballot_sync(kAll, key >> 21 == bin && key != 0);
        if (lane == 0) {
            m.taken[w] = taken;
            m.tied[w] = tied;
        }
    }
    __syncthreads();
    const int each = (words + kPoolThreads - 1) / kPoolThreads;
    const int first = min((int)threadIdx.x * each, words), end = min(first + each, words);
    refine(s, keys, m, first, end, 10, kBins - 1, rest);
    rest = s.rest;
    __syncthreads();
    refine(s, keys, m, first, end, 0, 1023, rest);
    rest = s.rest;
    uint32_t mine = 0; /* taken above bit 16, tied below */
    for (int w = first; w < end; w++) {
        mine += (uint32_t)__popc(m.taken[w]) << 16 | (uint32_t)__popc(m.tied[w]);
    }
    uint32_t before = scan_threads(s, mine, &all);
    uint32_t taken = before >> 16, tied = before & 0xFFFFu;
    for (int w = first; w < end; w++) {
        for (uint32_t left = m.taken[w] | m.tied[w]; left; left &= left - 1) {
            uint32_t bit = left & (0u - left);
            if (m.taken[w] & bit) {
                take(32 * w + __ffs((int)left) - 1, taken++ + min(tied, rest));
            } else {
                if (tied < rest) {
                    take(32 * w + __ffs((int)left) - 1, taken + tied);
                }
                tied++;
            }
        }
    }
    return want;
}

/* Whole CTA, before keys are counted; leaves at a barrier. */
__device__ inline void clear_bins(PoolShared &s) {
    for (int i = threadIdx.x; i < kBins; i += kPoolThreads) {
        s.bins[i] = 0;
    }
    __syncthreads();
}

/* Stores a column's key, 0 for none, and counts it. */
__device__ inline void put_key(PoolShared &s, uint32_t *keys, int column, uint32_t key) {
    keys[column] = key;
    if (key) {
        atomicAdd(&s.bins[key >> 21], 1u);
    }
}

/* Marks behind the keys of `words` * 32 columns in dynamic shared memory. */
__device__ inline Marks marks_of(uint32_t *keys, int words) {
    return {keys + 32 * words, keys + 33 * words};
}

} // namespace tamis

#endif
