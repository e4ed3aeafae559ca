/* SPDX-License-Identifier: MIT */
/*
 * counting.h: how often a stretch of code called the allocator. The program that links it has its
 * allocator interposed; sanitizers interpose it themselves, and then nothing is counted.
 */
#ifndef TAMIS_TESTS_COUNTING_H
#define TAMIS_TESTS_COUNTING_H

#include <stdint.h>

void counting_begin(void);
void counting_end(void);
void counting_reset(void);
int64_t counting_calls(void);
/* Allocates once; 1 when that was counted. */
int counting_works(void);

#endif
