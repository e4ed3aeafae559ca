/* SPDX-License-Identifier: MIT */
/* fail.h: how a check reports. Every check returns a status and fills the error on its way out. */
#ifndef TAMIS_SRC_FAIL_H
#define TAMIS_SRC_FAIL_H

#include <tamis/status.h>

/* Fills error (may be NULL) and returns status. `found` is a printf format. */
tamis_status tamis_fail(tamis_error *error, tamis_status status, const char *argument,
                        const char *required, const char *found, ...)
    __attribute__((format(printf, 5, 6)));

#define TAMIS_TRY(call)                                                                            \
    do {                                                                                           \
        tamis_status try_status = (call);                                                          \
        if (try_status != TAMIS_OK) {                                                              \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

/* Fails with the text of an integer when a condition does not hold. */
#define TAMIS_NEED(condition, status, argument, required, value)                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return tamis_fail(error, status, argument, required, "%lld", (long long)(value));      \
        }                                                                                          \
    } while (0)

#endif
