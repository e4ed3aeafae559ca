/* SPDX-License-Identifier: MIT */
/*
 * config_file.h: a model's config.json and an attention config, as an engine is started with.
 *
 * Readers here refuse what cannot be read: wrong types, numbers that are no count, keys twice,
 * unknown keys of an attention config. What can be read but cannot run is kept as it is, strings
 * too, for tamis_indexer_supported to report together. The one error names the key ("file" for the
 * file itself); the caller, who has the path, says which file. On an error *out is zeroed.
 */
#ifndef TAMIS_IO_CONFIG_FILE_H
#define TAMIS_IO_CONFIG_FILE_H

#include <tamis/indexer.h>

#include "trace.h"

/* ---- config.json ----------------------------------------------------------------------------- */

/*
 * The keys of spec 1, at the top level or in text_config; where both have one, they agree. Unknown
 * keys are ignored and null is absent. A candidate key that is absent is -1 (the source) or 0: with
 * all three absent the model is one-level. num_hidden_layers may be less than the entries of
 * compress_ratios, which has those of draft layers too. Free with tamis_model_file_free.
 */
tamis_status tamis_config_from_json(const char *json, tamis_model_file *out, tamis_error *error);
tamis_status tamis_config_read(const char *path, tamis_model_file *out, tamis_error *error);

/* ---- attention config ------------------------------------------------------------------------ */

/* Settings with the strings they point to. */
typedef struct tamis_settings_file {
    tamis_settings settings;
    char *strings[3]; /* those that were given */
} tamis_settings_file;

/*
 * The keys of spec 7.1, all optional:
 *   indexer_kv_dtype       string
 *   indexer_sparse_logits  true, false or "auto"
 *   topk_backend           string
 *   prefill_budget_mb      integer of 32 bits
 *   numerics               string
 */
tamis_status tamis_settings_from_json(const char *json, tamis_settings_file *out,
                                      tamis_error *error);
tamis_status tamis_settings_read(const char *path, tamis_settings_file *out, tamis_error *error);
void tamis_settings_file_free(tamis_settings_file *s); /* zeroed is fine */

#endif
