/* SPDX-License-Identifier: MIT */
/* expand.c: candidate lists of any kind made into ascending sparse blocks (spec 5.4). */
#include "cache/address.h"
#include "kernels/kernels.h"

static void sift(int32_t *heap, int64_t root, int64_t n) {
    int32_t value = heap[root];
    for (int64_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) {
            child++;
        }
        if (heap[child] <= value) {
            break;
        }
        heap[root] = heap[child];
    }
    heap[root] = value;
}

/* Without an early way out, so that compilers make vectors of it. */
static int ascends(const int32_t *ids, int64_t n) {
    int descents = 0;
    for (int64_t i = 1; i < n; i++) {
        descents |= ids[i] < ids[i - 1];
    }
    return !descents;
}

/*
 * Heapsort: in place and never quadratic, whatever a hostile list holds. Published lists ascend,
 * and a heap would take 35 cycles an id to find that out.
 */
static void sort(int32_t *ids, int64_t n) {
    if (ascends(ids, n)) {
        return;
    }
    for (int64_t root = n / 2 - 1; root >= 0; root--) {
        sift(ids, root, n);
    }
    for (int64_t last = n - 1; last > 0; last--) {
        int32_t largest = ids[0];
        ids[0] = ids[last];
        ids[last] = largest;
        sift(ids, 0, last);
    }
}

/* Sparse blocks of the candidates that name a visible one, in list order. Returns how many. */
static int64_t collect(const tamis_expand_args *args, int64_t r, int64_t length, int32_t *out) {
    const int32_t *ids = args->candidates + r * args->candidates_stride;
    int64_t candidates = tamis_blocks_of(length, args->candidate_size);
    int64_t blocks = tamis_blocks_of(length, args->block_size);
    int64_t each = args->candidate_size / args->block_size, n = 0;
    for (int64_t i = 0; i < args->width; i++) {
        if (ids[i] < 0 || ids[i] >= candidates) {
            continue;
        }
        for (int64_t b = ids[i] * each; b < (ids[i] + 1) * each && b < blocks; b++) {
            out[n++] = (int32_t)b;
        }
    }
    return n;
}

static int64_t drop_duplicates(int32_t *ids, int64_t n) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (kept == 0 || ids[kept - 1] != ids[i]) {
            ids[kept++] = ids[i];
        }
    }
    return kept;
}

static int64_t valid_columns(int64_t length, int32_t block_size, const int32_t *ids, int64_t n) {
    if (n == 0) {
        return 0;
    }
    int64_t last = length - (int64_t)ids[n - 1] * block_size;
    return (n - 1) * block_size + (last < block_size ? last : block_size);
}

static void expand_row(const tamis_expand_args *args, int64_t r) {
    int64_t length = tamis_row_length(&args->rows, r);
    int64_t width = args->width * (args->candidate_size / args->block_size);
    int32_t *out = args->blocks + r * args->blocks_stride;
    int32_t anchor = (int32_t)(tamis_row_start(&args->rows, r) / args->block_size);
    int64_t n = collect(args, r, length, out);
    sort(out, n);
    if (!(args->flags & TAMIS_EXPAND_KEEP_DUPLICATES)) {
        n = drop_duplicates(out, n);
    }
    if (args->columns) {
        args->columns[r] = (int32_t)valid_columns(length, args->block_size, out, n);
    }
    if (args->counts) {
        args->counts[r] = (int32_t)n;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] += anchor;
    }
    for (int64_t i = n; i < width; i++) {
        out[i] = !(args->flags & TAMIS_EXPAND_FIXED_WIDTH) ? -1 : n > 0 ? out[n - 1] : anchor;
    }
}

void tamis_expand_ref(const tamis_expand_args *args, int32_t ith, int32_t nth) {
    int64_t r, end;
    tamis_slice(args->rows.count, ith, nth, &r, &end);
    for (; r < end; r++) {
        expand_row(args, r);
    }
}
