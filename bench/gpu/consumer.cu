// SPDX-License-Identifier: MIT
/*
 * consumer.cu: the consumer's kernels on one GPU: checked byte for byte against the general kernels
 * (which the tests hold to ref), then timed. A program of its own, since it launches kernels apart:
 *   nvcc -O3 -std=c++17 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc \
 *       bench/gpu/consumer.cu -o consumer
 * Times are medians of CUDA events over `rows` rows; between two runs 512 MiB are written, so that
 * no input is in L2. consumer check | time [ROWS]
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/sparse_mqa_logits.cu"
#include "kernels/cuda/topk.cu"
#include "kernels/cuda/consume.cu"
#include "kernels/cuda/consume_sm90.cu"
#include "kernels/cuda/expand.cu"

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

template <class T> T *on_device(const std::vector<T> &host) {
    T *device = nullptr;
    CHECK(cudaMalloc(&device, std::max<size_t>(16, host.size() * sizeof(T))));
    CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}

void fill(std::vector<uint8_t> &bytes, random_bits &bits) {
    for (size_t i = 0; i < bytes.size(); i++) {
        bytes[i] = (uint8_t)(bits() >> 24);
    }
}

/* Four scale bytes with a span as trained tensors have them: 0, 1, 2, 3 with these chances. */
void trained_scales(uint8_t *four, random_bits &bits) {
    int u = (int)(bits() % 1000), span = u < 63 ? 0 : u < 621 ? 1 : u < 994 ? 2 : 3;
    int top = 118 + (int)(bits() % 6);
    for (int g = 0; g < 4; g++) {
        four[g] = (uint8_t)(top - (span ? (int)(bits() % (unsigned)(span + 1)) : 0));
    }
    four[bits() % 4] = (uint8_t)top;
}

/* ---- lists ---- */

/* Runs of blocks, 2.3 long on average. */
struct Run {
    int first, length, kind; /* kind: 0 redrawn each row, 1 after 8 rows or so, 2 after hundreds */
};

Run draw_run(int blocks, random_bits &bits, int kind) {
    int length = 1;
    while (length < 8 && bits() % 100 < 57) {
        length++;
    }
    return {(int)(bits() % (unsigned)(blocks - 8)), length, kind};
}

/* Rows of `width` blocks out of `blocks`: about 72% of a row is in the next one, 66% in the fourth,
 * 61% in the sixteenth, as measured in trained indexers. */
void local_lists(int32_t *lists, int rows, int width, int blocks, uint64_t seed) {
    random_bits bits(seed);
    std::vector<Run> runs;
    std::vector<uint8_t> in((size_t)blocks);
    for (int r = 0; r < rows; r++) {
        std::fill(in.begin(), in.end(), 0);
        int count = 0;
        for (auto &run : runs) {
            unsigned chance = run.kind == 0 ? 1000 : run.kind == 1 ? 120 : 2;
            if (bits() % 1000 < chance) {
                run = draw_run(blocks, bits, run.kind);
            }
        }
        size_t i = 0;
        while (count < width) {
            if (i == runs.size()) {
                unsigned u = (unsigned)(bits() % 100);
                runs.push_back(draw_run(blocks, bits, u < 26 ? 0 : u < 36 ? 1 : 2));
            }
            for (int b = runs[i].first; b < runs[i].first + runs[i].length && count < width; b++) {
                count += !in[(size_t)b];
                in[(size_t)b] = 1;
            }
            i++;
        }
        runs.resize(i);
        int32_t *out = lists + (int64_t)r * width;
        for (int b = 0; b < blocks; b++) {
            if (in[(size_t)b]) {
                *out++ = b;
            }
        }
    }
}

void random_lists(int32_t *lists, int rows, int width, int blocks, uint64_t seed) {
    random_bits bits(seed);
    std::vector<uint8_t> in((size_t)blocks);
    for (int r = 0; r < rows; r++) {
        std::fill(in.begin(), in.end(), 0);
        for (int count = 0; count < width;) {
            size_t b = bits() % (size_t)blocks;
            count += !in[b];
            in[b] = 1;
        }
        int32_t *out = lists + (int64_t)r * width;
        for (int b = 0; b < blocks; b++) {
            if (in[(size_t)b]) {
                *out++ = b;
            }
        }
    }
}

