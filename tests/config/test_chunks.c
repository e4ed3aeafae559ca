/* SPDX-License-Identifier: MIT */
/* test_chunks.c: the worked vectors of prefill chunks (spec 7.4), and their bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <tamis/tamis.h>

#define MIB INT64_C(1048576)

static void dense_vectors(void **state) {
    (void)state;
    assert_int_equal(tamis_chunk_rows_dense(512 * MIB, 32768), 4096);
    assert_int_equal(tamis_chunk_rows_dense(512 * MIB, 131072), 1024);
    assert_int_equal(tamis_chunk_rows_dense(512 * MIB, 262144), 512);
    assert_int_equal(tamis_chunk_rows_dense(512 * MIB, 1048576), 128);
    assert_int_equal(tamis_chunk_rows_dense(1, 1048576), 1);
    assert_int_equal(tamis_chunk_rows_dense(INT64_MAX, 1), INT64_MAX / 4);
    assert_int_equal(tamis_chunk_rows_dense(INT64_MAX, INT64_MAX), 1);
}

/* Up to 8,192 positions a chunk of 16,384 columns is 16,384 rows; from there as the dense one. */
static void sparse_vectors(void **state) {
    (void)state;
    assert_int_equal(tamis_chunk_rows_sparse(512 * MIB, 1, 16384), 16384);
    assert_int_equal(tamis_chunk_rows_sparse(512 * MIB, 8191, 16384), 16384);
    assert_int_equal(tamis_chunk_rows_sparse(512 * MIB, 8192, 16384), 16384);
    assert_int_equal(tamis_chunk_rows_sparse(512 * MIB, 8193, 16384), 512 * MIB / 4 / 8193);
    assert_int_equal(tamis_chunk_rows_sparse(512 * MIB, 1048576, 16384), 128);
    assert_int_equal(tamis_chunk_rows_sparse(400, 1, INT64_MAX), 1);
}

/* The clamp is (columns * 2 + 3) / 4, at every residue. */
static void clamp_rounds_up(void **state) {
    (void)state;
    for (int64_t columns = 1; columns < 100; columns++) {
        assert_int_equal(tamis_chunk_rows_sparse(4000000, 1, columns),
                         1000000 / ((columns * 2 + 3) / 4));
    }
}

/* A chunk's logits fit the budget, and one more row would not. */
static void fits_the_budget(void **state) {
    (void)state;
    for (int64_t positions = 1; positions < 2000000; positions = positions * 7 / 5 + 1) {
        int64_t rows = tamis_chunk_rows_dense(512 * MIB, positions);
        assert_true(rows * positions * 4 <= 512 * MIB);
        assert_true((rows + 1) * positions * 4 > 512 * MIB);
    }
}

static void refuses_what_is_not_positive(void **state) {
    (void)state;
    assert_int_equal(tamis_chunk_rows_dense(0, 1), -1);
    assert_int_equal(tamis_chunk_rows_dense(-1, 1), -1);
    assert_int_equal(tamis_chunk_rows_dense(1, 0), -1);
    assert_int_equal(tamis_chunk_rows_sparse(0, 1, 1), -1);
    assert_int_equal(tamis_chunk_rows_sparse(1, 0, 1), -1);
    assert_int_equal(tamis_chunk_rows_sparse(1, 1, 0), -1);
    assert_int_equal(tamis_chunk_rows_sparse(1, INT64_MIN, INT64_MIN), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_vectors),
        cmocka_unit_test(sparse_vectors),
        cmocka_unit_test(clamp_rounds_up),
        cmocka_unit_test(fits_the_budget),
        cmocka_unit_test(refuses_what_is_not_positive),
    };
    return cmocka_run_group_tests_name("config.chunks", tests, NULL, NULL);
}
