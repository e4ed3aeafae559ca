/* SPDX-License-Identifier: MIT */
/*
 * cuda.h: every stage on an NVIDIA GPU, from compute capability 8.0 on.
 *
 * The two-level indexer of DeepSeek-V4.1 (docs/spec.md) on the arithmetic of docs/numerics.md. The
 * reference is the CPU's, src/kernels/ref/<stage>.c; tests/cuda holds kernels (src/kernels/cuda)
 * and plans to it byte for byte over the cases of tests/kernels/check_<stage>.c. See docs/cuda.md.
 *
 * The kernels are embedded in the library and the driver is opened at run time: nothing here needs
 * CUDA to link or to load. Arguments are those of stages.h, with every pointer in them (workspace
 * and k_insert's eps, too) a device pointer. A call queues work on the caller's stream, in the
 * caller's current context, and returns: it never waits, allocates or uses the default stream, so
 * that it can be captured in a graph. The bits are those of every other tier.
 *
 * The host checks the fields of the arguments and nothing behind a pointer. Kernels clamp what
 * they find there: lengths and starts to 0 .. what K or its page table holds, and to the width of
 * an output that has one; requests to the page table's rows; positions to the rotary table; block
 * ids that name no visible block are dropped. Page ids and `physical` are trusted.
 *
 * Numerics: TAMIS_NUMERICS_EXACT and TAMIS_NUMERICS_BF16.
 */
#ifndef TAMIS_CUDA_H
#define TAMIS_CUDA_H

#include <tamis/indexer.h>
#include <tamis/stages.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the backend --------------------------------------------------------------------------- */

/*
 * The kernels, loaded into one context. Stages may be called by several threads at once; create,
 * destroy and the memory helpers by one at a time.
 */
typedef struct tamis_cuda tamis_cuda;

/*
 * Loads every kernel into the calling thread's current context (that of a framework, or of the
 * runtime API once it was used) and sets its attributes, so that no later call loads or allocates
 * anything, the first one in a capture included.
 * TAMIS_ERROR_TIER, with what was required and found: a build without CUDA kernels; no driver; a
 * driver too old; no device; a device too old; no current context. TAMIS_ERROR_CUDA: the driver
 * failed a call; the error names it and its result. TAMIS_ERROR_MEMORY, the host's or the device's.
 * TAMIS_ERROR_ARGUMENT: cuda is NULL. On error *cuda is NULL.
 */
TAMIS_API tamis_status tamis_cuda_create(tamis_cuda **cuda, tamis_error *error);

/*
 * The same for a program without a context: retains the primary context of a device (0, 1, ..),
 * makes it the calling thread's current one, and releases it in tamis_cuda_destroy.
 */
TAMIS_API tamis_status tamis_cuda_create_on(int32_t device, tamis_cuda **cuda, tamis_error *error);

/* Unloads the kernels. No stage may be running. NULL is fine. */
TAMIS_API void tamis_cuda_destroy(tamis_cuda *cuda);

/* The CUresult of the last driver call that failed on this object; 0 when none has. */
TAMIS_API int32_t tamis_cuda_result(const tamis_cuda *cuda);

/* The driver's name of a CUresult ("CUDA_ERROR_LAUNCH_FAILED"); "unknown" for what it has none. */
TAMIS_API const char *tamis_cuda_result_text(const tamis_cuda *cuda, int32_t result);

/* ---- what there is ------------------------------------------------------------------------- */

/* The CUDA version whose compiler built the kernels, as 1000 * major + 10 * minor; 0: none are in
 * this build. */
TAMIS_API int32_t tamis_cuda_built(void);

/* The CUDA version that the machine's driver runs, likewise; 0: there is no driver. */
TAMIS_API int32_t tamis_cuda_driver_version(void);

typedef struct tamis_cuda_device {
    char name[96];
    int32_t major, minor; /* compute capability */
    int32_t multiprocessors;
    int32_t supported;    /* 1: the kernels run on it, if the driver is new enough */
    int64_t memory_bytes; /* of the device */
} tamis_cuda_device;

/* Describes up to `capacity` devices and returns how many there are; 0 also without a driver. */
TAMIS_API int32_t tamis_cuda_devices(tamis_cuda_device *devices, int32_t capacity);

/* ---- memory and streams, for programs without a CUDA runtime -------------------------------- */

