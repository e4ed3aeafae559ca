/* SPDX-License-Identifier: MIT */
/* check_report.c: findings told as text and as JSON. A list's first bad row is told in full. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "check.h"

static int32_t list_total(const check_state *c) {
    return c->judge.trace->layer_count + 1;
}

static int is_blocks(const check_state *c, int32_t list) {
    return list == c->judge.trace->layer_count;
}

static const finding *finding_at(const check_state *c, int64_t sample, int32_t list) {
    return &c->findings[sample * list_total(c) + list];
}

/* The list was judged, as the result holds it. */
static int is_judged(const check_state *c, int32_t list) {
    if (is_blocks(c, list))
        return c->judge.blocks != NULL;
    return c->judge.trace->layers[list].present && c->judge.selected[list];
}

/* The list has figures: the oracle computed it. */
static int is_computed(const check_state *c, int32_t list) {
    return c->tallies[list].full > 0 || is_judged(c, list);
}

static void list_name(const check_state *c, int32_t list, char *text, size_t size) {
    if (is_blocks(c, list))
        snprintf(text, size, "blocks");
    else
        snprintf(text, size, "layer %d", (int)c->judge.trace->layers[list].layer);
}

static const char *verdict_word(int32_t verdict) {
    static const char *const words[] = {"good", "tie order only", "rounding only", "wrong"};
    return words[verdict];
}

static void class_words(uint32_t classes, char *text, size_t size) {
    size_t at = 0;
    text[0] = 0;
    for (int32_t k = 1; k < CLASSES; k++)
        if (classes & 1u << k)
            at += (size_t)snprintf(text + at, size - at, "%s%s", at ? ", " : "", numerics_name(k));
}

/* ---- text -------------------------------------------------------------------------------------
 */

static void tell_finding(const check_state *c, int64_t sample, int32_t list, const char *name) {
    const finding *f = finding_at(c, sample, list);
    char classes[64];
    class_words(f->classes, classes, sizeof classes);
    if (f->rank < 0) {
        printf("%s, row %" PRId64 ": expected count %" PRId64 ", found %" PRId64 ": wrong, %s\n",
               name, c->rows[sample], f->expected, f->found, f->fault);
        return;
    }
    printf("%s, row %" PRId64 ", rank %d: expected %s %" PRId64 " (score %.9g), found %" PRId64
           " (score %.9g): %s%s%s%s%s\n",
           name, c->rows[sample], (int)f->rank, is_blocks(c, list) ? "block" : "position",
           f->expected, (double)f->expected_score, f->found, (double)f->found_score,
           verdict_word(f->verdict), f->fault ? ", " : "", f->fault ? f->fault : "",
           classes[0] ? ": what the class selects: " : "", classes);
}

/* The first bad row of a list in full, the rest as counts. */
static void tell_list(const check_state *c, int32_t list) {
    int64_t bad[VERDICT_WRONG + 1] = {0}, first[VERDICT_WRONG + 1] = {0}, followed = 0;
    char name[32];
    list_name(c, list, name, sizeof name);
    for (int64_t i = c->sampled - 1; i >= 0; i--) {
        const finding *f = finding_at(c, i, list);
        bad[f->verdict]++;
        first[f->verdict] = i;
        followed += f->followed;
    }
    for (int32_t v = VERDICT_WRONG; v > VERDICT_GOOD; v--)
        if (bad[v]) {
            tell_finding(c, first[v], list, name);
            break;
        }
    if (bad[VERDICT_GOOD] < c->sampled)
        printf("%s: of %" PRId64 " rows %" PRId64 " wrong, %" PRId64 " rounding only, %" PRId64
               " tie order only\n",
               name, c->sampled, bad[VERDICT_WRONG], bad[VERDICT_ROUNDING], bad[VERDICT_TIES]);
    if (followed)
        printf("%s: %" PRId64 " rows are judged by the result's own blocks, which differ\n", name,
               followed);
}

static double share(int64_t part, int64_t whole) {
    return whole ? (double)part / (double)whole : 1.0;
}

static const char *role_word(const check_state *c, int32_t list) {
    return is_blocks(c, list) ? "published"
                              : tamis_role_name(c->judge.trace->layers[list].role.role);
}

static void tell_class(const check_state *c, int32_t list, int k) {
    const tally *t = &c->tallies[list];
    char name[32];
    list_name(c, list, name, sizeof name);
    printf("%-9s  %-9s  %-8s  %9.6f  %9.6f\n", name, role_word(c, list),
           k ? numerics_name(k) : "result", share(t->common[k], t->selected),
           share(t->recalled[k], t->full));
}

