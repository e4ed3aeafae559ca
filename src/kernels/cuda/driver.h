/* SPDX-License-Identifier: MIT */
/*
 * driver.h: the part of the CUDA driver's interface that tamis calls, declared here so that neither
 * building nor loading the library needs CUDA. Names, types and numbers are the driver ABI's, which
 * is stable; entry points carry the suffix that dlsym wants.
 */
#ifndef TAMIS_CUDA_DRIVER_H
#define TAMIS_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int tamis_cu_result;
typedef int tamis_cu_device;
typedef unsigned long long tamis_cu_pointer;
typedef void *tamis_cu_handle; /* context, module, function, stream */

enum { /* CUresult */
       TAMIS_CU_SUCCESS = 0,
       TAMIS_CU_ERROR_OUT_OF_MEMORY = 2,
       TAMIS_CU_ERROR_NO_DEVICE = 100,
       TAMIS_CU_ERROR_NOT_FOUND = 500
};
enum { /* CUdevice_attribute */
       TAMIS_CU_DEVICE_MULTIPROCESSORS = 16,
       TAMIS_CU_DEVICE_MAJOR = 75,
       TAMIS_CU_DEVICE_MINOR = 76
};
enum { /* CUfunction_attribute */
       TAMIS_CU_FUNC_NUM_REGS = 4,
       TAMIS_CU_FUNC_MAX_DYNAMIC_SHARED = 8
};
enum { /* CUjit_option */
       TAMIS_CU_JIT_ERROR_LOG = 5,
       TAMIS_CU_JIT_ERROR_LOG_BYTES = 6
};
enum { TAMIS_CU_STREAM_NON_BLOCKING = 1 };
/* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: a kernel is launched before the one
 * before it ends, for whose end it waits itself. */
enum {
    TAMIS_CU_LAUNCH_EARLY = 6,
    TAMIS_CU_CAPTURES_EARLY = 12030 /* the driver from which on a graph keeps it */
};

/* CUlaunchAttribute, whose value is a union, and CUlaunchConfig. */
typedef struct tamis_cu_launch_attribute {
    int id, reserved;
    union {
        int allowed;
        uint64_t words[8];
    } value;
} tamis_cu_launch_attribute;

typedef struct tamis_cu_launch {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    tamis_cu_handle stream;
    tamis_cu_launch_attribute *attributes;
    unsigned attribute_count;
} tamis_cu_launch;
enum { TAMIS_CU_HOST_MAPPED = 2 };

/* X(field, symbol, arguments). Every driver that runs the kernels has these. */
#define TAMIS_DRIVER_LIST(X)                                                                       \
    X(init, cuInit, (unsigned flags))                                                              \
    X(driver_version, cuDriverGetVersion, (int *version))                                          \
    X(device_count, cuDeviceGetCount, (int *count))                                                \
    X(device_get, cuDeviceGet, (tamis_cu_device * device, int ordinal))                            \
    X(device_name, cuDeviceGetName, (char *name, int length, tamis_cu_device device))              \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, tamis_cu_device device)) \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, tamis_cu_device device))                \
    X(primary_retain, cuDevicePrimaryCtxRetain,                                                    \
      (tamis_cu_handle * context, tamis_cu_device device))                                         \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (tamis_cu_device device))                     \
    X(context_get, cuCtxGetCurrent, (tamis_cu_handle * context))                                   \
    X(context_set, cuCtxSetCurrent, (tamis_cu_handle context))                                     \
    X(context_device, cuCtxGetDevice, (tamis_cu_device * device))                                  \
    X(module_load, cuModuleLoadDataEx,                                                             \
      (tamis_cu_handle * module, const void *image, unsigned options, int *option, void **value))  \
    X(module_unload, cuModuleUnload, (tamis_cu_handle module))                                     \
    X(module_function, cuModuleGetFunction,                                                        \
      (tamis_cu_handle * function, tamis_cu_handle module, const char *name))                      \
    X(function_get, cuFuncGetAttribute, (int *value, int attribute, tamis_cu_handle function))     \
    X(function_set, cuFuncSetAttribute, (tamis_cu_handle function, int attribute, int value))      \
    X(launch, cuLaunchKernel,                                                                      \
      (tamis_cu_handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                \
       tamis_cu_handle stream, void **parameters, void **extra))                                   \
    X(error_name, cuGetErrorName, (tamis_cu_result result, const char **name))                     \
    X(memory_alloc, cuMemAlloc_v2, (tamis_cu_pointer * memory, size_t bytes))                      \
    X(memory_free, cuMemFree_v2, (tamis_cu_pointer memory))                                        \
    X(memory_set, cuMemsetD8Async,                                                                 \
      (tamis_cu_pointer to, unsigned char value, size_t bytes, tamis_cu_handle stream))            \
    X(host_alloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                   \
    X(host_free, cuMemFreeHost, (void *memory))                                                    \
    X(host_pointer, cuMemHostGetDevicePointer_v2,                                                  \
      (tamis_cu_pointer * device, void *host, unsigned flags))                                     \
    X(copy_in, cuMemcpyHtoDAsync_v2,                                                               \
      (tamis_cu_pointer to, const void *from, size_t bytes, tamis_cu_handle stream))               \
    X(copy_out, cuMemcpyDtoHAsync_v2,                                                              \
      (void *to, tamis_cu_pointer from, size_t bytes, tamis_cu_handle stream))                     \
    X(stream_create, cuStreamCreate, (tamis_cu_handle * stream, unsigned flags))                   \
    X(stream_destroy, cuStreamDestroy_v2, (tamis_cu_handle stream))                                \
    X(stream_sync, cuStreamSynchronize, (tamis_cu_handle stream))                                  \
    X(event_create, cuEventCreate, (tamis_cu_handle * event, unsigned flags))                      \
    X(event_destroy, cuEventDestroy_v2, (tamis_cu_handle event))                                   \
    X(event_record, cuEventRecord, (tamis_cu_handle event, tamis_cu_handle stream))                \
    X(event_sync, cuEventSynchronize, (tamis_cu_handle event))                                     \
    X(event_elapsed, cuEventElapsedTime,                                                           \
      (float *milliseconds, tamis_cu_handle from, tamis_cu_handle to))

/* Those that a driver may lack: NULL then. */
#define TAMIS_DRIVER_OPTIONAL_LIST(X)                                                              \
    X(function_load, cuFuncLoad, (tamis_cu_handle function))                                       \
    X(launch_early, cuLaunchKernelEx,                                                              \
      (const tamis_cu_launch *launch, tamis_cu_handle function, void **parameters, void **extra))

typedef struct tamis_driver {
    void *library; /* of dlopen */
#define TAMIS_DRIVER_FIELD(field, symbol, arguments) tamis_cu_result(*field) arguments;
    TAMIS_DRIVER_LIST(TAMIS_DRIVER_FIELD)
    TAMIS_DRIVER_OPTIONAL_LIST(TAMIS_DRIVER_FIELD)
#undef TAMIS_DRIVER_FIELD
} tamis_driver;

/* Opens the driver. Returns NULL, or the name of what is missing: the library or a symbol. */
const char *tamis_driver_open(tamis_driver *driver);
void tamis_driver_close(tamis_driver *driver); /* also after a failed open */

/* The name of a result, never NULL. */
const char *tamis_driver_result_name(const tamis_driver *driver, tamis_cu_result result);

#endif
