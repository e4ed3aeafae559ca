/* SPDX-License-Identifier: MIT */
/*
 * common.cuh: what every kernel shares. Arguments are the public structs, by value; arrays they
 * point to lie on the device, so nothing in them was checked: lengths and block ids are clamped
 * here, page ids are trusted (spec 7.7).
 */
#ifndef TAMIS_CUDA_COMMON_CUH
#define TAMIS_CUDA_COMMON_CUH

#include <tamis/tamis.h>

#include "cache/address.h"
#include "format/dot.h"
#include "kernels/order.h"
#include "tile_args.h"

namespace tamis {

constexpr unsigned kAll = 0xFFFFFFFFu;

/* What a kernel that is launched early (launch.h) calls first: it sees nothing of the kernel before
 * it until that has ended, for which it waits here. */
__device__ inline void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Once every CTA has called it, one that is launched early may come to wait. */
__device__ inline void let_next_kernel_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* One row's interval of K, inside what K holds. */
struct Row {
    int64_t start, length;
    const int32_t *pages;
};

__device__ inline int64_t positions_of(const tamis_rows &rows, const tamis_k_cache &k) {
    return k.layout == TAMIS_K_MXFP4_PAGE ? rows.page_table_width * k.page_size : k.size;
}

__device__ inline int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

/* The sum of x over the lanes up to this one. Whole warp. */
template <class T> __device__ inline T sum_to_lane(T x) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const T other = __shfl_up_sync(kAll, x, i);
        x += lane >= i ? other : 0;
    }
    return x;
}

/* Which of rows.requests row r is of. */
__device__ inline int64_t request_of(const tamis_rows &rows, int64_t r) {
    return clamp(rows.request ? rows.request[r] : 0, 0, rows.requests - 1);
}

/* Row r's part of the page table, NULL where there is none. */
__device__ inline const int32_t *pages_of(const tamis_rows &rows, int64_t r) {
    return rows.page_table ? rows.page_table + request_of(rows, r) * rows.page_table_stride
                           : nullptr;
}

/* The interval of row r, clamped to `limit` positions. */
__device__ inline Row row_of(const tamis_rows &rows, int64_t r, int64_t limit) {
    Row row;
    row.start = clamp(rows.ks ? rows.ks[r] : 0, 0, limit);
    row.length = clamp(rows.ke[r], row.start, limit) - row.start;
    row.pages = pages_of(rows, r);
    return row;
}

/* The rows first .. end - 1 that a kernel does, and where their block maxima lie. */
struct TileRows {
    int64_t first, end;
    const uint32_t *at;
};

__device__ inline TileRows rows_of(const tamis_row_tile &tile, int64_t count) {
    if (tile.starts == nullptr) {
        return {0, count, nullptr};
    }
    return {tile.starts[tile.index], tile.starts[tile.index + 1], tile.at};
}

/* The same of scores; a row's line begins `stride` floats after the one before. */
struct ScoreRows {
    int64_t first, end, stride;

    __device__ int64_t line(int64_t r) const {
        return (r - first) * stride;
    }
};

__device__ inline ScoreRows rows_of(const tamis_score_tile &tile, int64_t count, int64_t stride) {
    if (tile.routes == nullptr) {
        return {0, count, stride};
    }
    if (tile.both && tile.routes->listed && tile.routes->longest == 0) {
        return {0, 0, 0};
    }
    const uint32_t rows = (uint32_t)count;
    const uint32_t own = tamis_score_stride(tile.routes->longest, tile.stride);
    const uint32_t each =
        tamis_score_rows(rows, own, tamis_score_room(&tile, tile.routes->decoded));
    const uint64_t first = min((uint64_t)tile.index * each, (uint64_t)rows);
    return {(int64_t)first, (int64_t)min(first + each, (uint64_t)rows), (int64_t)own};
}

/* Row r's line of what begins at `maxima`. */
template <class T>
__device__ inline T *maxima_of_row(T *maxima, int64_t stride, const uint32_t *at, int64_t r) {
    return maxima + (at ? (int64_t)at[r] * (TAMIS_MAXIMA_UNIT / 4) : r * stride);
}

/* K of an absolute position. 32-bit division: positions are below 2^31. */
__device__ inline tamis_k_row key_at(const tamis_k_cache &k, const int32_t *pages,
                                     int64_t position) {
    if (k.layout != TAMIS_K_MXFP4_PAGE) {
        return tamis_k_at_slot(&k, position);
    }
    uint32_t size = (uint32_t)k.page_size, p = (uint32_t)position, place = p % size;
    uint8_t *page = k.codes + pages[p / size] * k.stride;
    tamis_k_row row;
    row.codes = page + (int64_t)place * (k.head_dim / 2);
    row.scales = page + (int64_t)size * (k.head_dim / 2) + place * (k.head_dim / 32);
    return row;
}

/* Four bytes at any alignment. */
__device__ inline uint32_t load32(const uint8_t *p) {
    if (((uintptr_t)p & 3) == 0) {
        return __ldg((const uint32_t *)p);
    }
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The scale bytes of a row as one word: groups in bytes 0 .. GROUPS-1, zeros above. */
template <int GROUPS> __device__ inline uint32_t load_scales(const uint8_t *p) {
    return GROUPS == 4 ? load32(p) : (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

/* The score that a key of order.h stands for. */
__device__ inline float score_of_key(uint32_t key) {
    if (key == 0) {
        return __uint_as_float(TAMIS_NAN_BITS);
    }
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

} // namespace tamis

#endif
