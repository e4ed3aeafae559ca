/* SPDX-License-Identifier: MIT */
/* listed.cuh: what selects and what scores know of a row's listed blocks, and a row's output. */
#ifndef TAMIS_CUDA_LISTED_CUH
#define TAMIS_CUDA_LISTED_CUH

#include "common.cuh"

namespace tamis {

constexpr int kBlock = 8; /* positions of a block */

/* A row's listed blocks. PAGE, ks NULL: what the launcher asks of fast kernels. */
struct Listed {
    const int32_t *blocks, *physical, *pages;
    int32_t count, length;
    uint32_t page_shift; /* log2 of the blocks of a page */
};

/* Entry `rank` of row r's selection. */
__device__ inline void write_entry(const tamis_selection &out, int64_t r, int64_t rank,
                                   int64_t position, int64_t slot, float score) {
    if (out.positions) {
        out.positions[r * out.positions_stride + rank] = (int32_t)position;
    }
    if (out.slots) {
        out.slots[r * out.slots_stride + rank] = slot;
    }
    if (out.scores) {
        out.scores[r * out.scores_stride + rank] = score;
    }
}

} // namespace tamis

#endif
