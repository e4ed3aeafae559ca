// SPDX-License-Identifier: MIT
/*
 * source.cu: the source's scoring on one GPU: the fast kernels checked byte for byte against the
 * general one (which the tests hold to ref), then timed. A program of its own, since it launches
 * kernels apart:
 *   nvcc -O3 -std=c++17 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc \
 *       bench/gpu/source.cu -o source
 * Times are medians of CUDA events over all rows, in tiles of rows whose block maxima fit the
 * workspace of 256 MiB; between two runs 512 MiB are written, so that no input is in L2.
 * source check | time | decode | drafts | chain
 */
#include "source_call.cuh"

#include "kernels/cuda/consume.cu"
#include "kernels/cuda/decode.cu"
#include "kernels/cuda/mqa_logits.cu"
#include "kernels/cuda/publish.cu"
#include "kernels/cuda/source_smxx.cu"

#include "kernels/cuda/raise.cu"
#include "kernels/cuda/source_sm90.cu"
#include "kernels/cuda/source_few_sm90.cu"

namespace {

/* ---- kernels ---- */

int multiprocessors;
cudaStream_t queue_to;

void run_general(const tamis_mqa_logits_args &a, int fill) {
    int each = std::max(1, 4 * multiprocessors / (int)a.rows.count);
    dim3 grid((unsigned)each, (unsigned)std::min<int64_t>(a.rows.count, 65535));
    tamis_mqa_logits_smxx_h32_d128<<<grid, 128>>>(a, fill, tamis_row_tile{}, tamis_score_tile{});
}

void run_smxx(const tamis_mqa_logits_args &a, int fill) {
    const int ctas = 2 * multiprocessors, shared = sizeof(tamis::PortableShared);
    if (a.logits) {
        tamis_mqa_logits_fast_smxx<<<ctas, tamis::kSourceThreads, shared, queue_to>>>(
            a, fill, tamis_score_tile{});
    } else {
        tamis_mqa_maxima_fast_smxx<<<ctas, tamis::kSourceThreads, shared, queue_to>>>(
            a, fill, tamis_row_tile{});
    }
}

void run_hopper(const tamis_mqa_logits_args &a, int fill, const tamis_raised_k &raised) {
    const int ctas = multiprocessors;
    if (a.logits && a.block_max) {
        tamis_mqa_both_fast_sm90<<<ctas, tamis::kSourceThreads, 0, queue_to>>>(a, fill, raised,
                                                                               tamis_score_tile{});
    } else if (a.logits) {
        tamis_mqa_logits_fast_sm90<<<ctas, tamis::kSourceThreads, 0, queue_to>>>(
            a, fill, raised, tamis_score_tile{});
    } else {
        tamis_mqa_maxima_fast_sm90<<<ctas, tamis::kSourceThreads, 0, queue_to>>>(a, fill, raised,
                                                                                 tamis_row_tile{});
    }
}

void run_sm90(const tamis_mqa_logits_args &a, int fill) {
    run_hopper(a, fill, tamis_raised_k{});
}

template <int kRows> void run_few(const tamis_mqa_logits_args &a, int) {
    auto kernel = kRows == 1   ? tamis_mqa_maxima_few1_sm90
                  : kRows == 2 ? tamis_mqa_maxima_few2_sm90
                               : tamis_mqa_maxima_few4_sm90;
    kernel<<<tamis::hopper::kFewCtas<kRows> * multiprocessors, tamis::hopper::kFewThreads, 0,
             queue_to>>>(a, tamis_row_tile{});
}

tamis_raised_k raised; /* of the call at hand */

void run_raised(const tamis_mqa_logits_args &a, int fill) {
    run_hopper(a, fill, raised);
}

/* Places for requests, but for each `without`-th (0: all have one). */
tamis_raise_args place_raised(Call &c, int without) {
    const tamis_rows &rows = c.a.rows;
    std::vector<int32_t> ke((size_t)rows.count), request((size_t)rows.count);
    std::vector<int32_t> first((size_t)rows.requests), length((size_t)rows.requests);
    CHECK(cudaMemcpy(ke.data(), rows.ke, ke.size() * 4, cudaMemcpyDeviceToHost));
    if (rows.request) {
        CHECK(cudaMemcpy(request.data(), rows.request, ke.size() * 4, cudaMemcpyDeviceToHost));
    }
    const int64_t limit = rows.page_table_width * c.a.k.page_size;
    for (size_t r = 0; r < ke.size(); r++) {
        int32_t &longest = length[(size_t)request[r]];
        longest = std::max(longest, (int32_t)std::min<int64_t>(ke[r], limit));
    }
    int32_t at = 0;
    for (size_t i = 0; i < first.size(); i++) {
        first[i] = without && (int)i % without == without - 1 ? -1 : at;
        at += first[i] < 0 ? 0 : (length[i] + TAMIS_RAISED_TILE - 1) & -TAMIS_RAISED_TILE;
    }
    raised.first = c.on_device(first);
    raised.length = c.on_device(length);
    raised.codes = (uint8_t *)c.reserve((size_t)at * 128);
    raised.scales = (float *)c.reserve((size_t)at * 4);
    return {raised, c.a.k, rows.page_table, rows.page_table_stride, rows.requests};
}

void raise(const tamis_raise_args &args) {
    tamis_raise_k_smxx<<<8 * multiprocessors, 256>>>(args);
}

struct Kernel {
    const char *name;
    void (*run)(const tamis_mqa_logits_args &, int);
};
const Kernel kernels[] = {{"smxx", run_smxx}, {"sm90", run_sm90}, {"raised", run_raised}};
/* Block maxima alone. */
const Kernel few_kernels[] = {{"few1", run_few<1>}, {"few2", run_few<2>}, {"few4", run_few<4>}};

/* ---- checks ---- */

bool same(const char *name, const char *what, const void *x, const void *y, int64_t bytes,
          int64_t line, int i) {
    std::vector<uint8_t> a((size_t)bytes), b((size_t)bytes);
    CHECK(cudaMemcpy(a.data(), x, (size_t)bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(b.data(), y, (size_t)bytes, cudaMemcpyDeviceToHost));
    for (int64_t k = 0; k < bytes; k++) {
        if (a[(size_t)k] != b[(size_t)k]) {
            k &= ~(int64_t)3;
            printf("FAILED: case %d, %s, %s: row %lld, byte %lld: %08x, not %08x\n", i, name, what,
                   (long long)(k / line), (long long)(k % line), *(uint32_t *)&b[(size_t)k],
                   *(uint32_t *)&a[(size_t)k]);
            return false;
        }
    }
    return true;
}

/* Poison lies where nothing may be written: the same in both. */
bool check(const Shape &s, int i) {
    Call c;
    make(c, s, (uint64_t)i + 99);
    const int64_t width = s.logits == TAMIS_BF16 ? 2 : 4;
    const int64_t logits = s.rows * c.a.logits_stride * width;
    const int64_t maxima = s.rows * c.a.block_max_stride * 4;
    const bool both = !s.logits || i % 2;
    void *want_logits = c.reserve((size_t)logits), *got_logits = c.reserve((size_t)logits);
    void *want_maxima = c.reserve((size_t)maxima), *got_maxima = c.reserve((size_t)maxima);
    bool good = true;
    CHECK(cudaMemset(want_logits, 0x5A, (size_t)logits));
    CHECK(cudaMemset(want_maxima, 0x5A, (size_t)maxima));
    c.a.logits = s.logits ? want_logits : nullptr;
    c.a.block_max = both ? (float *)want_maxima : nullptr;
    run_general(c.a, s.fill);
    raise(place_raised(c, i % 4));
    CHECK(cudaDeviceSynchronize());
    for (const Kernel &kernel : kernels) {
        CHECK(cudaMemset(got_logits, 0x5A, (size_t)logits));
        CHECK(cudaMemset(got_maxima, 0x5A, (size_t)maxima));
        c.a.logits = s.logits ? got_logits : nullptr;
        c.a.block_max = both ? (float *)got_maxima : nullptr;
        kernel.run(c.a, s.fill);
        CHECK(cudaDeviceSynchronize());
        good &= same(kernel.name, "logits", want_logits, got_logits, logits,
                     c.a.logits_stride * width, i);
        good &= same(kernel.name, "maxima", want_maxima, got_maxima, maxima,
                     c.a.block_max_stride * 4, i);
    }
    c.a.logits = nullptr;
    c.a.columns = 0;
    CHECK(cudaMemset(want_maxima, 0x5A, (size_t)maxima));
    c.a.block_max = (float *)want_maxima;
    run_general(c.a, s.fill);
    for (const Kernel &kernel : few_kernels) {
        CHECK(cudaMemset(got_maxima, 0x5A, (size_t)maxima));
        c.a.block_max = (float *)got_maxima;
        kernel.run(c.a, s.fill);
        CHECK(cudaDeviceSynchronize());
        good &= same(kernel.name, "maxima", want_maxima, got_maxima, maxima,
                     c.a.block_max_stride * 4, i);
    }
    return good;
}

bool check_all(int cases) {
    static const int64_t lengths[] = {40, 17, 1000, 64, 8, 5003, 129, 333, 1, 70001};
    static const int row_counts[] = {8, 1, 37, 3, 64, 300, 9, 16};
    static const int pages[] = {64, 8, 256, 128};
    bool good = true;
    int i = 0;
    for (; i < cases && good; i++) {
        Shape s = {};
        s.positions = lengths[i % 10];
        s.rows = s.positions > 60000 ? 11 : row_counts[i / 2 % 8];
        s.page = pages[i / 3 % 4];
        s.requests = i % 4 == 0 ? 0 : i % 4 == 1 ? s.rows : 1;
        s.ends = i / 4 % 3;
        s.starts = i % 7 == 3 ? 1 : i % 7 == 5 ? 2 : 0;
        s.scales = i / 5 % 3;
        s.weights = i % 6 == 1;
        s.zeros = i % 13 == 6;
        s.logits = i % 3 == 0 ? TAMIS_F32 : i % 9 == 4 ? TAMIS_BF16 : 0;
        s.block = i / 2 % 3 == 2 ? 16 : 8;
        s.fill = i / 3 % 2;
        s.round = i % 5 == 2;
        s.w16 = i % 11 == 5;
        good &= check(s, i);
    }
    printf("check: %d cases, %s\n", i, good ? "all bytes equal" : "FAILED");
    return good;
}

/* ---- times ---- */

/* Rows that the launcher takes at a time: 256 MiB of block maxima, own lists and their scores. */
int64_t tile_rows(int64_t positions, int64_t rows) {
    int64_t each = (positions / 8 + 1) * 4 + 2048 * 4 + 64 + 2048 * 8 * 4;
    return std::min(rows, std::max<int64_t>(1, ((int64_t)256 << 20) / each));
}

tamis_mqa_logits_args rows_from(const tamis_mqa_logits_args &a, int64_t r, int64_t count) {
    tamis_mqa_logits_args t = a;
    t.rows.count = count;
    t.rows.ke += r;
    t.rows.request = a.rows.request ? a.rows.request + r : nullptr;
    t.query.codes += r * a.query.codes_row_stride;
    t.query.scales += r * a.query.scales_row_stride;
    t.query.weights = (const float *)a.query.weights + r * a.query.weights_row_stride;
    return t;
}

void time_shape(int rows, int64_t positions, int requests, bool general, bool few = false) {
    Shape s = {};
    s.rows = rows;
    s.positions = positions;
    s.requests = requests;
    s.page = 128;
    s.block = 8;
    s.ends = 2;
    Call c;
    make(c, s, 7);
    if (requests == 1) { /* a chunk of rows, each of which sees one position more */
        std::vector<int32_t> ke((size_t)rows);
        for (int r = 0; r < rows; r++) {
            ke[(size_t)r] = (int32_t)(positions - rows + r + 1);
        }
        c.a.rows.ke = c.on_device(ke);
    }
    const int64_t tile = tile_rows(positions, rows);
    c.a.block_max = (float *)c.reserve((size_t)(tile * c.a.block_max_stride * 4));
    const double seen = requests == 1 ? (double)rows * ((double)positions - (rows - 1) * 0.5)
                                      : (double)rows * (double)positions;
    auto show = [&](const char *name, void (*run)(const tamis_mqa_logits_args &, int)) {
        float ms = median_ms(5, [&] {
            for (int64_t r = 0; r < rows; r += tile) {
                run(rows_from(c.a, r, std::min(tile, rows - r)), 0);
            }
        });
        double rate = seen * 8192 / ms / 1e9;
        double bytes = (double)positions * 68 * requests;
        printf("%6d rows %8lld positions %3d requests %-8s %9.3f ms %6.0f TOP/s (%3.0f%% of 1,720) "
               "%6.0f GB/s of K\n",
               rows, (long long)positions, requests, name, ms, rate, rate / 17.2, bytes / ms / 1e6);
    };
    if (general) {
        show("general", run_general);
    }
    const bool many = rows > 2 * requests;
    if (many) {
        const tamis_raise_args args = place_raised(c, 0);
        printf("%6d rows %8lld positions %3d requests K decoded in %.3f ms\n", rows,
               (long long)positions, requests, median_ms(5, [&] { raise(args); }));
    }
    for (const Kernel &kernel : kernels) {
        if (many || kernel.run != run_raised) {
            show(kernel.name, kernel.run);
        }
    }
    for (const Kernel &kernel : few_kernels) {
        if (few) {
            show(kernel.name, kernel.run);
        }
    }
}

/* ---- a source's layer in decode ---- */

/* Microseconds of a graph of what `queue` queues, cold L2. */
float graph_us(const std::function<void()> &queue) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&queue_to));
    CHECK(cudaStreamBeginCapture(queue_to, cudaStreamCaptureModeThreadLocal));
    queue();
    CHECK(cudaStreamEndCapture(queue_to, &graph));
    CHECK(cudaStreamDestroy(queue_to));
    queue_to = nullptr;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    float ms = median_ms(11, [&] { CHECK(cudaGraphLaunch(exec, 0)); });
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return ms * 1000.0f;
}

