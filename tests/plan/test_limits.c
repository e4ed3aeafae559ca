/* SPDX-License-Identifier: MIT */
/*
 * test_limits.c: what a plan's limits must not do: change results or work, or take memory of rows
 * times positions. And the caller's floating-point state, which must not change results either.
 */
#include "plan_tests.h"

#include <fenv.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* A decode step of 2,048 positions at most, and a chunk of a prefill. */
static const request steps[] = {{2048, 4}, {1900, 1}, {2001, 4}, {1111, 30}};
static const shape shapes[] = {
    {TAMIS_K_MXFP4_PAGE, 64, 4, 64, 64, 90, 8, 1, TAMIS_NUMERICS_EXACT},
    {TAMIS_K_MXFP4_SPLIT, 0, 4, 64, 300, 40, 8, 1, TAMIS_NUMERICS_BF16},
};

static struct {
    layers *l;
    int32_t sparse_logits;
} now;

/* ---- limits ------------------------------------------------------------------------ */

typedef struct served {
    outcome out[LAYERS];
    tamis_plan_counters counters;
} served;

/* Every layer of two steps, whole and split, under a plan for max_context tokens. */
static served serve(const tamis_indexer *indexer, int64_t max_context) {
    served s;
    tamis_plan_limits limits = layers_limits(now.l, 7, 0);
    limits.max_context = max_context;
    tamis_plan *plan = layers_plan_of(indexer, &limits);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        s.out[layer] = outcome_make(now.l, layer, now.l->batch.tokens);
    }
    for (int32_t split = 0; split < 2; split++) {
        tamis_step step = layers_step(plan, &now.l->batch);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            if (layers_selects(layer)) {
                layers_run(plan, &step, now.l, layer, (way){7, split, NULL}, &s.out[layer]);
            }
        }
    }
    tamis_plan_count(plan, &s.counters);
    return s;
}

static void under_two_plans(const char *tier) {
    tamis_indexer *indexer = layers_indexer(now.l, tier, now.sparse_logits);
    served few = serve(indexer, 4096), many = serve(indexer, 1 << 20);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            outcome_same(&many.out[layer], &few.out[layer], tier);
        }
    }
    assert_true(few.counters.consumed > 0);
    same_bytes(&many.counters, &few.counters, sizeof few.counters, "counters");
    tamis_indexer_destroy(indexer);
}

void pitfall_18_plans_for_more_do_no_more(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(shapes) * 3; i++) {
        seed(200 + (uint64_t)i);
        now.l = layers_make(shapes[i / 3], steps, COUNT(steps));
        now.sparse_logits = i % 3;
        each_tier(under_two_plans);
        release();
    }
}

/* The released geometry: 16,384 rows by 1,048,576 f32 scores would be 64 GiB. */
void pitfall_19_plans_hold_no_scores_of_all(void **state) {
    static const request one[] = {{9, 1}};
    shape s = {TAMIS_K_MXFP4_PAGE, 64, 32, 128, 512, 2048, 8, 1, TAMIS_NUMERICS_EXACT};
    (void)state;
    for (int32_t sparse_logits = 0; sparse_logits < 3; sparse_logits++) {
        tamis_error error = {0};
        seed(210);
        layers *l = layers_make(s, one, COUNT(one));
        tamis_indexer *indexer = layers_indexer(l, "ref", sparse_logits);
        tamis_plan_limits limits = layers_limits(l, 16, 0);
        limits.max_batched_tokens = 16384;
        limits.max_context = 1 << 20;
        assert_int_equal(tamis_plan_max_rows(&limits), 16384);
        int64_t bytes = tamis_plan_bytes(indexer, &limits, &error);
        assert_in_range(bytes, (int64_t)16384 * s.topk_blocks * 4, (int64_t)512 << 20);
        tamis_indexer_destroy(indexer);
        release();
    }
}

/* ---- the caller's floating-point state --------------------------------------------- */

#if defined(__SSE__)
enum { HOSTILE = 0xDFC0, CONTROL = 0xFFC0 }; /* flush, denormals are zero, round up */

static unsigned enter_hostile(void) {
    unsigned old = _mm_getcsr();
    _mm_setcsr(HOSTILE);
    return old;
}
static int leave_hostile(unsigned old) {
    int kept = (_mm_getcsr() & CONTROL) == (HOSTILE & CONTROL);
    _mm_setcsr(old);
    return kept;
}
#else
static unsigned enter_hostile(void) {
    unsigned old = (unsigned)fegetround();
    fesetround(FE_UPWARD);
    return old;
}
static int leave_hostile(unsigned old) {
    int kept = fegetround() == FE_UPWARD;
    fesetround((int)old);
    return kept;
}
#endif

/* Calls put back what they find, so one that did not is seen after the last slice. */
static void in_hostile_state(const char *tier) {
    tamis_indexer *indexer = layers_indexer(now.l, tier, now.sparse_logits);
    tamis_plan *plan = layers_plan(now.l, indexer, 5, 0);
    for (int32_t split = 0; split < 2; split++) {
        tamis_step step = layers_step(plan, &now.l->batch);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            if (!layers_selects(layer)) {
                continue;
            }
            outcome got = outcome_make(now.l, layer, now.l->batch.tokens);
            outcome want = layers_expect(now.l, layer, now.l->batch.tokens);
            unsigned old = enter_hostile();
            layers_run(plan, &step, now.l, layer, (way){5, split, NULL}, &got);
            assert_true(leave_hostile(old));
            outcome_same(&got, &want, tier);
        }
    }
    tamis_indexer_destroy(indexer);
}

void plan_hostile_float_state(void **state) {
    static const request few[] = {{700, 2}, {333, 4}, {90, 6}};
    (void)state;
    for (int i = 0; i < COUNT(shapes) * 3; i++) {
        seed(220 + (uint64_t)i);
        now.l = layers_make(shapes[i / 3], few, COUNT(few));
        now.sparse_logits = i % 3;
        each_tier(in_hostile_state);
        release();
    }
}
