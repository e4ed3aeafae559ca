/* SPDX-License-Identifier: MIT */
/*
 * emulated_ptx.h: what scoring kernels use of CUDA and PTX beyond emulated.h, for sources that
 * ptx.py translated: conversions, copies, integer matrix products. Of wgmma the four warps of a
 * group have to make the same products at the same places of the code, which is told by return
 * addresses.
 *
 * Products are done at once: that a result is not read, nor a fragment written, while its product
 * is under way is the compiler's business, and not looked at here.
 */
#ifndef TESTS_CUDA_EMULATED_PTX_H
#define TESTS_CUDA_EMULATED_PTX_H

#include "emulated.h"

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <stdio.h>

#define __global__
#define __constant__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct Dim3 {
    uint32_t x, y, z;
};
static Dim3 blockIdx, gridDim, blockDim;

namespace emulated {

/* As PTX has it: the sign of the byte that is selected where bit 3 is set. */
inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t from = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (uint32_t i = 0; i < 32; i += 8) {
        const uint32_t s = selector >> (i / 2), byte = (uint32_t)(from >> (8 * (s & 7))) & 255u;
        d |= (s & 8 ? 255u * (byte >> 7) : byte) << i;
    }
    return d;
}
inline float saturated(float x) {
    return x > 0 ? min(x, 1.0f) : 0.0f;
}
inline uint32_t dp2a(uint32_t a, uint32_t b, uint32_t c) {
    return c + (a & 0xFFFFu) * (b & 255u) + (a >> 16) * (b >> 8 & 255u);
}
inline uint32_t choose(uint32_t mask, uint32_t yes, uint32_t no) {
    return (mask & yes) | (~mask & no);
}

inline void load(const void *from, std::initializer_list<uint32_t *> to) {
    const uint8_t *p = (const uint8_t *)from;
    for (uint32_t *word : to) {
        memcpy(word, p, 4);
        p += 4;
    }
}
inline void load_shared(uint32_t from, std::initializer_list<uint32_t *> to) {
    load(__cvta_shared_to_generic(from), to);
}
/* A word to the first of four, or a byte to each. */
inline void load_bytes(const uint8_t *from, bool aligned, std::initializer_list<uint32_t *> to) {
    if (aligned) {
        load(from, {*to.begin()});
        return;
    }
    for (uint32_t *word : to) {
        *word = *from++;
    }
}

/* Whether copies are made as they are asked for, and may overwrite what is still to be read, or
 * none before it is waited for: a GPU does either. */
inline bool copies_at_once;

/* A thread's copies to shared memory. */
class Copies {
  public:
    void add(uint32_t to, const void *from, size_t bytes) {
        uint8_t *const at = (uint8_t *)__cvta_shared_to_generic(to);
        if (to % bytes || (uintptr_t)from % bytes) {
            printf("a copy of %zu bytes is not aligned\n", bytes);
            abort();
        }
        if (copies_at_once) {
            memcpy(at, from, bytes);
        }
        pending.push_back({at, from, copies_at_once ? 0 : bytes, ended});
    }
    void end() {
        ended++;
    }
    void wait(int left) {
        while (!pending.empty() && pending.front().group + left < ended) {
            memcpy(pending.front().to, pending.front().from, pending.front().bytes);
            pending.pop_front();
        }
    }
    bool none() const {
        return pending.empty();
    }

  private:
    struct Copy {
        uint8_t *to;
        const void *from;
        size_t bytes;
        int group;
    };
    std::deque<Copy> pending;
    int ended = 0;
};
inline Copies copies[kMaxThreads];
inline void copy(uint32_t to, const void *from, size_t bytes) {
    copies[threadIdx.x].add(to, from, bytes);
}
inline void end_copies() {
    copies[threadIdx.x].end();
}
inline void wait_for_copies(int left) {
    copies[threadIdx.x].wait(left);
}
/* Whether all were waited for. */
inline bool copies_are_there() {
    return std::all_of(copies, copies + kMaxThreads, [](const Copies &c) { return c.none(); });
}

