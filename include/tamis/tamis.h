/* SPDX-License-Identifier: MIT */
/*
 * tamis: which positions of a very long context a model's attention reads.
 *
 * DeepSeek-V4.1 picks them in two levels. One indexer layer, the *candidate source*, scores every
 * visible position and publishes the best blocks of 8 positions per query row; later layers, the
 * *consumers*, score only inside those blocks and take their own best 512. tamis computes both
 * levels exactly: the same bits on every tier, for every batch, chunking and thread count.
 *
 * Read the headers in this order:
 *   status.h   error codes, and what a failed call tells
 *   types.h    views of K, queries and rows; layouts and numerics classes
 *   config.h   a model's settings and the role of each layer
 *   cache.h    index-K memory
 *   kv.h       the bytes of a KV block that index K shares with main K/V
 *   stages.h   every stage as a call of its own, and the two levels composed of them
 *   cuda.h     the same stages on an NVIDIA GPU
 *   pool.h     a small thread pool for programs that have none
 *   plan.h     limits fixed once, steps made inside them
 *   indexer.h  the object an engine holds: requirements, creation, running layers
 *   shards.h   a request's positions spread over ranks
 *
 * Simple use on a CPU, for one layer and all rows:
 *
 *   tamis_backend *backend;
 *   tamis_backend_create("auto", &backend, &error);
 *   tamis_source_args a;
 *   tamis_source_args_default(&a);             fill in K, rows, query, outputs
 *   a.workspace_bytes = tamis_source_workspace(&a, threads);
 *   a.workspace = ...                          the caller owns all memory
 *   tamis_source(backend, &a, 0, 1, &error);   slice 0 of 1: this thread does all of it
 *
 * Objects are immutable after creation and may be shared by threads. No call prints, exits or
 * keeps global state. Calls that take (ith, nth) do one slice of the work, start no threads, and
 * may run at the same time for different ith on the same arguments.
 */
#ifndef TAMIS_TAMIS_H
#define TAMIS_TAMIS_H

#include <tamis/status.h>
#include <tamis/types.h>
#include <tamis/config.h>
#include <tamis/cache.h>
#include <tamis/kv.h>
#include <tamis/stages.h>
#include <tamis/cuda.h>
#include <tamis/pool.h>
#include <tamis/plan.h>
#include <tamis/indexer.h>
#include <tamis/shards.h>

#ifdef __cplusplus
extern "C" {
#endif

/* TAMIS_ABI_VERSION 0: not fixed yet, before the first release. */
#define TAMIS_VERSION_MAJOR 0
#define TAMIS_VERSION_MINOR 1
#define TAMIS_VERSION_PATCH 0
#define TAMIS_ABI_VERSION   0

/* "MAJOR.MINOR.PATCH" of the library that is linked. */
TAMIS_API const char *tamis_version(void);

/* TAMIS_ABI_VERSION of the linked library. Once fixed, it changes when a struct or call does. */
TAMIS_API int32_t tamis_abi_version(void);

#ifdef __cplusplus
}
#endif
#endif
