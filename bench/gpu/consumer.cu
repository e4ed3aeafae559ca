// SPDX-License-Identifier: MIT
/*
 * consumer.cu: the consumer's kernels on one GPU: checked byte for byte against the general kernels
 * (which the tests hold to ref), then timed. A program of its own, since it launches kernels apart:
 *   nvcc -O3 -std=c++17 -fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc \
 *       bench/gpu/consumer.cu -o consumer
 * Times are medians of CUDA events over `rows` rows; between two runs 512 MiB are written, so that
 * no input is in L2. consumer check | time [ROWS]. ALL=1: the general kernels, too; FEW=1: local
 * lists at 262K, random ones at 1M.
 */
#include "call.cuh"

#include "kernels/cuda/source_smxx.cu"
#include "kernels/cuda/raise.cu"
#include "kernels/cuda/sparse_mqa_logits.cu"
#include "kernels/cuda/topk.cu"
#include "kernels/cuda/consume.cu"
#include "kernels/cuda/consume_sm90.cu"
#include "kernels/cuda/consume_raised.cu"
#include "kernels/cuda/expand.cu"

namespace {

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
                              (size_t)consume_bytes(a.width)>>>(a, out, nullptr, nullptr);
}

/* Rows from decoded K, by so many warpgroups each; 0: by one that begins anywhere. */
void consume_raised(const tamis_sparse_mqa_logits_args &a, const tamis_selection &out,
                    int32_t *done, const tamis_raised_k &raised, int groups) {
    const unsigned rows = (unsigned)a.rows.count;
    if (groups == 4) {
        tamis_consume_raised4_sm90<<<rows, 512, TAMIS_CONSUME_RAISED4_BYTES>>>(a, out, done,
                                                                               raised);
    } else if (groups == 2) {
        tamis_consume_raised2_sm90<<<rows, 256, TAMIS_CONSUME_RAISED2_BYTES>>>(a, out, done,
                                                                               raised);
    } else if (groups == 0) {
        tamis_consume_raised1_sm90<<<rows, 128, TAMIS_CONSUME_RAISED_BYTES>>>(a, out, done, raised);
    } else {
        tamis_consume_raised_sm90<<<rows, 128, TAMIS_CONSUME_RAISED_BYTES>>>(a, out, done, raised);
    }
}

/* What launch_groups.c queues on Hopper. done: a word a row. */
void consume_sm90(const tamis_sparse_mqa_logits_args &a, const tamis_selection &out, int32_t *done,
                  const tamis_raised_k &raised, int groups = 1) {
    const unsigned rows = (unsigned)a.rows.count, threads = tamis::hopper::kGroupThreads;
    const bool fresh = raised.codes == nullptr;
    if (!fresh) {
        consume_raised(a, out, done, raised, groups);
    }
    tamis_consume_rows_sm90<<<fresh ? rows : std::min(rows, 660u), threads,
                              TAMIS_CONSUME_ROWS_BYTES>>>(a, out, done, fresh, nullptr);
    tamis_consume_fast_smxx<<<std::min(rows, 264u), tamis::kFastThreads,
                              (size_t)consume_bytes(a.width)>>>(a, out, done, nullptr);
}

/* Decodes K of requests that have a place, in `positions` positions. */
void raise(const tamis_raise_args &a) {
    tamis_raise_k_smxx<<<132 * 8, 256>>>(a);
}

tamis_raise_args raise_of(Call &c, const std::vector<int32_t> &first,
                          const std::vector<int32_t> &length, int64_t positions) {
    tamis_raise_args a = {};
    std::vector<uint8_t> codes((size_t)positions * 128, 0x5A);
    std::vector<float> scales((size_t)positions, -1.0f);
    a.to.codes = c.keep(on_device(codes));
    a.to.scales = c.keep(on_device(scales));
    a.to.first = c.keep(on_device(first));
    a.to.length = c.keep(on_device(length));
    a.k = c.score.k;
    a.page_table = c.score.rows.page_table;
    a.page_table_stride = c.score.rows.page_table_stride;
    a.requests = c.score.rows.requests;
    return a;
}

