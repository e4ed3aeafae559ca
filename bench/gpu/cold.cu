// SPDX-License-Identifier: MIT
/*
 * cold.cu: what a consumer of few rows pays for inputs that are not in L2, by what is missing:
 * the same launch after L2 was filled with dirty or with clean lines, with translations, code or
 * some of the inputs there. Kernels are those that select.cu checks. A program of its own:
 *   nvcc -O3 -std=c++17 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc \
 *       bench/gpu/cold.cu -o cold
 * cold why: by what is missing; layer: what a layer adds to a graph; border: the same and launches
 * alone, of up to 24 rows by mma.sync and by wgmma; pools: rows whose K is their own, in pools of
 * many sizes; profile: a launch each of 1, 8 and 64 rows, twice (for ncu).
 */
#include "call.cuh"

#include "kernels/cuda/consume.cu"
#include "kernels/cuda/decode.cu"
#include "kernels/cuda/decode_sm90.cu"

#include "few.cuh"

namespace {

constexpr int kPage = 2 << 20; /* of an address translation */
constexpr size_t kMiB = 1 << 20;

/* ---- what is done before a launch ---- */

/* So that all that is timed is queued before it can start. */
__global__ void pause(int64_t cycles) {
    for (const int64_t from = clock64(); clock64() - from < cycles;) {
    }
}

/* Reads the first 2^part of every 2^stride bytes. */
__global__ void read_all(const uint8_t *from, size_t bytes, int stride, int part, uint32_t *sink) {
    const uint32_t count = (uint32_t)(bytes >> stride << (part - 4)), mask = (1u << (part - 4)) - 1;
    const uint32_t step = gridDim.x * blockDim.x;
    uint32_t sum = 0;
#pragma unroll 8
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const size_t at = ((size_t)(i >> (part - 4)) << stride) + (i & mask) * 16;
        const uint4 x = __ldcg((const uint4 *)(from + at));
        sum ^= x.x ^ x.y ^ x.z ^ x.w;
    }
    if (sum == 0x13579BDFu) { /* what is there is the bytes of a memset */
        *sink = sum;
    }
}

struct Range {
    const uint8_t *from;
    size_t bytes;
};

struct Ranges {
    Range of[12];
    int count;
};

/* One word of every page, by every multiprocessor; or all bytes, by any. */
__global__ void touch(Ranges ranges, bool all, uint32_t *sink) {
    uint32_t sum = 0;
    const size_t stride = all ? 32 : kPage,
                 first = all ? blockIdx.x * 1024 + threadIdx.x : threadIdx.x,
                 step = all ? gridDim.x * 1024 : 1024;
    for (int r = 0; r < ranges.count; r++) {
        for (size_t i = first; i * stride < ranges.of[r].bytes; i += step) {
            sum ^= __ldcg((const uint32_t *)(ranges.of[r].from + i * stride));
        }
    }
    if (sum == 0x13579BDFu) {
        *sink = sum;
    }
}

/* K of blocks: 512 bytes of codes and 32 of scales, a warp a block. */
__global__ void touch_blocks(const uint8_t *k, const uint32_t *codes, const uint32_t *scales,
                             int count, uint32_t *sink) {
    uint32_t sum = 0;
    const int lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x / 32);
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < count; i += warps) {
        const uint4 x = __ldcg((const uint4 *)(k + (uint64_t)codes[i] * 16) + lane);
        sum ^= x.x ^ x.y ^ x.z ^ x.w;
        sum ^= __ldcg((const uint32_t *)(k + (uint64_t)scales[i] * 16) + lane % 8);
    }
    if (sum == 0x13579BDFu) {
        *sink = sum;
    }
}

/* Memory that is none of the inputs: filling L2 with it leaves them out. */
struct Flush {
    static constexpr size_t kBytes = 16384 * kMiB;
    uint8_t *memory;
    uint32_t *sink;
    Flush() {
        CHECK(cudaMalloc(&memory, kBytes));
        CHECK(cudaMalloc(&sink, 4));
        CHECK(cudaMemset(memory, 0, kBytes));
    }
    void write(cudaStream_t s, int value = 1) const {
        CHECK(cudaMemsetAsync(memory, value, 512 * kMiB, s));
    }
    void read(cudaStream_t s, size_t mib = 512) const {
        read_all<<<2 * kMultiprocessors, 1024, 0, s>>>(memory, mib * kMiB, 12, 12, sink);
    }
    /* 16 KB of each of 8,192 pages. */
    void spread(cudaStream_t s) const {
        read_all<<<2 * kMultiprocessors, 1024, 0, s>>>(memory, kBytes, 21, 14, sink);
    }
};

