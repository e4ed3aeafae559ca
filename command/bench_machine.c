/* SPDX-License-Identifier: MIT */
/* bench_machine.c: what the figures were measured on, and its time-stamp counter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "bench.h"
#include "command.h"

#ifndef TAMIS_COMMIT
#define TAMIS_COMMIT ""
#endif

double bench_seconds(int cpu_clock) {
    struct timespec now;
    if (!cpu_clock)
        return seconds_now();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t tsc_now(void) {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return 0;
#endif
}

/* Against the clock for 20 ms, which the clock's resolution makes exact to 1e-5. */
double tsc_mhz(void) {
    static double measured = -1;
    if (measured < 0) {
        double start = seconds_now(), now;
        uint64_t ticks = tsc_now();
        do
            now = seconds_now();
        while (now - start < 0.02);
        measured = (double)(tsc_now() - ticks) / (now - start) * 1e-6;
    }
    return measured;
}

/* From sysfs: in a virtual machine sysconf may count the L3 of all sockets of the host. */
int64_t cache_bytes(int level) {
    char path[64];
    long kilobytes = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", level);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%ldK", &kilobytes) != 1)
        kilobytes = 0;
    if (file)
        fclose(file);
    return kilobytes > 0 ? (int64_t)kilobytes << 10 : level == 2 ? 1 << 20 : 32 << 20;
}

static const char *cpu_model(void) {
    static char model[128];
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && !model[0] && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            line[strcspn(line, "\n")] = 0;
            snprintf(model, sizeof model, "%.120s", colon + 2);
        }
    }
    if (file)
        fclose(file);
    return model[0] ? model : "unknown";
}

static const char *compiler(void) {
#if defined(__clang__)
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}

static const char *date_now(void) {
    static char date[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    return date;
}

static json_t *number_or_null(double value) {
    return value > 0 ? json_real(value) : json_null();
}

json_t *machine_json(void) {
    json_t *commit = TAMIS_COMMIT[0] ? json_string(TAMIS_COMMIT) : json_null();
    return json_pack("{s:s, s:i, s:o, s:I, s:I, s:s, s:s, s:o, s:s}", "cpu", cpu_model(), "cores",
                     (int)sysconf(_SC_NPROCESSORS_ONLN), "tsc_mhz", number_or_null(tsc_mhz()),
                     "l2_bytes", (json_int_t)cache_bytes(2), "l3_bytes", (json_int_t)cache_bytes(3),
                     "compiler", compiler(), "version", tamis_version(), "commit", commit, "date",
                     date_now());
}

void machine_text(void) {
    printf("%s, %ld cores, TSC %.0f MHz, L2 %s KiB, L3 %s KiB; tamis %s%s%s, %s, %s\n", cpu_model(),
           sysconf(_SC_NPROCESSORS_ONLN), tsc_mhz(), grouped(cache_bytes(2) >> 10),
           grouped(cache_bytes(3) >> 10), tamis_version(), TAMIS_COMMIT[0] ? " commit " : "",
           TAMIS_COMMIT, compiler(), date_now());
}
