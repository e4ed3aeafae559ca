/* SPDX-License-Identifier: MIT */
/*
 * test_kv.c: the worked vectors of KV blocks (spec 7.3), and every refusal with outputs untouched.
 * Random layouts are held to the same sums in 128 bits, written the other way round: group by
 * group.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tamis/tamis.h>

static tamis_kv_spec spec_of(int32_t group, int64_t states, int64_t row_bytes,
                             int64_t page_alignment, int64_t stride_alignment) {
    tamis_kv_spec spec;
    tamis_kv_spec_default(&spec);
    spec.group = group;
    spec.states = states;
    spec.row_bytes = row_bytes;
    spec.page_alignment = page_alignment;
    spec.block_stride_alignment = stride_alignment;
    return spec;
}

static tamis_kv_layout lay_out(const tamis_kv_spec *specs, int32_t count, int64_t *offsets) {
    tamis_kv_layout layout;
    tamis_error error = {0};
    tamis_kv_layout_default(&layout);
    assert_int_equal(tamis_kv_lay_out(specs, count, offsets, &layout, &error), TAMIS_OK);
    assert_int_equal(layout.struct_size, sizeof layout);
    return layout;
}

/* Three ratio-2 layers, main rows and index rows in one group, as the vectors have them. */
static tamis_kv_layout three_layers(int64_t states, int64_t main_row, int64_t alignment,
                                    int32_t sparse) {
    tamis_kv_spec specs[6];
    int64_t offsets[6], next = 0;
    for (int i = 0; i < 3; i++) {
        specs[2 * i] = spec_of(0, states, main_row, alignment, 0);
        tamis_kv_spec_default(&specs[2 * i + 1]);
        assert_int_equal(
            tamis_kv_index_spec(states, 128, alignment, sparse, &specs[2 * i + 1], NULL), TAMIS_OK);
    }
    tamis_kv_layout layout = lay_out(specs, 6, offsets);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(offsets[i], next);
        next += (specs[i].states * specs[i].row_bytes + alignment - 1) / alignment * alignment;
    }
    assert_int_equal(next, layout.bytes_unaligned);
    return layout;
}

static void vector_256_states(void **state) {
    (void)state;
    tamis_kv_layout layout = three_layers(256, 584, 576, 1);
    assert_int_equal(layout.groups, 1);
    assert_int_equal(layout.bytes_unaligned, 502848);
    assert_int_equal(layout.alignment, 4608);
    assert_int_equal(layout.bytes_per_block, 506880);
    assert_int_equal(layout.overhead_ppm, 8018);
}

static void vector_128_states(void **state) {
    (void)state;
    tamis_kv_layout layout = three_layers(128, 584, 576, 1);
    assert_int_equal(layout.bytes_unaligned, 252288);
    assert_int_equal(layout.bytes_per_block, 253440);
    assert_int_equal(layout.overhead_ppm, 4566);
}

static void vector_without_overhead(void **state) {
    (void)state;
    tamis_kv_layout layout = three_layers(256, 528, 512, 1);
    assert_int_equal(layout.alignment, 512);
    assert_int_equal(layout.bytes_unaligned, 3 * 256 * (528 + 68));
    assert_int_equal(layout.bytes_per_block, layout.bytes_unaligned);
    assert_int_equal(layout.overhead_ppm, 0);
}

/* With the switch off the bytes are those of specs that never heard of a stride alignment. */
static void switch_off_changes_nothing(void **state) {
    (void)state;
    tamis_kv_layout off = three_layers(256, 584, 576, 0);
    tamis_kv_spec plain[6];
    for (int i = 0; i < 6; i++) {
        plain[i] = spec_of(0, 256, i % 2 ? 68 : 584, 576, 0);
    }
    tamis_kv_layout without = lay_out(plain, 6, NULL);
    assert_memory_equal(&off, &without, sizeof off);
    assert_int_equal(off.alignment, 1);
    assert_int_equal(off.bytes_per_block, 502848);
}

static void groups_alias_from_byte_0(void **state) {
    (void)state;
    const tamis_kv_spec specs[] = {
        spec_of(7, 10, 10, 1, 0), spec_of(2, 100, 3, 16, 0), spec_of(7, 5, 30, 64, 0),
        spec_of(0, 0, 9, 8, 0),   spec_of(2, 1, 1, 1, 0),
    };
    int64_t offsets[5];
    tamis_kv_layout layout = lay_out(specs, 5, offsets);
    assert_int_equal(layout.groups, 3);
    assert_int_equal(layout.bytes_unaligned, 305); /* 304 + 1, above 100 + 192 */
    assert_int_equal(offsets[0], 0);
    assert_int_equal(offsets[1], 0);
    assert_int_equal(offsets[2], 100);
    assert_int_equal(offsets[3], 0);
    assert_int_equal(offsets[4], 304);
}

