/* SPDX-License-Identifier: MIT */
/*
 * gate_workload.c: a fixed source and a fixed consumer whose instructions are counted.
 *
 * Counts repeat exactly for one binary, whatever else the machine does, so a change that costs
 * instructions shows at 3% where a clock would need 30%. Run under callgrind with
 * --toggle-collect=gate_source or gate_consumer: set-up is not counted.
 */
#include <stdio.h>
#include <stdlib.h>

#include <tamis/tamis.h>

enum { POSITIONS = 32768, ROWS = 2, HEADS = 32, DIM = 128, TOPK = 512, BLOCKS = 2048, SIZE = 8 };

typedef struct inputs {
    uint8_t *k_codes, *k_scales, *q_codes, *q_scales;
    float *weights;
    int32_t ke[ROWS], blocks[ROWS * BLOCKS], positions[ROWS * TOPK];
} inputs;

static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static uint8_t *bytes(size_t count, uint64_t *state, int scales) {
    uint8_t *made = malloc(count);
    for (size_t i = 0; made && i < count; i++) {
        made[i] = (uint8_t)(scales ? 120 + next(state) % 3 : next(state));
    }
    return made;
}

static int make(inputs *in) {
    uint64_t state = 1;
    in->k_codes = bytes((size_t)POSITIONS * DIM / 2, &state, 0);
    in->k_scales = bytes((size_t)POSITIONS * DIM / 32, &state, 1);
    in->q_codes = bytes((size_t)ROWS * HEADS * DIM / 2, &state, 0);
    in->q_scales = bytes((size_t)ROWS * HEADS * DIM / 32, &state, 1);
    in->weights = malloc(sizeof(float) * ROWS * HEADS);
    if (!in->k_codes || !in->k_scales || !in->q_codes || !in->q_scales || !in->weights) {
        return 0;
    }
    for (int i = 0; i < ROWS * HEADS; i++) {
        in->weights[i] = ((float)(next(&state) % 1000) - 600.0f) * 1e-3f;
    }
    for (int r = 0; r < ROWS; r++) {
        in->ke[r] = POSITIONS - ROWS + r + 1;
    }
    return 1;
}

static tamis_k_cache cache_of(const inputs *in) {
    tamis_k_cache k = {0};
    k.layout = TAMIS_K_MXFP4_SPLIT;
    k.head_dim = DIM;
    k.size = POSITIONS;
    k.stride = DIM / 2;
    k.scales_stride = DIM / 32;
    k.codes = in->k_codes;
    k.scales = in->k_scales;
    return k;
}

static tamis_query query_of(const inputs *in) {
    tamis_query q = {HEADS,        DIM,         TAMIS_F32,       0,       in->q_codes,
                     in->q_scales, in->weights, HEADS * DIM / 2, DIM / 2, HEADS * DIM / 32,
                     DIM / 32,     HEADS};
    return q;
}

__attribute__((noinline)) tamis_status
gate_source(const tamis_backend *backend, const tamis_source_args *args, tamis_error *error) {
    return tamis_source(backend, args, 0, 1, error);
}

__attribute__((noinline)) tamis_status
gate_consumer(const tamis_backend *backend, const tamis_consume_args *args, tamis_error *error) {
    return tamis_consume(backend, args, 0, 1, error);
}

static tamis_status run_source(const tamis_backend *backend, inputs *in, tamis_error *error) {
    tamis_source_args a;
    tamis_source_args_default(&a);
    a.numerics = TAMIS_NUMERICS_EXACT;
    a.k = cache_of(in);
    a.rows.count = ROWS;
    a.rows.ke = in->ke;
    a.query = query_of(in);
    a.block_size = SIZE;
    a.topk_blocks = BLOCKS;
    a.blocks = in->blocks;
    a.blocks_stride = BLOCKS;
    a.selection.topk = TOPK;
    a.selection.positions = in->positions;
    a.selection.positions_stride = TOPK;
    a.workspace_bytes = tamis_source_workspace(&a, 1);
    a.workspace = aligned_alloc(64, (size_t)a.workspace_bytes);
    tamis_status status = gate_source(backend, &a, error);
    free(a.workspace);
    return status;
}

static tamis_status run_consumer(const tamis_backend *backend, inputs *in, tamis_error *error) {
    tamis_consume_args a;
    tamis_consume_args_default(&a);
    a.numerics = TAMIS_NUMERICS_EXACT;
    a.k = cache_of(in);
    a.rows.count = ROWS;
    a.rows.ke = in->ke;
    a.query = query_of(in);
    a.block_size = SIZE;
    a.width = BLOCKS;
    a.blocks = in->blocks;
    a.blocks_stride = BLOCKS;
    a.selection.topk = TOPK;
    a.selection.positions = in->positions;
    a.selection.positions_stride = TOPK;
    a.workspace_bytes = tamis_consume_workspace(&a, 1);
    a.workspace = aligned_alloc(64, (size_t)a.workspace_bytes);
    tamis_status status = gate_consumer(backend, &a, error);
    free(a.workspace);
    return status;
}

int main(int argc, char **argv) {
    static inputs in;
    tamis_backend *backend;
    tamis_error error = {0};
    tamis_status status = tamis_backend_create(argc > 1 ? argv[1] : "avx2", &backend, &error);
    if (status == TAMIS_OK && make(&in)) {
        status = run_source(backend, &in, &error);
        status = status == TAMIS_OK ? run_consumer(backend, &in, &error) : status;
    }
    if (status != TAMIS_OK) {
        char text[400];
        tamis_error_text(&error, text, sizeof text);
        fprintf(stderr, "gate_workload: %s\n", text);
        return 2;
    }
    printf("%d %d\n", in.positions[0], in.positions[ROWS * TOPK - 1]);
    return 0;
}
