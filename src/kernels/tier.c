/* SPDX-License-Identifier: MIT */
/* tier.c: the ladder of tiers. ref has every kernel; a higher tier overwrites those it has. */
#include <string.h>

#include "kernels/tier.h"

const char *tamis_tier_word(int tier) {
    static const char *const words[TAMIS_TIER_COUNT] = {"ref", "avx2"};
    return words[tier];
}

int tamis_tier_supported(int tier) {
    switch (tier) {
    case TAMIS_TIER_ref:
        return 1;
#if defined(__x86_64__)
    case TAMIS_TIER_avx2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
               __builtin_cpu_supports("popcnt");
#endif
    default:
        return 0;
    }
}

int tamis_tier_best(void) {
    int best = TAMIS_TIER_ref;
    for (int tier = TAMIS_TIER_ref; tier < TAMIS_TIER_COUNT; tier++) {
        best = tamis_tier_supported(tier) ? tier : best;
    }
    return best;
}

int tamis_tier_find(const char *name) {
    if (name == NULL || strcmp(name, "auto") == 0) {
        return tamis_tier_best();
    }
    for (int tier = TAMIS_TIER_ref; tier < TAMIS_TIER_COUNT; tier++) {
        if (strcmp(name, tamis_tier_word(tier)) == 0) {
            return tier;
        }
    }
    return -1;
}

void tamis_kernels_fill(tamis_kernels *kernels, int tier) {
    for (int rung = TAMIS_TIER_ref; rung <= tier; rung++) {
#define TAMIS_KERNEL(stage, of, note)                                                              \
    if (rung == TAMIS_TIER_##of) {                                                                 \
        kernels->stage = tamis_##stage##_##of;                                                     \
    }
#include "kernels/kernels.inc"
#undef TAMIS_KERNEL
    }
}
