/* SPDX-License-Identifier: MIT */
/*
 * agree.c: how ranks find out, before they work and before they write, that all of them can.
 *
 * One message of one size whatever the call and whatever went wrong, so that ranks that are in
 * different calls, or that failed, still meet.
 */
#include "shards/agree.h"

#include <stdio.h>
#include <string.h>

#include "fail.h"

enum { WORDS = TAMIS_FACTS + 2, MESSAGE_MARK = 0x7461 };

typedef struct message {
    int64_t mark; /* and the version: another build's message is not read */
    int64_t status;
    int64_t facts[TAMIS_FACTS];
} message;
_Static_assert(sizeof(message) == WORDS * 8, "messages have no holes");

uint64_t tamis_digest(uint64_t state, const void *bytes, int64_t size) {
    const uint8_t *at = bytes;
    for (int64_t i = 0; i < size; i++) {
        state = (state ^ at[i]) * UINT64_C(0x100000001B3);
    }
    return state;
}

tamis_status tamis_link_check(const tamis_transport *t, tamis_error *error) {
    TAMIS_NEED(t != NULL, TAMIS_ERROR_ARGUMENT, "transport", "a tamis_transport", 0);
    TAMIS_NEED(t->struct_size == sizeof *t, TAMIS_ERROR_STRUCT_SIZE, "transport.struct_size",
               "sizeof(tamis_transport)", t->struct_size);
    TAMIS_NEED(t->reserved == 0, TAMIS_ERROR_STRUCT_SIZE, "transport.reserved", "0", t->reserved);
    TAMIS_NEED(t->ranks >= 1 && t->ranks <= TAMIS_MAX_RANKS, TAMIS_ERROR_LIMIT, "transport.ranks",
               "1 .. 64", t->ranks);
    TAMIS_NEED(t->rank >= 0 && t->rank < t->ranks, TAMIS_ERROR_LIMIT, "transport.rank",
               "0 .. ranks-1", t->rank);
    TAMIS_NEED(t->allgather != NULL, TAMIS_ERROR_ARGUMENT, "transport.allgather", "a function", 0);
    return TAMIS_OK;
}

tamis_status tamis_link_gather(tamis_link *link, const void *send, void *receive, int64_t bytes,
                               tamis_error *error) {
    tamis_transport *t = &link->transport;
    TAMIS_NEED(!link->failed, TAMIS_ERROR_TRANSPORT, "transport.allgather", "no call that failed",
               1);
    int32_t result = t->allgather(t->context, send, receive, bytes);
    link->calls++;
    link->bytes_sent += (uint64_t)bytes;
    link->failed = result != 0;
    if (link->failed && t->leave) {
        t->leave(t->context);
    }
    TAMIS_NEED(result == 0, TAMIS_ERROR_TRANSPORT, "transport.allgather", "0", result);
    return TAMIS_OK;
}

static tamis_status fail_rank(tamis_error *error, int32_t rank, const char *required,
                              const char *found) {
    char argument[60];
    snprintf(argument, sizeof argument, "rank %d", rank);
    return tamis_fail(error, TAMIS_ERROR_RANKS, argument, required, "%s", found);
}

/* Compares with rank 0, not with this rank: so that all ranks find the same. */
static tamis_status compare(const message *all, int32_t ranks, const tamis_fact *facts,
                            int32_t equal, tamis_error *error) {
    char required[128];
    for (int32_t k = 0; k < ranks; k++) {
        if (all[k].mark != all[0].mark) {
            return fail_rank(error, k, "messages of rank 0's version", "another version");
        }
    }
    for (int32_t k = 0; k < ranks; k++) {
        if (all[k].status != TAMIS_OK) {
            return fail_rank(error, k, "no error", tamis_status_text((int32_t)all[k].status));
        }
    }
    for (int32_t i = 0; i < equal; i++) {
        for (int32_t k = 1; k < ranks; k++) {
            if (all[k].facts[i] != all[0].facts[i]) {
                snprintf(required, sizeof required, "the same on all ranks: %lld on rank 0",
                         (long long)all[0].facts[i]);
                return tamis_fail(error, TAMIS_ERROR_RANKS, facts[i].name, required,
                                  "%lld on rank %d", (long long)all[k].facts[i], k);
            }
        }
    }
    return TAMIS_OK;
}

tamis_status tamis_link_agree(tamis_link *link, tamis_status own, const tamis_fact *facts,
                              int32_t equal, int32_t count, int64_t *told, tamis_error *error) {
    _Alignas(64) message mine = {0}, all[TAMIS_MAX_RANKS];
    mine.mark = (int64_t)MESSAGE_MARK << 32 | TAMIS_VERSION_MAJOR << 16 | TAMIS_VERSION_MINOR;
    mine.status = own;
    for (int32_t i = 0; i < count; i++) {
        mine.facts[i] = facts[i].value;
    }
    tamis_status sent =
        tamis_link_gather(link, &mine, all, (int64_t)sizeof mine, own == TAMIS_OK ? error : NULL);
    if (own != TAMIS_OK || sent != TAMIS_OK) {
        return own != TAMIS_OK ? own : sent;
    }
    TAMIS_TRY(compare(all, link->transport.ranks, facts, equal, error));
    for (int32_t k = 0; told && k < link->transport.ranks; k++) {
        memcpy(told + (int64_t)k * TAMIS_FACTS, all[k].facts, sizeof all[k].facts);
    }
    return TAMIS_OK;
}
