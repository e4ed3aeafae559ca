/* SPDX-License-Identifier: MIT */
/* numbers.c: faults of NaN, ties, rounding and magnitudes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "pitfalls.h"

static const level two_level = {TAMIS_NUMERICS_EXACT, 8, 512, 2048};

/* NaN block scores were dropped and the row refilled with repeats. */
void pitfall_01_nan_keys_keep_ids_unique(const tamis_backend *backend) {
    static const int hazards[] = {SCENE_NAN_K, SCENE_NAN_ALL, SCENE_NAN_Q, SCENE_NAN_W};
    static const int64_t lengths[] = {16385, 17000, 600, 70, 9};
    for (int i = 0; i < 4; i++) {
        scene s;
        test_context("pitfall 01: %s", scene_hazard_text(hazards[i]));
        scene_prefill(&s, 4, 64, 17000, lengths, 5);
        scene_numbers(&s, hazards[i], TAMIS_F32, 3);
        check_levels(backend, &s, two_level, &level_plain, 8);
        level few = {TAMIS_NUMERICS_EXACT, 8, 100, 20};
        check_levels(backend, &s, few, &level_plain, 9);
        scene_free(&s);
    }
}

/* NaN scores made top-k emit junk: any bits in q, k, w and lists give visible positions or -1. */
void pitfall_02_any_bits_select_visible_positions(const tamis_backend *backend) {
    level l = {TAMIS_NUMERICS_EXACT, 8, 70, 9};
    for (uint64_t seed = 0; seed < 12; seed++) {
        scene s;
        uint64_t random = seed;
        test_context("pitfall 02: seed %llu", (unsigned long long)seed);
        scene_around_tiles(&s, seed % 2 ? 32 : 4, seed % 2 ? 128 : 64, seed);
        scene_numbers(&s, SCENE_BITS, TAMIS_F32, seed);
        check_levels(backend, &s, l, &level_plain, seed + 100);
        int32_t *ids = test_memory(s.rows * 33, 4);
        random_fill(&random, ids, s.rows * 33 * 4);
        for (int64_t i = 0; i < s.rows * 33; i += 2) /* half of them in or near the range */
            ids[i] = ids[i] % 20;
        block_lists lists = {ids, 33, NULL};
        results want = oracle_consumer(&s, l, lists);
        results got = level_consume(backend, &s, l, lists, &level_plain, level_whole);
        level_well_formed(result_i32(&got, LEVEL_POSITIONS), result_i32(&got, LEVEL_COUNTS), s.rows,
                          l.topk, &s, 1);
        level_equal(&s, &want, &got, "foreign lists");
        results_free(&want);
        results_free(&got);
        free(ids);
        scene_free(&s);
    }
}

/* `above` scores above the tie, in random places; then the lowest tied columns fill the rest. */
static void ties_at_rank(const tamis_backend *backend, float *scores, int64_t n, int32_t topk,
                         int64_t above, float tie) {
    uint64_t random = (uint64_t)(n + topk);
    for (int64_t i = 0; i < n; i++)
        scores[i] = tie;
    for (int64_t i = 0; i < above; i++)
        scores[random_below(&random, n)] = 5.0f + (float)i;
    test_context("pitfall 03: %lld columns, topk %d, %lld above a tie at %g", (long long)n, topk,
                 (long long)above, (double)tie);
    check_topk(backend, scores, n, topk);
}

/* More than 1,024 equal scores overflowed a tie bin: -1 in the valid prefix, or wrong members. */
void pitfall_03_ties_keep_the_lowest_positions(const tamis_backend *backend) {
    static const int32_t topk[] = {1, 8, 512, 2048, 4096};
    static const int64_t lengths[] = {20011, 16385, 2049};
    static const int hazards[] = {SCENE_TIES, SCENE_NEGATIVE, SCENE_ZEROS};
    float *scores = test_memory(40003, 4);
    for (int i = 0; i < 5; i++)
        for (int64_t n = 16385; n <= 40003; n += 40003 - 16385) {
            ties_at_rank(backend, scores, n, topk[i], 0, 0.0f);
            ties_at_rank(backend, scores, n, topk[i], 0, NAN);
            ties_at_rank(backend, scores, n, topk[i], 0, -INFINITY);
            ties_at_rank(backend, scores, n, topk[i], topk[i] - 1, 1.0f);
            ties_at_rank(backend, scores, n, topk[i], topk[i] / 2, -0.0f);
        }
    free(scores);
    for (int i = 0; i < 3; i++) {
        scene s;
        test_context("pitfall 03: %s", scene_hazard_text(hazards[i]));
        scene_prefill(&s, 4, 64, 20011, lengths, 3);
        scene_numbers(&s, hazards[i], TAMIS_F32, 1);
        check_levels(backend, &s, two_level, &level_plain, 2);
        scene_free(&s);
    }
}

