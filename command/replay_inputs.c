/* SPDX-License-Identifier: MIT */
/*
 * replay_inputs.c: raw tensors of a token, made from its number alone, so that a request's history
 * is all that its selections depend on. A trace's rows stand in for them where one is given.
 * Nothing here uses libm: a CPU and a GPU host make the same bits.
 */
#include <stdlib.h>
#include <string.h>

#include "replay.h"

enum { STREAM_K = 1, STREAM_Q, STREAM_W, STREAM_ROPE, STREAM_NORM };

uint64_t replay_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static uint64_t stream_of(uint64_t token, int32_t layer, int stream) {
    return replay_mix(token ^ replay_mix((uint64_t)layer * 16 + (uint64_t)stream));
}

/* bf16 of either sign, 0.5 to 2 times a power of two that each 32 values share. */
static void fill(uint64_t state, uint16_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 4) {
        uint64_t h = replay_mix(state + (uint64_t)i);
        int up = (int)(replay_mix(state ^ (uint64_t)(i / 32 + 1) << 40) % 5) - 2;
        for (int64_t k = i; k < i + 4; k++, h >>= 16)
            out[k] = (uint16_t)((h >> 15 & 1) << 15 | (0x3F00u + (h & 0xFF) + (unsigned)up * 128u));
    }
}

/* ---- made ---- */

/* Points of the unit circle, t -> ((1 - t^2) / (1 + t^2), 2 t / (1 + t^2)); of ties: no turn. */
static void fill_rope(replay_inputs *in) {
    int64_t pairs = in->script->max_context * 32;
    for (int64_t i = 0; i < pairs; i++) {
        float *row = in->rope + i / 32 * 64 + i % 32;
        uint64_t h = replay_mix(stream_of((uint64_t)i, 0, STREAM_ROPE));
        float t = (float)((int32_t)(h & 0xFFFF) - 0x8000) / 32768.0f, d = 1.0f + t * t;
        int turns = in->script->values != VALUES_TIES;
        row[0] = turns ? (1.0f - t * t) / d : 1.0f;
        row[32] = turns ? 2.0f * t / d : 0.0f;
    }
}

int replay_inputs_make(replay_inputs *in, const replay_script *script, const tamis_trace *trace) {
    *in = (replay_inputs){.script = script, .trace = trace, .eps = 1e-6f};
    in->rope = malloc((size_t)script->max_context * 64 * sizeof *in->rope);
    if (!in->rope)
        return fail("%s: no memory for a context of %lld tokens", script->file,
                    (long long)script->max_context);
    fill_rope(in);
    fill(stream_of(0, 0, STREAM_NORM), in->norm, script->dim);
    for (int i = 0; i < 128; i++)
        in->norm[i] &= 0x7FFF;
    if (!trace)
        return STATUS_GOOD;
    int32_t present = 0, empty = 0;
    for (int32_t i = 0; i < trace->layer_count; i++) {
        present += trace->layers[i].present;
        empty += trace->layers[i].present && trace->layers[i].k.size == 0;
    }
    if (present == 0 || trace->rows == 0 || empty > 0)
        return fail("%s: required layers with rows and keys, found %s", trace->path,
                    empty > 0 && trace->rows > 0 ? "one without keys" : "none");
    if (trace->model.index_n_heads != script->heads || trace->model.index_head_dim != script->dim)
        return fail("%s: %s: required heads=%d dim=%d, the trace's, found heads=%d dim=%d",
                    script->file, trace->path, (int)trace->model.index_n_heads,
                    (int)trace->model.index_head_dim, (int)script->heads, (int)script->dim);
    return STATUS_GOOD;
}

void replay_inputs_free(replay_inputs *in) {
    free(in->rope);
}

/* Ties: few different tokens. */
static uint64_t known_as(const replay_inputs *in, uint64_t token) {
    return in->script->values == VALUES_TIES ? replay_mix(token) % 5 : token;
}

