/* SPDX-License-Identifier: MIT */
/*
 * emulated_pools.cpp: the whole topk kernels, of pools and of any width, on emulated CTAs, one
 * after another: rows of all, of listed blocks, of ids that no row has, gathered by position, of
 * f32 and bf16, in tiles of lines that the device cuts, against the CPU's topk. A pool's shared
 * memory begins as garbage. What surrounds the outputs must stay.
 *
 * Usage: cuda_emulated_pools [first case [cases]]. A case is its number: all else follows from it.
 */
#include "emulated_ptx.h"

#include <algorithm>
#include <stdio.h>
#include <vector>

#include "guarded_picks.h"
#include "kernels/cuda/topk.cu"
#include "unlucky.h"

extern "C" char __bss_start; /* kernels' shared memory lies behind it */

using namespace tamis;

namespace {

constexpr int kPage = 64, kFar = -77; /* what no output may be */
constexpr int kRequests = 3;

struct Case {
    uint64_t seed;
    uint32_t kind;
    int rows, size, width, longest, topk, ctas; /* width: columns; longest: positions of a row */
    bool pool, bf16, listed, gather, whole, some, starts, hostile, tiled, live_only;
    bool alone;               /* tiles are rows */
    std::vector<uint8_t> raw; /* of all rows */
    std::vector<int32_t> blocks, ks, ke, columns, request, table;
    std::vector<int32_t> hidden; /* blocks as the kernel has them */
    tamis_topk_args args, own;   /* the CPU's, of columns; the kernel's */
    std::vector<float> gathered;
};

struct Output {
    std::vector<int32_t> positions, counts;
    std::vector<int64_t> slots;
    std::vector<float> scores;

