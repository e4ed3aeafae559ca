/* SPDX-License-Identifier: MIT */
/*
 * cut.h: where a selection of the best `want` of n keys ends. Found by bisecting the 32-bit key: 32
 * counts over the keys, no memory, no order among equals to get wrong.
 */
#ifndef TAMIS_KERNELS_REF_CUT_H
#define TAMIS_KERNELS_REF_CUT_H

#include <stdint.h>

/* Everything above `key` is in; of those equal to it, the first `equal`. */
typedef struct tamis_cut {
    uint32_t key;
    int64_t equal;
} tamis_cut;

/* key(context, i) is the key of item i. Requires 0 < want <= n. */
static inline tamis_cut tamis_cut_of(uint32_t (*key)(const void *context, int64_t i),
                                     const void *context, int64_t n, int64_t want) {
    tamis_cut cut = {0, 0};
    int64_t above = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) { /* largest key with count >= want */
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++) {
            count += key(context, i) >= (cut.key | bit);
        }
        if (count >= want) {
            cut.key |= bit;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        above += key(context, i) > cut.key;
    }
    cut.equal = want - above;
    return cut;
}

/* Whether the next item, with this key, is in. Ask once for each item, in ascending order. */
static inline int tamis_cut_take(tamis_cut *cut, uint32_t key) {
    if (key == cut->key && cut->equal > 0) {
        cut->equal--;
        return 1;
    }
    return key > cut->key;
}

#endif
