/* SPDX-License-Identifier: MIT */
/* shapes.c: faults of lengths, groups, batches and sizes. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "pitfalls.h"

static const level released = {TAMIS_NUMERICS_EXACT, 8, 512, 2048};

/* The same prompt repeated well at 16,384 tokens and differed from 16,385 on. */
void pitfall_06_repeats_and_chunks_at_the_pool(const tamis_backend *backend) {
    static const int64_t lengths[] = {16376, 16377, 16384, 16385};
    static const int32_t slices[] = {1, 2, 3, 7, 16};
    scene s, consumer;
    scene_prefill(&s, 4, 64, 16385, lengths, 4);
    scene_numbers(&s, SCENE_FEW, TAMIS_F32, 6);
    scene_consumer(&consumer, &s, SCENE_FEW, 7);
    check_levels(backend, &s, released, &level_plain, 7);
    results first = level_source(backend, &s, released, &level_plain, level_whole);
    block_lists lists = published_lists(&first, released);
    results chosen = level_consume(backend, &consumer, released, lists, &level_plain, level_whole);
    for (int i = 0; i < 30; i++) {
        slicing how = {.nth = slices[i % 5], .order = i % 3, .poison = (uint8_t)i};
        test_context("pitfall 06: repeat %d", i);
        results again = level_source(backend, &s, released, &level_plain, how);
        results consumed = level_consume(backend, &consumer, released, lists, &level_plain, how);
        level_equal(&s, &first, &again, "source again");
        level_equal(&consumer, &chosen, &consumed, "consumer again");
        results_free(&again);
        results_free(&consumed);
    }
    results_free(&first);
    results_free(&chosen);
    scene_free(&s);
    scene_free(&consumer);
}

/* k_insert of one token at a position: was its slot written? */
static int token_is_stored(const tamis_backend *backend, int32_t ratio, int64_t position) {
    static float table[64 * 32], eps = 1e-6f, weight[64];
    uint16_t x[64];
    uint8_t codes[32], scales[2];
    int64_t slot = 0;
    tamis_error error;
    tamis_k_insert_args a;
    tamis_k_insert_args_default(&a);
    for (int i = 0; i < 64; i++) {
        x[i] = 0x3F80;
        weight[i] = 1.0f;
    }
    for (int64_t i = 0; i < 64 * 32; i++)
        table[i] = i % 64 < 32 ? 1.0f : 0.0f;
    memset(codes, 0xA5, sizeof codes);
    a.ratio = ratio;
    a.norm_weight_type = TAMIS_F32;
    a.tokens = 1;
    a.x = x;
    a.x_stride = 64;
    a.positions = &position;
    a.slots = &slot;
    a.norm_weight = weight;
    a.eps = &eps;
    a.rope = (tamis_rope){table, TAMIS_F32, 0, 32, 64};
    a.k = (tamis_k_cache){TAMIS_K_MXFP4_SPLIT, 64, 0, 0, 1, 32, 2, codes, scales};
    REQUIRE_OK(tamis_k_insert(backend, &a, 0, 1, &error), error);
    return codes[0] != 0xA5;
}

/* Visibility p / ratio admitted the group that token p has begun but not finished. */
void pitfall_08_unfinished_groups_are_invisible(const tamis_backend *backend) {
    static const int64_t far[] = {1048575, 2147483646, 2147483647, 4294967296, INT64_MAX - 1};
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        int64_t stored = 0;
        for (int64_t t = 0; t < 30; t++) { /* what is visible is what has been stored */
            test_context("pitfall 08: token %lld, ratio %d", (long long)t, ratio);
            stored += token_is_stored(backend, ratio, t);
            REQUIRE(tamis_visible(t, ratio) == stored, "sees %lld positions of %lld stored",
                    (long long)tamis_visible(t, ratio), (long long)stored);
        }
        for (int i = 0; i < 5; i++)
            REQUIRE(tamis_visible(far[i], ratio) == (far[i] + 1) / ratio, "token %lld sees %lld",
                    (long long)far[i], (long long)tamis_visible(far[i], ratio));
    }
    REQUIRE(tamis_visible(-1, 1) == 0 && tamis_visible(INT64_MIN, 2) == 0,
            "before the first token");
    REQUIRE(tamis_visible(5, 0) == 0 && tamis_visible(5, -1) == 0, "a ratio below 1");
}

