/* SPDX-License-Identifier: MIT */
/* trial.c: running a trial under a slicing, and comparing what it wrote. */
#include "place.h"

#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "require.h"

enum { MAX_SLICES = 64 };

/* ---- the caller's floating-point state ---- */

#if defined(__SSE__)
enum { HOSTILE_MXCSR = 0xDFC0, CONTROL_BITS = 0xFFC0 }; /* flush, denormals-are-zero, round up */

static unsigned enter_state(int hostile) {
    unsigned old = _mm_getcsr();
    if (hostile)
        _mm_setcsr(HOSTILE_MXCSR);
    return old;
}
static int leave_state(int hostile, unsigned old) {
    unsigned want = hostile ? HOSTILE_MXCSR : old;
    int kept = (_mm_getcsr() & CONTROL_BITS) == (want & CONTROL_BITS);
    _mm_setcsr(old);
    return kept;
}
#else
static unsigned enter_state(int hostile) {
    unsigned old = (unsigned)fegetround();
    if (hostile)
        fesetround(FE_UPWARD);
    return old;
}
static int leave_state(int hostile, unsigned old) {
    int kept = fegetround() == (hostile ? FE_UPWARD : (int)old);
    fesetround((int)old);
    return kept;
}
#endif

/* ---- slices ---- */

typedef struct slice {
    const trial *t;
    const tamis_backend *backend;
    int phase, hostile;
    int32_t ith, nth;
    tamis_status status;
    tamis_error error;
    int state_kept;
} slice;

static void *run_slice(void *argument) {
    slice *s = argument;
    unsigned old = enter_state(s->hostile);
    s->status = s->t->phases[s->phase](s->backend, &s->t->args, s->ith, s->nth, &s->error);
    s->state_kept = leave_state(s->hostile, old);
    return NULL;
}

static void run_threads(slice *slices, int32_t nth) {
    pthread_t threads[MAX_SLICES];
    for (int32_t i = 0; i < nth; i++)
        REQUIRE(pthread_create(&threads[i], NULL, run_slice, &slices[i]) == 0, "no thread");
    for (int32_t i = 0; i < nth; i++)
        pthread_join(threads[i], NULL);
}

static void run_phase(const trial *t, const tamis_backend *backend, slicing how, int phase) {
    slice slices[MAX_SLICES];
    int32_t order[MAX_SLICES];
    memset(slices, 0, sizeof slices);
    for (int32_t i = 0; i < how.nth; i++) {
        order[i] = i;
        slices[i] = (slice){.t = t, .backend = backend, .phase = phase, .ith = i, .nth = how.nth};
        slices[i].hostile = how.hostile_fp;
    }
    if (how.order == ORDER_RANDOM)
        random_permutation(&how.seed, order, how.nth);
    if (how.order == ORDER_THREADS)
        run_threads(slices, how.nth);
    for (int32_t i = 0; i < how.nth; i++) {
        slice *s = &slices[order[i]];
        if (how.order != ORDER_THREADS)
            run_slice(s);
        REQUIRE_OK(s->status, s->error);
        REQUIRE(s->state_kept, "slice %d of %d changed the caller's floating-point state", s->ith,
                s->nth);
    }
}

/* ---- poison ---- */

static void poison_outputs(trial *t, uint8_t poison) {
    for (int i = 0; i < TRIAL_OUTPUTS; i++)
        if (t->output[i].body.bytes)
            memset(t->output[i].body.base, poison, (size_t)t->output[i].body.bytes);
}

/* Checks every byte of output i's body that is in no span of the outputs that share it. */
static void require_poison(const trial *t, int i, uint8_t poison) {
    const output *out = &t->output[i];
    if (!out->body.bytes)
        return;
    uint8_t *owned = calloc((size_t)out->body.bytes, 1);
    REQUIRE(owned, "out of memory");
    for (int other = 0; other < TRIAL_OUTPUTS; other++) {
        const output *o = &t->output[other];
        if (o->body.base != out->body.base)
            continue;
        for (int64_t k = 0; k < o->span_count; k++)
            memset(owned + (o->base - o->body.base) + o->spans[k].offset, 1,
                   (size_t)o->spans[k].bytes);
    }
    for (int64_t b = 0; b < out->body.bytes; b++)
        REQUIRE(owned[b] || out->body.base[b] == poison, "%s: byte %lld outside the output changed",
                out->name, (long long)(b - (out->base - out->body.base)));
    free(owned);
}

/* The workspace is mapped for each slicing, since its size depends on it. */
static void map_workspace(trial *t, guard_arena *arena, int32_t nth) {
    if (!t->workspace)
        return;
    int64_t bytes = t->workspace(&t->args, nth);
    REQUIRE(bytes >= 0, "the workspace size of valid arguments is %lld", (long long)bytes);
    *t->workspace_field = guard_map(arena, bytes, 64, t->place.side, NULL);
    *t->workspace_bytes_field = bytes;
}

void (*trial_elsewhere)(const trial *t);

void trial_run(trial *t, const tamis_backend *backend, slicing how) {
    guard_arena *arena = guard_new();
    REQUIRE(how.nth >= 1 && how.nth <= MAX_SLICES, "test: %d slices", how.nth);
    if (!trial_elsewhere)
        map_workspace(t, arena, how.nth);
    guard_seal(t->inputs);
    poison_outputs(t, how.poison);
    if (trial_elsewhere)
        trial_elsewhere(t);
    for (int phase = 0; phase < 2 && !trial_elsewhere && t->phases[phase]; phase++)
        run_phase(t, backend, how, phase);
    for (int i = 0; i < TRIAL_OUTPUTS; i++)
        require_poison(t, i, how.poison);
    guard_free(arena);
}

/* ---- results ---- */

results trial_results(const trial *t) {
    results r;
    memset(&r, 0, sizeof r);
    for (int i = 0; i < TRIAL_OUTPUTS; i++) {
        const output *out = &t->output[i];
        if (!out->base)
            continue;
        for (int64_t k = 0; k < out->span_count; k++)
            r.size[i] += out->spans[k].bytes;
        uint8_t *to = r.bytes[i] = malloc((size_t)r.size[i] + 1);
        REQUIRE(to, "out of memory");
        for (int64_t k = 0; k < out->span_count; k++) {
            memcpy(to, out->base + out->spans[k].offset, (size_t)out->spans[k].bytes);
            to += out->spans[k].bytes;
        }
    }
    return r;
}

void results_free(results *r) {
    for (int i = 0; i < TRIAL_OUTPUTS; i++)
        free(r->bytes[i]);
    memset(r, 0, sizeof *r);
}

void results_equal(const trial *t, const results *want, const results *got, int across,
                   const char *what) {
    for (int i = 0; i < TRIAL_OUTPUTS; i++) {
        const output *out = &t->output[i];
        if (!want->bytes[i] || !got->bytes[i] || (across && out->private_to_layout))
            continue;
        REQUIRE(want->size[i] == got->size[i], "%s: %s has %lld bytes, not %lld", what, out->name,
                (long long)got->size[i], (long long)want->size[i]);
        for (int64_t b = 0; b < want->size[i]; b++)
            REQUIRE(want->bytes[i][b] == got->bytes[i][b],
                    "%s: %s differs at byte %lld of %lld: %02x, not %02x", what, out->name,
                    (long long)b, (long long)want->size[i], got->bytes[i][b], want->bytes[i][b]);
    }
}
