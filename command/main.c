/* SPDX-License-Identifier: MIT */
/* main.c: the table of subcommands. A new one is a file, a declaration and a line here. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

typedef struct subcommand {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *summary;
} subcommand;

static const subcommand subcommands[] = {
    {"run", command_run, "select positions for every row and layer of a trace"},
    {"check", command_check, "hold a result against an independent computation"},
    {"gen", command_gen, "make a synthetic trace, with hazards if asked"},
    {"info", command_info, "print version, tiers and backends"},
    {"bench", command_bench, "time both levels and each stage, dense and sparse in turns"},
    {"plan", command_plan, "check a deployment and print what it takes"},
    {"replay", command_replay, "replay a server's life, every selection held to an oracle"},
    {"report", command_report, "show what a trace selects as one HTML page, by Python"},
};
enum { SUBCOMMANDS = sizeof(subcommands) / sizeof(subcommands[0]) };

static void print_version(FILE *stream, struct argp_state *state) {
    (void)state;
    fprintf(stream, "tamis %s\n", tamis_version());
}

static char *list_subcommands(int key, const char *text, void *input) {
    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)(uintptr_t)text;
    char *list = malloc(64 + SUBCOMMANDS * 96);
    if (!list)
        return NULL;
    int at = sprintf(list, "Subcommands (each has --help):\n");
    for (int i = 0; i < SUBCOMMANDS; i++)
        at += sprintf(list + at, "  %-8s %s\n", subcommands[i].name, subcommands[i].summary);
    return list;
}

static error_t parse_top(int key, char *arg, struct argp_state *state) {
    if (key == ARGP_KEY_ARG)
        usage_error(state, "no subcommand '%s'; see tamis --help", arg);
    if (key == ARGP_KEY_NO_ARGS)
        usage_error(state, "a subcommand is needed; see tamis --help");
    return common_parse(key, arg, state, state->input);
}

static const struct argp top_argp = {
    .parser = parse_top,
    .args_doc = "SUBCOMMAND ...",
    .doc = "Which positions of a very long context a model's attention reads: two-level candidate "
           "selection, exactly.\v",
    .help_filter = list_subcommands,
};

/*
 * A file opened under the number of a closed standard stream would take what is printed there. What
 * stands in for the stream cannot be written to, so that the loss is told.
 */
static void fill_standard_streams(void) {
    int fd;
    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv) {
    fill_standard_streams();
    guard_output();
    const char *tier = getenv("TAMIS_TIER");
    if (tier && !*tier)
        unsetenv("TAMIS_TIER"); /* empty is unset, as shells mean it */
    argp_err_exit_status = STATUS_BAD;
    argp_program_version_hook = print_version;
    for (int i = 0; argc > 1 && i < SUBCOMMANDS; i++) {
        if (strcmp(argv[1], subcommands[i].name) != 0)
            continue;
        char name[32];
        snprintf(name, sizeof name, "tamis %s", subcommands[i].name);
        argv[1] = name;
        return flush_output(subcommands[i].main(argc - 1, argv + 1));
    }
    argv[0] = (char[]){"tamis"};
    common_options common;
    common_defaults(&common);
    argp_parse(&top_argp, argc, argv, ARGP_IN_ORDER, NULL, &common);
    return STATUS_BAD;
}
