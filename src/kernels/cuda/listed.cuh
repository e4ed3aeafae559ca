/* SPDX-License-Identifier: MIT */
/* listed.cuh: what selects and what scores know of a row's listed blocks. */
#ifndef TAMIS_CUDA_LISTED_CUH
#define TAMIS_CUDA_LISTED_CUH

#include <stdint.h>

namespace tamis {

constexpr int kBlock = 8; /* positions of a block */

/* A row's listed blocks. PAGE, ks NULL: what the launcher asks of fast kernels. */
struct Listed {
    const int32_t *blocks, *physical, *pages;
    int32_t count, length;
    uint32_t page_shift; /* log2 of the blocks of a page */
};

} // namespace tamis

#endif
