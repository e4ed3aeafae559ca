// SPDX-License-Identifier: MIT
/*
 * select.cu: selection and decode on one GPU: pools, lists of blocks, and a consumer of few rows.
 * Checked against a host sort and, for scores, byte for byte against the general kernels; then
 * timed. A program of its own, since it launches kernels apart:
 *   nvcc -O3 -std=c++17 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc \
 *       bench/gpu/select.cu -o select
 * Times are medians of CUDA events around a graph of one launch; between two runs 512 MiB are
 * written, so that no input is in L2. select check | time | decode
 */
#include "call.cuh"

#include "kernels/cuda/consume.cu"
#include "kernels/cuda/decode.cu"
#include "kernels/cuda/decode_sm90.cu"
#include "kernels/cuda/publish.cu"
#include "kernels/cuda/sparse_mqa_logits.cu"
#include "kernels/cuda/topk.cu"

#include "few.cuh"

namespace {

/* ---- scores of many kinds ---- */

const char *const kinds[] = {"normal",        "all equal", "some NaN",   "all -inf",
                             "few values",    "last bit",  "any size",   "any bits",
                             "all NaN",       "ascending", "mostly 0",   "one above",
                             "-0 and 0",      "negative",  "descending", "best outside the sample",
                             "best inside it"};
constexpr int kKinds = sizeof kinds / sizeof *kinds;

float score_of(int kind, int64_t i, int64_t n, random_bits &bits) {
    const float normal = std::normal_distribution<float>()(bits),
                u = (float)(bits() % 1000) / 1000.0f;
    switch (kind) {
    case 1:
        return 1.5f;
    case 2:
        return bits() % 5 ? normal : tamis_f32_of_bits(0x7F800001u + (uint32_t)(bits() % 1000));
    case 3:
        return -INFINITY;
    case 4:
        return (float)(bits() % 7) - 3.0f;
    case 5:
        return tamis_f32_of_bits(0x3F800000u + (uint32_t)(bits() % 3000));
    case 6:
        return normal * exp2f(200.0f * u - 100.0f);
    case 7:
        return tamis_f32_of_bits((uint32_t)bits());
    case 8:
        return tamis_f32_of_bits(0xFFC00001u);
    case 9:
        return (float)i;
    case 10:
        return bits() % 50 ? 0.0f : normal;
    case 11:
        return i == n / 2 ? 3e38f : i % 2 ? -1e30f : normal * 1e-3f;
    case 12:
        return bits() % 2 ? -0.0f : 0.0f;
    case 13:
        return -5.0f + normal;
    case 14:
        return -(float)i;
    case 15: /* publish.cu's: 16 of 128 */
        return i % 128 < 16 ? normal : normal + 10.0f;
    case 16:
        return i % 128 < 16 ? normal + 10.0f : normal;
    default:
        return normal;
    }
}

/* The best `want` of n keys, ties to the lowest, ascending. */
std::vector<int32_t> best_of(const std::vector<uint64_t> &keys, int64_t want) {
    std::vector<int32_t> order;
    for (size_t i = 0; i < keys.size(); i++) {
        if (keys[i]) {
            order.push_back((int32_t)i);
        }
    }
    want = std::min<int64_t>(want, (int64_t)order.size());
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return keys[(size_t)a] > keys[(size_t)b]; });
    order.resize((size_t)want);
    std::sort(order.begin(), order.end());
    return order;
}

/* ---- pools ---- */

int failures;

void expect(bool good, const char *what, const char *kind, int64_t n, int64_t want, int64_t r,
            int64_t i, int64_t got, int64_t right) {
    if (!good && failures++ < 20) {
        printf("FAILED: %s (%s), %lld of %lld, row %lld, entry %lld: %lld, not %lld\n", what, kind,
               (long long)want, (long long)n, (long long)r, (long long)i, (long long)got,
               (long long)right);
    }
}

