/* SPDX-License-Identifier: MIT */
/*
 * safetensors.c: the reader. A file is an 8-byte little-endian header length, a JSON header and
 * the data of its tensors.
 *
 * Everything is checked at opening, once, so that later code may trust every view: offsets lie in
 * the file, agree with dtype and shape, and the tensors cover the data exactly, without overlap
 * and without a hole. Views point into the map; only a tensor whose place in the file is not
 * aligned to its element is copied.
 */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtypes.h"
#include "support.h"

/* A trace of a thousand layers has a header below 1 MiB; parsed JSON takes up to 20 times its
 * text, so this also bounds what a hostile header can make us allocate. */
#define HEADER_LIMIT ((int64_t)16 << 20)

struct safetensors {
    const uint8_t *bytes;
    int64_t size;
    int mapped;
    json_t *header; /* owns the names and the metadata */
    safetensors_tensor *tensors;
    int64_t count;
    io_arena copies;
};

static const struct dtype {
    const char *name;
    int32_t code;
    int32_t bytes;
} DTYPES[] = {
    {"U8", SAFETENSORS_U8, 1},     {"I32", SAFETENSORS_I32, 4},
    {"I64", SAFETENSORS_I64, 8},   {"F32", SAFETENSORS_F32, 4},
    {"BF16", SAFETENSORS_BF16, 2}, {"BOOL", SAFETENSORS_OTHER, 1},
    {"I8", SAFETENSORS_OTHER, 1},  {"F8_E4M3", SAFETENSORS_OTHER, 1},
    {"I16", SAFETENSORS_OTHER, 2}, {"F8_E5M2", SAFETENSORS_OTHER, 1},
    {"U16", SAFETENSORS_OTHER, 2}, {"F8_E8M0", SAFETENSORS_OTHER, 1},
    {"F16", SAFETENSORS_OTHER, 2}, {"U32", SAFETENSORS_OTHER, 4},
    {"U64", SAFETENSORS_OTHER, 8}, {"F64", SAFETENSORS_OTHER, 8},
};
enum { DTYPE_COUNT = sizeof DTYPES / sizeof DTYPES[0] };

const char *safetensors_dtype_name(int32_t code) {
    for (int i = 0; i < DTYPE_COUNT && code != SAFETENSORS_OTHER; i++) {
        if (DTYPES[i].code == code) {
            return DTYPES[i].name;
        }
    }
    return "another dtype";
}

int32_t safetensors_dtype_bytes(int32_t code) {
    for (int i = 0; i < DTYPE_COUNT && code != SAFETENSORS_OTHER; i++) {
        if (DTYPES[i].code == code) {
            return DTYPES[i].bytes;
        }
    }
    return 0;
}

static tamis_status malformed(tamis_error *error, const char *argument, const char *required,
                              const char *found) {
    return io_fail(error, TAMIS_ERROR_FORMAT, argument, required, found);
}

/* What a JSON value is, for "found". */
static const char *kind(const json_t *value) {
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "missing";
}

/* ---- one tensor's entry ---------------------------------------------------------------------- */

static tamis_status read_dtype(const char *name, const json_t *entry, safetensors_tensor *out,
                               int64_t *element, tamis_error *error) {
    const json_t *value = json_object_get(entry, "dtype");
    const char *text = json_string_value(value);
    if (!text) {
        return malformed(error, name, "dtype: a string", kind(value));
    }
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (!strcmp(DTYPES[i].name, text)) {
            out->dtype = DTYPES[i].code;
            *element = DTYPES[i].bytes;
            return TAMIS_OK;
        }
    }
    return malformed(error, name, "dtype: one of safetensors', of whole bytes", text);
}

/* Fills rank and shape; bytes become the size of the data. */
static tamis_status read_shape(const char *name, const json_t *entry, safetensors_tensor *out,
                               int64_t element, tamis_error *error) {
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) {
        return malformed(error, name, "shape: an array of integers", kind(shape));
    }
    size_t rank = json_array_size(shape);
    if (rank > 4) {
        return malformed(error, name, "shape: at most 4 dimensions",
                         io_format("%zu dimensions", rank).text);
    }
    out->rank = (int32_t)rank;
    out->bytes = element;
    for (size_t i = 0; i < rank; i++) {
        const json_t *value = json_array_get(shape, i);
        int64_t n = json_integer_value(value);
        if (!json_is_integer(value) || n < 0) {
            return malformed(error, name, "shape: integers of 0 or more",
                             json_is_integer(value) ? io_format("%lld", (long long)n).text
                                                    : kind(value));
        }
        out->shape[i] = n;
        if (__builtin_mul_overflow(out->bytes, n, &out->bytes)) {
            return malformed(
                error, name, "shape: fewer than 2^63 bytes",
                io_format("more, at dimension %zu of size %lld", i, (long long)n).text);
        }
    }
    return TAMIS_OK;
}

