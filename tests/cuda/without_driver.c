/* SPDX-License-Identifier: MIT */
/* without_driver.c: creation names what is missing: the kernels of this build, or the driver. */
#include <stdio.h>
#include <string.h>

#include <tamis/tamis.h>

#include "require.h"

int main(void) {
    tamis_error error;
    tamis_cuda *cuda = NULL;
    const char *missing = tamis_cuda_built() ? "driver" : "build";
    if (tamis_cuda_built() && tamis_cuda_driver_version() > 0)
        test_skip("this machine has a driver");
    REQUIRE(tamis_cuda_devices(NULL, 0) == 0 || !tamis_cuda_built(), "a device without a driver");
    for (int i = 0; i < 2; i++) {
        tamis_status status =
            i ? tamis_cuda_create_on(0, &cuda, &error) : tamis_cuda_create(&cuda, &error);
        REQUIRE(status == TAMIS_ERROR_TIER, "status %d", status);
        REQUIRE(cuda == NULL, "an object from a failed creation");
        REQUIRE(strcmp(error.argument, missing) == 0, "%s is named, not %s", error.argument,
                missing);
    }
    REQUIRE(tamis_cuda_create(NULL, &error) == TAMIS_ERROR_ARGUMENT, "no place for the pointer");
    tamis_cuda_destroy(NULL);
    printf("cuda: %s: required %s, found %s\n", error.argument, error.required, error.found);
    return 0;
}