/* Scores, the lists of 2,048 blocks and of the row's own 513, and its 512 positions: one graph. */
void time_chain(int rows, int64_t positions) {
    constexpr int kTopk = 512, kBlocks = 2048, kOwn = kTopk + 1, kScratch = 4128;
    Shape s = {};
    s.rows = s.requests = rows;
    s.positions = positions;
    s.page = 128;
    s.block = 8;
    s.ends = 2;
    Call c;
    make(c, s, 7);
    const size_t n = (size_t)rows;
    c.a.block_max_stride = (positions / 8 + 1 + 15) / 16 * 16;
    c.a.block_max = (float *)c.reserve(n * (size_t)c.a.block_max_stride * 4);
    tamis_publish_job job = {};
    job.rows = c.a.rows;
    job.block_max = c.a.block_max;
    job.block_max_stride = c.a.block_max_stride;
    job.limit = positions;
    job.block_size = 8;
    for (int l = 0; l < 2; l++) {
        tamis_block_list &to = job.list[l];
        to.width = l ? kOwn : kBlocks;
        to.page_size = s.page;
        to.blocks_stride = to.placed_stride = to.width;
        to.blocks = (int32_t *)c.reserve(n * (size_t)to.width * 4);
        to.placed = (int32_t *)c.reserve(n * (size_t)to.width * 4);
        to.counts = (int32_t *)c.reserve(n * 4);
    }
    tamis_sparse_mqa_logits_args score = {};
    score.numerics = c.a.numerics;
    score.k = c.a.k;
    score.rows = c.a.rows;
    score.query = c.a.query;
    score.block_size = 8;
    score.logits_type = TAMIS_F32;
    score.width = kOwn;
    score.blocks = job.list[1].blocks;
    score.physical = job.list[1].placed;
    score.blocks_stride = score.physical_stride = kOwn;
    score.counts = job.list[1].counts;
    score.logits = c.reserve(n * kScratch * 4);
    score.logits_stride = kScratch;
    tamis_selection out = {};
    out.topk = kTopk;
    out.positions = (int32_t *)c.reserve(n * kTopk * 4);
    out.positions_stride = kTopk;
    uint32_t *done = c.on_device(std::vector<uint32_t>(n, 0u));
    const int parts = std::max(1, std::min(multiprocessors / rows, (kOwn + 15) / 16));
    const int steps = std::min(8, std::max(1, kOwn / (parts * 64)));
    auto lists = [&] {
        tamis_publish_team_sm90<<<(unsigned)rows * tamis::kTeamSize, tamis::kTeamThreads,
                                  2 * tamis::kListBytes, queue_to>>>(job);
    };
    auto select = [&] {
        tamis_consume_split_smxx<<<dim3((unsigned)parts, (unsigned)rows), tamis::kSplitThreads,
                                   sizeof(tamis::SplitShared), queue_to>>>(
            score, out, done, nullptr, steps, tamis_gate_args{});
    };
    auto show = [&](const Kernel &kernel) {
        float a = graph_us([&] { kernel.run(c.a, 0); });
        float b = graph_us([&] {
            kernel.run(c.a, 0);
            lists();
        });
        float all = graph_us([&] {
            kernel.run(c.a, 0);
            lists();
            select();
        });
        std::vector<int32_t> chosen(n * kTopk);
        CHECK(cudaMemcpy(chosen.data(), out.positions, n * kTopk * 4, cudaMemcpyDeviceToHost));
        uint32_t digest = 2166136261u; /* the same for every kernel */
        for (int32_t j : chosen) {
            digest = (digest ^ (uint32_t)j) * 16777619u;
        }
        printf("chain %3d rows %8lld positions, %-5s: scores %7.1f us, and lists %7.1f, and own "
               "selection %7.1f (digest %08x)\n",
               rows, (long long)positions, kernel.name, a, b, all, digest);
    };
    for (const Kernel &kernel : kernels) {
        show(kernel);
    }
    show(few_kernels[0]);
}

} // namespace

