/* SPDX-License-Identifier: MIT */
/* check.h: what a call's arguments must be, one function for each stage. */
#ifndef TAMIS_KERNELS_CHECK_H
#define TAMIS_KERNELS_CHECK_H

#include "kernels/kernels.h"

enum {
    TAMIS_CHECK_JUDGING = 1, /* allows the numerics classes that only judge other engines */
    TAMIS_CHECK_DEVICE = 2   /* pointers are a device's: nothing behind them is read. What an array
                                would have shown, kernels clamp to the widths that strides give */
};

/*
 * Checks the arguments of a call; flags are TAMIS_CHECK_*. workspace_bytes of source, dense and
 * consume are checked by their callers, who know the form (whole or split).
 */
#define TAMIS_CHECK_DECLARE(name)                                                                  \
    tamis_status tamis_check_##name(const tamis_##name##_args *args, int flags, tamis_error *error);
TAMIS_STAGE_LIST(TAMIS_CHECK_DECLARE)
#undef TAMIS_CHECK_DECLARE

tamis_status tamis_check_workspace(const void *workspace, int64_t bytes, int64_t needed,
                                   tamis_error *error);

#endif
