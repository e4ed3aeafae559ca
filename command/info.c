/* SPDX-License-Identifier: MIT */
/* info.c: version, tiers, CUDA backend and devices of this build on this machine. */
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
           "machine runs each, which one the other subcommands would use, the CUDA backend and "
           "the machine's GPUs.",
};

/* "13.0" of 13000; NULL of 0. */
static const char *cuda_version(int32_t number, char text[16]) {
    snprintf(text, 16, "%d.%d", (int)number / 1000, (int)number % 1000 / 10);
    return number ? text : NULL;
}

enum { MAX_DEVICES = 64 };

static int32_t list_devices(tamis_cuda_device devices[MAX_DEVICES]) {
    int32_t count = tamis_cuda_devices(devices, MAX_DEVICES);
    return count < MAX_DEVICES ? count : MAX_DEVICES;
}

static json_t *cuda_json(void) {
    tamis_cuda_device devices[MAX_DEVICES];
    char built[16], driver[16], capability[16];
    json_t *list = json_array();
    for (int32_t i = 0, count = list_devices(devices); i < count; i++) {
        const tamis_cuda_device *d = &devices[i];
        snprintf(capability, sizeof capability, "%d.%d", (int)d->major, (int)d->minor);
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:i, s:I, s:b}", "name", d->name, "compute_capability",
                            capability, "multiprocessors", (int)d->multiprocessors, "memory_bytes",
                            (json_int_t)d->memory_bytes, "supported", (int)d->supported));
    }
    return json_pack("{s:b, s:s?, s:s?, s:o}", "built", tamis_cuda_built() != 0, "compiler",
                     cuda_version(tamis_cuda_built(), built), "driver",
                     cuda_version(tamis_cuda_driver_version(), driver), "devices", list);
}

static void info_json(const char *chosen) {
    json_t *tiers = json_array();
    int32_t supported;
    const char *name;
    for (int32_t i = 0; (name = tamis_tier_name(i, &supported)); i++)
        json_array_append_new(
            tiers, json_pack("{s:s, s:b}", "name", name, "supported", (int)supported != 0));
    print_json(json_pack("{s:s, s:i, s:o, s:s, s:o}", "version", tamis_version(), "abi",
                         (int)tamis_abi_version(), "tiers", tiers, "tier", chosen, "cuda",
                         cuda_json()));
}

static void cuda_text(void) {
    tamis_cuda_device devices[MAX_DEVICES];
    char built[16], driver[16];
    const char *compiler = cuda_version(tamis_cuda_built(), built);
    const char *runs = cuda_version(tamis_cuda_driver_version(), driver);
    printf("CUDA backend: %s%s, driver: %s%s\n", compiler ? "built by CUDA " : "not built",
           compiler ? compiler : "", runs ? "CUDA " : "none", runs ? runs : "");
    for (int32_t i = 0, count = list_devices(devices); i < count; i++)
        printf("device %d: %s, compute capability %d.%d, %d multiprocessors, %.1f GiB%s\n", (int)i,
               devices[i].name, (int)devices[i].major, (int)devices[i].minor,
               (int)devices[i].multiprocessors, (double)devices[i].memory_bytes / (1 << 30),
               devices[i].supported ? "" : ", not supported");
}

static void info_text(const char *chosen) {
    printf("tamis %s, ABI %d\n", tamis_version(), (int)tamis_abi_version());
    int32_t supported;
    const char *name;
    for (int32_t i = 0; (name = tamis_tier_name(i, &supported)); i++)
        printf("tier %-8s %s\n", name, supported ? "supported" : "not supported by this machine");
    printf("in use: %s\n", chosen);
    cuda_text();
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
