/* SPDX-License-Identifier: MIT */
/* split_args.h: how a row of decode.cu is shared out among CTAs; made by the launcher. */
#ifndef TAMIS_CUDA_SPLIT_ARGS_H
#define TAMIS_CUDA_SPLIT_ARGS_H

#include <stdint.h>

enum {
    TAMIS_SPLIT_ROWS = 264, /* a row a CTA from here on */
    TAMIS_SPLIT_WARPS = 16,
    TAMIS_SPLIT_SLOTS = 3072,   /* of all lists of a row, at most */
    TAMIS_SPLIT_LISTS = 512,    /* at most */
    TAMIS_SPLIT_PARTS = 256,    /* at most: with lists of 128 keys, that many have room */
    TAMIS_SPLIT_COPIED = 69632, /* bytes of K in shared memory, of decode_sm90.cu */
    TAMIS_SPLIT_WORDS = 2 * TAMIS_SPLIT_SLOTS + TAMIS_SPLIT_LISTS
};

/* Words of scratch, of each of so many rows, behind its keys: slots of two words, and the least key
 * of each list. */
static inline int64_t tamis_split_words(int64_t rows) {
    return rows < TAMIS_SPLIT_ROWS ? TAMIS_SPLIT_WORDS : 0;
}

typedef struct tamis_split {
    int32_t each;  /* blocks of a group, which a warp scores: 4, 8, 16 or 32 */
    int32_t halve; /* 1: a group of 4 is scored by two warps */
    int32_t quads; /* of a lane's keys, when a warp makes a list of 128 * quads */
    int32_t lists; /* of a CTA */
    int32_t slots; /* of a list; 0: scratch has no room for lists */
    int32_t limit; /* positions that a row's pages hold */
    float guess;   /* where a list's bound lies, of the way from its least score to its best */
} tamis_split;

/* CTAs of a row: of those that the device has for it, as many as have 128 keys. */
static inline int64_t tamis_split_parts(int64_t width, int64_t ctas) {
    int64_t most = (width + 15) / 16;
    most = most < TAMIS_SPLIT_PARTS ? most : TAMIS_SPLIT_PARTS;
    most = most < ctas ? most : ctas;
    return most > 1 ? most : 1;
}

/* groups: by decode_sm90.cu, which halves groups where that gives more warps one. */
static inline tamis_split tamis_split_of(int64_t width, int64_t parts, int64_t stride,
                                         int64_t limit, int groups) {
    tamis_split s = {4, groups && parts * TAMIS_SPLIT_WARPS * 2 >= width, 0, 0, 0, 0, 0.0f};
    int64_t keys;
    while (!s.halve && s.each < 32 && 2 * s.each * parts * TAMIS_SPLIT_WARPS <= width) {
        s.each *= 2;
    }
    keys = ((width + s.each - 1) / s.each + parts - 1) / parts * s.each * 8;
    s.quads = (int32_t)((keys + 128 * TAMIS_SPLIT_WARPS - 1) / (128 * TAMIS_SPLIT_WARPS));
    s.lists = (int32_t)((keys + 128 * s.quads - 1) / (128 * s.quads));
    if (stride >= (width + 3) / 4 * 32 + TAMIS_SPLIT_WORDS) {
        /* Short lists have room to differ. */
        int64_t lists = s.lists * parts, all = lists > 64 ? TAMIS_SPLIT_SLOTS : 2048;
        s.slots = (int32_t)(all / lists) & ~1;
        s.slots = s.slots < 128 * s.quads ? s.slots : 128 * s.quads;
    }
    /* Where the bound of three quarters of the slots lies in scores that are normal. */
    s.guess = s.slots * 5 <= 128 * s.quads ? 0.7f : s.slots * 3 <= 128 * s.quads ? 0.65f : 0.55f;
    s.limit = (int32_t)(limit < INT32_MAX ? limit : INT32_MAX);
    return s;
}

static inline int64_t tamis_split_bytes(const tamis_split *s, int groups) {
    return (int64_t)s->lists * s->quads * 512 + (groups ? TAMIS_SPLIT_COPIED : 0);
}

#endif
