/* SPDX-License-Identifier: MIT */
/* scene.c: the parts of scene.h. */
#include "scene.h"

#include <math.h>

static uint8_t random_scale(int32_t data) {
    switch (data) {
    case DATA_WIDE:
        return (uint8_t)random_below(255);
    case DATA_BITS:
        return random_below(8) ? (uint8_t)random_below(256) : (uint8_t)(random_below(3) * 127);
    default:
        return (uint8_t)(118 + random_below(7));
    }
}

static float random_weight(int32_t data) {
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 3e38f, -3e38f, 1e-44f};
    if (data == DATA_BITS && random_below(4) == 0) {
        uint32_t bits = (uint32_t)random64();
        return float_of((bits >> 23 & 255) == 255 ? bits & 0xBFFFFFFF : bits);
    }
    if (data == DATA_WEIGHTS && random_below(40) == 0) {
        return odd[random_below(COUNT(odd))];
    }
    return random_unit() * (data == DATA_WIDE ? ldexpf(1, (int)random_below(60) - 30) : 0.25f);
}

/* Rows of codes and scales; one row in eight repeats another, so that scores tie. */
static void random_rows(uint8_t *codes, uint8_t *scales, int64_t n, int32_t d, int32_t data) {
    int64_t cb = d / 2, sb = d / 32;
    random_bytes(codes, n * cb);
    for (int64_t i = 0; i < n * sb; i++) {
        scales[i] = random_scale(data);
    }
    for (int64_t i = 1; i < n; i++) {
        int64_t from = random_below(i);
        if (random_below(8) == 0) {
            memcpy(codes + i * cb, codes + from * cb, (size_t)cb);
            memcpy(scales + i * sb, scales + from * sb, (size_t)sb);
        }
    }
}

int64_t cache_make(tamis_k_cache *k, int32_t layout, int32_t head_dim, int32_t page_size,
                   int64_t slots) {
    int64_t row = head_dim / 2 + head_dim / 32;
    memset(k, 0, sizeof *k);
    k->layout = layout;
    k->head_dim = head_dim;
    k->size = slots;
    if (layout == TAMIS_K_MXFP4_PAGE) {
        k->page_size = page_size;
        k->size = (slots + page_size - 1) / page_size;
        k->stride = (page_size * row + 15) / 16 * 16 + 48;
    } else if (layout == TAMIS_K_MXFP4_SPLIT) {
        k->stride = head_dim / 2 + 5;
        k->scales_stride = head_dim / 32 + 3;
        k->scales = fresh(slots * k->scales_stride);
    } else {
        k->stride = row + 7;
    }
    k->codes = fresh(k->size * k->stride);
    return k->size * k->stride;
}

uint8_t *cache_codes(const tamis_k_cache *k, int64_t slot) {
    if (k->layout == TAMIS_K_MXFP4_PAGE) {
        return k->codes + slot / k->page_size * k->stride + slot % k->page_size * (k->head_dim / 2);
    }
    return k->codes + slot * k->stride;
}

uint8_t *cache_scales(const tamis_k_cache *k, int64_t slot) {
    int64_t cb = k->head_dim / 2, sb = k->head_dim / 32;
    if (k->layout == TAMIS_K_MXFP4_PAGE) {
        return k->codes + slot / k->page_size * k->stride + k->page_size * cb +
               slot % k->page_size * sb;
    }
    return k->layout == TAMIS_K_MXFP4_SPLIT ? k->scales + slot * k->scales_stride
                                            : k->codes + slot * k->stride + cb;
}

/* Pages of all requests, shuffled in the pool; entries past a request's last page are wild. */
static void make_page_table(scene *s) {
    int64_t pages = (s->positions + s->page_size - 1) / s->page_size;
    int64_t stride = pages + 2, all = s->requests * pages;
    s->page_table = fresh(s->requests * stride * 4);
    int32_t *order = fresh(all * 4);
    for (int64_t i = 0; i < all; i++) {
        int64_t other = random_below(i + 1);
        order[i] = order[other];
        order[other] = (int32_t)i;
    }
    order[0] = all > 0 ? order[0] : 0;
    for (int64_t q = 0; q < s->requests; q++) {
        memcpy(s->page_table + q * stride, order + q * pages, (size_t)pages * 4);
    }
    s->rows.page_table = s->page_table;
    s->rows.page_table_stride = stride;
    s->rows.page_table_width = pages;
    s->rows.requests = s->requests;
}

