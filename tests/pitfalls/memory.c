/* SPDX-License-Identifier: MIT */
/* memory.c: faults of addresses, layouts, strides, stale bytes and cost. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "pitfalls.h"

/* ---- 13: a pool above 4 GiB ---- */

enum { POOL_PAGES = 48, POOL_PAGE_SIZE = 16, POOL_CONTEXT = 400 };
static const int64_t pool_bytes = (int64_t)9 << 30;

/* One plain row of scores from K behind a cache, against the oracle over the scene. */
static void check_sparse_pool(const tamis_backend *backend, const scene *s, const tamis_k_cache *k,
                              const tamis_rows *rows) {
    static float got[POOL_CONTEXT], want[POOL_CONTEXT];
    static uint8_t codes[POOL_CONTEXT * 64], scales[POOL_CONTEXT * 4];
    tamis_error error;
    trial t;
    tamis_k_cache unused_k;
    tamis_rows unused_rows;
    tamis_mqa_logits_args a;
    tamis_mqa_logits_args_default(&a);
    trial_new(&t, &level_plain);
    trial_scene(&t, s, &unused_k, &unused_rows, &a.query);
    a.numerics = TAMIS_NUMERICS_EXACT;
    a.k = *k;
    a.rows = *rows;
    a.logits_type = TAMIS_F32;
    a.logits = got;
    a.columns = a.logits_stride = POOL_CONTEXT;
    REQUIRE_OK(tamis_mqa_logits(backend, &a, 0, 1, &error), error);
    scene_scores(s, TAMIS_NUMERICS_EXACT, 0, want);
    for (int j = 0; j < POOL_CONTEXT; j++)
        REQUIRE(got[j] == want[j], "score %d is %g, not %g", j, (double)got[j], (double)want[j]);

    int64_t start = 0;
    tamis_k_gather_args gather;
    tamis_k_gather_args_default(&gather);
    gather.k = *k;
    gather.rows = *rows;
    gather.start = &start;
    gather.size = POOL_CONTEXT;
    gather.codes = codes;
    gather.scales = scales;
    gather.codes_stride = s->d / 2;
    gather.scales_stride = s->d / 32;
    REQUIRE_OK(tamis_k_gather(backend, &gather, 0, 1, &error), error);
    REQUIRE(memcmp(codes, s->k_codes, (size_t)(POOL_CONTEXT * (s->d / 2))) == 0, "gathered codes");
    REQUIRE(memcmp(scales, s->k_scales, (size_t)(POOL_CONTEXT * (s->d / 32))) == 0,
            "gathered scales");
    trial_free(&t);
}

static void pool_of_layout(const tamis_backend *backend, const scene *s, uint8_t *pool,
                           int layout) {
    int32_t zero = 0, length = POOL_CONTEXT, pages[POOL_PAGES];
    uint64_t random = 13;
    tamis_rows rows = {.count = 1, .ks = &zero, .ke = &length};
    tamis_k_cache k = {.layout = layout, .head_dim = s->d, .size = POOL_CONTEXT, .codes = pool};
    k.stride = pool_bytes / POOL_CONTEXT / 64 * 64; /* rows 22 MiB apart */
    test_context("pitfall 13: layout %d", layout);
    if (layout == TAMIS_K_MXFP4_PAGE) {
        k.page_size = POOL_PAGE_SIZE;
        k.size = POOL_PAGES;
        k.stride = pool_bytes / POOL_PAGES / 512 * 512;
        random_permutation(&random, pages, POOL_PAGES);
        rows.page_table = pages;
        rows.page_table_stride = rows.page_table_width = POOL_PAGES;
        rows.requests = 1;
    } else if (layout == TAMIS_K_MXFP4_SPLIT) {
        k.scales = pool + k.stride / 2;
        k.scales_stride = k.stride;
    }
    for (int64_t j = 0; j < POOL_CONTEXT; j++) {
        int64_t row = j;
        if (rows.page_table)
            row = pages[j / POOL_PAGE_SIZE] * (int64_t)POOL_PAGE_SIZE + j % POOL_PAGE_SIZE;
        memcpy(k_codes_at(&k, row), s->k_codes + j * (s->d / 2), (size_t)(s->d / 2));
        memcpy(k_scales_at(&k, row), s->k_scales + j * (s->d / 32), (size_t)(s->d / 32));
    }
    check_sparse_pool(backend, s, &k, &rows);
}

