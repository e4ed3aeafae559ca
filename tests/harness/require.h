/* SPDX-License-Identifier: MIT */
/*
 * require.h: how a test fails. Every test is a process of its own, so that the first failure ends
 * it: one line with the place, the values and what was being tried. A hit guard page reports the
 * same way, from a signal handler.
 */
#ifndef TAMIS_TESTS_REQUIRE_H
#define TAMIS_TESTS_REQUIRE_H

enum { TEST_SKIPPED = 77 }; /* SKIP_RETURN_CODE of every entry */

/* What is being tried; printed by every failure. */
void test_context(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports faults in memory (guard pages, sealed inputs) as failures. */
void test_catch_faults(void);
/* Prints and exits 1. */
void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
/* Prints the reason on a line of its own and exits with TEST_SKIPPED. */
void test_skip(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition))                                                                          \
            test_fail(__FILE__, __LINE__, __VA_ARGS__);                                            \
    } while (0)

/* A call that has to succeed; `error` is the tamis_error it was given. */
#define REQUIRE_OK(status, error)                                                                  \
    REQUIRE((status) == TAMIS_OK, "status %d: %s: required %s, found %s", (int)(status),           \
            (error).argument, (error).required, (error).found)

#endif
