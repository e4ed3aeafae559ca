// SPDX-License-Identifier: MIT
/*
 * peers_topk.cu: others' selections from scores in memory beside ours, on one GPU, without torch:
 * FlashInfer's kernels from its headers, and tokenspeed-kernel's DeepSelect if peers_export.py made
 * it. FI is where the wheels of flashinfer-python and apache-tvm-ffi (headers alone) were unpacked:
 *   nvcc -O3 -std=c++17 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc \
 *       -IFI/flashinfer/data/include -IFI/flashinfer/data/cccl/cub \
 *       -IFI/flashinfer/data/cccl/libcudacxx/include -IFI/flashinfer/data/cccl/thrust \
 *       -IFI/tvm_ffi/include bench/gpu/peers_topk.cu -o peers_topk
 * and with it -DDEEP_SELECT -IOUT OUT/deep_select_*.o libcuda_dialect_runtime_static.a -lcuda.
 * peers_topk check | time [PEER], a part of a name. check: which set, in what order, the same each
 * time. Times are medians of CUDA events around a graph: one launch after 512 MiB were written, or
 * of 20 launches, each.
 */
#define CUB_DISABLE_TOPK_UNSUPPORTED_ARCH_ASSERT
#include <cub/device/device_batched_topk.cuh>
#include <cuda/argument>
#include <cuda/iterator>

#include <flashinfer/fast_topk_clusters_exact.cuh>
#include <flashinfer/math.cuh>
#include <flashinfer/topk.cuh>

#ifdef DEEP_SELECT
#include "deep_select_2048_1.h"
#include "deep_select_2048_2.h"
#include "deep_select_2048_4.h"
#include "deep_select_512_1.h"
#endif

#include "call.cuh"
#include "peers.cuh"

#include "kernels/cuda/publish.cu"
#include "kernels/cuda/topk.cu"

