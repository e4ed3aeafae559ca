/* SPDX-License-Identifier: MIT */
/*
 * check_k_insert.c: k_insert (spec 3) against the oracle. The whole cache is compared with an image
 * of what it should be, so a byte written anywhere else shows.
 */
#include "common.h"

#include "prepare.h"
#include "scene.h"

enum { T = 24, SLOTS = 48, POSITIONS = 40 };

typedef struct world {
    tamis_k_insert_args args;
    tamis_k_cache image; /* what args.k should become */
    int64_t bytes;
} world;

static int64_t *make_slots(void) {
    int64_t order[SLOTS], *slots = fresh(T * 8);
    for (int64_t i = 0; i < SLOTS; i++) {
        int64_t other = random_below(i + 1);
        order[i] = i; /* its own when other == i */
        order[i] = order[other];
        order[other] = i;
    }
    for (int t = 0; t < T; t++) {
        slots[t] = random_below(5) ? order[t] : -1 - random_below(1 << 20);
    }
    return slots;
}

static world make(int32_t layout, int32_t d, int kind, int32_t ratio, int32_t rope_type,
                  int32_t norm_type) {
    world w;
    tamis_k_insert_args *a = &w.args;
    tamis_k_insert_args_default(a);
    a->ratio = ratio;
    a->norm_weight_type = norm_type;
    a->tokens = T;
    a->x_stride = d + 5;
    uint16_t *x = fresh(T * a->x_stride * 2);
    for (int64_t i = 0; i < T * a->x_stride; i++) {
        x[i] = random_input(kind);
    }
    memset(x + 2 * a->x_stride, 0, (size_t)d * 2); /* a token of zeros: only eps under the root */
    a->x = x;
    a->positions = make_positions(T, POSITIONS);
    a->slots = make_slots();
    void *g = fresh(d * 4);
    for (int i = 0; i < d; i++) {
        put(g, i, norm_type, random_unit() * 2.0f);
    }
    a->norm_weight = g;
    float *eps = fresh(4);
    *eps = kind == INPUT_TINY ? 0.0f : 1e-6f;
    a->eps = eps;
    a->rope = make_rope(rope_type, POSITIONS);
    w.bytes = cache_make(&a->k, layout, d, 16, SLOTS);
    cache_make(&w.image, layout, d, 16, SLOTS);
    return w;
}

static void check(const world *w) {
    const tamis_k_insert_args *a = &w->args;
    int32_t d = a->k.head_dim;
    float g[128], cos_sin[64];
    for (int i = 0; i < d; i++) {
        g[i] = get(a->norm_weight, i, a->norm_weight_type);
    }
    for (int64_t t = 0; t < a->tokens; t++) {
        if (a->slots[t] >= 0 && (a->positions[t] + 1) % a->ratio == 0) {
            rope_row(&a->rope, a->positions[t] / a->ratio * a->ratio, cos_sin);
            oracle_k_prepare(a->x + t * a->x_stride, d, g, *a->eps, cos_sin,
                             cache_codes(&w->image, a->slots[t]),
                             cache_scales(&w->image, a->slots[t]));
        }
    }
    same_bytes(a->k.codes, w->image.codes, w->bytes, "cache");
    if (a->k.scales) {
        same_bytes(a->k.scales, w->image.scales, SLOTS * a->k.scales_stride, "scales");
    }
}

static void every_layout(void **state) {
    (void)state;
    seed(6);
    for (int i = 0; i < 3 * 2 * INPUT_KINDS * 8 * 4; i++) {
        int32_t types = i % 8;
        world w =
            make(i / 8 % 3 + 1, i / 24 % 2 ? 64 : 128, i / 48 % INPUT_KINDS, types & 1 ? 2 : 1,
                 types & 2 ? TAMIS_BF16 : TAMIS_F32, types & 4 ? TAMIS_BF16 : TAMIS_F32);
        RUN(k_insert, &w.args);
        check(&w);
        release();
    }
}

/* Ratio 2: even positions never write, odd ones turn at the position before. */
static void group_ends_write(void **state) {
    (void)state;
    seed(7);
    world w = make(TAMIS_K_MXFP4_ROW, 128, INPUT_ORDINARY, 2, TAMIS_F32, TAMIS_F32);
    int64_t positions[T], slots[T];
    for (int t = 0; t < T; t++) {
        positions[t] = t;
        slots[t] = t;
    }
    w.args.positions = positions;
    w.args.slots = slots;
    RUN(k_insert, &w.args);
    check(&w);
    for (int t = 0; t < T; t += 2) {
        untouched(cache_codes(&w.args.k, t), 0, 68, 1, "even position");
    }
    release();
}

/*
 * The last bit of the norm rarely survives bf16 and FP4: about one token in ten thousand tells a
 * wrong order of sums, a fused product or a reciprocal square root rounded once.
 */