/* 32-bit page * stride overflowed: rows and pages on both sides of 4 GiB, in a sparse mapping. */
void pitfall_13_pool_above_4gib(const tamis_backend *backend) {
    int64_t length = POOL_CONTEXT;
    scene s;
    if (sizeof(void *) < 8)
        test_skip("pointers have 32 bits here");
    uint8_t *pool = mmap(NULL, (size_t)pool_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED)
        test_skip("a sparse mapping of 9 GiB is refused: %s", strerror(errno));
    scene_decode(&s, 32, 128, &length, 1);
    scene_numbers(&s, SCENE_PLAIN, TAMIS_F32, 13);
    for (int layout = TAMIS_K_MXFP4_PAGE; layout <= TAMIS_K_MXFP4_ROW; layout++)
        pool_of_layout(backend, &s, pool, layout);
    munmap(pool, (size_t)pool_bytes);
    scene_free(&s);
}

/* ---- 14: layouts ---- */

/* Gathers everything of a scene placed in one layout and compares with the scene. */
static void round_trip(const tamis_backend *backend, const scene *s, const placement *where) {
    trial t;
    trial_new(&t, where);
    int64_t *start = test_memory(s->rows, 8), next = 0;
    tamis_k_gather_args *a = &t.args.k_gather;
    tamis_k_gather_args_default(a);
    trial_scene(&t, s, &a->k, &a->rows, NULL);
    for (int64_t r = 0; r < s->rows; r++) {
        start[r] = next;
        next += scene_length(s, r);
    }
    a->start = trial_vector(&t, start, s->rows, 8);
    a->size = next;
    a->codes = trial_output(&t, 0, "codes", next, 1, s->d / 2, 1, &a->codes_stride, NULL);
    a->scales = trial_output(&t, 1, "scales", next, 1, s->d / 32, 1, &a->scales_stride, NULL);
    t.phases[0] = call_k_gather;
    trial_run(&t, backend, level_whole);
    results got = trial_results(&t);
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t from = s->base[s->request[r]] + s->ks[r], n = scene_length(s, r);
        int64_t codes = s->d / 2, scales = s->d / 32;
        REQUIRE(memcmp(got.bytes[0] + start[r] * codes, s->k_codes + from * codes,
                       (size_t)(n * codes)) == 0,
                "codes of row %lld", (long long)r);
        REQUIRE(memcmp(got.bytes[1] + start[r] * scales, s->k_scales + from * scales,
                       (size_t)(n * scales)) == 0,
                "scales of row %lld", (long long)r);
    }
    results_free(&got);
    free(start);
    trial_free(&t);
}

/* A cache described in one layout and named another has fields that do not fit the name. */
static void other_names_are_refused(const scene *s, const placement *where) {
    tamis_error error;
    trial t;
    tamis_rows rows;
    tamis_k_cache k;
    trial_new(&t, where);
    trial_scene(&t, s, &k, &rows, NULL);
    REQUIRE_OK(tamis_k_cache_check(&k, &error), error);
    for (int layout = 0; layout <= 4; layout++) {
        tamis_k_cache other = k;
        other.layout = layout;
        if (layout == where->layout)
            continue;
        REQUIRE(tamis_k_cache_check(&other, &error) == TAMIS_ERROR_LAYOUT, "layout %d passed as %d",
                where->layout, layout);
    }
    trial_free(&t);
}

/* Planar pages were read as interleaved rows. */
void pitfall_14_layouts_round_trip(const tamis_backend *backend) {
    for (int i = 0; i < 18; i++) {
        scene s;
        placement where = {.layout = TAMIS_K_MXFP4_PAGE + i % 3,
                           .stride = i / 3 % 2,
                           .page_size = i / 6 * 24 + 8,
                           .seed = (uint64_t)i};
        test_context("pitfall 14: layout %d, pages of %d", where.layout, where.page_size);
        scene_around_tiles(&s, 4, i % 2 ? 64 : 128, (uint64_t)i);
        scene_numbers(&s, SCENE_BITS, TAMIS_F32, (uint64_t)i);
        round_trip(backend, &s, &where);
        other_names_are_refused(&s, &where);
        scene_free(&s);
    }
}

/* ---- 16, 17, 23: strides, buffers, stale bytes ---- */

/* A stride was missing: every stride differs from every other here, and paddings hold poison. */
void pitfall_16_strides_are_honoured(const tamis_backend *backend) {
    level l = {TAMIS_NUMERICS_EXACT, 8, 33, 7};
    for (int i = 0; i < 24; i++) {
        scene s;
        placement where = {.layout = TAMIS_K_MXFP4_PAGE + i % 3,
                           .stride = STRIDE_PADDED + i / 3 % 2,
                           .side = i / 6 % 2,
                           .split = i / 12,
                           .seed = (uint64_t)i + 1};
        test_context("pitfall 16: layout %d, stride %d, seed %d", where.layout, where.stride,
                     i + 1);
        scene_around_tiles(&s, i % 2 ? 32 : 8, i % 2 ? 128 : 64, (uint64_t)i);
        scene_numbers(&s, SCENE_PLAIN, i % 4 == 3 ? TAMIS_BF16 : TAMIS_F32, (uint64_t)i);
        check_levels(backend, &s, l, &where, (uint64_t)i);
        scene_free(&s);
    }
}

