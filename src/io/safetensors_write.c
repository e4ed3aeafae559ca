/* SPDX-License-Identifier: MIT */
/*
 * safetensors_write.c: the writer. A file appears whole or not at all.
 *
 * Data goes to a temporary in the target's folder, which is renamed over it only after a sync. The
 * temporary is made with O_EXCL, so that neither a link planted under its name nor another writer
 * of the same process is ever written through. Its name does not grow with the target's, which may
 * be as long as the filesystem allows.
 */
#define _XOPEN_SOURCE 700 /* realpath */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtypes.h"
#include "support.h"

struct safetensors_writer {
    char *path; /* links resolved */
    char *temporary;
    int fd;
    int64_t left; /* data bytes still to come */
};

static tamis_status unwritable(tamis_error *error, const char *doing) {
    return io_fail(error, TAMIS_ERROR_FILE, "file", doing, strerror(errno));
}

static void release(safetensors_writer *writer) {
    free(writer->path);
    free(writer->temporary);
    free(writer);
}

void safetensors_writer_abort(safetensors_writer *writer) {
    if (!writer) {
        return;
    }
    if (writer->fd >= 0) {
        close(writer->fd);
        unlink(writer->temporary);
    }
    release(writer);
}

/* ---- the header ------------------------------------------------------------------------------ */

