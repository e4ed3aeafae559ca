/* SPDX-License-Identifier: MIT */
/* bench_report.c: lines of the table for people and the objects of --json. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "bench.h"
#include "command.h"

const char *lists_name(int32_t kind) {
    return kind == LISTS_LOCAL ? "local" : kind == LISTS_RANDOM ? "random" : "-";
}

/* ---- inputs ------------------------------------------------------------------------------------
 */

static void print_inputs(const bench_scene *s) {
    printf("  K rows by exponent span 0 / 1 / 2 / 3: %.3f / %.3f / %.3f / %.3f; negative weights "
           "%.3f\n",
           s->spans[0], s->spans[1], s->spans[2], s->spans[3], s->negative);
    for (int32_t kind = LISTS_LOCAL; kind <= LISTS_RANDOM; kind++) {
        if (!scene_lists(s, kind))
            continue;
        lists_figures f = lists_measure(scene_lists(s, kind), s->shape.rows, s->shape.blocks);
        printf("  %s lists: runs of %.2f blocks", lists_name(kind), f.run);
        if (!isnan(f.kept[2]))
            printf("; kept to row +1 / +4 / +16: %.3f / %.3f / %.3f", f.kept[0], f.kept[1],
                   f.kept[2]);
        printf("\n");
    }
}

void report_shape(const bench_scene *scene, int verbose) {
    const bench_shape *s = &scene->shape;
    printf("\n%s: %s %s, %s positions, %d x %d, top %d of %s blocks of %d; K pool %s MiB%s%s\n",
           s->name, grouped(s->rows),
           s->decode ? (s->rows == 1 ? "request" : "requests") : "rows of one prompt",
           grouped(s->positions), s->heads, s->dim, s->topk, grouped(s->blocks), s->block_size,
           grouped(scene->pool_bytes >> 20), scene->pages_shared ? " (requests share pages)" : "",
           s->huge_pages ? ", huge pages asked for" : "");
    if (verbose)
        print_inputs(scene);
    printf("  %-18s %-6s %-5s %-6s %3s %5s %12s %6s %10s %9s %6s %14s %7s\n", "stage", "lists",
           "cache", "tier", "thr", "timed", "ns/row", "spread", "TSC/pos", "K KB/row", "GB/s",
           "dense ns/row", "ratio");
}

static json_t *number_or_null(double value) {
    return isfinite(value) && value > 0 ? json_real(value) : json_null();
}

static json_t *lists_json(const bench_scene *s, int32_t kind) {
    if (!scene_lists(s, kind))
        return json_null();
    lists_figures f = lists_measure(scene_lists(s, kind), s->shape.rows, s->shape.blocks);
    return json_pack("{s:f, s:o, s:o, s:o}", "run_blocks", f.run, "kept_1",
                     number_or_null(f.kept[0]), "kept_4", number_or_null(f.kept[1]), "kept_16",
                     number_or_null(f.kept[2]));
}

json_t *report_inputs(const bench_scene *s) {
    return json_pack("{s:s, s:[f,f,f,f], s:f, s:I, s:b, s:o, s:o}", "shape", s->shape.name,
                     "k_spans", s->spans[0], s->spans[1], s->spans[2], s->spans[3],
                     "negative_weights", s->negative, "k_pool_bytes", (json_int_t)s->pool_bytes,
                     "pages_shared", s->pages_shared, "local", lists_json(s, LISTS_LOCAL), "random",
                     lists_json(s, LISTS_RANDOM));
}

/* ---- results -----------------------------------------------------------------------------------
 */

static double gigabytes(const bench_result *r) {
    return r->k_bytes / r->own.ns;
}

void report_line(const bench_result *r) {
    printf("  %-18s %-6s %-5s %-6s %3d %5" PRId64 " %12s %5.0f%%", stage_name(r->stage),
           lists_name(r->lists), r->cold ? "cold" : "warm", r->tier, r->threads, r->rows_timed,
           grouped((int64_t)(r->own.ns + 0.5)), 100 * r->own.spread);
    if (r->own.ticks > 0)
        printf(" %10.2f", r->own.ticks / r->positions);
    else
        printf(" %10s", "-");
    if (r->k_bytes > 0)
        printf(" %9.0f %6.2f", r->k_bytes / 1000, gigabytes(r));
    else
        printf(" %9s %6s", "-", "-");
    if (r->dense.ns > 0)
        printf(" %14s %7.2f", grouped((int64_t)(r->dense.ns + 0.5)), r->dense.ns / r->own.ns);
    if (r->topk.ns > 0)
        printf("  topk %.1f%%", 100 * r->topk.ns / r->own.ns);
    if (r->ref.ns > 0)
        printf("  ref/%s %.1f", r->tier, r->ref.ns / r->own.ns);
    if (r->split)
        printf("  score|merge");
    printf("\n");
    fflush(stdout);
}

static void add_timing(json_t *o, const bench_result *r) {
    json_object_set_new(o, "ns_per_row", json_real(r->own.ns));
    json_object_set_new(o, "dense_ns_per_row", number_or_null(r->dense.ns));
    json_object_set_new(o, "ratio", number_or_null(r->dense.ns / r->own.ns));
    json_object_set_new(o, "spread", json_real(r->own.spread));
    json_object_set_new(o, "least_ns_per_row", json_real(r->own.least));
    json_object_set_new(o, "dense_spread",
                        r->dense.ns > 0 ? json_real(r->dense.spread) : json_null());
    json_object_set_new(o, "tsc_cycles_per_position", number_or_null(r->own.ticks / r->positions));
    json_object_set_new(o, "k_bytes_per_row", json_real(r->k_bytes));
    json_object_set_new(o, "gb_per_s", number_or_null(gigabytes(r)));
    json_object_set_new(o, "topk_share", number_or_null(r->topk.ns / r->own.ns));
    json_object_set_new(o, "ref_ns_per_row", number_or_null(r->ref.ns));
    json_object_set_new(o, "ref_ratio", number_or_null(r->ref.ns / r->own.ns));
}

json_t *report_json(const bench_result *r) {
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:i, s:s, s:I, s:I, s:f, s:i}", "shape",
        r->shape->name, "stage", stage_name(r->stage), "backend", "cpu", "tier", r->tier, "rows",
        (json_int_t)r->shape->rows, "positions", (json_int_t)r->shape->positions, "kind",
        r->shape->decode ? "decode" : "prefill", "lists",
        r->lists == LISTS_NONE ? "none" : lists_name(r->lists), "cache", r->cold ? "cold" : "warm",
        "threads", r->threads, "form", r->split ? "score|merge" : "whole", "rows_timed",
        (json_int_t)r->rows_timed, "dense_rows_timed", (json_int_t)r->dense_rows_timed,
        "positions_per_row", r->positions, "repeats", r->repeats);
    add_timing(o, r);
    return o;
}
