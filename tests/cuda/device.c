/* SPDX-License-Identifier: MIT */
/* device.c: the GPU of the tests, and trials mirrored on it. */
#include "device.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

/* An address that no allocation has: what empty buffers get. */
static void *const nowhere = (void *)4096;

static void find(const test_device *device, const char *symbol, void *field) {
    void *found = dlsym(device->cuda->driver.library, symbol);
    REQUIRE(found, "the driver has no %s", symbol);
    memcpy(field, &found, sizeof found);
}

void device_open(test_device *device) {
    tamis_error error;
    memset(device, 0, sizeof *device);
    tamis_status status = tamis_cuda_create_on(0, &device->cuda, &error);
    if (status == TAMIS_ERROR_TIER)
        test_skip("%s: %s needed, found %s", error.argument, error.required, error.found);
    REQUIRE_OK(status, error);
    REQUIRE_OK(tamis_cuda_stream_create(device->cuda, &device->stream, &error), error);
    find(device, "cuStreamBeginCapture_v2", &device->capture_begin);
    find(device, "cuStreamEndCapture", &device->capture_end);
    find(device, "cuGraphInstantiateWithFlags", &device->instantiate);
    find(device, "cuGraphLaunch", &device->graph_launch);
    find(device, "cuGraphDestroy", &device->graph_destroy);
    find(device, "cuGraphExecDestroy", &device->exec_destroy);
    find(device, "cuMemGetInfo_v2", &device->memory_info);
}

void device_close(test_device *device) {
    tamis_cuda_stream_destroy(device->cuda, device->stream, NULL);
    tamis_cuda_destroy(device->cuda);
}

/* ---- calls ---- */

static const char *const stage_names[STAGE_COUNT] = {
#define STAGE_NAME(name) #name,
    TAMIS_STAGE_LIST(STAGE_NAME)
#undef STAGE_NAME
};

int stage_number(const char *name) {
    for (int i = 0; i < STAGE_COUNT; i++)
        if (strcmp(stage_names[i], name) == 0)
            return i;
    return -1;
}

int trial_stage(const trial *t) {
    static stage_call *const calls[STAGE_COUNT] = {
#define CALL_NAME(name) call_##name,
        TAMIS_STAGE_LIST(CALL_NAME)
#undef CALL_NAME
    };
    for (int i = 0; i < STAGE_COUNT; i++)
        if (t->phases[0] == calls[i])
            return i;
    REQUIRE(0, "test: a trial of no stage");
    return -1;
}

tamis_status device_queue(const test_device *device, int stage, const stage_args *args,
                          tamis_error *error) {
    switch (stage) {
#define STAGE_CASE(name)                                                                           \
    case STAGE_##name:                                                                             \
        return tamis_cuda_##name(device->cuda, &args->name, device->stream, error);
        TAMIS_STAGE_LIST(STAGE_CASE)
#undef STAGE_CASE
    default:
        return TAMIS_ERROR_ARGUMENT;
    }
}

static void checked(const test_device *device, int result, const char *what) {
    REQUIRE(result == 0, "%s: %s", what, tamis_cuda_result_text(device->cuda, result));
}

void device_sync(const test_device *device) {
    tamis_error error;
    REQUIRE_OK(tamis_cuda_stream_sync(device->cuda, device->stream, &error), error);
}

void device_run(const test_device *device, int stage, const stage_args *args) {
    tamis_error error;
    REQUIRE_OK(device_queue(device, stage, args, &error), error);
    device_sync(device);
}

void *device_capture(const test_device *device, int stage, const stage_args *args) {
    enum { CAPTURE_GLOBAL = 0 }; /* refuses what could wait or allocate anywhere in the process */
    tamis_error error;
    void *graph = NULL, *exec = NULL;
    checked(device, device->capture_begin(device->stream, CAPTURE_GLOBAL), "begin capture");
    REQUIRE_OK(device_queue(device, stage, args, &error), error);
    checked(device, device->capture_end(device->stream, &graph), "end capture");
    checked(device, device->instantiate(&exec, graph, 0), "instantiate");
    device->graph_destroy(graph);
    return exec;
}

void device_replay(const test_device *device, void *exec) {
    checked(device, device->graph_launch(exec, device->stream), "graph launch");
    device_sync(device);
}

void device_write(const test_device *device, void *to, const void *from, int64_t bytes) {
    tamis_error error;
    REQUIRE_OK(tamis_cuda_copy_in(device->cuda, to, from, bytes, device->stream, &error), error);
    device_sync(device);
}

/* ---- mirrors ---- */

static int64_t buffers(const trial *t) {
    return guard_count(t->inputs) + guard_count(t->outputs);
}

static guard_body buffer(const trial *t, int64_t i) {
    int64_t inputs = guard_count(t->inputs);
    return i < inputs ? guard_at(t->inputs, i) : guard_at(t->outputs, i - inputs);
}