std::vector<int32_t> lists_of(bool local, int rows, int width, int blocks) {
    std::vector<int32_t> lists((size_t)rows * (size_t)width);
    std::vector<std::thread> threads;
    const int parts = 16, each = (rows + parts - 1) / parts;
    for (int p = 0; p < parts; p++) {
        int first = std::min(rows, p * each), count = std::min(each, rows - first);
        threads.emplace_back([=, &lists] {
            (local ? local_lists : random_lists)(lists.data() + (int64_t)first * width, count,
                                                 width, blocks, (uint64_t)p + 1);
        });
    }
    for (auto &t : threads) {
        t.join();
    }
    return lists;
}

/* ---- a call's memory ---- */

struct Call {
    tamis_sparse_mqa_logits_args score;
    tamis_topk_args topk;
    int64_t columns;
    std::vector<void *> owned;
    template <class T> T *keep(T *p) {
        owned.push_back((void *)p);
        return p;
    }
    ~Call() {
        for (void *p : owned) {
            cudaFree(p);
        }
    }
};

struct Shape {
    int rows, width, page, topk;
    int64_t positions;
    int local;   /* lists: 1 local, 0 random, -1 any bits */
    int scales;  /* 0 as trained, 1 any byte, 2 any near byte: spans to 15, some NaN */
    int weights; /* 0 plain, 1 hostile */
    int codes;   /* 0 random, 1 all zero: ties */
    int physical, bf16, round, counts, w16;
};

void make_k(Call &c, const Shape &s, random_bits &bits) {
    const int64_t pages = (s.positions + s.page - 1) / s.page, stride = (int64_t)s.page * 68;
    std::vector<uint8_t> pool((size_t)(pages * stride));
    if (s.codes == 0) {
        fill(pool, bits);
    }
    for (int64_t p = 0; p < pages; p++) {
        for (int i = 0; i < s.page && s.scales != 1; i++) {
            uint8_t *four = &pool[(size_t)(p * stride + s.page * 64 + i * 4)];
            trained_scales(four, bits);
            if (s.scales == 2 && bits() % 16 == 0) {
                four[bits() % 4] = bits() % 4 ? (uint8_t)(110 + bits() % 16) : 255;
            }
        }
    }
    std::vector<int32_t> table((size_t)pages);
    for (size_t i = 0; i < table.size(); i++) {
        table[i] = (int32_t)i;
    }
    std::shuffle(table.begin(), table.end(), bits);
    c.score.k.layout = TAMIS_K_MXFP4_PAGE;
    c.score.k.head_dim = 128;
    c.score.k.page_size = s.page;
    c.score.k.size = pages;
    c.score.k.stride = stride;
    c.score.k.codes = c.keep(on_device(pool));
    c.score.rows.page_table = c.keep(on_device(table));
    c.score.rows.page_table_stride = c.score.rows.page_table_width = pages;
    c.score.rows.requests = 1;
}

void make_query(Call &c, const Shape &s, random_bits &bits) {
    std::vector<uint8_t> codes((size_t)s.rows * 32 * 64), scales((size_t)s.rows * 32 * 4);
    std::vector<float> weights((size_t)s.rows * 32);
    if (s.codes == 0) {
        fill(codes, bits);
    }
    fill(scales, bits);
    for (size_t i = 0; i < weights.size(); i++) {
        bool hostile = s.scales == 2 && i / 32 % 4 == 0;
        if (s.scales != 1) {
            trained_scales(&scales[4 * i], bits);
        }
        if (hostile && bits() % 8 == 0) {
            scales[4 * i + bits() % 4] = bits() % 8 ? (uint8_t)(105 + bits() % 20) : 255;
        }
        weights[i] = ((float)(bits() % 2001) - 1200.0f) * 1e-5f;
        if (s.weights == 1 && i / 32 % 2 == 0) {
            static const float odd[] = {INFINITY, 1e38f, 1e-38f, 1e-42f,
                                        -0.0f,    NAN,   -1e36f, 3e-39f};
            weights[i] = odd[bits() % (i / 32 % 4 ? 4 : 8)];
        }
    }
    c.score.query.heads = 32;
    c.score.query.head_dim = 128;
    c.score.query.weights_type = TAMIS_F32;
    c.score.query.codes = c.keep(on_device(codes));
    c.score.query.scales = c.keep(on_device(scales));
    c.score.query.weights = c.keep(on_device(weights));
    if (s.w16) {
        std::vector<uint16_t> half(weights.size());
        for (size_t i = 0; i < half.size(); i++) {
            half[i] = tamis_bf16_from_f32(weights[i]);
        }
        c.score.query.weights_type = TAMIS_BF16;
        c.score.query.weights = c.keep(on_device(half));
    }
    c.score.query.codes_row_stride = 32 * 64;
    c.score.query.codes_head_stride = 64;
    c.score.query.scales_row_stride = 32 * 4;
    c.score.query.scales_head_stride = 4;
    c.score.query.weights_row_stride = 32;
}