/* Coarse keys lost what differs in the last bit, or where magnitudes are far apart. */
void pitfall_04_last_bit_and_magnitudes_decide(const tamis_backend *backend) {
    static const int hazards[] = {SCENE_LAST_BIT, SCENE_HUGE_TINY, SCENE_SUBNORMAL, SCENE_OVERFLOW};
    static const int64_t lengths[] = {17000, 16384, 600};
    for (int i = 0; i < 4; i++) {
        scene s;
        test_context("pitfall 04: %s", scene_hazard_text(hazards[i]));
        scene_prefill(&s, 4, 64, 17000, lengths, 3);
        scene_numbers(&s, hazards[i], TAMIS_F32, 4);
        check_levels(backend, &s, two_level, &level_plain, 5);
        scene_free(&s);
    }
}

/* A histogram on the upper bits is only approximate at the cut: many scores share them here. */
void pitfall_05_cut_is_exact(const tamis_backend *backend) {
    static const int32_t topk[] = {1, 7, 512, 2048};
    enum { N = 30011 };
    float *scores = test_memory(N, 4);
    for (int shared_bits = 32 - 24; shared_bits <= 32; shared_bits += 4) {
        uint64_t random = (uint64_t)shared_bits;
        for (int64_t i = 0; i < N; i++) {
            uint32_t low = shared_bits == 32 ? 0 : (uint32_t)random_next(&random) >> shared_bits;
            uint32_t bits = (i % 5 ? 0x3F000000u : 0xBF000000u) | low;
            memcpy(&scores[i], &bits, sizeof bits);
        }
        for (int i = 0; i < 4; i++) {
            test_context("pitfall 05: %d shared bits, topk %d", shared_bits, topk[i]);
            check_topk(backend, scores, N, topk[i]);
        }
    }
    free(scores);
}

/* ---- 22: quantising ---- */

enum { TOKENS = 128, HEADS = 4, D = 128, PLAIN = 64 };

/* Quantises the first 64 dims of each head, which no rotation touches, and asks the oracle. */
static void check_quantised(const tamis_backend *backend, const uint16_t *q) {
    static float table[64];
    static int64_t positions[TOKENS];
    static uint8_t codes[TOKENS * HEADS * D / 2], scales[TOKENS * HEADS * D / 32];
    tamis_error error;
    tamis_q_prepare_args a;
    tamis_q_prepare_args_default(&a);
    a.heads = HEADS;
    a.head_dim = D;
    a.weights_in_type = a.weights_out_type = TAMIS_F32;
    a.tokens = TOKENS;
    a.q = q;
    a.q_head_stride = D;
    a.q_token_stride = HEADS * D;
    a.positions = positions;
    a.rope = (tamis_rope){table, TAMIS_F32, 0, 1, 64};
    a.codes = codes;
    a.scales = scales;
    a.codes_head_stride = D / 2;
    a.codes_row_stride = HEADS * D / 2;
    a.scales_head_stride = D / 32;
    a.scales_row_stride = HEADS * D / 32;
    REQUIRE_OK(tamis_q_prepare(backend, &a, 0, 1, &error), error);
    for (int64_t i = 0; i < TOKENS * HEADS * 2; i++) { /* two plain groups a head */
        int64_t head = i / 2, group = i % 2;
        float x[32];
        uint8_t want[16], scale;
        for (int e = 0; e < 32; e++)
            x[e] = oracle_from_bf16(q[head * D + group * 32 + e]);
        oracle_mxfp4(x, want, &scale);
        REQUIRE(scales[head * (D / 32) + group] == scale, "scale byte %d, not %d",
                scales[head * (D / 32) + group], scale);
        REQUIRE(memcmp(codes + head * (D / 2) + group * 16, want, 16) == 0,
                "codes of the group that starts with %04x differ", q[head * D + group * 32]);
    }
}

/* Two rules were in use: every bf16 goes through the one rule, alone and beside larger values. */
void pitfall_22_every_bf16_rounds_by_one_rule(const tamis_backend *backend) {
    uint16_t *q = test_memory(TOKENS * HEADS * D, 2);
    int64_t groups = TOKENS * HEADS * 2;
    for (int64_t first = 0; first < 65536; first += groups) /* alone: it sets the scale */
        for (int beside = 0; beside < 2; beside++) {
            memset(q, 0, (size_t)(TOKENS * HEADS * D) * sizeof *q);
            for (int64_t i = 0; i < groups; i++) {
                uint16_t *group = q + i / 2 * D + i % 2 * 32;
                uint16_t value = (uint16_t)(first + i);
                group[i % 32] = value;
                if (beside) /* a value up to 7 binades larger sets it */
                    group[(i + 1) % 32] =
                        (uint16_t)((value & 0x7FFF) < 0x7B00
                                       ? (value & 0x7FFF) + 0x80 * (i % 8) + i % 128
                                       : 0x3F80);
            }
            test_context("pitfall 22: bf16 bits from %04x", (unsigned)first);
            check_quantised(backend, q);
        }
    for (int64_t first = 0; first < 65536; first += groups * 32) { /* neighbours in one group */
        for (int64_t i = 0; i < groups * 32; i++)
            q[i / 64 * D + i % 64] = (uint16_t)(first + i);
        check_quantised(backend, q);
    }
    free(q);
}
