/* SPDX-License-Identifier: MIT */
/*
 * opponents.c: tamis against what else could be done on one thread for one row, in turns:
 * opponents [--clock-wall] [--seconds S] [POSITIONS ...]. Each line is a median and its ratio to
 * the first line of its group. OpenBLAS picks its kernel as it is loaded, so an OPENBLAS_CORETYPE
 * in the environment would decide it: this program then starts itself again without.
 * OPPONENTS_CORETYPE=NAME asks for one on purpose.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cblas.h>

#include "command.h"
#include "opponents.h"

enum { NAIVE_POSITIONS = 8192 };

int opponent_make(opponent *o, const bench_scene *scene, const tamis_backend *backend, int ahead) {
    const bench_shape *s = &scene->shape;
    int64_t last = s->rows - 1;
    *o = (opponent){.scene = scene, .backend = backend};
    o->list = scene_lists(scene, LISTS_LOCAL) + last * s->blocks;
    o->q = malloc((size_t)s->heads * (size_t)s->dim * 4);
    o->k = ahead ? malloc((size_t)(s->positions * s->dim) * 4) : NULL;
    o->tile = malloc((size_t)OPPONENT_TILE * (size_t)s->dim * 4);
    o->products = malloc((size_t)OPPONENT_TILE * (size_t)s->heads * 4);
    o->scores = calloc((size_t)(s->positions + s->block_size), 4);
    o->packed = calloc((size_t)s->blocks * (size_t)s->block_size, 4);
    o->chosen = malloc((size_t)s->topk * 4);
    if (!o->q || (ahead && !o->k) || !o->tile || !o->products || !o->scores || !o->packed ||
        !o->chosen)
        return 0;
    for (int32_t h = 0; h < s->heads; h++)
        opponent_vector(scene->query.codes + last * scene->query.codes_row_stride +
                            h * scene->query.codes_head_stride,
                        scene->query.scales + last * scene->query.scales_row_stride +
                            h * scene->query.scales_head_stride,
                        s->dim, o->q + h * s->dim);
    for (int64_t j = 0; ahead && j < s->positions; j++)
        opponent_position(scene, j, o->k + j * s->dim);
    return 1;
}

void opponent_free(opponent *o) {
    free(o->q);
    free(o->k);
    free(o->tile);
    free(o->products);
    free(o->scores);
    free(o->packed);
    free(o->chosen);
}

/* ---- groups of lines --------------------------------------------------------------- */

typedef struct setting {
    const bench_scene *scene;
    const tamis_backend *backend;
    tamis_pool *pool;
    contest_rules rules;
} setting;

typedef struct line {
    const char *text;
    int stage; /* of the library, or -1: run */
    int32_t lists;
    void (*run)(void *context);
    opponent *context;
} line;

static void print_lines(const line *lines, int count, const contestant *c) {
    summary first = contest_summary(&c[0]);
    for (int i = 0; i < count; i++) {
        summary s = contest_summary(&c[i]);
        printf("  %-52s %14s ns/row %5.0f%% %9.2fx\n", lines[i].text,
               grouped((int64_t)(s.ns + 0.5)), 100 * s.spread, s.ns / first.ns);
    }
}

static int run_lines(const setting *set, const char *title, const line *lines, int count) {
    bench_job jobs[CONTEST_MOST];
    contestant *c = calloc(CONTEST_MOST, sizeof *c);
    int made = 0, status = c ? STATUS_GOOD : fail("no memory for a contest");
    for (int i = 0; status == STATUS_GOOD && i < count; i++) {
        c[i] = (contestant){.run = lines[i].run, .context = lines[i].context, .rows = 1};
        if (lines[i].stage < 0)
            continue;
        status = job_make(&jobs[made], lines[i].stage, set->scene, lines[i].lists, 1, set->backend,
                          set->pool);
        c[i].run = job_run;
        c[i].context = &jobs[made];
        made += status == STATUS_GOOD;
    }
    if (status == STATUS_GOOD)
        status = contest_run(c, count, &set->rules);
    if (status == STATUS_GOOD) {
        printf("%s\n", title);
        print_lines(lines, count, c);
    }
    while (made > 0)
        job_free(&jobs[--made]);
    free(c);
    return status;
}

