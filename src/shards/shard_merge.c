/* SPDX-License-Identifier: MIT */
/*
 * shard_merge.c: the best of what several ranks chose for one row, without memory of its own.
 *
 * The cut is found first, by counting keys digit by digit: that needs no order among the ranks.
 * Only what is above or at the cut is then merged by id, so equal scores at the cut fall to the
 * lowest ids (spec 4.3), whichever rank they come from.
 */
#include "shards/shard_merge.h"

#include <string.h>

#include <tamis/shards.h>

#include "kernels/order.h"
#include "kernels/ref/cut.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, NOTHING_LEFT = INT32_MAX };

static int is_id(const tamis_candidates *c, int32_t id) {
    return id >= 0 && id < c->limit;
}

/* Counts the keys that agree with `prefix` in the bits of `mask` by their digit at `shift`. */
static void count_digits(const tamis_candidates *c, uint32_t prefix, uint32_t mask, int shift,
                         int32_t *counts) {
    memset(counts, 0, DIGITS * sizeof *counts);
    for (int32_t k = 0; k < c->ranks; k++) {
        const int32_t *ids = c->ids + k * c->ids_stride;
        const float *scores = c->scores + k * c->scores_stride;
        int32_t n = c->counts[k * c->counts_stride];
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = tamis_order_key(scores[i]);
            if (((key ^ prefix) & mask) == 0) {
                counts[key >> shift & (DIGITS - 1)] += is_id(c, ids[i]);
            }
        }
    }
}

/* The cut of the best `want`; where there are fewer, one that takes all. */
static tamis_cut cut_of(const tamis_candidates *c, int64_t want) {
    static const int shifts[] = {21, 10, 0};
    int32_t counts[DIGITS];
    tamis_cut cut = {0, want};
    uint32_t mask = 0;
    for (int i = 0; i < 3; i++) {
        uint32_t digit = DIGITS - 1;
        count_digits(c, cut.key, mask, shifts[i], counts);
        while (digit > 0 && counts[digit] < cut.equal) {
            cut.equal -= counts[digit--];
        }
        /* The last digit has 10 bits: bit 10 was part of the digit before and adds nothing new. */
        cut.key |= digit << shifts[i];
        mask |= (uint32_t)(DIGITS - 1) << shifts[i];
    }
    return cut;
}

/* Candidates, valid or not. */
static int64_t count_all(const tamis_candidates *c) {
    int64_t all = 0;
    for (int32_t k = 0; k < c->ranks; k++) {
        all += c->counts[k * c->counts_stride];
    }
    return all;
}

/* Where each rank's list is read, and the id there. */
typedef struct heads {
    int32_t at[TAMIS_MAX_RANKS], id[TAMIS_MAX_RANKS];
} heads;

/* Moves rank k's head to the first entry from `at` on that the cut may take. */
static void seek(const tamis_candidates *c, const tamis_cut *cut, heads *h, int32_t k, int32_t at) {
    const int32_t *ids = c->ids + k * c->ids_stride;
    const float *scores = c->scores + k * c->scores_stride;
    int32_t n = c->counts[k * c->counts_stride];
    while (at < n && (!is_id(c, ids[at]) || tamis_order_key(scores[at]) < cut->key)) {
        at++;
    }
    h->at[k] = at;
    h->id[k] = at < n ? ids[at] : NOTHING_LEFT;
}

static int32_t lowest(const heads *h, int32_t ranks) {
    int32_t best = 0;
    for (int32_t k = 1; k < ranks; k++) {
        best = h->id[k] < h->id[best] ? k : best;
    }
    return best;
}

int64_t tamis_merge(const tamis_candidates *c, int64_t most, int32_t *ids, float *scores) {
    tamis_cut cut = {0, most}; /* takes all of what is not more than `most` */
    int64_t count = 0;
    heads h = {{0}, {0}};
    if (most == 0) {
        return 0;
    }
    if (count_all(c) > most) {
        cut = cut_of(c, most);
    }
    for (int32_t k = 0; k < c->ranks; k++) {
        seek(c, &cut, &h, k, 0);
    }
    for (int32_t k = lowest(&h, c->ranks); h.id[k] != NOTHING_LEFT; k = lowest(&h, c->ranks)) {
        float score = c->scores[k * c->scores_stride + h.at[k]];
        if (tamis_cut_take(&cut, tamis_order_key(score))) {
            if (ids) {
                ids[count] = h.id[k];
            }
            if (scores) {
                scores[count] = tamis_canonical(score);
            }
            count++;
        }
        seek(c, &cut, &h, k, h.at[k] + 1);
    }
    return count;
}
