/* SPDX-License-Identifier: MIT */
/* check.h: what a call's arguments must be, one function for each stage. */
#ifndef TAMIS_KERNELS_CHECK_H
#define TAMIS_KERNELS_CHECK_H

#include "kernels/kernels.h"

/*
 * Checks the arguments of a call cut into nth slices. `judging` allows the numerics classes that
 * only judge other engines. workspace_bytes of source, dense and consume are checked by their
 * callers, who know the form (whole or split).
 */
#define TAMIS_CHECK_DECLARE(name)                                                                  \
    tamis_status tamis_check_##name(const tamis_##name##_args *args, int judging,                  \
                                    tamis_error *error);
TAMIS_STAGE_LIST(TAMIS_CHECK_DECLARE)
#undef TAMIS_CHECK_DECLARE

tamis_status tamis_check_workspace(const void *workspace, int64_t bytes, int64_t needed,
                                   tamis_error *error);

#endif