uint8_t *dynamic_shared(); /* the program's */

/* ---- products ---- */

inline int byte_of(uint32_t word, int i, bool is_unsigned) {
    const uint32_t byte = word >> (8 * i) & 255u;
    return is_unsigned ? (int)byte : (int)(int8_t)byte;
}

/* The words of all lanes. */
template <int N> struct Fragments {
    uint32_t word[N][32];

    explicit Fragments(std::initializer_list<uint32_t> own) {
        int k = 0;
        for (uint32_t x : own) {
            const auto lanes = gather_lanes(0xFFFFFFFFu, x, Kind::product);
            for (int i = 0; i < 32; i++) {
                word[k][i] = lanes[i];
            }
            k++;
        }
    }
};

/* Row `row` of 16 of a fragment of 16 x 32 bytes, times column(k). */
template <bool UNSIGNED, class Column>
inline uint32_t dot(const Fragments<4> &a, int row, Column column) {
    uint32_t sum = 0;
    for (int k = 0; k < 32; k++) {
        const uint32_t word = a.word[k / 16 * 2 + row / 8][row % 8 * 4 + k / 4 % 4];
        sum += (uint32_t)(byte_of(word, k % 4, UNSIGNED) * column(k));
    }
    return sum;
}

template <bool UNSIGNED>
inline void mma(std::initializer_list<uint32_t *> to, std::initializer_list<uint32_t> a,
                std::initializer_list<uint32_t> b, std::initializer_list<uint32_t> start) {
    const int lane = (int)threadIdx.x & 31;
    const Fragments<4> rows(a);
    const Fragments<2> columns(b);
    const uint32_t *from = start.begin();
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + 8 * (e / 2), n = 2 * (lane & 3) + e % 2;
        *to.begin()[e] = from[e] + dot<UNSIGNED>(rows, row, [&](int k) {
                             return byte_of(columns.word[k / 16][4 * n + k / 4 % 4], k % 4, false);
                         });
    }
}

/* Byte k of line n of a matrix in shared memory, by its descriptor: without a swizzle, or that of
 * 128 bytes. */
inline uint32_t matrix_byte(uint64_t matrix, int n, int k) {
    const uint32_t start = (uint32_t)(matrix & 0x3FFF) * 16;
    const uint32_t leading = (uint32_t)(matrix >> 16 & 0x3FFF) * 16;
    const uint32_t stride = (uint32_t)(matrix >> 32 & 0x3FFF) * 16;
    uint32_t at = start + (uint32_t)(n / 8) * stride;
    switch (matrix >> 62) {
    case 0:
        at += (uint32_t)(k / 16) * leading + (uint32_t)(n % 8) * 16 + (uint32_t)(k % 16);
        break;
    case 1:
        at += (uint32_t)(n % 8) * 128 + (uint32_t)k;
        at ^= (at >> 7 & 7) << 4;
        break;
    default:
        cta().fail("a swizzle that is not emulated");
    }
    return *(const uint8_t *)__cvta_shared_to_generic(at);
}

/* What warps have multiplied, and where in the code. */
struct Products {
    uint64_t places[kMaxThreads / 32], count[kMaxThreads / 32];

    void note(const void *first, const void *second, const void *third) {
        if ((threadIdx.x & 31) == 0) {
            uint64_t &place = places[threadIdx.x / 32];
            for (const void *at : {first, second, third}) {
                place = (place ^ (uint64_t)(uintptr_t)at) * 0x100000001B3u;
            }
            count[threadIdx.x / 32]++;
        }
    }
    /* Whether the four warps of every group have done the same. */
    bool agree() const {
        bool same = true;
        for (int w = 0; w < kMaxThreads / 32; w++) {
            same &= places[w] == places[w / 4 * 4] && count[w] == count[w / 4 * 4];
        }
        return same;
    }
};

inline Products products;

#define NOTE_PRODUCT()                                                                             \
    products.note(__builtin_return_address(0), __builtin_return_address(1),                        \
                  __builtin_return_address(2))

