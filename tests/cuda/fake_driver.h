/* SPDX-License-Identifier: MIT */
/* fake_driver.h: what the fake driver pretends, and what it saw. */
#ifndef TAMIS_TESTS_CUDA_FAKE_DRIVER_H
#define TAMIS_TESTS_CUDA_FAKE_DRIVER_H

#include "kernels/cuda/driver.h"

typedef struct fake_machine {
    int version, devices, major, context; /* answers; context 0: none is current */
    tamis_cu_result init, module_load;    /* results */
    int loaded, unloaded, launches;       /* calls */
    void *stream;                         /* of the last launch */
    unsigned grid_x, grid_y, shared;
    tamis_cu_handle watched;         /* a kernel */
    int seen;                        /* launches of it */
    void (*look)(void **parameters); /* at each of those, or NULL */
    int early;                       /* launches that did not wait for the kernel before */
} fake_machine;

/* The one machine there is; tests find it by dlsym. */
fake_machine *fake_machine_get(void);

#endif
