/* SPDX-License-Identifier: MIT */
/*
 * emulated_scores.cpp: the whole kernels of decode's rows, by mma.sync and by wgmma, on emulated
 * CTAs, one after another: keys against the CPU's scores, the selection against a stable sort of
 * those, and of wgmma that the four warps of a product make the same ones.
 *
 * Usage: cuda_emulated_scores [first case [cases]]. A case is its number: all else follows from it.
 */
#include "emulated_ptx.h"

#include <algorithm>
#include <stdio.h>
#include <utility>
#include <vector>

#include "unlucky.h"
/* Translated by ptx.py; in the order of kernels.cu. */
#include "consume.cu"

#include "decode.cu"

#include "decode_sm90.cu"

using namespace tamis;

namespace {

/* Shared memory begins where it does on sm_90. */
alignas(1024) uint8_t arena[hopper::kSharedBase + (128 << 10)];

struct Case {
    uint64_t seed;
    int page, rows, width, parts, steps, positions, pages, topk;
    bool bf16, placed, by_wgmma, copied, bf16_weights;
    uint32_t odd; /* one position in so many has a scale far from its others, or NaN */
    int alike;    /* codes of all queries, or -1 */
    std::vector<uint8_t> k, codes, scales;
    std::vector<float> weights;
    std::vector<uint16_t> weights16;
    std::vector<int32_t> table, length, counts, blocks, physical;
    std::vector<uint32_t> keys, done;
    std::vector<int32_t> selected, taken;
    tamis_sparse_mqa_logits_args args;
    tamis_selection out;
};

uint8_t *aligned(std::vector<uint8_t> &bytes) {
    return (uint8_t *)(((uintptr_t)bytes.data() + 15) & ~(uintptr_t)15);
}

void put_scales(uint8_t *four, uint32_t odd, Random &random) {
    const uint32_t base = 118 + random.below(6);
    for (int g = 0; g < 4; g++) {
        four[g] = (uint8_t)(base + random.below(4));
    }
    if (odd && random.below(odd) == 0) {
        static const uint8_t far[] = {255, 60, 0};
        four[random.below(4)] = far[random.below(3)];
    }
}

void make_shape(Case &c, Random &random) {
    static const int alike[] = {0x55, 0xDD, 0x17, 0x66, 0xEE, 0x77};
    c.page = random.below(2) ? 64 : 128;
    c.rows = 1 + (int)random.below(2);
    c.width = 1 + (int)random.below(random.below(3) ? 60 : 700);
    c.parts = 1 + (int)random.below(3);
    c.by_wgmma = random.below(4) != 0;
    c.bf16 = random.below(6) == 0;
    c.placed = random.below(2);
    c.bf16_weights = random.below(4) == 0;
    c.odd = random.below(3) ? 0 : random.below(2) ? 20 : 300;
    c.alike = random.below(3) ? -1 : alike[random.below(LENGTH(alike))];
    c.topk = 1 + (int)random.below(300);
    c.positions = c.width * kBlock * (1 + (int)random.below(3)) + (int)random.below(200);
    c.pages = c.positions / c.page + 2;
    const int at_once = c.parts * kSplitWarps * kStepBlocks; /* as launch.c has steps */
    c.steps = (c.width + at_once - 1) / at_once;
    c.copied = !c.by_wgmma && c.steps <= 8 && random.below(4) != 0;
    c.steps = c.by_wgmma ? c.steps : std::min(c.copied ? 8 : 1 + (int)random.below(8), c.steps);
    if (!c.by_wgmma && !c.copied && at_once / 2 >= c.width) {
        c.steps = 0;
    }
}

void make_keys_and_query(Case &c, Random &random) {
    c.k.resize((size_t)c.pages * (size_t)c.page * 68 + 16);
    for (int p = 0; p < c.pages; p++) {
        uint8_t *const page = aligned(c.k) + (size_t)p * (size_t)c.page * 68;
        for (int i = 0; i < c.page * 64; i++) {
            page[i] = (uint8_t)random.bits();
        }
        for (int i = 0; i < c.page; i++) {
            put_scales(page + c.page * 64 + 4 * i, c.odd, random);
        }
    }
    c.codes.resize((size_t)c.rows * 32 * 64);
    for (uint8_t &x : c.codes) {
        x = (uint8_t)(c.alike < 0 ? random.bits() : (uint32_t)c.alike);
    }
    c.scales.resize((size_t)c.rows * 32 * 4);
    for (int i = 0; i < c.rows * 32; i++) {
        put_scales(c.scales.data() + 4 * i, c.odd ? 400 : 0, random);
    }
    for (int i = 0; i < c.rows * 32; i++) {
        c.weights.push_back(random.normal() * 0.01f);
        c.weights16.push_back((uint16_t)(tamis_f32_bits(c.weights.back()) >> 16));
    }
}

/* Blocks of a row, ascending, with what lies behind its count; the newest, short one often. */
void make_list(Case &c, Random &random) {
    const int length = c.positions - (int)random.below(8), all = (length + kBlock - 1) / kBlock;
    std::vector<int> ids;
    for (int i = 0; i < all; i++) {
        ids.push_back(i);
    }
    for (int i = all - 1; i > 0; i--) {
        std::swap(ids[(size_t)i], ids[random.below((uint32_t)i + 1)]);
    }
    int count = std::min(c.width, all);
    count = random.below(3) ? count : (int)random.below((uint32_t)count + 1);
    if (random.below(2)) {
        std::swap(*std::find(ids.begin(), ids.end(), all - 1), ids[0]);
    }
    std::sort(ids.begin(), ids.begin() + count);
    for (int i = 0; i < c.width; i++) {
        const int id = i < count ? ids[(size_t)i] : -1;
        const int blocks = c.page / kBlock;
        c.blocks.push_back(id);
        c.physical.push_back(id < 0 ? -1 : c.table[(size_t)(id / blocks)] * blocks + id % blocks);
    }
    c.length.push_back(random.below(12) ? length : 0);
    c.counts.push_back(count);
}

Case make_case(uint64_t seed) {
    Random random(seed * 2654435761u + 7);
    Case c = {};
    c.seed = seed;
    make_shape(c, random);
    make_keys_and_query(c, random);
    for (int i = 0; i < c.pages; i++) {
        c.table.push_back(i);
    }
    for (int i = c.pages - 1; i > 0; i--) {
        std::swap(c.table[(size_t)i], c.table[random.below((uint32_t)i + 1)]);
    }
    for (int r = 0; r < c.rows; r++) {
        make_list(c, random);
    }
    return c;
}

void make_args(Case &c) {
    tamis_sparse_mqa_logits_args &a = c.args;
    a.struct_size = sizeof a;
    a.numerics = c.bf16 ? TAMIS_NUMERICS_BF16 : TAMIS_NUMERICS_EXACT;
    a.k.layout = TAMIS_K_MXFP4_PAGE;
    a.k.head_dim = 128;
    a.k.page_size = c.page;
    a.k.size = c.pages;
    a.k.stride = c.page * 68;
    a.k.codes = aligned(c.k);
    a.rows.count = c.rows;
    a.rows.ke = c.length.data();
    a.rows.page_table = c.table.data();
    a.rows.page_table_stride = a.rows.page_table_width = c.pages;
    a.rows.requests = 1;
    a.query.heads = 32;
    a.query.head_dim = 128;
    a.query.weights_type = c.bf16_weights ? TAMIS_BF16 : TAMIS_F32;
    a.query.codes = c.codes.data();
    a.query.scales = c.scales.data();
    a.query.weights = c.bf16_weights ? (const void *)c.weights16.data() : c.weights.data();
    a.query.codes_row_stride = 32 * 64;
    a.query.codes_head_stride = 64;
    a.query.scales_row_stride = 32 * 4;
    a.query.scales_head_stride = 4;
    a.query.weights_row_stride = 32;
    a.block_size = kBlock;
    a.logits_type = TAMIS_F32;
    a.width = c.width;
    a.blocks = c.blocks.data();
    a.blocks_stride = c.width;
    a.counts = c.counts.data();
    a.logits_stride = (c.width + kStepBlocks - 1) / kStepBlocks * kStepBlocks * kBlock;
}

/* ---- the kernel ---- */

Case *running;

void run_kernel() {
    const tamis_gate_args none = {};
    (running->by_wgmma ? tamis_consume_split_sm90
     : running->copied ? tamis_consume_copied_smxx
                       : tamis_consume_split_smxx)(
        running->args, running->out, running->done.data(), nullptr, running->steps, none);
}

/* NULL, or what is wrong with the products. */
const char *run_ctas(Case &c, const char *name) {
    c.keys.assign((size_t)(c.rows * c.args.logits_stride) + 4, 0xA5A5A5A5u);
    c.args.logits = (void *)(((uintptr_t)c.keys.data() + 15) & ~(uintptr_t)15);
    c.args.physical = c.placed ? c.physical.data() : nullptr;
    c.args.physical_stride = c.width;
    c.selected.assign((size_t)(c.rows * c.topk), -77);
    c.taken.assign((size_t)c.rows, -77);
    c.done.assign((size_t)c.rows, 0);
    c.out.topk = c.topk;
    c.out.positions = c.selected.data();
    c.out.positions_stride = c.topk;
    c.out.counts = c.taken.data();
    running = &c;
    gridDim = {(uint32_t)c.parts, (uint32_t)c.rows, 1};
    blockDim = {kSplitThreads, 1, 1};
    emulated::cta().shared_base = arena;
    for (int i = 0; i < c.rows * c.parts; i++) {
        blockIdx = {(uint32_t)(i % c.parts), (uint32_t)(i / c.parts), 0};
        memset(arena, 0x5A, sizeof arena);
        emulated::products = {};
        emulated::cta().run(kSplitThreads, c.seed + (uint64_t)i, run_kernel, name);
        if (!emulated::products.agree()) {
            return "four warps' products differ, which";
        }
        if (!emulated::copies_are_there()) {
            return "a copy that nobody waited for, which";
        }
    }
    return nullptr;
}

/* ---- what it must be ---- */

bool row_is_right(const Case &c, int r, const std::vector<float> &scores) {
    const float *const given = (const float *)c.args.logits + r * c.args.logits_stride;
    const float *const row = scores.data() + r * c.args.logits_stride;
    std::vector<std::pair<uint32_t, int>> best; /* ~key, position */
    const int count = c.length[(size_t)r] > 0 ? c.counts[(size_t)r] : 0;
    for (int i = 0; i < count * kBlock; i++) {
        const int position = c.blocks[(size_t)(r * c.width + i / kBlock)] * kBlock + i % kBlock;
        const bool seen = position < c.length[(size_t)r];
        const uint32_t key = seen ? tamis_order_key(row[i]) + 1u : 0;
        const bool none = tamis_f32_bits(given[i]) == kNoScore;
        if (none == seen || (seen && tamis_order_key(given[i]) + 1u != key)) {
            return false;
        }
        if (seen) {
            best.push_back({~key, position});
        }
    }
    std::sort(best.begin(), best.end());
    best.resize(std::min(best.size(), (size_t)c.topk));
    std::sort(best.begin(), best.end(), [](auto &a, auto &b) { return a.second < b.second; });
    bool right = c.taken[(size_t)r] == (int)best.size() && c.done[(size_t)r] == 0;
    for (int i = 0; i < c.topk; i++) {
        const int want = i < (int)best.size() ? best[(size_t)i].second : -1;
        right &= c.selected[(size_t)(r * c.topk + i)] == want;
    }
    return right;
}

bool holds(uint64_t seed) {
    Case c = make_case(seed);
    emulated::copies_at_once = seed % 2;
    char name[160];
    snprintf(name, sizeof name, "case %llu: %s, %d rows of %d blocks, %d parts, %d steps, top %d",
             (unsigned long long)seed,
             c.by_wgmma ? "wgmma"
             : c.copied ? "copied"
                        : "mma",
             c.rows, c.width, c.parts, c.steps, c.topk);
    make_args(c);
    std::vector<float> scores((size_t)(c.rows * c.args.logits_stride));
    c.args.logits = scores.data();
    if (!ask_reference(name, [&](const tamis_backend *reference, tamis_error *error) {
            return tamis_sparse_mqa_logits(reference, &c.args, 0, 1, error);
        })) {
        return false;
    }
    const char *what = run_ctas(c, name);
    for (int r = 0; r < c.rows && !what; r++) {
        what = row_is_right(c, r, scores) ? nullptr : "a row";
    }
    return is_right(name, what);
}

} // namespace

uint8_t *emulated::dynamic_shared() {
    return arena + hopper::kSharedBase;
}

int main(int argc, char **argv) {
    return run_cases(argc, argv, cases_of(200, 15), holds);
}
