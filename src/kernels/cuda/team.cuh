/* SPDX-License-Identifier: MIT */
/* team.cuh: CTAs that work on a row together: a cluster, from sm_90 on, and its shared memory. */
#ifndef TAMIS_CUDA_TEAM_CUH
#define TAMIS_CUDA_TEAM_CUH

#include <stdint.h>

namespace tamis {

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

} // namespace tamis

#endif