/* ---- times ---- */

struct Way {
    std::string name;
    Queue before, timed;
};

/* Medians of microseconds, in turns. */
std::vector<float> times_of(const std::vector<Way> &ways, int runs) {
    cudaStream_t stream;
    cudaEvent_t from, to;
    std::vector<cudaGraphExec_t> graphs;
    std::vector<std::vector<float>> times(ways.size());
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (auto &way : ways) {
        graphs.push_back(graph_of(stream, way.timed));
    }
    for (int i = -1; i < runs; i++) {
        for (size_t w = 0; w < ways.size(); w++) {
            float ms;
            pause<<<1, 1, 0, stream>>>(100000);
            ways[w].before(stream);
            CHECK(cudaEventRecord(from, stream));
            CHECK(cudaGraphLaunch(graphs[w], stream));
            CHECK(cudaEventRecord(to, stream));
            CHECK(cudaStreamSynchronize(stream));
            CHECK(cudaEventElapsedTime(&ms, from, to));
            if (i >= 0) {
                times[w].push_back(ms * 1000.0f);
            }
        }
    }
    CHECK(cudaGetLastError());
    std::vector<float> medians;
    for (size_t w = 0; w < ways.size(); w++) {
        CHECK(cudaGraphExecDestroy(graphs[w]));
        medians.push_back(median(times[w]));
    }
    CHECK(cudaEventDestroy(from));
    CHECK(cudaEventDestroy(to));
    CHECK(cudaStreamDestroy(stream));
    return medians;
}

/* ---- a consumer of few rows ---- */

struct Consumer : Few {
    using Few::Few;

    /* by_any: by mma.sync, as on any GPU. */
    void run(cudaStream_t stream = 0, bool by_any = false) const {
        split(c.score, out.selection, done, parts, by_any ? any : how, stream);
    }
    template <class T> static Range range(const T *from, size_t count) {
        return {(const uint8_t *)from, count * sizeof(T)};
    }
    Ranges k() const {
        return {
            {range((const uint8_t *)c.score.k.codes, (size_t)(c.score.k.size * c.score.k.stride))},
            1};
    }
    /* All that is read but K. */
    Ranges rest() const {
        const size_t n = (size_t)s.rows, lists = n * (size_t)s.width;
        return {
            {range(c.score.blocks, lists), range(c.score.physical, lists),
             range(c.score.rows.ke, n), range(c.score.counts, n), range(c.score.rows.request, n),
             range(done, n), range((const uint8_t *)c.score.query.codes, n * 32 * 64),
             range((const uint8_t *)c.score.query.scales, n * 32 * 4),
             range((const float *)c.score.query.weights, n * 32),
             range(out.logits, (size_t)out.logits_bytes),
             range(out.selection.positions, n * (size_t)s.topk), range(out.selection.counts, n)},
            12};
    }
};

std::vector<int32_t> places_of(const Consumer &c) {
    std::vector<int32_t> places((size_t)(c.s.rows * c.s.width));
    CHECK(cudaMemcpy(places.data(), c.c.score.physical, places.size() * 4, cudaMemcpyDeviceToHost));
    return places;
}

/* Where the K of some places lies, in 16 bytes, on the device. */
struct Blocks {
    uint32_t *codes, *scales;
    int count;
    Blocks(Consumer &c, const std::vector<int32_t> &places) {
        std::vector<uint32_t> x, y;
        const int each = c.s.page / 8;
        for (int32_t place : places) {
            const uint32_t page = (uint32_t)((int64_t)(place / each) * c.c.score.k.stride / 16);
            x.push_back(page + (uint32_t)(place % each * 32));
            y.push_back(page + (uint32_t)(c.s.page * 4 + place % each * 2));
        }
        codes = c.c.keep(on_device(x));
        scales = c.c.keep(on_device(y));
        count = (int)places.size();
    }
};

