/* SPDX-License-Identifier: MIT */
/* suite.c: picks a test by name and runs it on every supported tier. */
#include "suite.h"

#include <stdio.h>
#include <string.h>

#include "require.h"

static void run_on_tiers(const suite_test *test) {
    int32_t supported = 0;
    int ran = 0;
    for (int32_t i = 0; tamis_tier_name(i, &supported); i++) {
        const char *tier = tamis_tier_name(i, &supported);
        tamis_backend *backend;
        tamis_error error;
        if (!supported) {
            printf("%s: tier %s is not supported by this machine\n", test->name, tier);
            continue;
        }
        test_context("%s on %s", test->name, tier);
        REQUIRE_OK(tamis_backend_create(tier, &backend, &error), error);
        test->run(backend);
        tamis_backend_destroy(backend);
        printf("%s: tier %s ran\n", test->name, tier);
        ran++;
    }
    REQUIRE(ran > 0, "no tier ran");
}

int suite_main(int argc, char **argv, const suite_test *tests, int count) {
    for (int i = 0; i < count && argc == 2; i++)
        if (strcmp(tests[i].name, argv[1]) == 0) {
            test_catch_faults();
            run_on_tiers(&tests[i]);
            return 0;
        }
    fprintf(stderr, "usage: %s NAME, one of:\n", argv[0]);
    for (int i = 0; i < count; i++)
        fprintf(stderr, "  %s\n", tests[i].name);
    return 2;
}
