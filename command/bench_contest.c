/* SPDX-License-Identifier: MIT */
/*
 * bench_contest.c: times calls in turns, A B A B ..., so that whatever else the machine does falls
 * on all of them alike: ratios of medians of one contest are what to quote.
 *
 * Warm: each timed run follows an untimed one of the same call, when what it reads fits in the last
 * cache at all. Cold: a buffer of twice L2 + L3 is written before each timed run. A
 * contest is at least three rounds, however slow.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command.h"

static uint8_t *wash;

static int64_t wash_bytes(void) {
    return 2 * (cache_bytes(2) + cache_bytes(3));
}

static void empty_caches(void) {
    static uint8_t turn;
    memset(wash, ++turn, (size_t)wash_bytes());
    __asm__ volatile("" ::"r"(wash) : "memory");
}

static double clock_of(const contestant *c, int cpu_clock) {
    return cpu_clock && c->cpu_seconds ? c->cpu_seconds(c->context) : bench_seconds(cpu_clock);
}

/* On the CPU's clock ticks follow from the time: the counter itself runs on while others do. */
static void run_once(contestant *c, int cpu_clock) {
    double start = clock_of(c, cpu_clock), rows = (double)(c->rows * c->calls);
    uint64_t before = tsc_now();
    for (int i = 0; i < c->calls; i++)
        c->run(c->context);
    double ticks = (double)(tsc_now() - before);
    double seconds = clock_of(c, cpu_clock) - start;
    if (cpu_clock)
        ticks = seconds * tsc_mhz() * 1e6;
    c->ns[c->runs] = seconds * 1e9 / rows;
    c->ticks[c->runs++] = ticks / rows;
}

/* A warm call shorter than reading the clock deserves is timed by the dozen. */
static void choose_calls(contestant *c, const contest_rules *rules) {
    const double enough = 50e-6;
    c->calls = 1;
    c->runs = 0;
    if (rules->cold)
        return;
    c->run(c->context);
    double start = seconds_now();
    c->run(c->context);
    double each = seconds_now() - start;
    if (each < enough)
        c->calls = (int)(enough / fmax(each, 50e-9)) + 1;
}

static void one_round(contestant *contestants, int count, const contest_rules *rules) {
    for (int i = 0; i < count; i++) {
        contestant *c = &contestants[i];
        if (rules->cold)
            empty_caches();
        else if (c->footprint <= cache_bytes(3))
            c->run(c->context);
        run_once(c, rules->cpu_clock);
    }
}

int contest_run(contestant *contestants, int count, const contest_rules *rules) {
    enum { AT_LEAST = 3 };
    if (rules->cold && !wash && !(wash = malloc((size_t)wash_bytes())))
        return fail("no memory to empty the caches with");
    for (int i = 0; i < count; i++)
        choose_calls(&contestants[i], rules);
    double end = seconds_now() + rules->seconds * count;
    for (int round = 0; round < CONTEST_RUNS; round++) {
        if (rules->repeats > 0 ? round >= rules->repeats
                               : round >= AT_LEAST && seconds_now() >= end)
            break;
        one_round(contestants, count, rules);
    }
    return STATUS_GOOD;
}

void contest_end(void) {
    free(wash);
    wash = NULL;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, int count, double share) {
    double at = share * (count - 1);
    int low = (int)at;
    int high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

summary contest_summary(const contestant *c) {
    double ns[CONTEST_RUNS], ticks[CONTEST_RUNS];
    memcpy(ns, c->ns, (size_t)c->runs * sizeof *ns);
    memcpy(ticks, c->ticks, (size_t)c->runs * sizeof *ticks);
    qsort(ns, (size_t)c->runs, sizeof *ns, ascending);
    qsort(ticks, (size_t)c->runs, sizeof *ticks, ascending);
    double median = percentile(ns, c->runs, 0.5);
    return (summary){
        .ns = median,
        .ticks = percentile(ticks, c->runs, 0.5),
        .spread = (percentile(ns, c->runs, 0.9) - percentile(ns, c->runs, 0.1)) / median,
        .least = ns[0],
    };
}