/* ---- by what is missing ---- */

/* ways[i].timed is left open. */
std::vector<Way> ways_of(Consumer &c, const Consumer &other, const Flush &flush) {
    auto listed = places_of(c);
    std::sort(listed.begin(), listed.end());
    listed.erase(std::unique(listed.begin(), listed.end()), listed.end());
    const Blocks blocks(c, listed);
    const uint8_t *codes = (const uint8_t *)c.c.score.k.codes;
    uint32_t *const sink = flush.sink;
    printf("%d rows, %.1f MB of K listed\n", c.s.rows, (double)listed.size() * 544e-6);
    Queue none = [](cudaStream_t) {}, write = [=](cudaStream_t s) { flush.write(s); },
          read = [=](cudaStream_t s) { flush.read(s); };
    Queue pages = [=, k = c.k(), rest = c.rest()](cudaStream_t s) {
        touch<<<kMultiprocessors, 1024, 120 << 10, s>>>(k, false, sink);
        touch<<<kMultiprocessors, 1024, 120 << 10, s>>>(rest, false, sink);
    };
    Queue code = [&other](cudaStream_t s) { other.run(s); };
    Queue rest = [=, rest = c.rest()](cudaStream_t s) {
        touch<<<kMultiprocessors, 1024, 0, s>>>(rest, true, sink);
    };
    Queue k = [=](cudaStream_t s) {
        touch_blocks<<<264, 512, 0, s>>>(codes, blocks.codes, blocks.scales, blocks.count, sink);
    };
    auto all = [](std::vector<Queue> of) -> Queue {
        return [of](cudaStream_t s) {
            for (auto &queue : of) {
                queue(s);
            }
        };
    };
    Queue wait = [](cudaStream_t s) { pause<<<1, 1, 0, s>>>(60000); };
    return {{"nothing: all in L2", none, {}},
            {"written", write, {}},
            {"written, 30 us pause", all({write, wait}), {}},
            {"written, then read", all({write, read}), {}},
            {"read", read, {}},
            {"read, 128 MiB", [=](cudaStream_t s) { flush.read(s, 128); }, {}},
            {"read, 16 KB of 8,192 pages", [=](cudaStream_t s) { flush.spread(s); }, {}},
            {"read, translations", all({read, pages}), {}},
            {"read, code", all({read, code}), {}},
            {"read, code, translations", all({read, code, pages}), {}},
            {"read, all but K", all({read, rest}), {}},
            {"read, K", all({read, k}), {}},
            {"read, K, all but K", all({read, rest, k}), {}},
            {"read, K, all but K, code, translations", all({read, code, rest, k, pages}), {}}};
}

void time_why() {
    const Flush flush;
    for (int rows : {1, 8, 64}) {
        Consumer c(rows, 7), other(rows, 8);
        auto ways = ways_of(c, other, flush), empty = ways;
        for (size_t i = 0; i < ways.size(); i++) {
            ways[i].timed = [&](cudaStream_t s) { c.run(s); };
            empty[i].timed = [](cudaStream_t s) { nothing<<<1, 32, 0, s>>>(); };
        }
        auto times = times_of(ways, 31), base = times_of(empty, 11);
        for (size_t i = 0; i < ways.size(); i++) {
            printf("  %-42s %6.2f us, an empty kernel %5.2f\n", ways[i].name.c_str(), times[i],
                   base[i]);
        }
        fflush(stdout);
    }
}

/* ---- what a layer adds to a graph ---- */

constexpr int kTimes = 4;

/* Between two flushes, of four in a graph. */
Queue between(const Flush &flush, const Queue &queue, bool write) {
    return [=, &flush](cudaStream_t s) {
        for (int i = 0; i < kTimes; i++) {
            write ? flush.write(s, i) : flush.read(s, 256);
            queue(s);
        }
    };
}

Queue none() {
    return [](cudaStream_t) {};
}

Queue empty() {
    return [](cudaStream_t s) { nothing<<<1, 32, 0, s>>>(); };
}

