/* SPDX-License-Identifier: MIT */
/*
 * properties.c: what must hold between the two levels, whatever the numbers. Most scenes are 4 x
 * 64, since geometry is the harness's matter; the pool is the released one where its size matters.
 * Every call is a trial, so that a program can run them on another backend (tests/cuda/indexer.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compose.h"
#include "lengths.h"
#include "levels.h"
#include "oracle.h"
#include "properties.h"
#include "require.h"

static const level released = {TAMIS_NUMERICS_EXACT, 8, 512, 2048};
static const level small = {TAMIS_NUMERICS_EXACT, 8, 24, 5};
static const int telling[] = {SCENE_PLAIN,    SCENE_FEW,     SCENE_TIES,
                              SCENE_NEGATIVE, SCENE_NAN_K,   SCENE_LAST_BIT,
                              SCENE_BITS,     SCENE_NAN_ALL, SCENE_NAN_W};
enum { TELLING = sizeof telling / sizeof *telling };

static block_lists lists_of(const results *source, level l) {
    return (block_lists){(const int32_t *)(const void *)source->bytes[LEVEL_BLOCKS], l.topk_blocks,
                         (const int32_t *)(const void *)source->bytes[LEVEL_BLOCK_COUNTS]};
}

/* A source's scene, its consumer's, and what the source published. */
typedef struct pair {
    scene source, consumer;
    results published;
} pair;

static void pair_run(pair *p, const tamis_backend *backend, level l, int hazard, uint64_t seed) {
    scene_numbers(&p->source, hazard, TAMIS_F32, seed);
    scene_consumer(&p->consumer, &p->source, hazard, seed + 1000);
    p->published = level_source(backend, &p->source, l, &level_plain, level_whole);
}

static void pair_free(pair *p) {
    scene_free(&p->source);
    scene_free(&p->consumer);
    results_free(&p->published);
}

/* Holds source and consumer of a pair to the oracle; frees nothing. */
static void pair_check(pair *p, const tamis_backend *backend, level l) {
    results want = oracle_source(&p->source, l);
    level_equal(&p->source, &want, &p->published, "source");
    block_lists lists = lists_of(&want, l);
    results got = level_consume(backend, &p->consumer, l, lists, &level_plain, level_whole);
    results chosen = oracle_consumer(&p->consumer, l, lists);
    level_equal(&p->consumer, &chosen, &got, "consumer");
    results_free(&want);
    results_free(&got);
    results_free(&chosen);
}

/* ---- against the oracle ---- */

static level varied(int i) {
    static const int topk[] = {1, 3, 8, 24, 65, 300};
    level l = small;
    l.numerics = i % 3 == 1 ? TAMIS_NUMERICS_BF16 : TAMIS_NUMERICS_EXACT;
    l.block_size = i % 4 == 3 ? 16 : 8;
    l.topk = topk[i % 6];
    l.topk_blocks = 1 + i * 3 % 20;
    return l;
}

static void source_is_the_oracles(const tamis_backend *backend) {
    for (int i = 0; i < 3 * SCENE_HAZARD_COUNT; i++) {
        scene s;
        level l = varied(i);
        int hazard = i % SCENE_HAZARD_COUNT;
        scene_around_tiles(&s, i < SCENE_HAZARD_COUNT ? 32 : 4 * (1 + i % 16), i % 3 ? 128 : 64,
                           (uint64_t)i);
        scene_numbers(&s, hazard, i % 2 ? TAMIS_BF16 : TAMIS_F32, (uint64_t)i);
        test_context("source, case %d: %s", i, scene_hazard_text(hazard));
        results want = oracle_source(&s, l);
        results got = level_source(backend, &s, l, &level_plain, level_whole);
        level_equal(&s, &want, &got, "source");
        results_free(&want);
        results_free(&got);
        scene_free(&s);
    }
}