/* Tail rows of a gather stayed uninitialised: every destination row of every interval is written,
 * and no other. */
void pitfall_17_gather_writes_every_row(const tamis_backend *backend) {
    enum { DESTINATION = 80, CODES = 32, SCALES = 2 };
    static const placement where = {.layout = TAMIS_K_MXFP4_PAGE, .stride = STRIDE_PADDED};
    static const slicing over_zeros = {.nth = 1, .poison = 0};
    for (int32_t ratio = 1; ratio <= 2; ratio++)
        for (int64_t token = 0; token < 70; token++) {
            int64_t visible = tamis_visible(token, ratio), start = 2;
            trial t;
            scene s;
            test_context("pitfall 17: token %lld, ratio %d", (long long)token, ratio);
            scene_decode(&s, 4, 64, &visible, 1);
            /* This hazard has neither a zero code byte nor a zero scale byte. */
            scene_numbers(&s, SCENE_NEGATIVE, TAMIS_F32, (uint64_t)token);
            trial_new(&t, &where);
            tamis_k_gather_args *a = &t.args.k_gather;
            tamis_k_gather_args_default(a);
            trial_scene(&t, &s, &a->k, &a->rows, NULL);
            a->start = trial_vector(&t, &start, 1, 8);
            a->size = DESTINATION;
            a->codes =
                trial_output(&t, 0, "codes", DESTINATION, 1, CODES, 1, &a->codes_stride, NULL);
            a->scales =
                trial_output(&t, 1, "scales", DESTINATION, 1, SCALES, 1, &a->scales_stride, NULL);
            t.phases[0] = call_k_gather;
            trial_run(&t, backend, over_zeros);
            results got = trial_results(&t);
            for (int64_t row = 0; row < DESTINATION; row++) {
                int inside = row >= start && row < start + visible;
                for (int64_t b = 0; b < CODES; b++)
                    REQUIRE((got.bytes[0][row * CODES + b] != 0) == inside,
                            "byte %lld of destination row %lld", (long long)b, (long long)row);
                for (int64_t b = 0; b < SCALES; b++)
                    REQUIRE((got.bytes[1][row * SCALES + b] != 0) == inside,
                            "scale of destination row %lld", (long long)row);
            }
            results_free(&got);
            trial_free(&t);
            scene_free(&s);
        }
}

/* Stale bytes past the end decoded to NaN: what lies beyond the last position is any bits. */
void pitfall_23_stale_bytes_change_nothing(const tamis_backend *backend) {
    static const int64_t lengths[] = {1, 7, 9, 17, 31, 33, 63, 65, 100};
    static const uint8_t fills[] = {0x00, 0xFF, 0x7F, 0x88};
    level l = {TAMIS_NUMERICS_EXACT, 8, 200, 30};
    for (int i = 0; i < 9; i++) {
        scene longer, s;
        int32_t row = 0;
        results first = {{NULL}, {0}};
        for (int fill = 0; fill < 4; fill++) {
            int64_t n = lengths[i];
            test_context("pitfall 23: %lld positions, then bytes %02x", (long long)n, fills[fill]);
            int64_t context = 120;
            scene_prefill(&longer, 4, 64, context, &n, 1);
            scene_numbers(&longer, SCENE_PLAIN, TAMIS_F32, 23);
            memset(longer.k_codes + n * 32, fills[fill], (size_t)((context - n) * 32));
            memset(longer.k_scales + n * 2, fills[fill], (size_t)((context - n) * 2));
            scene_pick(&s, &longer, &row, 1);
            check_levels(backend, &s, l, &level_plain, 24);
            results got = level_source(backend, &s, l, &level_plain, level_whole);
            if (fill > 0)
                level_equal(&s, &first, &got, "with other stale bytes");
            if (fill > 0)
                results_free(&first);
            first = got;
            scene_free(&s);
            scene_free(&longer);
        }
        results_free(&first);
    }
}

/* ---- 18, 19: cost ---- */

/* Fills a source call over `rows` rows of `length` positions in a pool of `pages` pages. */
static void plan_source(tamis_source_args *a, int64_t rows, int64_t pages, int32_t *ke,
                        int32_t length, const int32_t *page_table, uint8_t *pool) {
    static uint8_t query[64];
    tamis_source_args_default(a);
    for (int64_t r = 0; r < rows; r++)
        ke[r] = length;
    a->numerics = TAMIS_NUMERICS_EXACT;
    a->k = (tamis_k_cache){TAMIS_K_MXFP4_PAGE, 128, 64, 0, pages, 64 * 68, 0, pool, NULL};
    a->rows = (tamis_rows){rows, NULL, ke, NULL, page_table, pages, pages, 1};
    a->query = (tamis_query){32, 128, TAMIS_F32, 0, query, query, query, 2048, 64, 128, 4, 32};
    a->block_size = 8;
    a->topk_blocks = 2048;
    a->selection.topk = 512;
}

