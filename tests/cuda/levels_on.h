/* SPDX-License-Identifier: MIT */
/* levels_on.h: the two levels' calls as trials that a mirror takes to the GPU. */
#ifndef TAMIS_TESTS_CUDA_LEVELS_ON_H
#define TAMIS_TESTS_CUDA_LEVELS_ON_H

#include "device.h"
#include "levels.h"

/* The released sizes. */
extern const level flash;

void source_trial(trial *t, const scene *s, level l, const placement *where);
void consume_trial(trial *t, const scene *s, level l, block_lists lists, const placement *where);
void dense_trial(trial *t, const scene *s, level l, block_lists lists, const placement *where);

/* One request, rows that see lengths[i] of its context. The same numbers for the same seed. */
void rows_of(scene *s, int hazard, int64_t context, const int64_t *lengths, int64_t rows,
             uint64_t seed);

#endif
