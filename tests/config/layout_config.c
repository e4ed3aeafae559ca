/* SPDX-License-Identifier: MIT */
/* layout_config.c: sizes and offsets of the structs of kv.h, as foreign-function bindings mirror
 * them on 64-bit machines, and that their defaults leave no byte unset. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <tamis/kv.h>

#define SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type " has another size");
#define AT(type, field, offset)                                                                    \
    static_assert(offsetof(type, field) == (offset), #type "." #field " has moved");

/* clang-format off */
SIZE(tamis_kv_spec, 40)
AT(tamis_kv_spec, struct_size, 0)
AT(tamis_kv_spec, group, 4)
AT(tamis_kv_spec, states, 8)
AT(tamis_kv_spec, row_bytes, 16)
AT(tamis_kv_spec, page_alignment, 24)
AT(tamis_kv_spec, block_stride_alignment, 32)

SIZE(tamis_kv_layout, 40)
AT(tamis_kv_layout, struct_size, 0)
AT(tamis_kv_layout, groups, 4)
AT(tamis_kv_layout, bytes_unaligned, 8)
AT(tamis_kv_layout, alignment, 16)
AT(tamis_kv_layout, bytes_per_block, 24)
AT(tamis_kv_layout, overhead_ppm, 32)
/* clang-format on */

int main(void) {
    tamis_kv_spec spec;
    tamis_kv_layout layout;
    const tamis_kv_spec spec_expected = {.struct_size = sizeof spec, .page_alignment = 1};
    const tamis_kv_layout layout_expected = {.struct_size = sizeof layout};
    memset(&spec, 0xA5, sizeof spec);
    memset(&layout, 0xA5, sizeof layout);
    tamis_kv_spec_default(&spec);
    tamis_kv_layout_default(&layout);
    int wrong = memcmp(&spec, &spec_expected, sizeof spec) != 0 ||
                memcmp(&layout, &layout_expected, sizeof layout) != 0;
    if (wrong) {
        fprintf(stderr, "FAILED: a default is not as kv.h promises\n");
    }
    return wrong;
}