static void nothing_to_store(void **state) {
    (void)state;
    tamis_kv_layout layout = lay_out(NULL, 0, NULL);
    assert_int_equal(layout.groups, 0);
    assert_int_equal(layout.bytes_per_block, 0);
    assert_int_equal(layout.alignment, 1);
    assert_int_equal(layout.overhead_ppm, 0);
    assert_int_equal(tamis_kv_blocks(&layout, INT64_MAX), 0);
    const tamis_kv_spec empty = spec_of(0, 0, 68, 576, 4608);
    layout = lay_out(&empty, 1, NULL);
    assert_int_equal(layout.groups, 1);
    assert_int_equal(layout.bytes_per_block, 0);
    assert_int_equal(layout.overhead_ppm, 0);
}

static void blocks_of_memory(void **state) {
    (void)state;
    tamis_kv_layout layout = three_layers(256, 584, 576, 1);
    assert_int_equal(tamis_kv_blocks(&layout, 0), 0);
    assert_int_equal(tamis_kv_blocks(&layout, -1), 0);
    assert_int_equal(tamis_kv_blocks(&layout, INT64_MIN), 0);
    assert_int_equal(tamis_kv_blocks(&layout, 506879), 0);
    assert_int_equal(tamis_kv_blocks(&layout, 506880), 1);
    assert_int_equal(tamis_kv_blocks(&layout, INT64_C(4) << 40), 8676701);
    assert_int_equal(tamis_kv_blocks(&layout, INT64_MAX), INT64_MAX / 506880);
    assert_int_equal(tamis_kv_blocks(NULL, 1), 0);
}

/* A page of 5 TB in each of 3 layers: far past 32 bits, and exact. */
static void terabytes(void **state) {
    (void)state;
    const int64_t states = INT64_C(1) << 36;
    tamis_kv_spec specs[3];
    int64_t offsets[3];
    for (int i = 0; i < 3; i++) {
        specs[i] = spec_of(1, states + 1, 68, 576, 4608);
    }
    tamis_kv_layout layout = lay_out(specs, 3, offsets);
    int64_t page = ((states + 1) * 68 + 575) / 576 * 576;
    assert_int_equal(offsets[2], 2 * page);
    assert_int_equal(layout.bytes_unaligned, 3 * page);
    assert_int_equal(layout.bytes_per_block % 4608, 0);
    assert_in_range(layout.bytes_per_block - 3 * page, 0, 4607);
    assert_int_equal(layout.overhead_ppm, 0);
}

/* ---- refusals ---------------------------------------------------------------------- */

static void refuses(tamis_kv_spec bad, tamis_status status, const char *field) {
    const tamis_kv_spec specs[2] = {spec_of(0, 8, 68, 1, 0), bad};
    int64_t offsets[2] = {-7, -7};
    tamis_kv_layout layout, before;
    tamis_error error = {0};
    char name[60] = "specs[1].";
    tamis_kv_layout_default(&layout);
    before = layout;
    assert_int_equal(tamis_kv_lay_out(specs, 2, offsets, &layout, &error), status);
    assert_int_equal(error.status, status);
    assert_string_equal(error.argument, strcat(name, field));
    assert_memory_equal(&layout, &before, sizeof layout);
    assert_int_equal(offsets[0], -7);
    assert_int_equal(offsets[1], -7);
    assert_int_equal(tamis_kv_lay_out(specs, 2, NULL, &layout, NULL), status);
}

static void refuses_bad_specs(void **state) {
    (void)state;
    tamis_kv_spec bad = spec_of(0, 8, 68, 1, 0);
    bad.struct_size = 39;
    refuses(bad, TAMIS_ERROR_STRUCT_SIZE, "struct_size");
    refuses(spec_of(-1, 8, 68, 1, 0), TAMIS_ERROR_ARGUMENT, "group");
    refuses(spec_of(0, -1, 68, 1, 0), TAMIS_ERROR_ARGUMENT, "states");
    refuses(spec_of(0, 8, 0, 1, 0), TAMIS_ERROR_ARGUMENT, "row_bytes");
    refuses(spec_of(0, 8, INT64_MIN, 1, 0), TAMIS_ERROR_ARGUMENT, "row_bytes");
    refuses(spec_of(0, 8, 68, 0, 0), TAMIS_ERROR_ARGUMENT, "page_alignment");
    refuses(spec_of(0, 8, 68, 1, -1), TAMIS_ERROR_ARGUMENT, "block_stride_alignment");
}

