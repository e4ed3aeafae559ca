/* SPDX-License-Identifier: MIT */
/* calls.c: the public calls behind one type, and the calls of the levels with their workspaces. */
#include "place.h"

#include <stddef.h>

#define CALL_BODY(call, function)                                                                  \
    tamis_status call(const tamis_backend *backend, const void *args, int32_t ith, int32_t nth,    \
                      tamis_error *error) {                                                        \
        return function(backend, args, ith, nth, error);                                           \
    }
#define STAGE_CALL(name) CALL_BODY(call_##name, tamis_##name)
TAMIS_STAGE_LIST(STAGE_CALL)
#undef STAGE_CALL
static CALL_BODY(consume_score, tamis_consume_score) static CALL_BODY(
    consume_merge,
    tamis_consume_merge) static CALL_BODY(source_score,
                                          tamis_source_score) static CALL_BODY(source_merge,
                                                                               tamis_source_merge)

#define WORKSPACE_BODY(name, stage, function)                                                      \
    static int64_t name(const stage_args *args, int32_t nth) {                                     \
        return function(&args->stage, nth);                                                        \
    }
    WORKSPACE_BODY(consume_whole, consume, tamis_consume_workspace)
        WORKSPACE_BODY(consume_split, consume, tamis_consume_split_workspace)
            WORKSPACE_BODY(source_whole, source, tamis_source_workspace)
                WORKSPACE_BODY(source_split, source, tamis_source_split_workspace)
                    WORKSPACE_BODY(dense_whole, dense, tamis_dense_workspace)

                        void trial_consume(trial *t) {
    int split = t->place.split && !trial_elsewhere;
    t->phases[0] = split ? consume_score : call_consume;
    t->phases[1] = split ? consume_merge : NULL;
    t->workspace = split ? consume_split : consume_whole;
    t->workspace_field = &t->args.consume.workspace;
    t->workspace_bytes_field = &t->args.consume.workspace_bytes;
}

void trial_source(trial *t) {
    int split = t->place.split && !trial_elsewhere;
    t->phases[0] = split ? source_score : call_source;
    t->phases[1] = split ? source_merge : NULL;
    t->workspace = split ? source_split : source_whole;
    t->workspace_field = &t->args.source.workspace;
    t->workspace_bytes_field = &t->args.source.workspace_bytes;
}

void trial_dense(trial *t) {
    t->phases[0] = call_dense;
    t->workspace = dense_whole;
    t->workspace_field = &t->args.dense.workspace;
    t->workspace_bytes_field = &t->args.dense.workspace_bytes;
}