int main(int argc, char **argv) {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    multiprocessors = device.multiProcessorCount;
    const void *const portable[] = {(const void *)tamis_mqa_logits_fast_smxx,
                                    (const void *)tamis_mqa_maxima_fast_smxx};
    for (const void *kernel : portable) {
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   sizeof(tamis::PortableShared)));
    }
    CHECK(cudaFuncSetAttribute(tamis_publish_team_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               2 * tamis::kListBytes));
    CHECK(cudaFuncSetAttribute(tamis_consume_split_smxx,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(tamis::SplitShared)));
    std::string what = argc > 1 ? argv[1] : "check";
    if (what == "check") {
        return check_all(argc > 2 ? atoi(argv[2]) : 180) ? 0 : 1;
    }
    printf("%s, %d SM, cold L2\n", device.name, device.multiProcessorCount);
    if (what == "one") {
        time_shape(atoi(argv[2]), atoll(argv[3]), atoi(argv[4]), false, argc > 5);
    }
    if (what == "decode") {
        for (int rows : {1, 8, 64}) {
            for (int64_t positions : {16384, 262144, 1048576}) {
                time_shape(rows, positions, rows, rows == 1, true);
            }
        }
    }
    if (what == "drafts") {
        for (int rows : {1, 2, 3, 4, 5, 8}) {
            time_shape(8 * rows, 1048576, 8, false, true);
        }
    }
    if (what == "chain") {
        for (int64_t positions : {262144, 1048576}) {
            for (int rows : {1, 8}) {
                time_chain(rows, positions);
            }
        }
    }
    if (what == "time") {
        for (int rows : {512, 8192}) {
            for (int64_t positions : {16384, 65536, 262144, 1048576}) {
                time_shape(rows, positions, 1, rows == 512 && positions == 65536);
            }
        }
    }
    return 0;
}
