/* SPDX-License-Identifier: MIT */
/* layout_config.c: the defaults of kv.h and of settings leave no byte unset. Sizes and offsets are
 * asserted in tests/abi/layout.c. */
#include <stdio.h>
#include <string.h>

#include <tamis/indexer.h>
#include <tamis/kv.h>

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
