/* SPDX-License-Identifier: MIT */
/*
 * bench_scene.c: the inputs of a shape: paged MXFP4 K, queries, weights and lists, with the
 * statistics of trained indexer tensors where they change the work (exponent spans, signs of
 * weights and dots); the codes are otherwise random. Requests that would not fit in memory share
 * the pages of a bounded pool, each in an order of its own: no request's K is then another's, and
 * still far more than the caches hold.
 */
#define _DEFAULT_SOURCE /* madvise */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "command.h"
#include "gen.h"

enum { POOL_LIMIT = 256 << 20, HUGE_PAGE = 2 << 20 };

static void *take_aligned(bench_scene *s, int64_t count, size_t size, size_t align, int huge) {
    size_t bytes = ((size_t)count * size + 2 * align - 1) / align * align;
    void *part = s->parts < SCENE_PARTS ? aligned_alloc(align, bytes) : NULL;
    if (part && huge)
        madvise(part, bytes, MADV_HUGEPAGE); /* before the first touch; a wish, so no check */
    if (part)
        s->part[s->parts++] = memset(part, 0, bytes);
    return part;
}

static void *take(bench_scene *s, int64_t count, size_t size) {
    return take_aligned(s, count, size, 64, 0);
}

static float unit(random_state *random) {
    return (float)(random_bits(random) >> 40) * 0x1p-24f;
}

/* ---- MXFP4 values ---------------------------------------------------------------------------- */

/*
 * Sixteen codes. Signs follow `lean` in 5 of 8: with K leaning one way and q the other, a third of
 * the dots are positive, as at a trained consumer.
 */
static uint64_t draw_codes(random_state *random, uint64_t lean) {
    const uint64_t signs = UINT64_C(0x8888888888888888);
    uint64_t other_way = random_bits(random) & (random_bits(random) | random_bits(random));
    return (random_bits(random) & ~signs) | ((lean ^ other_way) & signs);
}

/* The span of the groups' exponents: shares of K rows by span 0..3, as measured. */
static int draw_span(random_state *random) {
    float u = unit(random);
    return u < 0.063f ? 0 : u < 0.621f ? 1 : u < 0.993f ? 2 : 3;
}

/* One vector of dim values: groups between the top exponent and `span` below, both reached. */
static int draw_vector(random_state *random, const uint64_t *lean, int32_t dim, uint8_t *codes,
                       uint8_t *scales) {
    int groups = dim / 32, span = draw_span(random);
    for (int i = 0; i < dim / 16; i++) {
        uint64_t word = draw_codes(random, lean[i]);
        memcpy(codes + 8 * i, &word, 8);
    }
    uint64_t bits = random_bits(random);
    uint8_t top = (uint8_t)(120 + (bits & 1));
    for (int g = 0; g < groups; g++)
        scales[g] = (uint8_t)(top - (bits >> (8 + 8 * g) & 0xFF) % (unsigned)(span + 1));
    int highest = (int)(bits >> 40 & 0xFF) % groups;
    scales[highest] = top;
    scales[(highest + 1) % groups] = (uint8_t)(top - span);
    return span;
}

static void draw_lean(random_state *random, uint64_t *lean) {
    for (int i = 0; i < TAMIS_MAX_HEAD_DIM / 16; i++)
        lean[i] = random_bits(random);
}

static void fill_pool(bench_scene *s, random_state *random, const uint64_t *lean) {
    int64_t codes = s->k.head_dim / 2, scales = s->k.head_dim / 32, spans[4] = {0};
    for (int64_t i = 0; i < s->k.size * BENCH_PAGE; i++) {
        uint8_t *page = s->k.codes + i / BENCH_PAGE * s->k.stride;
        spans[draw_vector(random, lean, s->k.head_dim, page + i % BENCH_PAGE * codes,
                          page + BENCH_PAGE * codes + i % BENCH_PAGE * scales)]++;
    }
    for (int i = 0; i < 4; i++)
        s->spans[i] = (double)spans[i] / (double)(s->k.size * BENCH_PAGE);
}

