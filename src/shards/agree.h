/* SPDX-License-Identifier: MIT */
/* agree.h: how ranks find out, before they work and before they write, that all of them can. */
#ifndef TAMIS_SRC_AGREE_H
#define TAMIS_SRC_AGREE_H

#include <tamis/tamis.h>

/* A rank's way to the others, and what went over it. */
typedef struct tamis_link {
    tamis_transport transport;
    uint64_t calls, bytes_sent;
    int failed; /* once, and from then on */
} tamis_link;

/* A number that has to be the same on all ranks, or that they only tell each other. */
typedef struct tamis_fact {
    const char *name;
    int64_t value;
} tamis_fact;

enum { TAMIS_FACTS = 14 }; /* of one agreement, at most */

tamis_status tamis_link_check(const tamis_transport *transport, tamis_error *error);

/* Gathers bytes of every rank: TAMIS_ERROR_TRANSPORT when it failed. */
tamis_status tamis_link_gather(tamis_link *link, const void *send, void *receive, int64_t bytes,
                               tamis_error *error);

/*
 * Every rank brings its status (with its error) and its facts, the first `equal` of which must be
 * the same. Returns OK on all ranks or on none: a rank's own error first. `told`, unless NULL, gets
 * every rank's facts: [ranks][TAMIS_FACTS].
 */
tamis_status tamis_link_agree(tamis_link *link, tamis_status own, const tamis_fact *facts,
                              int32_t equal, int32_t count, int64_t *told, tamis_error *error);

/* FNV-1a over bytes, from `state` (TAMIS_DIGEST at first). */
#define TAMIS_DIGEST UINT64_C(0xCBF29CE484222325)
uint64_t tamis_digest(uint64_t state, const void *bytes, int64_t size);

#endif
