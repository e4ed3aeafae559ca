/* SPDX-License-Identifier: MIT */
/* fake_defaults.c: every entry of the driver that succeeds and does nothing, unless fake_driver.c
 * has one that does more. */
#include "kernels/cuda/driver.h"

#define DEFAULT_ENTRY(field, symbol, arguments)                                                    \
    __attribute__((weak)) tamis_cu_result symbol arguments;                                        \
    __attribute__((weak)) tamis_cu_result symbol arguments {                                       \
        return TAMIS_CU_SUCCESS;                                                                   \
    }
TAMIS_DRIVER_LIST(DEFAULT_ENTRY)
TAMIS_DRIVER_OPTIONAL_LIST(DEFAULT_ENTRY)
