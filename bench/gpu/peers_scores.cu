// SPDX-License-Identifier: MIT
/*
 * peers_scores.cu: tokenspeed-kernel's scores of listed blocks (FP8 K) and its DeepSelect beside
 * our consumer (MXFP4 K), on one GPU, without torch. OUT is where peers_export.py left its objects:
 *   nvcc -O3 -std=c++17 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc -IOUT \
 *       bench/gpu/peers_scores.cu OUT/index_scores_*.o OUT/deep_select_512_1.o \
 *       libcuda_dialect_runtime_static.a -lcuda -o peers_scores
 * Its scores are checked against the host's and its selection against a sort of its scores; ours
 * against the general kernels. Times as peers_topk.cu's. Theirs ends at columns of the scores: the
 * kernel that turns them into positions is not timed. peers_scores [1048576 | 262144]
 */
#include "deep_select_512_1.h"
#include "index_scores_16384.h"
#include "index_scores_4096.h"

#include "call.cuh"

#include "kernels/cuda/consume.cu"
#include "kernels/cuda/consume_sm90.cu"
#include "kernels/cuda/decode.cu"
#include "kernels/cuda/decode_sm90.cu"
#include "kernels/cuda/sparse_mqa_logits.cu"
#include "kernels/cuda/topk.cu"

#include "few.cuh"
#include "peers.cuh"

