/* SPDX-License-Identifier: MIT */
/* requirements.h: what the tests of requirements.inc are given, and how they say what they found.
 */
#ifndef TAMIS_CONFIG_REQUIREMENTS_H
#define TAMIS_CONFIG_REQUIREMENTS_H

#include <tamis/indexer.h>

/* What is judged. A pointer may be followed when the fact of its requirement is known. */
typedef struct tamis_subject {
    const tamis_indexer_options *options;
    const tamis_model *model;
    const tamis_settings *settings;
    const tamis_plan_limits *limits; /* the least ones where options have none */
} tamis_subject;

/* Each writes `found` and returns whether the requirement holds; the row has filled in the rest. */
#define REQUIREMENT(name, id, setting, needs, required, way_out)                                   \
    int tamis_require_##name(const tamis_subject *s, tamis_requirement *out);
#include "config/requirements.inc"
#undef REQUIREMENT

/* Writes what was found, printable and on one line, and returns `holds`. */
int tamis_found_number(tamis_requirement *out, int64_t found, int holds);
int tamis_found_text(tamis_requirement *out, const char *found, int holds); /* NULL is shown so */

/* The setting at fault, where the row knows only its kind: "compress_ratios[7]". */
void tamis_at_setting(tamis_requirement *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
