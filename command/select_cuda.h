/* SPDX-License-Identifier: MIT */
/* select_cuda.h: select.h's work on a GPU. */
#ifndef TAMIS_COMMAND_SELECT_CUDA_H
#define TAMIS_COMMAND_SELECT_CUDA_H

#include "select.h"

/* Device buffers that grow and stay from layer to layer. */
typedef struct cuda_selector cuda_selector;

/* Opens device 0. Returns STATUS_GOOD or has said why. */
int cuda_selector_open(cuda_selector **out);
void cuda_selector_close(cuda_selector *c);             /* NULL is fine */
const char *cuda_selector_name(const cuda_selector *c); /* of the device */

/* As select_layer; *seconds is the time between the arrays' arrival on the device and the last
 * result there. */
tamis_status cuda_select_layer(cuda_selector *c, selector *s, const tamis_trace_layer *layer,
                               const layer_output *out, double *seconds, tamis_error *error);

/* Whichever of the two the selector's `cuda` says. */
static inline tamis_status selector_run(selector *s, const tamis_trace_layer *layer,
                                        const layer_output *out, double *seconds,
                                        tamis_error *error) {
    return s->cuda ? cuda_select_layer(s->cuda, s, layer, out, seconds, error)
                   : select_layer(s, layer, out, seconds, error);
}

#endif
