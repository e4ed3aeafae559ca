/* SPDX-License-Identifier: MIT */
/* check_expand.c: foreign candidate lists (spec 5.4): its vectors word for word, then any lists. */
#include "common.h"

enum { ROWS = 5, MAX_WIDTH = 40 };

typedef struct vector {
    int32_t size, flags, width, list[4], ks, ke, want[4], columns, count;
} vector;

enum { FIXED = TAMIS_EXPAND_FIXED_WIDTH, KEEP = TAMIS_EXPAND_KEEP_DUPLICATES };

static const vector vectors[] = {
    {8, FIXED, 4, {0, -1, -1, -1}, 64, 72, {8, 8, 8, 8}, 8, 1},
    {8, FIXED, 4, {2, 0, -1, -1}, 13, 30, {1, 3, 3, 3}, 9, 2},
    {8, FIXED, 4, {3, -1, -1, -1}, 100, 100, {12, 12, 12, 12}, 0, 0},
    {8, FIXED, 4, {1 << 30, -(1 << 30), 0, -1}, 0, 1000, {0, 0, 0, 0}, 8, 1},
    {8, FIXED | KEEP, 4, {1, 1, 7, 0}, 8, 40, {1, 2, 2, 2}, 24, 3},
    {16, FIXED, 2, {1, 0}, 0, 48, {0, 1, 2, 3}, 32, 4},
    /* the same without the fixed width, and a 16-candidate whose second half is past the end */
    {8, 0, 4, {0, -1, -1, -1}, 64, 72, {8, -1, -1, -1}, 8, 1},
    {8, 0, 4, {2, 0, -1, -1}, 13, 30, {1, 3, -1, -1}, 9, 2},
    {8, 0, 4, {3, -1, -1, -1}, 100, 100, {-1, -1, -1, -1}, 0, 0},
    {8, 0, 4, {1, 1, 7, 0}, 8, 40, {1, 2, -1, -1}, 16, 2},
    {16, 0, 2, {2, 2}, 0, 40, {4, -1, -1, -1}, 8, 1},
    {16, KEEP, 2, {1, 1}, 0, 48, {2, 2, 3, 3}, 32, 4},
    {8, FIXED, 4, {0, 1, 2, 3}, 50, 40, {6, 6, 6, 6}, 0, 0}, /* ke < ks: nothing visible */
    {8, FIXED, 4, {INT32_MIN, INT32_MAX, 1, 0}, 0, 9, {0, 1, 1, 1}, 9, 2},
};

static void the_vectors(void **state) {
    (void)state;
    for (int v = 0; v < COUNT(vectors); v++) {
        const vector *want = vectors + v;
        int32_t got[4], count, columns;
        int64_t oracle_columns;
        tamis_expand_args a;
        tamis_expand_args_default(&a);
        a.candidate_size = want->size;
        a.block_size = 8;
        a.flags = want->flags;
        a.rows = (tamis_rows){1, &want->ks, &want->ke, NULL, NULL, 0, 0, 0};
        a.width = want->width;
        a.candidates = want->list;
        a.candidates_stride = 4;
        a.blocks = got;
        a.blocks_stride = 4;
        a.counts = &count;
        a.columns = &columns;
        RUN(expand, &a);
        same_ints(got, want->want, 4, "vector");
        assert_int_equal(columns, want->columns);
        assert_int_equal(count, want->count);
        assert_int_equal(oracle_expand(want->list, want->width, want->size, 8, want->ks, want->ke,
                                       want->flags & KEEP, want->flags & FIXED, got,
                                       &oracle_columns),
                         want->count);
        same_ints(got, want->want, 4, "oracle");
        assert_int_equal(oracle_columns, want->columns);
    }
}

static int32_t random_id(int64_t blocks) {
    switch (random_below(8)) {
    case 0:
        return -1;
    case 1:
        return (int32_t)random64();
    default:
        return (int32_t)random_below(blocks + 3);
    }
}

static tamis_expand_args make(int32_t size, int32_t block, int32_t flags, int64_t width) {
    tamis_expand_args a;
    int32_t *ks = fresh(ROWS * 4), *ke = fresh(ROWS * 4);
    int64_t out = width * size / block;
    tamis_expand_args_default(&a);
    a.candidate_size = size;
    a.block_size = block;
    a.flags = flags;
    a.width = width;
    a.candidates_stride = width + 1;
    int32_t *ids = fresh(ROWS * a.candidates_stride * 4);
    for (int r = 0; r < ROWS; r++) {
        ks[r] = (int32_t)random_below(4 * block);
        ke[r] = (int32_t)(ks[r] + random_below(30 * block));
        ke[r] = r == 1 ? ks[r] / 2 : ke[r];
        for (int64_t i = 0; i < width; i++) {
            ids[r * a.candidates_stride + i] = random_id((ke[r] - ks[r]) / size + 1);
        }
    }
    a.rows = (tamis_rows){ROWS, ks, ke, NULL, NULL, 0, 0, 0};
    a.candidates = ids;
    a.blocks_stride = out + 3;
    a.blocks = fresh(ROWS * a.blocks_stride * 4);
    a.counts = fresh(ROWS * 4);
    a.columns = fresh(ROWS * 4);
    return a;
}

