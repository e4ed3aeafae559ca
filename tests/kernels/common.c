/* SPDX-License-Identifier: MIT */
/* common.c: the parts of common.h. Comparisons are by bits: +0 is not -0. */
#include "common.h"

enum { MAX_ALLOCATIONS = 4096, MAX_WATCHED = 16 };

static uint64_t state = 1;
static void *allocations[MAX_ALLOCATIONS];
static int allocation_count;
static struct {
    const uint8_t *at;
    int64_t bytes;
} outputs[MAX_WATCHED];
static int output_count;

void seed(uint64_t value) {
    state = value * 0x9E3779B97F4A7C15u + 0x1234567u;
}

uint64_t random64(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du;
}

int64_t random_below(int64_t limit) {
    return (int64_t)((random64() >> 11) % (uint64_t)limit);
}

float random_unit(void) {
    return (float)random_below(1 << 24) / (float)(1 << 23) - 1.0f;
}

void random_bytes(void *out, int64_t bytes) {
    uint8_t *p = out;
    for (int64_t i = 0; i < bytes; i++) {
        p[i] = (uint8_t)(random64() >> 56);
    }
}

void *fresh(int64_t bytes) {
    void *p = NULL;
    size_t size = (size_t)(bytes > 0 ? bytes : 1);
    assert_true(allocation_count < MAX_ALLOCATIONS);
    assert_int_equal(posix_memalign(&p, 64, size), 0);
    memset(p, POISON, size);
    allocations[allocation_count++] = p;
    return p;
}

void release(void) {
    while (allocation_count > 0) {
        free(allocations[--allocation_count]);
    }
}

float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

const tamis_backend *ref(void) {
    static tamis_backend *backend;
    tamis_error error = {0};
    if (!backend) {
        assert_int_equal(tamis_backend_create("ref", &backend, &error), TAMIS_OK);
        assert_string_equal(tamis_backend_tier(backend), "ref");
    }
    return backend;
}

int32_t next_slices(void) {
    static int32_t turn;
    return turn++ % 3 + 1;
}

void same_floats(const float *got, const float *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++) {
        if (bits_of(got[i]) != bits_of(want[i])) {
            fail_msg("%s [%lld]: got %a (%08x), want %a (%08x)", what, (long long)i, (double)got[i],
                     bits_of(got[i]), (double)want[i], bits_of(want[i]));
        }
    }
}

void same_ints(const int32_t *got, const int32_t *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++) {
        if (got[i] != want[i]) {
            fail_msg("%s [%lld]: got %d, want %d", what, (long long)i, got[i], want[i]);
        }
    }
}

void same_bytes(const void *got, const void *want, int64_t n, const char *what) {
    const uint8_t *a = got, *b = want;
    for (int64_t i = 0; i < n; i++) {
        if (a[i] != b[i]) {
            fail_msg("%s byte %lld: got %02x, want %02x", what, (long long)i, a[i], b[i]);
        }
    }
}

int64_t element_bytes(int32_t type) {
    return type == TAMIS_BF16 ? 2 : 4;
}

void put(void *array, int64_t at, int32_t type, float value) {
    if (type == TAMIS_BF16) {
        ((uint16_t *)array)[at] = oracle_bf16(value);
    } else {
        ((float *)array)[at] = value;
    }
}

float get(const void *array, int64_t at, int32_t type) {
    return type == TAMIS_BF16 ? oracle_from_bf16(((const uint16_t *)array)[at])
                              : ((const float *)array)[at];
}

void same_element(const void *array, int64_t at, int32_t type, float want, const char *what) {
    float got = get(array, at, type);
    float rounded = type == TAMIS_BF16 ? oracle_from_bf16(oracle_bf16(want)) : want;
    if (bits_of(got) != bits_of(rounded)) {
        fail_msg("%s column %lld: got %a (%08x), want %a (%08x)", what, (long long)at, (double)got,
                 bits_of(got), (double)rounded, bits_of(rounded));
    }
}

void untouched(const void *row, int64_t from, int64_t to, int64_t element, const char *what) {
    const uint8_t *p = row;
    for (int64_t i = from * element; i < to * element; i++) {
        if (p[i] != POISON) {
            fail_msg("%s: padding at byte %lld was written", what, (long long)i);
        }
    }
}

void watch_none(void) {
    output_count = 0;
}

void watch(const void *output, int64_t bytes) {
    assert_true(output_count < MAX_WATCHED);
    outputs[output_count].at = output;
    outputs[output_count++].bytes = bytes;
}

uint64_t watched(void) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (int i = 0; i < output_count; i++) {
        for (int64_t b = 0; b < outputs[i].bytes; b++) {
            hash = (hash ^ outputs[i].at[b]) * 0x100000001B3u;
        }
    }
    return hash;
}

void refused(tamis_status status, tamis_status code, const tamis_error *error, const char *name,
             uint64_t before, int line) {
    if (status != code || error->status != code || !strstr(error->argument, name)) {
        fail_msg("line %d: status %d, in error %d, %s: required %s, found %s; want %d, %s", line,
                 status, error->status, error->argument, error->required, error->found, code, name);
    }
    if (error->required[0] == 0 || error->found[0] == 0) {
        fail_msg("line %d: says nothing of what was required or found", line);
    }
    if (watched() != before) {
        fail_msg("line %d: refused but an output was touched", line);
    }
}

void succeeded(tamis_status status, const tamis_error *error, int line) {
    if (status != TAMIS_OK) {
        fail_msg("line %d: status %d: %s: required %s, found %s", line, status, error->argument,
                 error->required, error->found);
    }
}