/*
 * All act in the calling thread's current context. TAMIS_ERROR_ARGUMENT: negative bytes, or no
 * place for the result; TAMIS_ERROR_MEMORY: the device has none left; TAMIS_ERROR_CUDA: the driver
 * failed the call, or work that was queued before (see tamis_cuda_result). On error nothing was
 * made and a pointer out is NULL. 0 bytes copy nothing; NULL is fine to free and to destroy.
 */

/* Device memory, aligned to 256 bytes or more. 0 bytes give NULL. */
TAMIS_API tamis_status tamis_cuda_alloc(const tamis_cuda *cuda, int64_t bytes, void **memory,
                                        tamis_error *error);
TAMIS_API tamis_status tamis_cuda_free(const tamis_cuda *cuda, void *memory, tamis_error *error);

/* Copies are queued on the stream; the host's memory must last until it was synchronised. */
TAMIS_API tamis_status tamis_cuda_copy_in(const tamis_cuda *cuda, void *device, const void *host,
                                          int64_t bytes, void *stream, tamis_error *error);
TAMIS_API tamis_status tamis_cuda_copy_out(const tamis_cuda *cuda, void *host, const void *device,
                                           int64_t bytes, void *stream, tamis_error *error);

/* A stream that does not wait for the default stream. */
TAMIS_API tamis_status tamis_cuda_stream_create(const tamis_cuda *cuda, void **stream,
                                                tamis_error *error);
TAMIS_API tamis_status tamis_cuda_stream_destroy(const tamis_cuda *cuda, void *stream,
                                                 tamis_error *error);
TAMIS_API tamis_status tamis_cuda_stream_sync(const tamis_cuda *cuda, void *stream,
                                              tamis_error *error);

/* Marks in a stream, and the milliseconds between two, which waits for the later one. */
TAMIS_API tamis_status tamis_cuda_event_create(const tamis_cuda *cuda, void **event,
                                               tamis_error *error);
TAMIS_API tamis_status tamis_cuda_event_destroy(const tamis_cuda *cuda, void *event,
                                                tamis_error *error);
TAMIS_API tamis_status tamis_cuda_event_record(const tamis_cuda *cuda, void *event, void *stream,
                                               tamis_error *error);
TAMIS_API tamis_status tamis_cuda_event_elapsed(const tamis_cuda *cuda, void *from, void *to,
                                                float *milliseconds, tamis_error *error);

/* ---- stages -------------------------------------------------------------------------------- */

/*
 * Device bytes that consume, source and dense take as args->workspace (aligned to 64), whatever
 * the rows hold: at most 256 MiB unless one row alone needs more. Rows beyond what fits are done
 * tile after tile. -1 when the arguments are invalid.
 */
TAMIS_API int64_t tamis_cuda_consume_workspace(const tamis_cuda *cuda,
                                               const tamis_consume_args *args);
TAMIS_API int64_t tamis_cuda_source_workspace(const tamis_cuda *cuda,
                                              const tamis_source_args *args);
TAMIS_API int64_t tamis_cuda_dense_workspace(const tamis_cuda *cuda, const tamis_dense_args *args);

/*
 * tamis_cuda_NAME for every NAME of TAMIS_STAGE_LIST: queues the stage on `stream` (a CUstream or
 * cudaStream_t). On an argument's error nothing was queued. Errors of kernels that ran before show
 * up here or at the next synchronisation, as everywhere in CUDA. TAMIS_ERROR_CUDA also when the
 * current context is not the one that the object was created in.
 */
#define TAMIS_CUDA_STAGE_DECLARE(name)                                                             \
    TAMIS_API tamis_status tamis_cuda_##name(const tamis_cuda *cuda,                               \
                                             const tamis_##name##_args *args, void *stream,        \
                                             tamis_error *error);
TAMIS_STAGE_LIST(TAMIS_CUDA_STAGE_DECLARE)
#undef TAMIS_CUDA_STAGE_DECLARE

/* ---- plans --------------------------------------------------------------------------------- */