static void spoil(const replay_inputs *in, uint64_t state, uint64_t one_in, uint16_t *x,
                  int64_t n) {
    uint64_t h = replay_mix(state ^ 0x6E616Eu);
    if (h % one_in != 0)
        return;
    if (in->script->values == VALUES_NAN)
        x[h / one_in % (uint64_t)n] = 0x7FC0;
    else if (in->script->values == VALUES_TIES)
        memset(x, 0, (size_t)n * sizeof *x);
}

/* ---- rows of a trace ---- */

/* The layer of the trace that stands for one of the script: present ones in turns. */
static const tamis_trace_layer *layer_of(const tamis_trace *trace, int32_t layer) {
    int32_t present = 0;
    for (int32_t i = 0; i < trace->layer_count; i++)
        present += trace->layers[i].present;
    int32_t wanted = layer % present;
    for (int32_t i = 0;; i++)
        if (trace->layers[i].present && wanted-- == 0)
            return &trace->layers[i];
}

/* E2M1 times 2^(e - 127) as bf16, which holds it unless it is tiny (0 here) or NaN. */
static void expand_row(const uint8_t *codes, const uint8_t *scales, int32_t dim, uint16_t *out) {
    static const uint16_t one[8] = {0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};
    for (int32_t i = 0; i < dim; i++) {
        unsigned code = codes[i / 2] >> i % 2 * 4 & 15, m = one[code & 7];
        int e = scales[i / 32] - 127, exponent = (int)(m >> 7) + e;
        unsigned value = m && exponent > 0 ? m + (unsigned)(e * 128) : 0;
        if (scales[i / 32] == 255 || exponent >= 255)
            value = 0x7FC0;
        out[i] = (uint16_t)(value | (code & 8) << 12);
    }
}

static void trace_k(const replay_inputs *in, int32_t layer, uint64_t h, uint16_t *x) {
    const tamis_k_cache *k = &layer_of(in->trace, layer)->k;
    int64_t row = (int64_t)(h % (uint64_t)k->size);
    expand_row(k->codes + row * k->stride, k->scales + row * k->scales_stride, k->head_dim, x);
}

static void trace_q(const replay_inputs *in, int32_t layer, uint64_t h, uint16_t *q,
                    uint16_t *weights) {
    const tamis_query *t = &layer_of(in->trace, layer)->query;
    int64_t row = (int64_t)(h % (uint64_t)in->trace->rows);
    for (int32_t i = 0; i < t->heads; i++) {
        expand_row(t->codes + row * t->codes_row_stride + i * t->codes_head_stride,
                   t->scales + row * t->scales_row_stride + i * t->scales_head_stride, t->head_dim,
                   q + i * t->head_dim);
        uint32_t bits = 0;
        if (t->weights_type == TAMIS_F32)
            memcpy(&bits, (const float *)t->weights + row * t->weights_row_stride + i, 4);
        else
            bits = (uint32_t)((const uint16_t *)t->weights)[row * t->weights_row_stride + i] << 16;
        weights[i] = (uint16_t)(bits >> 16);
    }
}

/* ---- both ---- */

void replay_inputs_k(const replay_inputs *in, int32_t layer, uint64_t token, uint16_t *x) {
    uint64_t h = stream_of(known_as(in, token), layer, STREAM_K);
    if (in->trace) {
        trace_k(in, layer, h, x);
        return;
    }
    fill(h, x, in->script->dim);
    spoil(in, h, 8, x, in->script->dim);
}

void replay_inputs_q(const replay_inputs *in, int32_t layer, uint64_t token, uint16_t *q,
                     uint16_t *weights) {
    uint64_t h = stream_of(token, layer, STREAM_Q);
    if (in->trace) {
        trace_q(in, layer, h, q, weights);
        return;
    }
    fill(h, q, (int64_t)in->script->heads * in->script->dim);
    fill(stream_of(token, layer, STREAM_W), weights, in->script->heads);
    spoil(in, h, 24, q, (int64_t)in->script->heads * in->script->dim);
}