void check_pool(int kind, int blocks, int topk, int variant, uint64_t seed) {
    random_bits bits(seed);
    const int rows = 3, size = variant % 2 ? 16 : 8, width = blocks * size;
    const bool bf16 = variant % 5 == 3, listed = variant % 4 != 1,
               gather = listed && variant % 3 == 2;
    const int64_t positions = gather ? 3 * width + 5 : width, stride = positions + variant % 7;
    std::vector<float> scores((size_t)(rows * stride));
    std::vector<uint16_t> half(scores.size());
    std::vector<int32_t> ids, ke, columns;
    for (int r = 0; r < rows; r++) {
        for (int64_t i = 0; i < stride; i++) {
            size_t at = (size_t)(r * stride + i);
            scores[at] = score_of(kind, i, stride, bits);
            half[at] = tamis_bf16_from_f32(scores[at]);
            scores[at] = bf16 ? tamis_f32_from_bf16(half[at]) : scores[at];
        }
        std::vector<int32_t> line;
        for (int b = 0; b < blocks; b++) {
            line.push_back((int32_t)(bits() % (unsigned)(3 * blocks)));
        }
        std::sort(line.begin(), line.end());
        ids.insert(ids.end(), line.begin(), line.end());
        ke.push_back((int32_t)(gather ? positions : 3 * width) - (int)(bits() % 9));
        columns.push_back((int32_t)(bits() % 3 ? width : (int)(bits() % (unsigned)(width + 1))));
    }
    tamis_topk_args a = {};
    a.logits_type = bf16 ? TAMIS_BF16 : TAMIS_F32;
    a.block_size = size;
    a.rows.count = rows;
    a.rows.ke = on_device(ke);
    a.width = width;
    a.logits = bf16 ? (void *)on_device(half) : (void *)on_device(scores);
    a.logits_stride = stride;
    a.blocks = listed ? on_device(ids) : nullptr;
    a.blocks_stride = blocks;
    a.columns = variant % 3 ? nullptr : on_device(columns);
    a.selection.topk = topk;
    a.selection.positions_stride = a.selection.scores_stride = topk;
    std::vector<int32_t> none((size_t)(rows * topk), 77);
    a.selection.positions = on_device(none);
    a.selection.scores = (float *)on_device(none);
    a.selection.counts = on_device(ke);
    tamis_topk_pool_smxx<<<rows, tamis::kPickThreads>>>(a, gather ? TAMIS_TOPK_GATHER : 0,
                                                        INT32_MAX, tamis_score_tile{});
    CHECK(cudaDeviceSynchronize());
    auto got = from_device(a.selection.positions, none.size());
    auto got_scores = from_device(a.selection.scores, none.size());
    auto counts = from_device(a.selection.counts, rows);
    for (int r = 0; r < rows; r++) {
        std::vector<uint64_t> keys;
        std::vector<int32_t> at;
        int n = a.columns ? columns[(size_t)r] : width;
        for (int c = 0; c < n; c++) {
            int32_t j = listed ? ids[(size_t)(r * blocks + c / size)] * size + c % size : c;
            float x = scores[(size_t)(r * stride + (gather && j < positions ? j : c))];
            keys.push_back(j < ke[(size_t)r] ? 1ull + tamis_order_key(x) : 0);
            at.push_back(j);
        }
        auto want = best_of(keys, topk);
        expect(counts[(size_t)r] == (int)want.size(), "pool count", kinds[kind], n, topk, r, 0,
               counts[(size_t)r], (int64_t)want.size());
        for (int i = 0; i < topk; i++) {
            bool there = i < (int)want.size();
            int32_t right = there ? at[(size_t)want[(size_t)i]] : -1;
            expect(got[(size_t)(r * topk + i)] == right, "pool", kinds[kind], n, topk, r, i,
                   got[(size_t)(r * topk + i)], right);
            if (there) {
                int c = want[(size_t)i];
                float x = scores[(size_t)(r * stride + (gather ? right : c))];
                x = tamis_canonical(x);
                float y = got_scores[(size_t)(r * topk + i)];
                expect(!memcmp(&x, &y, 4), "pool score", kinds[kind], n, topk, r, i, 0, 0);
            }
        }
    }
    for (const void *p : {(const void *)a.rows.ke, a.logits, (const void *)a.blocks,
                          (const void *)a.columns, (const void *)a.selection.positions,
                          (const void *)a.selection.scores, (const void *)a.selection.counts}) {
        cudaFree((void *)p);
    }
}