static tamis_status read_offsets(const char *name, const json_t *entry, const uint8_t *data,
                                 int64_t data_size, safetensors_tensor *out, tamis_error *error) {
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last)) {
        return malformed(error, name, "data_offsets: two integers",
                         json_is_array(offsets) ? "another array" : kind(offsets));
    }
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || begin > end || end > data_size) {
        return malformed(
            error, name,
            io_format("data_offsets: ascending, in 0 .. %lld", (long long)data_size).text,
            io_format("[%lld, %lld]", (long long)begin, (long long)end).text);
    }
    if (end - begin != out->bytes) {
        return malformed(
            error, name,
            io_format("data_offsets: %lld bytes, as shape and dtype say", (long long)out->bytes)
                .text,
            io_format("%lld bytes", (long long)(end - begin)).text);
    }
    out->data = data + begin;
    return TAMIS_OK;
}

static tamis_status read_tensor(const char *name, const json_t *entry, const uint8_t *data,
                                int64_t data_size, safetensors_tensor *out, tamis_error *error) {
    int64_t element = 0;
    if (!json_is_object(entry)) {
        return malformed(error, name, "an object with dtype, shape, data_offsets", kind(entry));
    }
    memset(out, 0, sizeof *out);
    out->name = name;
    tamis_status status = read_dtype(name, entry, out, &element, error);
    if (!status) {
        status = read_shape(name, entry, out, element, error);
    }
    if (!status) {
        status = read_offsets(name, entry, data, data_size, out, error);
    }
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b) {
    const safetensors_tensor *x = a, *y = b;
    if (x->data != y->data) {
        return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    }
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const safetensors_tensor *)a)->name, ((const safetensors_tensor *)b)->name);
}

static tamis_status check_cover(const safetensors *file, const uint8_t *data, int64_t data_size,
                                tamis_error *error) {
    int64_t end = 0;
    for (int64_t i = 0; i < file->count; i++) {
        const safetensors_tensor *t = &file->tensors[i];
        int64_t begin = (const uint8_t *)t->data - data;
        if (begin != end) {
            return malformed(
                error, t->name,
                io_format("data_offsets: begin at %lld, where the tensor before it ends",
                          (long long)end)
                    .text,
                io_format("%s at %lld", begin < end ? "an overlap" : "a hole before it",
                          (long long)begin)
                    .text);
        }
        end = begin + t->bytes;
    }
    if (end != data_size) {
        return malformed(
            error, "data", "tensors that cover all bytes of the file",
            io_format("%lld bytes after the last tensor", (long long)(data_size - end)).text);
    }
    return TAMIS_OK;
}

/* Every view becomes aligned to its element. */
static tamis_status align(safetensors *file, tamis_error *error) {
    for (int64_t i = 0; i < file->count; i++) {
        safetensors_tensor *t = &file->tensors[i];
        int32_t element = safetensors_dtype_bytes(t->dtype);
        if (element > 1 && (uintptr_t)t->data % (uintptr_t)element) {
            void *copy = io_arena_alloc(&file->copies, 1, t->bytes);
            if (!copy) {
                return io_no_memory(error, t->name);
            }
            memcpy(copy, t->data, (size_t)t->bytes);
            t->data = copy;
        }
    }
    return TAMIS_OK;
}

static tamis_status check_metadata(const json_t *metadata, tamis_error *error) {
    if (metadata && !json_is_object(metadata)) {
        return malformed(error, "__metadata__", "an object of strings", kind(metadata));
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value)) {
            return malformed(error, io_format("__metadata__.%s", key).text, "a string",
                             kind(value));
        }
    }
    return TAMIS_OK;
}

static tamis_status read_entries(safetensors *file, const uint8_t *data, int64_t data_size,
                                 tamis_error *error) {
    tamis_status status = check_metadata(json_object_get(file->header, "__metadata__"), error);
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!status && !file->tensors) {
        status = io_no_memory(error, "header");
    }
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry) {
        if (!status && strcmp(name, "__metadata__") != 0) {
            status =
                read_tensor(name, entry, data, data_size, &file->tensors[file->count++], error);
        }
    }
    if (status) {
        return status;
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_place);
    status = check_cover(file, data, data_size, error);
    if (!status) {
        status = align(file, error);
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_name);
    return status;
}

