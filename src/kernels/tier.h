/* SPDX-License-Identifier: MIT */
/* tier.h: which tiers this build has, which of them this machine runs, and their kernels. */
#ifndef TAMIS_KERNELS_TIER_H
#define TAMIS_KERNELS_TIER_H

#include "kernels/kernels.h"

enum { /* the ladder, lowest first */
       TAMIS_TIER_ref = 0,
       TAMIS_TIER_avx2,
       TAMIS_TIER_COUNT
};

const char *tamis_tier_word(int tier);
int tamis_tier_supported(int tier);

/* The best tier that this machine runs. */
int tamis_tier_best(void);

/* The tier of a name ("auto" and NULL: the best), or -1 when this build has none of that name. */
int tamis_tier_find(const char *name);

/* Fills the table: each rung overwrites the kernels that it has. */
void tamis_kernels_fill(tamis_kernels *kernels, int tier);

#endif