/* Zero lengths, steps of them alone and fewer rows than slices read out of bounds. */
void pitfall_10_zero_lengths_touch_nothing(const tamis_backend *backend) {
    static const int64_t none[] = {0, 0, 0, 0, 0}, some[] = {0, 3, 0};
    slicing how = {.nth = 16, .poison = 0xA5};
    for (int64_t i = 0; i < 18; i++) {
        placement where = {.layout = TAMIS_K_MXFP4_PAGE + (int)(i % 3),
                           .side = (int)(i / 3 % 2),
                           .split = (int)(i / 6 % 2),
                           .stride = (int)(i / 9)};
        for (int64_t rows = 0; rows <= 5; rows += 5) {
            scene s;
            level l = {TAMIS_NUMERICS_EXACT, 8, 5, 3};
            block_lists lists = {(const int32_t[15]){0}, 3, NULL};
            test_context("pitfall 10: %lld rows, placement %lld", (long long)rows, (long long)i);
            scene_decode(&s, 4, 64, none, rows);
            scene_numbers(&s, SCENE_PLAIN, TAMIS_F32, 1);
            results want = oracle_source(&s, l);
            results got = level_source(backend, &s, l, &where, how);
            results consumed = level_consume(backend, &s, l, lists, &where, how);
            level_equal(&s, &want, &got, "source");
            level_equal(&s, &want, &consumed, "consumer");
            results_free(&want);
            results_free(&got);
            results_free(&consumed);
            scene_free(&s);
        }
        scene s;
        scene_decode(&s, 4, 64, some, 3);
        scene_numbers(&s, SCENE_PLAIN, TAMIS_F32, 2);
        check_levels(backend, &s, (level){TAMIS_NUMERICS_EXACT, 8, 5, 3}, &where, 3);
        scene_free(&s);
    }
}

/* ---- 11: negative numbers ---- */

/* A consumer call over 2 rows of 40 positions with one number spoiled. */
typedef struct spoiled {
    int32_t ks[2], ke[2], request[2], pages[4], counts[2];
} spoiled;

static void spoil(spoiled *s, int which, int32_t value) {
    int32_t *fields[] = {&s->ks[1], &s->ke[1], &s->request[1], &s->pages[2], &s->counts[1]};
    *fields[which] = value;
}

/* Runs it into poisoned outputs. Returns the status; *touched says whether an output changed. */
static tamis_status run_spoiled(const tamis_backend *backend, const spoiled *in, int *touched,
                                int32_t out[20]) {
    static uint8_t k[4 * 16 * 34], q_codes[2 * 4 * 32], q_scales[2 * 4 * 2];
    static float weights[8];
    static const int32_t blocks[6] = {0, 1, 2, 0, 1, 2};
    tamis_error error;
    tamis_consume_args a;
    tamis_consume_args_default(&a);
    memset(out, 0xA5, 20 * sizeof *out);
    a.numerics = TAMIS_NUMERICS_EXACT;
    a.k = (tamis_k_cache){TAMIS_K_MXFP4_PAGE, 64, 16, 0, 4, 16 * 34, 0, k, NULL};
    a.rows = (tamis_rows){2, in->ks, in->ke, in->request, in->pages, 2, 2, 2};
    a.query = (tamis_query){4, 64, TAMIS_F32, 0, q_codes, q_scales, weights, 128, 32, 8, 2, 4};
    a.block_size = 8;
    a.width = a.blocks_stride = 3;
    a.blocks = blocks;
    a.counts = in->counts;
    a.selection.topk = 10;
    a.selection.positions = out;
    a.selection.positions_stride = 10;
    int64_t bytes = tamis_consume_workspace(&a, 1);
    void *workspace = aligned_alloc(64, (size_t)(bytes < 64 ? 64 : (bytes + 63) / 64 * 64));
    REQUIRE(workspace, "out of memory");
    a.workspace = workspace;
    a.workspace_bytes = bytes < 0 ? 1 << 20 : bytes;
    tamis_status status = tamis_consume(backend, &a, 0, 1, &error);
    *touched = 0;
    for (int i = 0; i < 20; i++)
        *touched |= out[i] != (int32_t)0xA5A5A5A5;
    free(workspace);
    return status;
}

/* A negative length was read as 4e9: it is refused, or the row is empty; nothing else changes. */
void pitfall_11_negative_numbers_are_refused(const tamis_backend *backend) {
    static const int32_t bad[] = {-1, INT32_MIN, INT32_MIN + 1, -64, 65, INT32_MAX};
    static const spoiled good = {{0, 0}, {30, 20}, {0, 1}, {0, 1, 2, 3}, {3, 3}};
    int32_t plain[20], out[20];
    int touched;
    REQUIRE(run_spoiled(backend, &good, &touched, plain) == TAMIS_OK, "the plain call failed");
    for (int which = 0; which < 5; which++)
        for (int i = 0; i < 6; i++) {
            spoiled s = good;
            test_context("pitfall 11: field %d is %d", which, bad[i]);
            spoil(&s, which, bad[i]);
            tamis_status status = run_spoiled(backend, &s, &touched, out);
            if (status != TAMIS_OK) {
                REQUIRE(!touched, "refused with %d, but an output was written", status);
                continue;
            }
            /* Only an interval that ends before it begins may pass: an empty row. */
            REQUIRE(which < 2 && s.ke[1] <= s.ks[1] && s.ks[1] >= 0, "was not refused");
            REQUIRE(memcmp(out, plain, 10 * sizeof *out) == 0, "the other row changed");
            for (int c = 10; c < 20; c++)
                REQUIRE(out[c] == -1, "an empty row chose %d", out[c]);
        }
}

