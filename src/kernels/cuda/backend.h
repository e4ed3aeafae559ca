/* SPDX-License-Identifier: MIT */
/* backend.h: what a tamis_cuda holds, and how its kernels are launched. */
#ifndef TAMIS_CUDA_BACKEND_H
#define TAMIS_CUDA_BACKEND_H

#include <tamis/tamis.h>

#include "kernels/cuda/consume_args.h"
#include "kernels/cuda/driver.h"

enum {
#define TAMIS_CUDA_KERNEL(name, threads, shared) TAMIS_CUDA_##name,
#include "kernels/cuda/kernels.inc"
#undef TAMIS_CUDA_KERNEL
    TAMIS_CUDA_KERNEL_COUNT
};

struct tamis_cuda {
    tamis_driver driver;
    tamis_cu_handle context, module;
    tamis_cu_handle kernels[TAMIS_CUDA_KERNEL_COUNT];
    int32_t device;          /* its primary context is retained; -1: the context is the caller's */
    int32_t multiprocessors; /* of the context's device */
    int32_t early;           /* whether kernels may be launched before the one before ends */
    int32_t *result; /* of the last driver call that failed; stages of many threads write it */
};

extern const void *const tamis_cuda_image; /* the fat binary, or NULL */
extern const int32_t tamis_cuda_toolkit;   /* CUDA version of its compiler, or 0 */

/* Whether the kernels run on devices of this compute capability. */
int tamis_cuda_runs_on(int major);

/* Remembers a failed result and reports it as TAMIS_ERROR_CUDA of the call `what`. */
tamis_status tamis_cuda_checked(const tamis_cuda *cuda, tamis_cu_result result, const char *what,
                                tamis_error *error);

#endif
