// SPDX-License-Identifier: MIT
/* measure.cuh: what bench programs share: errors, random bits, times with a cold L2. */
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

} // namespace

#endif
