/* SPDX-License-Identifier: MIT */
/* step.c: a step's arrays from sequence lengths and query starts (spec 6.1, 6.2). */
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "indexer/indexer.h"
#include "plan/plan.h"

void tamis_batch_default(tamis_batch *batch) {
    memset(batch, 0, sizeof *batch);
    batch->struct_size = (uint32_t)sizeof *batch;
}

static tamis_status fail_request(tamis_error *error, tamis_status status, const char *array,
                                 int64_t i, const char *required, int64_t found) {
    char argument[60];
    snprintf(argument, sizeof argument, "batch.%s[%lld]", array, (long long)i);
    return tamis_fail(error, status, argument, required, "%lld", (long long)found);
}

static tamis_status check_request(const tamis_batch *batch, int64_t i, int64_t max_context,
                                  tamis_error *error) {
    int64_t fresh = tamis_new_tokens(batch, i);
    if (fresh < 0) {
        return fail_request(error, TAMIS_ERROR_ARGUMENT, "query_start", i + 1, "ascending starts",
                            batch->query_start[i + 1]);
    }
    if (batch->context[i] < fresh) {
        return fail_request(error, TAMIS_ERROR_LENGTH, "context", i, "its new tokens or more",
                            batch->context[i]);
    }
    if (batch->context[i] > max_context) {
        return fail_request(error, TAMIS_ERROR_LIMIT, "context", i, "max_context or less",
                            batch->context[i]);
    }
    return TAMIS_OK;
}

/* First K rows of a ratio's requests; NULL, all 0, where K has pages or no layer selects. */
static const int32_t *first_k_rows(const tamis_plan *plan, const tamis_batch *batch, int k) {
    int paged = plan->indexer->k_layout == TAMIS_K_MXFP4_PAGE;
    return paged || !plan->selects[k] ? NULL : batch->k_start[k];
}

tamis_status tamis_batch_check_table(const tamis_batch *batch, int32_t ratio, tamis_error *error) {
    int k = ratio - 1;
    TAMIS_NEED(batch->page_table[k] != NULL, TAMIS_ERROR_ARGUMENT, "batch.page_table",
               "a page table for each ratio that selects", ratio);
    TAMIS_NEED(batch->page_table_width[k] >= 0 && batch->page_table_width[k] <= INT32_MAX,
               TAMIS_ERROR_ARGUMENT, "batch.page_table_width", "0 .. 2147483647",
               batch->page_table_width[k]);
    TAMIS_NEED(batch->requests <= 1 || batch->page_table_stride[k] >= batch->page_table_width[k],
               TAMIS_ERROR_ARGUMENT, "batch.page_table_stride", "page_table_width or more",
               batch->page_table_stride[k]);
    return TAMIS_OK;
}

/* K of one ratio: wide enough page tables, or starts that leave room for the request's rows. */
static tamis_status check_ratio(const tamis_plan *plan, const tamis_batch *batch, int32_t ratio,
                                tamis_error *error) {
    const tamis_indexer *indexer = plan->indexer;
    int paged = indexer->k_layout == TAMIS_K_MXFP4_PAGE, k = ratio - 1;
    const int32_t *starts = first_k_rows(plan, batch, k);
    int64_t room = 0;
    if (paged && batch->tokens > 0) {
        TAMIS_TRY(tamis_batch_check_table(batch, ratio, error));
        room = batch->page_table_width[k] * indexer->page_size;
    }
    for (int64_t i = 0; i < batch->requests; i++) {
        int64_t visible = tamis_visible(batch->context[i] - 1, ratio);
        int64_t start = starts ? starts[i] : 0;
        if (tamis_new_tokens(batch, i) == 0) {
            continue;
        }
        if (paged && visible > room) {
            return fail_request(error, TAMIS_ERROR_LENGTH, "context", i,
                                "positions that its page table has", batch->context[i]);
        }
        if (start < 0 || start > INT32_MAX - visible) {
            return fail_request(error, TAMIS_ERROR_LENGTH, "k_start", i,
                                "0 or more, with its positions below 2^31", start);
        }
    }
    return TAMIS_OK;
}

tamis_status tamis_batch_check_fields(const tamis_batch *b, int64_t max_requests, int64_t max_rows,
                                      tamis_error *error) {
    TAMIS_NEED(b->struct_size == sizeof *b, TAMIS_ERROR_STRUCT_SIZE, "batch.struct_size",
               "the size that tamis_batch_default sets", b->struct_size);
    TAMIS_NEED(b->requests >= 0 && b->requests <= max_requests, TAMIS_ERROR_LIMIT, "batch.requests",
               "0 .. max_requests", b->requests);
    TAMIS_NEED(b->tokens >= 0 && b->tokens <= max_rows, TAMIS_ERROR_LIMIT, "batch.tokens",
               "0 .. the plan's rows", b->tokens);
    TAMIS_NEED(b->padded_rows >= 0 && b->padded_rows <= max_rows, TAMIS_ERROR_LIMIT,
               "batch.padded_rows", "0 .. the plan's rows", b->padded_rows);
    TAMIS_NEED(b->padded_rows == 0 || b->padded_rows >= b->tokens, TAMIS_ERROR_ARGUMENT,
               "batch.padded_rows", "tokens or more, or 0", b->padded_rows);
    TAMIS_NEED(b->requests == 0 || (b->context && b->query_start), TAMIS_ERROR_ARGUMENT,
               "batch.context", "arrays of context and query_start", 0);
    TAMIS_NEED(b->requests > 0 || b->tokens == 0, TAMIS_ERROR_ARGUMENT, "batch.tokens",
               "0 without requests", b->tokens);
    return TAMIS_OK;
}

