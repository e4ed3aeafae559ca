/* SPDX-License-Identifier: MIT */
/*
 * replay_generate.c: random scripts of a small geometry, where the second level acts from 129
 * positions on. The generator keeps the few numbers of each request that decide what may come next;
 * a script of its own is all that it hands on, so that every run can be printed and read.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "replay.h"

enum { NAMES = 6, MOST_CONTEXT = 400, MOST_TOKENS = 96 };

typedef struct life {
    int live, resident;
    int64_t known, computed, saved; /* tokens; -1: nothing saved */
} life;

typedef struct generator {
    uint64_t state;
    FILE *out;
    life request[NAMES];
    int64_t steps;
    int two_levels, drafts;
} generator;

static int64_t roll(generator *g, int64_t low, int64_t high) {
    g->state = replay_mix(g->state);
    return low + (int64_t)((g->state >> 11) % (uint64_t)(high - low + 1));
}

static int one_in(generator *g, int64_t n) {
    return roll(g, 1, n) == 1;
}

static char name_of(int i) {
    return (char)('A' + i);
}

/* Layers: full ones of both ratios, a source with consumers, layers that reuse; or one level. */
static void write_head(generator *g) {
    static const char *const layers[] = {
        "ratios=0,2,2,1,1,1,1 owners=1,3 index=1,3,4,6 source=3",
        "ratios=0,1,1,2,2,2 owners=1,3 index=1,3,4,5 source=3",
        "ratios=1,2,2,1,1,1 owners=0,1,3 index=0,1,3,5 source=3",
        "ratios=0,2,2,1,1,1 owners=1,3,4 index=1,2,3,5",
    };
    static const char *const values[] = {"plain", "plain", "ties", "nan"};
    int64_t shape = roll(g, 0, 15), block = one_in(g, 6) ? 16 : 8, page = roll(g, 0, 3);
    shape = shape == 15 ? 3 : shape % 3;
    g->two_levels = shape != 3;
    g->drafts = (int)roll(g, 1, 4);
    fprintf(g->out, "model heads=%d dim=%d topk=24 blocks=%d block=%d %s values=%s%s\n",
            one_in(g, 6) ? 8 : 4, one_in(g, 4) ? 128 : 64, block == 8 ? 16 : 8, (int)block,
            layers[shape], values[roll(g, 0, 3)], one_in(g, 6) ? " numerics=bf16" : "");
    fprintf(g->out, "cache positions=4096 page_size=%d seed=%" PRId64 "\n",
            (int)((block == 8 && page == 0 ? 8 : 16) << (page > 1 ? page - 1 : 0)),
            roll(g, 0, 1 << 30));
    fprintf(g->out, "limits requests=%d tokens=%d drafts=%d context=%d\n", NAMES, MOST_TOKENS,
            g->drafts, MOST_CONTEXT);
}

static void arrive(generator *g, int i) {
    life *r = &g->request[i];
    int from = (int)roll(g, 0, NAMES - 1);
    const life *f = &g->request[from];
    int64_t prompt = one_in(g, 3) ? roll(g, 120, 330) : roll(g, 1, 70);
    *r = (life){1, 1, prompt, 0, -1};
    fprintf(g->out, "arrive %c prompt=%" PRId64 " seed=%" PRId64 "\n", name_of(i), prompt,
            roll(g, 0, 1 << 30));
    if (from == i || !f->live || !f->resident || f->computed < 1 || one_in(g, 2))
        return;
    int64_t most = f->computed < prompt ? f->computed : prompt;
    r->computed = one_in(g, 2) ? most : roll(g, 1, most);
    fprintf(g->out, "share %c from %c tokens=%" PRId64 "\n", name_of(i), name_of(from),
            r->computed);
}

static void prefill(generator *g, int i) {
    life *r = &g->request[i];
    int64_t waiting = r->known - r->computed;
    int64_t chunk = one_in(g, 2) ? roll(g, 1, 16) : roll(g, 17, MOST_TOKENS);
    int64_t tokens = one_in(g, 2) ? roll(g, 1, waiting) : waiting;
    chunk = chunk < (tokens + 7) / 8 ? (tokens + 7) / 8 : chunk;
    fprintf(g->out, "prefill %c chunk=%" PRId64 " tokens=%" PRId64 "\n", name_of(i), chunk, tokens);
    r->computed += tokens;
    g->steps += (tokens + chunk - 1) / chunk;
}

