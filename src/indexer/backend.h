/* SPDX-License-Identifier: MIT */
/* backend.h: a backend is its tier and the tier's kernels. */
#ifndef TAMIS_INDEXER_BACKEND_H
#define TAMIS_INDEXER_BACKEND_H

#include "kernels/kernels.h"

struct tamis_backend {
    int32_t tier;
    tamis_kernels kernels;
};

/* TAMIS_CHECK_JUDGING or 0: judging classes are in ref/ alone. */
int tamis_backend_judges(const tamis_backend *backend);

tamis_status tamis_check_call(const tamis_backend *backend, const void *args, int32_t ith,
                              int32_t nth, tamis_error *error);

#endif
