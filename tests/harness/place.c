/* SPDX-License-Identifier: MIT */
/* place.c: inputs and outputs of a trial laid out in guarded memory. */
#include "place.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"

void trial_new(trial *t, const placement *p) {
    memset(t, 0, sizeof *t);
    t->inputs = guard_new();
    t->outputs = guard_new();
    t->place = *p;
    t->random = p->seed;
}

void trial_free(trial *t) {
    for (int i = 0; i < TRIAL_OUTPUTS; i++)
        free(t->output[i].spans);
    guard_free(t->inputs);
    guard_free(t->outputs);
}

/* ---- strides ---- */

typedef struct shape {
    int64_t n0, n1, width, stride0, stride1;
} shape;

static shape shape_of(trial *t, int64_t n0, int64_t n1, int64_t width) {
    shape s = {n0, n1, width, 0, width};
    int padded = t->place.stride != STRIDE_TIGHT;
    int64_t pad0 = padded ? 1 + random_below(&t->random, 5) : 0;
    int64_t pad1 = padded ? 1 + random_below(&t->random, 4) : 0;
    if (t->place.stride == STRIDE_HEADS_OUTERMOST && n1 > 1) {
        s.stride0 = width + pad0;
        s.stride1 = (n0 ? n0 : 1) * s.stride0 + pad1;
    } else {
        s.stride1 = n1 > 1 ? width + pad1 : width;
        s.stride0 = n1 * s.stride1 + pad0;
    }
    return s;
}

/* Elements from the first to the last that belongs to the array, without trailing padding. */
static int64_t shape_extent(const shape *s) {
    if (s->n0 == 0 || s->n1 == 0)
        return 0;
    return (s->n0 - 1) * s->stride0 + (s->n1 - 1) * s->stride1 + s->width;
}

/* ---- inputs ---- */

void *trial_input(trial *t, const void *dense, int64_t n0, int64_t n1, int64_t width, int64_t size,
                  int64_t *stride0, int64_t *stride1) {
    shape s = shape_of(t, n0, n1, width);
    uint8_t *to = guard_map(t->inputs, shape_extent(&s) * size, size, t->place.side, NULL);
    for (int64_t i = 0; i < n0; i++)
        for (int64_t j = 0; j < n1 && width > 0; j++)
            memcpy(to + (i * s.stride0 + j * s.stride1) * size,
                   (const uint8_t *)dense + (i * n1 + j) * width * size, (size_t)(width * size));
    *stride0 = s.stride0;
    if (stride1)
        *stride1 = s.stride1;
    return to;
}

void *trial_vector(trial *t, const void *dense, int64_t count, int64_t size) {
    void *to = guard_map(t->inputs, count * size, size, t->place.side, NULL);
    if (count)
        memcpy(to, dense, (size_t)(count * size));
    return to;
}

uint8_t *k_codes_at(const tamis_k_cache *k, int64_t row) {
    if (k->layout != TAMIS_K_MXFP4_PAGE)
        return k->codes + row * k->stride;
    return k->codes + row / k->page_size * k->stride + row % k->page_size * (k->head_dim / 2);
}

uint8_t *k_scales_at(const tamis_k_cache *k, int64_t row) {
    int64_t code_bytes = k->head_dim / 2, scale_bytes = k->head_dim / 32;
    if (k->layout == TAMIS_K_MXFP4_SPLIT)
        return k->scales + row * k->scales_stride;
    if (k->layout == TAMIS_K_MXFP4_ROW)
        return k->codes + row * k->stride + code_bytes;
    return k->codes + row / k->page_size * k->stride + k->page_size * code_bytes +
           row % k->page_size * scale_bytes;
}

static int page_size_of(const placement *p) {
    return p->page_size ? p->page_size : 16 * (int)(1 + p->seed % 4);
}

