/* SPDX-License-Identifier: MIT */
/* shared.c: checks that several pitfalls use. All calls are trials, so that they run elsewhere too.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "pitfalls.h"

void *test_memory(int64_t count, int64_t size) {
    void *memory = calloc((size_t)count + 1, (size_t)size);
    REQUIRE(memory, "out of memory");
    return memory;
}

void check_levels(const tamis_backend *backend, const scene *s, level l, const placement *where,
                  uint64_t seed) {
    scene consumer;
    results want = oracle_source(s, l);
    results got = level_source(backend, s, l, where, level_whole);
    level_well_formed(result_i32(&got, LEVEL_POSITIONS), result_i32(&got, LEVEL_COUNTS), s->rows,
                      l.topk, s, 1);
    level_well_formed(result_i32(&got, LEVEL_BLOCKS), result_i32(&got, LEVEL_BLOCK_COUNTS), s->rows,
                      l.topk_blocks, s, l.block_size);
    level_equal(s, &want, &got, "source");
    scene_consumer(&consumer, s, s->hazard, seed);
    results chosen = oracle_consumer(&consumer, l, published_lists(&want, l));
    results consumed =
        level_consume(backend, &consumer, l, published_lists(&want, l), where, level_whole);
    level_well_formed(result_i32(&consumed, LEVEL_POSITIONS), result_i32(&consumed, LEVEL_COUNTS),
                      s->rows, l.topk, s, 1);
    level_equal(&consumer, &chosen, &consumed, "consumer");
    results_free(&want);
    results_free(&got);
    results_free(&chosen);
    results_free(&consumed);
    scene_free(&consumer);
}

int32_t topk_row(const tamis_backend *backend, const float *scores, int64_t n, int32_t topk,
                 int32_t *out) {
    enum { NO_SLOTS = 2, NO_SCORES = 4 };
    placement where = {.layout = TAMIS_K_MXFP4_PAGE, .omit = NO_SLOTS | NO_SCORES};
    int32_t count;
    trial t;
    trial_new(&t, &where);
    tamis_topk_args *a = &t.args.topk;
    tamis_topk_args_default(a);
    a->logits_type = TAMIS_F32;
    a->rows.count = 1;
    a->width = n;
    a->logits = trial_input(&t, scores, 1, 1, n, 4, &a->logits_stride, NULL);
    trial_selection(&t, 1, topk, &a->selection);
    t.phases[0] = call_topk;
    trial_run(&t, backend, level_whole);
    memcpy(out, a->selection.positions, (size_t)topk * sizeof *out);
    count = a->selection.counts[0];
    trial_free(&t);
    return count;
}

void check_topk(const tamis_backend *backend, const float *scores, int64_t n, int32_t topk) {
    int32_t *got = test_memory(topk, 4), *want = test_memory(topk, 4);
    int32_t count = topk_row(backend, scores, n, topk, got);
    int64_t expected = oracle_topk(scores, n, topk, want);
    REQUIRE(count == expected, "%d chosen of %lld, not %lld", count, (long long)n,
            (long long)expected);
    for (int32_t i = 0; i < topk; i++)
        REQUIRE(got[i] == want[i], "top %d of %lld: rank %d is column %d, not %d", topk,
                (long long)n, i, got[i], want[i]);
    free(got);
    free(want);
}