/*
 * Cost followed the configured maximum. Here a table and a pool for a million positions hold 2,048
 * live ones: every page beyond them is unreadable and its entry in the table names no page, so work
 * past the live length faults; the workspace is that of a small pool.
 */
void pitfall_18_cost_follows_the_live_length(const tamis_backend *backend) {
    enum { LIVE = 2048, PAGES = 1048576 / 64, LIVE_PAGES = LIVE / 64 };
    int64_t live_bytes = (int64_t)LIVE_PAGES * 64 * 68, length = LIVE;
    int32_t ke, positions[512], blocks[2048], want[512];
    static float scores[LIVE];
    tamis_error error;
    tamis_source_args a, small;
    trial t;
    scene s;
    tamis_k_cache unused_k;
    tamis_rows unused_rows;
    guard_arena *arena = guard_new();
    uint8_t *pool = guard_map(arena, live_bytes, 1, GUARD_AFTER, NULL);
    int32_t *table = guard_map(arena, LIVE_PAGES * 4, 4, GUARD_AFTER, NULL);
    int32_t small_ke, *small_table = test_memory(LIVE_PAGES, 4);
    for (int32_t i = 0; i < LIVE_PAGES; i++)
        small_table[i] = table[i] = i;
    plan_source(&a, 1, PAGES, &ke, LIVE, table, pool);
    plan_source(&small, 1, LIVE_PAGES, &small_ke, LIVE, small_table, pool);
    scene_decode(&s, 32, 128, &length, 1);
    scene_numbers(&s, SCENE_PLAIN, TAMIS_F32, 18);
    for (int64_t j = 0; j < LIVE; j++) {
        memcpy(k_codes_at(&a.k, j), s.k_codes + j * 64, 64);
        memcpy(k_scales_at(&a.k, j), s.k_scales + j * 4, 4);
    }
    trial_new(&t, &level_plain);
    trial_scene(&t, &s, &unused_k, &unused_rows, &a.query);
    a.blocks = blocks;
    a.blocks_stride = 2048;
    a.selection.positions = positions;
    a.selection.positions_stride = 512;
    small.blocks = blocks;
    small.blocks_stride = 2048;
    small.selection.positions = positions;
    small.selection.positions_stride = 512;
    a.workspace_bytes = tamis_source_workspace(&a, 1);
    REQUIRE(a.workspace_bytes == tamis_source_workspace(&small, 1),
            "the workspace of 2,048 live positions grows with the pool to %lld bytes",
            (long long)a.workspace_bytes);
    a.workspace = guard_map(arena, a.workspace_bytes, 64, GUARD_AFTER, NULL);
    REQUIRE_OK(tamis_source(backend, &a, 0, 1, &error), error);
    scene_scores(&s, TAMIS_NUMERICS_EXACT, 0, scores);
    oracle_topk(scores, LIVE, 512, want);
    REQUIRE(memcmp(want, positions, sizeof want) == 0, "the selection is not the oracle's");
    free(small_table);
    guard_free(arena);
    trial_free(&t);
    scene_free(&s);
}

/* Temporaries of 96 GiB: 16,384 rows x 1,048,576 positions need one f32 per block and slice. */
void pitfall_19_workspace_is_bounded(const tamis_backend *backend) {
    enum { ROWS = 16384, POSITIONS = 1048576 };
    int64_t pages = POSITIONS / 64, slack = 1 << 20;
    int32_t *ke = test_memory(ROWS, 4), *table = test_memory(pages, 4);
    int32_t *blocks = test_memory(1, 4), *positions = test_memory(1, 4);
    uint8_t byte;
    tamis_source_args a;
    (void)backend; /* sizes are the same for every tier */
    plan_source(&a, ROWS, pages, ke, POSITIONS, table, &byte);
    a.blocks = blocks;
    a.blocks_stride = 2048;
    a.selection.positions = positions;
    a.selection.positions_stride = 512;
    for (int32_t nth = 1; nth <= 64; nth *= 4) {
        int64_t bytes = tamis_source_workspace(&a, nth);
        int64_t bound = nth * ((int64_t)POSITIONS / 8 * 4 + slack);
        REQUIRE(bytes >= 0 && bytes <= bound, "%d slices need %lld bytes, more than %lld", nth,
                (long long)bytes, (long long)bound);
    }
    free(ke);
    free(table);
    free(blocks);
    free(positions);
}
