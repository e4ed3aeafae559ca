/* SPDX-License-Identifier: MIT */
/*
 * local_group.c: the transport between threads of one process.
 *
 * Ranks post their pointers, meet, copy, and meet again. Only the first meeting may fail: who has
 * passed it will reach the second, so nobody returns while others still read its buffer, and a call
 * succeeds on all ranks or on none.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tamis/shards.h>

#include "fail.h"

typedef struct seat {
    tamis_local_group *group;
    int32_t rank;
} seat;

struct tamis_local_group {
    pthread_mutex_t mutex;
    pthread_cond_t met;
    int64_t timeout_ms, bytes;
    uint64_t meetings;
    int32_t ranks, arrived;
    int broken;
    const uint8_t *send[TAMIS_MAX_RANKS];
    seat seats[TAMIS_MAX_RANKS];
};

static int make_sync(tamis_local_group *group) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) {
        return 0;
    }
    int made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
               pthread_cond_init(&group->met, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return made && pthread_mutex_init(&group->mutex, NULL) == 0;
}

tamis_status tamis_local_group_create(int32_t ranks, int64_t timeout_ms, tamis_local_group **out,
                                      tamis_error *error) {
    TAMIS_NEED(out != NULL, TAMIS_ERROR_ARGUMENT, "group", "a place for the pointer", 0);
    *out = NULL;
    TAMIS_NEED(ranks >= 1 && ranks <= TAMIS_MAX_RANKS, TAMIS_ERROR_ARGUMENT, "ranks", "1 .. 64",
               ranks);
    TAMIS_NEED(timeout_ms >= 0 && timeout_ms <= INT32_MAX, TAMIS_ERROR_ARGUMENT, "timeout_ms",
               "0 .. 2^31-1", timeout_ms);
    tamis_local_group *group = calloc(1, sizeof *group);
    if (group == NULL || !make_sync(group)) {
        free(group);
        return tamis_fail(error, TAMIS_ERROR_MEMORY, "group", "memory", "none");
    }
    group->ranks = ranks;
    group->timeout_ms = timeout_ms;
    for (int32_t k = 0; k < ranks; k++) {
        group->seats[k] = (seat){group, k};
    }
    *out = group;
    return TAMIS_OK;
}

void tamis_local_group_destroy(tamis_local_group *group) {
    if (group != NULL) {
        pthread_cond_destroy(&group->met);
        pthread_mutex_destroy(&group->mutex);
        free(group);
    }
}

static void break_locked(tamis_local_group *group) {
    group->broken = 1;
    pthread_cond_broadcast(&group->met);
}

void tamis_local_group_break(tamis_local_group *group) {
    pthread_mutex_lock(&group->mutex);
    break_locked(group);
    pthread_mutex_unlock(&group->mutex);
}

static struct timespec deadline_of(int64_t timeout_ms) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += (time_t)(timeout_ms / 1000);
    at.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

/* The last to arrive ends the meeting; returns whether this rank was. */
static int arrive(tamis_local_group *group) {
    if (++group->arrived < group->ranks) {
        return 0;
    }
    group->arrived = 0;
    group->meetings++;
    pthread_cond_broadcast(&group->met);
    return 1;
}

/* Meets all ranks, unless the group breaks first or time runs out. Returns whether they met. */
static int meet(tamis_local_group *group) {
    uint64_t before = group->meetings;
    struct timespec deadline = deadline_of(group->timeout_ms);
    if (group->broken) {
        return 0;
    }
    int met = arrive(group);
    while (!met && !group->broken) {
        int late = group->timeout_ms == 0
                       ? pthread_cond_wait(&group->met, &group->mutex)
                       : pthread_cond_timedwait(&group->met, &group->mutex, &deadline);
        met = group->meetings != before;
        if (!met && late == ETIMEDOUT) {
            break_locked(group);
        }
    }
    return met;
}

static void meet_surely(tamis_local_group *group) {
    uint64_t before = group->meetings;
    int met = arrive(group);
    while (!met) {
        pthread_cond_wait(&group->met, &group->mutex);
        met = group->meetings != before;
    }
}

static int32_t gather(void *context, const void *send, void *receive, int64_t bytes) {
    seat *own = context;
    tamis_local_group *group = own->group;
    pthread_mutex_lock(&group->mutex);
    if (group->arrived > 0 && group->bytes != bytes) {
        break_locked(group);
    }
    group->bytes = bytes;
    group->send[own->rank] = send;
    int met = meet(group);
    pthread_mutex_unlock(&group->mutex);
    if (!met) {
        return -1;
    }
    for (int32_t k = 0; k < group->ranks; k++) {
        memcpy((uint8_t *)receive + k * bytes, group->send[k], (size_t)bytes);
    }
    pthread_mutex_lock(&group->mutex);
    meet_surely(group);
    pthread_mutex_unlock(&group->mutex);
    return 0;
}

static void leave(void *context) {
    const seat *own = context;
    tamis_local_group_break(own->group);
}

tamis_status tamis_local_group_transport(tamis_local_group *group, int32_t rank,
                                         tamis_transport *transport, tamis_error *error) {
    TAMIS_NEED(group != NULL, TAMIS_ERROR_ARGUMENT, "group", "a group", 0);
    TAMIS_NEED(transport != NULL, TAMIS_ERROR_ARGUMENT, "transport", "a tamis_transport", 0);
    TAMIS_NEED(rank >= 0 && rank < group->ranks, TAMIS_ERROR_ARGUMENT, "rank", "0 .. ranks-1",
               rank);
    memset(transport, 0, sizeof *transport);
    transport->struct_size = (uint32_t)sizeof *transport;
    transport->rank = rank;
    transport->ranks = group->ranks;
    transport->context = &group->seats[rank];
    transport->allgather = gather;
    transport->leave = leave;
    return TAMIS_OK;
}
