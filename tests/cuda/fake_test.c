/* SPDX-License-Identifier: MIT */
/*
 * fake_test.c: creation on machines that lack something, each named; then every stage with pointers
 * that nobody may follow, and what it launches.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <tamis/tamis.h>

#include "fake_driver.h"
#include "counting.h"
#include "kernels/cuda/backend.h"
#include "require.h"

static fake_machine *machine;
static const fake_machine good = {.version = 99000, .devices = 1, .major = 9, .context = 1};

static void require_refusal(fake_machine lacks, tamis_status status, const char *argument,
                            const char *found) {
    tamis_cuda *cuda = NULL;
    tamis_error error;
    memset(&error, 0, sizeof error);
    *machine = lacks;
    tamis_status got = tamis_cuda_create(&cuda, &error);
    REQUIRE(got == status && cuda == NULL, "status %d: %s: %s, %s", got, error.argument,
            error.required, error.found);
    REQUIRE(strcmp(error.argument, argument) == 0 && strcmp(error.found, found) == 0,
            "%s: required %s, found %s", error.argument, error.required, error.found);
    printf("fake: %s: required %s, found %s\n", error.argument, error.required, error.found);
}

static void test_refusals(void) {
    fake_machine m = good;
    m.version = 12020;
    require_refusal(m, TAMIS_ERROR_TIER, "driver", "one that runs CUDA 12.2");
    m = good;
    m.devices = 0;
    require_refusal(m, TAMIS_ERROR_TIER, "device", "none");
    m = good;
    m.init = TAMIS_CU_ERROR_NO_DEVICE;
    require_refusal(m, TAMIS_ERROR_TIER, "device", "none");
    m = good;
    m.major = 7;
    require_refusal(m, TAMIS_ERROR_TIER, "device", "7.8");
    m = good;
    m.context = 0;
    require_refusal(m, TAMIS_ERROR_TIER, "context", "none");
    m = good;
    m.module_load = 209;
    require_refusal(m, TAMIS_ERROR_CUDA, "cuModuleLoadDataEx",
                    "CUDA_ERROR_NO_BINARY_FOR_GPU (209)");
}

/* ---- stages whose pointers nobody may follow ---- */

static void *const far = (void *)4096;

static tamis_k_cache cache(void) {
    return (tamis_k_cache){.layout = TAMIS_K_MXFP4_PAGE,
                           .head_dim = 128,
                           .page_size = 64,
                           .size = 1000,
                           .stride = 4352,
                           .codes = far};
}

static tamis_rows rows(int64_t count) {
    return (tamis_rows){.count = count,
                        .ks = far,
                        .ke = far,
                        .request = far,
                        .page_table = far,
                        .page_table_stride = 16384,
                        .page_table_width = 16384,
                        .requests = 4};
}

static tamis_query query(void) {
    return (tamis_query){.heads = 32,
                         .head_dim = 128,
                         .weights_type = TAMIS_F32,
                         .codes = far,
                         .scales = far,
                         .weights = far,
                         .codes_row_stride = 2048,
                         .codes_head_stride = 64,
                         .scales_row_stride = 128,
                         .scales_head_stride = 4,
                         .weights_row_stride = 32};
}

static tamis_selection selection(void) {
    return (tamis_selection){.topk = 512, .positions = far, .positions_stride = 512, .counts = far};
}

static void require_launches(tamis_status status, const tamis_error *error, int launches,
                             const char *what) {
    REQUIRE(status == TAMIS_OK, "%s: status %d: %s: required %s, found %s", what, status,
            error->argument, error->required, error->found);
    REQUIRE(machine->launches == launches, "%s: %d launches, not %d", what, machine->launches,
            launches);
    REQUIRE(machine->stream == machine, "%s: another stream", what);
    REQUIRE(machine->grid_x >= 1 && machine->grid_y >= 1 && machine->grid_y <= 65535,
            "%s: a grid of %u x %u", what, machine->grid_x, machine->grid_y);
    machine->launches = 0;
}

