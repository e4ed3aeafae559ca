// SPDX-License-Identifier: MIT
/* measure.cuh: what bench programs share: errors, random bits, times with a cold L2, graphs. */
#ifndef TAMIS_BENCH_GPU_MEASURE_CUH
#define TAMIS_BENCH_GPU_MEASURE_CUH

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error = (call);                                                                \
        if (error != cudaSuccess) {                                                                \
            printf("FAILED: %s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

namespace {

using random_bits = std::mt19937_64;

float median(std::vector<float> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/* Of CUDA events around runs; before each, 512 MiB are written: no input is in L2 then. */
float median_ms(int repeats, const std::function<void()> &run) {
    const size_t bytes = (size_t)512 << 20;
    static uint8_t *flush;
    std::vector<float> times;
    cudaEvent_t from, to;
    if (flush == nullptr) {
        CHECK(cudaMalloc(&flush, bytes));
    }
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    run();
    for (int i = 0; i < repeats; i++) {
        CHECK(cudaMemsetAsync(flush, i, bytes));
        CHECK(cudaEventRecord(from));
        run();
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, from, to));
        times.push_back(ms);
    }
    CHECK(cudaGetLastError());
    return median(times);
}

using Queue = std::function<void(cudaStream_t)>;

cudaGraphExec_t graph_of(cudaStream_t stream, const Queue &queue) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    queue(stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
}

/* Of graphs. */
struct Timer {
    static constexpr size_t kFlush = (size_t)512 << 20;
    uint8_t *flush;
    cudaStream_t stream;
    cudaEvent_t from, to;
    Timer() {
        CHECK(cudaMalloc(&flush, kFlush));
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaEventCreate(&from));
        CHECK(cudaEventCreate(&to));
    }
    /* Microseconds of a graph of what `queue` queues. */
    float run(const Queue &queue, bool cold = true) {
        cudaGraphExec_t exec = graph_of(stream, queue);
        std::vector<float> times;
        for (int i = 0; i < 12; i++) {
            if (cold) {
                CHECK(cudaMemsetAsync(flush, i, kFlush, stream));
            }
            CHECK(cudaEventRecord(from, stream));
            CHECK(cudaGraphLaunch(exec, stream));
            CHECK(cudaEventRecord(to, stream));
            CHECK(cudaStreamSynchronize(stream));
            float ms;
            CHECK(cudaEventElapsedTime(&ms, from, to));
            if (i > 0) {
                times.push_back(ms * 1000.0f);
            }
        }
        CHECK(cudaGetLastError());
        CHECK(cudaGraphExecDestroy(exec));
        return median(times);
    }
};

} // namespace

#endif
