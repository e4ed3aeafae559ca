/* SPDX-License-Identifier: MIT */
/*
 * replay.h: a server's life from a script, and what its parts know of each other.
 *
 *   script   text -> statements                           (replay_script.c)
 *   inputs   the raw q, weights and k of a token          (replay_inputs.c)
 *   world    requests, their histories, pages             (replay_world.c)
 *   flight   one forward pass as the engine is given it   (replay_flight.c)
 *   plant    a fault put into a flight on purpose         (replay_plant.c)
 *   engine   runs flights through the public API          (replay_cpu.c, _ranks.c, _cuda.c)
 *   judge    the oracle over histories alone              (replay_judge.c)
 *
 * The judge goes by the script's values, the histories and the inputs; never by K in the cache, by
 * what the engine was told, or by roles that the library derived. Pages tell it slots, no more.
 */
#ifndef TAMIS_COMMAND_REPLAY_H
#define TAMIS_COMMAND_REPLAY_H

#include "command.h"
#include "trace.h"

enum { REPLAY_LAYERS = 64, REPLAY_REQUESTS = 64, REPLAY_NAME = 16 };

/* ---- script -------------------------------------------------------------------------------- */

enum { VALUES_PLAIN, VALUES_TIES, VALUES_NAN };

enum replay_verb {
    VERB_ARRIVE,
    VERB_SHARE,
    VERB_PREFILL,
    VERB_INSERT,
    VERB_STEP,
    VERB_ACCEPT,
    VERB_PREEMPT,
    VERB_RESUME,
    VERB_SAVE,
    VERB_RESTORE,
    VERB_FINISH,
    VERB_AGAIN,
    VERB_WRONG,
    VERBS
};

/* Mistakes that `wrong` makes on purpose: the library must refuse each. */
enum replay_mistake {
    MISTAKE_NONE,
    MISTAKE_CONSUMER_FIRST,
    MISTAKE_PUBLISH_TWICE,
    MISTAKE_OLD_STEP,
    MISTAKE_LAYOUT,
    MISTAKE_PAGE_SIZE,
    MISTAKE_SPLIT, /* of a group of ranks alone */
    MISTAKES
};
extern const char *const replay_mistakes[MISTAKES];

typedef struct replay_entry { /* NAME:COUNT+DRAFTS */
    int32_t request;
    int32_t count, drafts;
} replay_entry;

typedef struct replay_statement {
    int32_t verb, line;
    int32_t request, other; /* indices of names, -1 */
    int64_t value[2];       /* fields in the verb's order, or its number */
    int32_t entry, entries; /* VERB_STEP: in script.entry */
} replay_statement;

typedef struct replay_script {
    const char *file; /* to name in messages */
    /* model */
    int32_t heads, dim, topk, blocks, block_size, source, values, numerics;
    int32_t layers, owners, indexes;
    int32_t ratio[REPLAY_LAYERS], owner[REPLAY_LAYERS], index[REPLAY_LAYERS];
    int32_t context_parallel, decode_parallel;
    /* cache */
    int64_t positions; /* of each ratio's pool */
    int32_t page_size, page_align;
    int64_t seed; /* of dirt, and of the order of free pages */
    /* limits */
    int32_t max_requests, max_tokens, drafts;
    int64_t max_context;
    char refused[32]; /* the requirement that creation must be refused for, or "" */
    int32_t head_line[4];
    /* what happens */
    replay_statement *statement;
    int32_t statements;
    replay_entry *entry;
    int32_t entries;
    char name[REPLAY_REQUESTS][REPLAY_NAME];
    int32_t names;
} replay_script;

/* Reads a script from memory; STATUS_GOOD, or has said what is wrong and where. */
int replay_script_read(replay_script *s, const char *file, const char *text);
void replay_script_free(replay_script *s);
/* "FILE:LINE: WHAT: required REQUIRED, found ...": returns STATUS_BAD. */
int replay_script_error(const replay_script *s, int32_t line, const char *what,
                        const char *required, const char *found, ...)
    __attribute__((format(printf, 5, 6)));

