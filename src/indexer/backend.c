/* SPDX-License-Identifier: MIT */
/* backend.c: making a backend, and every stage's public call: check, guard, run the kernel. */
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "indexer/backend.h"
#include "kernels/check.h"
#include "kernels/fpenv.h"
#include "kernels/tier.h"

tamis_status tamis_backend_create(const char *tier, tamis_backend **backend, tamis_error *error) {
    TAMIS_NEED(backend != NULL, TAMIS_ERROR_ARGUMENT, "backend", "a place for the pointer", 0);
    *backend = NULL;
    int found = tamis_tier_find(tier);
    if (found < 0) {
        return tamis_fail(error, TAMIS_ERROR_TIER, "tier", "auto or a tier of this build", "%s",
                          tier);
    }
    if (!tamis_tier_supported(found)) {
        return tamis_fail(error, TAMIS_ERROR_TIER, "tier", "a tier that this machine runs", "%s",
                          tier);
    }
    tamis_backend *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return tamis_fail(error, TAMIS_ERROR_MEMORY, "backend", "memory", "none");
    }
    made->tier = found;
    tamis_kernels_fill(&made->kernels, found);
    *backend = made;
    return TAMIS_OK;
}

void tamis_backend_destroy(tamis_backend *backend) {
    free(backend);
}

const char *tamis_backend_tier(const tamis_backend *backend) {
    return tamis_tier_word(backend->tier);
}

const char *tamis_tier_name(int32_t i, int32_t *supported) {
    if (i < 0 || i >= TAMIS_TIER_COUNT) {
        return NULL;
    }
    if (supported) {
        *supported = tamis_tier_supported(i);
    }
    return tamis_tier_word(i);
}

int tamis_backend_judges(const tamis_backend *backend) {
    return backend->tier == TAMIS_TIER_ref ? TAMIS_CHECK_JUDGING : 0;
}

tamis_status tamis_check_call(const tamis_backend *backend, const void *args, int32_t ith,
                              int32_t nth, tamis_error *error) {
    TAMIS_NEED(backend != NULL, TAMIS_ERROR_ARGUMENT, "backend", "a backend", 0);
    TAMIS_NEED(args != NULL, TAMIS_ERROR_ARGUMENT, "args", "arguments", 0);
    TAMIS_NEED(nth >= 1, TAMIS_ERROR_ARGUMENT, "nth", "1 or more", nth);
    TAMIS_NEED(ith >= 0 && ith < nth, TAMIS_ERROR_ARGUMENT, "ith", "0 .. nth-1", ith);
    return TAMIS_OK;
}

#define TAMIS_STAGE_DEFAULT(name)                                                                  \
    void tamis_##name##_args_default(tamis_##name##_args *args) {                                  \
        memset(args, 0, sizeof *args);                                                             \
        args->struct_size = (uint32_t)sizeof *args;                                                \
    }
TAMIS_STAGE_LIST(TAMIS_STAGE_DEFAULT)

/* Stages whose public call is their kernel. consume, source and dense take workspace: see there. */
#define TAMIS_STAGE_CALL(name)                                                                     \
    tamis_status tamis_##name(const tamis_backend *backend, const tamis_##name##_args *args,       \
                              int32_t ith, int32_t nth, tamis_error *error) {                      \
        TAMIS_TRY(tamis_check_call(backend, args, ith, nth, error));                               \
        TAMIS_TRY(tamis_check_##name(args, tamis_backend_judges(backend), error));                 \
        uint64_t saved = tamis_fp_enter();                                                         \
        backend->kernels.name(args, ith, nth);                                                     \
        tamis_fp_leave(saved);                                                                     \
        return TAMIS_OK;                                                                           \
    }
TAMIS_STAGE_CALL(q_prepare)
TAMIS_STAGE_CALL(k_insert)
TAMIS_STAGE_CALL(k_gather)
TAMIS_STAGE_CALL(mqa_logits)
TAMIS_STAGE_CALL(block_max)
TAMIS_STAGE_CALL(publish)
TAMIS_STAGE_CALL(expand)
TAMIS_STAGE_CALL(sparse_mqa_logits)
TAMIS_STAGE_CALL(topk)