void topk(const tamis_topk_args &a) {
    tamis_topk_smxx<<<(unsigned)a.rows.count, tamis::kSelectThreads>>>(a, 0, INT32_MAX,
                                                                       tamis_score_tile{});
}

void topk_pool(const tamis_topk_args &a) {
    tamis_topk_pool_smxx<<<(unsigned)a.rows.count, tamis::kPickThreads>>>(a, 0, INT32_MAX,
                                                                          tamis_score_tile{});
}

/* ---- checks ---- */

/* By Hopper's kernels: in all, and from decoded K; what several warpgroups did from pages. */
int done_rows, raised_rows, two_rows, four_rows, slow_rows;

/* Three requests with pages in other orders, and K decoded of all, or of the first and the last. */
tamis_raised_k add_requests(Call &c, const Shape &s, random_bits &bits) {
    std::vector<int32_t> table((size_t)c.score.k.size), tables, request((size_t)s.rows);
    CHECK(cudaMemcpy(table.data(), c.score.rows.page_table, table.size() * 4,
                     cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < 3; i++) { /* `physical` is of one table */
        for (size_t p = 0; p < table.size(); p++) {
            tables.push_back(table[s.physical ? p : (p + i) % table.size()]);
        }
    }
    for (auto &r : request) {
        r = (int32_t)(bits() % 4) - (bits() % 5 == 0 ? 9 : 1);
    }
    c.score.rows.requests = 3;
    c.score.rows.page_table = c.keep(on_device(tables));
    c.score.rows.request = c.keep(on_device(request));
    c.topk.rows = c.score.rows;
    const int32_t n = (int32_t)s.positions, each = (n + 63) / 64 * 64;
    const int32_t gap = 64 * (int32_t)(bits() % 3), middle = bits() % 3 ? -1 : gap + each;
    const tamis_raise_args a =
        raise_of(c, {gap, middle, gap + 2 * each}, {n, middle < 0 ? 0 : n, n}, 3 * each + 256);
    raise(a);
    return a.to;
}

bool check(const Shape &s, uint64_t seed) {
    Call c;
    make(c, s, seed);
    random_bits bits(seed);
    const tamis_raised_k raised = add_requests(c, s, bits);
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
    if (s.bf16) {
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
    auto spoil = [&](const tamis_selection &out, int byte) {
        CHECK(cudaMemset(out.positions, byte, (size_t)n * 4));
        CHECK(cudaMemset(out.slots, byte, (size_t)n * 8));
        CHECK(cudaMemset(out.scores, byte, (size_t)n * 4));
        CHECK(cudaMemset(out.counts, byte, (size_t)s.rows * 4));
    };
    spoil(want.selection, 0x5A);
    spoil(got.selection, 0x5A);
    topk(c.topk);
    /* topk, one kernel, Hopper's from pages, from decoded K, and by two and four warpgroups */
    for (int how : {0, 1, 2, 3, 4, 5, 6}) {
        const int groups = how == 6 ? 0 : how == 5 ? 4 : how == 4 ? 2 : 1;
        if ((how == 0 || groups > 1) && s.width > 2048) {
            continue;
        }
        if (how >= 2 && (s.topk > TAMIS_CONSUME_MAX_TOPK || s.round)) {
            continue;
        }
        if (groups > 1) { /* once to count which rows come from decoded K, then all rows */
            tamis_sparse_mqa_logits_args a = c.score;
            a.logits_stride = (c.columns + 31) / 32 * 32;
            a.logits = c.keep(on_device(std::vector<uint32_t>((size_t)(s.rows * a.logits_stride))));
            std::vector<int32_t> done((size_t)s.rows, 2);
            int32_t *words = c.keep(on_device(done));
            consume_raised(a, got.selection, words, raised, groups);
            CHECK(cudaMemcpy(done.data(), words, done.size() * 4, cudaMemcpyDeviceToHost));
            for (int d : done) {
                (how == 5 ? four_rows : two_rows) += d == 1;
                slow_rows += d == 0;
            }
            spoil(got.selection, 0xA5);
            consume_raised(a, got.selection, nullptr, raised, groups);
        } else if (how >= 2) {
            CHECK(cudaMemset(got.logits, 0x5A, (size_t)got.logits_bytes));
            int32_t *words = (int32_t *)got.logits;
            consume_sm90(c.score, got.selection, words, how == 2 ? tamis_raised_k{} : raised,
                         groups);
            std::vector<int32_t> done((size_t)s.rows);
            CHECK(cudaMemcpy(done.data(), words, done.size() * 4, cudaMemcpyDeviceToHost));
            for (int d : done) {
                done_rows += d == 1;
            }
            if (how >= 3) { /* once more, to count */
                consume_raised(c.score, got.selection, words, raised, groups);
                CHECK(cudaMemcpy(done.data(), words, done.size() * 4, cudaMemcpyDeviceToHost));
                for (int d : done) {
                    raised_rows += d == 1;
                }
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
        spoil(got.selection, 0xA5);
    }
    return good;
}

bool check_all() {
    static const int widths[] = {1, 3, 5, 33, 64, 301, 2047, 2048, 4096, 16, 17};
    static const int pages[] = {64, 8, 256, 128};
    static const int topks[] = {512, 1, 7, 4096, 768, 513};
    bool good = true;
    int cases = 0;
    for (int i = 0; i < 96; i++) {
        Shape s = {};
        s.rows = 1 + i % 37;
        s.width = widths[i % 11];
        s.page = pages[i / 3 % 4];
        s.topk = topks[i % 6];
        s.codes = i % 13 == 4;
        s.bf16 = i % 13 == 5;
        vary(s, i);
        s.falling = s.scales == 0 && i % 7 < 3;
        good &= check(s, (uint64_t)i + 99);
        cases++;
    }
    good &= done_rows > 0 && raised_rows > 0 && two_rows > 0 && four_rows > 0 && slow_rows > 0;
    printf("check: %d cases, %d rows by wgmma, from decoded K %d by a warpgroup, %d by two, %d by "
           "four, %d by several from pages, %s\n",
           cases, done_rows, raised_rows, two_rows, four_rows, slow_rows,
           good ? "all bytes equal" : "FAILED");
    return good;
}

/* ---- times ---- */

void time_all(int rows) {
    for (int64_t positions : {262144, 1048576}) {
        for (int local : {1, 0}) {
            if (getenv("FEW") && (local == 1) != (positions == 262144)) {
                continue;
            }
            const Shape s = released(rows, positions, local);
            Call c;
            make(c, s, 7);
            Outputs o = positions_of(c, s);
            c.score.logits = o.logits;
            c.topk.logits = o.logits;
            c.topk.selection = o.selection;
            auto show = [&](const char *name, const std::function<void()> &run) {
                float ms = median_ms(5, run);
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
            const tamis_raise_args args = raise_of(c, {0}, {(int32_t)positions}, positions);
            int32_t *done = (int32_t *)o.logits;
            show("decode K", [&] { raise(args); });
            show("consume, pages", [&] { consume_sm90(c.score, o.selection, done, {}); });
            show("consume, decoded K", [&] { consume_sm90(c.score, o.selection, done, args.to); });
            if (rows < 1024) {
                show("decoded K alone",
                     [&] { consume_raised(c.score, o.selection, done, args.to, 1); });
                show("one, as few rows take it",
                     [&] { consume_raised(c.score, o.selection, done, args.to, 0); });
                show("two warpgroups a row",
                     [&] { consume_raised(c.score, o.selection, nullptr, args.to, 2); });
                show("four warpgroups a row",
                     [&] { consume_raised(c.score, o.selection, nullptr, args.to, 4); });
            }
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    CHECK(cudaFuncSetAttribute(tamis_consume_fast_smxx, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               consume_bytes(TAMIS_CONSUME_MAX_WIDTH)));
    CHECK(cudaFuncSetAttribute(tamis_consume_raised4_sm90,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               TAMIS_CONSUME_RAISED4_BYTES));
    CHECK(cudaFuncSetAttribute(tamis_consume_rows_sm90,
                               cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    std::string what = argc > 1 ? argv[1] : "check";
    if (what == "check") {
        return check_all() ? 0 : 1;
    }
    int rows = argc > 2 ? atoi(argv[2]) : 8192;
    printf("%s, %d SM, %d rows, cold L2\n", device.name, device.multiProcessorCount, rows);
    time_all(rows);
    return 0;
}
