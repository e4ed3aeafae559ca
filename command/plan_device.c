/* SPDX-License-Identifier: MIT */
/*
 * plan_device.c: whether this machine's first GPU runs a plan and holds it, as requirements like
 * the others. Creating the backend is the test, since only that meets everything that can be
 * missing; nothing runs on the device.
 */
#include <inttypes.h>
#include <stdio.h>

#include "plan.h"

static void add(plan_facts *facts, const char *id, const char *setting, const char *required,
                const char *found) {
    tamis_requirement *f = &facts->failures[facts->failed++];
    *f = (tamis_requirement){.way_out = "--backend cpu"};
    snprintf(f->id, sizeof f->id, "%s", id);
    snprintf(f->setting, sizeof f->setting, "%s", setting);
    snprintf(f->required, sizeof f->required, "%s", required);
    snprintf(f->found, sizeof f->found, "%s", found);
}

void plan_find_device(const plan_inputs *in, plan_facts *facts) {
    tamis_cuda *cuda;
    tamis_error error = {0};
    if (in->options.context_parallel > 1) {
        char found[96];
        snprintf(found, sizeof found, "%d", in->options.context_parallel);
        add(facts, "cuda-context-parallel", "context_parallel", "1 on a GPU", found);
    }
    if (tamis_cuda_create_on(0, &cuda, &error) != TAMIS_OK) {
        add(facts, "cuda-device", error.argument, error.required, error.found);
        return;
    }
    tamis_cuda_destroy(cuda);
    tamis_cuda_devices(&facts->device, 1);
}

void plan_fit_device(const plan_inputs *in, plan_facts *facts) {
    char required[128], found[96];
    int64_t kv = in->memory > 0 ? in->memory : 0;
    if (facts->cuda_bytes <= facts->device.memory_bytes - kv)
        return;
    snprintf(required, sizeof required, "at most the %" PRId64 " bytes of %s",
             facts->device.memory_bytes, facts->device.name);
    snprintf(found, sizeof found, "%" PRId64 " of the plan and %" PRId64 " of KV blocks",
             facts->cuda_bytes, kv);
    add(facts, "cuda-memory", "memory", required, found);
}
