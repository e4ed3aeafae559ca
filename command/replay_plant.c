/* SPDX-License-Identifier: MIT */
/*
 * replay_plant.c: ten faults of engines, put into a flight on purpose, wherever it has room for
 * them. Each changes only what the engine is told; the judge, who is told nothing, has to find it.
 */
#include <stdlib.h>
#include <string.h>

#include "replay.h"

enum {
    PLANT_NONE,
    PLANT_PAGE_SWAP,
    PLANT_GROUP_OFF_BY_ONE,
    PLANT_STALE_TABLE,
    PLANT_MISSING_LAST_INSERT,
    PLANT_WRONG_SLOT,
    PLANT_CHUNK_OFFSET,
    PLANT_REUSED_STAMP,
    PLANT_SWAPPED_ROWS,
    PLANT_DROPPED_TAIL,
    PLANT_WRONG_RATIO,
    PLANTS
};

static const char *const names[PLANTS] = {
    [PLANT_NONE] = "none",
    [PLANT_PAGE_SWAP] = "page_swap",
    [PLANT_GROUP_OFF_BY_ONE] = "group_off_by_one",
    [PLANT_STALE_TABLE] = "stale_table",
    [PLANT_MISSING_LAST_INSERT] = "missing_last_insert",
    [PLANT_WRONG_SLOT] = "wrong_slot",
    [PLANT_CHUNK_OFFSET] = "chunk_offset",
    [PLANT_REUSED_STAMP] = "reused_stamp",
    [PLANT_SWAPPED_ROWS] = "swapped_rows",
    [PLANT_DROPPED_TAIL] = "dropped_tail",
    [PLANT_WRONG_RATIO] = "wrong_ratio",
};

int32_t replay_plant_of(const char *name) {
    for (int32_t i = 1; i < PLANTS; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return 0;
}

const char *replay_plant_name(int32_t plant) {
    return plant < PLANTS ? names[plant] : NULL;
}

int replay_plant_make(replay_plant *p, const replay_script *s, int64_t pages_each) {
    size_t entries = (size_t)(s->max_requests * pages_each);
    for (int k = 0; k < 2; k++) {
        p->old_table[k] = calloc(entries, sizeof *p->old_table[k]);
        if (!p->old_table[k])
            return fail("%s: no memory for its page tables", s->file);
    }
    return STATUS_GOOD;
}

void replay_plant_free(replay_plant *p) {
    free(p->old_table[0]);
    free(p->old_table[1]);
}

/* The first two pages of each request in the wrong order. */
static void swap_pages(replay_flight *f, const replay_world *w) {
    for (int k = 0; k < 2; k++)
        for (int32_t i = 0; i < f->requests; i++) {
            int32_t *row = f->table[k] + i * w->pages_each, first = row[0];
            if (w->request[f->who[i]].used[k] < 2)
                continue;
            row[0] = row[1];
            row[1] = first;
        }
}

/* The table that the previous flight was given. */
static void keep_table(replay_plant *p, replay_flight *f, const replay_world *w) {
    for (int k = 0; k < 2; k++) {
        int32_t common = p->old_requests < f->requests ? p->old_requests : f->requests;
        for (int32_t i = 0; i < f->requests; i++) {
            int32_t *now = f->table[k] + i * w->pages_each;
            int32_t *old = p->old_table[k] + i * w->pages_each;
            for (int64_t c = 0; c < w->pages_each; c++) {
                int32_t page = now[c];
                now[c] = i < common ? old[c] : page;
                old[c] = page;
            }
        }
    }
    p->old_requests = f->requests;
}

static void shift_slots(replay_flight *f, const replay_world *w, int k, int64_t by) {
    for (int64_t t = 0; t < f->tokens; t++) {
        int32_t who = f->row_request[t], ratio = k + 1;
        int64_t p = f->row_position[t];
        if (f->slot[k][t] >= 0)
            f->slot[k][t] = replay_world_slot(w, who, ratio, p / ratio + by);
    }
}

/* Slots next door, in pairs, so that they still differ. */
static void swap_slots(replay_flight *f) {
    for (int k = 0; k < 2; k++)
        for (int64_t t = 0; t < f->tokens; t++)
            f->slot[k][t] = f->slot[k][t] < 0 ? -1 : f->slot[k][t] ^ 1;
}

static void restart_positions(replay_flight *f) {
    for (int32_t i = 0; i < f->requests; i++)
        for (int32_t t = f->query_start[i]; t < f->query_start[i + 1]; t++)
            f->position[t] = t - f->query_start[i];
}

void replay_plant_spoil(replay_plant *p, replay_flight *f, const replay_world *w) {
    int64_t last = f->tokens - 1;
    switch (p->kind) {
    case PLANT_PAGE_SWAP:
        swap_pages(f, w);
        break;
    case PLANT_GROUP_OFF_BY_ONE:
        shift_slots(f, w, 1, 1);
        break;
    case PLANT_STALE_TABLE:
        keep_table(p, f, w);
        break;
    case PLANT_MISSING_LAST_INSERT:
        for (int k = 0; k < 2 && last >= 0; k++)
            f->slot[k][last] = -1;
        break;
    case PLANT_WRONG_SLOT:
        swap_slots(f);
        break;
    case PLANT_CHUNK_OFFSET:
        restart_positions(f);
        break;
    case PLANT_REUSED_STAMP:
        f->skip_publish = 1;
        break;
    case PLANT_SWAPPED_ROWS:
        if (last > 0) {
            uint64_t first = f->q_token[0];
            f->q_token[0] = f->q_token[last];
            f->q_token[last] = first;
        }
        break;
    case PLANT_DROPPED_TAIL:
        for (int32_t i = 0; i < f->requests; i++)
            f->context[i] -= f->context[i] > f->query_start[i + 1] - f->query_start[i];
        break;
    case PLANT_WRONG_RATIO:
        f->insert_ratio[1] = 1;
        break;
    default:
        break;
    }
}