/* ---- lists of blocks ---- */

void launch_publish(const tamis_publish_job &job, bool team, cudaStream_t stream = 0) {
    if (team) {
        tamis_publish_team_sm90<<<(unsigned)job.rows.count * 8, tamis::kTeamThreads,
                                  2 * tamis::kListBytes, stream>>>(job);
    } else {
        tamis_publish_smxx<<<(unsigned)std::min<int64_t>(job.rows.count, 65535),
                             tamis::kPublishThreads, tamis::kListBytes, stream>>>(job);
    }
}

void check_publish(int kind, int blocks, int width, int own, bool team, int variant,
                   uint64_t seed) {
    random_bits bits(seed);
    const int rows = 3, page = 64, pages = blocks * 8 / page + 2;
    const int64_t stride = blocks + variant % 4;
    std::vector<float> maxima((size_t)(rows * stride));
    std::vector<int32_t> ke, table;
    for (int r = 0; r < rows; r++) {
        for (int64_t i = 0; i < stride; i++) {
            maxima[(size_t)(r * stride + i)] = score_of(kind, i, stride, bits);
        }
        ke.push_back(r == 1 ? (int32_t)(bits() % (unsigned)(8 * blocks + 1)) : 8 * blocks - r);
    }
    for (int i = 0; i < pages; i++) {
        table.push_back((int32_t)(bits() % 1000));
    }
    tamis_publish_job job = {};
    job.rows.count = rows;
    job.rows.ke = on_device(ke);
    job.rows.page_table = on_device(table);
    job.rows.page_table_width = job.rows.page_table_stride = pages;
    job.rows.requests = 1;
    job.block_max = on_device(maxima);
    job.block_max_stride = stride;
    job.limit = INT32_MAX;
    job.block_size = 8;
    std::vector<int32_t> none((size_t)(rows * width), 77);
    for (int l = 0; l < (own ? 2 : 1); l++) {
        tamis_block_list &to = job.list[l];
        to.width = l ? own : width;
        to.blocks = on_device(none);
        to.placed = on_device(none);
        to.copy = on_device(none);
        to.counts = on_device(none);
        to.blocks_stride = to.placed_stride = to.copy_stride = to.width;
        to.page_size = variant % 2 ? page : 0;
    }
    launch_publish(job, team);
    CHECK(cudaDeviceSynchronize());
    for (int l = 0; l < (own ? 2 : 1); l++) {
        const tamis_block_list &to = job.list[l];
        auto got = from_device(to.blocks, (size_t)(rows * to.width));
        auto copy = from_device(to.copy, (size_t)(rows * to.width));
        auto placed = from_device(to.placed, (size_t)(rows * to.width));
        auto counts = from_device(to.counts, rows);
        for (int r = 0; r < rows; r++) {
            std::vector<uint64_t> keys;
            int n = (ke[(size_t)r] + 7) / 8;
            for (int b = 0; b < n; b++) {
                keys.push_back(b == n - 1
                                   ? 1ull << 40
                                   : 1ull + tamis_order_key(maxima[(size_t)(r * stride + b)]));
            }
            auto want = best_of(keys, to.width);
            const char *what = team ? l ? "team own" : "team" : l ? "publish own" : "publish";
            expect(counts[(size_t)r] == (int)want.size(), what, kinds[kind], n, to.width, r, -1,
                   counts[(size_t)r], (int64_t)want.size());
            for (int i = 0; i < to.width; i++) {
                size_t at = (size_t)(r * to.width + i);
                int32_t right = i < (int)want.size() ? want[(size_t)i] : -1, place = right;
                if (right >= 0 && to.page_size) {
                    place = table[(size_t)(right / 8)] * 8 + right % 8;
                }
                expect(got[at] == right, what, kinds[kind], n, to.width, r, i, got[at], right);
                expect(copy[at] == right, "copy", kinds[kind], n, to.width, r, i, copy[at], right);
                expect(placed[at] == place, "placed", kinds[kind], n, to.width, r, i, placed[at],
                       place);
            }
        }
        cudaFree(to.blocks);
        cudaFree(to.placed);
        cudaFree(to.copy);
        cudaFree(to.counts);
    }
    cudaFree((void *)job.rows.ke);
    cudaFree((void *)job.rows.page_table);
    cudaFree((void *)job.block_max);
}