/* ---- memory of K ------------------------------------------------------------------------------
 */

static void shuffle(random_state *random, int32_t *ids, int64_t count) {
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t other = (int64_t)((random_bits(random) >> 32) * (uint64_t)(i + 1) >> 32);
        int32_t id = ids[i];
        ids[i] = ids[other];
        ids[other] = id;
    }
}

/* Page tables: pages dealt at random, those beyond a request's own length included. */
static int make_tables(bench_scene *s, random_state *random, int64_t each) {
    int64_t requests = s->shape.decode ? s->shape.rows : 1;
    int32_t *table = take(s, requests * each, 4);
    int32_t *order = take(s, s->k.size, 4);
    s->rows.page_table = table;
    if (!table || !order)
        return 0;
    for (int64_t i = 0; i < s->k.size; i++)
        order[i] = (int32_t)i;
    for (int64_t r = 0, at = 0; r < requests; r++)
        for (int64_t i = 0; i < each; i++, at = at + 1 < s->k.size ? at + 1 : 0) {
            if (at == 0)
                shuffle(random, order, s->k.size);
            table[r * each + i] = order[at];
        }
    s->rows.page_table_stride = s->rows.page_table_width = each;
    s->rows.requests = requests;
    return 1;
}

static int make_k(bench_scene *s, random_state *random, const uint64_t *lean, int64_t limit) {
    int64_t each = (limit + BENCH_PAGE - 1) / BENCH_PAGE;
    int64_t page = tamis_k_page_stride(BENCH_PAGE, s->shape.dim, 512);
    int64_t most = POOL_LIMIT / page > each ? POOL_LIMIT / page : each;
    int64_t wanted = each * (s->shape.decode ? s->shape.rows : 1);
    s->pages_shared = wanted > most;
    s->k = (tamis_k_cache){.layout = TAMIS_K_MXFP4_PAGE,
                           .head_dim = s->shape.dim,
                           .page_size = BENCH_PAGE,
                           .size = s->pages_shared ? most : wanted,
                           .stride = page};
    s->pool_bytes = s->k.size * page;
    s->k.codes = s->shape.huge_pages ? take_aligned(s, s->pool_bytes, 1, HUGE_PAGE, 1)
                                     : take(s, s->pool_bytes, 1);
    if (!s->k.codes || !make_tables(s, random, each))
        return 0;
    fill_pool(s, random, lean);
    return 1;
}

/* ---- queries ----------------------------------------------------------------------------------
 */

static int make_query(bench_scene *s, random_state *random, const uint64_t *lean) {
    int64_t vectors = s->shape.rows * s->shape.heads, codes = s->shape.dim / 2,
            scales = s->shape.dim / 32, negative = 0;
    uint8_t *q_codes = take(s, vectors, (size_t)codes),
            *q_scales = take(s, vectors, (size_t)scales);
    float *weights = take(s, vectors, 4);
    if (!q_codes || !q_scales || !weights)
        return 0;
    for (int64_t i = 0; i < vectors; i++) {
        draw_vector(random, lean, s->shape.dim, q_codes + i * codes, q_scales + i * scales);
        int minus = unit(random) < 0.6f;
        weights[i] = (minus ? -1.0f : 1.0f) * (0.05f + unit(random)) / 64.0f;
        negative += minus;
    }
    s->negative = (double)negative / (double)vectors;
    s->query = (tamis_query){.heads = s->shape.heads,
                             .head_dim = s->shape.dim,
                             .weights_type = TAMIS_F32,
                             .codes = q_codes,
                             .scales = q_scales,
                             .weights = weights,
                             .codes_row_stride = codes * s->shape.heads,
                             .codes_head_stride = codes,
                             .scales_row_stride = scales * s->shape.heads,
                             .scales_head_stride = scales,
                             .weights_row_stride = s->shape.heads};
    return 1;
}

/* bf16 values of either sign with exponents about 1, for q_prepare and k_insert. */
static uint16_t draw_bf16(random_state *random) {
    uint64_t bits = random_bits(random);
    return (uint16_t)((bits & 0x80FF) | (uint64_t)(124 + (bits >> 20) % 4) << 7);
}

