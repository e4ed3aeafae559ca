/* SPDX-License-Identifier: MIT */
/*
 * emulated_selection.cpp: the kernels' own selection of few rows (split_select.cuh, picks.cuh), and
 * of one row after another, by an emulated CTA, over scores that are unlucky in all the ways known,
 * against a stable sort. What lies behind the row's is what would win, shared memory begins as
 * garbage, and what surrounds it must stay.
 *
 * Usage: cuda_emulated_selection [first case [cases]]. A case is its number: all else follows from
 * it.
 */
#include "emulated.h"

#include <algorithm>
#include <stdio.h>
#include <vector>

#include "guarded_picks.h"
#include "kernels/cuda/split_select.cuh"
#include "unlucky.h"

using namespace tamis;

namespace {

constexpr uint32_t kInfinite = 0x7F800000u; /* a score that would win */

/* Which columns have no key, as positions past a row's end and ids out of range have none. */
const char *const hole_names[] = {"none",         "a quarter",    "nearly all",
                                  "the last few", "whole blocks", "all"};

void make_holes(std::vector<uint32_t> &keys, uint32_t holes, Random &random) {
    const size_t columns = keys.size();
    for (size_t b = 0; b < columns; b += kBlock) {
        const bool whole = holes == 5 || (holes == 4 && random.below(2));
        for (size_t i = b; i < b + kBlock; i++) {
            const bool hole = whole || (holes == 1 && random.below(4) == 0) ||
                              (holes == 2 && random.below(50) != 0);
            keys[i] = hole ? 0 : keys[i];
        }
    }
    for (size_t i = columns - 1 - random.below(kBlock); holes == 3 && i < columns; i++) {
        keys[i] = 0;
    }
}

struct Case {
    uint64_t seed;
    uint32_t kind, holes, topk;
    int columns;
    std::vector<uint32_t> keys, given; /* of scores; scores' bits */
};

constexpr int kMaxWidth = kPickColumns / kBlock;

/* A width and topk: cases such as models have take a 32nd to a quarter of the columns, others few
 * or what lies at the edges. */
void shape_of(Case &c, bool plain, Random &random) {
    static const int widths[] = {1,   2,   3,   15,  16,  17,  31,  32,   33,   63,   64,       127,
                                 128, 255, 256, 257, 511, 512, 513, 1000, 1024, 2047, kMaxWidth};
    static const uint32_t topks[] = {1,   2,   3,   7,   16,   31,   32,   33,   100,  255,
                                     256, 511, 512, 513, 1000, 1023, 1024, 1025, 2048, 16384};
    int width =
        random.below(3) ? widths[random.below(LENGTH(widths))] : 1 + (int)random.below(kMaxWidth);
    if (plain) {
        width = max(width, 32);
        c.topk = 1 + (uint32_t)width * kBlock / (4u << random.below(4)) - random.below(8);
    } else if (random.below(2)) {
        width = max(width, 8);
        c.topk = 1 + random.below(min((uint32_t)width * 8 / 3, random.below(2) ? 64u : 900u));
    } else {
        width = random.below(8) ? width : 1 + (int)random.below(6);
        c.topk = random.below(3) ? topks[random.below(LENGTH(topks))] : 1 + random.below(1100);
        c.topk = random.below(8) ? c.topk : (uint32_t)width * kBlock;
    }
    c.columns = width * kBlock;
}

Case make_case(uint64_t seed) {
    Random random(seed * 2654435761u + 1);
    Case c = {};
    c.seed = seed;
    const bool plain = seed % 4 == 3; /* half of these are normal */
    c.kind = plain && random.below(2) ? kNormal : (uint32_t)(seed % LENGTH(kScoreKinds));
    c.holes = random.below(2) ? 0 : random.below(LENGTH(hole_names));
    shape_of(c, plain, random);
    const Mix mix = mix_of(random, c.columns);
    c.keys.resize((size_t)c.columns);
    for (int i = 0; i < c.columns; i++) {
        const float score = kScoreKinds[c.kind].score(mix, i);
        c.keys[(size_t)i] = tamis_order_key(score) + 1u;
        c.given.push_back(score == score ? tamis_f32_bits(score) : 0x7FFFFFFFu); /* a GPU's NaN */
    }
    make_holes(c.keys, c.holes, random);
    for (size_t i = 0; i < c.keys.size(); i++) {
        c.given[i] = c.keys[i] ? c.given[i] : kNoScore;
    }
    return c;
}

/* ---- the CTA ---- */

GuardedPicks shared;
alignas(16) uint32_t given[kPickColumns + 64];
int32_t blocks[kMaxWidth], pages[3 * kMaxWidth / 4 + 1], positions[kPickColumns + 1], count;
int64_t slots[kPickColumns + 1];
float scores[kPickColumns + 1];
const Case *running;

void select_given() {
    const tamis_selection out = [] {
        tamis_selection s = {};
        s.positions = positions;
        s.slots = slots;
        s.scores = scores;
        s.counts = &count;
        s.topk = (int32_t)running->topk;
        return s;
    }();
    select_begin(shared.row);
    __syncthreads(); /* a row's is_last */
    select_row(shared.row, shared.lists, (const float *)given, running->columns, blocks, pages,
               3 /* of 64 positions */, output_of(out, 0));
}

/* ---- the same as rows of pools (topk.cu) ---- */

GuardedPicks shared_pool;
uint32_t pool_counts[2];
uint16_t pool_columns[2][kPickColumns];

bool slowly[2]; /* all keys were asked for */

struct CountingScores : ScratchScores {
    int row;

