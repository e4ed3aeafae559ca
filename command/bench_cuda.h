/* SPDX-License-Identifier: MIT */
/* bench_cuda.h: `tamis bench --backend cuda`. */
#ifndef TAMIS_COMMAND_BENCH_CUDA_H
#define TAMIS_COMMAND_BENCH_CUDA_H

#include "bench.h"

/* source and consume of the chosen stages, on every shape. */
int bench_cuda(const bench_options *options, const bench_shape *shapes, int count);

#endif