tamis_status tamis_batch_check_requests(const tamis_batch *b, const tamis_plan_limits *limits,
                                        int64_t max_rows, tamis_error *error) {
    TAMIS_TRY(tamis_batch_check_fields(b, limits->max_requests, max_rows, error));
    if (b->requests > 0) {
        TAMIS_NEED(b->query_start[0] == 0, TAMIS_ERROR_ARGUMENT, "batch.query_start[0]", "0",
                   b->query_start[0]);
        TAMIS_NEED(b->query_start[b->requests] == b->tokens, TAMIS_ERROR_ARGUMENT,
                   "batch.query_start[requests]", "tokens", b->query_start[b->requests]);
    }
    for (int64_t i = 0; i < b->requests; i++) {
        TAMIS_TRY(check_request(b, i, limits->max_context, error));
    }
    return TAMIS_OK;
}

static tamis_status check_batch(const tamis_plan *plan, const tamis_batch *b, tamis_error *error) {
    TAMIS_TRY(tamis_batch_check_requests(b, &plan->limits, plan->max_rows, error));
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        if (plan->selects[ratio - 1]) {
            TAMIS_TRY(check_ratio(plan, b, ratio, error));
        }
    }
    return TAMIS_OK;
}

/* Rows of request i from row r on. */
static int64_t fill_request(tamis_plan *plan, const tamis_batch *batch, int64_t i, int64_t r) {
    int64_t fresh = tamis_new_tokens(batch, i), first = batch->context[i] - fresh;
    int32_t start[2];
    for (int k = 0; k < 2; k++) {
        const int32_t *starts = first_k_rows(plan, batch, k);
        start[k] = starts ? starts[i] : 0;
    }
    for (int64_t t = 0; t < fresh; t++, r++) {
        int64_t end = first + t + 1; /* tokens up to and with this one */
        plan->token[r] = batch->query_start[i] + (int32_t)t;
        plan->request[r] = (int32_t)i;
        plan->ks[0][r] = start[0];
        plan->ke[0][r] = start[0] + (int32_t)end;
        plan->ks[1][r] = start[1];
        plan->ke[1][r] = start[1] + (int32_t)(end >> 1);
    }
    int64_t last = batch->context[i];
    for (int k = 0; fresh > 0 && k < 2; k++) {
        int64_t visible = last >> k;
        plan->counts.max_visible[k] =
            visible > plan->counts.max_visible[k] ? visible : plan->counts.max_visible[k];
    }
    return r;
}

static void fill_rows(tamis_plan *plan, const tamis_batch *batch) {
    tamis_step_counts *counts = &plan->counts;
    int64_t r = 0, threshold = 1 + plan->limits.draft_tokens;
    memset(counts, 0, sizeof *counts);
    for (int prefill = 0; prefill < 2; prefill++) {
        for (int64_t i = 0; i < batch->requests; i++) {
            if ((tamis_new_tokens(batch, i) > threshold) == prefill) {
                r = fill_request(plan, batch, i, r);
            }
        }
        *(prefill ? &counts->prefill_rows : &counts->decode_rows) =
            prefill ? r - counts->decode_rows : r;
    }
    for (; r < batch->padded_rows; r++) {
        plan->token[r] = (int32_t)r;
        plan->request[r] = 0;
        plan->ks[0][r] = plan->ke[0][r] = plan->ks[1][r] = plan->ke[1][r] = 0;
    }
    counts->rows = r;
    counts->requests = batch->requests;
}

tamis_status tamis_step_make(tamis_plan *plan, const tamis_batch *batch, tamis_step *step,
                             tamis_error *error) {
    TAMIS_NEED(plan != NULL, TAMIS_ERROR_ARGUMENT, "plan", "a plan", 0);
    TAMIS_NEED(batch != NULL, TAMIS_ERROR_ARGUMENT, "batch", "a tamis_batch", 0);
    TAMIS_NEED(step != NULL, TAMIS_ERROR_ARGUMENT, "step", "a tamis_step", 0);
    TAMIS_TRY(check_batch(plan, batch, error));
    fill_rows(plan, batch);
    plan->counts.serial = ++plan->serial;
    atomic_store(&plan->stamp.opened, 0);
    atomic_store(&plan->stamp.closed, 0);
    atomic_store(&plan->owner, 0);
    for (int32_t i = 0; i < plan->limits.threads; i++) { /* claims count from 0 again */
        atomic_store(&plan->scored[i], 0);
        atomic_store(&plan->merged[i], 0);
    }
    atomic_fetch_add(&plan->totals.steps, 1);
    memset(step, 0, sizeof *step);
    step->struct_size = (uint32_t)sizeof *step;
    step->nonce = plan->nonce;
    step->serial = plan->serial;
    step->plan = plan;
    step->counts = &plan->counts;
    step->token = plan->token;
    step->request = plan->request;
    for (int k = 0; k < 2; k++) {
        step->ks[k] = plan->ks[k];
        step->ke[k] = plan->ke[k];
        step->page_table[k] = batch->page_table[k];
        step->page_table_stride[k] = batch->page_table_stride[k];
        step->page_table_width[k] = batch->page_table_width[k];
    }
    return TAMIS_OK;
}

int32_t tamis_step_is_short(const tamis_step *step, int32_t ratio, int32_t topk) {
    /* A step on a device has no host plan, and its counts are not the host's to read. */
    return step && step->plan && (ratio == 1 || ratio == 2) &&
           step->counts->max_visible[ratio - 1] <= topk;
}
