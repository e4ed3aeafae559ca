/* SPDX-License-Identifier: MIT */
/* replay_ranks.h: what the parts of the replay on a context-parallel group share. */
#ifndef TAMIS_COMMAND_REPLAY_RANKS_H
#define TAMIS_COMMAND_REPLAY_RANKS_H

#include <tamis/shards.h>

#include "replay.h"

typedef struct replay_rank {
    tamis_transport transport;
    tamis_shards *shards;
    void *memory;
    replay_arrays arrays; /* K, slots and outputs are its own; queries are everybody's */
    int32_t *table[2];    /* [requests][pages_each] own pages */
    int64_t *slot[2], *held[2];
    int64_t *start[2];
    int32_t *first[2], *last[2];
    tamis_status status;
    tamis_error error;
} replay_rank;

typedef struct ranks_engine {
    replay_engine base;
    tamis_local_group *group;
    tamis_pool *threads; /* a thread for each rank */
    int32_t count;
    replay_rank *rank;
    replay_arrays arrays; /* raw and prepared queries */
    char machine[96];
    /* What ranks and slices share. */
    replay_flight *flight;
    int32_t layer, phase, mistake;
    tamis_q_prepare_args prepare;
    tamis_status prepared; /* of its first slice */
    tamis_error error;
} ranks_engine;

/* The rank that a page of the world belongs to; k is its ratio - 1. */
int32_t replay_ranks_owner(const ranks_engine *e, int k, int64_t page);
int replay_ranks_fly(replay_engine *e, replay_flight *f, tamis_error *error);
int replay_ranks_err(replay_engine *e, replay_flight *f, int32_t mistake, tamis_error *error);

#endif