namespace {

constexpr int kPage = 64, kHeads = 32, kDim = 128, kWidth = 2048, kColumns = 8 * kWidth,
              kTopk = 512;
constexpr int kPageBytes = kPage * (kDim + 4); /* codes, then scales */

struct Theirs {
    Call c; /* owns */
    int rows, pages;
    uint8_t *query, *k;
    float *weights, *scores, *values;
    int32_t *table, *visible, *lists, *ends, *columns;
};

/* No NaN. */
std::vector<uint8_t> codes(size_t n, random_bits &bits) {
    std::vector<uint8_t> bytes(n);
    fill(bytes, bits);
    for (auto &b : bytes) {
        b = (b & 0x7F) == 0x7F ? (uint8_t)(b ^ 1) : b;
    }
    return bytes;
}

/* The same lists as ours. */
void make_theirs(Theirs &t, int rows, int64_t positions, const int32_t *lists) {
    random_bits bits(3);
    t.rows = rows;
    t.pages = (int)(positions / kPage);
    std::vector<uint8_t> k = codes((size_t)t.pages * kPageBytes, bits);
    for (int p = 0; p < t.pages; p++) {
        for (int i = 0; i < kPage; i++) {
            const float scale = (float)(1 + bits() % 1000) * 1e-5f;
            memcpy(&k[(size_t)p * kPageBytes + kPage * kDim + (size_t)i * 4], &scale, 4);
        }
    }
    std::vector<float> weights((size_t)rows * kHeads);
    for (auto &w : weights) {
        w = ((float)(bits() % 2001) - 800.0f) * 1e-5f;
    }
    std::vector<int32_t> table((size_t)t.pages);
    for (size_t i = 0; i < table.size(); i++) {
        table[i] = (int32_t)i;
    }
    std::shuffle(table.begin(), table.end(), bits);
    t.query = t.c.keep(on_device(codes((size_t)rows * kHeads * kDim, bits)));
    t.k = t.c.keep(on_device(k));
    t.weights = t.c.keep(on_device(weights));
    t.table = t.c.keep(on_device(table));
    t.visible = t.c.keep(on_device(std::vector<int32_t>((size_t)rows, (int32_t)positions)));
    t.ends = t.c.keep(on_device(std::vector<int32_t>((size_t)rows, kColumns)));
    t.lists = (int32_t *)lists;
    CHECK(cudaMalloc(&t.scores, (size_t)rows * kColumns * 4));
    CHECK(cudaMalloc(&t.values, (size_t)rows * kTopk * 4));
    CHECK(cudaMalloc(&t.columns, (size_t)rows * kTopk * 4));
    t.c.keep(t.scores);
    t.c.keep(t.values);
    t.c.keep(t.columns);
}

/* CTAs of a row: _split_k of dsv41/cute_dsl.py. All rows have one page table, of stride 0. */
#define SCORE(name)                                                                                \
    {                                                                                              \
        name##_Tensor_gQ_t q = {t.query, {t.rows}};                                                \
        name##_Tensor_gWeights_t w = {t.weights, {t.rows}};                                        \
        name##_Tensor_gK_t k = {t.k};                                                              \
        name##_Tensor_gK_scales_t scales = {t.k + kPage * kDim};                                   \
        name##_Tensor_gTable_t table = {t.table, {t.rows, t.pages}, {0}};                          \
        name##_Tensor_gVisible_t visible = {t.visible, {t.rows}};                                  \
        name##_Tensor_gCandidates_t lists = {t.lists, {t.rows, kWidth}, {kWidth}};                 \
        name##_Tensor_gOut_t out = {t.scores, {t.rows, kColumns}, {kColumns}};                     \
        good_or_exit(cute_dsl_##name##_wrapper(MODULE(name), &q, &w, &k, &scales, &table,          \
                                               &visible, &lists, &out, split, stream),             \
                     #name);                                                                       \
    }

void score_theirs(const Theirs &t, cudaStream_t stream) {
    int split = 1;
    while (split * 2 <= std::min(std::max(1, 8 * kMultiprocessors / t.rows), kWidth / 16)) {
        split *= 2;
    }
    if (t.pages == 4096) {
        SCORE(index_scores_4096)
    } else {
        SCORE(index_scores_16384)
    }
}
#undef SCORE

void select_theirs(const Theirs &t, cudaStream_t stream) {
    const SelectCall call = {t.scores, t.ends, t.columns, t.values, t.rows, kColumns, kTopk};
    DEEP_SELECT_CALL(deep_select_512_1, call, stream)
}

/* ---- checks ---- */

float of_e4m3(uint8_t b) {
    const int exponent = b >> 3 & 15, mantissa = b & 7;
    const float x =
        exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    return b & 128 ? -x : x;
}

/* Of the first rows; by how much scores differ, of the row's largest. */
bool check_theirs(const Theirs &t, int rows) {
    score_theirs(t, 0);
    select_theirs(t, 0);
    CHECK(cudaDeviceSynchronize());
    const size_t n = (size_t)rows;
    auto query = from_device(t.query, n * kHeads * kDim);
    auto k = from_device(t.k, (size_t)t.pages * kPageBytes);
    auto weights = from_device(t.weights, n * kHeads), got = from_device(t.scores, n * kColumns);
    auto table = from_device(t.table, (size_t)t.pages), lists = from_device(t.lists, n * kWidth),
         columns = from_device(t.columns, n * kTopk);
    float value[256];
    for (int b = 0; b < 256; b++) {
        value[b] = of_e4m3((uint8_t)b);
    }
    bool good = true;
    double worst = 0;
    for (size_t r = 0; r < n; r++) {
        double most = 0, off = 0;
        for (size_t c = 0; c < kColumns; c += 7) {
            const int32_t block = lists[r * kWidth + c / 8];
            const uint8_t *page = &k[(size_t)table[(size_t)block / 8] * kPageBytes];
            const size_t at = (size_t)block % 8 * 8 + c % 8;
            double sum = 0;
            for (size_t h = 0; h < kHeads; h++) {
                double dot = 0;
                for (size_t d = 0; d < kDim; d++) {
                    dot += (double)value[query[(r * kHeads + h) * kDim + d]] *
                           (double)value[page[at * kDim + d]];
                }
                sum += std::max(0.0, dot) * (double)weights[r * kHeads + h];
            }
            float scale;
            memcpy(&scale, page + kPage * kDim + at * 4, 4);
            sum *= (double)scale;
            most = std::max(most, fabs(sum));
            off = std::max(off, fabs(sum - (double)got[r * kColumns + c]));
        }
        worst = std::max(worst, off / most);
        std::vector<float> row(got.begin() + (int64_t)r * kColumns,
                               got.begin() + (int64_t)(r + 1) * kColumns),
            mine;
        for (size_t i = 0; i < kTopk; i++) {
            const int32_t c = columns[r * kTopk + i];
            good &= c >= 0 && c < kColumns;
            mine.push_back(good ? row[(size_t)c] : 0.0f);
        }
        std::sort(row.begin(), row.end(), std::greater<float>());
        std::sort(mine.begin(), mine.end(), std::greater<float>());
        good &= std::equal(mine.begin(), mine.end(), row.begin());
    }
    good &= worst < 1e-2; /* FP8 products are summed in fewer bits than float has */
    printf("%d rows of %d: theirs %s, off by %.1e of the largest\n", rows, t.rows,
           good ? "good" : "WRONG", worst);
    return good;
}

/* ---- times ---- */

bool time_all(int64_t only) {
    Timer timer;
    bool good = true;
    for (int64_t positions : {1048576, 262144}) {
        if (only && positions != only) {
            continue;
        }
        for (int rows : {1, 8, 64, 512, 8192}) {
            Few few(rows, 7, positions);
            Call &c = few.c;
            const Shape &s = few.s;
            const Outputs &o = few.out;
            Theirs t;
            make_theirs(t, rows, positions, c.score.blocks);
            if (!check_theirs(t, std::min(rows, 2))) {
                good = false;
                continue;
            }
            auto show = [&](const char *name, const Queue &queue) {
                const Times took = times_of(timer, queue);
                printf(
                    "%7lld positions, %4d rows, %-42s cold %9.2f us %8.1f ns/row, warm %9.2f us\n",
                    (long long)positions, rows, name, took.cold, (double)took.cold * 1e3 / rows,
                    took.warm);
                fflush(stdout);
            };
            show("tokenspeed: scores", [&](cudaStream_t st) { score_theirs(t, st); });
            show("tokenspeed: DeepSelect of them", [&](cudaStream_t st) { select_theirs(t, st); });
            show("tokenspeed: both", [&](cudaStream_t st) {
                score_theirs(t, st);
                select_theirs(t, st);
            });
            const auto ours = [&](const Queue &queue) {
                Outputs want = positions_of(c, s);
                c.topk.logits = want.logits;
                c.topk.selection = want.selection;
                c.score.logits = want.logits;
                tamis_sparse_mqa_logits_smxx_h32_d128<<<dim3(1, (unsigned)rows), 128>>>(c.score);
                tamis_topk_smxx<<<(unsigned)rows, tamis::kSelectThreads>>>(c.topk, 0, INT32_MAX,
                                                                           tamis_score_tile{});
                c.score.logits = o.logits;
                queue(0);
                CHECK(cudaDeviceSynchronize());
                if (same("positions", want.selection.positions, o.selection.positions,
                         (int64_t)rows * s.topk, s.topk, s)) {
                    show("tamis: scores, selection, positions", queue);
                } else {
                    good = false;
                }
            };
            if (rows <= 512) {
                ours([&](cudaStream_t st) {
                    split(c.score, o.selection, few.done, few.parts, few.how, st);
                });
            } else { /* K from pages, as launch_groups.c has it */
                auto *words = (int32_t *)few.done;
                ours([&](cudaStream_t st) {
                    tamis_consume_rows_sm90<<<(unsigned)rows, tamis::hopper::kGroupThreads,
                                              TAMIS_CONSUME_ROWS_BYTES, st>>>(c.score, o.selection,
                                                                              words, true, nullptr);
                    tamis_consume_fast_smxx<<<264, tamis::kFastThreads,
                                              (size_t)(s.width / 4) * 34 * 4, st>>>(
                        c.score, o.selection, words, nullptr);
                });
            }
        }
    }
    return good;
}

} // namespace

int main(int argc, char **argv) {
    allow_split();
    CHECK(cudaFuncSetAttribute(tamis_consume_fast_smxx, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               512 * 34 * 4));
    CHECK(cudaFuncSetAttribute(tamis_consume_rows_sm90,
                               cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    return time_all(argc > 1 ? atoll(argv[1]) : 0) ? 0 : 1;
}
