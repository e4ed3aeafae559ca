/* SPDX-License-Identifier: MIT */
/* pool.c: a small thread pool. Workers sleep on one condition between runs; nothing spins. */
#include <pthread.h>
#include <stdlib.h>

#include <tamis/pool.h>

#include "fail.h"

typedef struct worker {
    tamis_pool *pool;
    int32_t ith;
    pthread_t thread;
} worker;

struct tamis_pool {
    pthread_mutex_t mutex;
    pthread_cond_t begin, end;
    void (*work)(void *context, int32_t ith, int32_t nth);
    void *context;
    uint64_t round;  /* counts runs; a worker runs each once */
    int32_t running; /* workers that have not finished this round */
    int32_t threads; /* the caller among them */
    int32_t started; /* workers to join */
    int stop;
    worker workers[]; /* [threads - 1] */
};

static void *work_loop(void *argument) {
    worker *self = argument;
    tamis_pool *pool = self->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (pool->round == seen && !pool->stop) {
            pthread_cond_wait(&pool->begin, &pool->mutex);
        }
        if (pool->stop) {
            break;
        }
        seen = pool->round;
        pthread_mutex_unlock(&pool->mutex);
        pool->work(pool->context, self->ith, pool->threads);
        pthread_mutex_lock(&pool->mutex);
        if (--pool->running == 0) {
            pthread_cond_signal(&pool->end);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

tamis_status tamis_pool_create(int32_t threads, tamis_pool **out, tamis_error *error) {
    TAMIS_NEED(out != NULL, TAMIS_ERROR_ARGUMENT, "pool", "a place for the pointer", 0);
    *out = NULL;
    TAMIS_NEED(threads >= 1 && threads <= 1024, TAMIS_ERROR_ARGUMENT, "threads", "1 .. 1024",
               threads);
    tamis_pool *pool = calloc(1, sizeof *pool + (size_t)(threads - 1) * sizeof *pool->workers);
    if (pool == NULL) {
        return tamis_fail(error, TAMIS_ERROR_MEMORY, "pool", "memory", "none");
    }
    pool->threads = threads;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->begin, NULL);
    pthread_cond_init(&pool->end, NULL);
    for (int32_t i = 0; i < threads - 1; i++) {
        worker *w = &pool->workers[i];
        w->pool = pool;
        w->ith = i + 1;
        if (pthread_create(&w->thread, NULL, work_loop, w) != 0) {
            tamis_pool_destroy(pool);
            return tamis_fail(error, TAMIS_ERROR_MEMORY, "threads", "threads that can be started",
                              "%d of %d", i + 1, threads);
        }
        pool->started++;
    }
    *out = pool;
    return TAMIS_OK;
}

void tamis_pool_destroy(tamis_pool *pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->mutex);
    for (int32_t i = 0; i < pool->started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->begin);
    pthread_cond_destroy(&pool->end);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

int32_t tamis_pool_threads(const tamis_pool *pool) {
    return pool->threads;
}

void tamis_pool_run(tamis_pool *pool, void (*work)(void *context, int32_t ith, int32_t nth),
                    void *context) {
    pthread_mutex_lock(&pool->mutex);
    pool->work = work;
    pool->context = context;
    pool->running = pool->started;
    pool->round++;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->mutex);
    work(context, 0, pool->threads);
    pthread_mutex_lock(&pool->mutex);
    while (pool->running > 0) {
        pthread_cond_wait(&pool->end, &pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
}
