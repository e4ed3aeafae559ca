/* SPDX-License-Identifier: MIT */
/*
 * tile_rows.c: which rows go into which tile, by the arithmetic that host and device share
 * (tile_args.h): of a source's block maxima, and of dense scores.
 */
#include "plan_device.h"

/* Units of rows cut as tiles.cu cuts them: no tile needs more than the buffer, and there are no
 * more than are queued. */
static void check_cut(const int64_t *units, int64_t rows, int64_t longest, int64_t buffer) {
    int64_t total = 0, most = 0, before = 0, here = 0;
    uint32_t now = 0;
    for (int64_t r = 0; r < rows; r++) {
        total += units[r];
        most = units[r] > most ? units[r] : most;
    }
    const int64_t tiles = tamis_tiles_of(total, most, buffer);
    assert_in_range(tiles, 1, tamis_tiles_of(rows * longest, longest, buffer));
    for (int64_t r = 0; r < rows; r++) {
        if (r % TAMIS_TILE_RUN == 0) {
            uint32_t tile = tamis_tile_of((uint32_t)before, (uint32_t)total, (uint32_t)tiles);
            assert_in_range(tile, now, tiles - 1);
            here = tile == now ? here : 0;
            now = tile;
        }
        before += units[r];
        here += units[r];
        assert_true(here <= buffer);
    }
}

static void cuts(void **state) {
    static int64_t units[TAMIS_TILE_ROWS];
    (void)state;
    seed(6);
    for (int trial = 0; trial < 3000; trial++) {
        const int64_t longest = 1 + random_below(trial % 3 ? 8192 : 9);
        const int64_t rows = 1 + random_below(trial % 50 ? 400 : TAMIS_TILE_ROWS);
        const int64_t buffer = 2 * TAMIS_TILE_RUN * longest + random_below(8 * longest);
        const int64_t long_ones = random_below(4) ? random_below(20) : 20;
        for (int64_t r = 0; r < rows; r++) {
            units[r] = random_below(20) < long_ones ? longest - random_below(2)
                                                    : random_below(1 + longest / 50);
        }
        check_cut(units, rows, longest, buffer);
    }
    assert_int_equal(tamis_maxima_units(0, 8), 0);
    assert_int_equal(tamis_maxima_units(1, 8), 1);
    assert_int_equal(tamis_maxima_units(15 * 8, 8), 1); /* and one block more */
    assert_int_equal(tamis_maxima_units(15 * 8 + 1, 8), 2);
    assert_int_equal(tamis_maxima_units(1 << 20, 8), (1 << 17) * 4 / 64 + 1);
}

/* What score kernels make of the longest row that there is, and of decoded K at the end of what
 * lies behind their room: every row in one of the tiles that are queued, and its line before K. */
static void lines(void **state) {
    (void)state;
    seed(10);
    for (int trial = 0; trial < 200000; trial++) {
        const uint32_t most = 32 * (uint32_t)(1 + random_below(trial % 3 ? 800 : 9));
        const uint32_t rows = 1 + (uint32_t)random_below(trial % 5 ? 900 : 8192);
        const uint32_t room = most + (uint32_t)random_below((int64_t)most * (trial % 2 ? 40 : 900));
        const uint32_t capacity = trial % 4 ? (uint32_t)random_below(1 << 20) / 64 * 64 : 0;
        const uint32_t decoded = (uint32_t)random_below(capacity + 1) / 64 * 64;
        const tamis_score_tile tile = {.room = room,
                                       .spare = (uint32_t)random_below(64) + 32 * capacity};
        const uint32_t longest = (uint32_t)random_below(most + 1);
        const uint32_t queued = tamis_score_rows(rows, most, room);
        const uint32_t stride = tamis_score_stride(longest, most);
        const uint32_t wider = tamis_score_room(&tile, decoded);
        const uint32_t each = tamis_score_rows(rows, stride, wider);
        assert_true(stride >= longest && stride <= most && stride % 32 == 0);
        assert_true(wider >= room && wider <= room + tile.spare - 32 * decoded);
        assert_true(decoded == capacity || wider == room + tile.spare - 32 * decoded);
        assert_true((uint64_t)each * stride <= wider);
        assert_true((rows + each - 1) / each <= (rows + queued - 1) / queued);
        assert_true(each % TAMIS_TILE_RUN == 0 || each < TAMIS_TILE_RUN || each == rows);
    }
    assert_int_equal(tamis_score_rows(2048, tamis_score_stride(4096, 24576), 1 << 23), 2048);
    assert_int_equal(tamis_score_rows(2048, tamis_score_stride(4097, 24576), 1 << 23), 1024);
    assert_int_equal(tamis_score_stride(0, 24576), 32);
}

int main(void) {
    static const struct CMUnitTest list[] = {cmocka_unit_test(cuts), cmocka_unit_test(lines)};
    return cmocka_run_group_tests(list, NULL, NULL);
}
