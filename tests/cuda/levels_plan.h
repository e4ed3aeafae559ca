/* SPDX-License-Identifier: MIT */
/* levels_plan.h: trials of the two levels run as layers of a device plan. */
#ifndef TAMIS_TESTS_CUDA_LEVELS_PLAN_H
#define TAMIS_TESTS_CUDA_LEVELS_PLAN_H

#include "device.h"

/*
 * Runs a trial as a layer of a plan of its own, every row a request with one new token; turns go
 * through calls and captured graphs, and a consumer's through the modes of its route. 0, and
 * nothing done, when no plan takes it: rows of pages that start behind 0, lists that no source
 * publishes, sizes that an indexer refuses.
 */
int plan_trial(const test_device *device, const trial *t, int turn);

#endif
