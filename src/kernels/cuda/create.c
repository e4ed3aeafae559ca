/* SPDX-License-Identifier: MIT */
/*
 * create.c: a tamis_cuda made, with every kernel loaded. The driver loads kernels when they are
 * first used unless it is made to before; a capture must not be that first use.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "kernels/cuda/backend.h"

enum { NO_DEVICE = -1 };

static const struct {
    const char *name;
    int shared;
} kernel_list[TAMIS_CUDA_KERNEL_COUNT] = {
#define TAMIS_CUDA_KERNEL(name, threads, shared) {"tamis_" #name, shared},
#include "kernels/cuda/kernels.inc"
#undef TAMIS_CUDA_KERNEL
};

tamis_status tamis_cuda_checked(const tamis_cuda *cuda, tamis_cu_result result, const char *what,
                                tamis_error *error) {
    if (result == TAMIS_CU_SUCCESS) {
        return TAMIS_OK;
    }
    __atomic_store_n(cuda->result, result, __ATOMIC_RELAXED);
    return tamis_fail(
        error, result == TAMIS_CU_ERROR_OUT_OF_MEMORY ? TAMIS_ERROR_MEMORY : TAMIS_ERROR_CUDA, what,
        "CUDA_SUCCESS", "%s (%d)", tamis_driver_result_name(&cuda->driver, result), result);
}

int32_t tamis_cuda_result(const tamis_cuda *cuda) {
    return __atomic_load_n(cuda->result, __ATOMIC_RELAXED);
}

const char *tamis_cuda_result_text(const tamis_cuda *cuda, int32_t result) {
    return tamis_driver_result_name(&cuda->driver, result);
}

/* Kernels run on drivers of their compiler's major version and later ones. */
static tamis_status check_driver(tamis_cuda *cuda, tamis_error *error) {
    int found = 0;
    char required[64];
    const char *missing = tamis_driver_open(&cuda->driver);
    if (missing) {
        return tamis_fail(error, TAMIS_ERROR_TIER, "driver", "an NVIDIA driver", "no %s", missing);
    }
    cuda->driver.driver_version(&found);
    if (found / 1000 < tamis_cuda_toolkit / 1000) {
        snprintf(required, sizeof required, "one that runs CUDA %d.0 or later",
                 tamis_cuda_toolkit / 1000);
        return tamis_fail(error, TAMIS_ERROR_TIER, "driver", required, "one that runs CUDA %d.%d",
                          found / 1000, found % 1000 / 10);
    }
    return TAMIS_OK;
}

static tamis_status check_device_count(tamis_cuda *cuda, int32_t device, tamis_error *error) {
    int count = 0;
    tamis_cu_result result = cuda->driver.init(0);
    if (result == TAMIS_CU_SUCCESS) {
        result = cuda->driver.device_count(&count);
    }
    if (result == TAMIS_CU_ERROR_NO_DEVICE || (result == TAMIS_CU_SUCCESS && count == 0)) {
        return tamis_fail(error, TAMIS_ERROR_TIER, "device", "an NVIDIA GPU", "none");
    }
    TAMIS_TRY(tamis_cuda_checked(cuda, result, "cuInit", error));
    if (device >= count) {
        return tamis_fail(error, TAMIS_ERROR_TIER, "device", "a device of this machine",
                          "device %d of %d", device, count);
    }
    return TAMIS_OK;
}

static tamis_status retain(tamis_cuda *cuda, int32_t ordinal, tamis_error *error) {
    tamis_cu_device device = 0;
    tamis_cu_handle context = NULL;
    TAMIS_TRY(
        tamis_cuda_checked(cuda, cuda->driver.device_get(&device, ordinal), "cuDeviceGet", error));
    TAMIS_TRY(tamis_cuda_checked(cuda, cuda->driver.primary_retain(&context, device),
                                 "cuDevicePrimaryCtxRetain", error));
    cuda->device = device;
    return tamis_cuda_checked(cuda, cuda->driver.context_set(context), "cuCtxSetCurrent", error);
}

static tamis_status check_context(tamis_cuda *cuda, tamis_error *error) {
    tamis_cu_device device = 0;
    int major = 0, minor = 0;
    TAMIS_TRY(tamis_cuda_checked(cuda, cuda->driver.context_get(&cuda->context), "cuCtxGetCurrent",
                                 error));
    if (cuda->context == NULL) {
        return tamis_fail(error, TAMIS_ERROR_TIER, "context",
                          "a current CUDA context, or tamis_cuda_create_on", "none");
    }
    TAMIS_TRY(
        tamis_cuda_checked(cuda, cuda->driver.context_device(&device), "cuCtxGetDevice", error));
    cuda->driver.device_attribute(&major, TAMIS_CU_DEVICE_MAJOR, device);
    cuda->driver.device_attribute(&minor, TAMIS_CU_DEVICE_MINOR, device);
    cuda->driver.device_attribute(&cuda->multiprocessors, TAMIS_CU_DEVICE_MULTIPROCESSORS, device);
    if (!tamis_cuda_runs_on(major)) {
        return tamis_fail(error, TAMIS_ERROR_TIER, "device", "compute capability 8.0 or later",
                          "%d.%d", major, minor);
    }
    return TAMIS_OK;
}

