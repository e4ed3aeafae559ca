/* SPDX-License-Identifier: MIT */
/* lengths.h: the context lengths at which selections are known to go wrong. */
#ifndef TAMIS_TESTS_LENGTHS_H
#define TAMIS_TESTS_LENGTHS_H

#include <stdint.h>

/* Around nothing, a block, the top-k, and the pool of 2,048 blocks of 8. */
static const int64_t edge_lengths[] = {0, 1, 7, 8, 9, 511, 512, 513, 16376, 16377, 16384, 16385};
enum { EDGE_LENGTHS = sizeof edge_lengths / sizeof *edge_lengths };

#endif
