/* SPDX-License-Identifier: MIT */
/* requirements.c: the table of requirements, walked once in its order, and the text of a failure.
 */
#include "config/requirements.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct requirement {
    const char *id, *setting, *required, *way_out;
    uint64_t needs; /* bits of the rows that must hold */
    int (*holds)(const tamis_subject *s, tamis_requirement *out);
} requirement;

enum {
#define REQUIREMENT(name, id, setting, needs, required, way_out) ROW_##name,
#include "config/requirements.inc"
#undef REQUIREMENT
    ROW_COUNT
};
_Static_assert(ROW_COUNT <= 64, "a row has one bit");

#define AFTER(name) (UINT64_C(1) << ROW_##name)
static const requirement table[] = {
#define REQUIREMENT(name, id, setting, needs, required, way_out)                                   \
    {id, setting, required, way_out, needs, tamis_require_##name},
#include "config/requirements.inc"
#undef REQUIREMENT
};

int tamis_found_number(tamis_requirement *out, int64_t found, int holds) {
    snprintf(out->found, sizeof out->found, "%lld", (long long)found);
    return holds;
}

/* Strings come from files and command lines: quoted, with what would break the line as '?'. */
int tamis_found_text(tamis_requirement *out, const char *found, int holds) {
    size_t n = 0, most = sizeof out->found - 3; /* two quotes and the NUL */
    if (found == NULL) {
        snprintf(out->found, sizeof out->found, "NULL");
        return holds;
    }
    out->found[0] = '"';
    for (; found[n] && n < most; n++) {
        unsigned char c = (unsigned char)found[n];
        out->found[1 + n] = (char)(c >= 0x20 && c < 0x7f && c != '"' ? c : '?');
    }
    memcpy(out->found + 1 + n, "\"", 2);
    return holds;
}

void tamis_at_setting(tamis_requirement *out, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(out->setting, sizeof out->setting, format, list);
    va_end(list);
}

int32_t tamis_indexer_supported(const tamis_indexer_options *options, tamis_requirement *failures,
                                int32_t capacity) {
    static const tamis_plan_limits least = {.struct_size = sizeof least,
                                            .max_requests = 1,
                                            .max_batched_tokens = 1,
                                            .threads = 1,
                                            .max_context = 1};
    tamis_subject subject = {.options = options};
    uint64_t held = 0;
    int32_t failed = 0;
    if (options && options->struct_size == sizeof *options) {
        subject.model = options->model;
        subject.settings = options->settings;
        subject.limits = options->limits ? options->limits : &least;
    }
    for (int32_t i = 0; i < ROW_COUNT; i++) {
        const requirement *row = &table[i];
        tamis_requirement out = {.found = ""};
        if ((held & row->needs) != row->needs) {
            continue;
        }
        snprintf(out.id, sizeof out.id, "%s", row->id);
        snprintf(out.setting, sizeof out.setting, "%s", row->setting);
        snprintf(out.required, sizeof out.required, "%s", row->required);
        snprintf(out.way_out, sizeof out.way_out, "%s", row->way_out);
        if (row->holds(&subject, &out)) {
            held |= UINT64_C(1) << i;
        } else if (failed++ < capacity && failures) {
            failures[failed - 1] = out;
        }
    }
    return failed;
}

int32_t tamis_requirement_text(const tamis_requirement *failure, char *text, int64_t size) {
    return (int32_t)snprintf(text, size > 0 ? (size_t)size : 0, "%s %s: required %s, found %s; %s",
                             failure->id, failure->setting, failure->required, failure->found,
                             failure->way_out);
}

int32_t tamis_requirement_count(void) {
    return ROW_COUNT;
}

const char *tamis_requirement_id(int32_t i) {
    return i >= 0 && i < ROW_COUNT ? table[i].id : NULL;
}
