/* SPDX-License-Identifier: MIT */
/* info.c: version, tiers and backends of this build on this machine. */
#include <stdio.h>

#include "command.h"

static error_t parse_info(int key, char *arg, struct argp_state *state) {
    if (key == ARGP_KEY_ARG)
        usage_error(state, "no argument is taken, found '%s'", arg);
    return common_parse(key, arg, state, state->input);
}

static const struct argp_option info_options[] = {COMMON_OPTION_JSON, COMMON_OPTION_TIER, {0}};
static const struct argp info_argp = {
    .options = info_options,
    .parser = parse_info,
    .doc = "Print the version of the library, the tiers of kernels in this build, whether this "
           "machine runs each, and which one the other subcommands would use.",
};

static void info_json(const char *chosen) {
    json_t *tiers = json_array();
    int32_t supported;
    const char *name;
    for (int32_t i = 0; (name = tamis_tier_name(i, &supported)); i++)
        json_array_append_new(
            tiers, json_pack("{s:s, s:b}", "name", name, "supported", (int)supported != 0));
    print_json(json_pack("{s:s, s:i, s:o, s:s, s:{s:b}}", "version", tamis_version(), "abi",
                         (int)tamis_abi_version(), "tiers", tiers, "tier", chosen, "cuda", "built",
                         0));
}

static void info_text(const char *chosen) {
    printf("tamis %s, ABI %d\n", tamis_version(), (int)tamis_abi_version());
    int32_t supported;
    const char *name;
    for (int32_t i = 0; (name = tamis_tier_name(i, &supported)); i++)
        printf("tier %-8s %s\n", name, supported ? "supported" : "not supported by this machine");
    printf("in use: %s\n", chosen);
    printf("CUDA backend: not built\n");
}

int command_info(int argc, char **argv) {
    common_options common;
    common_defaults(&common);
    argp_parse(&info_argp, argc, argv, 0, NULL, &common);
    tamis_backend *backend;
    int status = open_backend(&common, &backend);
    if (status != STATUS_GOOD)
        return status;
    (common.json ? info_json : info_text)(tamis_backend_tier(backend));
    tamis_backend_destroy(backend);
    return STATUS_GOOD;
}