/* ---- a consumer of few rows ---- */

/* same_codes: every byte of the query's codes, or -1. */
void check_decode(const Shape &s, uint64_t seed, int same_codes = -1) {
    Call c;
    make(c, s, seed);
    if (same_codes >= 0) {
        CHECK(cudaMemset((void *)c.score.query.codes, same_codes, (size_t)s.rows * 32 * 64));
    }
    Outputs want = outputs_of(c, s), got = outputs_of(c, s);
    uint32_t *done = c.keep(on_device(std::vector<uint32_t>((size_t)s.rows, 0u)));
    c.score.logits = want.logits;
    tamis_sparse_mqa_logits_smxx_h32_d128<<<dim3(4, (unsigned)s.rows), 128>>>(c.score);
    /* topk takes every listed column: those past the count must not name blocks there. */
    auto lists = from_device(c.score.blocks, (size_t)(s.rows * s.width));
    std::vector<int32_t> counts((size_t)s.rows, s.width);
    if (c.score.counts) {
        counts = from_device(c.score.counts, counts.size());
    }
    for (int r = 0; r < s.rows; r++) {
        for (int i = std::max(0, counts[(size_t)r]); i < s.width; i++) {
            lists[(size_t)(r * s.width + i)] = -1;
        }
    }
    const int64_t stride = (c.columns + 31) / 32 * 32;
    auto *scratch =
        c.keep(on_device(std::vector<uint32_t>((size_t)(s.rows * stride), 0x5A5A5A5Au)));
    c.topk.blocks = c.keep(on_device(lists));
    c.topk.logits = want.logits;
    c.topk.selection = want.selection;
    tamis_topk_smxx<<<(unsigned)s.rows, tamis::kSelectThreads>>>(c.topk, 0, INT32_MAX,
                                                                 tamis_score_tile{});
    int64_t n = (int64_t)s.rows * s.topk;
    static const struct {
        int parts, how;
    } ways[] = {{1, kGroups + 1}, {3, kGroups + 3}, {7, kGroups + 7}, {16, kGroups + 2},
                {132, kTwo},      {132, 1},         {16, 2},          {11, 3},
                {4, 8},           {1, kWgmma},      {3, kWgmma},      {7, kWgmma},
                {16, kWgmma},     {132, kWgmma}};
    for (auto &way : ways) {
        CHECK(cudaMemset(got.logits, 0xA5, (size_t)got.logits_bytes));
        CHECK(cudaMemset(got.selection.positions, 0xA5, (size_t)n * 4));
        CHECK(cudaMemset(got.selection.slots, 0xA5, (size_t)n * 8));
        CHECK(cudaMemset(got.selection.scores, 0xA5, (size_t)n * 4));
        CHECK(cudaMemset(got.selection.counts, 0xA5, (size_t)s.rows * 4));
        c.score.logits = scratch;
        c.score.logits_stride = stride;
        split(c.score, got.selection, done, way.parts, way.how);
        CHECK(cudaDeviceSynchronize());
        bool good = true;
        good &= same("counts", want.selection.counts, got.selection.counts, s.rows, 1, s);
        good &= same("positions", want.selection.positions, got.selection.positions, n, s.topk, s);
        good &= same("slots", want.selection.slots, got.selection.slots, n, s.topk, s);
        good &= same("selected scores", (uint32_t *)want.selection.scores,
                     (uint32_t *)got.selection.scores, n, s.topk, s);
        failures += !good;
    }
    for (uint32_t left : from_device(done, (size_t)s.rows)) {
        failures += left != 0;
    }
}