static void refuses_what_leaves_64_bits(void **state) {
    (void)state;
    refuses(spec_of(0, INT64_MAX, 2, 1, 0), TAMIS_ERROR_LENGTH, "states");
    refuses(spec_of(0, INT64_MAX, 1, 576, 0), TAMIS_ERROR_LENGTH, "states"); /* rounding up */
    refuses(spec_of(0, INT64_MAX, 1, 1, 0), TAMIS_ERROR_LENGTH, "states");   /* with specs[0] */
    const tamis_kv_spec coprime[2] = {spec_of(0, 8, 1, 1, INT64_C(4294967291)),
                                      spec_of(0, 8, 1, 1, INT64_C(4294967296))};
    const tamis_kv_spec wide = spec_of(0, 8, 1, 1, INT64_C(1) << 62);
    const tamis_kv_spec full = spec_of(0, INT64_MAX, 1, 1, INT64_C(1) << 40);
    tamis_kv_layout layout;
    tamis_error error;
    tamis_kv_layout_default(&layout);
    assert_int_equal(tamis_kv_lay_out(coprime, 2, NULL, &layout, &error), TAMIS_ERROR_LENGTH);
    assert_string_equal(error.argument, "specs[1].block_stride_alignment");
    assert_int_equal(tamis_kv_lay_out(&wide, 1, NULL, &layout, &error), TAMIS_ERROR_LENGTH);
    assert_string_equal(error.argument, "specs");
    assert_int_equal(tamis_kv_lay_out(&full, 1, NULL, &layout, &error), TAMIS_ERROR_LENGTH);
    assert_string_equal(error.argument, "specs");
}

static void refuses_bad_calls(void **state) {
    (void)state;
    const tamis_kv_spec spec = spec_of(0, 8, 68, 1, 0);
    tamis_kv_layout layout;
    tamis_error error;
    tamis_kv_layout_default(&layout);
    assert_int_equal(tamis_kv_lay_out(&spec, -1, NULL, &layout, &error), TAMIS_ERROR_ARGUMENT);
    assert_string_equal(error.argument, "count");
    assert_int_equal(tamis_kv_lay_out(&spec, TAMIS_KV_MAX_SPECS + 1, NULL, &layout, &error),
                     TAMIS_ERROR_ARGUMENT);
    assert_int_equal(tamis_kv_lay_out(NULL, 1, NULL, &layout, &error), TAMIS_ERROR_ARGUMENT);
    assert_string_equal(error.argument, "specs");
    assert_int_equal(tamis_kv_lay_out(&spec, 1, NULL, NULL, &error), TAMIS_ERROR_ARGUMENT);
    assert_string_equal(error.argument, "layout");
    layout.struct_size = 0;
    assert_int_equal(tamis_kv_lay_out(&spec, 1, NULL, &layout, &error), TAMIS_ERROR_STRUCT_SIZE);
}

static void as_many_specs_as_allowed(void **state) {
    (void)state;
    tamis_kv_spec *specs = malloc(TAMIS_KV_MAX_SPECS * sizeof *specs);
    assert_non_null(specs);
    for (int32_t i = 0; i < TAMIS_KV_MAX_SPECS; i++) {
        specs[i] = spec_of(i % 3, 8, 68, 1, 512);
    }
    tamis_kv_layout layout = lay_out(specs, TAMIS_KV_MAX_SPECS, NULL);
    assert_int_equal(layout.groups, 3);
    assert_int_equal(layout.bytes_unaligned, (TAMIS_KV_MAX_SPECS + 2) / 3 * 544);
    free(specs);
}

/* ---- index specs and merging ------------------------------------------------------- */