/* ---- sizes and batches ---- */

/* Blocks of 16 do not fit pages of 8 slots: that is refused before anything is written. */
static void blocks_beyond_pages_are_refused(const tamis_backend *backend, const scene *s) {
    placement where = {.layout = TAMIS_K_MXFP4_PAGE, .page_size = 8};
    int32_t positions[2] = {77, 77};
    tamis_error error;
    tamis_source_args a;
    trial t;
    trial_new(&t, &where);
    tamis_source_args_default(&a);
    trial_scene(&t, s, &a.k, &a.rows, &a.query);
    a.numerics = TAMIS_NUMERICS_EXACT;
    a.block_size = 16;
    a.selection.topk = 1;
    a.selection.positions = positions;
    a.selection.positions_stride = 1;
    REQUIRE(tamis_source_workspace(&a, 1) == -1, "has a workspace");
    REQUIRE(tamis_source(backend, &a, 0, 1, &error) < 0, "was taken");
    REQUIRE(positions[0] == 77 && positions[1] == 77, "wrote an output");
    trial_free(&t);
}

/* top-k 512 was hard-coded. */
void pitfall_15_topk_and_blocks_of_any_size(const tamis_backend *backend) {
    static const int topk[] = {1, 8, 512, 1024, 2048, 4096};
    static const int blocks[] = {1, 2, 7, 64, 511, 2048, 4095, 4096};
    static const int64_t lengths[] = {40000, 5000};
    scene s;
    scene_prefill(&s, 4, 64, 40000, lengths, 2);
    for (int i = 0; i < 16; i++) {
        level l = {TAMIS_NUMERICS_EXACT, i % 2 ? 16 : 8, topk[i % 6], blocks[i % 8]};
        test_context("pitfall 15: topk %d, blocks %d of %d", l.topk, l.topk_blocks, l.block_size);
        scene_numbers(&s, i % 3 ? SCENE_PLAIN : SCENE_FEW, TAMIS_F32, (uint64_t)i);
        check_levels(backend, &s, l, &level_plain, (uint64_t)i);
    }
    blocks_beyond_pages_are_refused(backend, &s);
    scene_free(&s);
}

/* Greedy output depended on the batch: a row's bytes are the same alone and among any others. */
void pitfall_25_row_alone_is_row_in_a_batch(const tamis_backend *backend) {
    level l = {TAMIS_NUMERICS_EXACT, 8, 30, 6};
    static const int hazards[] = {SCENE_PLAIN, SCENE_FEW, SCENE_NAN_W, SCENE_MIXED};
    for (int h = 0; h < 4; h++) {
        scene s;
        scene_around_tiles(&s, 32, 128, (uint64_t)h);
        scene_numbers(&s, hazards[h], TAMIS_F32, (uint64_t)h);
        results all = level_source(backend, &s, l, &level_plain, level_whole);
        for (int32_t row = 0; row < s.rows; row++) {
            scene one;
            test_context("pitfall 25: row %d, %s", row, scene_hazard_text(hazards[h]));
            scene_pick(&one, &s, &row, 1);
            results alone = level_source(backend, &one, l, &level_plain, level_whole);
            for (int i = 0; i < TRIAL_OUTPUTS; i++) {
                int64_t line = all.size[i] / s.rows;
                if (i == LEVEL_SLOTS)
                    continue;
                REQUIRE(memcmp(all.bytes[i] + row * line, alone.bytes[i], (size_t)line) == 0,
                        "array %d differs", i);
            }
            results_free(&alone);
            scene_free(&one);
        }
        results_free(&all);
        scene_free(&s);
    }
}

/* Retrieval was wrong where the length was 3 mod 4: every residue mod 16, at every start. */
void pitfall_26_lengths_of_every_residue(const tamis_backend *backend) {
    level l = {TAMIS_NUMERICS_EXACT, 8, 100, 9};
    int64_t context[1] = {300};
    for (int block = 8; block <= 16; block += 8)
        for (int layout = TAMIS_K_MXFP4_PAGE; layout <= TAMIS_K_MXFP4_ROW; layout++) {
            scene s;
            placement where = {.layout = layout};
            test_context("pitfall 26: blocks of %d, layout %d", block, layout);
            scene_new(&s, 4, 64, 1, context, 256);
            for (int32_t r = 0; r < 256; r++) {
                s.ks[r] = r % 16;
                s.ke[r] = s.ks[r] + 128 + r / 16;
            }
            scene_numbers(&s, SCENE_PLAIN, TAMIS_F32, 26);
            l.block_size = block;
            check_levels(backend, &s, l, &where, 27);
            scene_free(&s);
        }
}