static tamis_status read_header(safetensors *file, tamis_error *error) {
    if (file->size < 8) {
        return malformed(error, "file", "8 bytes of header length",
                         io_format("%lld bytes", (long long)file->size).text);
    }
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | file->bytes[i];
    }
    int64_t left = file->size - 8;
    if (length > (uint64_t)HEADER_LIMIT || (int64_t)length > left) {
        int64_t limit = left < HEADER_LIMIT ? left : HEADER_LIMIT;
        return malformed(error, "header length",
                         io_format("at most %lld (of the file, %lld in all)", (long long)limit,
                                   (long long)HEADER_LIMIT)
                             .text,
                         io_format("%llu", (unsigned long long)length).text);
    }
    json_error_t at;
    const char *text = (const char *)file->bytes + 8;
    file->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &at);
    if (!file->header) {
        return malformed(error, "header", "one JSON object, names unique, in UTF-8",
                         io_format("%s (byte %d)", at.text, at.position).text);
    }
    if (!json_is_object(file->header)) {
        return malformed(error, "header", "a JSON object", kind(file->header));
    }
    return read_entries(file, file->bytes + 8 + length, left - (int64_t)length, error);
}

/* ---- opening --------------------------------------------------------------------------------- */

static tamis_status open_bytes(const uint8_t *bytes, int64_t size, int mapped, safetensors **out,
                               tamis_error *error) {
    safetensors *file = calloc(1, sizeof *file);
    if (!file) {
        if (mapped && size) {
            munmap((void *)(uintptr_t)bytes, (size_t)size);
        }
        return io_no_memory(error, "file");
    }
    file->bytes = bytes;
    file->size = size;
    file->mapped = mapped && size;
    tamis_status status = read_header(file, error);
    if (status) {
        safetensors_close(file);
        return status;
    }
    *out = file;
    return TAMIS_OK;
}

tamis_status safetensors_open_memory(const void *bytes, int64_t size, safetensors **file,
                                     tamis_error *error) {
    *file = NULL;
    if (!bytes || size < 0) {
        return io_fail(error, TAMIS_ERROR_ARGUMENT, "bytes", "a buffer of 0 or more bytes",
                       bytes ? io_format("%lld", (long long)size).text : "NULL");
    }
    return open_bytes(bytes, size, 0, file, error);
}

static tamis_status unreadable(tamis_error *error, const char *why) {
    return io_fail(error, TAMIS_ERROR_FILE, "file", "a regular file that can be read", why);
}

tamis_status safetensors_open(const char *path, safetensors **file, tamis_error *error) {
    *file = NULL;
    /* Without O_NONBLOCK a pipe by that name would hang the open instead of being refused. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return unreadable(error, strerror(errno));
    }
    struct stat about;
    void *map = NULL;
    const char *why = NULL;
    if (fstat(fd, &about)) {
        why = strerror(errno);
    } else if (!S_ISREG(about.st_mode)) {
        why = S_ISDIR(about.st_mode) ? "a directory" : "a device, pipe or socket";
    } else if (about.st_size > 0) {
        map = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        why = map == MAP_FAILED ? strerror(errno) : NULL;
    }
    close(fd);
    if (why) {
        return unreadable(error, why);
    }
    return open_bytes(map, about.st_size, 1, file, error);
}

void safetensors_close(safetensors *file) {
    if (!file) {
        return;
    }
    if (file->mapped) {
        munmap((void *)(uintptr_t)file->bytes, (size_t)file->size);
    }
    io_arena_free(&file->copies);
    free(file->tensors);
    json_decref(file->header);
    free(file);
}

int64_t safetensors_count(const safetensors *file) {
    return file->count;
}

const safetensors_tensor *safetensors_at(const safetensors *file, int64_t i) {
    return i >= 0 && i < file->count ? &file->tensors[i] : NULL;
}

const safetensors_tensor *safetensors_find(const safetensors *file, const char *name) {
    safetensors_tensor key = {.name = name};
    return bsearch(&key, file->tensors, (size_t)file->count, sizeof key, by_name);
}

const char *safetensors_metadata(const safetensors *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}
