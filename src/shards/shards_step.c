/* SPDX-License-Identifier: MIT */
/*
 * shards_step.c: a step of all ranks: what each says of its own part, whether the parts fit
 * together, and the rows.
 *
 * Shards that every rank finds unchanged, byte for byte, were compared before and are not sent
 * again: a decode step then costs one small message.
 */
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "plan/plan.h"
#include "shards/shard.h"
#include "shards/shards.h"

static tamis_status fail_request(tamis_error *error, tamis_status status, const char *array,
                                 int64_t i, const char *required, int64_t found) {
    char argument[60];
    snprintf(argument, sizeof argument, "%s[%lld]", array, (long long)i);
    return tamis_fail(error, status, argument, required, "%lld", (long long)found);
}

static int64_t intervals_of(const tamis_shard *shard) {
    return shard->requests > 0 ? shard->start[shard->requests] : 0;
}

/* ---- this rank's arguments ------------------------------------------------------------------- */

static tamis_status check_shard(const tamis_shards *s, const tamis_shard *shard, int64_t requests,
                                tamis_error *error) {
    const tamis_transport *t = &s->link.transport;
    TAMIS_TRY(tamis_shard_check(shard, error));
    TAMIS_NEED(shard->rank == t->rank, TAMIS_ERROR_SHARD, "shard.rank", "the transport's",
               shard->rank);
    TAMIS_NEED(shard->ranks == t->ranks, TAMIS_ERROR_SHARD, "shard.ranks", "the transport's",
               shard->ranks);
    TAMIS_NEED(shard->block_size == s->block_size, TAMIS_ERROR_SHARD, "shard.block_size",
               "the model's candidate_block_size, or 8", shard->block_size);
    TAMIS_NEED(shard->requests == requests, TAMIS_ERROR_SHARD, "shard.requests",
               "the batch's requests", shard->requests);
    TAMIS_NEED(intervals_of(shard) <= s->max_intervals, TAMIS_ERROR_LIMIT, "shard.start",
               "max_intervals or fewer in all", intervals_of(shard));
    return TAMIS_OK;
}

/* Own positions among the first `visible`, without an index. */
static int64_t count_own(const tamis_shard *s, int64_t request, int64_t visible) {
    int64_t own = 0;
    for (int64_t i = s->start[request]; i < s->start[request + 1]; i++) {
        int64_t from = (int64_t)s->first[i] * s->block_size;
        int64_t to = (int64_t)s->last[i] * s->block_size;
        to = to < visible ? to : visible;
        own += to > from ? to - from : 0;
    }
    return own;
}

/* Rows and page table of a rank belong to the same split, or are refused. */
static tamis_status check_held(const tamis_shards *s, const tamis_shards_batch *b, int k,
                               tamis_error *error) {
    const tamis_batch *batch = &b->batch;
    int paged = s->indexer->k_layout == TAMIS_K_MXFP4_PAGE;
    const int32_t *starts = paged ? NULL : batch->k_start[k];
    int64_t room = INT32_MAX;
    if (paged && batch->tokens > 0) {
        TAMIS_TRY(tamis_batch_check_table(batch, k + 1, error));
        room = batch->page_table_width[k] * s->indexer->page_size;
    }
    TAMIS_NEED(b->held[k] != NULL || batch->requests == 0, TAMIS_ERROR_ARGUMENT, "held",
               "an array for each ratio that selects", k + 1);
    for (int64_t i = 0; i < batch->requests; i++) {
        int64_t own =
            count_own(&b->shard[k], i, tamis_visible(batch->context[i] - 1, (int32_t)k + 1));
        int64_t start = starts ? starts[i] : 0;
        char required[60];
        if (b->held[k][i] != own) {
            snprintf(required, sizeof required, "%lld: the own positions of its shard",
                     (long long)own);
            return fail_request(error, TAMIS_ERROR_LENGTH, "held", i, required, b->held[k][i]);
        }
        if (tamis_new_tokens(batch, i) > 0 && own > room) {
            return fail_request(error, TAMIS_ERROR_LENGTH, "batch.page_table", i,
                                "room for the request's own positions", room);
        }
        if (start < 0 || start > INT32_MAX - own) {
            return fail_request(error, TAMIS_ERROR_LENGTH, "batch.k_start", i,
                                "0 or more, with its positions below 2^31", start);
        }
    }
    return TAMIS_OK;
}