/*
 * A plan (plan.h) whose arrays lie on the device: steps are made there from lengths that the host
 * need not know, and one captured graph serves steps of any lengths. For an indexer created as
 * usual: its model, settings and layout count, its CPU tier does not. Selections are the CPU's.
 *
 * Differences from a plan on the CPU, none of which a result shows:
 * - Rows stand in the order of the flat batch: token[r] = r.
 * - indexer_sparse_logits "auto" scores listed blocks alone in steps of few rows (docs/cuda.md). In
 *   others the device compares each row's length with a measured crossover, by how many rows the
 *   step has: a captured graph routes by the lengths of its replay.
 * - What only the device knows is guarded there. A consumer whose blocks are missing, of another
 *   step, source, smaller cache or number of rows, or published twice, writes rows of -1 and
 *   nothing else; tamis_cuda_plan_status tells.
 *
 * Used by one thread at a time. Its work is ordered by streams alone: a caller with several orders
 * them.
 */
typedef struct tamis_cuda_plan tamis_cuda_plan;

enum { /* tamis_cuda_plan_status, low 8 bits */
       TAMIS_CUDA_PLAN_GOOD = 0,
       TAMIS_CUDA_PLAN_STALE_BLOCKS = 1,   /* a consumer without its step's blocks */
       TAMIS_CUDA_PLAN_OTHER_ROWS = 2,     /* a layer with rows that are not the step's */
       TAMIS_CUDA_PLAN_PUBLISHED_TWICE = 3 /* two source runs in one step */
};

/* Device bytes of a plan with these limits, at most 256 MiB of them workspace unless one row alone
 * needs more; -1 (and the error) when a limit is invalid. `threads` is not used. */
TAMIS_API int64_t tamis_cuda_plan_bytes(const tamis_indexer *indexer,
                                        const tamis_plan_limits *limits, tamis_error *error);

/*
 * Lays a plan out in device memory aligned to 256 bytes, which it clears on `stream`. The one call
 * that allocates: host memory for the plan and a pinned word for its status. cuda, indexer and
 * memory must outlive it. On error *plan is NULL.
 */
TAMIS_API tamis_status tamis_cuda_plan_create(const tamis_cuda *cuda, const tamis_indexer *indexer,
                                              const tamis_plan_limits *limits, void *memory,
                                              int64_t bytes, void *stream, tamis_cuda_plan **plan,
                                              tamis_error *error);

/* No work of the plan may be running. NULL is fine. */
TAMIS_API void tamis_cuda_plan_destroy(tamis_cuda_plan *plan);

/*
 * Queues the making of a step: a kernel, two for more than 256 rows. Arrays of `batch` lie on the
 * device; requests, tokens and padded_rows are capacities: requests behind the last may have no
 * tokens, and rows that query_start does not reach are padding. Contexts are cut to max_context;
 * starts that do not ascend give padding or rows of some request, never anything out of bounds. The
 * step's arrays and counts lie on the device, its `plan` is NULL, and its counts' serial, not the
 * struct's, is what stamps compare: a replayed graph advances it. Errors as tamis_step_make, as far
 * as no array is read.
 *
 * Lengths are cut to what page_table_width holds, all that the host knows of them: one that is no
 * wider than the step's longest context (the stride may be) lets layers queue less, and "auto" one
 * route alone where no row is beyond its crossover. A graph keeps the width that it was captured
 * with.
 */
TAMIS_API tamis_status tamis_cuda_step_make(tamis_cuda_plan *plan, const tamis_batch *batch,
                                            tamis_step *step, void *stream, tamis_error *error);

/*
 * Queue one layer of the plan's last step; pointers in args are the device's. As tamis_source_run
 * and tamis_consumer_run: the same checks as far as no array is read, the same outputs. On an
 * argument's error nothing was queued. K that the step's rows see must not change between a source
 * and its consumers: they may read it as the source decoded it.
 */
TAMIS_API tamis_status tamis_cuda_source_run(tamis_cuda_plan *plan, const tamis_step *step,
                                             const tamis_layer_args *args, void *stream,
                                             tamis_error *error);
TAMIS_API tamis_status tamis_cuda_consumer_run(tamis_cuda_plan *plan, const tamis_step *step,
                                               const tamis_layer_args *args, void *stream,
                                               tamis_error *error);

/*
 * The first fault since the last clear, as TAMIS_CUDA_PLAN_* | layer << 8, or 0: of all work that
 * has run so far. Reads host memory; waits for nothing.
 */
TAMIS_API uint32_t tamis_cuda_plan_status(const tamis_cuda_plan *plan);
TAMIS_API void tamis_cuda_plan_clear(tamis_cuda_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
