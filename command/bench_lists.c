/* SPDX-License-Identifier: MIT */
/*
 * bench_lists.c: candidate lists as trained indexers publish them, and at random.
 *
 * A local list is made of runs of one to five blocks. Each run has a life: it stays for good,
 * leaves with a small or a large chance at every row, or is drawn anew at every row. The shares of
 * the four lives make the measured curve: of a row's ids .717 are in the next row, .684 two rows
 * on, .660 four, .613 sixteen, .580 sixty-four. What is drawn anew falls by chance on blocks that
 * an earlier row had; the shares allow for that, or short contexts would keep too much.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command.h"
#include "gen.h"

typedef struct run {
    int32_t start, length;
    float stays; /* chance to be in the next row */
} run;

typedef struct chain {
    random_state random;
    int64_t space;  /* blocks to draw from: 0 .. space-1 */
    int64_t wanted; /* blocks drawn */
    uint8_t *held;  /* [space + 1] */
    run *runs;      /* [wanted] at most */
    int64_t count;
} chain;

static int64_t below(random_state *random, int64_t n) {
    return (int64_t)((random_bits(random) >> 32) * (uint64_t)n >> 32);
}

static float unit(random_state *random) {
    return (float)(random_bits(random) >> 40) * 0x1p-24f;
}

/*
 * Lives are dealt evenly over the runs, by multiples of the golden ratio: drawn at random, the
 * share that stays would be off by .02 in a list of 900 runs.
 */
static float draw_stay(chain *c) {
    const double n = (double)c->wanted, again = 0.35 * n / ((double)c->space - 0.7 * n + 1);
    const double scale = 1.0 / (1.0 - fmin(again, 0.5));
    double turns = 0.6180339887498949 * (double)c->count, u = turns - floor(turns),
           quick = 0.119 * scale, slow = 0.0635 * scale;
    double always = 1.0 - (1.0 - 0.57) * scale;
    if (u < quick)
        return 0.70f;
    if (u < quick + slow)
        return 0.9715f;
    return u < quick + slow + always ? 1.0f : 0.0f;
}

static int32_t draw_length(chain *c, int64_t most) {
    static const float up_to[] = {0.35f, 0.65f, 0.85f, 0.95f};
    float u = unit(&c->random);
    int32_t length = 1;
    while (length < 5 && u >= up_to[length - 1])
        length++;
    return length < most ? length : (int32_t)most;
}

static int is_free(const chain *c, int64_t start, int32_t length) {
    return start + length <= c->space && !memchr(c->held + start, 1, (size_t)length);
}

/* A free place for a run, from a random block on; -1 when the context is too full for one. */
static int64_t find_place(chain *c, int32_t length) {
    int64_t start = below(&c->random, c->space);
    for (int64_t i = 0; i < c->space; i++, start = start + 1 < c->space ? start + 1 : 0)
        if (is_free(c, start, length))
            return start;
    return -1;
}

/* Gives a run a new place, cutting it into single blocks where none is long enough. */
static void place_run(chain *c, run *r) {
    int64_t start = find_place(c, r->length);
    if (start < 0) {
        for (int32_t i = 1; i < r->length; i++) {
            run *single = &c->runs[c->count++];
            *single = (run){(int32_t)find_place(c, 1), 1, r->stays};
            c->held[single->start] = 1;
        }
        r->length = 1;
        start = find_place(c, 1);
    }
    r->start = (int32_t)start;
    memset(c->held + start, 1, (size_t)r->length);
}

static void begin_chain(chain *c) {
    memset(c->held, 0, (size_t)c->space);
    c->count = 0;
    for (int64_t left = c->wanted; left > 0;) {
        run *r = &c->runs[c->count++];
        *r = (run){0, draw_length(c, left), draw_stay(c)};
        left -= r->length;
        place_run(c, r);
    }
}