static void test_levels(const tamis_cuda *cuda, int64_t count, int tiles) {
    tamis_error error;
    tamis_source_args source;
    tamis_consume_args consume;
    tamis_source_args_default(&source);
    source.numerics = TAMIS_NUMERICS_EXACT;
    source.k = cache();
    source.rows = rows(count);
    source.query = query();
    source.block_size = 8;
    source.topk_blocks = 2048;
    source.blocks = far;
    source.blocks_stride = 2048;
    source.selection = selection();
    source.workspace = far;
    source.workspace_bytes = tamis_cuda_source_workspace(cuda, &source);
    REQUIRE(source.workspace_bytes > 0 && source.workspace_bytes <= (int64_t)256 << 20,
            "a workspace of %lld bytes", (long long)source.workspace_bytes);
    require_launches(tamis_cuda_source(cuda, &source, machine, &error), &error, 4 * tiles,
                     "source");
    source.workspace_bytes--;
    REQUIRE(tamis_cuda_source(cuda, &source, machine, &error) == TAMIS_ERROR_WORKSPACE &&
                machine->launches == 0,
            "a workspace that is too small");
    tamis_consume_args_default(&consume);
    consume.numerics = TAMIS_NUMERICS_BF16;
    consume.k = cache();
    consume.rows = rows(3);
    consume.query = query();
    consume.block_size = 8;
    consume.width = 2048;
    consume.blocks = consume.counts = far;
    consume.blocks_stride = 2048;
    consume.selection = selection();
    consume.workspace = far;
    consume.workspace_bytes = tamis_cuda_consume_workspace(cuda, &consume);
    require_launches(tamis_cuda_consume(cuda, &consume, machine, &error), &error, 3, "consume");
}

static void test_stages(const tamis_cuda *cuda) {
    tamis_error error;
    tamis_k_insert_args insert;
    tamis_mqa_logits_args logits;
    tamis_k_insert_args_default(&insert);
    insert.ratio = 1;
    insert.tokens = 5;
    insert.x = far;
    insert.x_stride = 128;
    insert.positions = insert.slots = far;
    insert.norm_weight = far;
    insert.norm_weight_type = TAMIS_BF16;
    insert.eps = far;
    insert.rope = (tamis_rope){.table = far, .type = TAMIS_F32, .positions = 9, .row_stride = 64};
    insert.k = cache();
    require_launches(tamis_cuda_k_insert(cuda, &insert, machine, &error), &error, 1, "k_insert");
    tamis_mqa_logits_args_default(&logits);
    logits.numerics = TAMIS_NUMERICS_EXACT;
    logits.k = cache();
    logits.rows = rows(100000);
    logits.query = query();
    logits.logits_type = TAMIS_F32;
    logits.columns = logits.logits_stride = 4096;
    logits.logits = far;
    require_launches(tamis_cuda_mqa_logits(cuda, &logits, machine, &error), &error, 1,
                     "mqa_logits");
    logits.rows.requests = 0;
    REQUIRE(tamis_cuda_mqa_logits(cuda, &logits, machine, &error) == TAMIS_ERROR_ARGUMENT &&
                machine->launches == 0,
            "rows without requests");
    machine->context = 2;
    REQUIRE(tamis_cuda_k_insert(cuda, &insert, machine, &error) == TAMIS_ERROR_CUDA &&
                machine->launches == 0,
            "a call in another context");
    machine->context = 1;
}

int main(void) {
    tamis_cuda *cuda;
    tamis_error error;
    fake_machine *(*get)(void);
    if (!tamis_cuda_built())
        test_skip("this build has no CUDA kernels");
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library ? dlsym(library, "fake_machine_get") : NULL;
    REQUIRE(found, "the fake driver is not the one that is found");
    memcpy(&get, &found, sizeof get);
    machine = get();
    test_catch_faults();
    test_refusals();
    *machine = good;
    REQUIRE_OK(tamis_cuda_create(&cuda, &error), error);
    REQUIRE(machine->loaded == TAMIS_CUDA_KERNEL_COUNT, "%d of %d kernels were loaded",
            machine->loaded, TAMIS_CUDA_KERNEL_COUNT);
    test_context("stages on the fake driver");
    int counted = counting_works();
    counting_reset();
    counting_begin();
    test_stages(cuda);
    test_levels(cuda, 64, 1);
    test_levels(cuda, 1000, 3);
    counting_end();
    REQUIRE(counting_calls() == 0, "stages called the allocator %lld times",
            (long long)counting_calls());
    tamis_cuda_destroy(cuda);
    REQUIRE(machine->unloaded == 1, "the module was unloaded %d times", machine->unloaded);
    printf("fake: nothing behind a pointer is read, every launch is on the caller's stream%s\n",
           counted ? ", the host's allocator is not called" : "");
    return 0;
}
