/* SPDX-License-Identifier: MIT */
/*
 * emulated_candidates.cpp: the pool of a row's candidates (candidates.cuh) by emulated CTAs of 4, 8
 * and 16 warps, against a stable sort. Columns come in the order of consume_raised.cu: a stretch a
 * warpgroup, 32 columns a warp and turn, from any turn on and around.
 *
 * Usage: cuda_emulated_candidates [first case [cases]]. All else follows from a case's number.
 */
#include "emulated.h"

#include <algorithm>
#include <stdio.h>
#include <vector>

#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/consume_args.h"
#include "unlucky.h"

using namespace tamis;
using namespace tamis::hopper;

namespace {

constexpr int kBlockColumns = 8, kMaxColumns = kBlockColumns * TAMIS_CONSUME_MAX_WIDTH;
constexpr uint32_t kCanary = 0xC0FFEE11u;
constexpr int kGuard = 1024; /* words: more than a segment that lacks room would spoil */

template <int kWarps> struct Row {
    RowPool<kWarps> pool;
    uint32_t between[kGuard];
    alignas(16) uint32_t sums[2][kWarps];
    uint32_t after[kGuard];
};

/* What a row's warps read of their segments at the end. */
struct Found {
    uint32_t counts[16];
    uint2 items[16][kSegment];
};

Found found_by;

template <int kWarps> Row<kWarps> row;

struct Case {
    uint32_t kind, topk, start; /* start: the first turn */
    int columns;
    bool guess;
    std::vector<float> scores;
};

const Case *running;

/* All columns of the case into the pool, whose floor rises meanwhile. */
template <int kWarps> void offer_all(Row<kWarps> &s, Best &best) {
    constexpr uint32_t kGroups = kWarps / kGroupWarps, kTurn = 32 * kGroupWarps;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const uint32_t columns = (uint32_t)running->columns;
    const uint32_t turns = (columns + kTurn * kGroups - 1) / (kTurn * kGroups);
    const uint32_t first = warp / kGroupWarps * turns * kTurn + warp % kGroupWarps * 32 + lane;
    Segment segment(s.pool);
    for (uint32_t i = 1; i <= turns; i++) {
        const uint32_t column = first + (i - 1 + running->start) % turns * kTurn;
        segment.offer(column < columns ? running->scores[column] : NAN, column, best.floor,
                      (1u << lane) - 1);
        if (i % kRound == 0) {
            make_room(s, segment, best, running->topk, i * kTurn * kGroups);
        }
    }
    best.count = segment.count();
}

/* As consume_row. */
template <int kWarps> void select_row() {
    Row<kWarps> &s = row<kWarps>;
    uint32_t all, columns = running->guess ? (uint32_t)running->columns : 0;
    Best best;
    do {
        best = {0, -INFINITY, columns, false};
        columns = 0; /* the second time */
        offer_all(s, best);
        __syncthreads();
        all = sum_of_cta(s.sums, (threadIdx.x & 31) == 0 ? best.count : 0, 0);
    } while (all < running->topk && best.guessed);
    if (all > running->topk) {
        thin_to(s, best, running->topk);
    }
    const uint32_t warp = threadIdx.x / 32;
    found_by.counts[warp] = best.count;
    for (uint32_t i = threadIdx.x & 31; i < best.count && i < kSegment; i += 32) {
        found_by.items[warp][i] = s.pool.items[warp][i]; /* as write_row: from thin's barrier on */
    }
}

std::vector<uint32_t> columns_of(const Case &c) {
    std::vector<uint32_t> best;
    for (uint32_t i = 0; i < (uint32_t)c.columns; i++) {
        if (c.scores[i] == c.scores[i]) {
            best.push_back(i);
        }
    }
    std::stable_sort(best.begin(), best.end(),
                     [&](uint32_t a, uint32_t b) { return c.scores[a] > c.scores[b]; });
    best.resize(std::min(best.size(), (size_t)c.topk));
    std::sort(best.begin(), best.end());
    return best;
}

/* NULL, or what is wrong. */
template <int kWarps> const char *wrong(const Case &c) {
    const Row<kWarps> &s = row<kWarps>;
    std::vector<uint32_t> found;
    for (int w = 0; w < kWarps; w++) {
        if (found_by.counts[w] > (uint32_t)kSegment) {
            return "a segment's count";
        }
        for (uint32_t i = 0; i < found_by.counts[w]; i++) {
            const uint2 item = found_by.items[w][i];
            if (item.y >= (uint32_t)c.columns || __uint_as_float(item.x) != c.scores[item.y]) {
                return "a candidate";
            }
            found.push_back(item.y);
        }
    }
    for (int i = 0; i < kGuard; i++) {
        if (s.between[i] != kCanary || s.after[i] != kCanary) {
            return "shared memory outside";
        }
    }
    std::sort(found.begin(), found.end());
    return found == columns_of(c) ? nullptr : "the selection";
}

template <int kWarps> bool holds_by(uint64_t seed, const Case &c) {
    char name[160];
    snprintf(name, sizeof name,
             "case %llu: scores %s, %d columns, topk %u, %d warps, from turn %u, %s floor",
             (unsigned long long)seed, kScoreKinds[c.kind].name, c.columns, c.topk, kWarps, c.start,
             c.guess ? "a guessed" : "a sure");
    Row<kWarps> &s = row<kWarps>;
    memset((void *)&s, 0xA5, sizeof s);
    std::fill(s.between, s.between + kGuard, kCanary);
    std::fill(s.after, s.after + kGuard, kCanary);
    running = &c;
    emulated::cta().shared_base = (uint8_t *)&s;
    emulated::cta().run(32 * kWarps, seed, select_row<kWarps>, name);
    const char *what = wrong<kWarps>(c);
    return is_right(name, what);
}

bool holds(uint64_t seed) {
    static const int columns[] = {8,    1016, 1024, 1032,  4088,       4096,
                                  4104, 8192, 8200, 16384, kMaxColumns};
    static const uint32_t topks[] = {1, 31, 37, 256, 512, kMaxTopk};
    Random random(seed * 2654435761u + 1);
    Case c = {};
    c.kind = (uint32_t)(seed % LENGTH(kScoreKinds));
    c.columns = random.below(2) ? columns[random.below(LENGTH(columns))]
                                : kBlockColumns * (int)(1 + random.below(2048));
    c.topk = random.below(2) ? topks[random.below(LENGTH(topks))] : 1 + random.below(kMaxTopk);
    c.start = random.below(2) ? 0 : random.below(64);
    c.guess = random.below(4) != 0;
    const Mix mix = mix_of(random, c.columns);
    for (int i = 0; i < c.columns; i++) {
        c.scores.push_back(kScoreKinds[c.kind].score(mix, i));
    }
    switch (random.below(3)) {
    case 0:
        return holds_by<4>(seed, c);
    case 1:
        return holds_by<8>(seed, c);
    default:
        return holds_by<16>(seed, c);
    }
}

} // namespace

int main(int argc, char **argv) {
    return run_cases(argc, argv, cases_of(600, 60), holds);
}
