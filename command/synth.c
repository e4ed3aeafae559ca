/* SPDX-License-Identifier: MIT */
/*
 * synth.c: keys, queries and weights with the statistics of trained indexer tensors (exponent spans
 * 0..3, a third of the dots positive, six weights in ten negative, neighbours alike), and hazards.
 *
 * Rows come in order from one generator state, so that a trace of any size needs no memory of its
 * own. Values are quantised by the library's q_prepare with the identity as rotation: the quantiser
 * the public headers offer. Normal deviates are sums of four 16-bit numbers: their tails end
 * at 3.46 sigma, which the span limit wants anyway.
 */
#include <math.h>
#include <string.h>

#include "gen.h"

/* ---- random numbers ---------------------------------------------------------------------------
 */

static uint64_t splitmix(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void random_seed(random_state *random, uint64_t seed, uint64_t stream) {
    uint64_t state = seed;
    state = splitmix(&state) ^ stream;
    for (int i = 0; i < 4; i++)
        random->s[i] = splitmix(&state);
}

static uint64_t rotate(uint64_t x, int by) {
    return (x << by) | (x >> (64 - by));
}

uint64_t random_bits(random_state *random) {
    uint64_t *s = random->s, out = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return out;
}

static uint64_t random_below(random_state *random, uint64_t n) {
    return (random_bits(random) >> 32) * n >> 32;
}

static float random_normal(random_state *random) {
    uint64_t bits = random_bits(random);
    int32_t sum =
        (int32_t)((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
    return (float)(sum - 131070) * (1.0f / 37837.0f);
}

static void random_normals(random_state *random, float *x, int n) {
    for (int i = 0; i < n; i++)
        x[i] = random_normal(random);
}

/* ---- quantising -------------------------------------------------------------------------------
 */

static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* One row of `heads` vectors of dim values each. */
static tamis_status quantise(const synth *s, const uint16_t *x, int32_t heads, uint8_t *codes,
                             uint8_t *scales, tamis_error *error) {
    static const int64_t position;
    float identity[64];
    for (int i = 0; i < 64; i++)
        identity[i] = i < 32 ? 1.0f : 0.0f;
    tamis_q_prepare_args args;
    tamis_q_prepare_args_default(&args);
    args.heads = heads;
    args.head_dim = s->dim;
    args.tokens = 1;
    args.q = x;
    args.q_head_stride = s->dim;
    args.q_token_stride = (int64_t)heads * s->dim;
    args.positions = &position;
    args.rope =
        (tamis_rope){.table = identity, .type = TAMIS_F32, .positions = 1, .row_stride = 64};
    args.weights_in_type = args.weights_out_type = TAMIS_F32;
    args.codes = codes;
    args.codes_head_stride = s->dim / 2;
    args.codes_row_stride = (int64_t)heads * s->dim / 2;
    args.scales = scales;
    args.scales_head_stride = s->dim / 32;
    args.scales_row_stride = (int64_t)heads * s->dim / 32;
    return tamis_q_prepare(s->backend, &args, 0, 1, error);
}

/* Trained rows span at most three exponents; the rare wider one here is pulled in. */
static void limit_span(uint8_t *scales, int groups) {
    uint8_t most = 0;
    for (int g = 0; g < groups; g++)
        most = scales[g] > most ? scales[g] : most;
    for (int g = 0; g < groups; g++)
        if (scales[g] < most - 3)
            scales[g] = (uint8_t)(most - 3);
}

/* ---- hazards that act on values, and on bits --------------------------------------------------
 */

static void heavy_tail(synth *s, float *x) {
    for (int i = 0; i < s->dim; i++) {
        uint64_t bits = random_bits(&s->random);
        if (bits % 128 == 0)
            x[i] *= (float)(1 << (bits >> 32) % 14);
    }
}

static void random_bytes(random_state *random, uint8_t *bytes, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)random_bits(random);
}

/* Half of the vectors anywhere in the exponent range, half around 1 but far apart. */
static void wide_scales(synth *s, uint8_t *scales, int groups) {
    uint64_t everywhere = random_below(&s->random, 2);
    for (int g = 0; g < groups; g++)
        scales[g] = (uint8_t)(everywhere ? random_below(&s->random, 255)
                                         : 103 + random_below(&s->random, 49));
}

/* The hazards that keys and query heads share: one vector's codes and scales. */
static void vector_hazards(synth *s, uint8_t *codes, uint8_t *scales) {
    int groups = s->dim / 32;
    if (!(s->hazards & HAZARD_HEAVY_TAIL))
        limit_span(scales, groups);
    if (s->hazards & HAZARD_SPANS)
        wide_scales(s, scales, groups);
    if (s->hazards & HAZARD_RANDOM_BITS) {
        random_bytes(&s->random, codes, s->dim / 2);
        random_bytes(&s->random, scales, groups);
    }
}

static void zero_vector(synth *s, uint8_t *codes) {
    for (int i = 0; i < s->dim / 2; i++)
        codes[i] = (uint8_t)(random_bits(&s->random) & 0x88);
}

static void key_hazards(synth *s, uint8_t *codes, uint8_t *scales) {
    vector_hazards(s, codes, scales);
    if (s->hazards & HAZARD_TIES && random_below(&s->random, 8) != 0) {
        random_state same;
        random_seed(&same, s->seed, 0x71E5);
        random_bytes(&same, codes, s->dim / 2);
        memset(scales, 126, (size_t)s->dim / 32);
    }
    if (s->hazards & HAZARD_ZEROS && random_below(&s->random, 2))
        zero_vector(s, codes);
    /* Whole runs, so that blocks without a number among their scores exist. */
    uint64_t run = (uint64_t)s->next / 32 * 0x9E3779B97F4A7C15u >> 60;
    if (s->hazards & HAZARD_NAN && (run == 0 || random_below(&s->random, 50) == 0))
        scales[random_below(&s->random, (uint64_t)s->dim / 32)] = 255;
}

static void query_hazards(synth *s, uint8_t *codes, uint8_t *scales, float *weights) {
    int64_t vector = s->dim / 2, groups = s->dim / 32;
    random_state *random = &s->random;
    for (int h = 0; h < s->heads; h++) {
        vector_hazards(s, codes + h * vector, scales + h * groups);
        if (s->hazards & HAZARD_ZEROS && (s->next % 4 == 1 || random_below(random, 8) == 0))
            zero_vector(s, codes + h * vector);
        if (s->hazards & HAZARD_ZEROS && random_below(random, 8) == 0)
            weights[h] = random_below(random, 2) ? 0.0f : -0.0f;
        if (s->hazards & HAZARD_NEGATIVE_WEIGHTS && weights[h] > 0)
            weights[h] = -weights[h];
        uint32_t bits = (uint32_t)random_bits(random);
        if (s->hazards & HAZARD_RANDOM_BITS)
            memcpy(&weights[h], &bits, sizeof bits);
    }
    uint64_t head = random_below(random, (uint64_t)s->heads);
    const uint32_t quiet = 0x7FC00000;
    if (s->hazards & HAZARD_NAN && s->next % 8 == 3)
        scales[head * (uint64_t)groups] = 255;
    if (s->hazards & HAZARD_NAN && s->next % 8 == 5)
        memcpy(&weights[head], &quiet, sizeof quiet);
}

/* ---- values -----------------------------------------------------------------------------------
 */

/*
 * What the layers of one K owner have in common comes from a stream of its own, in this order: the
 * direction that keys lean against and queries lean along (why most dots are negative), then what
 * heads look for (why consumers find most of their best positions in the source's blocks), then the
 * drift from row to row.
 */
static void share_bias(synth *s, int32_t owner) {
    random_seed(&s->shared, s->seed, 0xB1A50000u + (uint64_t)owner);
    for (int i = 0; i < s->dim; i++)
        s->bias[i] = random_bits(&s->shared) >> 63 ? 1.0f : -1.0f;
}

void synth_keys(synth *s, const tamis_backend *backend, uint32_t hazards, int32_t dim,
                uint64_t seed, int32_t owner) {
    *s = (synth){.backend = backend, .hazards = hazards, .heads = 1, .dim = dim, .seed = seed};
    random_seed(&s->random, seed, 2 * (uint64_t)owner);
    share_bias(s, owner);
    random_normals(&s->random, s->slow, dim);
    random_normals(&s->random, s->topic, dim);
}

/* Groups differ in size from vector to vector: the spans of trained rows, mostly 1 and 2. */
static void group_gains(synth *s, float gain[4]) {
    for (int g = 0; g < s->dim / 32; g++) {
        float n = random_normal(&s->random), up = 1.0f + 0.32f * n * (n > 0 ? 1.6f : 0.8f);
        gain[g] = up < 0.3f ? 0.3f : up;
    }
}

/* A source's dots are positive in 16 of 100, a consumer's in 33; of ten weights six are negative.
 */
static void make_head(synth *s, int h, float lean, float same) {
    float shared[SYNTH_D], own[SYNTH_D], other = sqrtf(1 - same * same);
    random_normals(&s->shared, shared, s->dim);
    random_normals(&s->random, own, s->dim);
    for (int i = 0; i < s->dim; i++)
        s->head_way[h][i] = 0.9f * (same * shared[i] + other * own[i]) + lean * s->bias[i];
    group_gains(s, s->head_gain[h]);
    float size =
        same * (0.3f + fabsf(random_normal(&s->shared))) + 0.3f * other * random_normal(&s->random);
    float sign = random_below(&s->shared, 10) < 6 ? -1.0f : 1.0f;
    s->head_weight[h] = sign * size / 32.0f;
}

void synth_queries(synth *s, const tamis_backend *backend, uint32_t hazards, int32_t heads,
                   int32_t dim, uint64_t seed, int32_t layer, int32_t owner) {
    *s = (synth){.backend = backend, .hazards = hazards, .heads = heads, .dim = dim, .seed = seed};
    random_seed(&s->random, seed, 2 * (uint64_t)layer + 1);
    share_bias(s, owner);
    for (int h = 0; h < heads; h++)
        make_head(s, h, layer == owner ? 0.38f : 0.19f, layer == owner ? 1.0f : 0.97f);
    random_normals(&s->shared, s->slow, dim);
}

static void key_values(synth *s, uint16_t *out) {
    float gain[4], x[SYNTH_D];
    group_gains(s, gain);
    if (random_below(&s->random, 256) == 0)
        random_normals(&s->random, s->topic, s->dim);
    for (int i = 0; i < s->dim; i++) {
        float fresh = random_normal(&s->random);
        s->slow[i] = 0.96f * s->slow[i] + 0.28f * fresh;
        x[i] = 0.6f * s->slow[i] + 0.75f * s->topic[i] + 0.25f * fresh - 0.25f * s->bias[i];
        x[i] *= gain[i / 32];
    }
    if (s->hazards & HAZARD_HEAVY_TAIL)
        heavy_tail(s, x);
    for (int i = 0; i < s->dim; i++)
        out[i] = to_bf16(x[i]);
}

static void head_values(synth *s, int h, uint16_t *out) {
    float x[SYNTH_D];
    const float *gain = s->head_gain[h];
    for (int i = 0; i < s->dim; i++)
        x[i] = (s->head_way[h][i] + 0.3f * s->slow[i] + 0.2f * random_normal(&s->random)) *
               gain[i / 32];
    if (s->hazards & HAZARD_HEAVY_TAIL)
        heavy_tail(s, x);
    for (int i = 0; i < s->dim; i++)
        out[i] = to_bf16(x[i]);
}

static void query_values(synth *s, uint16_t *out, float *weights) {
    for (int i = 0; i < s->dim; i++)
        s->slow[i] = 0.9f * s->slow[i] + 0.436f * random_normal(&s->shared);
    for (int h = 0; h < s->heads; h++) {
        head_values(s, h, out + (int64_t)h * s->dim);
        weights[h] = s->head_weight[h] * (1.0f + 0.1f * random_normal(&s->random));
    }
}

/* ---- rows -------------------------------------------------------------------------------------
 */

tamis_status synth_next_keys(synth *s, int64_t rows, uint8_t *codes, uint8_t *scales,
                             tamis_error *error) {
    uint16_t values[4 * SYNTH_D];
    int64_t vector = s->dim / 2, groups = s->dim / 32;
    for (int64_t r = 0; r < rows; r += 4) {
        int64_t count = rows - r < 4 ? rows - r : 4;
        uint8_t four_codes[4 * SYNTH_D / 2], four_scales[4 * SYNTH_D / 32];
        memset(values, 0, sizeof values);
        for (int64_t i = 0; i < count; i++)
            key_values(s, values + i * s->dim);
        tamis_status status = quantise(s, values, 4, four_codes, four_scales, error);
        if (status != TAMIS_OK)
            return status;
        for (int64_t i = 0; i < count; i++, s->next++)
            key_hazards(s, four_codes + i * vector, four_scales + i * groups);
        memcpy(codes + r * vector, four_codes, (size_t)(count * vector));
        memcpy(scales + r * groups, four_scales, (size_t)(count * groups));
    }
    return TAMIS_OK;
}

tamis_status synth_next_queries(synth *s, int64_t rows, uint8_t *codes, uint8_t *scales,
                                float *weights, tamis_error *error) {
    uint16_t values[SYNTH_HEADS * SYNTH_D];
    for (int64_t r = 0; r < rows; r++, s->next++) {
        uint8_t *row_codes = codes + r * s->heads * s->dim / 2;
        uint8_t *row_scales = scales + r * s->heads * s->dim / 32;
        query_values(s, values, weights + r * s->heads);
        tamis_status status = quantise(s, values, s->heads, row_codes, row_scales, error);
        if (status != TAMIS_OK)
            return status;
        query_hazards(s, row_codes, row_scales, weights + r * s->heads);
    }
    return TAMIS_OK;
}