/* A random script of about `steps` forward passes in malloc'ed text; NULL: no memory. */
char *replay_generate(uint64_t seed, int64_t steps);

/* ---- inputs -------------------------------------------------------------------------------- */

uint64_t replay_mix(uint64_t x); /* splitmix64's finaliser */

/* Raw tensors of a token, which is one number. With a trace they are rows of its tensors. */
typedef struct replay_inputs {
    const replay_script *script;
    const tamis_trace *trace; /* or NULL */
    float *rope;              /* [max_context][64] */
    uint16_t norm[128];
    float eps;
} replay_inputs;

int replay_inputs_make(replay_inputs *in, const replay_script *script, const tamis_trace *trace);
void replay_inputs_free(replay_inputs *in);
void replay_inputs_k(const replay_inputs *in, int32_t layer, uint64_t token, uint16_t *x);
void replay_inputs_q(const replay_inputs *in, int32_t layer, uint64_t token, uint16_t *q,
                     uint16_t *weights);

/* ---- world --------------------------------------------------------------------------------- */

typedef struct replay_request {
    int live;     /* arrived and not finished */
    int resident; /* it has pages */
    uint64_t seed;
    uint32_t turn;    /* drafts judged so far: another token follows a rejected one */
    uint64_t *token;  /* [known] its history */
    int64_t known;    /* tokens, drafts in flight included */
    int64_t room;     /* of token */
    int64_t computed; /* of them, those whose K is in the cache */
    int32_t pending;  /* drafts that wait for `accept` */
    int32_t *page[2]; /* [ratio - 1]: [pages_each] */
    int64_t used[2];
    int64_t saved;                       /* tokens of the last save; -1: none */
    uint8_t *saved_codes[REPLAY_LAYERS]; /* of each K owner */
    uint8_t *saved_scales[REPLAY_LAYERS];
} replay_request;

typedef struct replay_pages { /* of one ratio */
    int32_t count;
    int32_t *free, free_count;
    int32_t *references;
} replay_pages;

typedef struct replay_world {
    const replay_script *script;
    struct replay_engine *engine;
    replay_request request[REPLAY_REQUESTS];
    replay_pages pool[2];
    int64_t pages_each; /* entries of a page table row */
    int32_t page_size;
    int64_t page_stride;
    uint64_t random;
} replay_world;

int replay_world_make(replay_world *w, const replay_script *script, int32_t page_size);
void replay_world_free(replay_world *w);
/* Pages for `context` tokens of a request, dirty ones. STATUS_GOOD or has said why not. */
int replay_world_grow(replay_world *w, const replay_statement *at, int32_t request,
                      int64_t context);
/* What a verb other than prefill, step, again and wrong does. */
int replay_world_do(replay_world *w, const replay_statement *at);
int64_t replay_world_slot(const replay_world *w, int32_t request, int32_t ratio, int64_t position);
/* Makes the history longer by `count` new tokens. */
int replay_world_append(replay_world *w, int32_t request, int64_t count);

/* ---- a flight ------------------------------------------------------------------------------ */

typedef struct replay_outcome { /* of a layer */
    int32_t *positions;         /* [tokens][topk] */
    int64_t *slots;
    float *scores;
    int32_t *counts; /* [tokens] */
    int32_t *blocks; /* source: [tokens][blocks] */
} replay_outcome;

