/* SPDX-License-Identifier: MIT */
/* events.c: marks in a stream and the time between two, for programs without a CUDA runtime. */
#include "fail.h"
#include "kernels/cuda/backend.h"

tamis_status tamis_cuda_event_create(const tamis_cuda *cuda, void **event, tamis_error *error) {
    TAMIS_NEED(cuda != NULL && event != NULL, TAMIS_ERROR_ARGUMENT, "cuda, event",
               "an object and a place for the event", 0);
    *event = NULL;
    return tamis_cuda_checked(cuda, cuda->driver.event_create(event, 0), "cuEventCreate", error);
}

tamis_status tamis_cuda_event_destroy(const tamis_cuda *cuda, void *event, tamis_error *error) {
    if (event == NULL) {
        return TAMIS_OK;
    }
    return tamis_cuda_checked(cuda, cuda->driver.event_destroy(event), "cuEventDestroy", error);
}

tamis_status tamis_cuda_event_record(const tamis_cuda *cuda, void *event, void *stream,
                                     tamis_error *error) {
    return tamis_cuda_checked(cuda, cuda->driver.event_record(event, stream), "cuEventRecord",
                              error);
}

tamis_status tamis_cuda_event_elapsed(const tamis_cuda *cuda, void *from, void *to,
                                      float *milliseconds, tamis_error *error) {
    TAMIS_NEED(milliseconds != NULL, TAMIS_ERROR_ARGUMENT, "milliseconds", "a place for the time",
               0);
    TAMIS_TRY(tamis_cuda_checked(cuda, cuda->driver.event_sync(to), "cuEventSynchronize", error));
    return tamis_cuda_checked(cuda, cuda->driver.event_elapsed(milliseconds, from, to),
                              "cuEventElapsedTime", error);
}