/* ---- the same work ----------------------------------------------------------------- */

/* Largest difference of f32 scores from exact ones, against the largest score. */
static int compare_scores(const setting *set, opponent *o, void (*run)(void *), const char *who) {
    bench_job exact;
    double most = 0, apart = 0;
    int status =
        job_make(&exact, STAGE_mqa_logits, set->scene, LISTS_NONE, 1, set->backend, set->pool);
    if (status != STATUS_GOOD)
        return status;
    const float *scores = exact.args.mqa_logits.logits;
    run(o);
    for (int64_t j = 0; j < set->scene->shape.positions; j++) {
        most = fmax(most, fabs((double)scores[j]));
        apart = fmax(apart, fabs((double)scores[j] - (double)o->scores[j]));
    }
    job_free(&exact);
    printf("%s: scores within %.1e of the largest exact one\n", who, apart / most);
    return apart <= 1e-5 * most ? STATUS_GOOD : fail("%s does not do the same work", who);
}

static int against_blas(const setting *set, opponent *tiles, opponent *ahead) {
    const line all[] = {{"tamis mqa_logits", STAGE_mqa_logits, LISTS_NONE, NULL, NULL},
                        {"sgemm, K dequantised ahead to f32", -1, 0, blas_score_all, ahead},
                        {"sgemm, MXFP4 K dequantised tile by tile", -1, 0, blas_score_all, tiles}};
    const line pool[] = {
        {"tamis sparse_mqa_logits", STAGE_sparse_mqa_logits, LISTS_LOCAL, NULL, NULL},
        {"sgemm, f32 K of the pool gathered by tiles", -1, 0, blas_score_pool, ahead},
        {"sgemm, MXFP4 K of the pool dequantised by tiles", -1, 0, blas_score_pool, tiles}};
    const line full[] = {
        {"tamis dense", STAGE_dense, LISTS_NONE, NULL, NULL},
        {"tamis source (publishes blocks too)", STAGE_source, LISTS_NONE, NULL, NULL},
        {"sgemm, K ahead, topk", -1, 0, blas_full_layer, ahead},
        {"sgemm, K tile by tile, topk", -1, 0, blas_full_layer, tiles}};
    const line consumer[] = {
        {"tamis consume", STAGE_consume, LISTS_LOCAL, NULL, NULL},
        {"tamis dense, masked", STAGE_dense, LISTS_LOCAL, NULL, NULL},
        {"sgemm over all, K ahead, masked, topk", -1, 0, blas_masked_layer, ahead},
        {"sgemm over the pool, K ahead, topk", -1, 0, blas_pool_consumer, ahead}};
    int status = compare_scores(set, ahead, blas_score_all, "sgemm");
    if (status == STATUS_GOOD)
        status = run_lines(set, "scoring all positions", all, 3);
    if (status == STATUS_GOOD)
        status = run_lines(set, "scoring the pool, local lists", pool, 3);
    if (status == STATUS_GOOD)
        status = run_lines(set, "a full layer", full, 4);
    if (status == STATUS_GOOD)
        status = run_lines(set, "a consumer, local lists", consumer, 4);
    return status;
}

static int against_naive(const setting *set, opponent *o) {
    const line lines[] = {
        {"tamis dense", STAGE_dense, LISTS_NONE, NULL, NULL},
        {"tamis mqa_logits", STAGE_mqa_logits, LISTS_NONE, NULL, NULL},
        {"naive: scalar f32 scores", -1, 0, naive_score_all, o},
        {"naive: scalar f32 scores, k passes of selection", -1, 0, naive_full_layer, o}};
    int status = compare_scores(set, o, naive_score_all, "naive");
    if (status == STATUS_GOOD)
        status = run_lines(set, "a full layer, the naive loop at this reduced size", lines, 4);
    if (status == STATUS_GOOD)
        printf("  (both naive parts grow as the number of positions: at 1,048,576 it is 128 times "
               "this, by extrapolation)\n");
    return status;
}