static tamis_status check_own(const tamis_shards *s, const tamis_shards_batch *b,
                              tamis_error *error) {
    TAMIS_NEED(b != NULL, TAMIS_ERROR_ARGUMENT, "batch", "a tamis_shards_batch", 0);
    TAMIS_NEED(b->struct_size == sizeof *b && b->reserved == 0, TAMIS_ERROR_STRUCT_SIZE,
               "batch.struct_size", "the size that tamis_shards_batch_default sets",
               b->struct_size);
    TAMIS_TRY(tamis_batch_check_requests(&b->batch, &s->limits, s->max_rows, error));
    for (int k = 0; k < 2; k++) {
        if (s->selects[k]) {
            TAMIS_TRY(check_shard(s, &b->shard[k], b->batch.requests, error));
            TAMIS_TRY(check_held(s, b, k, error));
        }
    }
    return TAMIS_OK;
}

/* ---- all ranks' shards ----------------------------------------------------------------------- */

static int same_shard(const tamis_shard_copy *copy, const tamis_shard *shard) {
    size_t n = (size_t)intervals_of(shard);
    return copy->shard.requests == shard->requests &&
           (shard->requests == 0 ||
            memcmp(copy->start, shard->start, (size_t)(shard->requests + 1) * 8) == 0) &&
           (n == 0 || (memcmp(copy->first, shard->first, n * 4) == 0 &&
                       memcmp(copy->last, shard->last, n * 4) == 0));
}

static int unchanged(const tamis_shards *s, const tamis_shards_batch *b) {
    int same = s->compared;
    for (int k = 0; k < 2; k++) {
        same = same && (!s->selects[k] || same_shard(&s->copy[k], &b->shard[k]));
    }
    return same;
}

/* Writes the lists of both ratios: intervals a request, then first and last blocks. */
static void write_lists(const tamis_shards *s, const tamis_shards_batch *b, const int64_t most[2]) {
    int32_t *out = (int32_t *)(void *)s->send;
    for (int k = 0; k < 2; k++) {
        const tamis_shard *shard = &b->shard[k];
        int64_t n = s->selects[k] ? intervals_of(shard) : 0;
        if (!s->selects[k]) {
            continue;
        }
        for (int64_t i = 0; i < shard->requests; i++) {
            *out++ = (int32_t)(shard->start[i + 1] - shard->start[i]);
        }
        for (int64_t i = 0; i < most[k]; i++) {
            out[i] = i < n ? shard->first[i] : 0;
            out[most[k] + i] = i < n ? shard->last[i] : 0;
        }
        out += 2 * most[k];
    }
}

/* One ratio's lists in a rank's message, and how far they were read. */
typedef struct reader {
    const int32_t *per_request, *first, *last;
    int64_t at, end, most;
} reader;

static tamis_status fail_block(tamis_error *error, int k, int64_t request, int64_t block,
                               const char *found) {
    char argument[60];
    snprintf(argument, sizeof argument, "shard[%d] request %lld block %lld", k, (long long)request,
             (long long)block);
    return tamis_fail(error, TAMIS_ERROR_SHARD, argument, "one rank that owns it", "%s", found);
}

/* The rank whose next interval begins at `block`, or -1. */
static int32_t next_owner(const reader *readers, int32_t ranks, int64_t block) {
    for (int32_t k = 0; k < ranks; k++) {
        if (readers[k].at < readers[k].end && readers[k].first[readers[k].at] == block) {
            return k;
        }
    }
    return -1;
}

/* Walks a request's blocks from owner to owner. Every rank sees the same and finds the same. */
static tamis_status join_request(reader *readers, int32_t ranks, int k, int64_t request,
                                 int64_t *covered, tamis_error *error) {
    int64_t block = 0;
    for (int32_t i = 0; i < ranks; i++) {
        readers[i].end = readers[i].at + readers[i].per_request[request];
        if (readers[i].per_request[request] < 0 || readers[i].end > readers[i].most) {
            return fail_block(error, k, request, 0, "a message that is none");
        }
    }
    for (int32_t owner; (owner = next_owner(readers, ranks, block)) >= 0;) {
        reader *r = &readers[owner];
        block = r->last[r->at] > block ? r->last[r->at] : block;
        r->at++;
    }
    int64_t left = INT64_MAX; /* the first block of an interval that nobody came to */
    for (int32_t i = 0; i < ranks; i++) {
        const reader *r = &readers[i];
        if (r->at < r->end && r->first[r->at] < left) {
            left = r->first[r->at];
        }
    }
    if (left != INT64_MAX) {
        return left < block ? fail_block(error, k, request, left, "two ranks")
                            : fail_block(error, k, request, block, "no rank");
    }
    *covered = block;
    return TAMIS_OK;
}

