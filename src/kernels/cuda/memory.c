/* SPDX-License-Identifier: MIT */
/* memory.c: device memory, copies and streams, for programs without a CUDA runtime. */
#include "fail.h"
#include "kernels/cuda/backend.h"

static tamis_cu_pointer pointer_of(const void *memory) {
    return (tamis_cu_pointer)(uintptr_t)memory;
}

tamis_status tamis_cuda_alloc(const tamis_cuda *cuda, int64_t bytes, void **memory,
                              tamis_error *error) {
    tamis_cu_pointer made = 0;
    TAMIS_NEED(cuda != NULL && memory != NULL, TAMIS_ERROR_ARGUMENT, "cuda, memory",
               "an object and a place for the pointer", 0);
    *memory = NULL;
    TAMIS_NEED(bytes >= 0, TAMIS_ERROR_ARGUMENT, "bytes", "0 or more", bytes);
    if (bytes == 0) {
        return TAMIS_OK;
    }
    TAMIS_TRY(tamis_cuda_checked(cuda, cuda->driver.memory_alloc(&made, (size_t)bytes),
                                 "cuMemAlloc", error));
    *memory = (void *)(uintptr_t)made;
    return TAMIS_OK;
}

tamis_status tamis_cuda_free(const tamis_cuda *cuda, void *memory, tamis_error *error) {
    if (memory == NULL) {
        return TAMIS_OK;
    }
    return tamis_cuda_checked(cuda, cuda->driver.memory_free(pointer_of(memory)), "cuMemFree",
                              error);
}

tamis_status tamis_cuda_copy_in(const tamis_cuda *cuda, void *device, const void *host,
                                int64_t bytes, void *stream, tamis_error *error) {
    TAMIS_NEED(bytes >= 0, TAMIS_ERROR_ARGUMENT, "bytes", "0 or more", bytes);
    if (bytes == 0) {
        return TAMIS_OK;
    }
    return tamis_cuda_checked(cuda,
                              cuda->driver.copy_in(pointer_of(device), host, (size_t)bytes, stream),
                              "cuMemcpyHtoDAsync", error);
}

tamis_status tamis_cuda_copy_out(const tamis_cuda *cuda, void *host, const void *device,
                                 int64_t bytes, void *stream, tamis_error *error) {
    TAMIS_NEED(bytes >= 0, TAMIS_ERROR_ARGUMENT, "bytes", "0 or more", bytes);
    if (bytes == 0) {
        return TAMIS_OK;
    }
    return tamis_cuda_checked(
        cuda, cuda->driver.copy_out(host, pointer_of(device), (size_t)bytes, stream),
        "cuMemcpyDtoHAsync", error);
}

tamis_status tamis_cuda_stream_create(const tamis_cuda *cuda, void **stream, tamis_error *error) {
    TAMIS_NEED(cuda != NULL && stream != NULL, TAMIS_ERROR_ARGUMENT, "cuda, stream",
               "an object and a place for the stream", 0);
    *stream = NULL;
    return tamis_cuda_checked(cuda,
                              cuda->driver.stream_create(stream, TAMIS_CU_STREAM_NON_BLOCKING),
                              "cuStreamCreate", error);
}

tamis_status tamis_cuda_stream_destroy(const tamis_cuda *cuda, void *stream, tamis_error *error) {
    if (stream == NULL) {
        return TAMIS_OK;
    }
    return tamis_cuda_checked(cuda, cuda->driver.stream_destroy(stream), "cuStreamDestroy", error);
}

tamis_status tamis_cuda_stream_sync(const tamis_cuda *cuda, void *stream, tamis_error *error) {
    return tamis_cuda_checked(cuda, cuda->driver.stream_sync(stream), "cuStreamSynchronize", error);
}