void time_layer() {
    const Flush flush;
    for (int rows : {1, 2, 8, 16, 32, 64}) {
        Consumer c(rows, 7);
        Queue run = [&](cudaStream_t s) { c.run(s); };
        auto t = times_of({{"", none(), between(flush, none(), false)},
                           {"", none(), between(flush, empty(), false)},
                           {"", none(), between(flush, run, false)},
                           {"", none(), between(flush, none(), true)},
                           {"", none(), between(flush, empty(), true)},
                           {"", none(), between(flush, run, true)}},
                          41);
        for (int i = 0; i < 6; i += 3) {
            printf("%3d rows, %s: %6.2f us more than an empty kernel, which is %5.2f more than "
                   "none\n",
                   rows, i ? "512 MiB written" : "256 MiB read", (t[i + 2] - t[i + 1]) / kTimes,
                   (t[i + 1] - t[i]) / kTimes);
        }
        fflush(stdout);
    }
}

/* By mma.sync and by wgmma. Not in turns: alone, behind another kernel's launch, one takes up to 3
 * us more. */
void time_border() {
    const Flush flush;
    Queue write = [&](cudaStream_t s) { flush.write(s); },
          read = [&](cudaStream_t s) { flush.read(s); };
    printf("us alone after 512 MiB written, read, in L2; of a graph behind 512 MiB written, 256 "
           "read, more than an empty kernel\n");
    for (int rows : {1, 2, 3, 4, 6, 8, 10, 12, 16, 24}) {
        Consumer c(rows, 7);
        for (int how : {c.any, kWgmma}) {
            Queue run = [&](cudaStream_t s) {
                split(c.c.score, c.out.selection, c.done, c.parts, how, s);
            };
            auto l = times_of({{"", write, run}, {"", read, run}, {"", none(), run}}, 41);
            auto t = times_of({{"", none(), between(flush, run, true)},
                               {"", none(), between(flush, empty(), true)},
                               {"", none(), between(flush, run, false)},
                               {"", none(), between(flush, empty(), false)}},
                              41);
            printf("%3d rows, %-8s %6.2f %6.2f %6.2f; %6.2f %6.2f\n", rows,
                   how == kWgmma ? "wgmma" : "mma.sync", l[0], l[1], l[2], (t[0] - t[1]) / kTimes,
                   (t[2] - t[3]) / kTimes);
            fflush(stdout);
        }
    }
}

/* ---- rows whose K is their own ---- */

/* The bytes of a row's blocks and nothing else, a CTA a row, eight blocks of a warp at a time. */
template <bool kCodes>
__global__ void __launch_bounds__(512, 1)
    gather(const uint8_t *k, const uint32_t *codes, const uint32_t *scales, int width,
           uint32_t *sink) {
    uint32_t sum = 0;
    const int lane = threadIdx.x & 31, each = width / 16,
              first = (int)blockIdx.x * width + (int)threadIdx.x / 32 * each;
    for (int i = first; i < first + each; i += 8) {
        uint4 x[8];
        uint32_t y[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            y[j] = __ldcg((const uint32_t *)(k + (uint64_t)scales[i + 4 * j + lane / 8] * 16) +
                          lane % 8);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            x[j] = make_uint4(0, 0, 0, 0);
            if (kCodes) {
                x[j] = __ldcg((const uint4 *)(k + (uint64_t)codes[i + j] * 16) + lane);
            }
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sum ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
        }
        sum += y[0] ^ y[1];
    }
    if (sum == 0x13579BDFu) {
        *sink = sum;
    }
}

/* Row r has copy r % copies of K: page p of it in the copy (turn(p) + r) % copies of a pool of
 * `copies`, or, not spread, all in one. */
std::vector<int32_t> move_places(std::vector<int32_t> places, const Consumer &c, int copies,
                                 bool spread) {
    const int pages = (int)(c.s.positions / c.s.page), each = c.s.page / 8;
    random_bits bits(3);
    std::vector<int> turn((size_t)pages);
    for (int &t : turn) {
        t = spread ? (int)(bits() % (unsigned)copies) : 0;
    }
    for (size_t i = 0; i < places.size(); i++) {
        const int row = (int)(i / (size_t)c.s.width), page = places[i] / each;
        places[i] += (turn[(size_t)page] + row) % copies * pages * each;
    }
    return places;
}

