/* SPDX-License-Identifier: MIT */
/*
 * seeds.c: writes the seed corpora: FOLDER/trace, traces of every form that opens; FOLDER/expand,
 * the vectors of spec 5.4 in the bytes that fuzz_expand reads.
 */
#include <stdio.h>

#include "forge.h"

static const char *folder;

static void save(const char *target, const char *name, const void *bytes, int64_t size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", folder, target, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, (size_t)size, file) != (size_t)size || fclose(file)) {
        perror(path);
        exit(1);
    }
}

static void save_trace(const char *name, forge *f) {
    int64_t size;
    uint8_t *bytes = forge_bytes(f, &size);
    save("trace", name, bytes, size);
    free(bytes);
    forge_free(f);
}

static void save_traces(void) {
    forge f;
    forge_empty(&f);
    save_trace("empty", &f);
    forge_trace(&f);
    save_trace("two_requests", &f);
    forge_trace(&f);
    f.pad = 0;
    save_trace("misaligned", &f);
    forge_trace(&f);
    forge_remove(&f, "request");
    forge_remove(&f, "context");
    forge_i32(&f, "position", 2, 15);
    save_trace("one_request", &f);
    forge_trace(&f);
    forge_add(&f, "blocks", "I32", "[3, 2]", NULL, 24);
    forge_add(&f, "selected.1", "I32", "[3, 4]", NULL, 48);
    forge_add(&f, "selected.4", "I32", "[3, 4]", NULL, 48);
    forge_add(&f, "other", "F16", "[1, 1, 2, 2]", NULL, 8);
    save_trace("with_results", &f);
    forge_trace(&f);
    forge_remove(&f, "q.1.codes");
    forge_remove(&f, "q.1.scales");
    forge_remove(&f, "k.1.codes");
    forge_remove(&f, "k.1.scales");
    forge_add(&f, "q.1", "BF16", "[3, 4, 64]", NULL, 1536);
    forge_add(&f, "k.1", "F32", "[8, 64]", NULL, 2048);
    save_trace("floats", &f);
    forge_trace(&f);
    forge_remove(&f, "q.3.codes");
    forge_remove(&f, "q.3.scales");
    forge_remove(&f, "w.3");
    save_trace("consumer_alone", &f);
}

/* One row: shape and kind, width, interval in small form, ids of up to 8 bits as id + 2. */
static void save_vector(const char *name, int shape, int ks, int ke, int width, const int *ids) {
    uint8_t out[64] = {(uint8_t)shape, 1,           (uint8_t)width,    1,
                       (uint8_t)ks,    (uint8_t)ke, (uint8_t)(ke >> 8)};
    int64_t n = 7;
    for (int i = 0; i < width; i++) {
        int far = ids[i] > 253 || ids[i] < -2;
        uint32_t bits = far ? (uint32_t)ids[i] : (uint32_t)(ids[i] + 2);
        out[n++] = far ? 255 : 0;
        for (int byte = 0; byte < (far ? 4 : 1); byte++) {
            out[n++] = (uint8_t)(bits >> (8 * byte));
        }
    }
    save("expand", name, out, n);
}

static void save_vectors(void) {
    enum { KEEP = 1, FIXED = 2, SIZE_16 = 1 << 3 };
    save_vector("newest", FIXED, 64, 72, 4, (const int[]){0, -1, -1, -1});
    save_vector("partial", FIXED, 13, 30, 4, (const int[]){2, 0, -1, -1});
    save_vector("nothing", FIXED, 100, 100, 4, (const int[]){3, -1, -1, -1});
    save_vector("far", FIXED, 0, 1000, 4, (const int[]){1 << 30, -(1 << 30), 0, -1});
    save_vector("kept", KEEP | FIXED, 8, 40, 4, (const int[]){1, 1, 7, 0});
    save_vector("of_16", FIXED | SIZE_16, 0, 48, 2, (const int[]){1, 0});
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds FOLDER (with trace/ and expand/ in it)\n");
        return 2;
    }
    folder = argv[1];
    save_traces();
    save_vectors();
    return 0;
}
