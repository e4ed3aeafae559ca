/* SPDX-License-Identifier: MIT */
/* check_publish.c: the best blocks of each row, the newest always among them (spec 5.2). */
#include "common.h"

#include <math.h>

#include "logits.h"

enum { ROWS = 4 };

static tamis_publish_args make(int32_t block, int32_t topk, int64_t blocks, int kind) {
    tamis_publish_args a;
    int32_t *ks = fresh(ROWS * 4), *ke = fresh(ROWS * 4);
    tamis_publish_args_default(&a);
    a.block_size = block;
    a.topk_blocks = topk;
    for (int r = 0; r < ROWS; r++) {
        ks[r] = (int32_t)random_below(50);
        ke[r] = (int32_t)(ks[r] + random_below(blocks * block + 1));
        ke[r] = r == 1 ? ks[r] : r == 2 ? ks[r] + (int32_t)blocks * block : ke[r];
    }
    a.rows = (tamis_rows){ROWS, ks, ke, NULL, NULL, 0, 0, 0};
    a.block_max_stride = blocks + 2;
    float *scores = fresh(ROWS * a.block_max_stride * 4);
    random_logits(scores, ROWS * a.block_max_stride, TAMIS_F32, kind);
    a.block_max = scores;
    a.blocks_stride = topk + 3;
    a.blocks = fresh(ROWS * a.blocks_stride * 4);
    a.counts = fresh(ROWS * 4);
    return a;
}

/* A block's score is given, so the oracle sees blocks of one position. */
static void check(const tamis_publish_args *a) {
    int32_t *want = fresh(a->topk_blocks * (int64_t)4);
    for (int r = 0; r < ROWS; r++) {
        int64_t len = a->rows.ke[r] - a->rows.ks[r];
        int64_t blocks = (len + a->block_size - 1) / a->block_size;
        const int32_t *row = a->blocks + r * a->blocks_stride;
        int64_t count =
            oracle_publish(a->block_max + r * a->block_max_stride, blocks, 1, a->topk_blocks, want);
        same_ints(row, want, a->topk_blocks, "blocks");
        untouched(row, a->topk_blocks, a->blocks_stride, 4, "blocks");
        if (a->counts) {
            assert_int_equal(a->counts[r], count);
        }
    }
}

static void every_size(void **state) {
    static const int32_t topk[] = {1, 2, 8, 64, 512, 2048, 4096};
    static const int64_t blocks[] = {1, 2, 7, 64, 513, 2048, 2049, 5000};
    (void)state;
    seed(18);
    for (int i = 0; i < 2 * COUNT(topk) * COUNT(blocks) * LOGITS_KINDS; i++) {
        tamis_publish_args a =
            make(i % 2 ? 8 : 16, topk[i / 2 % COUNT(topk)],
                 blocks[i / 2 / COUNT(topk) % COUNT(blocks)], i / 2 / COUNT(topk) / COUNT(blocks));
        a.counts = i % 5 ? a.counts : NULL;
        RUN(publish, &a);
        check(&a);
        release();
    }
}

/* Ten equal blocks, three kept: 0 and 1 by the tie rule, 9 for being the newest. */
static void by_hand(void **state) {
    static const float scores[10] = {0, -0.0f, 0, 0, 0, 0, 0, -0.0f, 0, NAN};
    static const int32_t ke[] = {73}, want[] = {0, 1, 9};
    int32_t got[3];
    tamis_publish_args a;
    (void)state;
    tamis_publish_args_default(&a);
    a.block_size = 8;
    a.topk_blocks = 3;
    a.rows = (tamis_rows){1, NULL, ke, NULL, NULL, 0, 0, 0};
    a.block_max = scores;
    a.block_max_stride = 10;
    a.blocks = got;
    a.blocks_stride = 3;
    RUN(publish, &a);
    same_ints(got, want, 3, "by hand");
    a.topk_blocks = 1;
    RUN(publish, &a);
    assert_int_equal(got[0], 9);
}

static void refusals(void **state) {
    static const int32_t negative[ROWS] = {1, -1};
    (void)state;
    seed(19);
    tamis_publish_args good = make(8, 16, 20, LOGITS_RANDOM);
    watch_none();
    watch(good.blocks, ROWS * good.blocks_stride * 4);
    watch(good.counts, ROWS * 4);
    REFUSE(publish, a.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(publish, a.block_size = 4, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(publish, a.topk_blocks = 0, TAMIS_ERROR_ARGUMENT, "topk_blocks");
    REFUSE(publish, a.topk_blocks = 4097, TAMIS_ERROR_ARGUMENT, "topk_blocks");
    REFUSE(publish, a.block_max = NULL, TAMIS_ERROR_ARGUMENT, "block_max");
    REFUSE(publish, a.block_max_stride = 19, TAMIS_ERROR_ARGUMENT, "block_max_stride");
    REFUSE(publish, a.blocks = NULL, TAMIS_ERROR_ARGUMENT, "blocks");
    REFUSE(publish, a.blocks_stride = 15, TAMIS_ERROR_ARGUMENT, "blocks_stride");
    REFUSE(publish, a.rows.count = -1, TAMIS_ERROR_ARGUMENT, "rows.count");
    REFUSE(publish, a.rows.ke = NULL, TAMIS_ERROR_ARGUMENT, "rows.ke");
    REFUSE(publish, a.rows.ke = negative, TAMIS_ERROR_LENGTH, "rows.ke[1]");
    REFUSE_COMMON(publish);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(every_size),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