static tamis_status load_module(tamis_cuda *cuda, tamis_error *error) {
    char log[128] = "";
    int options[2] = {TAMIS_CU_JIT_ERROR_LOG, TAMIS_CU_JIT_ERROR_LOG_BYTES};
    void *values[2] = {log, (void *)(uintptr_t)sizeof log};
    tamis_cu_result result =
        cuda->driver.module_load(&cuda->module, tamis_cuda_image, 2, options, values);
    if (result != TAMIS_CU_SUCCESS && log[0] != '\0') {
        __atomic_store_n(cuda->result, result, __ATOMIC_RELAXED);
        return tamis_fail(error, TAMIS_ERROR_CUDA, "cuModuleLoadDataEx", "CUDA_SUCCESS",
                          "%d: %.100s", result, log);
    }
    return tamis_cuda_checked(cuda, result, "cuModuleLoadDataEx", error);
}

static tamis_status load_kernel(tamis_cuda *cuda, int i, tamis_error *error) {
    const char *name = kernel_list[i].name;
    int registers = 0;
    tamis_cu_result found = cuda->driver.module_function(&cuda->kernels[i], cuda->module, name);
    if (found == TAMIS_CU_ERROR_NOT_FOUND && strstr(name, "_sm90")) {
        cuda->kernels[i] = NULL; /* the driver took an image that has the portable ones alone */
        return TAMIS_OK;
    }
    TAMIS_TRY(tamis_cuda_checked(cuda, found, name, error));
    if (cuda->driver.function_load) {
        TAMIS_TRY(
            tamis_cuda_checked(cuda, cuda->driver.function_load(cuda->kernels[i]), name, error));
    }
    TAMIS_TRY(tamis_cuda_checked(
        cuda, cuda->driver.function_get(&registers, TAMIS_CU_FUNC_NUM_REGS, cuda->kernels[i]), name,
        error));
    return tamis_cuda_checked(cuda,
                              cuda->driver.function_set(cuda->kernels[i],
                                                        TAMIS_CU_FUNC_MAX_DYNAMIC_SHARED,
                                                        kernel_list[i].shared),
                              name, error);
}

/* Whether the driver does, in graphs too, and the kernels wait: those of an image with Hopper's. */
static int launches_early(const tamis_cuda *cuda) {
    int version = 0;
    return cuda->driver.launch_early != NULL &&
           cuda->kernels[TAMIS_CUDA_consume_rows_sm90] != NULL &&
           cuda->driver.driver_version(&version) == TAMIS_CU_SUCCESS &&
           version >= TAMIS_CU_CAPTURES_EARLY;
}

static tamis_status fill(tamis_cuda *cuda, int32_t device, tamis_error *error) {
    TAMIS_TRY(check_driver(cuda, error));
    TAMIS_TRY(check_device_count(cuda, device, error));
    if (device >= 0) {
        TAMIS_TRY(retain(cuda, device, error));
    }
    TAMIS_TRY(check_context(cuda, error));
    TAMIS_TRY(load_module(cuda, error));
    for (int i = 0; i < TAMIS_CUDA_KERNEL_COUNT; i++) {
        TAMIS_TRY(load_kernel(cuda, i, error));
    }
    cuda->early = launches_early(cuda);
    return TAMIS_OK;
}

static tamis_status create(int32_t device, tamis_cuda **cuda, tamis_error *error) {
    TAMIS_NEED(cuda != NULL, TAMIS_ERROR_ARGUMENT, "cuda", "a place for the pointer", 0);
    *cuda = NULL;
    if (tamis_cuda_image == NULL) {
        return tamis_fail(error, TAMIS_ERROR_TIER, "build", "a build with CUDA kernels (nvcc)",
                          "one without");
    }
    /* The result lies behind the object, which stages see as const. */
    tamis_cuda *made = calloc(1, sizeof *made + sizeof *made->result);
    if (made == NULL) {
        return tamis_fail(error, TAMIS_ERROR_MEMORY, "cuda", "memory", "none");
    }
    made->device = NO_DEVICE;
    made->result = (int32_t *)(void *)(made + 1);
    tamis_status status = fill(made, device, error);
    if (status != TAMIS_OK) {
        tamis_cuda_destroy(made);
        return status;
    }
    *cuda = made;
    return TAMIS_OK;
}

tamis_status tamis_cuda_create(tamis_cuda **cuda, tamis_error *error) {
    return create(NO_DEVICE, cuda, error);
}

tamis_status tamis_cuda_create_on(int32_t device, tamis_cuda **cuda, tamis_error *error) {
    TAMIS_NEED(device >= 0, TAMIS_ERROR_ARGUMENT, "device", "0 or more", device);
    return create(device, cuda, error);
}

void tamis_cuda_destroy(tamis_cuda *cuda) {
    if (cuda == NULL) {
        return;
    }
    tamis_cu_handle current = NULL;
    if (cuda->context) {
        cuda->driver.context_get(&current);
    }
    if (cuda->module) { /* belongs to its context, which need not be the current one */
        cuda->driver.context_set(cuda->context);
        cuda->driver.module_unload(cuda->module);
        cuda->driver.context_set(current);
    }
    if (cuda->device != NO_DEVICE) {
        if (current == cuda->context) {
            cuda->driver.context_set(NULL);
        }
        cuda->driver.primary_release(cuda->device);
    }
    tamis_driver_close(&cuda->driver);
    free(cuda);
}