static void consumer_is_the_oracles(const tamis_backend *backend) {
    for (int i = 0; i < 2 * SCENE_HAZARD_COUNT; i++) {
        pair p;
        test_context("consumer, case %d: %s", i, scene_hazard_text(i % SCENE_HAZARD_COUNT));
        scene_around_tiles(&p.source, i % 5 ? 4 : 32, i % 5 ? 64 : 128, (uint64_t)i);
        pair_run(&p, backend, varied(i), i % SCENE_HAZARD_COUNT, (uint64_t)i);
        pair_check(&p, backend, varied(i));
        pair_free(&p);
    }
}

/* ---- consumer against dense and full ---- */

static void consumer_is_dense_then_mask(const tamis_backend *backend) {
    for (int i = 0; i < TELLING; i++) {
        pair p;
        level l = varied(i);
        test_context("dense then mask: %s", scene_hazard_text(telling[i]));
        scene_around_tiles(&p.source, 4, 64, (uint64_t)i);
        pair_run(&p, backend, l, telling[i], (uint64_t)i);
        block_lists lists = lists_of(&p.published, l);
        results sparse = level_consume(backend, &p.consumer, l, lists, &level_plain, level_whole);
        results dense = level_dense(backend, &p.consumer, l, lists, &level_plain, level_whole);
        level_equal(&p.consumer, &dense, &sparse, "consumer against dense");
        results_free(&sparse);
        results_free(&dense);
        pair_free(&p);
    }
}

static void consumer_is_full_within_the_pool(const tamis_backend *backend) {
    static const int64_t lengths[] = {0, 1, 8, 300, 513, 4095, 16377, 16384};
    block_lists none = {NULL, 0, NULL};
    for (int i = 0; i < 3; i++) {
        pair p;
        test_context("full within the pool: %s", scene_hazard_text(telling[i]));
        scene_prefill(&p.source, 4, 64, 16384, lengths, 8);
        pair_run(&p, backend, released, telling[i], (uint64_t)i);
        results sparse = level_consume(backend, &p.consumer, released,
                                       lists_of(&p.published, released), &level_plain, level_whole);
        level unpublished = released;
        unpublished.topk_blocks = 0;
        results full = level_source(backend, &p.consumer, unpublished, &level_plain, level_whole);
        results dense =
            level_dense(backend, &p.consumer, released, none, &level_plain, level_whole);
        level_equal(&p.consumer, &full, &sparse, "consumer against full");
        level_equal(&p.consumer, &full, &dense, "dense against full");
        results_free(&sparse);
        results_free(&full);
        results_free(&dense);
        pair_free(&p);
    }
}

/* ---- lengths ---- */

static void check_lengths(const tamis_backend *backend, const int64_t *lengths, int64_t rows,
                          level l, int hazard) {
    pair p;
    int64_t longest = 0;
    for (int64_t i = 0; i < rows; i++)
        longest = lengths[i] > longest ? lengths[i] : longest;
    test_context("%lld lengths up to %lld: %s", (long long)rows, (long long)longest,
                 scene_hazard_text(hazard));
    scene_prefill(&p.source, 4, 64, longest, lengths, rows);
    pair_run(&p, backend, l, hazard, 5);
    pair_check(&p, backend, l);
    pair_free(&p);
}

static void lengths_around_the_pool(const tamis_backend *backend) {
    check_lengths(backend, edge_lengths, EDGE_LENGTHS, released, SCENE_PLAIN);
    check_lengths(backend, edge_lengths, EDGE_LENGTHS, released, SCENE_FEW);
    check_lengths(backend, edge_lengths, EDGE_LENGTHS, released, SCENE_LAST_BIT);
}

static void lengths_of_every_residue(const tamis_backend *backend) {
    int64_t lengths[33], short_ones[33];
    for (int i = 0; i < 33; i++) {
        lengths[i] = 16384 - 16 + i;
        short_ones[i] = 505 + i;
    }
    check_lengths(backend, lengths, 33, released, SCENE_FEW);
    check_lengths(backend, short_ones, 33, released, SCENE_PLAIN);
    check_lengths(backend, short_ones, 33, small, SCENE_NAN_K);
}

