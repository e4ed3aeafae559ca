/* SPDX-License-Identifier: MIT */
/* common.c: options, messages, output, signals and the progress bar that the subcommands share. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
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

/*
 * argp tells an error in two lines, with whatever bytes the argument has, and ends the program.
 * Between start and success its stream is NULL, which makes it return the error, and getopt's
 * stderr is memory: the line there is cleaned and shown.
 */
static struct {
    FILE *before; /* stderr; NULL: not caught */
    FILE *memory;
    char *text;
    size_t size;
} caught;

static void catch_messages(struct argp_state *state) {
    caught.memory = open_memstream(&caught.text, &caught.size);
    if (!caught.memory)
        return;
    state->err_stream = NULL;
    caught.before = stderr;
    stderr = caught.memory;
}

static void release_messages(void) {
    if (!caught.before)
        return;
    stderr = caught.before;
    caught.before = NULL;
    fclose(caught.memory);
}

static int said; /* a line is on stderr: no other follows */

/* Names and a file's bytes may reach a message: control characters would break the one line. */
static void say(const char *who, char *text) {
    release_messages();
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    fprintf(stderr, "%s: %s\n", who, text);
    said = 1;
}

void usage_error(const struct argp_state *state, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say(state->name, text);
    exit(STATUS_BAD);
}

static _Noreturn void end_usage(const struct argp_state *state) {
    release_messages();
    char *text = caught.text ? caught.text : "";
    size_t name = strlen(state->name), length = strlen(text);
    if (strncmp(text, state->name, name) == 0 && strncmp(text + name, ": ", 2) == 0)
        text += name + 2, length -= name + 2;
    if (length && text[length - 1] == '\n')
        text[length - 1] = 0;
    usage_error(state, "%s; see %s --help", text, state->name);
}

error_t common_parse(int key, char *arg, struct argp_state *state, common_options *common) {
    switch (key) {
    case ARGP_KEY_INIT:
        catch_messages(state);
        return 0;
    case ARGP_KEY_SUCCESS:
        release_messages();
        free(caught.text);
        caught.text = NULL;
        return 0;
    case ARGP_KEY_ERROR:
        end_usage(state);
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

int fail(const char *format, ...) {
    char text[4608];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say("tamis", text);
    return STATUS_BAD;
}

/* Bytes of the first character of text, or 0: jansson, which has to take it, is the judge. */
static size_t character(const char *text) {
    for (size_t n = 1; n <= 4 && text[n - 1]; n++) {
        json_t *one = json_stringn(text, n);
        json_decref(one);
        if (one)
            return n;
    }
    return 0;
}

json_t *json_text(const char *text) {
    static const char replacement[] = "\xef\xbf\xbd";
    json_t *whole = text ? json_string(text) : json_null();
    char *clean = whole ? NULL : malloc(3 * strlen(text) + 1), *end = clean;
    while (clean && *text) {
        size_t n = character(text);
        memcpy(end, n ? text : replacement, n ? n : 3);
        end += n ? n : 3;
        text += n ? n : 1;
    }
    if (clean)
        whole = json_stringn(clean, (size_t)(end - clean));
    free(clean);
    return whole;
}

static int unprintable; /* a JSON value was lost */

void print_json(json_t *value) {
    if (!value || json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0)
        unprintable = 1;
    else
        putchar('\n');
    json_decref(value);
}

int flush_output(int status) {
    int lost = fflush(stdout) != 0 || ferror(stdout);
    if (!lost && !unprintable)
        return status;
    if (!said)
        fail(lost ? "standard output could not be written"
                  : "the JSON object could not be made: memory or text that is not UTF-8");
    return STATUS_BAD;
}

static void flush_at_exit(void) {
    if (flush_output(STATUS_GOOD) != STATUS_GOOD)
        _exit(STATUS_BAD);
}

void guard_output(void) {
    atexit(flush_at_exit);
}

volatile int stopped;

static void on_signal(int number) {
    stopped = number;
}

/* What is ignored stays so: nohup and shells that run jobs in the background mean it. */
void catch_signals(void) {
    static const int stops[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction before, note = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        if (sigaction(stops[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(stops[i], &note, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

int check_stopped(void) {
    return stopped ? fail("stopped by signal %d", stopped) : STATUS_GOOD;
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
