// SPDX-License-Identifier: MIT
/* call.cuh: a consumer's call on the device for bench programs: K, queries,
 * lists, outputs. */
#ifndef TAMIS_BENCH_GPU_CALL_CUH
#define TAMIS_BENCH_GPU_CALL_CUH

#include <thread>

#include <tamis/tamis.h>

#include "format/mxfp4.h"
#include "measure.cuh"

namespace {

template <class T> T *on_device(const std::vector<T> &host) {
    T *device = nullptr;
    CHECK(cudaMalloc(&device, std::max<size_t>(16, host.size() * sizeof(T))));
    CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}

template <class T> std::vector<T> from_device(const T *p, size_t n) {
    std::vector<T> v(n);
    CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

void fill(std::vector<uint8_t> &bytes, random_bits &bits) {
    for (size_t i = 0; i < bytes.size(); i += 8) {
        const uint64_t eight = bits();
        memcpy(&bytes[i], &eight, std::min<size_t>(8, bytes.size() - i));
    }
}

/* Four scale bytes with a span as trained tensors have them: 0, 1, 2, 3 with
 * these chances. */
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
    int first, length, kind; /* kind: 0 redrawn each row, 1 after 8 rows or so, 2
                                after hundreds */
};

Run draw_run(int blocks, random_bits &bits, int kind) {
    int length = 1;
    while (length < 8 && bits() % 100 < 57) {
        length++;
    }
    return {(int)(bits() % (unsigned)(blocks - 8)), length, kind};
}

/* Rows of `width` blocks out of `blocks`: about 72% of a row is in the next
 * one, 66% in the fourth, 61% in the sixteenth, as measured in trained
 * indexers. */
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
    int scales;  /* 0 as trained, 1 any byte, 2 any near byte: spans to 15, some
                    NaN */
    int weights; /* 0 plain, 1 hostile */
    int codes;   /* 0 random, 1 all zero: ties */
    int falling; /* K of all but the first pages is small */
    int physical, bf16, round, counts, w16;
};

/* What is timed: lists and selections of the released sizes, placed; local: as of Shape. */
Shape released(int rows, int64_t positions, int local = 1) {
    Shape s = {};
    s.rows = rows;
    s.width = 2048;
    s.page = 128;
    s.topk = 512;
    s.positions = positions;
    s.local = local;
    s.physical = 1;
    return s;
}

/* What the checks vary from case to case alike; width and page are there. */
void vary(Shape &s, int i) {
    s.positions = 8 * s.width + 1000 + i * 331;
    s.local = i % 3 - 1;
    s.scales = i / 2 % 3;
    s.weights = i / 5 % 2;
    s.physical = i / 3 % 2 && s.local >= 0;
    s.round = i % 4 == 3;
    s.counts = i / 7 % 2;
    s.w16 = i / 9 % 2;
}

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
    for (int64_t p = (pages + 19) / 20; s.falling && p < pages; p++) {
        uint8_t *scales = &pool[(size_t)(table[(size_t)p] * stride + s.page * 64)];
        for (int i = 0; i < s.page * 4; i++) {
            scales[i] = (uint8_t)(scales[i] - 24);
        }
    }
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

/* Of positions and counts alone. */
Outputs positions_of(Call &c, const Shape &s) {
    Outputs o = outputs_of(c, s);
    o.selection.slots = nullptr;
    o.selection.scores = nullptr;
    return o;
}

template <class T>
bool same(const char *what, const T *x, const T *y, int64_t n, int64_t line, const Shape &s) {
    std::vector<T> a((size_t)n), b((size_t)n);
    CHECK(cudaMemcpy(a.data(), x, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(b.data(), y, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&a[(size_t)i], &b[(size_t)i], sizeof(T))) {
            printf("FAILED: %s: row %lld, %lld: %llx, not %llx (width %d page %d "
                   "scales %d weights "
                   "%d topk %d)\n",
                   what, (long long)(i / line), (long long)(i % line),
                   (unsigned long long)b[(size_t)i], (unsigned long long)a[(size_t)i], s.width,
                   s.page, s.scales, s.weights, s.topk);
            return false;
        }
    }
    return true;
}

} // namespace

#endif
