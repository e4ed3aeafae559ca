/* SPDX-License-Identifier: MIT */
/*
 * fake_driver.c: a libcuda.so.1 that runs nothing, so that machines without a GPU can test what
 * creation says about each kind of machine, and what stages ask of the driver.
 */
#include "fake_driver.h"

#include <string.h>

static fake_machine machine;

fake_machine *fake_machine_get(void) {
    return &machine;
}

#define ENTRY(symbol, arguments)                                                                   \
    tamis_cu_result symbol arguments;                                                              \
    tamis_cu_result symbol arguments

ENTRY(cuInit, (unsigned flags)) {
    (void)flags;
    return machine.init;
}
ENTRY(cuDriverGetVersion, (int *version)) {
    *version = machine.version;
    return TAMIS_CU_SUCCESS;
}
ENTRY(cuDeviceGetCount, (int *count)) {
    *count = machine.devices;
    return TAMIS_CU_SUCCESS;
}
ENTRY(cuDeviceGetAttribute, (int *value, int attribute, tamis_cu_device device)) {
    (void)device;
    *value = attribute == TAMIS_CU_DEVICE_MAJOR ? machine.major : 8;
    return TAMIS_CU_SUCCESS;
}
ENTRY(cuCtxGetCurrent, (tamis_cu_handle * context)) {
    *context = machine.context ? &machine.context + machine.context : NULL;
    return TAMIS_CU_SUCCESS;
}
ENTRY(cuModuleLoadDataEx,
      (tamis_cu_handle * module, const void *image, unsigned options, int *option, void **value)) {
    (void)image;
    (void)options;
    (void)option;
    (void)value;
    *module = &machine;
    return machine.module_load;
}
ENTRY(cuModuleUnload, (tamis_cu_handle module)) {
    machine.unloaded += module == &machine;
    return TAMIS_CU_SUCCESS;
}
ENTRY(cuFuncLoad, (tamis_cu_handle function)) {
    (void)function;
    machine.loaded++;
    return TAMIS_CU_SUCCESS;
}
ENTRY(cuGetErrorName, (tamis_cu_result result, const char **name)) {
    *name = result == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : NULL;
    return TAMIS_CU_SUCCESS;
}
ENTRY(cuLaunchKernel, (tamis_cu_handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                       tamis_cu_handle stream, void **parameters, void **extra)) {
    (void)grid_z;
    (void)block_x;
    (void)block_y;
    (void)block_z;
    (void)extra;
    machine.launches++;
    if (machine.watched && function == machine.watched) {
        machine.seen++;
        if (machine.look) {
            machine.look(parameters);
        }
    }
    machine.grid_x = grid_x;
    machine.grid_y = grid_y;
    machine.shared = shared_bytes;
    machine.stream = stream;
    return TAMIS_CU_SUCCESS;
}
ENTRY(cuLaunchKernelEx,
      (const tamis_cu_launch *launch, tamis_cu_handle function, void **parameters, void **extra)) {
    const tamis_cu_launch_attribute *attribute = launch->attributes;
    if (launch->attribute_count != 1 || attribute->id != TAMIS_CU_LAUNCH_EARLY ||
        attribute->value.allowed != 1) {
        return TAMIS_CU_ERROR_NOT_FOUND;
    }
    machine.early++;
    return cuLaunchKernel(function, launch->grid_x, launch->grid_y, launch->grid_z, launch->block_x,
                          launch->block_y, launch->block_z, launch->shared_bytes, launch->stream,
                          parameters, extra);
}
/* Host memory is real: the library writes there. A word each, the last few of them. */
ENTRY(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags)) {
    static uint64_t words[16];
    static unsigned next;
    (void)flags;
    *memory = &words[next++ % 16];
    return bytes <= sizeof *words ? TAMIS_CU_SUCCESS : TAMIS_CU_ERROR_OUT_OF_MEMORY;
}