/* The ranks' lists in s->receive; covered[k] is what they own together. */
static tamis_status join_lists(const tamis_shards *s, int64_t requests, const int64_t most[2],
                               int64_t bytes, int64_t *const covered[2], tamis_error *error) {
    int32_t ranks = s->link.transport.ranks;
    int64_t offset = 0;
    for (int k = 0; k < 2; k++) {
        reader readers[TAMIS_MAX_RANKS];
        if (!s->selects[k]) {
            continue;
        }
        for (int32_t i = 0; i < ranks; i++) {
            const int32_t *lists = (const int32_t *)(const void *)(s->receive + i * bytes) + offset;
            readers[i] =
                (reader){lists, lists + requests, lists + requests + most[k], 0, 0, most[k]};
        }
        for (int64_t r = 0; r < requests; r++) {
            TAMIS_TRY(join_request(readers, ranks, k, r, &covered[k][r], error));
        }
        offset += requests + 2 * most[k];
    }
    return TAMIS_OK;
}

static tamis_status check_covered(const tamis_shards *s, const tamis_batch *b,
                                  int64_t *const covered[2], tamis_error *error) {
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; s->selects[k] && i < b->requests; i++) {
            int64_t visible = tamis_visible(b->context[i] - 1, (int32_t)k + 1);
            if ((visible + s->block_size - 1) / s->block_size > covered[k][i]) {
                return fail_block(error, k, i, covered[k][i], "no rank");
            }
        }
    }
    return TAMIS_OK;
}

/* Exchanges the lists and joins them into `covered`. All ranks succeed, or none. */
static tamis_status compare_shards(tamis_shards *s, const tamis_shards_batch *b,
                                   const int64_t most[2], int64_t *const covered[2],
                                   tamis_error *error) {
    const tamis_fact facts[] = {{"call", TAMIS_CALL_STEP_END}};
    int64_t bytes = tamis_lists_bytes(s, b->batch.requests, most);
    tamis_status own = TAMIS_OK;
    if (bytes > 0) {
        write_lists(s, b, most);
        own = tamis_link_gather(&s->link, s->send, s->receive, bytes, error);
    }
    if (own == TAMIS_OK) {
        own = join_lists(s, b->batch.requests, most, bytes, covered, error);
    }
    if (own == TAMIS_OK) {
        own = check_covered(s, &b->batch, covered, error);
    }
    s->list_exchanges++;
    return tamis_link_agree(&s->link, own, facts, 1, 1, NULL, error);
}

/* ---- taking over ----------------------------------------------------------------------------- */

static void copy_shard(tamis_shard_copy *copy, const tamis_shard *shard) {
    size_t n = (size_t)intervals_of(shard);
    copy->shard = *shard;
    if (shard->requests > 0) {
        memcpy(copy->start, shard->start, (size_t)(shard->requests + 1) * 8);
    }
    if (n > 0) {
        memcpy(copy->first, shard->first, n * 4);
        memcpy(copy->last, shard->last, n * 4);
    }
    copy->shard.start = copy->start;
    copy->shard.first = copy->first;
    copy->shard.last = copy->last;
    copy->shard.before = copy->before;
    tamis_shard_number(&copy->shard, copy->before);
}

static void fill_row(tamis_shards *s, const tamis_batch *b, int64_t r, int64_t request,
                     int64_t end) {
    int paged = s->indexer->k_layout == TAMIS_K_MXFP4_PAGE;
    s->request[r] = (int32_t)request;
    for (int k = 0; k < 2; k++) {
        int64_t visible = s->selects[k] ? end >> k : 0;
        int32_t start = !paged && visible > 0 && b->k_start[k] ? b->k_start[k][request] : 0;
        s->visible[k][r] = (int32_t)visible;
        s->ks[k][r] = start;
        s->ke[k][r] = start;
        if (visible > 0) {
            s->ke[k][r] += (int32_t)tamis_shard_length(&s->copy[k].shard, request, visible);
        }
        s->max_visible[k] = visible > s->max_visible[k] ? visible : s->max_visible[k];
    }
}