namespace {

namespace fi = flashinfer::sampling;

constexpr int kMostRows = 8192;
constexpr int64_t kMostScores = (int64_t)kMostRows * 16384;

/* ---- a problem, and who solves it ---- */

struct Problem {
    float *scores;
    int rows, length, topk;
    int32_t *positions; /* out */
    int64_t *wide;      /* out, of CUB */
    float *values;      /* out */
    int32_t *counts, *lengths, *zeros;
    fi::RadixRowState *states;
    int32_t *spill;
    void *work;
    size_t work_bytes;
};

struct Peer {
    const char *name;
    bool wide; /* positions are 64-bit */
    std::function<bool(const Problem &)> serves;
    std::function<void(const Problem &, cudaStream_t)> run;
};

/* FlashInfer's call of CUB for rows of up to 2^21 scores (csrc/cub_topk.cu). */
struct Widen {
    __device__ int64_t operator()(int32_t at) const {
        return at;
    }
};

template <class Tie, class Determinism>
void cub_topk(const Problem &p, cudaStream_t stream, Determinism determinism, Tie tie) {
    const auto count = [](auto *from) { return cuda::make_counting_iterator(from); };
    const int64_t length = p.length, topk = p.topk, rows = p.rows;
    constexpr int64_t most = (int64_t)1 << 21;
    const auto env = cuda::std::execution::env{
        cuda::execution::require(determinism, tie, cuda::execution::output_ordering::unsorted),
        cuda::stream_ref{stream}};
    size_t bytes = 0;
    for (void *work : {(void *)nullptr, p.work}) {
        CHECK(cub::DeviceBatchedTopK::MaxPairs(
            work, bytes, cuda::make_strided_iterator(count((const float *)p.scores), length),
            cuda::make_strided_iterator(count(p.values), topk),
            cuda::make_constant_iterator(cuda::make_counting_iterator((int32_t)0)),
            cuda::make_strided_iterator(
                cuda::make_counting_iterator(cuda::make_transform_output_iterator(p.wide, Widen{})),
                topk),
            cuda::args::immediate{length, cuda::args::bounds<(int64_t)1, most>()},
            cuda::args::immediate{topk, cuda::args::bounds<(int64_t)1, most>()},
            cuda::args::immediate{rows}, env));
        if (bytes > p.work_bytes) {
            printf("FAILED: CUB wants %zu bytes\n", bytes);
            exit(1);
        }
    }
}

/* FlashInfer's choice of clusters and of what lies in shared memory (topk.py). */
void fi_clusters(const Problem &p, cudaStream_t stream) {
    const int each = p.rows <= 32 ? 8 : p.rows < 128 ? 4 : p.rows < 256 ? 2 : 1;
    const int shared = 232448 / 2, cached = (shared - (p.topk + 5 + 3 * 256 + 8) * 4 - 1024) / 16;
    fi::launch_fast_topk_clusters_exact<float, int>(
        p.scores, p.positions, p.values, p.length, nullptr, p.spill, p.length / each, p.rows,
        p.length, p.topk, cached, each, false, p.topk, stream);
}

void fi_ragged(const Problem &p, bool deterministic, fi::TopKTieBreak ties, cudaStream_t stream) {
    CHECK((fi::TopKRaggedTransformDispatch<float, int32_t>(
        p.scores, p.positions, p.zeros, p.lengths, nullptr, (uint32_t)p.rows, (uint32_t)p.topk,
        (uint32_t)p.length, p.states, deterministic, ties, stream)));
}

/* ---- DeepSelect ---- */

#ifdef DEEP_SELECT
constexpr int kMultiprocessors = 132;

/* Clusters as choose_cluster_size of deep_select.py has them. */
void deep_select(const Problem &p, cudaStream_t stream) {
    const SelectCall call = {p.scores, p.lengths, p.positions, p.values, p.rows, p.length, p.topk};
    if (p.topk <= 512) {
        DEEP_SELECT_CALL(deep_select_512_1, call, stream)
    } else if (p.rows * 4 <= kMultiprocessors * 5 / 8) {
        DEEP_SELECT_CALL(deep_select_2048_4, call, stream)
    } else if (p.rows * 2 <= kMultiprocessors * 5 / 6) {
        DEEP_SELECT_CALL(deep_select_2048_2, call, stream)
    } else {
        DEEP_SELECT_CALL(deep_select_2048_1, call, stream)
    }
}
#endif

/* ---- ours ---- */

void our_pool(const Problem &p, float *values, cudaStream_t stream) {
    tamis_topk_args a = {};
    a.logits_type = TAMIS_F32;
    a.block_size = 8;
    a.rows.count = p.rows;
    a.width = a.logits_stride = p.length;
    a.logits = p.scores;
    a.selection.topk = p.topk;
    a.selection.positions_stride = a.selection.scores_stride = p.topk;
    a.selection.positions = p.positions;
    a.selection.scores = values;
    a.selection.counts = p.counts;
    tamis_topk_pool_smxx<<<(unsigned)p.rows, tamis::kPickThreads, 0, stream>>>(a, 0, INT32_MAX,
                                                                               tamis_score_tile{});
}

/* p.length scores are maxima of blocks of 8 positions; the last block is taken in any case. */
void our_list(const Problem &p, bool team, cudaStream_t stream) {
    tamis_publish_job job = {};
    job.rows.count = p.rows;
    job.rows.ke = p.zeros + kMostRows;
    job.block_max = p.scores;
    job.block_max_stride = p.length;
    job.limit = INT32_MAX;
    job.block_size = 8;
    job.list[0].blocks = p.positions;
    job.list[0].counts = p.counts;
    job.list[0].blocks_stride = job.list[0].width = p.topk;
    if (team) {
        tamis_publish_team_sm90<<<(unsigned)p.rows * 8, tamis::kTeamThreads, 2 * tamis::kListBytes,
                                  stream>>>(job);
    } else {
        tamis_publish_smxx<<<(unsigned)p.rows, tamis::kPublishThreads, tamis::kListBytes, stream>>>(
            job);
    }
}

/* Whose name has `only` in it. */
std::vector<Peer> all_peers(const std::string &only) {
    namespace ex = cuda::execution;
    const auto any = [](const Problem &) { return true; };
    const auto pools = [](const Problem &p) { return p.length <= 16384; };
    const auto lists = [](const Problem &p) { return p.length > 16384; };
    std::vector<Peer> peers = {
        {"tamis: positions", false, pools,
         [](const Problem &p, cudaStream_t st) { our_pool(p, nullptr, st); }},
        {"tamis: positions, scores", false, pools,
         [](const Problem &p, cudaStream_t st) { our_pool(p, p.values, st); }},
        {"tamis: list, cluster", false, lists,
         [](const Problem &p, cudaStream_t st) { our_list(p, true, st); }},
        {"tamis: list, one CTA", false, lists,
         [](const Problem &p, cudaStream_t st) { our_list(p, false, st); }},
        {"FI: CUB", true, any,
         [](const Problem &p, cudaStream_t st) {
             cub_topk(p, st, ex::determinism::not_guaranteed, ex::tie_break::unspecified);
         }},
        {"FI: CUB, low ties", true, any,
         [](const Problem &p, cudaStream_t st) {
             cub_topk(p, st, ex::determinism::gpu_to_gpu, ex::tie_break::prefer_smaller_index);
         }},
        {"FI: filtered", false, any,
         [](const Problem &p, cudaStream_t st) {
             CHECK((fi::FilteredTopK<float, int32_t>(
                 p.scores, p.positions, p.values, nullptr, (uint32_t)p.rows, (uint32_t)p.topk,
                 (uint32_t)p.length, false, fi::TopKTieBreak::None, st)));
         }},
        {"FI: low ties, ascending", false, any,
         [](const Problem &p, cudaStream_t st) {
             CHECK((fi::TopKDispatch<float, int32_t>(
                 p.scores, p.positions, p.values, (uint32_t)p.rows, (uint32_t)p.topk,
                 (uint32_t)p.length, p.states, false, true, fi::TopKTieBreak::Small, st)));
         }},
        {"FI: ragged", false, any,
         [](const Problem &p, cudaStream_t st) {
             fi_ragged(p, false, fi::TopKTieBreak::None, st);
         }},
        {"FI: ragged, low, ascending", false, any,
         [](const Problem &p, cudaStream_t st) {
             fi_ragged(p, true, fi::TopKTieBreak::Small, st);
         }},
        {"FI: radix", false, any,
         [](const Problem &p, cudaStream_t st) {
             CHECK((fi::RadixTopKMultiCTA<float, int32_t>(
                 p.scores, p.positions, p.values, nullptr, (uint32_t)p.rows, (uint32_t)p.topk,
                 (uint32_t)p.length, p.states, false, st)));
         }},
        {"FI: clusters (SM100's)", false, any, fi_clusters},
#ifdef DEEP_SELECT
        {"tokenspeed: DeepSelect", false, any, deep_select},
#endif
    };
    peers.erase(std::remove_if(peers.begin(), peers.end(),
                               [&](const Peer &peer) {
                                   return std::string(peer.name).find(only) == std::string::npos;
                               }),
                peers.end());
    return peers;
}

/* What flashinfer.top_k of float32 takes on Hopper, eagerly (topk.py, topk.cuh). */
const char *picked(const Problem &p) {
    if (p.rows < 128) {
        return "FI: CUB";
    }
    return fi::ShouldUseFilteredTopK<float>((uint32_t)p.rows, (uint32_t)p.topk, (uint32_t)p.length,
                                            false, fi::TopKTieBreak::None)
               ? "FI: filtered"
               : "FI: radix";
}

/* ---- memory ---- */

Problem memory() {
    Problem p = {};
    const size_t results = (size_t)kMostRows * 512;
    CHECK(cudaMalloc(&p.scores, (size_t)kMostScores * 4));
    CHECK(cudaMalloc(&p.positions, results * 4));
    CHECK(cudaMalloc(&p.wide, results * 8));
    CHECK(cudaMalloc(&p.values, results * 4));
    CHECK(cudaMalloc(&p.counts, kMostRows * 4));
    CHECK(cudaMalloc(&p.lengths, kMostRows * 4));
    CHECK(cudaMalloc(&p.zeros, 2 * kMostRows * 4)); /* then the positions that a row sees */
    CHECK(cudaMemset(p.zeros, 0, kMostRows * 4));
    CHECK(cudaMalloc(&p.states, 1 << 20));
    CHECK(cudaMemset(p.states, 0, 1 << 20));
    CHECK(cudaMalloc(&p.spill, (size_t)kMostScores * 16));
    p.work_bytes = (size_t)1 << 30;
    CHECK(cudaMalloc(&p.work, p.work_bytes));
    return p;
}

/* Normal; or few values. The last of a list's row is the best. */
void fill_scores(Problem &p, int rows, bool list, int kind) {
    const int length = list ? 131072 : 16384;
    p.rows = rows;
    p.length = length;
    p.topk = list ? 2048 : 512;
    random_bits bits(5);
    std::vector<float> some(1 << 20), scores((size_t)rows * (size_t)length);
    for (auto &x : some) {
        const float normal = 3.0f + std::normal_distribution<float>()(bits);
        x = kind == 0 ? normal : kind == 1 ? (float)(bits() % 7) - 3.0f : 1.5f;
    }
    for (size_t i = 0; i < scores.size(); i++) {
        scores[i] = some[(i * 7919) & (some.size() - 1)];
    }
    for (int r = 0; r < rows && list; r++) {
        scores[(size_t)(r + 1) * (size_t)length - 1] = 1000.0f;
    }
    CHECK(cudaMemcpy(p.scores, scores.data(), scores.size() * 4, cudaMemcpyHostToDevice));
    std::vector<int32_t> lengths((size_t)rows, length), ke((size_t)rows, 8 * length);
    CHECK(cudaMemcpy(p.lengths, lengths.data(), (size_t)rows * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(p.zeros + kMostRows, ke.data(), (size_t)rows * 4, cudaMemcpyHostToDevice));
}

/* ---- checks ---- */

std::vector<int64_t> positions_of(const Problem &p, const Peer &peer) {
    const size_t n = (size_t)p.rows * (size_t)p.topk;
    std::vector<int64_t> wide(n);
    if (peer.wide) {
        CHECK(cudaMemcpy(wide.data(), p.wide, n * 8, cudaMemcpyDeviceToHost));
        return wide;
    }
    std::vector<int32_t> narrow(n);
    CHECK(cudaMemcpy(narrow.data(), p.positions, n * 4, cudaMemcpyDeviceToHost));
    return {narrow.begin(), narrow.end()};
}

/* Of some rows: their scores, and the best of them, ascending. */
struct Best {
    std::vector<int> rows;
    std::vector<std::vector<float>> scores;
    std::vector<std::vector<int64_t>> positions;
};

Best best_of(const Problem &p) {
    Best best;
    for (int r : {0, p.rows / 2, p.rows - 1}) {
        std::vector<float> x((size_t)p.length);
        std::vector<int64_t> order(x.size());
        CHECK(cudaMemcpy(x.data(), p.scores + (int64_t)r * p.length, x.size() * 4,
                         cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < order.size(); i++) {
            order[i] = (int64_t)i;
        }
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return x[(size_t)a] > x[(size_t)b]; });
        order.resize((size_t)p.topk);
        std::sort(order.begin(), order.end());
        best.rows.push_back(r);
        best.scores.push_back(x);
        best.positions.push_back(order);
    }
    return best;
}

struct Finding {
    bool exact = true, best = true, ascending = true, falling = true, again = true;
};

Finding look(const Problem &p, const Peer &peer, const Best &best, int runs) {
    const size_t n = (size_t)p.rows * (size_t)p.topk;
    Finding f;
    std::vector<int64_t> first;
    for (int i = 0; i < runs; i++) {
        CHECK(cudaMemset(p.positions, 0xA5, n * 4));
        CHECK(cudaMemset(p.wide, 0xA5, n * 8));
        peer.run(p, 0);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        std::vector<int64_t> got = positions_of(p, peer);
        f.again &= i == 0 || got == first;
        first = got;
    }
    for (size_t i = 0; i < best.rows.size(); i++) {
        const std::vector<int64_t> &want = best.positions[i];
        const auto from = first.begin() + (int64_t)best.rows[i] * p.topk;
        std::vector<int64_t> got(from, from + p.topk);
        const auto at = [&](int64_t j) {
            return j < 0 || j >= p.length ? -INFINITY : best.scores[i][(size_t)j];
        };
        const auto values = [&](const std::vector<int64_t> &of) {
            std::vector<float> x;
            for (int64_t j : of) {
                x.push_back(at(j));
            }
            std::sort(x.begin(), x.end());
            return x;
        };
        f.ascending &= std::is_sorted(got.begin(), got.end());
        f.falling &= std::is_sorted(got.begin(), got.end(),
                                    [&](int64_t a, int64_t b) { return at(a) > at(b); });
        std::sort(got.begin(), got.end());
        f.best &=
            values(got) == values(want) && std::adjacent_find(got.begin(), got.end()) == got.end();
        f.exact &= got == want;
    }
    return f;
}

bool check_all(Problem &p, const std::string &only) {
    static const char *const kinds[] = {"normal", "7 values", "all equal"};
    bool good = true;
    for (bool list : {false, true}) {
        for (int kind = 0; kind < 3; kind++) {
            for (int rows : {3, 70}) { /* clusters of eight and of four */
                fill_scores(p, rows, list, kind);
                const Best best = best_of(p);
                for (const Peer &peer : all_peers(only)) {
                    if (!peer.serves(p)) {
                        continue;
                    }
                    const Finding f = look(p, peer, best, 10);
                    printf("%2d rows, %4d of %6d, %-9s %-27s %s; %s; %s\n", rows, p.topk, p.length,
                           kinds[kind], peer.name,
                           f.exact  ? "exact, ties to the lowest"
                           : f.best ? "best values, other ties"
                                    : "WRONG",
                           f.ascending ? "ascending"
                           : f.falling ? "by value"
                                       : "no order",
                           f.again ? "same each time" : "changes");
                    good &= f.exact || strncmp(peer.name, "tamis", 5) != 0;
                    fflush(stdout);
                }
            }
        }
    }
    printf("check: %s\n", good ? "ours exact" : "FAILED");
    return good;
}

/* ---- times ---- */

/* What does not select the best of normal scores is not timed. */
void time_all(Problem &p, const std::string &only) {
    Timer timer;
    for (bool list : {false, true}) {
        for (int rows : {1, 8, 64, 512, 8192}) {
            if (list && rows > 512) {
                continue;
            }
            fill_scores(p, rows, list, 0);
            const Best best = best_of(p);
            for (const Peer &peer : all_peers(only)) {
                if (!peer.serves(p)) {
                    continue;
                }
                if (!look(p, peer, best, 2).best) {
                    printf("%4d of %6d, %4d rows %-27s WRONG\n", p.topk, p.length, rows, peer.name);
                    continue;
                }
                const Times t = times_of(timer, [&](cudaStream_t st) { peer.run(p, st); });
                printf("%4d of %6d, %4d rows %-27s cold %9.2f us %8.1f ns/row, warm %9.2f us%s\n",
                       p.topk, p.length, rows, peer.name, t.cold, t.cold * 1e3 / rows, t.warm,
                       strcmp(peer.name, picked(p)) ? "" : "  <- flashinfer.top_k");
                fflush(stdout);
            }
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    CHECK(cudaFuncSetAttribute(tamis_publish_team_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               2 * tamis::kListBytes));
    CHECK(cudaFuncSetAttribute(tamis_publish_smxx, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               tamis::kListBytes));
    const std::string what = argc > 1 ? argv[1] : "check", only = argc > 2 ? argv[2] : "";
    Problem p = memory();
    if (what == "check") {
        return check_all(p, only) ? 0 : 1;
    }
    time_all(p, only);
    return 0;
}
