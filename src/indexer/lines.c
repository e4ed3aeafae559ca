/* SPDX-License-Identifier: MIT */
/* lines.c: see lines.h. Every access is sequentially consistent: of two slices that collide at
 * least one sees the other. */
#include "fail.h"
#include "indexer/lines.h"

/* A claim: serial, layer, count of claims and nth in one word; never 0. */
enum { NTH_BITS = 11, CLAIM_BITS = 13, LAYER_BITS = 16 };

static uint64_t word_of(const tamis_layer *layer, uint64_t claim, int32_t nth) {
    uint64_t word = layer->step->serial << LAYER_BITS | (uint64_t)(uint16_t)layer->args->layer;
    return (word << CLAIM_BITS | (claim & ((1u << CLAIM_BITS) - 1))) << NTH_BITS | (uint64_t)nth;
}

static int32_t nth_of(uint64_t word) {
    return (int32_t)(word & ((1u << NTH_BITS) - 1));
}

static uint64_t claim_of(uint64_t word) {
    return word >> NTH_BITS & ((1u << CLAIM_BITS) - 1);
}

static int all_are(const _Atomic uint64_t *marks, uint64_t word) {
    for (int32_t i = 0; i < nth_of(word); i++) {
        if (atomic_load(&marks[i]) != word) {
            return 0;
        }
    }
    return 1;
}

static tamis_status fail_lines(tamis_error *error, const char *required, const char *found) {
    return tamis_fail(error, TAMIS_ERROR_STAMP, "step", required, "%s", found);
}

static tamis_status fail_unmerged(tamis_error *error) {
    return fail_lines(error, "every slice of the last split layer merged, and a barrier",
                      "scores that wait for their merge");
}

/* Joins the claim that is under way, or makes the next one when the last is merged. */
static tamis_status take_lines(const tamis_layer *layer, int32_t nth, uint64_t *word,
                               tamis_error *error) {
    tamis_plan *plan = layer->plan;
    uint64_t owner = atomic_load(&plan->owner);
    for (;;) {
        int merged = all_are(plan->merged, owner);
        if (!merged && owner != word_of(layer, claim_of(owner), nth)) {
            return fail_unmerged(error);
        }
        *word = merged ? word_of(layer, claim_of(owner) + 1, nth) : owner;
        if (!merged || atomic_compare_exchange_weak(&plan->owner, &owner, *word)) {
            return TAMIS_OK;
        }
    }
}

tamis_status tamis_lines_claim(const tamis_layer *layer, int32_t ith, int32_t nth, uint64_t *word,
                               tamis_error *error) {
    tamis_plan *plan = layer->plan;
    TAMIS_TRY(take_lines(layer, nth, word, error));
    if (atomic_load(&plan->scored[ith]) == *word) {
        return fail_lines(error, "one score for each slice", "a second score");
    }
    for (int32_t i = 0; i < plan->limits.threads; i++) {
        if (atomic_load(&plan->whole[i])) {
            return fail_lines(error, "a barrier after the last whole run", "a slice still running");
        }
    }
    return TAMIS_OK;
}

void tamis_lines_scored(tamis_plan *plan, int32_t ith, uint64_t word) {
    atomic_store(&plan->scored[ith], word);
}

tamis_status tamis_lines_merge(const tamis_layer *layer, int32_t ith, int32_t nth, uint64_t *word,
                               tamis_error *error) {
    tamis_plan *plan = layer->plan;
    *word = atomic_load(&plan->owner);
    if (*word == 0 || *word != word_of(layer, claim_of(*word), nth) ||
        !all_are(plan->scored, *word)) {
        return fail_lines(error, "every slice of this layer's score, cut the same",
                          "scores of another cut, layer or step, or none");
    }
    if (atomic_load(&plan->merged[ith]) == *word) {
        return fail_lines(error, "one merge for each slice", "a second merge");
    }
    return TAMIS_OK;
}

void tamis_lines_merged(tamis_plan *plan, int32_t ith, uint64_t word) {
    atomic_store(&plan->merged[ith], word);
}

tamis_status tamis_lines_enter(tamis_plan *plan, int32_t ith, tamis_error *error) {
    atomic_store(&plan->whole[ith], 1);
    if (!all_are(plan->merged, atomic_load(&plan->owner))) {
        tamis_lines_leave(plan, ith);
        return fail_unmerged(error);
    }
    return TAMIS_OK;
}

void tamis_lines_leave(tamis_plan *plan, int32_t ith) {
    atomic_store(&plan->whole[ith], 0);
}
