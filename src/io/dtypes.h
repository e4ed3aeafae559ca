/* SPDX-License-Identifier: MIT */
/* dtypes.h: the dtypes of safetensors by name and size, for the reader, the writer and messages. */
#ifndef TAMIS_IO_DTYPES_H
#define TAMIS_IO_DTYPES_H

#include <stdint.h>

/* "U8" ..; "another dtype" for SAFETENSORS_OTHER and for a number that is none. */
const char *safetensors_dtype_name(int32_t code);
/* Bytes of an element; 0 for SAFETENSORS_OTHER and for a number that is none. */
int32_t safetensors_dtype_bytes(int32_t code);

#endif