/* What a step may begin with: a mistake, or runs of the same. */
static void prefix(generator *g) {
    if (g->two_levels && one_in(g, 24)) {
        int64_t mistake = roll(g, 1, MISTAKE_PAGE_SIZE);
        if (mistake != MISTAKE_OLD_STEP || g->steps > 0)
            fprintf(g->out, "wrong %s\n", replay_mistakes[mistake]);
    }
    if (one_in(g, 40))
        fprintf(g->out, "again %" PRId64 "\n", roll(g, 2, 4));
}

static void step(generator *g) {
    int drafts[NAMES] = {0};
    int64_t room = MOST_TOKENS;
    prefix(g);
    fprintf(g->out, "step");
    for (int i = 0; i < NAMES; i++) {
        life *r = &g->request[i];
        int64_t waiting = r->known - r->computed, count = 1;
        if (!r->live || !r->resident || one_in(g, 4))
            continue;
        if (waiting > 0)
            count = one_in(g, 6) ? 0 : roll(g, 1, waiting < 24 ? waiting : 24);
        else if (one_in(g, 2))
            drafts[i] = (int)roll(g, 0, g->drafts);
        if (count + drafts[i] > room ||
            (waiting == 0 && r->known + count + drafts[i] > MOST_CONTEXT)) {
            drafts[i] = 0;
            continue;
        }
        room -= count + drafts[i];
        fprintf(g->out, " %c:%" PRId64, name_of(i), count);
        if (drafts[i])
            fprintf(g->out, "+%d", drafts[i]);
        r->computed += count;
        r->known += waiting > 0 ? 0 : count;
    }
    fprintf(g->out, "\n");
    g->steps++;
    for (int i = 0; i < NAMES; i++) {
        if (!drafts[i])
            continue;
        int64_t kept = one_in(g, 3) ? drafts[i] : roll(g, 0, drafts[i]);
        fprintf(g->out, "accept %c %" PRId64 "\n", name_of(i), kept);
        g->request[i].known += kept;
        g->request[i].computed += kept;
    }
}

/* Something that happens to a request between steps. */
static void happen(generator *g, int i) {
    life *r = &g->request[i];
    if (!r->live) {
        arrive(g, i);
    } else if (!r->resident) {
        int saved = r->saved >= 0 && !one_in(g, 4);
        fprintf(g->out, "%s %c\n", saved ? "restore" : "resume", name_of(i));
        r->resident = 1;
        r->computed = saved ? r->saved : 0;
    } else if (r->known > MOST_CONTEXT - 8 || one_in(g, 12)) {
        fprintf(g->out, "finish %c\n", name_of(i));
        *r = (life){0, 0, 0, 0, -1};
    } else if (one_in(g, 6)) {
        fprintf(g->out, "preempt %c\n", name_of(i));
        r->resident = 0;
        r->computed = 0;
    } else if (one_in(g, 4)) {
        fprintf(g->out, "save %c\n", name_of(i));
        r->saved = r->computed;
    } else if (r->known > r->computed) {
        prefill(g, i);
    }
}

char *replay_generate(uint64_t seed, int64_t steps) {
    char *text = NULL;
    size_t size = 0;
    generator g = {.state = replay_mix(seed), .out = open_memstream(&text, &size)};
    if (!g.out)
        return NULL;
    fprintf(g.out, "# tamis replay --generate %" PRIu64 " --steps %" PRId64 "\n", seed, steps);
    write_head(&g);
    arrive(&g, 0);
    while (g.steps < steps) {
        if (one_in(&g, 3))
            happen(&g, (int)roll(&g, 0, NAMES - 1));
        else
            step(&g);
    }
    int bad = ferror(g.out);
    if (fclose(g.out) != 0 || bad) {
        free(text);
        return NULL;
    }
    return text;
}