static void index_spec(void **state) {
    (void)state;
    tamis_kv_spec spec;
    tamis_error error;
    tamis_kv_spec_default(&spec);
    assert_int_equal(tamis_kv_index_spec(64, 64, 3, 1, &spec, NULL), TAMIS_OK);
    assert_int_equal(spec.states, 64);
    assert_int_equal(spec.row_bytes, 34);
    assert_int_equal(spec.page_alignment, 3);
    assert_int_equal(spec.block_stride_alignment, 1536);
    assert_int_equal(spec.group, 0);
    const tamis_kv_spec before = spec;
    assert_int_equal(tamis_kv_index_spec(64, 96, 3, 1, &spec, &error), TAMIS_ERROR_GEOMETRY);
    assert_string_equal(error.argument, "head_dim");
    assert_int_equal(tamis_kv_index_spec(-1, 64, 3, 1, &spec, &error), TAMIS_ERROR_ARGUMENT);
    assert_string_equal(error.argument, "spec.states");
    assert_int_equal(tamis_kv_index_spec(64, 64, 0, 1, &spec, &error), TAMIS_ERROR_ARGUMENT);
    assert_string_equal(error.argument, "spec.page_alignment");
    assert_int_equal(tamis_kv_index_spec(0, 64, INT64_MAX, 1, &spec, &error), TAMIS_ERROR_LENGTH);
    assert_string_equal(error.argument, "page_alignment");
    assert_int_equal(tamis_kv_index_spec(INT64_MAX / 34, 64, 4096, 0, &spec, &error),
                     TAMIS_ERROR_LENGTH);
    assert_int_equal(tamis_kv_index_spec(64, 64, 3, 1, NULL, &error), TAMIS_ERROR_ARGUMENT);
    assert_memory_equal(&spec, &before, sizeof spec);
    spec.struct_size = 41;
    assert_int_equal(tamis_kv_index_spec(64, 64, 3, 1, &spec, NULL), TAMIS_ERROR_STRUCT_SIZE);
}