    CountingScores(int of) : ScratchScores((const float *)given, running->columns), row(of) {
    }
    uint32_t key(int column) const {
        slowly[row] = true;
        return ScratchScores::key(column);
    }
};

/* Of the second row fewer are wanted. */
uint32_t pool_topk(const Case &c, int row) {
    return row ? (c.topk + 2) / 3 : c.topk;
}

/* Two rows, as a CTA may have: the first must leave what it used as it was. */
void select_pools() {
    select_begin(shared_pool.row);
    for (int row = 0; row < 2; row++) {
        const uint32_t want = take_best(shared_pool.row, shared_pool.lists, CountingScores(row),
                                        pool_topk(*running, row));
        for (uint32_t i = threadIdx.x; i < want && i < kPickColumns; i += kSplitThreads) {
            pool_columns[row][i] = shared_pool.lists.order[i];
        }
        pool_counts[row] = want; /* by all threads: one value */
        __syncthreads();
    }
}

void prepare(const Case &c) {
    shared.spoil();
    shared_pool.spoil();
    memset(pool_columns, 0xFF, sizeof pool_columns);
    slowly[0] = slowly[1] = false;
    std::fill(given, given + LENGTH(given), kInfinite);
    std::copy(c.given.begin(), c.given.end(), given);
    for (int i = 0; i < kMaxWidth; i++) {
        blocks[i] = 3 * i + 1;
    }
    for (uint32_t i = 0; i < LENGTH(pages); i++) {
        pages[i] = (int32_t)(7 * i % 1031);
    }
    std::fill(positions, positions + LENGTH(positions), -77);
    std::fill(slots, slots + LENGTH(slots), -77);
    std::fill(scores, scores + LENGTH(scores), -77.0f);
    count = -77;
    running = &c;
}

/* ---- what it must be ---- */

std::vector<int> columns_of(const Case &c, uint32_t topk) {
    std::vector<int> best;
    for (int i = 0; i < c.columns; i++) {
        if (c.keys[(size_t)i]) {
            best.push_back(i);
        }
    }
    std::stable_sort(best.begin(), best.end(),
                     [&](int a, int b) { return c.keys[(size_t)a] > c.keys[(size_t)b]; });
    best.resize(std::min(best.size(), (size_t)topk));
    std::sort(best.begin(), best.end());
    return best;
}

/* The score whose key it is: the inverse of tamis_order_key, for all but NaN and -0. */
bool is_score_of(float score, uint32_t key) {
    return tamis_order_key(score) + 1u == key && tamis_f32_bits(score) != 0x80000000u &&
           (score == score || tamis_f32_bits(score) == TAMIS_NAN_BITS);
}

bool entry_is(size_t rank, int column) {
    const int position = (3 * (column / kBlock) + 1) * kBlock + column % kBlock;
    const int64_t slot = (int64_t)pages[position / 64] * 64 + position % 64;
    return positions[rank] == position && slots[rank] == slot &&
           is_score_of(scores[rank], running->keys[(size_t)column]);
}

/* NULL, or what is wrong. */
const char *wrong(const std::vector<int> &best) {
    if (count != (int32_t)best.size()) {
        return "the count";
    }
    for (size_t i = 0; i < running->topk; i++) {
        if (i < best.size() ? !entry_is(i, best[i])
                            : positions[i] != -1 || slots[i] != -1 || scores[i] != -kInfinity) {
            return i < best.size() ? "an entry" : "an entry behind the last";
        }
    }
    if (positions[running->topk] != -77 || slots[running->topk] != -77) {
        return "what lies behind topk";
    }
    return shared.surroundings_stay() ? nullptr : "shared memory outside";
}

const char *wrong_pools() {
    for (int row = 0; row < 2; row++) {
        const std::vector<int> best = columns_of(*running, pool_topk(*running, row));
        if (pool_counts[row] != best.size() ||
            !std::equal(best.begin(), best.end(), pool_columns[row])) {
            return row ? "the pool's second row" : "the pool's first row";
        }
    }
    return shared_pool.surroundings_stay() ? nullptr : "shared memory outside the pool";
}

/* Rows such as models have: normal scores, all there, a quarter of which or fewer are wanted. */
int models_rows, slow_rows;

void count_ways(const Case &c) {
    for (int row = 0; row < 2; row++) {
        const int64_t topk = pool_topk(c, row);
        if (c.kind == kNormal && c.holes == 0 && topk >= 64 && 4 * topk <= c.columns) {
            models_rows++;
            slow_rows += slowly[row];
        }
    }
}

bool holds(uint64_t seed) {
    const Case c = make_case(seed);
    char name[160];
    snprintf(name, sizeof name, "case %llu: scores %s, without keys %s, %d columns, topk %u",
             (unsigned long long)seed, kScoreKinds[c.kind].name, hole_names[c.holes], c.columns,
             c.topk);
    prepare(c);
    emulated::cta().run(kSplitThreads, seed, select_given, name);
    emulated::cta().shared_base = (uint8_t *)&shared_pool;
    emulated::cta().run(kSplitThreads, seed, select_pools, name);
    count_ways(c);
    const char *what = wrong(columns_of(c, c.topk));
    what = what ? what : wrong_pools();
    return is_right(name, what);
}

} // namespace

int main(int argc, char **argv) {
    const int failed = run_cases(argc, argv, cases_of(800, 50), holds);
    printf("%d of %d rows such as models have took the slow way\n", slow_rows, models_rows);
    return failed || 20 * slow_rows > 2 + models_rows;
}
