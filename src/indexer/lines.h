/* SPDX-License-Identifier: MIT */
/*
 * lines.h: who uses a plan's lines.
 *
 * In the split form rows' scores wait in lines for their merge; whole runs use the same lines, one
 * a slice. A layer whose scores lie there keeps the lines until every slice has merged, and nobody
 * may write them before: a host that forgets a barrier is refused, not served another layer's
 * scores.
 */
#ifndef TAMIS_INDEXER_LINES_H
#define TAMIS_INDEXER_LINES_H

#include "indexer/layer.h"

/* A slice begins to score a layer's rows; *word goes to tamis_lines_scored when it is done. */
tamis_status tamis_lines_claim(const tamis_layer *layer, int32_t ith, int32_t nth, uint64_t *word,
                               tamis_error *error);
void tamis_lines_scored(tamis_plan *plan, int32_t ith, uint64_t word);

/* A slice begins to merge: every slice of this layer has scored, cut the same. */
tamis_status tamis_lines_merge(const tamis_layer *layer, int32_t ith, int32_t nth, uint64_t *word,
                               tamis_error *error);
void tamis_lines_merged(tamis_plan *plan, int32_t ith, uint64_t word);

/* A slice begins and ends a whole run. */
tamis_status tamis_lines_enter(tamis_plan *plan, int32_t ith, tamis_error *error);
void tamis_lines_leave(tamis_plan *plan, int32_t ith);

#endif
