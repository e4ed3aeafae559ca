/* SPDX-License-Identifier: MIT */
/* inline.h: the functions that C and CUDA share are compiled for both from one text. */
#ifndef TAMIS_FORMAT_INLINE_H
#define TAMIS_FORMAT_INLINE_H

#if defined(__CUDACC__)
#define TAMIS_INLINE static __host__ __device__ inline
#else
#define TAMIS_INLINE static inline
#endif

#endif