static void check(const tamis_expand_args *a) {
    int64_t out = a->width * a->candidate_size / a->block_size;
    int32_t *want = fresh(out * 4);
    for (int r = 0; r < ROWS; r++) {
        const int32_t *row = a->blocks + r * a->blocks_stride;
        int64_t ks = a->rows.ks ? a->rows.ks[r] : 0, columns;
        int64_t count = oracle_expand(a->candidates + r * a->candidates_stride, a->width,
                                      a->candidate_size, a->block_size, ks, a->rows.ke[r],
                                      a->flags & KEEP, a->flags & FIXED, want, &columns);
        same_ints(row, want, out, "blocks");
        untouched(row, out, a->blocks_stride, 4, "blocks");
        if (a->counts) {
            assert_int_equal(a->counts[r], count);
            assert_int_equal(a->columns[r], columns);
        }
    }
}

static void any_lists(void **state) {
    static const int32_t sizes[][2] = {{8, 8},  {16, 8},   {16, 16}, {24, 8},
                                       {64, 8}, {128, 16}, {48, 16}, {128, 8}};
    (void)state;
    seed(20);
    for (int i = 0; i < COUNT(sizes) * 4 * 40; i++) {
        tamis_expand_args a = make(sizes[i % COUNT(sizes)][0], sizes[i % COUNT(sizes)][1],
                                   i / COUNT(sizes) % 4, i < 64 ? i / 32 : random_below(MAX_WIDTH));
        if (i % 5 == 4) {
            a.counts = a.columns = NULL;
            a.rows.ks = NULL;
        }
        RUN(expand, &a);
        check(&a);
        release();
    }
}

/* A list as wide as they get, ascending, descending and all the same id. */
static void widest(void **state) {
    (void)state;
    seed(21);
    for (int i = 0; i < 12; i++) {
        tamis_expand_args a = make(16, 8, i % 4, 4096);
        int32_t *ids = (int32_t *)(uintptr_t)a.candidates, *ke = (int32_t *)(uintptr_t)a.rows.ke;
        for (int64_t c = 0; c < ROWS * a.candidates_stride; c++) {
            int32_t column = (int32_t)(c % a.candidates_stride);
            ids[c] = i / 4 == 0 ? column : i / 4 == 1 ? 4095 - column : 77;
        }
        for (int r = 0; r < ROWS; r++) {
            ke[r] = (int32_t)(60000 + random_below(10000));
        }
        RUN(expand, &a);
        check(&a);
        release();
    }
}

static void refusals(void **state) {
    static const int32_t negative[ROWS] = {1, -1};
    (void)state;
    seed(22);
    tamis_expand_args good = make(16, 8, 0, 6);
    watch_none();
    watch(good.blocks, ROWS * good.blocks_stride * 4);
    watch(good.counts, ROWS * 4);
    watch(good.columns, ROWS * 4);
    REFUSE(expand, a.candidate_size = 12, TAMIS_ERROR_ARGUMENT, "candidate_size");
    REFUSE(expand, a.candidate_size = 0, TAMIS_ERROR_ARGUMENT, "candidate_size");
    REFUSE(expand, a.candidate_size = 136, TAMIS_ERROR_ARGUMENT, "candidate_size");
    REFUSE(expand, a.block_size = 32, TAMIS_ERROR_ARGUMENT, "block_size");
    REFUSE(expand, a.flags = 4, TAMIS_ERROR_ARGUMENT, "flags");
    REFUSE(expand, a.width = -1, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(expand, a.width = 4097, TAMIS_ERROR_ARGUMENT, "width");
    REFUSE(expand, a.candidates = NULL, TAMIS_ERROR_ARGUMENT, "candidates");
    REFUSE(expand, a.candidates_stride = 5, TAMIS_ERROR_ARGUMENT, "candidates_stride");
    REFUSE(expand, a.blocks = NULL, TAMIS_ERROR_ARGUMENT, "blocks");
    REFUSE(expand, (a.width = 0, a.candidates = NULL), TAMIS_ERROR_ARGUMENT, "candidates");
    REFUSE(expand, (a.width = 0, a.blocks = NULL), TAMIS_ERROR_ARGUMENT, "blocks");
    REFUSE(expand, a.blocks_stride = 11, TAMIS_ERROR_ARGUMENT, "blocks_stride");
    REFUSE(expand, a.rows.count = -1, TAMIS_ERROR_ARGUMENT, "rows.count");
    REFUSE(expand, a.rows.ke = NULL, TAMIS_ERROR_ARGUMENT, "rows.ke");
    REFUSE(expand, a.rows.ke = negative, TAMIS_ERROR_LENGTH, "rows.ke[1]");
    REFUSE(expand, a.rows.ks = negative, TAMIS_ERROR_LENGTH, "rows.ks[1]");
    REFUSE_COMMON(expand);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_vectors),
        cmocka_unit_test(any_lists),
        cmocka_unit_test(widest),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
