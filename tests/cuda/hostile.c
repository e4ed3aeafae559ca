/* SPDX-License-Identifier: MIT */
/*
 * hostile.c: gpu_hostile levels|stages: any bits in what the host cannot check. Nothing is read or
 * written out of bounds, and what the levels list is -1 or a position that K holds.
 */
#include <stdio.h>
#include <string.h>

#include "../../src/kernels/cuda/launch.h"
#include "levels_on.h"
#include "require.h"
#include "stages.h"

static test_device device;

/* ---- hostile: any bits in what the host cannot check ---- */

static void require_ids(const int32_t *ids, int64_t stride, int64_t rows, int64_t width,
                        int64_t limit, const char *what) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            int64_t id = ids[r * stride + i];
            REQUIRE(id >= -1 && id < limit, "%s: row %lld holds %lld", what, (long long)r,
                    (long long)id);
            REQUIRE(id == -1 || i == 0 || id > ids[r * stride + i - 1],
                    "%s: row %lld does not ascend at %lld", what, (long long)r, (long long)i);
        }
}

static int32_t odd_int(uint64_t *random) {
    static const int32_t odd[] = {0, -1, 7, INT32_MAX, INT32_MIN, 1 << 30, 150, 151};
    return random_below(random, 3) ? (int32_t)random_next(random) : odd[random_below(random, 8)];
}

/* Overwrites n ints on the device and in the host's copy, which the pull compares. */
static void scramble(const mirror *m, const int32_t *host, int64_t n, uint64_t *random) {
    int32_t *to = (int32_t *)(uintptr_t)host;
    if (!host)
        return;
    for (int64_t i = 0; i < n; i++)
        to[i] = odd_int(random);
    device_write(&device, mirror_at(m, host), to, n * 4);
}

/* Page ids are trusted: only entries that every request has may be read. */
static void own_pages(const scene *s, const tamis_k_cache *k, tamis_rows *rows) {
    int64_t least = s->context[0];
    for (int64_t i = 1; i < s->requests; i++)
        least = s->context[i] < least ? s->context[i] : least;
    if (rows->page_table)
        rows->page_table_width = (least + k->page_size - 1) / k->page_size;
}

static void hostile_source(const scene *s, const placement *where, uint64_t seed) {
    level l = flash;
    trial t;
    mirror m;
    l.topk = 40;
    l.topk_blocks = seed % 2 ? 50 : 20;
    source_trial(&t, s, l, where);
    own_pages(s, &t.args.source.k, &t.args.source.rows);
    const tamis_source_args *a = &t.args.source;
    mirror_new(&m, &device, &t, STAGE_source, 0);
    scramble(&m, a->rows.ke, s->rows, &seed);
    scramble(&m, a->rows.ks, s->rows, &seed);
    scramble(&m, a->rows.request, s->rows, &seed);
    device_run(&device, STAGE_source, &m.args);
    mirror_pull(&m);
    int64_t limit = tamis_cuda_limit(&a->rows, &a->k);
    require_ids(a->selection.positions, a->selection.positions_stride, s->rows, l.topk, limit,
                "positions");
    require_ids(a->blocks, a->blocks_stride, s->rows, l.topk_blocks, (limit + 7) / 8, "blocks");
    mirror_free(&m);
    trial_free(&t);
}

static void hostile_consume(const scene *s, const placement *where, int number, uint64_t seed) {
    level l = flash;
    trial t;
    mirror m;
    int32_t ids[64 * 30], counts[64];
    memset(ids, 0, sizeof ids);
    memset(counts, 0, sizeof counts);
    l.topk = 40;
    block_lists lists = {ids, 30, counts};
    (number == STAGE_consume ? consume_trial : dense_trial)(&t, s, l, lists, where);
    tamis_rows *rows = number == STAGE_consume ? &t.args.consume.rows : &t.args.dense.rows;
    const tamis_k_cache *k = number == STAGE_consume ? &t.args.consume.k : &t.args.dense.k;
    const tamis_selection *out =
        number == STAGE_consume ? &t.args.consume.selection : &t.args.dense.selection;
    own_pages(s, k, rows);
    mirror_new(&m, &device, &t, number, 0);
    scramble(&m, rows->ke, s->rows, &seed);
    scramble(&m, rows->ks, s->rows, &seed);
    scramble(&m, rows->request, s->rows, &seed);
    const int32_t *blocks = number == STAGE_consume ? t.args.consume.blocks : t.args.dense.blocks;
    int64_t stride =
        number == STAGE_consume ? t.args.consume.blocks_stride : t.args.dense.blocks_stride;
    for (int64_t r = 0; r < s->rows; r++)
        scramble(&m, blocks + r * stride, 30, &seed);
    scramble(&m, number == STAGE_consume ? t.args.consume.counts : t.args.dense.counts, s->rows,
             &seed);
    device_run(&device, number, &m.args);
    mirror_pull(&m);
    require_ids(out->positions, out->positions_stride, s->rows, l.topk, tamis_cuda_limit(rows, k),
                "positions");
    mirror_free(&m);
    trial_free(&t);
}