void time_pools() {
    const Flush flush;
    const int most = 256;
    Consumer one(1, 7);
    const size_t bytes = (size_t)(one.c.score.k.size * one.c.score.k.stride);
    uint8_t *pool;
    CHECK(cudaMalloc(&pool, most * bytes));
    for (int rows : {8, 64, 256}) {
        Consumer c(rows, 7);
        for (int i = 0; i < most; i++) {
            CHECK(cudaMemcpy(pool + (size_t)i * bytes, c.c.score.k.codes, bytes,
                             cudaMemcpyDeviceToDevice));
        }
        c.c.score.k.codes = pool;
        c.c.score.k.size *= most;
        const auto places = places_of(c);
        std::vector<int32_t> want;
        for (int copies : {1, 4, 16, 64, 256}) {
            for (bool spread : {true, false}) {
                if (copies == 1 && !spread) {
                    continue;
                }
                auto moved = move_places(places, c, copies, spread);
                const Blocks blocks(c, moved);
                std::sort(moved.begin(), moved.end());
                const Blocks sorted(c, moved);
                auto distinct = std::unique(moved.begin(), moved.end()) - moved.begin();
                CHECK(cudaMemcpy((void *)c.c.score.physical,
                                 move_places(places, c, copies, spread).data(), moved.size() * 4,
                                 cudaMemcpyHostToDevice));
                c.run();
                CHECK(cudaDeviceSynchronize());
                std::vector<int32_t> got((size_t)(rows * c.s.topk));
                CHECK(cudaMemcpy(got.data(), c.out.selection.positions, got.size() * 4,
                                 cudaMemcpyDeviceToHost));
                want = want.empty() ? got : want;
                if (got != want) {
                    printf("FAILED: %d rows, %d copies select otherwise\n", rows, copies);
                    exit(1);
                }
                Queue read = [&](cudaStream_t s) { flush.read(s); };
                auto gathered = [&](const Blocks &b, bool whole) -> Queue {
                    return [&, whole](cudaStream_t s) {
                        const int ctas = std::max(rows, 128), each = c.s.width * rows / ctas;
                        (whole ? gather<true> : gather<false>)<<<(unsigned)ctas, 512, 0, s>>>(
                            pool, b.codes, b.scales, each, flush.sink);
                    };
                };
                auto t = times_of({{"", read, [&](cudaStream_t s) { c.run(s); }},
                                   {"", read, [&](cudaStream_t s) { c.run(s, true); }},
                                   {"", read,
                                    [&](cudaStream_t s) {
                                        for (int i = 0; i < 4; i++) {
                                            c.run(s);
                                        }
                                    }},
                                   {"", read, gathered(blocks, true)},
                                   {"", read, gathered(sorted, true)},
                                   {"", read, gathered(blocks, false)},
                                   {"", read, gathered(sorted, false)}},
                                  11);
                printf("%3d rows, %3d copies, %-7s %6.1f MB of %5.0f: %7.2f us (any GPU's "
                       "%7.2f), of four %7.2f; bytes alone %7.2f, in order of memory %7.2f, "
                       "scales alone %7.2f, in order %7.2f\n",
                       rows, copies, spread ? "spread," : "apart,", (double)distinct * 544e-6,
                       (double)bytes * copies * 1e-6, t[0], t[1], t[2] / 4, t[3], t[4], t[5], t[6]);
                fflush(stdout);
            }
        }
        c.c.score.k.codes = nullptr;
    }
    CHECK(cudaFree(pool));
}

void profile() {
    const Flush flush;
    Consumer one(1, 7), eight(8, 7), many(64, 7);
    for (int i = 0; i < 2; i++) {
        for (const Consumer *c : {&one, &eight, &many}) {
            flush.read(0);
            c->run();
        }
    }
    CHECK(cudaDeviceSynchronize());
}

} // namespace

int main(int argc, char **argv) {
    CHECK(cudaFuncSetAttribute(touch, cudaFuncAttributeMaxDynamicSharedMemorySize, 120 << 10));
    allow_split();
    const std::string what = argc > 1 ? argv[1] : "why";
    if (what == "why") {
        time_why();
    } else if (what == "layer") {
        time_layer();
    } else if (what == "border") {
        time_border();
    } else if (what == "pools") {
        time_pools();
    } else {
        profile();
    }
    return 0;
}
