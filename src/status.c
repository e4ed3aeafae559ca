/* SPDX-License-Identifier: MIT */
/* status.c: texts of errors. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <tamis/tamis.h>

#include "fail.h"

const char *tamis_status_text(tamis_status status) {
    switch (status) {
#define TAMIS_STATUS_CASE(name, code, text)                                                        \
    case code:                                                                                     \
        return text;
        TAMIS_STATUS_LIST(TAMIS_STATUS_CASE)
#undef TAMIS_STATUS_CASE
    default:
        return "unknown status";
    }
}

int32_t tamis_error_text(const tamis_error *error, char *text, int64_t size) {
    return (int32_t)snprintf(text, size > 0 ? (size_t)size : 0, "%s: required %s, found %s (%s)",
                             error->argument, error->required, error->found,
                             tamis_status_text(error->status));
}

tamis_status tamis_fail(tamis_error *error, tamis_status status, const char *argument,
                        const char *required, const char *found, ...) {
    va_list list;
    if (error) {
        error->status = status;
        snprintf(error->argument, sizeof error->argument, "%s", argument);
        snprintf(error->required, sizeof error->required, "%s", required);
        va_start(list, found);
        vsnprintf(error->found, sizeof error->found, found, list);
        va_end(list);
    }
    return status;
}

#define TAMIS_TEXT(x)  #x
#define TAMIS_VALUE(x) TAMIS_TEXT(x)

const char *tamis_version(void) {
    return TAMIS_VALUE(TAMIS_VERSION_MAJOR) "." TAMIS_VALUE(TAMIS_VERSION_MINOR) "." TAMIS_VALUE(
        TAMIS_VERSION_PATCH);
}

int32_t tamis_abi_version(void) {
    return TAMIS_ABI_VERSION;
}
