/* SPDX-License-Identifier: MIT */
/*
 * wgmma.cuh: 64 positions in a warpgroup's registers times 32, 64 or 128 heads in shared memory,
 * four steps of 32 signed bytes. For images with sm_90a alone. Results of two calls that overlap or
 * follow one another need arrays of their own: ptxas 13.0 takes a second product into the same
 * registers for the first.
 */
#ifndef TAMIS_CUDA_WGMMA_CUH
#define TAMIS_CUDA_WGMMA_CUH

#include <stdint.h>

namespace tamis {
namespace hopper {

#define TAMIS_LINE4(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define TAMIS_LINE16(d, i)                                                                         \
    TAMIS_LINE4(d, i), TAMIS_LINE4(d, i + 4), TAMIS_LINE4(d, i + 8), TAMIS_LINE4(d, i + 12)

/*
 * Where a CTA's shared memory begins on sm_90. Known while compiling, a matrix's descriptors cost
 * no vector instructions (20 of 165 a turn of consume_sm90.cu). Rows are left where it is not so.
 */
constexpr uint32_t kSharedBase = 1024;

/* K-major lines of 128 bytes in the 128-byte swizzle, eight every 1,024 bytes; from step j's 32
 * bytes on. `at`: address / 16, below 2^14. */
__device__ inline uint64_t matrix_of(uint32_t at, int j) {
    return (uint64_t)(64 | 1 << 30) << 32 | ((at | 1u << 16) + 2 * j);
}

template <int kAdd>
__device__ inline void multiply_async(uint32_t (&d)[16], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
                 "{%16,%17,%18,%19},%20,%21;"
                 : TAMIS_LINE16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd));
}

/* As multiply_async, to what is there, of unsigned bytes. */
__device__ inline void multiply_unsigned(uint32_t (&d)[16], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
                 "{%16,%17,%18,%19},%20,1;"
                 : TAMIS_LINE16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* The same of a matrix in shared memory: d begins with it. */
__device__ inline void multiply_constants(uint32_t (&d)[16], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},%16,%17,0;"
                 : TAMIS_LINE16(d, 0)
                 : "l"(a), "l"(b));
}

template <int kAdd>
__device__ inline void multiply_async(uint32_t (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                 "{%32,%33,%34,%35},%36,%37;"
                 : TAMIS_LINE16(d, 0), TAMIS_LINE16(d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd));
}

template <int kAdd>
__device__ inline void multiply_async(uint32_t (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
                 "{%64,%65,%66,%67},%68,%69;"
                 : TAMIS_LINE16(d, 0), TAMIS_LINE16(d, 16), TAMIS_LINE16(d, 32), TAMIS_LINE16(d, 48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdd));
}

template <int N>
__device__ inline void multiply(uint32_t (&d)[N], const uint32_t (&a)[4][4], uint32_t q) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    multiply_async<0>(d, a[0], matrix_of(q, 0));
    multiply_async<1>(d, a[1], matrix_of(q, 1));
    multiply_async<1>(d, a[2], matrix_of(q, 2));
    multiply_async<1>(d, a[3], matrix_of(q, 3));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until d is there: kLeft products have begun since. */
template <int kLeft> __device__ inline void multiply_wait(uint32_t (&d)[16]) {
    asm volatile("wgmma.wait_group.sync.aligned %16;" : TAMIS_LINE16(d, 0) : "n"(kLeft) : "memory");
}
template <int kLeft> __device__ inline void multiply_wait(uint32_t (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;"
                 : TAMIS_LINE16(d, 0), TAMIS_LINE16(d, 16)
                 : "n"(kLeft)
                 : "memory");
}
template <int kLeft> __device__ inline void multiply_wait(uint32_t (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;"
                 : TAMIS_LINE16(d, 0), TAMIS_LINE16(d, 16), TAMIS_LINE16(d, 32), TAMIS_LINE16(d, 48)
                 : "n"(kLeft)
                 : "memory");
}

#undef TAMIS_LINE4
#undef TAMIS_LINE16

} // namespace hopper
} // namespace tamis

#endif
