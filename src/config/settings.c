/* SPDX-License-Identifier: MIT */
/* settings.c: the attention config's defaults (spec 7.1). */
#include <string.h>

#include <tamis/indexer.h>

void tamis_settings_default(tamis_settings *settings) {
    memset(settings, 0, sizeof *settings);
    settings->struct_size = (uint32_t)sizeof *settings;
    settings->indexer_sparse_logits = TAMIS_SPARSE_OFF;
    settings->prefill_budget_mb = 512;
    settings->indexer_kv_dtype = "mxfp4";
    settings->topk_backend = "auto";
    settings->numerics = "exact";
}
