/* SPDX-License-Identifier: MIT */
/* fatbin.c: the compiled kernels as bytes of the library; none in a build without nvcc. */
#include <stddef.h>

#include "kernels/cuda/backend.h"

#ifdef TAMIS_CUDA_FATBIN
__asm__(".pushsection .rodata, \"a\", %progbits\n"
        ".balign 64\n"
        ".globl tamis_cuda_fatbin\n"
        ".hidden tamis_cuda_fatbin\n"
        "tamis_cuda_fatbin:\n"
        ".incbin \"" TAMIS_CUDA_FATBIN "\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const unsigned char tamis_cuda_fatbin[] __attribute__((visibility("hidden")));
const void *const tamis_cuda_image = tamis_cuda_fatbin;
const int32_t tamis_cuda_toolkit = TAMIS_CUDA_TOOLKIT;
#else
const void *const tamis_cuda_image = NULL;
const int32_t tamis_cuda_toolkit = 0;
#endif

int32_t tamis_cuda_built(void) {
    return tamis_cuda_toolkit;
}
