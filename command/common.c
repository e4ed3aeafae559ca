/* SPDX-License-Identifier: MIT */
/* common.c: options, messages and the progress bar that the subcommands share. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "command.h"

void common_defaults(common_options *common) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    *common = (common_options){.threads = online < 1 ? 1 : online > 1024 ? 1024 : (int32_t)online};
}

error_t common_parse(int key, char *arg, struct argp_state *state, common_options *common) {
    switch (key) {
    case OPTION_JSON:
        common->json = 1;
        return 0;
    case OPTION_THREADS:
        common->threads = (int32_t)parse_number(state, "--threads", arg, 1, 1024);
        return 0;
    case OPTION_TIER:
        common->tier = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void usage_error(const struct argp_state *state, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    argp_failure(state, STATUS_BAD, 0, "%s", text);
    exit(STATUS_BAD);
}

int64_t parse_number(const struct argp_state *state, const char *name, const char *arg, int64_t low,
                     int64_t high) {
    char *end;
    errno = 0;
    long long value = strtoll(arg, &end, 10);
    if (errno || end == arg || *end || value < low || value > high)
        usage_error(state, "%s: required %" PRId64 " .. %" PRId64 ", found '%s'", name, low, high,
                    arg);
    return value;
}

static const char *const numerics_names[] = {
    [TAMIS_NUMERICS_EXACT] = "exact",
    [TAMIS_NUMERICS_BF16] = "bf16",
    [TAMIS_NUMERICS_DG_BF16] = "dg_bf16",
    [TAMIS_NUMERICS_REF_BF16] = "ref_bf16",
};

const char *numerics_name(int32_t numerics) {
    if (numerics < TAMIS_NUMERICS_EXACT || numerics > TAMIS_NUMERICS_REF_BF16)
        return NULL;
    return numerics_names[numerics];
}

int32_t numerics_of(const char *name) {
    for (int32_t i = TAMIS_NUMERICS_EXACT; i <= TAMIS_NUMERICS_REF_BF16; i++)
        if (strcmp(name, numerics_names[i]) == 0)
            return i;
    return 0;
}

int fail_error(const char *file, const tamis_error *error) {
    char text[400];
    tamis_error_text(error, text, sizeof text);
    return fail("%s: %s", file, text);
}

/* A file's bytes may reach a message: control characters would break the promise of one line. */
int fail(const char *format, ...) {
    char text[4608];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    fprintf(stderr, "tamis: %s\n", text);
    return STATUS_BAD;
}

void print_json(json_t *value) {
    json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(value);
}

const char *grouped(int64_t value) {
    static char buffers[8][32];
    static int next;
    char digits[24], *out = buffers[next++ % 8];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value), at = 0;
    for (int i = 0; i < length; i++) {
        out[at++] = digits[i];
        if (digits[i] != '-' && i + 1 < length && (length - i - 1) % 3 == 0)
            out[at++] = ',';
    }
    out[at] = 0;
    return out;
}

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int open_backend(const common_options *common, tamis_backend **backend) {
    const char *tier = common->tier ? common->tier : getenv("TAMIS_TIER");
    tamis_error error = {0};
    if (tamis_backend_create(tier, backend, &error) == TAMIS_OK)
        return STATUS_GOOD;
    return fail_error(common->tier ? "--tier" : "TAMIS_TIER", &error);
}

int open_pool(const common_options *common, tamis_pool **pool) {
    tamis_error error = {0};
    if (tamis_pool_create(common->threads, pool, &error) == TAMIS_OK)
        return STATUS_GOOD;
    return fail_error("--threads", &error);
}

void progress_begin(progress *bar, const char *label, int64_t total) {
    *bar = (progress){.label = label, .total = total, .shown = isatty(STDERR_FILENO)};
    progress_show(bar, 0);
}

void progress_show(progress *bar, int64_t done) {
    enum { WIDTH = 40 };
    double now = bar->shown ? seconds_now() : 0;
    if (!bar->shown || bar->total <= 0 || now - bar->drawn < 0.1)
        return;
    bar->drawn = now;
    double share = (double)done / (double)bar->total;
    int filled = (int)(share * WIDTH);
    char cells[WIDTH + 1];
    memset(cells, '.', WIDTH);
    memset(cells, '#', (size_t)(filled < WIDTH ? filled : WIDTH));
    cells[WIDTH] = 0;
    fprintf(stderr, "\r%-8s [%s] %3d%%", bar->label, cells, (int)(share * 100));
    fflush(stderr);
}

void progress_end(progress *bar) {
    if (bar->shown)
        fprintf(stderr, "\r\033[K");
}
