/* SPDX-License-Identifier: MIT */
/* guarded_picks.h: a CTA's shared memory of picks.cuh for the emulated.* programs, which begins as
 * garbage and has words around it that must stay. */
#ifndef TESTS_CUDA_GUARDED_PICKS_H
#define TESTS_CUDA_GUARDED_PICKS_H

#include <algorithm>
#include <string.h>

#include "kernels/cuda/picks.cuh"

struct GuardedPicks {
    static constexpr uint32_t kCanary = 0xC0FFEE11u;

    uint32_t before[16];
    tamis::PickRow row;
    uint32_t between[16];
    tamis::PickLists lists;
    uint32_t after[16];

    void spoil() {
        memset((void *)this, 0xA5, sizeof *this);
        for (uint32_t(*words)[16] : {&before, &between, &after}) {
            std::fill_n(*words, 16, kCanary);
        }
    }
    bool surroundings_stay() const {
        for (const uint32_t(*words)[16] : {&before, &between, &after}) {
            if (std::count(*words, *words + 16, kCanary) != 16) {
                return false;
            }
        }
        return true;
    }
};

#endif