void trial_k_new(guard_arena *arena, const placement *p, int d, int64_t size, tamis_k_cache *k,
                 guard_body body[2]) {
    int64_t code_bytes = d / 2, scale_bytes = d / 32, row_bytes = code_bytes + scale_bytes;
    int64_t padding = p->stride == STRIDE_TIGHT ? 0 : 1 + (int64_t)(p->seed % 37);
    memset(k, 0, sizeof *k);
    memset(body, 0, 2 * sizeof *body);
    k->layout = p->layout;
    k->head_dim = d;
    k->size = size;
    if (p->layout == TAMIS_K_MXFP4_PAGE) {
        k->page_size = page_size_of(p);
        k->size = (size + k->page_size - 1) / k->page_size;
        k->stride = tamis_k_page_stride(k->page_size, d, 16) + 16 * padding;
        row_bytes *= k->page_size;
    } else if (p->layout == TAMIS_K_MXFP4_SPLIT) {
        k->stride = code_bytes + padding;
        k->scales_stride = scale_bytes + padding;
        row_bytes = code_bytes;
        int64_t bytes = k->size ? (k->size - 1) * k->scales_stride + scale_bytes : 0;
        k->scales = guard_map(arena, bytes, 1, p->side, &body[1]);
    } else {
        k->stride = row_bytes + padding;
    }
    int64_t bytes = k->size ? (k->size - 1) * k->stride + row_bytes : 0;
    k->codes = guard_map(arena, bytes, 1, p->side, &body[0]);
}

int64_t trial_base(const trial *t, const scene *s, int64_t row) {
    return t->place.layout == TAMIS_K_MXFP4_PAGE ? 0 : s->base[s->request[row]];
}

void trial_intervals(trial *t, const scene *s, tamis_rows *rows) {
    int all_zero = 1;
    int32_t *ks = guard_map(t->inputs, s->rows * 4, 4, t->place.side, NULL);
    int32_t *ke = guard_map(t->inputs, s->rows * 4, 4, t->place.side, NULL);
    for (int64_t r = 0; r < s->rows; r++) {
        ks[r] = s->ks[r] + (int32_t)trial_base(t, s, r);
        ke[r] = s->ke[r] + (int32_t)trial_base(t, s, r);
        all_zero &= ks[r] == 0;
    }
    memset(rows, 0, sizeof *rows);
    rows->count = s->rows;
    rows->ks = all_zero ? NULL : ks;
    rows->ke = ke;
}

/* Pages in random order; entries past a request's own pages hold numbers that name no page. */
static void place_page_table(trial *t, const scene *s, const tamis_k_cache *k, tamis_rows *rows) {
    int64_t page_size = k->page_size, widest = 0, next = 0;
    for (int64_t q = 0; q < s->requests; q++)
        if (s->context[q] > widest)
            widest = s->context[q];
    int64_t width = (widest + page_size - 1) / page_size + (t->place.stride ? 2 : 0);
    int32_t *dense = calloc((size_t)(s->requests * width + 1), sizeof *dense);
    int32_t *pages = calloc((size_t)k->size + 1, sizeof *pages);
    REQUIRE(dense && pages, "out of memory");
    random_permutation(&t->random, pages, k->size);
    for (int64_t q = 0; q < s->requests; q++)
        for (int64_t i = 0; i < width; i++)
            dense[q * width + i] = i * page_size < s->context[q] ? pages[next++]
                                   : (i + q) % 2                 ? INT32_MAX
                                                                 : INT32_MIN + (int32_t)i;
    rows->page_table =
        trial_input(t, dense, s->requests, 1, width, 4, &rows->page_table_stride, NULL);
    rows->page_table_width = width;
    rows->requests = s->requests;
    rows->request = s->requests == 1 ? NULL : trial_vector(t, s->request, s->rows, 4);
    free(dense);
    free(pages);
}

static void place_k(trial *t, const scene *s, tamis_k_cache *k, tamis_rows *rows) {
    int64_t size = s->positions;
    guard_body body[2];
    if (t->place.layout == TAMIS_K_MXFP4_PAGE) {
        int64_t page_size = page_size_of(&t->place);
        size = 3 * page_size; /* pages of nobody */
        for (int64_t q = 0; q < s->requests; q++)
            size += (s->context[q] + page_size - 1) / page_size * page_size;
    }
    trial_k_new(t->inputs, &t->place, s->d, size, k, body);
    if (t->place.layout == TAMIS_K_MXFP4_PAGE)
        place_page_table(t, s, k, rows);
    for (int64_t q = 0; q < s->requests; q++)
        for (int64_t j = 0; j < s->context[q]; j++) {
            int64_t from = s->base[q] + j, to = from;
            if (rows->page_table)
                to = rows->page_table[q * rows->page_table_stride + j / k->page_size] *
                         (int64_t)k->page_size +
                     j % k->page_size;
            memcpy(k_codes_at(k, to), s->k_codes + from * (s->d / 2), (size_t)(s->d / 2));
            memcpy(k_scales_at(k, to), s->k_scales + from * (s->d / 32), (size_t)(s->d / 32));
        }
}

