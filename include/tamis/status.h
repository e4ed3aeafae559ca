/* SPDX-License-Identifier: MIT */
/* status.h: error codes, their texts, and the detail a failed call leaves behind. */
#ifndef TAMIS_STATUS_H
#define TAMIS_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A host that vendors the source may define it otherwise, e.g. as nothing. */
#if defined(TAMIS_API)
#elif defined(_WIN32) || !defined(__GNUC__)
#define TAMIS_API
#else
#define TAMIS_API __attribute__((visibility("default")))
#endif

/* One list makes both the codes and the texts. Negative codes are errors. */
#define TAMIS_STATUS_LIST(X)                                                                       \
    X(OK, 0, "success")                                                                            \
    X(ERROR_ARGUMENT, -1, "an argument is missing or out of its range")                            \
    X(ERROR_STRUCT_SIZE, -2, "a struct has an unknown size or non-zero reserved bytes")            \
    X(ERROR_LAYOUT, -3, "the index-K layout does not fit the call or its strides")                 \
    X(ERROR_GEOMETRY, -4, "the number of heads or the head dimension is not supported")            \
    X(ERROR_LENGTH, -5, "a length, interval or position lies outside what K or the limits hold")   \
    X(ERROR_WORKSPACE, -6, "the workspace is too small or misaligned")                             \
    X(ERROR_MODEL, -7, "the model's configuration is invalid or not supported")                    \
    X(ERROR_TIER, -8, "the tier is unknown or this machine does not support it")                   \
    X(ERROR_MEMORY, -9, "memory could not be allocated")                                           \
    X(ERROR_NUMERICS, -10, "the numerics class is unknown or this tier does not offer it")         \
    X(ERROR_FILE, -11, "a file could not be opened, read or written")                              \
    X(ERROR_FORMAT, -12, "a file is malformed or holds what its format does not allow")            \
    X(ERROR_STAMP, -13, "the published blocks are missing, stale or of other rows")                \
    X(ERROR_LIMIT, -14, "a step is larger than its plan's limits")                                 \
    X(ERROR_REQUIREMENT, -15, "a requirement of the indexer is not met")                           \
    X(ERROR_CUDA, -16, "the CUDA driver failed a call")                                            \
    X(ERROR_SHARD, -17, "the shards of a request's positions are invalid or do not fit together")  \
    X(ERROR_RANKS, -18, "another rank differs or failed")                                          \
    X(ERROR_TRANSPORT, -19, "the transport between ranks failed a call")

typedef int32_t tamis_status;
enum {
#define TAMIS_STATUS_CODE(name, code, text) TAMIS_##name = code,
    TAMIS_STATUS_LIST(TAMIS_STATUS_CODE)
#undef TAMIS_STATUS_CODE
};

/*
 * What a failed call found. The caller owns it and may pass NULL. A call writes it only when it
 * returns an error; texts are NUL-terminated and cut, never overrun.
 */
typedef struct tamis_error {
    int32_t status;     /* the code that the call returned */
    char argument[60];  /* the thing at fault, as the header names it: "rows.ke[3]" */
    char required[128]; /* what was required: "0 .. 4096" */
    char found[128];    /* what was found: "-7" */
} tamis_error;

/* The text of a code; "unknown status" for a number that is none. Never NULL. */
TAMIS_API const char *tamis_status_text(tamis_status status);

/*
 * Writes "ARGUMENT: required REQUIRED, found FOUND (TEXT)" and a NUL into text[size], cut to fit.
 * Returns the length of the whole line without the NUL, as snprintf does.
 */
TAMIS_API int32_t tamis_error_text(const tamis_error *error, char *text, int64_t size);

#ifdef __cplusplus
}
#endif
#endif