static void merging(void **state) {
    (void)state;
    const tamis_kv_spec a = spec_of(3, 8, 68, 576, 4608);
    const struct {
        tamis_kv_spec b;
        const char *field; /* NULL: they merge */
    } cases[] = {
        {spec_of(3, 8, 68, 576, 4608), NULL},
        {spec_of(5, 8, 68, 576, 4608), NULL},
        {spec_of(3, 9, 68, 576, 4608), "b.states"},
        {spec_of(3, 8, 34, 576, 4608), "b.row_bytes"},
        {spec_of(3, 8, 68, 512, 4608), "b.page_alignment"},
        {spec_of(3, 8, 68, 576, 0), "b.block_stride_alignment"},
        {spec_of(3, 8, 68, 576, 512), "b.block_stride_alignment"},
        {spec_of(3, 8, 68, 0, 4608), "b.page_alignment"},
        {spec_of(-3, 8, 68, 576, 4608), "b.group"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tamis_kv_spec merged = spec_of(9, 1, 1, 1, 1);
        tamis_error error = {0};
        tamis_status status = tamis_kv_merge(&a, &cases[i].b, &merged, &error);
        if (cases[i].field) {
            assert_int_equal(status, TAMIS_ERROR_ARGUMENT);
            assert_string_equal(error.argument, cases[i].field);
            assert_int_equal(merged.group, 9);
        } else {
            assert_int_equal(status, TAMIS_OK);
            assert_memory_equal(&merged, &a, sizeof a);
        }
    }
}

static void merging_refuses_bad_calls(void **state) {
    (void)state;
    tamis_kv_spec a = spec_of(0, 8, 68, 1, 0), b = a;
    assert_int_equal(tamis_kv_merge(NULL, &b, &a, NULL), TAMIS_ERROR_ARGUMENT);
    assert_int_equal(tamis_kv_merge(&a, NULL, &a, NULL), TAMIS_ERROR_ARGUMENT);
    assert_int_equal(tamis_kv_merge(&a, &b, NULL, NULL), TAMIS_ERROR_ARGUMENT);
    assert_int_equal(tamis_kv_merge(&a, &b, &a, NULL), TAMIS_OK); /* onto an input */
    b.struct_size = 8;
    assert_int_equal(tamis_kv_merge(&a, &b, &a, NULL), TAMIS_ERROR_STRUCT_SIZE);
    assert_int_equal(tamis_kv_merge(&a, &a, &b, NULL), TAMIS_ERROR_STRUCT_SIZE);
}

/* ---- advice ------------------------------------------------------------------------ */

static void states_for_no_overhead(void **state) {
    (void)state;
    assert_int_equal(tamis_kv_states_without_overhead(1, 68, 512), 128);
    assert_int_equal(tamis_kv_states_without_overhead(128, 68, 512), 128);
    assert_int_equal(tamis_kv_states_without_overhead(129, 68, 512), 256);
    assert_int_equal(tamis_kv_states_without_overhead(1, 34, 512), 256);
    assert_int_equal(tamis_kv_states_without_overhead(1, 68, 4608), 1152);
    assert_int_equal(tamis_kv_states_without_overhead(5, 68, 1), 8);
    assert_int_equal(tamis_kv_states_without_overhead(INT64_C(1) << 40, 68, 512), INT64_C(1) << 40);
    assert_int_equal(tamis_kv_states_without_overhead(0, 68, 512), -1);
    assert_int_equal(tamis_kv_states_without_overhead(1, 0, 512), -1);
    assert_int_equal(tamis_kv_states_without_overhead(1, 68, 0), -1);
    assert_int_equal(tamis_kv_states_without_overhead(INT64_MAX, 68, 512), -1);
    assert_int_equal(tamis_kv_states_without_overhead(1, 1, INT64_MAX), -1);
    assert_int_equal(tamis_kv_states_without_overhead(1, INT64_MAX - 1, 512), -1);
    for (int64_t states = 1; states < 300; states++) { /* by trying each */
        int64_t least = states;
        while (least % 8 || least * 68 % 96) {
            least++;
        }
        assert_int_equal(tamis_kv_states_without_overhead(states, 68, 96), least);
    }
}

/* ---- random layouts ---------------------------------------------------------------- */

__extension__ typedef unsigned __int128 wide;

static uint64_t draw(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void random_layouts(void **state) {
    (void)state;
    uint64_t seed = 0x9E3779B97F4A7C15;
    for (int round = 0; round < 2000; round++) {
        tamis_kv_spec specs[12];
        int64_t offsets[12];
        int32_t count = 1 + (int32_t)(draw(&seed) % 12);
        int bits = (int)(draw(&seed) % 40);
        for (int32_t i = 0; i < count; i++) {
            specs[i] = spec_of((int32_t)(draw(&seed) % 3), (int64_t)(draw(&seed) >> (63 - bits)),
                               1 + (int64_t)(draw(&seed) % 1000), 1 + (int64_t)(draw(&seed) % 600),
                               (int64_t)(draw(&seed) % 4) * 96);
        }
        tamis_kv_layout layout = lay_out(specs, count, offsets);
        wide largest = 0;
        int32_t groups = 0;
        for (int32_t group = 0; group < 3; group++) {
            wide sum = 0;
            int seen = 0;
            for (int32_t i = 0; i < count; i++) {
                if (specs[i].group == group) {
                    wide align = (wide)specs[i].page_alignment;
                    assert_true((wide)offsets[i] == sum);
                    sum += ((wide)specs[i].states * (wide)specs[i].row_bytes + align - 1) / align *
                           align;
                    seen = 1;
                }
            }
            groups += seen;
            largest = sum > largest ? sum : largest;
        }
        int64_t alignment = 1; /* the least multiple of all, found by counting up */
        for (int32_t i = 0; i < count; i++) {
            if (specs[i].block_stride_alignment && alignment % specs[i].block_stride_alignment) {
                alignment++;
                i = -1;
            }
        }
        wide block = (largest + (wide)alignment - 1) / (wide)alignment * (wide)alignment;
        assert_int_equal(layout.groups, groups);
        assert_true((wide)layout.bytes_unaligned == largest);
        assert_int_equal(layout.alignment, alignment);
        assert_true((wide)layout.bytes_per_block == block);
        wide ppm = largest ? ((block - largest) * 2000000 + largest) / (2 * largest) : 0;
        assert_true((wide)layout.overhead_ppm == ppm);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vector_256_states),
        cmocka_unit_test(vector_128_states),
        cmocka_unit_test(vector_without_overhead),
        cmocka_unit_test(switch_off_changes_nothing),
        cmocka_unit_test(groups_alias_from_byte_0),
        cmocka_unit_test(nothing_to_store),
        cmocka_unit_test(blocks_of_memory),
        cmocka_unit_test(terabytes),
        cmocka_unit_test(refuses_bad_specs),
        cmocka_unit_test(refuses_what_leaves_64_bits),
        cmocka_unit_test(refuses_bad_calls),
        cmocka_unit_test(as_many_specs_as_allowed),
        cmocka_unit_test(index_spec),
        cmocka_unit_test(merging),
        cmocka_unit_test(merging_refuses_bad_calls),
        cmocka_unit_test(states_for_no_overhead),
        cmocka_unit_test(random_layouts),
    };
    return cmocka_run_group_tests_name("config.kv", tests, NULL, NULL);
}
