/* SPDX-License-Identifier: MIT */
/* require.c: failures, skips and the fault handler of the tests. */
#include "require.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char context[512] = "(nothing yet)";

void test_context(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(context, sizeof context, format, list);
    va_end(list);
}

static void say(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        _exit(1);
}

static void on_fault(int number) {
    say(number == SIGFPE ? "FAILED: floating-point trap during: "
                         : "FAILED: memory fault (guard page or read-only input) during: ");
    say(context);
    say("\n");
    _exit(1);
}

void test_catch_faults(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_fault;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGFPE, &action, NULL);
}

void test_fail(const char *file, int line, const char *format, ...) {
    va_list list;
    fprintf(stderr, "FAILED: %s:%d: ", file, line);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n  during: %s\n", context);
    exit(1);
}

void test_skip(const char *format, ...) {
    va_list list;
    printf("SKIPPED: ");
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    exit(TEST_SKIPPED);
}
