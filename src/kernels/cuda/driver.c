/* SPDX-License-Identifier: MIT */
/* driver.c: the driver's library, opened at run time, and what it says about the machine. */
#include <dlfcn.h>
#include <string.h>

#include <tamis/tamis.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/driver.h"

/* dlsym's object pointer as a function pointer: POSIX gives both one representation. */
static int find(void *library, const char *symbol, void *field) {
    void *found = dlsym(library, symbol);
    memcpy(field, &found, sizeof found);
    return found != NULL;
}

const char *tamis_driver_open(tamis_driver *driver) {
    memset(driver, 0, sizeof *driver);
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL) {
        return "libcuda.so.1";
    }
#define TAMIS_DRIVER_FIND(field, symbol, arguments)                                                \
    if (!find(driver->library, #symbol, &driver->field)) {                                         \
        return #symbol;                                                                            \
    }
    TAMIS_DRIVER_LIST(TAMIS_DRIVER_FIND)
#undef TAMIS_DRIVER_FIND
#define TAMIS_DRIVER_FIND(field, symbol, arguments) find(driver->library, #symbol, &driver->field);
    TAMIS_DRIVER_OPTIONAL_LIST(TAMIS_DRIVER_FIND)
#undef TAMIS_DRIVER_FIND
    return NULL;
}

void tamis_driver_close(tamis_driver *driver) {
    if (driver->library) {
        dlclose(driver->library);
    }
    memset(driver, 0, sizeof *driver);
}

const char *tamis_driver_result_name(const tamis_driver *driver, tamis_cu_result result) {
    const char *name = NULL;
    if (driver->error_name(result, &name) != TAMIS_CU_SUCCESS || name == NULL) {
        return "unknown";
    }
    return name;
}

int32_t tamis_cuda_driver_version(void) {
    tamis_driver driver;
    int version = 0;
    if (tamis_driver_open(&driver) == NULL && driver.driver_version(&version) != TAMIS_CU_SUCCESS) {
        version = 0;
    }
    tamis_driver_close(&driver);
    return version;
}

int tamis_cuda_runs_on(int major) {
    return major >= 8;
}

static void describe(const tamis_driver *driver, int ordinal, tamis_cuda_device *out) {
    tamis_cu_device device = 0;
    size_t bytes = 0;
    memset(out, 0, sizeof *out);
    driver->device_get(&device, ordinal);
    driver->device_name(out->name, (int)sizeof out->name, device);
    driver->device_attribute(&out->major, TAMIS_CU_DEVICE_MAJOR, device);
    driver->device_attribute(&out->minor, TAMIS_CU_DEVICE_MINOR, device);
    driver->device_attribute(&out->multiprocessors, TAMIS_CU_DEVICE_MULTIPROCESSORS, device);
    driver->device_memory(&bytes, device);
    out->memory_bytes = (int64_t)bytes;
    out->supported = tamis_cuda_runs_on(out->major);
}

int32_t tamis_cuda_devices(tamis_cuda_device *devices, int32_t capacity) {
    tamis_driver driver;
    int count = 0;
    if (tamis_driver_open(&driver) == NULL && driver.init(0) == TAMIS_CU_SUCCESS &&
        driver.device_count(&count) == TAMIS_CU_SUCCESS) {
        for (int i = 0; i < count && i < capacity; i++) {
            describe(&driver, i, &devices[i]);
        }
    }
    tamis_driver_close(&driver);
    return count;
}
