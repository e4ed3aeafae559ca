/* SPDX-License-Identifier: MIT */
/*
 * allocations.c: pitfall 28 among ranks: once a group is made, steps and layers of all of its ranks
 * allocate nothing, refused calls among them. The allocator is interposed and counted while every
 * rank, its pool too, is at work.
 */
#include <pthread.h>

#include "counting.h"
#include "group.h"

enum { RANKS = 3, SKIPPED = 77 };

static pthread_barrier_t begun, counted, done, ended;

static void work(member *m) {
    m->status =
        tamis_shards_init(m->indexer, &m->options, m->memory, m->bytes, &m->shards, &m->error);
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&counted);
    for (int i = 0; i < 3 && m->status == TAMIS_OK; i++) {
        m->status = tamis_shards_step(m->shards, &m->batch, &m->error);
        for (int32_t layer = 0; layer < LAYERS && m->status == TAMIS_OK; layer++) {
            if (layers_selects(layer)) {
                member_layer(m, layer);
            }
        }
    }
    tamis_status right = m->status;
    member_layer(m, LAYER_REUSE); /* refused */
    m->status = right;
    pthread_barrier_wait(&done);
    pthread_barrier_wait(&ended); /* a thread that ends gives memory back */
}

static void *count(void *unused) {
    pthread_barrier_wait(&begun);
    counting_reset();
    counting_begin();
    pthread_barrier_wait(&counted);
    pthread_barrier_wait(&done);
    counting_end();
    pthread_barrier_wait(&ended);
    return unused;
}

static void ranks_allocate_nothing(void **state) {
    static const shape two = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};
    static const request requests[] = {{700, 3}, {131, 20}};
    pthread_t counter;
    (void)state;
    pthread_barrier_init(&begun, NULL, RANKS + 1);
    pthread_barrier_init(&counted, NULL, RANKS + 1);
    pthread_barrier_init(&done, NULL, RANKS + 1);
    pthread_barrier_init(&ended, NULL, RANKS + 1);
    seed(300);
    layers *l = layers_make(two, requests, COUNT(requests));
    tamis_indexer *indexer = group_indexer(l, "auto", RANKS);
    split s = {SPLIT_RANDOM, RANKS, 1, 1};
    group *g = group_make(l, indexer, &s, 2, l->batch.tokens, 5);
    assert_int_equal(pthread_create(&counter, NULL, count, NULL), 0);
    group_each(g, work);
    pthread_join(counter, NULL);
    for (int32_t k = 0; k < RANKS; k++) {
        succeeded(g->member[k].status, &g->member[k].error, __LINE__);
    }
    assert_int_equal(counting_calls(), 0);
    group_free(g);
    tamis_indexer_destroy(indexer);
    release();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_allocate_nothing)};
    if (!counting_works()) {
        printf("SKIPPED: the allocator cannot be interposed in this build\n");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
