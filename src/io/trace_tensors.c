/* SPDX-License-Identifier: MIT */
/*
 * trace_tensors.c: tensors of a trace, held to the dtype and shape that the trace's model and rows
 * give them; float tensors become MXFP4 here, straight from what the file holds (an f32 never
 * passes through bf16).
 */
#include "trace_parts.h"

#include <stdio.h>
#include <string.h>

#include "dtypes.h"
#include "format/bf16.h"
#include "format/mxfp4.h"

/* "F32 or BF16 [232, 32]"; any size is N. */
static io_text describe(uint32_t dtypes, int32_t rank, const int64_t *shape) {
    io_text out = {.text = ""};
    size_t used = 0;
    for (int32_t code = 1; code <= SAFETENSORS_OTHER; code++) {
        if (dtypes >> code & 1u) {
            used += (size_t)snprintf(out.text + used, sizeof out.text - used, "%s%s",
                                     used ? " or " : "", safetensors_dtype_name(code));
        }
    }
    for (int32_t i = 0; i < rank && used < sizeof out.text; i++) {
        const char *before = i ? ", " : " [";
        int n = shape[i] < 0 ? snprintf(out.text + used, sizeof out.text - used, "%sN", before)
                             : snprintf(out.text + used, sizeof out.text - used, "%s%lld", before,
                                        (long long)shape[i]);
        used += (size_t)n;
    }
    if (used < sizeof out.text) {
        snprintf(out.text + used, sizeof out.text - used, "%s", rank ? "]" : " []");
    }
    return out;
}

tamis_status io_find(const safetensors *file, const char *name, uint32_t dtypes, int32_t rank,
                     const int64_t *shape, const safetensors_tensor **out, tamis_error *error) {
    const safetensors_tensor *t = safetensors_find(file, name);
    *out = t;
    if (!t) {
        return TAMIS_OK;
    }
    int good = (dtypes >> t->dtype & 1u) && t->rank == rank;
    for (int32_t i = 0; good && i < rank; i++) {
        good = shape[i] < 0 || shape[i] == t->shape[i];
    }
    return good ? TAMIS_OK
                : io_fail(error, TAMIS_ERROR_FORMAT, name, describe(dtypes, rank, shape).text,
                          describe(1u << t->dtype, t->rank, t->shape).text);
}

int io_has_mxfp4(const safetensors *file, const char *name) {
    return safetensors_find(file, name) ||
           safetensors_find(file, io_format("%s.codes", name).text) ||
           safetensors_find(file, io_format("%s.scales", name).text);
}

static tamis_status missing(tamis_error *error, const char *name, const char *why) {
    return io_fail(error, TAMIS_ERROR_FORMAT, name, why, "missing");
}

/* Groups of 32 never cross a row, since D is a multiple of 32. */
static void quantise(const safetensors_tensor *t, uint8_t *codes, uint8_t *scales) {
    int wide = t->dtype == SAFETENSORS_F32;
    int64_t groups = t->bytes / (wide ? 128 : 64);
    const float *floats = t->data;
    const uint16_t *halves = t->data;
    for (int64_t g = 0; g < groups; g++) {
        float x[32];
        for (int i = 0; i < 32; i++) {
            x[i] = wide ? floats[32 * g + i] : tamis_f32_from_bf16(halves[32 * g + i]);
        }
        tamis_mxfp4_quantise(x, codes + 16 * g, scales + g);
    }
}

static tamis_status load_floats(trace_reader *in, const safetensors_tensor *t,
                                const uint8_t **codes, const uint8_t **scales, tamis_error *error) {
    int64_t elements = t->bytes / safetensors_dtype_bytes(t->dtype);
    uint8_t *c = io_arena_alloc(&in->arena, elements / 2, 1);
    uint8_t *s = io_arena_alloc(&in->arena, elements / 32, 1);
    if (!c || !s) {
        return io_no_memory(error, t->name);
    }
    quantise(t, c, s);
    *codes = c;
    *scales = s;
    return TAMIS_OK;
}

/* NAME.codes and NAME.scales as they lie in the file. */
static tamis_status load_codes(trace_reader *in, const char *name, int32_t rank,
                               const int64_t *shape, const safetensors_tensor **codes,
                               const safetensors_tensor **scales, tamis_error *error) {
    int64_t packed[4], scaled[4];
    io_text codes_name = io_format("%s.codes", name), scales_name = io_format("%s.scales", name);
    memcpy(packed, shape, (size_t)rank * sizeof *shape);
    packed[rank - 1] = shape[rank - 1] / 2;
    tamis_status status =
        io_find(in->file, codes_name.text, IO_DTYPE(U8), rank, packed, codes, error);
    memcpy(scaled, packed, sizeof scaled);
    scaled[0] = !status && *codes ? (*codes)->shape[0] : shape[0];
    scaled[rank - 1] = shape[rank - 1] / 32;
    if (!status) {
        status = io_find(in->file, scales_name.text, IO_DTYPE(U8), rank, scaled, scales, error);
    }
    if (!status && (*codes == NULL) != (*scales == NULL)) {
        status =
            missing(error, *codes ? scales_name.text : codes_name.text, "both .codes and .scales");
    }
    return status;
}

tamis_status io_load_mxfp4(trace_reader *in, const char *name, int32_t rank, const int64_t *shape,
                           const char *why, const uint8_t **codes, const uint8_t **scales,
                           int64_t *count, tamis_error *error) {
    const safetensors_tensor *plain, *c = NULL, *s = NULL;
    tamis_status status =
        io_find(in->file, name, IO_DTYPE(F32) | IO_DTYPE(BF16), rank, shape, &plain, error);
    if (!status) {
        status = load_codes(in, name, rank, shape, &c, &s, error);
    }
    if (status) {
        return status;
    }
    if (plain && c) {
        return io_fail(error, TAMIS_ERROR_FORMAT, name, "floats or .codes and .scales, not both",
                       "both");
    }
    if (!plain && !c) {
        return missing(error, name, why);
    }
    *count = plain ? plain->shape[0] : c->shape[0];
    if (plain) {
        return load_floats(in, plain, codes, scales, error);
    }
    *codes = c->data;
    *scales = s->data;
    return TAMIS_OK;
}