static int64_t slot_of(const scene *s, int64_t request, int64_t position) {
    if (s->layout != TAMIS_K_MXFP4_PAGE) {
        return position;
    }
    int64_t page = s->page_table[request * s->rows.page_table_stride + position / s->page_size];
    return page * s->page_size + position % s->page_size;
}

static void make_k(scene *s) {
    int64_t cb = s->head_dim / 2, sb = s->head_dim / 32, n = s->requests * s->positions;
    int64_t page_size = s->page_size ? s->page_size : 1;
    int64_t pages = (s->positions + page_size - 1) / page_size;
    s->k_codes = fresh(n * cb);
    s->k_scales = fresh(n * sb);
    random_rows(s->k_codes, s->k_scales, n, s->head_dim, s->data);
    s->k_bytes =
        cache_make(&s->k, s->layout, s->head_dim, s->page_size, s->requests * pages * page_size);
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = slot_of(s, i / s->positions, i % s->positions);
        memcpy(cache_codes(&s->k, slot), s->k_codes + i * cb, (size_t)cb);
        memcpy(cache_scales(&s->k, slot), s->k_scales + i * sb, (size_t)sb);
    }
}

static void make_query(scene *s) {
    int64_t cb = s->head_dim / 2, sb = s->head_dim / 32, heads = s->heads, rows = s->rows_count;
    tamis_query *q = &s->query;
    q->heads = s->heads;
    q->head_dim = s->head_dim;
    q->weights_type = s->weights_type;
    q->codes_head_stride = cb + 1;
    q->codes_row_stride = heads * (cb + 1) + 3;
    q->scales_head_stride = sb + 2;
    q->scales_row_stride = heads * (sb + 2) + 5;
    q->weights_row_stride = heads + 3;
    uint8_t *codes = fresh(rows * q->codes_row_stride),
            *scales = fresh(rows * q->scales_row_stride);
    void *weights = fresh(rows * q->weights_row_stride * 4);
    for (int64_t i = 0; i < rows * heads; i++) {
        int64_t r = i / heads, h = i % heads;
        random_rows(codes + r * q->codes_row_stride + h * q->codes_head_stride,
                    scales + r * q->scales_row_stride + h * q->scales_head_stride, 1, s->head_dim,
                    s->data == DATA_BITS && r % 2 ? DATA_WIDE : s->data);
        put(weights, r * q->weights_row_stride + h, s->weights_type, random_weight(s->data));
    }
    q->codes = codes;
    q->scales = scales;
    q->weights = weights;
}

void scene_make(scene *s) {
    s->requests = s->layout == TAMIS_K_MXFP4_PAGE ? 3 : 1;
    memset(&s->rows, 0, sizeof s->rows);
    memset(&s->query, 0, sizeof s->query);
    if (s->layout == TAMIS_K_MXFP4_PAGE) {
        s->page_size = s->page_size ? s->page_size : 16;
        make_page_table(s);
    } else {
        s->page_size = 0;
    }
    make_k(s);
    make_query(s);
    s->ks = fresh(s->rows_count * 4);
    s->ke = fresh(s->rows_count * 4);
    s->request = fresh(s->rows_count * 4);
    for (int64_t r = 0; r < s->rows_count; r++) {
        s->ks[r] = r == 0 ? 0 : (int32_t)random_below(s->positions + 1);
        s->ke[r] = (int32_t)(r == 0 ? s->positions : random_below(s->positions + 1));
        s->request[r] = (int32_t)random_below(s->requests);
    }
    s->rows.count = s->rows_count;
    s->rows.ks = s->ks;
    s->rows.ke = s->ke;
    s->rows.request = s->layout == TAMIS_K_MXFP4_PAGE ? s->request : NULL;
}

