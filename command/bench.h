/* SPDX-License-Identifier: MIT */
/*
 * bench.h: the parts of `tamis bench`, in the order in which they meet: a shape is read from a
 * file, a scene holds the inputs of one shape, a job is one call on a scene, a contest times jobs
 * in turns, a report prints.
 */
#ifndef TAMIS_COMMAND_BENCH_H
#define TAMIS_COMMAND_BENCH_H

#include <stdatomic.h>
#include <stdint.h>

#include <jansson.h>
#include <tamis/tamis.h>

/* ---- shapes (bench_shape.c) ------------------------------------------------------------------ */

enum { /* candidate lists; a shape or --lists names one or both */
       LISTS_LOCAL = 1,
       LISTS_RANDOM = 2,
       LISTS_NONE = 0 /* of a stage that reads no lists */
};

typedef struct bench_shape {
    char name[64];
    int32_t decode;    /* 1: rows are requests; 0: rows are the last ones of one prompt */
    int64_t positions; /* of the longest row */
    int64_t rows;
    int32_t heads, dim, topk;
    int32_t blocks, block_size; /* candidate blocks per row, positions per block */
    int32_t lists;              /* LISTS_LOCAL | LISTS_RANDOM */
    int32_t by_default;         /* part of a run that names no shape */
    int32_t huge_pages;         /* ask for K in huge pages; no part of a shape file */
} bench_shape;

/* Returns STATUS_GOOD, or has said what is wrong with the file. */
int shape_read(const char *path, bench_shape *shape);
/* The shape of a name, or of a path when it has a slash or ends in .txt. */
int shape_find(const char *name, bench_shape *shape);
/* Every named shape, smallest first; the caller frees *shapes. */
int shape_all(bench_shape **shapes, int *count);

/* ---- candidate lists (bench_lists.c) --------------------------------------------------------- */

/*
 * Fills lists[rows][width]: ascending block ids, the newest block of each row among them, -1 when a
 * row has fewer blocks than width. last[r] is the newest block. With `chained` local lists go on
 * from row to row; without, each row is drawn anew. Returns STATUS_GOOD or has said why not.
 */
int lists_fill(int32_t kind, int chained, const int64_t *last, int64_t rows, int64_t width,
               uint64_t seed, int32_t *lists);

typedef struct lists_figures {
    double kept[3]; /* share of a row's ids that row + 1, + 4, + 16 has; NaN with fewer rows */
    double run;     /* mean length of runs of consecutive ids */
} lists_figures;

lists_figures lists_measure(const int32_t *lists, int64_t rows, int64_t width);

/* ---- scenes (bench_scene.c) ------------------------------------------------------------------ */

enum { BENCH_PAGE = 128, BENCH_ROPE = 4096, SCENE_PARTS = 24 };

typedef struct bench_scene {
    bench_shape shape;
    tamis_k_cache k; /* pages */
    tamis_rows rows;
    tamis_query query;
    int32_t *local, *random; /* [rows][blocks]; NULL when not asked for */
    uint16_t *q, *x;         /* bf16 inputs of q_prepare and k_insert */
    int64_t *tokens;         /* [rows] positions for them, below BENCH_ROPE */
    float *rope, *ones;
    int64_t pool_bytes;      /* of K */
    int32_t pages_shared;    /* requests share pages of the pool: it would not fit otherwise */
    double spans[4];         /* share of K rows by exponent span */
    double negative;         /* share of negative weights */
    void *part[SCENE_PARTS]; /* what scene_free frees */
    int parts;
} bench_scene;

/*
 * Inputs of a shape with lists of the kinds in `lists`. The page table and the pool are sized for
 * limit_positions, or for the shape's own when that is smaller. Returns STATUS_GOOD or has said why
 * not.
 */
int scene_make(const bench_shape *shape, int32_t lists, int64_t limit_positions,
               bench_scene *scene);
void scene_free(bench_scene *scene);
const int32_t *scene_lists(const bench_scene *scene, int32_t kind);
int64_t scene_length(const bench_scene *scene, int64_t row);

/* ---- jobs (bench_job.c, bench_stages.c) ------------------------------------------------------ */

enum {
#define BENCH_STAGE(name) STAGE_##name,
    TAMIS_STAGE_LIST(BENCH_STAGE)
#undef BENCH_STAGE
        STAGES
};

typedef union bench_args {
#define BENCH_ARGS(name) tamis_##name##_args name;
    TAMIS_STAGE_LIST(BENCH_ARGS)
#undef BENCH_ARGS
} bench_args;

enum { JOB_PARTS = 9 };

