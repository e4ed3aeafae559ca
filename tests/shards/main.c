/* SPDX-License-Identifier: MIT */
/* main.c: runs the test of tests.inc that is named. */
#include "shards_tests.h"

static const struct {
    const char *name;
    CMUnitTestFunction run;
} tests[] = {
#define SHARDS(name)          {#name, shards_##name},
#define PITFALL(number, name) {#number "_" #name, pitfall_##number##_##name},
#include "tests.inc"
#undef SHARDS
#undef PITFALL
};

static int after(void **state) {
    (void)state;
    release();
    return 0;
}

int main(int argc, char **argv) {
    for (int i = 0; i < COUNT(tests) && argc == 2; i++) {
        if (strcmp(argv[1], tests[i].name) == 0) {
            const struct CMUnitTest one[] = {
                {tests[i].name, tests[i].run, NULL, after, NULL},
            };
            return cmocka_run_group_tests(one, NULL, NULL);
        }
    }
    fprintf(stderr, "usage: %s NAME, one of tests.inc\n", argv[0]);
    return 2;
}