static int64_t request_of(const scene *s, int64_t r) {
    return s->rows.request ? s->rows.request[r] : 0;
}

static int64_t start_of(const scene *s, int64_t r) {
    return s->rows.ks ? s->rows.ks[r] : 0;
}

int64_t scene_len(const scene *s, int64_t r) {
    int64_t len = s->rows.ke[r] - start_of(s, r);
    return len > 0 ? len : 0;
}

int64_t scene_slot(const scene *s, int64_t r, int64_t j) {
    return slot_of(s, request_of(s, r), start_of(s, r) + j);
}

const uint8_t *scene_k_codes(const scene *s, int64_t r, int64_t j) {
    return s->k_codes + (request_of(s, r) * s->positions + start_of(s, r) + j) * (s->head_dim / 2);
}

const uint8_t *scene_k_scales(const scene *s, int64_t r, int64_t j) {
    return s->k_scales +
           (request_of(s, r) * s->positions + start_of(s, r) + j) * (s->head_dim / 32);
}

float *scene_scores(const scene *s, int32_t numerics, int64_t r) {
    int64_t cb = s->head_dim / 2, sb = s->head_dim / 32, n = scene_len(s, r);
    const tamis_query *q = &s->query;
    uint8_t codes[64 * 64], scales[64 * 4];
    float weights[64], *scores = fresh(n * 4);
    for (int h = 0; h < s->heads; h++) {
        memcpy(codes + h * cb, q->codes + r * q->codes_row_stride + h * q->codes_head_stride,
               (size_t)cb);
        memcpy(scales + h * sb, q->scales + r * q->scales_row_stride + h * q->scales_head_stride,
               (size_t)sb);
        weights[h] = get(q->weights, r * q->weights_row_stride + h, s->weights_type);
    }
    oracle_scores(numerics, s->heads, s->head_dim, codes, scales, weights, scene_k_codes(s, r, 0),
                  cb, scene_k_scales(s, r, 0), sb, n, scores);
    return scores;
}

void selection_make(tamis_selection *selection, int64_t rows, int32_t topk) {
    memset(selection, 0, sizeof *selection);
    selection->topk = topk;
    selection->positions_stride = topk + 3;
    selection->slots_stride = topk + 1;
    selection->scores_stride = topk + 5;
    selection->positions = fresh(rows * selection->positions_stride * 4);
    selection->slots = fresh(rows * selection->slots_stride * 8);
    selection->scores = fresh(rows * selection->scores_stride * 4);
    selection->counts = fresh(rows * 4);
}

void selection_watch(const tamis_selection *selection, int64_t rows) {
    watch(selection->positions, rows * selection->positions_stride * 4);
    watch(selection->slots, rows * selection->slots_stride * 8);
    watch(selection->scores, rows * selection->scores_stride * 4);
    watch(selection->counts, rows * 4);
}

static float stored_score(float score) {
    return isnan(score) ? float_of(0x7FC00000) : score == 0 ? 0.0f : score;
}

void selection_same(const scene *s, const tamis_selection *selection, int64_t r,
                    const int32_t *want, int64_t count, const float *scores) {
    int32_t topk = selection->topk;
    const int32_t *positions = selection->positions + r * selection->positions_stride;
    const int64_t *slots = selection->slots + r * selection->slots_stride;
    const float *got = selection->scores + r * selection->scores_stride;
    same_ints(positions, want, topk, "positions");
    untouched(positions, topk, selection->positions_stride, 4, "positions");
    untouched(slots, topk, selection->slots_stride, 8, "slots");
    untouched(got, topk, selection->scores_stride, 4, "scores");
    assert_int_equal(selection->counts[r], count);
    for (int64_t i = 0; i < topk; i++) {
        float score = i < count ? stored_score(scores[want[i]]) : -INFINITY;
        same_floats(got + i, &score, 1, "score");
        assert_int_equal(slots[i], i < count ? scene_slot(s, r, want[i]) : -1);
    }
}