typedef struct bench_job {
    int stage;
    int split; /* score | merge */
    const tamis_backend *backend;
    tamis_pool *pool;
    bench_args args;
    int64_t rows;      /* of one run */
    int64_t positions; /* handled in one run */
    int64_t k_bytes;   /* of K read in one run */
    tamis_error error;
    atomic_int failed;
    double *slice;         /* [threads] CPU seconds of each in the last phase */
    double cpu_seconds;    /* of the slowest slice, summed over phases and runs */
    void *part[JOB_PARTS]; /* outputs and workspaces */
    int parts, short_of_memory;
} bench_job;

const char *stage_name(int stage);
int stage_of(const char *name); /* -1 when unknown */
int stage_has_lists(int stage); /* reads candidate lists */
int stage_opponent(int stage);  /* the stage that does the same without lists, or -1 */
int64_t stage_most_rows(int stage, const bench_scene *scene);
/* The call of a stage over the last `rows` rows of the scene, its outputs and workspace. */
int job_make(bench_job *job, int stage, const bench_scene *scene, int32_t lists, int64_t rows,
             const tamis_backend *backend, tamis_pool *pool);
void job_run(void *job);
double job_cpu_seconds(void *job);
void job_free(bench_job *job);
void *job_take(bench_job *job, int64_t bytes); /* NULL sets short_of_memory */
/* Fills args, positions and k_bytes (bench_stages.c). */
void stage_arguments(bench_job *job, const bench_scene *scene, int32_t lists);

/* ---- contests (bench_contest.c) -------------------------------------------------------------- */

enum { CONTEST_MOST = 4, CONTEST_RUNS = 201 };

typedef struct contestant {
    void (*run)(void *context);
    void *context;
    /* Seconds of CPU that all calls so far took; NULL: what the thread's clock says. */
    double (*cpu_seconds)(void *context);
    int64_t rows;      /* of one call */
    int64_t footprint; /* bytes of K that one call reads */
    int calls;         /* in one timed run: set by the contest */
    int runs;
    double ns[CONTEST_RUNS];    /* per row */
    double ticks[CONTEST_RUNS]; /* per row; 0 without a time-stamp counter */
} contestant;

typedef struct contest_rules {
    double seconds; /* for each contestant, about */
    int repeats;    /* exactly so many when > 0 */
    int cold;       /* caches are emptied before each run */
    int cpu_clock;  /* time of the slowest slice's thread, not of the wall */
} contest_rules;

/* Runs A B A B ... and keeps every time. Returns STATUS_GOOD or has said that memory is short. */
int contest_run(contestant *contestants, int count, const contest_rules *rules);
void contest_end(void); /* frees the buffer that empties caches */

typedef struct summary {
    double ns, ticks; /* medians, per row */
    double spread;    /* (90th - 10th percentile) / median of ns */
    double least;     /* ns of the fastest run */
} summary;

summary contest_summary(const contestant *c);
/* A row count that makes one run take about `seconds`; runs a few rows to find out. -1: it failed.
 */
int64_t rows_for(int stage, const bench_scene *scene, int32_t lists, const tamis_backend *backend,
                 tamis_pool *pool, double seconds);

/* ---- the machine (bench_machine.c) ----------------------------------------------------------- */

double bench_seconds(int cpu_clock);
uint64_t tsc_now(void); /* 0 where there is none */
double tsc_mhz(void);   /* measured; 0 where there is none */
int64_t cache_bytes(int level);
json_t *machine_json(void);
void machine_text(void);

/* ---- one run of the command (bench.c, bench_cells.c, bench_checks.c, bench_report.c) --------- */

typedef struct bench_options {
    int json, verbose, all, scaling, compare_tiers, checks, huge_pages;
    int32_t lists, warm, cold; /* cold -1: only where the default says so */
    contest_rules rules;
    int stages; /* bits of chosen stages */
    const tamis_backend *backend;
    const tamis_backend *lower; /* with compare_tiers: ref */
    tamis_pool *pool;
} bench_options;

/* One line of the table. Fields that do not apply hold 0 (times) or -1 (counts). */
typedef struct bench_result {
    const bench_shape *shape;
    int stage, cold, split;
    int32_t lists, threads;
    const char *tier;
    int64_t rows_timed, dense_rows_timed;
    int repeats;
    double positions, k_bytes; /* handled, read: per row */
    summary own, dense, ref, topk;
} bench_result;

/* Measures every cell of a shape: prints lines, or appends objects to results. */
int bench_cells(const bench_options *options, const bench_shape *shape, json_t *results,
                json_t *inputs);
/* What is no cell: live length, workspace, and with --scaling threads 1 and 2. */
int bench_checks(const bench_options *options, json_t *checks);

void report_shape(const bench_scene *scene, int verbose);
json_t *report_inputs(const bench_scene *scene);
void report_line(const bench_result *result);
json_t *report_json(const bench_result *result);
const char *lists_name(int32_t kind);

#endif