int check_all() {
    static const int pools[] = {2048, 1, 3, 33, 513, 1000}, topks[] = {512, 1, 8, 513, 2048, 4096};
    for (int i = 0; i < kKinds * 36; i++) {
        int blocks = pools[i / kKinds % 6];
        check_pool(i % kKinds, i % 2 ? (blocks + 1) / 2 : blocks, topks[i / kKinds / 6], i,
                   (uint64_t)i);
    }
    printf("pools: %d cases, %d failures\n", kKinds * 36, failures);
    static const int blocks[] = {131072, 1, 5, 513, 2048, 2049, 8191, 8192, 8193, 20000};
    static const int widths[] = {2048, 512, 4096, 1}, owns[] = {513, 0, 4096, 1};
    int cases = 0;
    for (int k = 0; k < kKinds; k++) {
        for (int b = 0; b < 10; b++) {
            for (int w = 0; w < (b == 0 && k ? 1 : 4); w++) {
                for (int team = 0; team < 2; team++, cases++) {
                    check_publish(k, blocks[b], widths[w], owns[w], team, k + b + w,
                                  (uint64_t)(k * 100 + b));
                }
            }
        }
    }
    printf("lists: %d cases, %d failures\n", cases, failures);
    static const int lists[] = {1, 3, 513, 33, 768, 301, 2047, 2048};
    for (int i = 0; i < 128; i++) {
        Shape s = {};
        s.falling = i / 32 == 2;
        s.rows = 1 + i % 9;
        s.width = lists[i % 8];
        s.page = i / 3 % 2 ? 64 : 128;
        s.topk = topks[i % 6];
        s.codes = i % 11 == 4;
        vary(s, i);
        check_decode(s, (uint64_t)i + 99);
        /* Sums of a head's codes near what decode_sm90.cu takes, and beyond. */
        static const int alike[] = {0x55, 0xDD, 0x77, 0xFF, 0x66, 0x17};
        if (i % 5 == 0) { /* each with four lengths of lists */
            check_decode(s, (uint64_t)i, alike[i / 5 % 6]);
        }
    }
    printf("check: %s\n", failures ? "FAILED" : "all equal");
    return failures != 0;
}

/* ---- times ---- */

void time_select() {
    Timer timer;
    printf("empty kernel: %.2f us\n",
           timer.run([](cudaStream_t s) { nothing<<<1, 32, 0, s>>>(); }));
    for (int rows : {1, 8, 64, 512, 8192}) {
        const Shape s = released(rows, 262144);
        Call c;
        make(c, s, 7);
        Outputs o = positions_of(c, s);
        c.score.logits = o.logits;
        c.topk.logits = o.logits;
        c.topk.selection = o.selection;
        tamis_sparse_mqa_logits_fast_smxx<<<dim3(1, (unsigned)rows), tamis::kFastThreads>>>(c.score,
                                                                                            8);
        CHECK(cudaDeviceSynchronize());
        tamis_topk_args plain = c.topk;
        plain.blocks = nullptr;
        plain.columns = plain.rows.ke = nullptr;
        for (int i = 0; i < 4; i++) {
            const tamis_topk_args &a = i < 2 ? c.topk : plain;
            const float us = timer.run(
                [&](cudaStream_t st) {
                    tamis_topk_pool_smxx<<<(unsigned)rows, tamis::kPickThreads, 0, st>>>(
                        a, 0, INT32_MAX, tamis_score_tile{});
                },
                i % 2 == 0);
            printf("topk of pools, %s, %5d rows, %s L2: %8.2f us %8.1f ns/row\n",
                   i < 2 ? "listed" : "plain ", rows, i % 2 ? "warm" : "cold", us, us * 1e3 / rows);
        }
    }
}