typedef struct replay_flight {
    int32_t requests;
    int64_t tokens;
    int32_t who[REPLAY_REQUESTS]; /* requests of the world */
    /* What the engine is given; a plant may have spoilt it. */
    int64_t *context;
    int32_t *query_start;
    int32_t *table[2]; /* [requests][pages_each] */
    int64_t *position;
    int64_t *slot[2];
    uint64_t *k_token, *q_token;
    int32_t insert_ratio[2]; /* [ratio - 1] as k_insert is told it */
    int skip_publish;
    int keys_only; /* no layer selects */
    /* What is true. */
    int32_t *row_request;
    int64_t *row_position;
    /* What came out: [layers], of index sources. */
    replay_outcome out[REPLAY_LAYERS];
} replay_flight;

int replay_outcomes_make(replay_outcome *out, const replay_script *s); /* 0: no memory */
void replay_outcomes_free(replay_outcome *out);
int replay_flight_make(replay_flight *f, const replay_script *s, int64_t pages_each);
void replay_flight_free(replay_flight *f);
void replay_flight_begin(replay_flight *f);
/* One request more, with `count` new tokens of its history from `computed` on. */
void replay_flight_add(replay_flight *f, const replay_world *w, int32_t request, int64_t count);
/* Fills outputs with what no layer writes. */
void replay_flight_poison(replay_flight *f, const replay_script *s);
int replay_flight_poisoned(const replay_flight *f, const replay_script *s);

/* ---- plants -------------------------------------------------------------------------------- */

/* Index of a planted fault, or 0. */
int32_t replay_plant_of(const char *name);
const char *replay_plant_name(int32_t plant); /* NULL past the last */

typedef struct replay_plant {
    int32_t kind; /* 0: none */
    int32_t *old_table[2];
    int32_t old_requests;
} replay_plant;

int replay_plant_make(replay_plant *p, const replay_script *s, int64_t pages_each);
void replay_plant_free(replay_plant *p);
void replay_plant_spoil(replay_plant *p, replay_flight *f, const replay_world *w);

/* ---- engine -------------------------------------------------------------------------------- */

typedef struct replay_options {
    common_options common;
    const char *script, *trace;
    int64_t chunk;     /* 0: the script's */
    int32_t page_size; /* 0: the script's */
    int cuda, graph, digest, print;
    int32_t sparse; /* TAMIS_SPARSE_* */
    int32_t plant;
    int32_t ranks; /* 0: no group */
    int64_t rows;  /* judged of a step; 0: all */
    int64_t seed, steps;
    int generate;
} replay_options;

typedef struct replay_setup { /* what an engine is made of */
    const replay_options *options;
    const replay_script *script;
    const replay_inputs *inputs;
    const tamis_layer_role *roles;
    tamis_indexer *indexer;
    tamis_plan_limits limits;
    tamis_pool *pool;
    tamis_backend *backend;
    int32_t page_size;
    int64_t page_stride, pages_each;
    int32_t pages[2];
} replay_setup;

/* The arrays that calls take, on the host or on a device. */
typedef struct replay_arrays {
    int64_t tokens;
    const int64_t *position, *slot[2];
    uint16_t *x, *q, *w; /* raw tensors of a layer */
    uint8_t *codes, *scales;
    float *weights; /* prepared */
    const float *rope, *eps;
    const uint16_t *norm;
    uint8_t *k[REPLAY_LAYERS];
    replay_outcome out[REPLAY_LAYERS];
} replay_arrays;

/* x, q, w, codes, scales and weights on the host, for a flight; 0: no memory. */
int replay_queries_make(replay_arrays *a, const replay_script *s);
void replay_queries_free(replay_arrays *a);
/* A slice of a flight's raw tensors of one layer: x where `keys`, else q and w. */
void replay_raw_slice(const replay_setup *setup, const replay_flight *f, const replay_arrays *a,
                      int32_t layer, int keys, int32_t ith, int32_t nth);
/* Arguments of calls over them (replay_args.c). `told` is the ratio that k_insert is told. */
tamis_k_cache replay_cache(const replay_setup *setup, const replay_arrays *a, int32_t owner);
void replay_insert_args(const replay_setup *setup, const replay_arrays *a, int32_t layer,
                        int32_t told, tamis_k_insert_args *args);