static void tell_classes(const check_state *c) {
    printf("%-9s  %-9s  %-8s  %9s  %9s\n", "list", "role", "class", "overlap", "recall");
    for (int32_t list = 0; list < list_total(c); list++)
        for (int k = 0; k < CLASSES && is_computed(c, list); k++)
            if (k || is_judged(c, list))
                tell_class(c, list, k);
    printf("overlap: share of the exact selection that the class selects too; recall: share of the "
           "layer's\ntrue full top-k inside the selection, or inside the published blocks\n");
}

static void tell_missing(const check_state *c) {
    const tamis_trace *trace = c->judge.trace;
    for (int32_t i = 0; i < trace->layer_count; i++) {
        if (!trace->layers[i].present)
            printf("layer %d: absent from the trace\n", (int)trace->layers[i].layer);
        else if (!c->judge.selected[i])
            printf("layer %d: not in the result\n", (int)trace->layers[i].layer);
    }
    if (!c->judge.blocks && trace->model.candidate_source_layer_id >= 0)
        printf("blocks: not in the result\n");
}

static void last_line(const check_state *c, char *text, size_t size) {
    switch (c->verdict) {
    case VERDICT_GOOD:
        snprintf(text, size, "%s", numerics_name(c->judge.numerics));
        return;
    case VERDICT_ROUNDING:
        snprintf(text, size, "rounding only (%s)", c->rounding);
        return;
    default:
        snprintf(text, size, "%s", c->verdict == VERDICT_WRONG ? "WRONG" : "tie order only");
    }
}

void check_report_text(const check_state *c) {
    char line[96];
    tell_missing(c);
    if (is_judged(c, c->judge.trace->layer_count))
        tell_list(c, c->judge.trace->layer_count);
    for (int32_t list = 0; list < c->judge.trace->layer_count; list++)
        if (is_judged(c, list))
            tell_list(c, list);
    tell_classes(c);
    last_line(c, line, sizeof line);
    if (c->backend)
        printf("selected by %s\n", c->machine);
    printf("%" PRId64 " of %" PRId64 " rows recomputed\n", c->sampled, c->judge.trace->rows);
    printf("check: %s, %" PRId64 " rows x %d layers\n", line, c->sampled, (int)c->layers);
}

/* ---- JSON -------------------------------------------------------------------------------------
 */

static json_t *score_json(float score) {
    if (isfinite(score))
        return json_real((double)score);
    return isnan(score) ? json_null() : json_string(score > 0 ? "inf" : "-inf");
}

static json_t *finding_json(const check_state *c, int64_t sample, int32_t list) {
    const finding *f = finding_at(c, sample, list);
    char name[32], classes[64];
    list_name(c, list, name, sizeof name);
    class_words(f->classes, classes, sizeof classes);
    return json_pack("{s:s, s:I, s:s, s:s?, s:s?, s:b, s:i, s:I, s:I, s:o, s:o}", "list", name,
                     "row", (json_int_t)c->rows[sample], "verdict", verdict_word(f->verdict),
                     "fault", f->fault, "classes", classes[0] ? classes : NULL, "followed_blocks",
                     (int)f->followed, "rank", (int)f->rank, "expected", (json_int_t)f->expected,
                     "found", (json_int_t)f->found, "expected_score", score_json(f->expected_score),
                     "found_score", score_json(f->found_score));
}

static json_t *class_json(const check_state *c, int32_t list, int k) {
    const tally *t = &c->tallies[list];
    char name[32];
    list_name(c, list, name, sizeof name);
    return json_pack("{s:s, s:s, s:s, s:f, s:f}", "list", name, "role", role_word(c, list), "class",
                     k ? numerics_name(k) : "result", "overlap", share(t->common[k], t->selected),
                     "recall", share(t->recalled[k], t->full));
}

void check_report_json(const check_state *c) {
    char line[96];
    json_t *findings = json_array(), *classes = json_array();
    for (int32_t list = 0; list < list_total(c); list++) {
        for (int64_t i = 0; i < c->sampled; i++)
            if (finding_at(c, i, list)->verdict != VERDICT_GOOD)
                json_array_append_new(findings, finding_json(c, i, list));
        for (int k = 0; k < CLASSES && is_computed(c, list); k++)
            if (k || is_judged(c, list))
                json_array_append_new(classes, class_json(c, list, k));
    }
    last_line(c, line, sizeof line);
    print_json(json_pack("{s:o, s:o, s:s?, s:s?, s:s, s:s, s:I, s:I, s:i, s:o, s:o}", "trace",
                         json_text(c->judge.trace->path), "result",
                         json_text(c->backend ? NULL : c->result), "backend", c->backend,
                         "selected_by", c->machine, "numerics", numerics_name(c->judge.numerics),
                         "verdict", line, "rows", (json_int_t)c->sampled, "rows_in_trace",
                         (json_int_t)c->judge.trace->rows, "layers", (int)c->layers, "differences",
                         findings, "classes", classes));
}