/* The lane's row and column of element e of a product of 64 rows. */
inline int row_of(int e) {
    return (int)(threadIdx.x & 31) / 4 + 8 * (e / 2 % 2);
}
inline int column_of(int e) {
    return 8 * (e / 4) + 2 * (int)(threadIdx.x & 3) + e % 2;
}

template <bool UNSIGNED, int N>
__noinline__ void wgmma(uint32_t (&d)[N], std::initializer_list<uint32_t> a, uint64_t b, int add) {
    const Fragments<4> rows(a);
    NOTE_PRODUCT();
    for (int e = 0; e < N; e++) {
        const int n = column_of(e);
        d[e] = (add ? d[e] : 0) + dot<UNSIGNED>(rows, row_of(e), [&](int k) {
                   return byte_of(matrix_byte(b, n, k), 0, false);
               });
    }
}

/* Of unsigned bytes in shared memory. */
template <int N> __noinline__ void wgmma_of_shared(uint32_t (&d)[N], uint64_t a, uint64_t b) {
    const int first = (int)threadIdx.x / 32 % 4 * 16;
    NOTE_PRODUCT();
    for (int e = 0; e < N; e++) {
        d[e] = 0;
        for (int k = 0; k < 32; k++) {
            const uint32_t x = matrix_byte(a, first + row_of(e), k);
            d[e] += x * (uint32_t)byte_of(matrix_byte(b, column_of(e), k), 0, false);
        }
    }
}

} // namespace emulated

/* ---- CUDA ---- */

inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    return emulated::prmt(a, b, selector & 0x7777u);
}
inline uint32_t __vmaxu2(uint32_t a, uint32_t b) {
    return max(a & 0xFFFFu, b & 0xFFFFu) | max(a >> 16, b >> 16) << 16;
}
inline int32_t __dp4a(int32_t a, int32_t b, int32_t c) {
    for (int i = 0; i < 4; i++) {
        c += emulated::byte_of((uint32_t)a, i, false) * emulated::byte_of((uint32_t)b, i, false);
    }
    return c;
}
inline float __int2float_rn(int32_t x) {
    return (float)x;
}
inline void __threadfence_system() {
}
inline void __syncwarp() {
    gather_lanes(0xFFFFFFFFu, 0, emulated::Kind::sync_warp);
}
inline bool __syncthreads_and(bool x) {
    return !emulated::cta().any(!x);
}
inline bool __all_sync(uint32_t mask, bool x) {
    return __ballot_sync(mask, x) == 0xFFFFFFFFu;
}
inline int32_t __reduce_max_sync(uint32_t mask, int32_t x) {
    return (int32_t)(__reduce_max_sync(mask, (uint32_t)x ^ 0x80000000u) ^ 0x80000000u);
}
inline int32_t __shfl_xor_sync(uint32_t mask, int32_t x, int by) {
    return (int32_t)__shfl_xor_sync(mask, (uint32_t)x, by);
}
inline float __shfl_xor_sync(uint32_t mask, float x, int by) {
    return __uint_as_float(__shfl_xor_sync(mask, __float_as_uint(x), by));
}
inline float __shfl_sync(uint32_t mask, float x, int from) {
    return __uint_as_float(__shfl_sync(mask, __float_as_uint(x), from));
}
inline unsigned long long __shfl_sync(uint32_t mask, unsigned long long x, int from) {
    const uint32_t low = __shfl_sync(mask, (uint32_t)x, from);
    return (unsigned long long)__shfl_sync(mask, (uint32_t)(x >> 32), from) << 32 | low;
}
inline unsigned long __shfl_sync(uint32_t mask, unsigned long x, int from) {
    return (unsigned long)__shfl_sync(mask, (unsigned long long)x, from);
}
inline uint32_t __shfl_sync(uint32_t mask, uint32_t x, int from, int width) {
    const int lane = (int)threadIdx.x & 31;
    return __shfl_sync(mask, x, (lane & ~(width - 1)) + (from & (width - 1)));
}

#endif