static tamis_status add_tensor(json_t *header, const safetensors_tensor *t, int64_t *end,
                               tamis_error *error) {
    int64_t bytes = safetensors_dtype_bytes(t->dtype), begin = *end;
    int bad = bytes == 0 || t->rank < 0 || t->rank > 4;
    for (int32_t i = 0; i < t->rank && !bad; i++) {
        bad = t->shape[i] < 0 || __builtin_mul_overflow(bytes, t->shape[i], &bytes);
    }
    if (bad || __builtin_add_overflow(begin, bytes, end)) {
        return io_fail(error, TAMIS_ERROR_ARGUMENT, t->name,
                       "a dtype that is written, 0 .. 4 dimensions, fewer than 2^63 bytes",
                       io_format("dtype %d, rank %d", t->dtype, t->rank).text);
    }
    if (!strcmp(t->name, "__metadata__") || json_object_get(header, t->name)) {
        return io_fail(error, TAMIS_ERROR_ARGUMENT, t->name, "a name of its own", "used twice");
    }
    json_t *shape = json_array();
    for (int32_t i = 0; i < t->rank; i++) {
        json_array_append_new(shape, json_integer(t->shape[i]));
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", safetensors_dtype_name(t->dtype),
                              "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)*end);
    if (json_object_set_new(header, t->name, entry)) {
        return io_fail(error, TAMIS_ERROR_ARGUMENT, t->name, "a name in UTF-8", "other bytes");
    }
    return TAMIS_OK;
}

static tamis_status add_metadata(json_t *header, const char *const *metadata, int64_t pairs,
                                 tamis_error *error) {
    json_t *object = json_object();
    for (int64_t i = 0; i < pairs; i++) {
        const char *key = metadata[2 * i];
        if (json_object_get(object, key) ||
            json_object_set_new(object, key, json_string(metadata[2 * i + 1]))) {
            json_decref(object);
            return io_fail(error, TAMIS_ERROR_ARGUMENT, io_format("__metadata__.%s", key).text,
                           "unique keys, texts in UTF-8", "a key used twice, or other bytes");
        }
    }
    if (pairs) {
        return json_object_set_new(header, "__metadata__", object)
                   ? io_no_memory(error, "__metadata__")
                   : TAMIS_OK;
    }
    json_decref(object);
    return TAMIS_OK;
}

/* The header's JSON, malloc'ed; *data the bytes of all tensors. */
static tamis_status make_header(const safetensors_tensor *tensors, int64_t count,
                                const char *const *metadata, int64_t pairs, char **text,
                                int64_t *data, tamis_error *error) {
    json_t *header = json_object();
    *data = 0;
    tamis_status status = add_metadata(header, metadata, pairs, error);
    for (int64_t i = 0; i < count && !status; i++) {
        status = add_tensor(header, &tensors[i], data, error);
    }
    *text = status ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return status || *text ? status : io_no_memory(error, "header");
}

/* ---- the file -------------------------------------------------------------------------------- */

static tamis_status put(safetensors_writer *writer, const void *bytes, int64_t count,
                        tamis_error *error) {
    const uint8_t *from = bytes;
    while (count > 0) {
        size_t part = (size_t)(count < (int64_t)1 << 30 ? count : (int64_t)1 << 30);
        ssize_t done = write(writer->fd, from, part);
        if (done < 0 && errno != EINTR) {
            return unwritable(error, "room for the file");
        }
        if (done > 0) {
            from += done;
            count -= done;
        }
    }
    return TAMIS_OK;
}

/* The length, the header, and spaces so that the data begins at a multiple of 8. */
static tamis_status put_header(safetensors_writer *writer, const char *text, tamis_error *error) {
    size_t length = strlen(text), padded = (length + 7) & ~(size_t)7;
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) {
        prefix[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    }
    tamis_status status = put(writer, prefix, 8, error);
    if (!status) {
        status = put(writer, text, (int64_t)length, error);
    }
    return status ? status : put(writer, "       ", (int64_t)(padded - length), error);
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* *path, malloc'ed, becomes what the link at it says; -1 with errno where that cannot be read. */
static int follow_link(char **path) {
    char to[PATH_MAX];
    ssize_t length = readlink(*path, to, sizeof to);
    if (length < 0) {
        return -1;
    }
    size_t folder = length && to[0] == '/' ? 0 : (size_t)(last_part(*path) - *path);
    char *next = malloc(folder + (size_t)length + 1);
    if (!next) {
        return -1;
    }
    memcpy(next, *path, folder);
    memcpy(next + folder, to, (size_t)length);
    next[folder + (size_t)length] = 0;
    free(*path);
    *path = next;
    return 0;
}

/* A name that nothing has: where it is a link's, the name that the link, or the last of several,
 * gives.
 */
static tamis_status find_new(const char *path, char **target, tamis_error *error) {
    enum { MOST_LINKS = 40 }; /* as Linux; a circle has failed before with ELOOP */
    struct stat about;
    *target = strdup(path);
    if (!*target) {
        return io_no_memory(error, "file");
    }
    for (int i = 0; i < MOST_LINKS && !lstat(*target, &about) && S_ISLNK(about.st_mode); i++) {
        if (follow_link(target)) {
            return unwritable(error, "a link that can be followed");
        }
    }
    if (!last_part(*target)[0]) {
        return io_fail(error, TAMIS_ERROR_FILE, "file", "a regular file or a new name",
                       path[0] ? "a folder that is not there" : "an empty name");
    }
    return TAMIS_OK;
}

/* Where the file goes: the end of a link, so that a linked result stays linked. */
static tamis_status find_target(const char *path, char **target, tamis_error *error) {
    struct stat about;
    if (!stat(path, &about)) {
        if (!S_ISREG(about.st_mode)) {
            return io_fail(error, TAMIS_ERROR_FILE, "file", "a regular file or a new name",
                           S_ISDIR(about.st_mode) ? "a directory" : "a device, pipe or socket");
        }
        *target = realpath(path, NULL);
        return *target ? TAMIS_OK : unwritable(error, "a path that can be resolved");
    }
    return errno == ENOENT ? find_new(path, target, error)
                           : unwritable(error, "a regular file or a new name");
}

static tamis_status open_temporary(safetensors_writer *writer, tamis_error *error) {
    size_t folder = (size_t)(last_part(writer->path) - writer->path), size = folder + 64;
    writer->temporary = malloc(size);
    if (!writer->temporary) {
        return io_no_memory(error, "file");
    }
    memcpy(writer->temporary, writer->path, folder);
    /* Other writers of this process have numbers, and so has what a killed process left under a
     * process id that is ours now.
     */
    errno = EEXIST;
    for (int i = 1; i <= 1000 && writer->fd < 0 && errno == EEXIST; i++) {
        snprintf(writer->temporary + folder, size - folder, ".tamis.tmp-%ld-%d", (long)getpid(), i);
        writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    return writer->fd < 0 ? unwritable(error, "a folder that can be written to") : TAMIS_OK;
}

tamis_status safetensors_writer_begin(const char *path, const safetensors_tensor *tensors,
                                      int64_t count, const char *const *metadata, int64_t pairs,
                                      safetensors_writer **out, tamis_error *error) {
    *out = NULL;
    safetensors_writer *writer = calloc(1, sizeof *writer);
    if (!writer) {
        return io_no_memory(error, "file");
    }
    writer->fd = -1;
    char *text = NULL;
    tamis_status status = make_header(tensors, count, metadata, pairs, &text, &writer->left, error);
    if (!status) {
        status = find_target(path, &writer->path, error);
    }
    if (!status) {
        status = open_temporary(writer, error);
    }
    if (!status) {
        status = put_header(writer, text, error);
    }
    free(text);
    if (status) {
        safetensors_writer_abort(writer);
        return status;
    }
    *out = writer;
    return TAMIS_OK;
}

tamis_status safetensors_writer_data(safetensors_writer *writer, const void *data, int64_t bytes,
                                     tamis_error *error) {
    if (bytes < 0 || bytes > writer->left) {
        return io_fail(error, TAMIS_ERROR_ARGUMENT, "bytes",
                       io_format("0 .. %lld, what the tensors lack", (long long)writer->left).text,
                       io_format("%lld", (long long)bytes).text);
    }
    tamis_status status = put(writer, data, bytes, error);
    writer->left -= status ? 0 : bytes;
    return status;
}

tamis_status safetensors_writer_commit(safetensors_writer *writer, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    if (writer->left) {
        status = io_fail(error, TAMIS_ERROR_ARGUMENT, "data", "all of every tensor",
                         io_format("%lld bytes too few", (long long)writer->left).text);
    } else if (fsync(writer->fd) && errno != EINVAL) { /* EINVAL: a filesystem without sync */
        status = unwritable(error, "room for the file");
    }
    if (!status) {
        int failed = close(writer->fd);
        writer->fd = -1;
        if (failed || rename(writer->temporary, writer->path)) {
            status = unwritable(error, "a name that can be replaced");
            unlink(writer->temporary);
        }
    }
    safetensors_writer_abort(writer);
    return status;
}
