/* SPDX-License-Identifier: MIT */
/*
 * allocation.c: the bytes of a KV block (spec 7.3). Specs come from an engine's configuration, so
 * every product and sum may be huge: each is checked, and nothing is written before all of them
 * held. A group's place is summed anew for each of its specs instead of kept, since the call
 * allocates nothing.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <tamis/cache.h>
#include <tamis/kv.h>

#include "fail.h"

enum {
    INDEX_STRIDE = 512
}; /* bytes that foreign kernels want an index page's stride to divide by */

void tamis_kv_spec_default(tamis_kv_spec *spec) {
    memset(spec, 0, sizeof *spec);
    spec->struct_size = (uint32_t)sizeof *spec;
    spec->page_alignment = 1;
}

void tamis_kv_layout_default(tamis_kv_layout *layout) {
    memset(layout, 0, sizeof *layout);
    layout->struct_size = (uint32_t)sizeof *layout;
}

static int64_t gcd(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Least common multiple of two positive numbers; -1 when it leaves 64 bits. */
static int64_t lcm(int64_t a, int64_t b) {
    int64_t out;
    return __builtin_mul_overflow(a / gcd(a, b), b, &out) ? -1 : out;
}

/* value >= 0 rounded up to a multiple of align >= 1; -1 when it leaves 64 bits. */
static int64_t round_up(int64_t value, int64_t align) {
    int64_t rest = value % align, out;
    if (rest == 0) {
        return value;
    }
    return __builtin_add_overflow(value, align - rest, &out) ? -1 : out;
}

/* Bytes of a valid spec's page; -1 when they leave 64 bits. */
static int64_t page_bytes(const tamis_kv_spec *spec) {
    int64_t bytes;
    if (__builtin_mul_overflow(spec->states, spec->row_bytes, &bytes)) {
        return -1;
    }
    return round_up(bytes, spec->page_alignment);
}

/* Field names in errors: "specs[3].states"; a negative index stands for one spec called `name`. */
typedef struct field_name {
    char text[60];
} field_name;

static field_name field_of(const char *name, int32_t index, const char *field) {
    field_name out;
    if (index < 0) {
        snprintf(out.text, sizeof out.text, "%s.%s", name, field);
    } else {
        snprintf(out.text, sizeof out.text, "%s[%d].%s", name, index, field);
    }
    return out;
}

static tamis_status check_spec(const tamis_kv_spec *spec, const char *name, int32_t index,
                               tamis_error *error) {
#define NEED_FIELD(condition, status, field, required)                                             \
    TAMIS_NEED(condition, status, field_of(name, index, #field).text, required, spec->field)
    NEED_FIELD(spec->struct_size == sizeof *spec, TAMIS_ERROR_STRUCT_SIZE, struct_size,
               "sizeof(tamis_kv_spec)");
    NEED_FIELD(spec->group >= 0, TAMIS_ERROR_ARGUMENT, group, "0 or more");
    NEED_FIELD(spec->states >= 0, TAMIS_ERROR_ARGUMENT, states, "0 or more");
    NEED_FIELD(spec->row_bytes >= 1, TAMIS_ERROR_ARGUMENT, row_bytes, "1 or more");
    NEED_FIELD(spec->page_alignment >= 1, TAMIS_ERROR_ARGUMENT, page_alignment, "1 or more");
    NEED_FIELD(spec->block_stride_alignment >= 0, TAMIS_ERROR_ARGUMENT, block_stride_alignment,
               "0 or more");
    NEED_FIELD(page_bytes(spec) >= 0, TAMIS_ERROR_LENGTH, states,
               "a page, states * row_bytes, that fits 64 bits");
#undef NEED_FIELD
    return TAMIS_OK;
}

tamis_status tamis_kv_index_spec(int64_t states, int32_t head_dim, int64_t page_alignment,
                                 int32_t sparse, tamis_kv_spec *spec, tamis_error *error) {
    tamis_kv_spec made;
    TAMIS_NEED(spec != NULL, TAMIS_ERROR_ARGUMENT, "spec", "a tamis_kv_spec", 0);
    TAMIS_NEED(spec->struct_size == sizeof *spec, TAMIS_ERROR_STRUCT_SIZE, "spec.struct_size",
               "sizeof(tamis_kv_spec)", spec->struct_size);
    TAMIS_NEED(tamis_k_row_bytes(head_dim) > 0, TAMIS_ERROR_GEOMETRY, "head_dim", "64 or 128",
               head_dim);
    tamis_kv_spec_default(&made);
    made.states = states;
    made.row_bytes = tamis_k_row_bytes(head_dim);
    made.page_alignment = page_alignment;
    TAMIS_TRY(check_spec(&made, "spec", -1, error));
    if (sparse) {
        made.block_stride_alignment = lcm(INDEX_STRIDE, page_alignment);
        TAMIS_NEED(made.block_stride_alignment > 0, TAMIS_ERROR_LENGTH, "page_alignment",
                   "lcm(512, page_alignment) that fits 64 bits", page_alignment);
    }
    *spec = made;
    return TAMIS_OK;
}

tamis_status tamis_kv_merge(const tamis_kv_spec *a, const tamis_kv_spec *b, tamis_kv_spec *merged,
                            tamis_error *error) {
    TAMIS_NEED(a != NULL, TAMIS_ERROR_ARGUMENT, "a", "a tamis_kv_spec", 0);
    TAMIS_NEED(b != NULL, TAMIS_ERROR_ARGUMENT, "b", "a tamis_kv_spec", 0);
    TAMIS_NEED(merged != NULL, TAMIS_ERROR_ARGUMENT, "merged", "a tamis_kv_spec", 0);
    TAMIS_NEED(merged->struct_size == sizeof *merged, TAMIS_ERROR_STRUCT_SIZE, "merged.struct_size",
               "sizeof(tamis_kv_spec)", merged->struct_size);
    TAMIS_TRY(check_spec(a, "a", -1, error));
    TAMIS_TRY(check_spec(b, "b", -1, error));
    TAMIS_NEED(a->states == b->states, TAMIS_ERROR_ARGUMENT, "b.states", "a.states", b->states);
    TAMIS_NEED(a->row_bytes == b->row_bytes, TAMIS_ERROR_ARGUMENT, "b.row_bytes", "a.row_bytes",
               b->row_bytes);
    TAMIS_NEED(a->page_alignment == b->page_alignment, TAMIS_ERROR_ARGUMENT, "b.page_alignment",
               "a.page_alignment", b->page_alignment);
    TAMIS_NEED(a->block_stride_alignment == b->block_stride_alignment, TAMIS_ERROR_ARGUMENT,
               "b.block_stride_alignment", "a.block_stride_alignment", b->block_stride_alignment);
    *merged = *a;
    return TAMIS_OK;
}

/* Bytes that the specs before `end` of specs[end]'s group take; -1 when they leave 64 bits. */
static int64_t place_of(const tamis_kv_spec *specs, int32_t end) {
    int64_t sum = 0;
    for (int32_t i = 0; i < end; i++) {
        if (specs[i].group == specs[end].group &&
            __builtin_add_overflow(sum, page_bytes(&specs[i]), &sum)) {
            return -1;
        }
    }
    return sum;
}

/* Adds spec i to the totals of a layout. A spec is a group's first when nothing of it lies before;
 * groups of empty pages alone are told apart by `first`. */
static tamis_status add_spec(const tamis_kv_spec *specs, int32_t i, tamis_kv_layout *out,
                             tamis_error *error) {
    int64_t place = place_of(specs, i), end;
    TAMIS_NEED(place >= 0 && !__builtin_add_overflow(place, page_bytes(&specs[i]), &end),
               TAMIS_ERROR_LENGTH, field_of("specs", i, "states").text,
               "pages of its group that fit 64 bits together", specs[i].states);
    out->bytes_unaligned = end > out->bytes_unaligned ? end : out->bytes_unaligned;
    int first = 1;
    for (int32_t j = 0; j < i; j++) {
        first = first && specs[j].group != specs[i].group;
    }
    out->groups += first;
    if (specs[i].block_stride_alignment > 0) {
        out->alignment = lcm(out->alignment, specs[i].block_stride_alignment);
        TAMIS_NEED(out->alignment > 0, TAMIS_ERROR_LENGTH,
                   field_of("specs", i, "block_stride_alignment").text,
                   "a common multiple that fits 64 bits", specs[i].block_stride_alignment);
    }
    return TAMIS_OK;
}

static tamis_status pad(tamis_kv_layout *out, tamis_error *error) {
    int64_t scaled;
    out->bytes_per_block = round_up(out->bytes_unaligned, out->alignment);
    TAMIS_NEED(out->bytes_per_block >= 0 &&
                   !__builtin_mul_overflow(out->bytes_per_block - out->bytes_unaligned,
                                           INT64_C(1000000), &scaled),
               TAMIS_ERROR_LENGTH, "specs", "a block that is padded by less than 2^63 / 10^6 bytes",
               out->alignment);
    if (out->bytes_unaligned > 0) {
        int64_t rest = scaled % out->bytes_unaligned;
        out->overhead_ppm = scaled / out->bytes_unaligned + (rest >= out->bytes_unaligned - rest);
    }
    return TAMIS_OK;
}

tamis_status tamis_kv_lay_out(const tamis_kv_spec *specs, int32_t count, int64_t *offsets,
                              tamis_kv_layout *layout, tamis_error *error) {
    tamis_kv_layout out;
    TAMIS_NEED(count >= 0 && count <= TAMIS_KV_MAX_SPECS, TAMIS_ERROR_ARGUMENT, "count",
               "0 .. 8192", count);
    TAMIS_NEED(specs != NULL || count == 0, TAMIS_ERROR_ARGUMENT, "specs", "an array", 0);
    TAMIS_NEED(layout != NULL, TAMIS_ERROR_ARGUMENT, "layout", "a tamis_kv_layout", 0);
    TAMIS_NEED(layout->struct_size == sizeof *layout, TAMIS_ERROR_STRUCT_SIZE, "layout.struct_size",
               "sizeof(tamis_kv_layout)", layout->struct_size);
    tamis_kv_layout_default(&out);
    out.alignment = 1;
    for (int32_t i = 0; i < count; i++) {
        TAMIS_TRY(check_spec(&specs[i], "specs", i, error));
        TAMIS_TRY(add_spec(specs, i, &out, error));
    }
    TAMIS_TRY(pad(&out, error));
    for (int32_t i = 0; offsets && i < count; i++) {
        offsets[i] = place_of(specs, i);
    }
    *layout = out;
    return TAMIS_OK;
}

int64_t tamis_kv_blocks(const tamis_kv_layout *layout, int64_t memory_bytes) {
    if (layout == NULL || layout->bytes_per_block < 1 || memory_bytes < 0) {
        return 0;
    }
    return memory_bytes / layout->bytes_per_block;
}

int64_t tamis_kv_states_without_overhead(int64_t states, int64_t row_bytes, int64_t alignment) {
    if (states < 1 || row_bytes < 1 || alignment < 1) {
        return -1;
    }
    int64_t step = lcm(8, alignment / gcd(alignment, row_bytes)), bytes;
    int64_t out = step < 0 ? -1 : round_up(states, step);
    return out < 0 || __builtin_mul_overflow(out, row_bytes, &bytes) ? -1 : out;
}
