/* SPDX-License-Identifier: MIT */
/* suite.h: a program of named tests, each run on every tier of this machine. */
#ifndef TAMIS_TESTS_SUITE_H
#define TAMIS_TESTS_SUITE_H

#include <tamis/tamis.h>

typedef struct suite_test {
    const char *name;
    void (*run)(const tamis_backend *backend);
} suite_test;

/* PROGRAM NAME runs one test for every supported tier and prints which ones ran. */
int suite_main(int argc, char **argv, const suite_test *tests, int count);

#endif
