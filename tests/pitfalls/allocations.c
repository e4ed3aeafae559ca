/* SPDX-License-Identifier: MIT */
/*
 * allocations.c: pitfall 28. Servers found hidden allocations outside their memory budget, one per
 * row. The allocator's entry points are interposed and counted: no call allocates, maps or frees.
 */
#define _GNU_SOURCE /* syscall, the __libc entry points' names */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "require.h"
#include "stages.h"
#include "suite.h"

#if defined(__GLIBC__) && !TESTS_UNDER_SANITIZER

static _Atomic int64_t calls;
static _Atomic int counting;

static void count_call(void) {
    if (counting)
        calls++;
}

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *memory);

/* The interposed names must be visible to the dynamic linker. */
#define INTERPOSED __attribute__((visibility("default")))

INTERPOSED void *malloc(size_t size) {
    count_call();
    return __libc_malloc(size);
}
INTERPOSED void *calloc(size_t count, size_t size) {
    count_call();
    return __libc_calloc(count, size);
}
INTERPOSED void *realloc(void *old, size_t size) {
    count_call();
    return __libc_realloc(old, size);
}
INTERPOSED void *memalign(size_t align, size_t size) {
    count_call();
    return __libc_memalign(align, size);
}
INTERPOSED void *aligned_alloc(size_t align, size_t size) {
    count_call();
    return __libc_memalign(align, size);
}
INTERPOSED int posix_memalign(void **memory, size_t align, size_t size) {
    count_call();
    *memory = __libc_memalign(align, size);
    return *memory ? 0 : ENOMEM;
}
INTERPOSED void free(void *memory) {
    count_call();
    __libc_free(memory);
}
INTERPOSED void *mmap(void *address, size_t size, int protection, int flags, int file,
                      off_t offset) {
    count_call();
    return (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}

/* ---- every call, counted ---- */

static const stage *const stages[] = {
    &stage_q_prepare, &stage_k_insert, &stage_k_gather, &stage_mqa_logits,
    &stage_block_max, &stage_publish,  &stage_expand,   &stage_sparse_mqa_logits,
    &stage_topk,      &stage_consume,  &stage_source,   &stage_dense,
};

/* The calls of the trial that runs; the counted ones stand in for them. */
static stage_call *original[2];

static tamis_status counted(int phase, const tamis_backend *backend, const void *args, int32_t ith,
                            int32_t nth, tamis_error *error) {
    counting = 1;
    tamis_status status = original[phase](backend, args, ith, nth, error);
    counting = 0;
    return status;
}
static tamis_status counted_first(const tamis_backend *backend, const void *args, int32_t ith,
                                  int32_t nth, tamis_error *error) {
    return counted(0, backend, args, ith, nth, error);
}
static tamis_status counted_second(const tamis_backend *backend, const void *args, int32_t ith,
                                   int32_t nth, tamis_error *error) {
    return counted(1, backend, args, ith, nth, error);
}

static void count_trial(const tamis_backend *backend, const stage *of, const problem *p,
                        const placement *where) {
    tamis_error error;
    trial t;
    trial_new(&t, where);
    of->build(&t, p);
    original[0] = t.phases[0];
    original[1] = t.phases[1];
    t.phases[0] = counted_first;
    t.phases[1] = original[1] ? counted_second : NULL;
    test_context("pitfall 28: %s, %s, split %d", of->name, p->text, where->split);
    calls = 0;
    trial_run(&t, backend, (slicing){.nth = 3, .poison = 0xA5});
    REQUIRE(calls == 0, "%lld calls of the allocator", (long long)calls);
    t.args.struct_size = 1; /* nor does a call that fails */
    REQUIRE(counted_first(backend, &t.args, 0, 1, &error) == TAMIS_ERROR_STRUCT_SIZE, "was taken");
    REQUIRE(calls == 0, "%lld calls of the allocator on an error", (long long)calls);
    trial_free(&t);
}

static void calls_allocate_nothing(const tamis_backend *backend) {
    void *volatile proof;
    counting = 1;
    proof = malloc(64);
    counting = 0;
    REQUIRE(calls > 0, "test: allocations are not counted");
    free(proof);
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        for (int index = 0; index < stages[i]->cases; index += 3) {
            problem p;
            memset(&p, 0, sizeof p);
            stages[i]->make(&p, index);
            placement where = {.layout = TAMIS_K_MXFP4_PAGE + index % 3, .split = index / 3 % 2};
            count_trial(backend, stages[i], &p, &where);
            problem_free(&p);
        }
}

#else

static void calls_allocate_nothing(const tamis_backend *backend) {
    (void)backend;
    test_skip("the allocator cannot be interposed in this build");
}

#endif

static const suite_test tests[] = {{"28_calls_allocate_nothing", calls_allocate_nothing}};

int main(int argc, char **argv) {
    return suite_main(argc, argv, tests, 1);
}