static void next_row(chain *c) {
    int64_t before = c->count, leaving = 0;
    /* Those that leave first make room, so that staying never depends on order. */
    for (int64_t i = 0; i < before; i++) {
        run r = c->runs[i];
        if (unit(&c->random) < r.stays)
            continue;
        memset(c->held + r.start, 0, (size_t)r.length);
        c->runs[i] = c->runs[leaving];
        c->runs[leaving++] = r;
    }
    for (int64_t i = 0; i < leaving; i++)
        place_run(c, &c->runs[i]);
}

static void random_row(chain *c) {
    memset(c->held, 0, (size_t)c->space);
    for (int64_t i = 0; i < c->wanted;) {
        int64_t block = below(&c->random, c->space);
        i += !c->held[block];
        c->held[block] = 1;
    }
}

/* The drawn blocks ascending, then the newest; a row that moved past `space` has it at the end. */
static void write_row(const chain *c, int64_t last, int64_t width, int32_t *out) {
    int64_t at = 0;
    for (int64_t block = 0; block < c->space; block++)
        if (c->held[block])
            out[at++] = (int32_t)block;
    out[at++] = (int32_t)last;
    for (; at < width; at++)
        out[at] = -1;
}

/* All blocks of a row, or the newest ones of a row that has a few more than width. */
static void every_block(int64_t last, int64_t width, int32_t *out) {
    int64_t first = last + 1 > width ? last + 1 - width : 0;
    for (int64_t i = 0; i < width; i++)
        out[i] = first + i <= last ? (int32_t)(first + i) : -1;
}

int lists_fill(int32_t kind, int chained, const int64_t *last, int64_t rows, int64_t width,
               uint64_t seed, int32_t *lists) {
    chain c = {.space = last[0], .wanted = width - 1};
    for (int64_t r = 1; r < rows; r++)
        c.space = last[r] < c.space ? last[r] : c.space;
    if (c.space <= c.wanted) {
        for (int64_t r = 0; r < rows; r++)
            every_block(last[r], width, lists + r * width);
        return STATUS_GOOD;
    }
    random_seed(&c.random, seed, (uint64_t)kind);
    c.held = calloc((size_t)c.space + 1, 1);
    c.runs = calloc((size_t)width, sizeof *c.runs);
    int status = c.held && c.runs ? STATUS_GOOD : fail("no memory for candidate lists");
    for (int64_t r = 0; status == STATUS_GOOD && r < rows; r++) {
        if (kind == LISTS_RANDOM)
            random_row(&c);
        else if (r == 0 || !chained)
            begin_chain(&c);
        else
            next_row(&c);
        write_row(&c, last[r], width, lists + r * width);
    }
    free(c.held);
    free(c.runs);
    return status;
}

static double shared_ids(const int32_t *a, const int32_t *b, int64_t width) {
    int64_t i = 0, j = 0, both = 0, ids = 0;
    while (ids < width && a[ids] >= 0)
        ids++;
    while (i < ids && j < width && b[j] >= 0) {
        both += a[i] == b[j];
        int step = a[i] <= b[j];
        j += a[i] >= b[j];
        i += step;
    }
    return ids ? (double)both / (double)ids : 1.0;
}

lists_figures lists_measure(const int32_t *lists, int64_t rows, int64_t width) {
    static const int64_t distances[] = {1, 4, 16};
    lists_figures f = {{NAN, NAN, NAN}, 0};
    int64_t ids = 0, runs = 0;
    for (int64_t i = 0; i < rows * width; i++) {
        ids += lists[i] >= 0;
        runs += lists[i] >= 0 && (i % width == 0 || lists[i - 1] + 1 != lists[i]);
    }
    f.run = runs ? (double)ids / (double)runs : 0;
    for (int d = 0; d < 3; d++) {
        double sum = 0;
        for (int64_t r = 0; r + distances[d] < rows; r++)
            sum += shared_ids(lists + r * width, lists + (r + distances[d]) * width, width);
        if (rows > distances[d])
            f.kept[d] = sum / (double)(rows - distances[d]);
    }
    return f;
}
