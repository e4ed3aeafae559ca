/* SPDX-License-Identifier: MIT */
/* pool.h: a small thread pool, for programs that have none of their own. */
#ifndef TAMIS_POOL_H
#define TAMIS_POOL_H

#include <tamis/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Owned by one thread: only the creator calls run and destroy. A child of fork has none of the
 * threads and must not use the pool, nor destroy it. */
typedef struct tamis_pool tamis_pool;

/*
 * Makes a pool of `threads` (1..1024), the calling thread among them; it starts threads - 1.
 * Errors: TAMIS_ERROR_ARGUMENT; TAMIS_ERROR_MEMORY, also when a thread cannot be started. On error
 * *pool is NULL.
 */
TAMIS_API tamis_status tamis_pool_create(int32_t threads, tamis_pool **pool, tamis_error *error);
TAMIS_API void tamis_pool_destroy(tamis_pool *pool); /* joins the threads; NULL is fine */

/* As many as it was made with, the caller among them: nth of a run. */
TAMIS_API int32_t tamis_pool_threads(const tamis_pool *pool);

/* Calls work(context, ith, nth) once for every ith < nth = threads and returns when all are done.
 */
TAMIS_API void tamis_pool_run(tamis_pool *pool,
                              void (*work)(void *context, int32_t ith, int32_t nth), void *context);

#ifdef __cplusplus
}
#endif
#endif
