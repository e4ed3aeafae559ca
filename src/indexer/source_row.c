/* SPDX-License-Identifier: MIT */
/*
 * source_row.c: the first level for one row. Every one of the best topk positions lies in one of
 * the best topk blocks (docs/numerics.md), so a long row's scores need not be kept: its own
 * selection is a consumer's over those blocks. They are among the published ones when more than
 * topk are published (the pinned block takes a place); otherwise the best topk + 1 are listed from
 * all, one of them pinned.
 */
#include "cache/address.h"
#include "indexer/levels.h"
#include "kernels/rows.h"

static int keeps_scores(const tamis_source_args *one, const tamis_source_work *work) {
    return tamis_row_length(&one->rows, 0) <= work->capacity;
}

static int selects(const tamis_selection *out) {
    return out->positions || out->slots || out->scores || out->counts;
}

void tamis_source_score_row(const tamis_kernels *kernels, const tamis_source_args *one,
                            const tamis_source_work *work, int32_t ith, int32_t nth) {
    tamis_mqa_logits_args score = tamis_score_of_row(one->numerics, &one->k, one->rows, one->query);
    score.block_size = one->block_size;
    if (keeps_scores(one, work)) {
        score.logits = work->scores;
    }
    if (one->blocks || !keeps_scores(one, work)) {
        score.block_max = work->maxima;
    }
    kernels->mqa_logits(&score, ith, nth);
}

/* The best blocks by their maxima, the newest among them: ids to list[width]. */
static void best_blocks(const tamis_kernels *kernels, const tamis_source_args *one,
                        const float *maxima, int32_t *list, int32_t width, int32_t *count) {
    tamis_publish_args publish = {0};
    publish.block_size = one->block_size;
    publish.topk_blocks = width;
    publish.rows = one->rows;
    publish.block_max = maxima;
    publish.blocks = list;
    publish.counts = count;
    kernels->publish(&publish, 0, 1);
}

/* The best topk of the published blocks, to work->list. Returns how many. */
static int64_t best_published(const tamis_kernels *kernels, const tamis_source_args *one,
                              const tamis_source_work *work, int32_t published) {
    tamis_topk_args best = {0};
    int32_t count = 0;
    for (int32_t i = 0; i < published; i++) {
        work->scores[i] = work->maxima[one->blocks[i]];
    }
    best.logits_type = TAMIS_F32;
    best.rows.count = 1;
    best.logits = work->scores;
    best.width = published;
    best.selection.topk = one->selection.topk;
    best.selection.positions = work->list;
    best.selection.counts = &count;
    kernels->topk(&best, 0, 1);
    for (int32_t i = 0; i < count; i++) {
        work->list[i] = one->blocks[work->list[i]];
    }
    return count;
}

static void select_from_blocks(const tamis_kernels *kernels, const tamis_source_args *one,
                               const tamis_source_work *work, int64_t width) {
    tamis_consume_args consume = {0};
    consume.numerics = one->numerics;
    consume.k = one->k;
    consume.rows = one->rows;
    consume.query = one->query;
    consume.block_size = one->block_size;
    consume.width = width;
    consume.blocks = work->list;
    consume.selection = one->selection;
    consume.workspace = work->scratch;
    kernels->consume(&consume, 0, 1);
}

static void select_from_scores(const tamis_kernels *kernels, const tamis_source_args *one,
                               const tamis_source_work *work) {
    tamis_topk_args topk = tamis_topk_of_row(one->rows, one->k.page_size, one->selection,
                                             work->scores, tamis_row_length(&one->rows, 0));
    kernels->topk(&topk, 0, 1);
}

void tamis_source_finish_row(const tamis_kernels *kernels, const tamis_source_args *one,
                             const tamis_source_work *work) {
    int32_t published = 0;
    if (one->blocks) {
        best_blocks(kernels, one, work->maxima, one->blocks, one->topk_blocks, &published);
        if (one->counts) {
            *one->counts = published;
        }
    }
    if (!selects(&one->selection)) {
        return;
    }
    if (keeps_scores(one, work)) {
        select_from_scores(kernels, one, work);
    } else if (one->blocks && one->topk_blocks > one->selection.topk) {
        select_from_blocks(kernels, one, work, best_published(kernels, one, work, published));
    } else {
        int32_t width = one->selection.topk + 1;
        best_blocks(kernels, one, work->maxima, work->list, width, NULL);
        select_from_blocks(kernels, one, work, width);
    }
}
