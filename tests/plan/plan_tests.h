/* SPDX-License-Identifier: MIT */
/* plan_tests.h: the tests of tests.inc. */
#ifndef TAMIS_TESTS_PLAN_TESTS_H
#define TAMIS_TESTS_PLAN_TESTS_H

#include "layers.h"

#define PLAN(name)            void plan_##name(void **state);
#define PITFALL(number, name) void pitfall_##number##_##name(void **state);
#include "tests.inc"
#undef PLAN
#undef PITFALL

#endif