static bench_shape shape_of(int64_t positions) {
    bench_shape shape = {.decode = 1,
                         .positions = positions,
                         .rows = 1,
                         .heads = 32,
                         .dim = 128,
                         .topk = 512,
                         .blocks = positions >= 16384 ? 2048 : (int32_t)(positions / 8),
                         .block_size = 8,
                         .lists = LISTS_LOCAL};
    snprintf(shape.name, sizeof shape.name, "%" PRId64, positions);
    return shape;
}

static int measure(setting set, int64_t positions, int naive) {
    bench_shape shape = shape_of(positions);
    bench_scene scene;
    opponent tiles, ahead;
    int status = scene_make(&shape, LISTS_LOCAL, 0, &scene);
    if (status != STATUS_GOOD)
        return status;
    set.scene = &scene;
    printf("\n1 row, %s positions, 32 x 128\n", grouped(positions));
    int good = opponent_make(&tiles, &scene, set.backend, 0);
    good = opponent_make(&ahead, &scene, set.backend, 1) && good;
    status = !good   ? fail("no memory for the opponents' K")
             : naive ? against_naive(&set, &ahead)
                     : against_blas(&set, &tiles, &ahead);
    opponent_free(&tiles);
    opponent_free(&ahead);
    scene_free(&scene);
    return status;
}

/* ---- the program ------------------------------------------------------------------- */

/* OpenBLAS reads its environment before main: start again when that says another thing. */
static void settle_environment(char **argv) {
    const char *wanted = getenv("OPPONENTS_CORETYPE"), *found = getenv("OPENBLAS_CORETYPE");
    const char *threads = getenv("OPENBLAS_NUM_THREADS");
    int same = wanted ? found && strcmp(wanted, found) == 0 : !found;
    if (same && threads && strcmp(threads, "1") == 0)
        return;
    if (wanted)
        setenv("OPENBLAS_CORETYPE", wanted, 1);
    else
        unsetenv("OPENBLAS_CORETYPE");
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    execv("/proc/self/exe", argv);
}

static int usage(void) {
    return fail("usage: opponents [--clock-wall] [--seconds S] [POSITIONS ...], positions 16384 .. "
                "1048576 in steps of 512");
}

static int run_sizes(const setting *set, int count, char **sizes) {
    int status = STATUS_GOOD;
    for (int i = 0; status == STATUS_GOOD && i < count; i++) {
        int64_t positions = strtoll(sizes[i], NULL, 10);
        if (positions < 16384 || positions > 1 << 20 || positions % OPPONENT_TILE != 0)
            return usage();
        status = measure(*set, positions, 0);
    }
    return status == STATUS_GOOD ? measure(*set, NAIVE_POSITIONS, 1) : status;
}

int main(int argc, char **argv) {
    static char *usual[] = {"65536", "1048576"};
    common_options one = {.threads = 1};
    tamis_backend *backend = NULL;
    setting set = {.rules = {.seconds = 1, .cpu_clock = 1}};
    settle_environment(argv);
    int at = 1;
    if (at < argc && strcmp(argv[at], "--clock-wall") == 0) {
        set.rules.cpu_clock = 0;
        at++;
    }
    if (at + 1 < argc && strcmp(argv[at], "--seconds") == 0) {
        set.rules.seconds = strtod(argv[at + 1], NULL);
        at += 2;
    }
    if (!(set.rules.seconds > 0))
        return usage();
    int status = open_backend(&one, &backend);
    if (status == STATUS_GOOD)
        status = open_pool(&one, &set.pool);
    if (status == STATUS_GOOD) {
        set.backend = backend;
        machine_text();
        printf("OpenBLAS: %s, kernels for %s, %d thread; tamis tier %s; %s clock\n",
               openblas_get_config(), openblas_get_corename(), openblas_get_num_threads(),
               tamis_backend_tier(backend), set.rules.cpu_clock ? "the thread's CPU" : "wall");
        status = at < argc ? run_sizes(&set, argc - at, argv + at) : run_sizes(&set, 2, usual);
    }
    if (set.pool)
        tamis_pool_destroy(set.pool);
    tamis_backend_destroy(backend);
    return status;
}