static int make_unprepared(bench_scene *s, random_state *random) {
    int64_t values = s->shape.rows * s->shape.heads * s->shape.dim;
    int64_t keys = s->shape.rows * s->shape.dim;
    s->q = take(s, values, 2);
    s->x = take(s, keys, 2);
    s->tokens = take(s, s->shape.rows, 8);
    s->rope = take(s, (int64_t)BENCH_ROPE * 64, 4);
    s->ones = take(s, s->shape.dim, 4);
    if (!s->q || !s->x || !s->tokens || !s->rope || !s->ones)
        return 0;
    for (int64_t i = 0; i < values; i++)
        s->q[i] = draw_bf16(random);
    for (int64_t i = 0; i < keys; i++)
        s->x[i] = draw_bf16(random);
    for (int64_t r = 0; r < s->shape.rows; r++)
        s->tokens[r] = r % BENCH_ROPE;
    for (int64_t i = 0; i < (int64_t)BENCH_ROPE * 64; i++)
        s->rope[i] = 2.0f * unit(random) - 1.0f;
    for (int32_t i = 0; i < s->shape.dim; i++)
        s->ones[i] = 1.0f;
    return 1;
}

/* ---- rows -------------------------------------------------------------------------------------
 */

int64_t scene_length(const bench_scene *scene, int64_t row) {
    return scene->rows.ke[row];
}

static int make_rows(bench_scene *s) {
    int32_t *ke = take(s, s->shape.rows, 4), *request = take(s, s->shape.rows, 4);
    if (!ke || !request)
        return 0;
    for (int64_t r = 0; r < s->shape.rows; r++) {
        int64_t before = s->shape.decode ? 0 : s->shape.rows - 1 - r;
        ke[r] = (int32_t)(s->shape.positions - before);
        request[r] = s->shape.decode ? (int32_t)r : 0;
    }
    s->rows.count = s->shape.rows;
    s->rows.ke = ke;
    s->rows.request = request;
    return 1;
}

static int make_lists(bench_scene *s, int32_t kind, int32_t **lists) {
    int64_t *last = take(s, s->shape.rows, 8);
    *lists = take(s, s->shape.rows * s->shape.blocks, 4);
    if (!last || !*lists)
        return 0;
    for (int64_t r = 0; r < s->shape.rows; r++)
        last[r] = (scene_length(s, r) - 1) / s->shape.block_size;
    return lists_fill(kind, !s->shape.decode, last, s->shape.rows, s->shape.blocks, 3, *lists) ==
           STATUS_GOOD;
}

const int32_t *scene_lists(const bench_scene *scene, int32_t kind) {
    return kind == LISTS_RANDOM ? scene->random : scene->local;
}

int scene_make(const bench_shape *shape, int32_t lists, int64_t limit_positions,
               bench_scene *scene) {
    random_state random;
    uint64_t lean[TAMIS_MAX_HEAD_DIM / 16], against[TAMIS_MAX_HEAD_DIM / 16];
    int64_t limit = limit_positions > shape->positions ? limit_positions : shape->positions;
    memset(scene, 0, sizeof *scene);
    scene->shape = *shape;
    random_seed(&random, 1, 0);
    draw_lean(&random, lean);
    for (int i = 0; i < TAMIS_MAX_HEAD_DIM / 16; i++)
        against[i] = ~lean[i];
    int good = make_rows(scene) && make_k(scene, &random, lean, limit) &&
               make_query(scene, &random, against) && make_unprepared(scene, &random);
    if (good && lists & LISTS_LOCAL)
        good = make_lists(scene, LISTS_LOCAL, &scene->local);
    if (good && lists & LISTS_RANDOM)
        good = make_lists(scene, LISTS_RANDOM, &scene->random);
    if (good)
        return STATUS_GOOD;
    scene_free(scene);
    return fail("%s: no memory for its inputs", shape->name);
}

void scene_free(bench_scene *scene) {
    while (scene->parts > 0)
        free(scene->part[--scene->parts]);
}
