/* SPDX-License-Identifier: MIT */
/*
 * command.h: what the subcommands share. Each lives in a file of its own and is one line of the
 * table in main.c. Exit codes: 0 good, 1 the thing checked is wrong, 2 usage or bad input; whatever
 * fails says so in one line on stderr.
 */
#ifndef TAMIS_COMMAND_H
#define TAMIS_COMMAND_H

#include <argp.h>
#include <jansson.h>
#include <stdint.h>

#include <tamis/tamis.h>

enum { STATUS_GOOD = 0, STATUS_WRONG = 1, STATUS_BAD = 2 };

/* argv[0] is the name to print: "tamis run". */
int command_run(int argc, char **argv);
int command_check(int argc, char **argv);
int command_gen(int argc, char **argv);
int command_info(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_replay(int argc, char **argv);
int command_report(int argc, char **argv);

/* ---- options ------------------------------------------------------------------------------- */

enum { OPTION_JSON = 0x1001, OPTION_THREADS, OPTION_TIER };

typedef struct common_options {
    int json;
    int32_t threads;  /* default: processors online */
    const char *tier; /* NULL: TAMIS_TIER, else the best that this machine runs */
} common_options;

#define COMMON_OPTION_JSON                                                                         \
    { "json", OPTION_JSON, NULL, 0, "Print one JSON object on standard output, nothing else", 90 }
#define COMMON_OPTION_THREADS                                                                      \
    { "threads", OPTION_THREADS, "N", 0, "Threads to work with (default: processors online)", 91 }
#define COMMON_OPTION_TIER                                                                         \
    {                                                                                              \
        "tier", OPTION_TIER, "NAME", 0,                                                            \
            "Force the tier of kernels; `tamis info' lists them. The environment variable "        \
            "TAMIS_TIER "                                                                          \
            "does the same, this option wins",                                                     \
            92                                                                                     \
    }

void common_defaults(common_options *common);
/*
 * Takes the options above; ARGP_ERR_UNKNOWN for any other key. Every parser of a subcommand passes
 * on what it does not take itself: argp's start, success and error, too.
 */
error_t common_parse(int key, char *arg, struct argp_state *state, common_options *common);
/* Ends the program with one line and STATUS_BAD. */
void usage_error(const struct argp_state *state, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
/* The number in arg when it lies in low..high, else a usage error that names the option. */
int64_t parse_number(const struct argp_state *state, const char *name, const char *arg, int64_t low,
                     int64_t high);

/* "exact", "bf16", "dg_bf16", "ref_bf16" and their TAMIS_NUMERICS_*; NULL and 0 for others. */
const char *numerics_name(int32_t numerics);
int32_t numerics_of(const char *name);

/* ---- messages and output --------------------------------------------------------------------- */

/* "tamis: FILE: text of the error"; returns STATUS_BAD. */
int fail_error(const char *file, const tamis_error *error);
/* "tamis: ..."; returns STATUS_BAD. */
int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A string to print; bytes that are not UTF-8, as a path may have, are replaced. NULL: null. */
json_t *json_text(const char *text);
/* Prints and frees a JSON value; what cannot be printed, NULL too, ends in STATUS_BAD. */
void print_json(json_t *value);
/* status, or STATUS_BAD where what was printed so far has not arrived: says so once. */
int flush_output(int status);
/* Standard output is checked at the end of the program, however that comes. */
void guard_output(void);
/* 1234567 as "1,234,567" in one of eight rotating buffers: for tables. */
const char *grouped(int64_t value);

/* ---- signals --------------------------------------------------------------------------------- */

/* The signal that asked the program to stop, or 0. */
extern volatile int stopped;
/*
 * For whoever writes a file: a signal to stop is noted, so that the temporary can go first; a write
 * past a limit, or to a closed pipe, fails as any other does.
 */
void catch_signals(void);
/* STATUS_GOOD, or STATUS_BAD after a line that names the signal. */
int check_stopped(void);

double seconds_now(void);

/* The backend that --tier or TAMIS_TIER names, else the best. Returns STATUS_GOOD or has said why.
 */
int open_backend(const common_options *common, tamis_backend **backend);
int open_pool(const common_options *common, tamis_pool **pool);

/* ---- progress -------------------------------------------------------------------------------- */

/* A bar on stderr, drawn only when that is a terminal. Used by one thread. */
typedef struct progress {
    const char *label;
    int64_t total;
    double drawn; /* when last drawn */
    int shown;    /* stderr is a terminal */
} progress;

void progress_begin(progress *bar, const char *label, int64_t total);
void progress_show(progress *bar, int64_t done);
void progress_end(progress *bar); /* wipes the bar */

#endif
