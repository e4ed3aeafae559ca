/* SPDX-License-Identifier: MIT */
/*
 * fpenv.h: round to nearest with subnormals on, for the length of a call. Hosts built with
 * -ffast-math run with flush-to-zero, which would change bits; their setting is restored.
 */
#ifndef TAMIS_KERNELS_FPENV_H
#define TAMIS_KERNELS_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

static inline uint64_t tamis_fp_enter(void) {
    uint32_t saved = _mm_getcsr();
    _mm_setcsr(0x1F80); /* all exceptions masked, round to nearest, FTZ and DAZ off */
    return saved;
}

static inline void tamis_fp_leave(uint64_t saved) {
    _mm_setcsr((uint32_t)saved);
}

#elif defined(__aarch64__)

static inline uint64_t tamis_fp_enter(void) {
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)));
    return saved;
}

static inline void tamis_fp_leave(uint64_t saved) {
    __asm__ volatile("msr fpcr, %0" : : "r"(saved));
}

#else
#include <fenv.h>

static inline uint64_t tamis_fp_enter(void) {
    int saved = fegetround();
    fesetround(FE_TONEAREST);
    return (uint64_t)(int64_t)saved;
}

static inline void tamis_fp_leave(uint64_t saved) {
    fesetround((int)(int64_t)saved);
}

#endif
#endif
