/* SPDX-License-Identifier: MIT */
/* gen.h: the values of a synthetic trace, row after row from a seed. */
#ifndef TAMIS_COMMAND_GEN_H
#define TAMIS_COMMAND_GEN_H

#include <stdint.h>

#include <tamis/tamis.h>

/* Hazards; several may be mixed. X(bit, name, what it does). */
#define HAZARD_LIST(X)                                                                             \
    X(TIES, 0, "ties", "most keys are equal: thousands of equal scores at every cut")              \
    X(ZEROS, 1, "zeros", "half of the keys, some queries and weights are zeros of both signs")     \
    X(NAN, 2, "nan", "NaN scale bytes in keys and queries, NaN weights")                           \
    X(SPANS, 3, "spans", "scale bytes anywhere in 0..254 in queries and keys at once")             \
    X(HEAVY_TAIL, 4, "heavy-tail", "a few values thousands of times larger than the rest")         \
    X(NEGATIVE_WEIGHTS, 5, "negative-weights", "every weight is negative")                         \
    X(RANDOM_BITS, 6, "random-bits", "every bit of codes, scales and weights is random")

enum {
#define HAZARD_BIT(name, bit, text, what) HAZARD_##name = 1 << (bit),
    HAZARD_LIST(HAZARD_BIT)
#undef HAZARD_BIT
};

/* xoshiro256**, seeded by splitmix64. */
typedef struct random_state {
    uint64_t s[4];
} random_state;

void random_seed(random_state *random, uint64_t seed, uint64_t stream);
uint64_t random_bits(random_state *random);

enum { SYNTH_D = 128, SYNTH_HEADS = 64 }; /* the largest head dim and head count */

/* A generator of keys (one stream) or of queries and weights (another). */
typedef struct synth {
    random_state random;          /* this tensor's own */
    random_state shared;          /* the same for all layers of a K owner */
    const tamis_backend *backend; /* quantises */
    uint32_t hazards;
    int32_t heads, dim;
    uint64_t seed;
    int64_t next;                         /* row */
    float bias[SYNTH_D];                  /* the direction that all keys share */
    float slow[SYNTH_D];                  /* drifts from row to row */
    float topic[SYNTH_D];                 /* changes at once, now and then */
    float head_way[SYNTH_HEADS][SYNTH_D]; /* what a head looks for */
    float head_gain[SYNTH_HEADS][4];
    float head_weight[SYNTH_HEADS];
} synth;

/* owner: the layer of these keys, or the layer of these queries and the owner of their keys. */
void synth_keys(synth *s, const tamis_backend *backend, uint32_t hazards, int32_t dim,
                uint64_t seed, int32_t owner);
void synth_queries(synth *s, const tamis_backend *backend, uint32_t hazards, int32_t heads,
                   int32_t dim, uint64_t seed, int32_t layer, int32_t owner);

/* The next `rows` keys: codes [rows][D/2], scales [rows][D/32]. */
tamis_status synth_next_keys(synth *s, int64_t rows, uint8_t *codes, uint8_t *scales,
                             tamis_error *error);
/* The next `rows` rows of queries [rows][heads][..] and weights [rows][heads]. */
tamis_status synth_next_queries(synth *s, int64_t rows, uint8_t *codes, uint8_t *scales,
                                float *weights, tamis_error *error);

#endif
