/* SPDX-License-Identifier: MIT */
/* shard_stages.h: the stages of a rank on arguments that were checked: slice ith of nth, no errors.
 */
#ifndef TAMIS_SRC_SHARD_STAGES_H
#define TAMIS_SRC_SHARD_STAGES_H

#include "kernels/kernels.h"

#define TAMIS_SHARD_STAGE(name)                                                                    \
    tamis_status tamis_check_##name(const tamis_##name##_args *args, tamis_error *error);          \
    void tamis_##name##_rows(const tamis_kernels *kernels, const tamis_##name##_args *args,        \
                             int32_t ith, int32_t nth);
TAMIS_SHARD_STAGE_LIST(TAMIS_SHARD_STAGE)
#undef TAMIS_SHARD_STAGE

#endif