void time_lists(int blocks) {
    Timer timer;
    for (int rows : {1, 8, 16, 32, 128, 1024}) {
        std::vector<float> maxima((size_t)rows * blocks);
        random_bits bits(5);
        std::vector<float> some(1 << 20);
        for (auto &x : some) {
            x = 3.0f + std::normal_distribution<float>()(bits);
        }
        for (size_t i = 0; i < maxima.size(); i++) {
            maxima[i] = some[(i * 7919) & (some.size() - 1)];
        }
        std::vector<int32_t> ke((size_t)rows, 8 * blocks), none((size_t)rows * 2048);
        tamis_publish_job job = {};
        job.rows.count = rows;
        job.rows.ke = on_device(ke);
        job.block_max = on_device(maxima);
        job.block_max_stride = blocks;
        job.limit = INT32_MAX;
        job.block_size = 8;
        for (int l = 0; l < 2; l++) {
            job.list[l].blocks = on_device(none);
            job.list[l].placed = on_device(none);
            job.list[l].blocks_stride = job.list[l].placed_stride = 2048;
        }
        job.list[0].width = 2048;
        for (int own : {0, 513}) {
            for (int team : {0, 1}) {
                job.list[1].width = own;
                float us = timer.run([&](cudaStream_t st) { launch_publish(job, team, st); });
                printf("2048 (and %3d) of %d blocks, %4d rows, %s: %8.2f us %8.1f "
                       "ns/row\n",
                       own, blocks, rows, team ? "cluster" : "one CTA", us, us * 1e3 / rows);
            }
        }
        for (void *p :
             {(void *)job.rows.ke, (void *)job.block_max, (void *)job.list[0].blocks,
              (void *)job.list[1].blocks, (void *)job.list[0].placed, (void *)job.list[1].placed}) {
            CHECK(cudaFree(p));
        }
    }
}

/* Four: layers with other queries and the same lists in one graph, each. */
void time_decode() {
    Timer timer;
    printf("empty kernel: %.2f us\n",
           timer.run([](cudaStream_t s) { nothing<<<1, 32, 0, s>>>(); }));
    for (int rows : {1, 2, 8, 16, 32, 64, 128, 256, 260, 384, 512}) {
        Few few(rows, 7);
        Call &c = few.c, other[3];
        const tamis_selection &out = few.out.selection;
        c.topk.logits = few.out.logits;
        c.topk.selection = out;
        random_bits bits(77);
        std::vector<tamis_sparse_mqa_logits_args> layers(4, c.score);
        for (size_t i = 0; i < 3; i++) {
            make_query(other[i], few.s, bits);
            layers[i + 1].query = other[i].score.query;
        }
        const int each = std::max(1, 2 * kMultiprocessors / rows);
        const int two_steps = std::min(8, std::max(1, 512 / (each * 8)));
        printf("%3d rows:", rows);
        for (int how : {few.any, kWgmma}) {
            auto one = [&](cudaStream_t st) { split(c.score, out, few.done, few.parts, how, st); };
            float cold = timer.run(one), warm = timer.run(one, false);
            float four = timer.run([&](cudaStream_t st) {
                for (auto &layer : layers) {
                    split(layer, out, few.done, few.parts, how, st);
                }
            });
            printf(" %s %6.2f us, %6.2f warm, %6.2f of four;", how < 0 ? "wgmma" : "smxx", cold,
                   warm, four / 4);
        }
        float two = timer.run([&](cudaStream_t st) {
            tamis_sparse_mqa_logits_fast_smxx<<<dim3((unsigned)each, (unsigned)rows),
                                                tamis::kFastThreads, 0, st>>>(c.score, two_steps);
            tamis_topk_pool_smxx<<<(unsigned)rows, tamis::kPickThreads, 0, st>>>(
                c.topk, 0, INT32_MAX, tamis_score_tile{});
        });
        printf(" scores, then topk %6.2f\n", two);
        fflush(stdout);
    }
}

} // namespace

int main(int argc, char **argv) {
    CHECK(cudaFuncSetAttribute(tamis_consume_fast_smxx, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               512 * 34 * 4));
    CHECK(cudaFuncSetAttribute(tamis_publish_team_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               2 * tamis::kListBytes));
    CHECK(cudaFuncSetAttribute(tamis_publish_smxx, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               tamis::kListBytes));
    allow_split();
    std::string what = argc > 1 ? argv[1] : "check";
    if (what == "check") {
        return check_all();
    }
    if (what == "time") {
        time_select();
    } else if (what == "lists") {
        for (int blocks : {2048, 4096, 8192, 16384, 131072}) {
            time_lists(blocks);
        }
    } else {
        time_decode();
    }
    return 0;
}
