/* SPDX-License-Identifier: MIT */
/*
 * device.h: a trial's memory mirrored on the GPU. Every guarded buffer becomes an allocation of its
 * own, as long as the buffer's body, so that compute-sanitizer sees what guard pages see on a CPU.
 * Pointers in the arguments are found by their values: guarded addresses are like nothing else.
 */
#ifndef TAMIS_TESTS_CUDA_DEVICE_H
#define TAMIS_TESTS_CUDA_DEVICE_H

#include "../../src/kernels/cuda/backend.h"
#include "place.h"

/* What the tests need of the driver beyond the library's own table. */
typedef struct test_device {
    tamis_cuda *cuda;
    void *stream;
    tamis_cu_result (*capture_begin)(void *stream, int mode);
    tamis_cu_result (*capture_end)(void *stream, void **graph);
    tamis_cu_result (*instantiate)(void **exec, void *graph, unsigned long long flags);
    tamis_cu_result (*graph_launch)(void *exec, void *stream);
    tamis_cu_result (*graph_destroy)(void *graph);
    tamis_cu_result (*exec_destroy)(void *exec);
    tamis_cu_result (*memory_info)(size_t *free, size_t *total);
} test_device;

/* Opens device 0; skips the test with the reason when this build or machine cannot. */
void device_open(test_device *device);
void device_close(test_device *device);

/* Every stage by number, in the order of TAMIS_STAGE_LIST. */
enum {
#define STAGE_NUMBER(name) STAGE_##name,
    TAMIS_STAGE_LIST(STAGE_NUMBER)
#undef STAGE_NUMBER
        STAGE_COUNT
};
int stage_number(const char *name);
/* The stage whose public call a trial is. */
int trial_stage(const trial *t);

typedef struct mirror {
    const test_device *device;
    const trial *t;
    stage_args args; /* with device pointers */
    void **memory;   /* of each guarded buffer, inputs first */
    void *workspace;
    int64_t workspace_bytes;
} mirror;

/* Allocates, copies everything in, and translates the arguments of a stage. raw leaves the
 * workspace as allocated: otherwise it is filled, with what scores and ids are not. */
void mirror_new(mirror *m, const test_device *device, const trial *t, int stage, int raw);
/* Copies outputs back into the trial's buffers; requires that inputs are what they were. */
void mirror_pull(const mirror *m);
void mirror_free(mirror *m);
/* The device address of a guarded host address. */
void *mirror_at(const mirror *m, const void *host);

tamis_status device_queue(const test_device *device, int stage, const stage_args *args,
                          tamis_error *error);
void device_run(const test_device *device, int stage, const stage_args *args);
/* Captures the call; the graph is launched by device_replay any number of times. */
void *device_capture(const test_device *device, int stage, const stage_args *args);
void device_replay(const test_device *device, void *exec);
void device_sync(const test_device *device);
void device_write(const test_device *device, void *to, const void *from, int64_t bytes);

#endif