static void place_query(trial *t, const scene *s, tamis_query *query) {
    memset(query, 0, sizeof *query);
    query->heads = s->heads;
    query->head_dim = s->d;
    query->weights_type = s->weights_type;
    query->codes = trial_input(t, s->q_codes, s->rows, s->heads, s->d / 2, 1,
                               &query->codes_row_stride, &query->codes_head_stride);
    query->scales = trial_input(t, s->q_scales, s->rows, s->heads, s->d / 32, 1,
                                &query->scales_row_stride, &query->scales_head_stride);
    if (s->weights_type == TAMIS_F32) {
        query->weights =
            trial_input(t, s->weights, s->rows, 1, s->heads, 4, &query->weights_row_stride, NULL);
        return;
    }
    uint16_t *halves = calloc((size_t)(s->rows * s->heads + 1), sizeof *halves);
    REQUIRE(halves, "out of memory");
    for (int64_t i = 0; i < s->rows * s->heads; i++) {
        uint32_t bits;
        memcpy(&bits, &s->weights[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    query->weights =
        trial_input(t, halves, s->rows, 1, s->heads, 2, &query->weights_row_stride, NULL);
    free(halves);
}

void trial_scene(trial *t, const scene *s, tamis_k_cache *k, tamis_rows *rows, tamis_query *query) {
    trial_intervals(t, s, rows);
    place_k(t, s, k, rows);
    if (query)
        place_query(t, s, query);
}

/* ---- outputs ---- */

void *trial_output(trial *t, int i, const char *name, int64_t n0, int64_t n1, int64_t width,
                   int64_t size, int64_t *stride0, int64_t *stride1) {
    shape s = shape_of(t, n0, n1, width);
    output *out = &t->output[i];
    out->name = name;
    out->base = guard_map(t->outputs, shape_extent(&s) * size, size, t->place.side, &out->body);
    out->span_count = n0 * n1;
    out->spans = calloc((size_t)(n0 * n1 + 1), sizeof *out->spans);
    REQUIRE(out->spans, "out of memory");
    for (int64_t a = 0; a < n0; a++)
        for (int64_t b = 0; b < n1; b++)
            out->spans[a * n1 + b] = (span){(a * s.stride0 + b * s.stride1) * size, width * size};
    if (stride0)
        *stride0 = s.stride0;
    if (stride1)
        *stride1 = s.stride1;
    return out->base;
}

void *trial_optional(trial *t, int bit, int i, const char *name, int64_t n0, int64_t width,
                     int64_t size, int64_t *stride) {
    if (t->place.omit & bit)
        return NULL;
    return trial_output(t, i, name, n0, 1, width, size, stride, NULL);
}

int32_t *trial_counts(trial *t, int bit, int i, const char *name, int64_t rows) {
    int stride = t->place.stride;
    t->place.stride = STRIDE_TIGHT;
    int32_t *counts = trial_optional(t, bit, i, name, rows, 1, 4, NULL);
    t->place.stride = stride;
    return counts;
}

void trial_selection(trial *t, int64_t rows, int32_t topk, tamis_selection *out) {
    memset(out, 0, sizeof *out);
    out->topk = topk;
    out->positions = trial_optional(t, 1, 0, "positions", rows, topk, 4, &out->positions_stride);
    out->slots = trial_optional(t, 2, 1, "slots", rows, topk, 8, &out->slots_stride);
    out->scores = trial_optional(t, 4, 2, "scores", rows, topk, 4, &out->scores_stride);
    out->counts = trial_counts(t, 8, 3, "counts", rows);
    t->output[1].private_to_layout = 1;
}
