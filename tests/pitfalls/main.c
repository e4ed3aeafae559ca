/* SPDX-License-Identifier: MIT */
/* main.c: runs one pitfall on every tier. */
#include "pitfalls.h"
#include "suite.h"

static const suite_test tests[] = {
#define PITFALL(number, words) {#number "_" #words, pitfall_##number##_##words},
#include "pitfalls.inc"
#undef PITFALL
};

int main(int argc, char **argv) {
    return suite_main(argc, argv, tests, (int)(sizeof tests / sizeof *tests));
}
