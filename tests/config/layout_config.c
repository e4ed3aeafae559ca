/* SPDX-License-Identifier: MIT */
/* layout_config.c: sizes and offsets of the structs of kv.h and of the
 * settings and requirements of indexer.h, as foreign-function bindings mirror
 * them on 64-bit machines, and that their defaults leave no byte unset. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <tamis/indexer.h>
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

SIZE(tamis_settings, 40)
AT(tamis_settings, struct_size, 0)
AT(tamis_settings, indexer_sparse_logits, 4)
AT(tamis_settings, prefill_budget_mb, 8)
AT(tamis_settings, reserved, 12)
AT(tamis_settings, indexer_kv_dtype, 16)
AT(tamis_settings, topk_backend, 24)
AT(tamis_settings, numerics, 32)

SIZE(tamis_requirement, 448)
AT(tamis_requirement, id, 0)
AT(tamis_requirement, setting, 32)
AT(tamis_requirement, required, 96)
AT(tamis_requirement, found, 224)
AT(tamis_requirement, way_out, 320)
/* clang-format on */

int main(void) {
    tamis_kv_spec spec;
    tamis_kv_layout layout;
    tamis_settings settings;
    const tamis_kv_spec spec_expected = {.struct_size = sizeof spec, .page_alignment = 1};
    const tamis_kv_layout layout_expected = {.struct_size = sizeof layout};
    memset(&spec, 0xA5, sizeof spec);
    memset(&layout, 0xA5, sizeof layout);
    memset(&settings, 0xA5, sizeof settings);
    tamis_kv_spec_default(&spec);
    tamis_kv_layout_default(&layout);
    tamis_settings_default(&settings);
    int wrong =
        memcmp(&spec, &spec_expected, sizeof spec) != 0 ||
        memcmp(&layout, &layout_expected, sizeof layout) != 0 ||
        settings.struct_size != sizeof settings || settings.reserved != 0 ||
        settings.indexer_sparse_logits != TAMIS_SPARSE_OFF || settings.prefill_budget_mb != 512 ||
        strcmp(settings.indexer_kv_dtype, "mxfp4") != 0 ||
        strcmp(settings.topk_backend, "auto") != 0 || strcmp(settings.numerics, "exact") != 0;
    if (wrong) {
        fprintf(stderr, "FAILED: a default is not as its header promises\n");
    }
    return wrong;
}
