/* SPDX-License-Identifier: MIT */
/*
 * bench_shape.c: shapes from text files: a line is a word and its value, '#' starts a comment,
 * every word must be there once. Named shapes are looked for in the source tree of the build first,
 * so that an edit there is seen, then where they are installed.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command.h"

#ifndef TAMIS_SHAPES_SOURCE
#error "TAMIS_SHAPES_SOURCE and TAMIS_SHAPES_INSTALLED name the folders of shapes"
#endif

enum { NUMBER, WIDE, KIND, LISTS, FLAG };

typedef struct word {
    const char *name;
    int form;
    size_t offset;
    int64_t low, high, step;
} word;

static const word words[] = {
    {"kind", KIND, offsetof(bench_shape, decode), 0, 0, 0},
    {"positions", WIDE, offsetof(bench_shape, positions), 1, INT64_C(1) << 24, 1},
    {"rows", WIDE, offsetof(bench_shape, rows), 1, 65536, 1},
    {"heads", NUMBER, offsetof(bench_shape, heads), 4, TAMIS_MAX_HEADS, 4},
    {"dim", NUMBER, offsetof(bench_shape, dim), 64, TAMIS_MAX_HEAD_DIM, 64},
    {"topk", NUMBER, offsetof(bench_shape, topk), 1, TAMIS_MAX_TOPK, 1},
    {"blocks", NUMBER, offsetof(bench_shape, blocks), 1, TAMIS_MAX_BLOCKS, 1},
    {"block_size", NUMBER, offsetof(bench_shape, block_size), 8, 16, 8},
    {"lists", LISTS, offsetof(bench_shape, lists), 0, 0, 0},
    {"default", FLAG, offsetof(bench_shape, by_default), 0, 0, 0},
};
enum { WORDS = sizeof words / sizeof words[0] };

static int choice(const char *value, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(value, names[i]) == 0)
            return i;
    return -1;
}

/* Returns what was required when the value is not that, else NULL. */
static const char *take_value(const word *w, const char *value, void *field) {
    static char required[96];
    static const char *const kinds[] = {"prefill", "decode"};
    static const char *const lists[] = {"", "local", "random", "both"};
    static const char *const flags[] = {"no", "yes"};
    char *end;
    long long number = strtoll(value, &end, 10);
    int chosen = -1;
    switch (w->form) {
    case KIND:
        chosen = choice(value, kinds, 2);
        break;
    case LISTS:
        chosen = choice(value, lists, 4);
        break;
    case FLAG:
        chosen = choice(value, flags, 2);
        break;
    default:
        snprintf(required, sizeof required, "%" PRId64 " .. %" PRId64 " in steps of %" PRId64,
                 w->low, w->high, w->step);
        if (*end || number < w->low || number > w->high || number % w->step != 0)
            return required;
        if (w->form == WIDE)
            *(int64_t *)field = number;
        else
            *(int32_t *)field = (int32_t)number;
        return NULL;
    }
    if (chosen < 0)
        return w->form == KIND    ? "decode or prefill"
               : w->form == LISTS ? "local, random or both"
                                  : "yes or no";
    *(int32_t *)field = chosen;
    return NULL;
}

static int take_line(const char *path, int number, char *line, bench_shape *shape, unsigned *seen) {
    char name[32], value[32], rest[2];
    line[strcspn(line, "#\r\n")] = 0;
    int fields = sscanf(line, "%31s %31s %1s", name, value, rest);
    if (fields <= 0)
        return STATUS_GOOD;
    if (fields != 2)
        return fail("%s:%d: required a word and a value, found '%s'", path, number, line);
    for (int i = 0; i < WORDS; i++) {
        if (strcmp(words[i].name, name) != 0)
            continue;
        if (*seen & 1u << i)
            return fail("%s:%d: '%s' is given twice", path, number, name);
        *seen |= 1u << i;
        const char *required = take_value(&words[i], value, (char *)shape + words[i].offset);
        if (required)
            return fail("%s:%d: %s: required %s, found '%s'", path, number, name, required, value);
        return STATUS_GOOD;
    }
    return fail("%s:%d: unknown word '%s'", path, number, name);
}

static void name_shape(const char *path, bench_shape *shape) {
    const char *slash = strrchr(path, '/');
    snprintf(shape->name, sizeof shape->name, "%s", slash ? slash + 1 : path);
    char *dot = strstr(shape->name, ".txt");
    if (dot)
        *dot = 0;
}

int shape_read(const char *path, bench_shape *shape) {
    char line[256];
    unsigned seen = 0;
    int status = STATUS_GOOD, number = 0;
    FILE *file = fopen(path, "r");
    if (!file)
        return fail("%s: the shape file could not be opened", path);
    *shape = (bench_shape){0};
    name_shape(path, shape);
    while (status == STATUS_GOOD && fgets(line, sizeof line, file))
        status = take_line(path, ++number, line, shape, &seen);
    if (status == STATUS_GOOD && ferror(file))
        status = fail("%s: the shape file could not be read", path);
    fclose(file);
    for (int i = 0; status == STATUS_GOOD && i < WORDS; i++)
        if (!(seen & 1u << i))
            status = fail("%s: '%s' is missing", path, words[i].name);
    if (status == STATUS_GOOD && !shape->decode && shape->rows > shape->positions)
        status = fail("%s: rows: required 1 .. positions of a prefill, found %" PRId64, path,
                      shape->rows);
    return status;
}

static const char *shapes_folder(void) {
    DIR *source = opendir(TAMIS_SHAPES_SOURCE);
    if (source)
        closedir(source);
    return source ? TAMIS_SHAPES_SOURCE : TAMIS_SHAPES_INSTALLED;
}

static int is_text(const char *name) {
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".txt") == 0;
}

int shape_find(const char *name, bench_shape *shape) {
    char path[1024];
    if (strchr(name, '/') || is_text(name))
        return shape_read(name, shape);
    snprintf(path, sizeof path, "%s/%s.txt", shapes_folder(), name);
    FILE *file = fopen(path, "r");
    if (!file)
        return fail("--shape: no shape '%s' in %s; `tamis bench --list' names them", name,
                    shapes_folder());
    fclose(file);
    return shape_read(path, shape);
}

static int smaller_first(const void *a, const void *b) {
    const bench_shape *x = a, *y = b;
    if (x->decode != y->decode)
        return y->decode - x->decode;
    if (x->positions != y->positions)
        return x->positions < y->positions ? -1 : 1;
    return (x->rows > y->rows) - (x->rows < y->rows);
}

int shape_all(bench_shape **shapes, int *count) {
    enum { MOST = 256 };
    char path[1024];
    int status = STATUS_GOOD;
    *count = 0;
    *shapes = calloc(MOST, sizeof **shapes);
    DIR *folder = *shapes ? opendir(shapes_folder()) : NULL;
    if (!folder)
        return fail("%s: the folder of shapes could not be opened", shapes_folder());
    for (struct dirent *entry;
         status == STATUS_GOOD && *count < MOST && (entry = readdir(folder));) {
        if (!is_text(entry->d_name))
            continue;
        snprintf(path, sizeof path, "%s/%s", shapes_folder(), entry->d_name);
        status = shape_read(path, *shapes + (*count)++);
    }
    closedir(folder);
    qsort(*shapes, (size_t)*count, sizeof **shapes, smaller_first);
    return status;
}
