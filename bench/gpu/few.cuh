// SPDX-License-Identifier: MIT
/* few.cuh: a consumer of few rows for bench programs, behind decode_sm90.cu: its launch, and
 * the call that is timed. */
#ifndef TAMIS_BENCH_GPU_FEW_CUH
#define TAMIS_BENCH_GPU_FEW_CUH

#include "call.cuh"

namespace {

constexpr int kMultiprocessors = 132;

__global__ void nothing() {
}

/* Before the first launch. */
void allow_split() {
    CHECK(cudaFuncSetAttribute(tamis_consume_split_smxx,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(tamis::SplitShared)));
    CHECK(cudaFuncSetAttribute(tamis_consume_copied_smxx,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(tamis::CopiedShared)));
    CHECK(cudaFuncSetAttribute(tamis_consume_split_sm90,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(tamis::hopper::SplitMemory)));
}

/* How a warp has its part of a row: two blocks of it; 1 to 8 steps, copied ahead; all by wgmma; or,
 * kGroups and 1 to 8, groups of so many steps. */
constexpr int kTwo = 0, kWgmma = -1, kGroups = 16;

void split(const tamis_sparse_mqa_logits_args &a, const tamis_selection &out, uint32_t *done,
           int parts, int how, cudaStream_t stream = 0) {
    const int at_once = 64 * parts, part = ((int)a.width + at_once - 1) / at_once;
    const int steps = how == kWgmma ? part : how % kGroups;
    auto *kernel = tamis_consume_split_smxx;
    size_t shared = sizeof(tamis::SplitShared);
    if (how == kWgmma) {
        kernel = tamis_consume_split_sm90;
        shared = sizeof(tamis::hopper::SplitMemory);
    } else if (how > 0 && how < kGroups) {
        kernel = tamis_consume_copied_smxx;
        shared = sizeof(tamis::CopiedShared);
    }
    kernel<<<dim3((unsigned)parts, (unsigned)a.rows.count), tamis::kSplitThreads, shared, stream>>>(
        a, out, done, nullptr, steps, tamis_gate_args{});
}

/* Rows with a count and a request, as a plan passes them. */
struct Few {
    Call c;
    Shape s;
    Outputs out;
    uint32_t *done;
    int parts, how, any; /* as launch.c has them; by mma.sync */

    Few(int rows, uint64_t seed, int64_t positions = 1048576) : s(released(rows, positions)) {
        make(c, s, seed);
        out = positions_of(c, s);
        c.score.logits = out.logits;
        c.score.counts = c.keep(on_device(std::vector<int32_t>((size_t)rows, s.width)));
        c.score.rows.request = c.keep(on_device(std::vector<int32_t>((size_t)rows, 0)));
        done = c.keep(on_device(std::vector<uint32_t>((size_t)rows, 0u)));
        parts = std::max(1, std::min(kMultiprocessors / rows, s.width / 16));
        const int part = (s.width + 64 * parts - 1) / (64 * parts);
        any = 32 * parts >= s.width ? kTwo : part > 8 ? kGroups + 8 : part;
        how = any == kTwo || part <= 3 ? any : kWgmma;
    }
};

} // namespace

#endif