void replay_prepare_args(const replay_setup *setup, const replay_arrays *a,
                         tamis_q_prepare_args *args);
void replay_layer_args(const replay_setup *setup, const replay_arrays *a, int32_t layer,
                       tamis_layer_args *args);
void replay_gather_args(const replay_setup *setup, const replay_arrays *a, int32_t layer,
                        const int32_t *table, const int32_t *end, const int64_t *start, int64_t n,
                        tamis_k_gather_args *args);
/* The first layer of a role, or -1. */
int32_t replay_layer_of(const replay_setup *setup, int32_t role);
/* K in another layout or page size than the indexer's. */
void replay_mistake_k(const replay_setup *setup, int32_t mistake, tamis_k_cache *k);

/*
 * A way to run flights. Calls return STATUS_GOOD, or STATUS_WRONG with the library's refusal in
 * *error, or STATUS_BAD with an error of the machine there. K is addressed by its owner's layer and
 * a byte's offset from the cache's start.
 */
typedef struct replay_engine {
    const struct replay_engine_calls *calls;
    const replay_setup *setup;
} replay_engine;

typedef struct replay_engine_calls {
    void (*close)(replay_engine *e);
    const char *(*machine)(const replay_engine *e);
    int (*put)(replay_engine *e, int32_t layer, int64_t offset, const void *bytes, int64_t size,
               tamis_error *error);
    int (*get)(replay_engine *e, int32_t layer, int64_t offset, void *bytes, int64_t size,
               tamis_error *error);
    /* K of the first n positions behind a page table row, by k_gather. */
    int (*gather)(replay_engine *e, int32_t layer, const int32_t *table, int64_t n, uint8_t *codes,
                  uint8_t *scales, tamis_error *error);
    int (*fly)(replay_engine *e, replay_flight *f, tamis_error *error);
    /* Makes a mistake; STATUS_WRONG and what was seen in *error unless it was refused as it must
     * be, with nothing selected. */
    int (*err)(replay_engine *e, replay_flight *f, int32_t mistake, tamis_error *error);
} replay_engine_calls;

/* Each returns NULL and *error. */
replay_engine *replay_cpu_open(const replay_setup *setup, tamis_error *error);
replay_engine *replay_ranks_open(const replay_setup *setup, tamis_error *error);
replay_engine *replay_cuda_open(const replay_setup *setup, tamis_error *error);

/* ---- judge --------------------------------------------------------------------------------- */

typedef struct replay_judge replay_judge;
replay_judge *replay_judge_new(const replay_script *s, const replay_inputs *in, tamis_pool *pool);
void replay_judge_free(replay_judge *j);
/*
 * Judges up to `most` rows (0: all) of every layer that selects or reuses. used[layer] is the layer
 * whose selection the engine uses there. STATUS_WRONG: the first mismatch is in text. Adds to
 * *judged the lists compared.
 */
int replay_judge_flight(replay_judge *j, const replay_world *w, const replay_flight *f,
                        const int32_t *used, int64_t most, int64_t *judged, char *text,
                        int64_t size);

/* ---- the replay ---------------------------------------------------------------------------- */

typedef struct replay {
    const replay_options *options;
    replay_script script;
    replay_inputs inputs;
    replay_setup setup;
    replay_world world;
    replay_flight flight;
    replay_plant plant;
    replay_judge *judge;
    tamis_layer_role roles[REPLAY_LAYERS];
    int32_t used[REPLAY_LAYERS]; /* the layer whose selection is used at each */
    int64_t again;               /* times that the next step runs */
    int32_t mistake;             /* that the next step begins with */
    int64_t steps, rows, judged;
    uint64_t digest;
    char verdict[400]; /* what was wrong; "" */
    progress bar;
} replay;

/* Does every statement; STATUS_WRONG: the verdict says what was. */
int replay_statements(replay *r);

#endif