/* A row at token t sees the groups that t completes; ratio 2 halves positions, not lengths. */
static void ratios_see_completed_groups(const tamis_backend *backend) {
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        int64_t lengths[40];
        for (int64_t t = 0; t < 40; t++) {
            lengths[t] = tamis_visible(t, ratio);
            REQUIRE(lengths[t] == (t + 1) / ratio, "token %lld of ratio %d sees %lld positions",
                    (long long)t, ratio, (long long)lengths[t]);
        }
        check_lengths(backend, lengths, 40, small, SCENE_PLAIN);
    }
}

/* ---- batches, chunks, slices ---- */

/* Compares row i of `part` with row rows[i] of `whole` in every array. */
static void rows_equal(const results *whole, int64_t whole_rows, const results *part,
                       const int32_t *rows, int64_t count, const char *what) {
    for (int i = 0; i < TRIAL_OUTPUTS; i++) {
        if (i == LEVEL_SLOTS || !whole->bytes[i] || count == 0)
            continue;
        int64_t line = whole->size[i] / whole_rows;
        for (int64_t r = 0; r < count; r++)
            REQUIRE(memcmp(whole->bytes[i] + rows[r] * line, part->bytes[i] + r * line,
                           (size_t)line) == 0,
                    "%s: row %d has other bytes in array %d", what, rows[r], i);
    }
}

/* Runs rows[first .. first+count-1] as a step of their own and compares with the whole step. */
static void check_part(const tamis_backend *backend, const pair *p, level l,
                       const results *consumed, const int32_t *rows, int64_t count,
                       const char *what) {
    scene source, consumer;
    scene_pick(&source, &p->source, rows, count);
    scene_pick(&consumer, &p->consumer, rows, count);
    results published = level_source(backend, &source, l, &level_plain, level_whole);
    results got =
        level_consume(backend, &consumer, l, lists_of(&published, l), &level_plain, level_whole);
    rows_equal(&p->published, p->source.rows, &published, rows, count, what);
    rows_equal(consumed, p->source.rows, &got, rows, count, what);
    results_free(&published);
    results_free(&got);
    scene_free(&source);
    scene_free(&consumer);
}

static void check_order(const tamis_backend *backend, int hazard, int chunked) {
    pair p;
    int32_t rows[64];
    uint64_t random = (uint64_t)hazard;
    scene_around_tiles(&p.source, 4, 64, (uint64_t)hazard);
    pair_run(&p, backend, small, hazard, 3);
    results consumed = level_consume(backend, &p.consumer, small, lists_of(&p.published, small),
                                     &level_plain, level_whole);
    for (int64_t i = 0; i < p.source.rows; i++)
        rows[i] = (int32_t)i;
    if (!chunked) {
        random_permutation(&random, rows, p.source.rows);
        check_part(backend, &p, small, &consumed, rows, p.source.rows, "shuffled");
        for (int64_t i = 0; i < p.source.rows; i++)
            check_part(backend, &p, small, &consumed, rows + i, 1, "alone");
    }
    for (int64_t chunk = 2; chunked && chunk <= 11; chunk += 3)
        for (int64_t i = 0; i < p.source.rows; i += chunk)
            check_part(backend, &p, small, &consumed, rows + i,
                       p.source.rows - i < chunk ? p.source.rows - i : chunk, "in chunks");
    results_free(&consumed);
    pair_free(&p);
}

static void batch_order_changes_nothing(const tamis_backend *backend) {
    for (int i = 0; i < TELLING; i++)
        check_order(backend, telling[i], 0);
}

static void chunking_changes_nothing(const tamis_backend *backend) {
    for (int i = 0; i < TELLING; i++)
        check_order(backend, telling[i], 1);
}