/* Tokens whose positions and slots are any bits: nothing outside the cache is written. */
static void hostile_prepare(uint64_t seed) {
    enum { TOKENS = 64, D = 128 };
    placement where = {.layout = TAMIS_K_MXFP4_PAGE + (int)(seed % 3)};
    guard_body body[2];
    int64_t longs[TOKENS];
    float floats[64 * D], eps = 1e-6f;
    trial t;
    mirror m;
    memset(floats, 0, sizeof floats);
    random_fill(&seed, longs, sizeof longs);
    trial_new(&t, &where);
    tamis_k_insert_args *a = &t.args.k_insert;
    tamis_k_insert_args_default(a);
    a->ratio = 1 + (int)(seed % 2);
    a->tokens = TOKENS;
    a->x = trial_input(&t, floats, TOKENS, 1, D, 2, &a->x_stride, NULL);
    a->positions = trial_vector(&t, longs, TOKENS, 8);
    a->slots = trial_vector(&t, longs, TOKENS, 8);
    a->norm_weight = trial_vector(&t, floats, D, 4);
    a->norm_weight_type = a->rope.type = TAMIS_F32;
    a->eps = trial_vector(&t, &eps, 1, 4);
    a->rope.table = trial_input(&t, floats, 64, 1, 64, 4, &a->rope.row_stride, NULL);
    a->rope.positions = 64;
    trial_k_new(t.outputs, &where, D, 100, &a->k, body);
    mirror_new(&m, &device, &t, STAGE_k_insert, 0);
    device_run(&device, STAGE_k_insert, &m.args);
    mirror_pull(&m);
    mirror_free(&m);
    trial_free(&t);
}

/* ---- hostile stages: the harness's cases, then any bits in what the host cannot check ---- */

static void scramble_longs(const mirror *m, const int64_t *host, int64_t n, uint64_t *random) {
    int64_t *to = (int64_t *)(uintptr_t)host;
    if (!host)
        return;
    for (int64_t i = 0; i < n; i++)
        to[i] = random_below(random, 2) ? (int64_t)random_next(random) : odd_int(random);
    device_write(&device, mirror_at(m, host), to, n * 8);
}

static tamis_rows *rows_in(stage_args *args, int number, tamis_k_cache **k) {
    *k = NULL;
    switch (number) {
#define ROWS_WITH_K(name)                                                                          \
    case STAGE_##name:                                                                             \
        *k = &args->name.k;                                                                        \
        return &args->name.rows;
        ROWS_WITH_K(k_gather)
        ROWS_WITH_K(mqa_logits)
        ROWS_WITH_K(sparse_mqa_logits)
        ROWS_WITH_K(consume)
        ROWS_WITH_K(source)
        ROWS_WITH_K(dense)
#undef ROWS_WITH_K
    case STAGE_block_max:
        return &args->block_max.rows;
    case STAGE_publish:
        return &args->publish.rows;
    case STAGE_expand:
        return &args->expand.rows;
    case STAGE_topk:
        return &args->topk.rows;
    default:
        return NULL;
    }
}