    Output(const Case &c) {
        const size_t n = (size_t)(c.rows * (c.topk + 1)); /* an entry more than a row has */
        positions.assign(n, kFar);
        slots.assign(n, kFar);
        scores.assign(n, (float)kFar);
        counts.assign((size_t)c.rows + 1, kFar);
    }
    tamis_selection view(const Case &c) {
        tamis_selection s = {};
        s.topk = c.topk;
        s.positions = positions.data();
        s.slots = slots.data();
        s.scores = scores.data();
        s.counts = counts.data();
        s.positions_stride = s.slots_stride = s.scores_stride = c.topk + 1;
        return s;
    }
    bool operator==(const Output &other) const {
        return positions == other.positions && slots == other.slots && counts == other.counts &&
               memcmp(scores.data(), other.scores.data(), scores.size() * sizeof(float)) == 0;
    }
};

void make_shape(Case &c, Random &random) {
    c.rows = 1 + (int)random.below(5);
    c.size = random.below(2) ? 8 : 16;
    c.bf16 = random.below(4) == 0;
    c.listed = random.below(3) != 0;
    c.gather = c.listed && random.below(2);
    c.whole = c.gather && random.below(2);
    c.tiled = random.below(3) == 0;
    c.alone = random.below(2);
    c.live_only = random.below(3) == 0;
    c.starts = c.listed && random.below(3) == 0;
    c.hostile = c.listed && random.below(3) == 0;
    c.some = random.below(3) == 0;
    c.pool = random.below(8) != 0;
    const int most = (random.below(4) ? 3000 : 16384) / c.size;
    c.width = (1 + (int)random.below((uint32_t)most)) * c.size;
    c.longest = c.listed ? c.width + (int)random.below((uint32_t)c.width + 50) : c.width;
    c.topk = 1 + (int)random.below(random.below(3) ? 600 : 3000);
    c.ctas = 1 + (int)random.below(2);
}

/* An id that no row has, or whose position wraps to one that it has, or a good one again. */
int32_t bad_id(int32_t good, int anchor, int all, Random &random) {
    const int32_t lowest = INT32_MIN, ids[] = {-1,
                                               -2,
                                               lowest,
                                               lowest + anchor,
                                               INT32_MAX,
                                               (1 << 27) + anchor,
                                               (1 << 28) - 1,
                                               (1 << 28) + anchor,
                                               (1 << 29) + anchor,
                                               (1 << 30) + anchor,
                                               anchor - 1,
                                               anchor + all - 1,
                                               anchor + all,
                                               (int32_t)random.bits(),
                                               (int32_t)random.below(3000),
                                               good};
    return ids[random.below(LENGTH(ids))];
}

/* Ids that ascend, and -1 behind the last of them now and then; others among them. */
void make_list(Case &c, int r, Random &random) {
    const int blocks = c.width / c.size, all = (c.longest + c.size - 1) / c.size;
    std::vector<int32_t> ids;
    for (int b = 0; b < all; b++) {
        ids.push_back(b);
    }
    for (size_t i = 0; i < ids.size(); i++) {
        std::swap(ids[i], ids[i + random.below((uint32_t)(ids.size() - i))]);
    }
    ids.resize(std::min(ids.size(), (size_t)blocks));
    std::sort(ids.begin(), ids.end());
    const size_t live = random.below(3) ? ids.size() : random.below((uint32_t)ids.size() + 1);
    for (size_t i = 0; i < (size_t)blocks; i++) {
        const int anchor = c.starts ? c.ks[(size_t)r] / c.size : 0;
        const int32_t id = i < live ? ids[i] + anchor : -1;
        const bool bad = c.hostile && random.below(3) == 0;
        c.blocks.push_back(bad ? bad_id(id, anchor, all, random) : id);
    }
}

/* A row no longer than its list, of which all is there: the kernel is not to read it. */
void hide_lists(Case &c) {
    const int blocks = c.width / c.size;
    c.hidden = c.blocks;
    for (int r = 0; r < c.rows && c.whole; r++) {
        const int length = c.ke[(size_t)r] - c.ks[(size_t)r], anchor = c.ks[(size_t)r] / c.size;
        const int columns = c.some ? c.columns[(size_t)r] : c.width;
        for (int b = 0; b < blocks && length <= columns; b++) {
            c.blocks[(size_t)(r * blocks + b)] = b * c.size < length ? b + anchor : -1;
            c.hidden[(size_t)(r * blocks + b)] = 0x5A5A5A5A;
        }
    }
}

Case make_case(uint64_t seed) {
    Random random(seed * 2654435761u + 5);
    Case c = {};
    c.seed = seed;
    c.kind = random.below(2) ? kNormal : (uint32_t)(seed % LENGTH(kScoreKinds));
    make_shape(c, random);
    constexpr int kFarStart = 3000;
    const int pages = (2 * c.longest + kFarStart + 200) / kPage + 2;
    for (int i = 0; i < kRequests * pages; i++) {
        c.table.push_back((int32_t)random.below(5000));
    }
    for (int r = 0; r < c.rows; r++) {
        const int start = c.starts ? (int)random.below(random.below(4) ? 100 : kFarStart) : 0;
        int length = random.below(5) ? c.longest - (int)random.below(40)
                                     : (int)random.below((uint32_t)c.longest + 1);
        length = random.below(6) ? length : c.width; /* as many as are listed */
        c.ks.push_back(start);
        c.ke.push_back(start + std::max(0, random.below(8) ? length : 0));
        c.columns.push_back((int32_t)random.below((uint32_t)c.width + 1));
        c.request.push_back((int32_t)random.below(kRequests));
        make_list(c, r, random);
    }
    hide_lists(c);
    return c;
}

/* Scores where the kernel looks for them: of a column, or of its position. */
void make_scores(Case &c, int64_t stride) {
    Random random(c.seed * 77 + 3);
    const Mix mix = mix_of(random, c.longest);
    const size_t count = (size_t)(c.rows * stride);
    std::vector<float> given(count, kInfinity); /* what lies behind would win */
    c.gathered.assign((size_t)(c.rows * c.width), kInfinity);
    for (int r = 0; r < c.rows; r++) {
        const int line = c.gather ? c.ke[(size_t)r] - c.ks[(size_t)r] : c.width;
        for (int i = 0; i < line; i++) {
            const float x = kScoreKinds[c.kind].score(mix, i);
            given[(size_t)(r * stride + i)] = c.bf16 ? tamis_round_bf16(x) : x;
        }
        for (int i = 0; i < c.width; i++) {
            int64_t from = i;
            if (c.gather) {
                const int64_t id = c.blocks[(size_t)(r * (c.width / c.size) + i / c.size)];
                from = (id - c.ks[(size_t)r] / c.size) * c.size + i % c.size;
            }
            if (from >= 0 && from < line) {
                c.gathered[(size_t)(r * c.width + i)] = given[(size_t)(r * stride + from)];
            }
        }
    }
    c.raw.resize(count * (c.bf16 ? 2 : 4) + 16);
    uint8_t *const at = c.raw.data();
    for (size_t i = 0; i < count; i++) {
        if (c.bf16) {
            ((uint16_t *)at)[i] = tamis_bf16_from_f32(given[i]);
        } else {
            ((float *)at)[i] = given[i];
        }
    }
}

void make_args(Case &c, int64_t stride) {
    tamis_topk_args &a = c.args;
    a = {};
    a.struct_size = sizeof a;
    a.logits_type = TAMIS_F32;
    a.block_size = c.size;
    a.rows.count = c.rows;
    a.rows.ks = c.starts ? c.ks.data() : nullptr;
    a.rows.ke = c.ke.data();
    a.rows.request = c.request.data();
    a.rows.requests = kRequests;
    a.rows.page_table = c.table.data();
    a.rows.page_table_stride = (int64_t)c.table.size() / kRequests;
    a.rows.page_table_width = a.rows.page_table_stride - 1;
    a.logits = c.gathered.data();
    a.logits_stride = a.width = c.width;
    a.columns = c.some ? c.columns.data() : nullptr;
    a.blocks = c.listed ? c.blocks.data() : nullptr;
    a.blocks_stride = c.width / c.size;
    a.page_size = kPage;
    c.own = a;
    c.own.logits_type = c.bf16 ? TAMIS_BF16 : TAMIS_F32;
    c.own.logits = c.raw.data();
    c.own.logits_stride = stride;
    c.own.blocks = c.listed ? c.hidden.data() : nullptr;
}

GuardedPicks shared;
const Case *running;
tamis_score_tile running_tile;

void run_kernel() {
    const int how = (running->gather ? TAMIS_TOPK_GATHER : 0) |
                    (running->whole ? TAMIS_TOPK_WHOLE : 0) |
                    (running->live_only ? TAMIS_TOPK_LIVE_ONLY : 0);
    if (running->pool) {
        topk_pool(running->own, how, INT32_MAX, running_tile, shared.row, shared.lists);
    } else {
        tamis_topk_smxx(running->own, how, INT32_MAX, running_tile);
    }
}

/* The kernel's outputs, of all tiles. */
Output run_ctas(Case &c, const tamis_score_tile &tile, const char *name) {
    Output out(c);
    c.own.selection = out.view(c);
    running = &c;
    running_tile = tile;
    emulated::cta().shared_base = c.pool ? (uint8_t *)&shared : (uint8_t *)&__bss_start;
    gridDim = {(uint32_t)c.ctas, 1, 1};
    blockDim = {512, 1, 1};
    const uint32_t rows = (uint32_t)c.rows, all = tile.routes ? rows : 1;
    for (uint32_t t = 0; t < all; t++) { /* as many as there may be: the last may be empty */
        running_tile.index = t;
        if (tile.routes && c.alone) { /* the scores of a tile lie where those before lay */
            c.own.logits =
                c.raw.data() + (size_t)t * (size_t)c.own.logits_stride * (c.bf16 ? 2 : 4);
        }
        for (int i = 0; i < c.ctas; i++) {
            blockIdx = {(uint32_t)i, 0, 0};
            shared.spoil();
            emulated::cta().run(512, c.seed + (uint64_t)i, run_kernel, name);
            if (!shared.surroundings_stay()) {
                is_right(name, "shared memory outside");
                exit(1);
            }
        }
    }
    return out;
}

bool holds(uint64_t seed) {
    Case c = make_case(seed);
    char name[200];
    snprintf(name, sizeof name,
             "case %llu: scores %s, %d rows of %d columns, %d positions, topk %d%s%s%s%s%s%s",
             (unsigned long long)seed, kScoreKinds[c.kind].name, c.rows, c.width, c.longest, c.topk,
             c.pool ? "" : ", any width", c.listed ? ", listed" : "",
             c.whole    ? ", whole"
             : c.gather ? ", gathered"
                        : "",
             c.bf16 ? ", bf16" : "", c.tiled ? ", tiled" : "", c.live_only ? ", live only" : "");
    tamis_routes routes = {};
    tamis_score_tile tile = {};
    int64_t stride = c.longest + 7;
    if (c.tiled) {
        routes.longest = (uint32_t)c.longest;
        routes.listed = (uint32_t)(seed & 1);
        tile.routes = &routes;
        tile.stride = 1u << 20;
        stride = tamis_score_stride(routes.longest, tile.stride);
        tile.room = (uint32_t)((c.alone ? 1 : c.rows) * stride);
    }
    make_scores(c, stride);
    make_args(c, stride);
    Output want(c);
    c.args.selection = want.view(c);
    if (!ask_reference(name, [&](const tamis_backend *reference, tamis_error *error) {
            return tamis_topk(reference, &c.args, 0, 1, error);
        })) {
        return false;
    }
    if (c.live_only && (!c.tiled || routes.listed)) {
        for (int r = 0; r < c.rows; r++) {
            if (c.ke[(size_t)r] == c.ks[(size_t)r]) {
                const size_t at = (size_t)(r * (c.topk + 1)), n = (size_t)c.topk;
                std::fill_n(want.positions.begin() + (long)at, n, kFar);
                std::fill_n(want.slots.begin() + (long)at, n, kFar);
                std::fill_n(want.scores.begin() + (long)at, n, (float)kFar);
                want.counts[(size_t)r] = kFar;
            }
        }
    }
    return is_right(name, run_ctas(c, tile, name) == want ? nullptr : "a row");
}

} // namespace

uint8_t *emulated::dynamic_shared() {
    return nullptr;
}

int main(int argc, char **argv) {
    return run_cases(argc, argv, cases_of(600, 60), holds);
}