/* Whole or split, in any slices, on any threads: the bytes of one slice. */
static void check_slices(const tamis_backend *backend, int split) {
    static const int32_t slices[] = {1, 2, 3, 7, 16};
    static const int64_t lengths[] = {16385, 77, 0, 3001};
    placement where = level_plain;
    pair p;
    scene_decode(&p.source, 4, 64, lengths, 4);
    pair_run(&p, backend, released, SCENE_FEW, 9);
    block_lists lists = lists_of(&p.published, released);
    results want = level_consume(backend, &p.consumer, released, lists, &level_plain, level_whole);
    where.split = split;
    for (int i = 0; i < 15; i++) {
        slicing how = {.nth = slices[i % 5], .order = i / 5, .poison = 0x5A, .seed = (uint64_t)i};
        test_context("%d slices, order %d, split %d", how.nth, how.order, split);
        results published = level_source(backend, &p.source, released, &where, how);
        results got = level_consume(backend, &p.consumer, released, lists, &where, how);
        level_equal(&p.source, &p.published, &published, "source");
        level_equal(&p.consumer, &want, &got, "consumer");
        results_free(&published);
        results_free(&got);
    }
    results_free(&want);
    pair_free(&p);
}

static void slicing_changes_nothing(const tamis_backend *backend) {
    check_slices(backend, 0);
}

static void score_and_merge_are_the_whole(const tamis_backend *backend) {
    check_slices(backend, 1);
}

/* ---- what the source keeps ---- */

/*
 * A source that publishes few blocks still selects from everything; with more blocks than topk its
 * selection may come from them, although the pinned block takes a place. Ties are the hard case.
 */
static void own_selection_with_few_blocks(const tamis_backend *backend) {
    static const int widths[][2] = {{64, 128}, {65, 64}, {64, 64}, {2048, 512}, {512, 512},
                                    {1, 512},  {4, 3},   {3, 3},   {2, 1},      {1, 1}};
    static const int64_t lengths[] = {17003, 4100, 1025, 520, 65};
    for (int i = 0; i < 10; i++)
        for (int h = 0; h < 4; h++) {
            scene s;
            level l = {TAMIS_NUMERICS_EXACT, i % 3 == 2 ? 16 : 8, widths[i][1], widths[i][0]};
            if (h == 3)
                l.numerics = TAMIS_NUMERICS_BF16;
            test_context("%d blocks, topk %d: %s", l.topk_blocks, l.topk,
                         scene_hazard_text(telling[h]));
            scene_prefill(&s, 4, 64, 17003, i < 6 ? lengths : lengths + 2, i < 6 ? 2 : 3);
            scene_numbers(&s, telling[h], TAMIS_F32, (uint64_t)(i + h));
            results want = oracle_source(&s, l);
            results got = level_source(backend, &s, l, &level_plain, level_whole);
            level_equal(&s, &want, &got, "source");
            results_free(&want);
            results_free(&got);
            scene_free(&s);
        }
}

static void newest_block_is_published(const tamis_backend *backend) {
    for (int i = 0; i < TELLING; i++) {
        scene s;
        level l = varied(i);
        test_context("newest block: %s", scene_hazard_text(telling[i]));
        scene_around_tiles(&s, 4, 64, (uint64_t)i);
        scene_numbers(&s, telling[i], TAMIS_F32, (uint64_t)i);
        results got = level_source(backend, &s, l, &level_plain, level_whole);
        const int32_t *blocks = (const int32_t *)(const void *)got.bytes[LEVEL_BLOCKS];
        const int32_t *counts = (const int32_t *)(const void *)got.bytes[LEVEL_BLOCK_COUNTS];
        level_well_formed(blocks, counts, s.rows, l.topk_blocks, &s, l.block_size);
        for (int64_t r = 0; r < s.rows; r++) {
            int64_t n = scene_length(&s, r), all = (n + l.block_size - 1) / l.block_size;
            int64_t count = all < l.topk_blocks ? all : l.topk_blocks;
            REQUIRE(counts[r] == count, "row %lld: %d blocks, not %lld", (long long)r, counts[r],
                    (long long)count);
            REQUIRE(n == 0 || blocks[r * l.topk_blocks + count - 1] == (n - 1) / l.block_size,
                    "row %lld of %lld positions lacks its newest block", (long long)r,
                    (long long)n);
        }
        results_free(&got);
        scene_free(&s);
    }
}

const suite_test indexer_properties[] = {
#define PROPERTY(name) {#name, name},
#include "properties.inc"
#undef PROPERTY
};
const int indexer_property_count = (int)(sizeof indexer_properties / sizeof *indexer_properties);
