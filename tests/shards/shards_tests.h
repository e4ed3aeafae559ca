/* SPDX-License-Identifier: MIT */
/* shards_tests.h: the tests of tests.inc. */
#ifndef TAMIS_TESTS_SHARDS_TESTS_H
#define TAMIS_TESTS_SHARDS_TESTS_H

#include "group.h"

#define SHARDS(name)          void shards_##name(void **state);
#define PITFALL(number, name) void pitfall_##number##_##name(void **state);
#include "tests.inc"
#undef SHARDS
#undef PITFALL

#endif