static void last_bits(void **state) {
    enum { MANY = 200000 };
    (void)state;
    seed(44);
    world w = make(TAMIS_K_MXFP4_ROW, 128, INPUT_ORDINARY, 1, TAMIS_F32, TAMIS_F32);
    tamis_k_insert_args *a = &w.args;
    uint16_t *x = fresh((int64_t)MANY * 128 * 2);
    int64_t *slots = fresh((int64_t)MANY * 8);
    uint8_t want[68];
    float cos_sin[64];
    for (int64_t i = 0; i < (int64_t)MANY * 128; i++) {
        x[i] = random_input(INPUT_ORDINARY);
        slots[i / 128] = i / 128;
    }
    a->tokens = MANY;
    a->x = x;
    a->x_stride = 128;
    a->slots = slots;
    a->positions = make_positions(MANY, POSITIONS);
    cache_make(&a->k, TAMIS_K_MXFP4_ROW, 128, 0, MANY);
    RUN(k_insert, a);
    for (int64_t t = 0; t < MANY; t++) {
        rope_row(&a->rope, a->positions[t], cos_sin);
        oracle_k_prepare(x + t * 128, 128, a->norm_weight, *a->eps, cos_sin, want, want + 64);
        same_bytes(cache_codes(&a->k, t), want, 68, "token");
    }
    release();
}

static void refusals(void **state) {
    static const int64_t negative[T] = {0, -1}, beyond[T] = {0, 0, POSITIONS}, slot[T] = {0, SLOTS};
    static const float minus = -1.0f;
    (void)state;
    seed(8);
    world w = make(TAMIS_K_MXFP4_PAGE, 128, INPUT_ORDINARY, 1, TAMIS_F32, TAMIS_F32);
    tamis_k_insert_args good = w.args;
    watch_none();
    watch(good.k.codes, w.bytes);
    REFUSE(k_insert, a.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "reserved");
    REFUSE(k_insert, a.k.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "k.reserved");
    REFUSE(k_insert, a.rope.reserved = 1, TAMIS_ERROR_STRUCT_SIZE, "rope.reserved");
    REFUSE(k_insert, a.ratio = 0, TAMIS_ERROR_ARGUMENT, "ratio");
    REFUSE(k_insert, a.ratio = 3, TAMIS_ERROR_ARGUMENT, "ratio");
    REFUSE(k_insert, a.norm_weight_type = 0, TAMIS_ERROR_ARGUMENT, "norm_weight_type");
    REFUSE(k_insert, a.tokens = -1, TAMIS_ERROR_ARGUMENT, "tokens");
    REFUSE(k_insert, a.x = NULL, TAMIS_ERROR_ARGUMENT, "x");
    REFUSE(k_insert, a.x_stride = 127, TAMIS_ERROR_ARGUMENT, "x_stride");
    REFUSE(k_insert, a.positions = NULL, TAMIS_ERROR_ARGUMENT, "positions");
    REFUSE(k_insert, a.positions = negative, TAMIS_ERROR_LENGTH, "positions[1]");
    REFUSE(k_insert, a.positions = beyond, TAMIS_ERROR_LENGTH, "positions[2]");
    REFUSE(k_insert, a.slots = NULL, TAMIS_ERROR_ARGUMENT, "slots");
    REFUSE(k_insert, a.slots = slot, TAMIS_ERROR_LENGTH, "slots[1]");
    REFUSE(k_insert, a.norm_weight = NULL, TAMIS_ERROR_ARGUMENT, "norm_weight");
    REFUSE(k_insert, a.eps = NULL, TAMIS_ERROR_ARGUMENT, "eps");
    REFUSE(k_insert, a.eps = &minus, TAMIS_ERROR_ARGUMENT, "eps");
    REFUSE(k_insert, a.rope.table = NULL, TAMIS_ERROR_ARGUMENT, "rope.table");
    REFUSE(k_insert, a.k.layout = 4, TAMIS_ERROR_LAYOUT, "k.layout");
    REFUSE(k_insert, a.k.head_dim = 32, TAMIS_ERROR_GEOMETRY, "k.head_dim");
    REFUSE(k_insert, a.k.page_size = 12, TAMIS_ERROR_LAYOUT, "k.page_size");
    REFUSE(k_insert, a.k.stride = 16 * 68 - 16, TAMIS_ERROR_LAYOUT, "k.stride");
    REFUSE(k_insert, a.k.stride += 8, TAMIS_ERROR_LAYOUT, "k.stride");
    REFUSE(k_insert, a.k.codes = NULL, TAMIS_ERROR_LAYOUT, "k.codes");
    REFUSE_COMMON(k_insert);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout),
        cmocka_unit_test(group_ends_write),
        cmocka_unit_test(last_bits),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
