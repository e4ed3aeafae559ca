// SPDX-License-Identifier: MIT
/* few.cuh: a consumer of few rows for bench programs, behind decode_sm90.cu: its launch, the call
 * that is timed, and graphs. */
#ifndef TAMIS_BENCH_GPU_FEW_CUH
#define TAMIS_BENCH_GPU_FEW_CUH

#include "call.cuh"

namespace {

constexpr int kMultiprocessors = 132;

using Queue = std::function<void(cudaStream_t)>;

__global__ void nothing() {
}

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

/* Before the first launch. */
void allow_split() {
    CHECK(cudaFuncSetAttribute(tamis_consume_split_smxx,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(tamis::SplitShared)));
    CHECK(cudaFuncSetAttribute(tamis_consume_split_sm90,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(tamis::hopper::SplitMemory)));
}

/* steps 0: two blocks a warp; by wgmma: -1, its part of the row. */
void split(const tamis_sparse_mqa_logits_args &a, const tamis_selection &out, uint32_t *done,
           int parts, int steps, cudaStream_t stream = 0) {
    if (steps < 0) {
        const int at_once = 64 * parts;
        tamis_consume_split_sm90<<<dim3((unsigned)parts, (unsigned)a.rows.count),
                                   tamis::kSplitThreads, sizeof(tamis::hopper::SplitMemory),
                                   stream>>>(
            a, out, done, nullptr, ((int)a.width + at_once - 1) / at_once, tamis_gate_args{});
        return;
    }
    tamis_consume_split_smxx<<<dim3((unsigned)parts, (unsigned)a.rows.count), tamis::kSplitThreads,
                               sizeof(tamis::SplitShared), stream>>>(a, out, done, nullptr, steps,
                                                                     tamis_gate_args{});
}

/* Rows with a count and a request, as a plan passes them. */
struct Few {
    Call c;
    Shape s;
    Outputs out;
    uint32_t *done;
    int parts, steps; /* as launch.c has them by mma.sync */

    Few(int rows, uint64_t seed) : s(released(rows, 1048576)) {
        make(c, s, seed);
        out = positions_of(c, s);
        c.score.logits = out.logits;
        c.score.counts = c.keep(on_device(std::vector<int32_t>((size_t)rows, s.width)));
        c.score.rows.request = c.keep(on_device(std::vector<int32_t>((size_t)rows, 0)));
        done = c.keep(on_device(std::vector<uint32_t>((size_t)rows, 0u)));
        parts = std::max(1, std::min(kMultiprocessors / rows, s.width / 16));
        steps = 32 * parts >= s.width ? 0 : std::min(8, std::max(1, s.width / (64 * parts)));
    }
};

} // namespace

#endif
