/* SPDX-License-Identifier: MIT */
/* counting.c: the allocator's entry points, counted and passed on to glibc's own. */
#define _GNU_SOURCE /* syscall, the __libc entry points' names */
#include "counting.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__GLIBC__) && !TESTS_UNDER_SANITIZER

static _Atomic int64_t calls;
static _Atomic int counting;

void counting_begin(void) {
    counting = 1;
}
void counting_end(void) {
    counting = 0;
}
void counting_reset(void) {
    calls = 0;
}
int64_t counting_calls(void) {
    return calls;
}
int counting_works(void) {
    void *volatile proof;
    counting_begin();
    proof = malloc(64);
    counting_end();
    free(proof);
    return calls > 0;
}

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

#else

void counting_begin(void) {
}
void counting_end(void) {
}
void counting_reset(void) {
}
int64_t counting_calls(void) {
    return 0;
}
int counting_works(void) {
    return 0;
}

#endif