static void *allocate(const test_device *device, int64_t bytes) {
    tamis_error error;
    void *memory = nowhere;
    if (bytes > 0)
        REQUIRE_OK(tamis_cuda_alloc(device->cuda, bytes, &memory, &error), error);
    return memory;
}

static void release(const test_device *device, void *memory) {
    tamis_error error;
    if (memory != nowhere)
        REQUIRE_OK(tamis_cuda_free(device->cuda, memory, &error), error);
}

void *mirror_at(const mirror *m, const void *host) {
    for (int64_t i = 0; i < buffers(m->t); i++) {
        guard_body body = buffer(m->t, i);
        const uint8_t *at = host;
        if (at >= body.base && at <= body.base + body.bytes)
            return (uint8_t *)m->memory[i] + (at - body.base);
    }
    return NULL;
}

static void translate(mirror *m) {
    for (size_t at = 0; at + sizeof(void *) <= sizeof m->args; at += sizeof(void *)) {
        void *value, *moved;
        memcpy(&value, (uint8_t *)&m->args + at, sizeof value);
        moved = mirror_at(m, value);
        if (moved)
            memcpy((uint8_t *)&m->args + at, &moved, sizeof moved);
    }
}

static int64_t workspace_of(const mirror *m, int stage) {
    const tamis_cuda *cuda = m->device->cuda;
    switch (stage) {
    case STAGE_consume:
        return tamis_cuda_consume_workspace(cuda, &m->args.consume);
    case STAGE_source:
        return tamis_cuda_source_workspace(cuda, &m->args.source);
    case STAGE_dense:
        return tamis_cuda_dense_workspace(cuda, &m->args.dense);
    default:
        return 0;
    }
}

static void fill_workspace(const mirror *m) {
    enum { CHUNK = 1 << 20 };
    uint8_t *junk = malloc(CHUNK);
    REQUIRE(junk, "out of memory");
    memset(junk, 0x7E, CHUNK); /* huge scores, ids beyond everything */
    for (int64_t at = 0; at < m->workspace_bytes; at += CHUNK) {
        int64_t left = m->workspace_bytes - at;
        device_write(m->device, (uint8_t *)m->workspace + at, junk, left < CHUNK ? left : CHUNK);
    }
    free(junk);
}

static void place_workspace(mirror *m, int stage, int raw) {
    m->workspace_bytes = workspace_of(m, stage);
    REQUIRE(m->workspace_bytes >= 0, "the workspace size of valid arguments is %lld",
            (long long)m->workspace_bytes);
    m->workspace = allocate(m->device, m->workspace_bytes);
    if (!raw)
        fill_workspace(m);
    if (stage != STAGE_consume && stage != STAGE_source && stage != STAGE_dense)
        return;
    ptrdiff_t at = (const uint8_t *)m->t->workspace_field - (const uint8_t *)&m->t->args;
    ptrdiff_t bytes = (const uint8_t *)m->t->workspace_bytes_field - (const uint8_t *)&m->t->args;
    memcpy((uint8_t *)&m->args + at, &m->workspace, sizeof m->workspace);
    memcpy((uint8_t *)&m->args + bytes, &m->workspace_bytes, sizeof m->workspace_bytes);
}

void mirror_new(mirror *m, const test_device *device, const trial *t, int stage, int raw) {
    tamis_error error;
    memset(m, 0, sizeof *m);
    m->device = device;
    m->t = t;
    m->args = t->args;
    m->memory = calloc((size_t)buffers(t) + 1, sizeof *m->memory);
    REQUIRE(m->memory, "out of memory");
    for (int64_t i = 0; i < buffers(t); i++) {
        guard_body body = buffer(t, i);
        m->memory[i] = allocate(device, body.bytes);
        REQUIRE_OK(tamis_cuda_copy_in(device->cuda, m->memory[i], body.base, body.bytes,
                                      device->stream, &error),
                   error);
    }
    translate(m);
    place_workspace(m, stage, raw);
    device_sync(device);
}

void mirror_pull(const mirror *m) {
    tamis_error error;
    int64_t inputs = guard_count(m->t->inputs);
    for (int64_t i = 0; i < buffers(m->t); i++) {
        guard_body body = buffer(m->t, i);
        uint8_t *to = i < inputs ? malloc((size_t)body.bytes + 1) : body.base;
        REQUIRE(to, "out of memory");
        REQUIRE_OK(tamis_cuda_copy_out(m->device->cuda, to, m->memory[i], body.bytes,
                                       m->device->stream, &error),
                   error);
        device_sync(m->device);
        if (i < inputs) {
            REQUIRE(memcmp(to, body.base, (size_t)body.bytes) == 0, "input %lld was written",
                    (long long)i);
            free(to);
        }
    }
}

void mirror_free(mirror *m) {
    for (int64_t i = 0; i < buffers(m->t); i++)
        release(m->device, m->memory[i]);
    release(m->device, m->workspace);
    free(m->memory);
}