void make_lists(Call &c, const Shape &s, random_bits &bits) {
    const int blocks = (int)((s.positions + 7) / 8);
    std::vector<int32_t> lists, counts((size_t)s.rows), ke((size_t)s.rows, (int32_t)s.positions);
    if (s.local >= 0) {
        lists = lists_of(s.local == 1, s.rows, s.width, blocks);
    } else {
        lists.resize((size_t)s.rows * (size_t)s.width);
        for (auto &id : lists) {
            id = bits() % 16 ? (int32_t)(bits() % (unsigned)blocks) : (int32_t)bits();
        }
        for (int r = 0; r < s.rows; r++) {
            std::sort(lists.begin() + (int64_t)r * s.width,
                      lists.begin() + (int64_t)(r + 1) * s.width);
            ke[(size_t)r] = (int32_t)(bits() % (unsigned)(s.positions + 3)) - 1;
        }
    }
    for (auto &n : counts) {
        n = (int32_t)(bits() % (unsigned)(s.width + 2));
    }
    c.score.rows.ke = c.keep(on_device(ke));
    c.score.blocks = c.keep(on_device(lists));
    c.score.counts = s.counts ? c.keep(on_device(counts)) : nullptr;
    if (s.physical) {
        std::vector<int32_t> table((size_t)c.score.k.size), where(lists.size());
        CHECK(cudaMemcpy(table.data(), c.score.rows.page_table, table.size() * 4,
                         cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < lists.size(); i++) {
            int each = s.page / 8;
            bool seen = lists[i] >= 0 && lists[i] < blocks;
            where[i] = seen ? table[(size_t)(lists[i] / each)] * each + lists[i] % each : -1;
        }
        c.score.physical = c.keep(on_device(where));
        c.score.physical_stride = s.width;
    }
}

void make(Call &c, const Shape &s, uint64_t seed) {
    random_bits bits(seed);
    c.score = {};
    c.topk = {};
    c.columns = (int64_t)s.width * 8;
    c.score.rows.count = s.rows;
    c.score.numerics = s.round ? TAMIS_NUMERICS_BF16 : TAMIS_NUMERICS_EXACT;
    c.score.block_size = 8;
    c.score.logits_type = s.bf16 ? TAMIS_BF16 : TAMIS_F32;
    c.score.width = s.width;
    c.score.blocks_stride = s.width;
    c.score.logits_stride = c.columns;
    make_k(c, s, bits);
    make_query(c, s, bits);
    make_lists(c, s, bits);
    c.topk.logits_type = TAMIS_F32;
    c.topk.block_size = 8;
    c.topk.rows = c.score.rows;
    c.topk.width = c.columns;
    c.topk.logits_stride = c.columns;
    c.topk.blocks = c.score.blocks;
    c.topk.blocks_stride = s.width;
    c.topk.page_size = s.page;
    c.topk.selection.topk = s.topk;
    c.topk.selection.positions_stride = c.topk.selection.slots_stride =
        c.topk.selection.scores_stride = s.topk;
}

struct Outputs {
    uint8_t *logits;
    tamis_selection selection;
    int64_t logits_bytes;
};

Outputs outputs_of(Call &c, const Shape &s) {
    Outputs o;
    o.logits_bytes = s.rows * c.columns * 4;
    o.selection = c.topk.selection;
    CHECK(cudaMalloc(&o.logits, (size_t)o.logits_bytes));
    int64_t n = (int64_t)s.rows * s.topk;
    CHECK(cudaMalloc(&o.selection.positions, (size_t)n * 4));
    CHECK(cudaMalloc(&o.selection.slots, (size_t)n * 8));
    CHECK(cudaMalloc(&o.selection.scores, (size_t)n * 4));
    CHECK(cudaMalloc(&o.selection.counts, (size_t)s.rows * 4));
    c.keep(o.logits);
    c.keep(o.selection.positions);
    c.keep(o.selection.slots);
    c.keep(o.selection.scores);
    c.keep(o.selection.counts);
    return o;
}

/* ---- kernels ---- */

dim3 general_grid(int rows) {
    int each = std::max(1, 4 * 132 / std::max(1, rows));
    return dim3((unsigned)each, (unsigned)rows);
}

void score_general(const tamis_sparse_mqa_logits_args &a) {
    tamis_sparse_mqa_logits_smxx_h32_d128<<<general_grid((int)a.rows.count), 128>>>(a);
}

void score_fast(const tamis_sparse_mqa_logits_args &a, int ctas, int steps) {
    tamis_sparse_mqa_logits_fast_smxx<<<dim3((unsigned)ctas, (unsigned)a.rows.count),
                                        tamis::kFastThreads>>>(a, steps);
}

int consume_bytes(int64_t width) {
    return (int)((width + 3) / 4) * 34 * 4;
}

void consume_fast(const tamis_sparse_mqa_logits_args &a, const tamis_selection &out) {
    tamis_consume_fast_smxx<<<(unsigned)a.rows.count, tamis::kFastThreads,
                              (size_t)consume_bytes(a.width)>>>(a, out, nullptr);
}

/* What launch_groups.c queues on Hopper. scratch: as many bytes as scores take. */
void consume_sm90(const tamis_sparse_mqa_logits_args &a, const tamis_selection &out, void *scratch,
                  bool pairs) {
    const unsigned rows = (unsigned)a.rows.count, threads = tamis::hopper::kGroupThreads;
    int32_t *done = (int32_t *)scratch;
    uint32_t *entries = (uint32_t *)scratch + (rows + 3) / 4 * 4;
    if (pairs) {
        tamis_consume_pairs_sm90<<<(rows + 1) / 2, threads, TAMIS_CONSUME_PAIRS_BYTES>>>(
            a, out, entries, done);
    }
    tamis_consume_rows_sm90<<<rows, threads, TAMIS_CONSUME_ROWS_BYTES>>>(a, out, done, !pairs);
    tamis_consume_fast_smxx<<<std::min(rows, 264u), tamis::kFastThreads,
                              (size_t)consume_bytes(a.width)>>>(a, out, done);
}

void topk(const tamis_topk_args &a) {
    tamis_topk_smxx<<<(unsigned)a.rows.count, tamis::kSelectThreads>>>(a, 0, INT32_MAX);
}

void topk_pool(const tamis_topk_args &a) {
    tamis_topk_pool_smxx<<<(unsigned)a.rows.count, tamis::kPoolTopkThreads>>>(a, 0, INT32_MAX);
}

/* ---- checks ---- */

template <class T>
bool same(const char *what, const T *x, const T *y, int64_t n, int64_t line, const Shape &s) {
    std::vector<T> a((size_t)n), b((size_t)n);
    CHECK(cudaMemcpy(a.data(), x, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(b.data(), y, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&a[(size_t)i], &b[(size_t)i], sizeof(T))) {
            printf("FAILED: %s: row %lld, %lld: %llx, not %llx (width %d page %d scales %d weights "
                   "%d topk %d)\n",
                   what, (long long)(i / line), (long long)(i % line),
                   (unsigned long long)b[(size_t)i], (unsigned long long)a[(size_t)i], s.width,
                   s.page, s.scales, s.weights, s.topk);
            return false;
        }
    }
    return true;
}

int done_rows; /* by Hopper's kernels */

bool check(const Shape &s, uint64_t seed) {
    Call c;
    make(c, s, seed);
    Outputs want = outputs_of(c, s), got = outputs_of(c, s);
    bool good = true;
    CHECK(cudaMemset(want.logits, 0x5A, (size_t)want.logits_bytes));
    c.score.logits = want.logits;
    score_general(c.score);
    CHECK(cudaDeviceSynchronize());
    for (int steps : {8, 3, 1}) {
        CHECK(cudaMemset(got.logits, 0xA5, (size_t)got.logits_bytes));
        c.score.logits = got.logits;
        score_fast(c.score, steps == 8 ? 1 : steps == 3 ? 2 : 9, steps);
        CHECK(cudaDeviceSynchronize());
        if (s.bf16) {
            good &= same("scores", (uint16_t *)want.logits, (uint16_t *)got.logits,
                         s.rows * c.columns, c.columns, s);
        } else {
            good &= same("scores", (uint32_t *)want.logits, (uint32_t *)got.logits,
                         s.rows * c.columns, c.columns, s);
        }
    }
    if (s.bf16 || s.width > 2048) {
        return good;
    }
    /* topk takes every listed column: those past the count must not name blocks there. */
    std::vector<int32_t> lists((size_t)(s.rows * s.width)), counts((size_t)s.rows, s.width);
    CHECK(cudaMemcpy(lists.data(), c.score.blocks, lists.size() * 4, cudaMemcpyDeviceToHost));
    if (c.score.counts) {
        CHECK(cudaMemcpy(counts.data(), c.score.counts, counts.size() * 4, cudaMemcpyDeviceToHost));
    }
    for (int r = 0; r < s.rows; r++) {
        for (int i = std::max(0, counts[(size_t)r]); i < s.width; i++) {
            lists[(size_t)(r * s.width + i)] = -1;
        }
    }
    c.topk.blocks = c.keep(on_device(lists));
    c.topk.logits = want.logits;
    c.topk.selection = want.selection;
    int64_t n = (int64_t)s.rows * s.topk;
    for (Outputs *o : {&want, &got}) {
        CHECK(cudaMemset(o->selection.positions, 0x5A, (size_t)n * 4));
        CHECK(cudaMemset(o->selection.slots, 0x5A, (size_t)n * 8));
        CHECK(cudaMemset(o->selection.scores, 0x5A, (size_t)n * 4));
        CHECK(cudaMemset(o->selection.counts, 0x5A, (size_t)s.rows * 4));
    }
    topk(c.topk);
    for (int how : {0, 1, 2, 3}) { /* topk, one kernel, Hopper's with and without pairs */
        if (how >= 2 && (s.topk > TAMIS_CONSUME_MAX_TOPK || s.round || s.width < 2)) {
            continue;
        }
        if (how >= 2) {
            CHECK(cudaMemset(got.logits, 0x5A, (size_t)got.logits_bytes));
            consume_sm90(c.score, got.selection, got.logits, how == 2);
            std::vector<int32_t> done((size_t)s.rows);
            CHECK(cudaMemcpy(done.data(), got.logits, done.size() * 4, cudaMemcpyDeviceToHost));
            for (int d : done) {
                done_rows += d == 1;
            }
        } else if (how == 1) {
            consume_fast(c.score, got.selection);
        } else {
            c.topk.selection = got.selection;
            topk_pool(c.topk);
        }
        CHECK(cudaDeviceSynchronize());
        good &= same("counts", want.selection.counts, got.selection.counts, s.rows, 1, s);
        good &= same("positions", want.selection.positions, got.selection.positions, n, s.topk, s);
        good &= same("slots", want.selection.slots, got.selection.slots, n, s.topk, s);
        good &= same("selected scores", (uint32_t *)want.selection.scores,
                     (uint32_t *)got.selection.scores, n, s.topk, s);
        CHECK(cudaMemset(got.selection.positions, 0xA5, (size_t)n * 4));
        CHECK(cudaMemset(got.selection.slots, 0xA5, (size_t)n * 8));
        CHECK(cudaMemset(got.selection.scores, 0xA5, (size_t)n * 4));
        CHECK(cudaMemset(got.selection.counts, 0xA5, (size_t)s.rows * 4));
    }
    return good;
}

bool check_all() {
    static const int widths[] = {1, 3, 5, 33, 64, 301, 2047, 2048};
    static const int pages[] = {64, 8, 256, 128};
    static const int topks[] = {512, 1, 7, 4096, 2048, 513};
    bool good = true;
    int cases = 0;
    for (int i = 0; i < 96; i++) {
        Shape s = {};
        s.rows = 1 + i % 37;
        s.width = widths[i % 8];
        s.page = pages[i / 3 % 4];
        s.positions = 8 * s.width + 1000 + i * 331;
        s.topk = topks[i % 6];
        s.local = i % 3 - 1;
        s.scales = i / 2 % 3;
        s.weights = i / 5 % 2;
        s.codes = i % 11 == 4;
        s.physical = i / 3 % 2 && s.local >= 0;
        s.bf16 = i % 13 == 5;
        s.round = i % 4 == 3;
        s.counts = i / 7 % 2;
        s.w16 = i / 9 % 2;
        good &= check(s, (uint64_t)i + 99);
        cases++;
    }
    good &= done_rows > 0;
    printf("check: %d cases, %d rows by wgmma, %s\n", cases, done_rows,
           good ? "all bytes equal" : "FAILED");
    return good;
}

/* ---- times ---- */

float median_ms(uint8_t *flush, size_t bytes, int repeats, const std::function<void()> &run) {
    std::vector<float> times;
    cudaEvent_t from, to;
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
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

void time_all(int rows) {
    const size_t bytes = (size_t)512 << 20;
    uint8_t *flush;
    CHECK(cudaMalloc(&flush, bytes));
    for (int64_t positions : {262144, 1048576}) {
        for (int local : {1, 0}) {
            if (getenv("FEW") && (local == 1) != (positions == 262144)) {
                continue;
            }
            Shape s = {};
            s.rows = rows;
            s.width = 2048;
            s.page = 128;
            s.topk = 512;
            s.positions = positions;
            s.local = local;
            s.physical = 1;
            Call c;
            make(c, s, 7);
            Outputs o = outputs_of(c, s);
            o.selection.slots = nullptr;
            o.selection.scores = nullptr;
            c.score.logits = o.logits;
            c.topk.logits = o.logits;
            c.topk.selection = o.selection;
            auto show = [&](const char *name, const std::function<void()> &run) {
                float ms = median_ms(flush, bytes, 5, run);
                printf("%8lld %-6s %-24s %8.3f ms %8.1f ns/row\n", (long long)positions,
                       local ? "local" : "random", name, ms, ms * 1e6 / rows);
            };
            if (getenv("ALL")) {
                show("scores, general", [&] { score_general(c.score); });
                show("topk, any size", [&] { topk(c.topk); });
                show("topk, pool", [&] { topk_pool(c.topk); });
                tamis_expand_args e = {};
                e.candidate_size = e.block_size = 8;
                e.rows = c.score.rows;
                e.width = s.width;
                e.candidates = c.score.blocks;
                e.candidates_stride = s.width;
                e.blocks = (int32_t *)o.logits;
                e.blocks_stride = s.width;
                e.counts = o.selection.counts;
                show("expand", [&] {
                    tamis_expand_smxx<<<(unsigned)rows, tamis::kExpandThreads, 2048 * 4>>>(
                        e, nullptr, nullptr, INT32_MAX);
                });
            }
            int ctas = std::max(1, 2 * 132 / rows);
            int steps = rows >= 64 ? 8 : std::max(1, 512 / (ctas * 8));
            show("scores, fast", [&] { score_fast(c.score, ctas, steps); });
            show("consume, fast", [&] { consume_fast(c.score, o.selection); });
            show("consume, rows", [&] { consume_sm90(c.score, o.selection, o.logits, false); });
            show("consume, pairs and rows",
                 [&] { consume_sm90(c.score, o.selection, o.logits, true); });
        }
    }
    CHECK(cudaFree(flush));
}

} // namespace

int main(int argc, char **argv) {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    CHECK(cudaFuncSetAttribute(tamis_consume_fast_smxx, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               consume_bytes(2048)));
    for (auto kernel :
         {(const void *)tamis_consume_pairs_sm90, (const void *)tamis_consume_rows_sm90}) {
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    }
    std::string what = argc > 1 ? argv[1] : "check";
    if (what == "check") {
        return check_all() ? 0 : 1;
    }
    int rows = argc > 2 ? atoi(argv[2]) : 8192;
    printf("%s, %d SM, %d rows, cold L2\n", device.name, device.multiProcessorCount, rows);
    time_all(rows);
    return 0;
}