static void scramble_stage(const mirror *m, trial *t, int number, const problem *p,
                           uint64_t *random) {
    tamis_k_cache *k;
    int64_t n = p->scene.rows;
    const tamis_rows *rows = rows_in(&t->args, number, &k);
    if (rows) {
        scramble(m, rows->ke, n, random);
        scramble(m, rows->ks, n, random);
        scramble(m, rows->request, n, random);
    }
    if (number == STAGE_q_prepare)
        scramble_longs(m, t->args.q_prepare.positions, p->tokens, random);
    if (number == STAGE_k_insert) {
        scramble_longs(m, t->args.k_insert.positions, p->tokens, random);
        scramble_longs(m, t->args.k_insert.slots, p->tokens, random);
    }
    if (number == STAGE_k_gather)
        scramble_longs(m, t->args.k_gather.start, n, random);
    if (number == STAGE_sparse_mqa_logits)
        scramble(m, t->args.sparse_mqa_logits.counts, n, random);
    if (number == STAGE_topk)
        scramble(m, t->args.topk.columns, n, random);
}

static void hostile_case(const stage *which, int index, int layout) {
    placement where = {.layout = layout, .side = index % 2, .seed = (uint64_t)index};
    int number = stage_number(which->name);
    uint64_t random = (uint64_t)(index * 3 + layout);
    problem p;
    trial t;
    mirror m;
    tamis_k_cache *k;
    memset(&p, 0, sizeof p);
    which->make(&p, index);
    test_context("hostile %s, case %d (%s), layout %d", which->name, index, p.text, layout);
    trial_new(&t, &where);
    which->build(&t, &p);
    tamis_rows *rows = rows_in(&t.args, number, &k);
    if (rows && k)
        own_pages(&p.scene, k, rows);
    else if (rows && rows->page_table) {
        tamis_k_cache paged = {.page_size = t.args.topk.page_size};
        own_pages(&p.scene, &paged, rows);
    }
    mirror_new(&m, &device, &t, number, 0);
    scramble_stage(&m, &t, number, &p, &random);
    device_run(&device, number, &m.args);
    mirror_pull(&m);
    mirror_free(&m);
    trial_free(&t);
    problem_free(&p);
}

static void test_stages(void) {
    static const stage *const stages[] = {
        &stage_q_prepare, &stage_k_insert, &stage_k_gather, &stage_mqa_logits,
        &stage_block_max, &stage_publish,  &stage_expand,   &stage_sparse_mqa_logits,
        &stage_topk,      &stage_consume,  &stage_source,   &stage_dense,
    };
    int calls = 0;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        for (int index = 0; index < stages[i]->cases; index += 4)
            for (int layout = TAMIS_K_MXFP4_PAGE; layout <= TAMIS_K_MXFP4_ROW; layout++, calls++)
                hostile_case(stages[i], index, layout);
    printf("gpu: %d calls of stages with any bits in lengths, positions and slots: no fault\n",
           calls);
}

static void test_levels(void) {
    for (uint64_t seed = 0; seed < 24; seed++) {
        placement where = {.layout = TAMIS_K_MXFP4_PAGE + (int)(seed % 3),
                           .stride = (int)(seed / 3 % STRIDE_KINDS),
                           .side = (int)(seed % 2),
                           .seed = seed};
        scene s;
        scene_around_tiles(&s, seed % 2 ? 32 : 64, seed % 4 < 2 ? 128 : 64, seed);
        scene_numbers(&s, seed % 3 ? SCENE_BITS : SCENE_NAN_K, TAMIS_F32, seed);
        test_context("hostile, seed %llu", (unsigned long long)seed);
        hostile_source(&s, &where, seed);
        hostile_consume(&s, &where, STAGE_consume, seed);
        hostile_consume(&s, &where, STAGE_dense, seed);
        hostile_prepare(seed);
        scene_free(&s);
    }
    printf("gpu: 96 calls with any bits in lengths, ids, counts, positions and slots: in bounds\n");
}

int main(int argc, char **argv) {
    int stages_only = argc == 2 && strcmp(argv[1], "stages") == 0;
    if (!stages_only && (argc != 2 || strcmp(argv[1], "levels") != 0)) {
        fprintf(stderr, "usage: gpu_hostile levels|stages\n");
        return 2;
    }
    test_catch_faults();
    device_open(&device);
    (stages_only ? test_stages : test_levels)();
    device_close(&device);
    return 0;
}