static void fill_rows(tamis_shards *s, const tamis_batch *b) {
    int64_t r = 0;
    s->max_visible[0] = s->max_visible[1] = 0;
    for (int64_t i = 0; i < b->requests; i++) {
        int64_t fresh = tamis_new_tokens(b, i), old = b->context[i] - fresh;
        for (int64_t t = 0; t < fresh; t++, r++) {
            fill_row(s, b, r, i, old + t + 1);
        }
    }
    for (; r < b->padded_rows; r++) {
        fill_row(s, b, r, 0, 0);
    }
    s->rows = r;
    s->requests = b->requests;
    for (int k = 0; k < 2; k++) {
        s->page_table[k] = b->page_table[k];
        s->page_table_stride[k] = b->page_table_stride[k];
        s->page_table_width[k] = b->page_table_width[k];
    }
}

static uint64_t digest_of_batch(const tamis_batch *b) {
    uint64_t state = TAMIS_DIGEST;
    if (b->requests > 0) {
        state = tamis_digest(state, b->context, b->requests * (int64_t)8);
        state = tamis_digest(state, b->query_start, (b->requests + 1) * (int64_t)4);
    }
    return state;
}

/* The first message: the same batch everywhere; whose shards changed, and how long they are. */
static tamis_status agree_on_batch(tamis_shards *s, const tamis_shards_batch *b, tamis_status own,
                                   int *changed, int64_t most[2], tamis_error *error) {
    enum { EQUAL = 5, CHANGED = EQUAL, INTERVALS };
    int64_t told[TAMIS_MAX_RANKS][TAMIS_FACTS];
    tamis_fact facts[TAMIS_FACTS] = {{"call", TAMIS_CALL_STEP}};
    if (own == TAMIS_OK) {
        facts[1] = (tamis_fact){"batch.requests", b->batch.requests};
        facts[2] = (tamis_fact){"batch.tokens", b->batch.tokens};
        facts[3] = (tamis_fact){"batch.padded_rows", b->batch.padded_rows};
        facts[4] =
            (tamis_fact){"batch's contexts and query starts", (int64_t)digest_of_batch(&b->batch)};
        facts[CHANGED].value = !unchanged(s, b);
        for (int k = 0; k < 2; k++) {
            facts[INTERVALS + k].value = s->selects[k] ? intervals_of(&b->shard[k]) : 0;
        }
    }
    TAMIS_TRY(tamis_link_agree(&s->link, own, facts, EQUAL, INTERVALS + 2, told[0], error));
    *changed = 0;
    most[0] = most[1] = 0;
    for (int32_t i = 0; i < s->link.transport.ranks; i++) {
        *changed |= told[i][CHANGED] != 0;
        for (int k = 0; k < 2; k++) {
            int64_t found = told[i][INTERVALS + k];
            found = found < 0 || found > s->max_intervals ? s->max_intervals : found;
            most[k] = found > most[k] ? found : most[k];
        }
    }
    return TAMIS_OK;
}

tamis_status tamis_shards_step(tamis_shards *s, const tamis_shards_batch *b, tamis_error *error) {
    int64_t most[2];
    int64_t *const covered[2] = {s ? s->copy[0].covered : NULL, s ? s->copy[1].covered : NULL};
    int changed;
    TAMIS_NEED(s != NULL, TAMIS_ERROR_ARGUMENT, "shards", "a tamis_shards", 0);
    TAMIS_TRY(agree_on_batch(s, b, check_own(s, b, error), &changed, most, error));
    if (changed) {
        s->compared = 0; /* `covered` is written on the way */
        TAMIS_TRY(compare_shards(s, b, most, covered, error));
        for (int k = 0; k < 2; k++) {
            if (s->selects[k]) {
                copy_shard(&s->copy[k], &b->shard[k]);
            }
        }
        s->compared = 1;
    } else {
        TAMIS_TRY(check_covered(s, &b->batch, covered, error));
    }
    fill_rows(s, &b->batch);
    s->serial++;
    return TAMIS_OK;
}
