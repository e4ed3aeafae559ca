/* SPDX-License-Identifier: MIT */
/* replay_cuda.h: what the parts of the replay on a GPU share: the engine, its memory, and CUDA
 * graphs by key. */
#ifndef TAMIS_COMMAND_REPLAY_CUDA_H
#define TAMIS_COMMAND_REPLAY_CUDA_H

#include "replay.h"

enum { REPLAY_GRAPHS = 40 }; /* keys: two for each power of two */

typedef struct replay_graphs replay_graphs;
replay_graphs *replay_graphs_open(void); /* NULL: no memory, or a driver without them */
void replay_graphs_close(replay_graphs *g);
int replay_graphs_has(const replay_graphs *g, int key);
/* All return the driver's result, 0 when good. */
int replay_graphs_begin(replay_graphs *g, void *stream);
int replay_graphs_end(replay_graphs *g, int key, void *stream);
int replay_graphs_launch(replay_graphs *g, int key, void *stream);

enum { REPLAY_BUFFERS = 1024 };

typedef struct cuda_engine {
    replay_engine base;
    tamis_cuda *cuda;
    void *stream;
    tamis_cuda_plan *plan;
    tamis_step step;
    replay_graphs *graphs;
    void *buffer[REPLAY_BUFFERS];
    int buffers;
    replay_arrays arrays;                          /* on the device */
    uint16_t *x[REPLAY_LAYERS];                    /* of owners */
    uint16_t *q[REPLAY_LAYERS], *w[REPLAY_LAYERS]; /* of index sources */
    int64_t *context, *position, *slot[2];
    int32_t *query_start, *table[2];
    struct { /* on the host: what is copied there */
        int64_t *context, *position, *slot[2];
        int32_t *query_start;
    } host;
    replay_arrays raw; /* on the host, of one layer at a time */
    char machine[120];
    /* What slices share. */
    const replay_flight *flight;
    int32_t layer, keys;
} cuda_engine;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        tamis_status status_ = (call);                                                             \
        if (status_ != TAMIS_OK)                                                                   \
            return status_;                                                                        \
    } while (0)

/* Copies are queued; the host's memory must last until the stream was synchronised. */
tamis_status replay_cuda_send(cuda_engine *e, const void *to, const void *from, int64_t bytes,
                              tamis_error *error);
tamis_status replay_cuda_fetch(cuda_engine *e, void *to, const void *from, int64_t bytes,
                               tamis_error *error);
/* A refusal of arguments or stamps is the library's; all else is the machine's. */
int replay_cuda_outcome(tamis_status status);
int replay_cuda_fly(replay_engine *e, replay_flight *f, tamis_error *error);
int replay_cuda_err(replay_engine *e, replay_flight *f, int32_t mistake, tamis_error *error);

#endif
