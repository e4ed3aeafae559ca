// SPDX-License-Identifier: MIT
/* peers.cuh: what programs that time peers share: times, and launches of the kernels that
 * peers_export.py compiled. */
#ifndef TAMIS_BENCH_GPU_PEERS_CUH
#define TAMIS_BENCH_GPU_PEERS_CUH

#include "measure.cuh"

namespace {

/* Microseconds. */
struct Times {
    float cold, warm; /* of one launch; of twenty in L2, each */
};

Times times_of(Timer &timer, const Queue &queue) {
    const auto twenty = [&](cudaStream_t stream) {
        for (int i = 0; i < 20; i++) {
            queue(stream);
        }
    };
    const float cold = timer.run(queue);
    return {cold, timer.run(twenty, false) / 20};
}

void good_or_exit(int error, const char *what) {
    if (error) {
        printf("FAILED: %s: %d\n", what, error);
        exit(1);
    }
}

/* A kernel's module; not loaded while a graph is captured, if it was launched before. */
#define MODULE(name)                                                                               \
    ([] {                                                                                          \
        static name##_Kernel_Module_t module;                                                      \
        static const bool loaded = (name##_Kernel_Module_Load(&module), true);                     \
        (void)loaded;                                                                              \
        return &module;                                                                            \
    }())

/* Rows of scores, and what DeepSelect selects from them. */
struct SelectCall {
    float *scores;
    int32_t *ends, *positions;
    float *values;
    int rows, length, topk;
};

#define DEEP_SELECT_CALL(name, call, stream)                                                       \
    {                                                                                              \
        name##_Tensor_scores_t scores = {call.scores, {call.rows, call.length}, {call.length}};    \
        name##_Tensor_ends_t ends = {call.ends, {call.rows}};                                      \
        name##_Tensor_out_t out = {call.positions, {call.rows, call.topk}, {call.topk}};           \
        name##_Tensor_values_t values = {call.values, {call.rows, call.topk}, {call.topk}};        \
        good_or_exit(                                                                              \
            cute_dsl_##name##_wrapper(MODULE(name), &scores, &ends, &out, &values, stream),        \
            #name);                                                                                \
    }

} // namespace

#endif
