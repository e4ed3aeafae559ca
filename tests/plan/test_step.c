/* SPDX-License-Identifier: MIT */
/* test_step.c: a plan's limits, a step's arrays, chunks (spec 6.1, 6.2, 7.4). */
#include "plan_tests.h"

/* One row of a step, as the specification has it. */
typedef struct row {
    int32_t token, request, visible[2];
} row;

/* The rows of a batch: requests with at most threshold new tokens first, then the others. */
static int64_t rows_of(const tamis_batch *b, int64_t threshold, row *out, int64_t *decode) {
    int64_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < b->requests; i++) {
            int64_t fresh = b->query_start[i + 1] - b->query_start[i];
            if ((fresh <= threshold) != (pass == 0)) {
                continue;
            }
            for (int64_t t = 0; t < fresh; t++) {
                int64_t position = b->context[i] - fresh + t;
                out[n++] = (row){(int32_t)(b->query_start[i] + t),
                                 i,
                                 {(int32_t)(position + 1), (int32_t)((position + 1) / 2)}};
            }
        }
        *decode = pass == 0 ? n : *decode;
    }
    for (; n < b->padded_rows; n++) {
        out[n] = (row){(int32_t)n, 0, {0, 0}};
    }
    return n;
}

static void check_arrays(const tamis_batch *b, const tamis_step *step, int64_t threshold,
                         int paged) {
    row *want = fresh((b->tokens + b->padded_rows) * (int64_t)sizeof *want);
    int64_t decode = 0, n = rows_of(b, threshold, want, &decode), longest[2] = {0, 0};
    assert_int_equal(step->counts->rows, n);
    assert_int_equal(step->counts->decode_rows, decode);
    assert_int_equal(step->counts->prefill_rows, b->tokens - decode);
    assert_int_equal(step->counts->requests, b->requests);
    for (int64_t r = 0; r < n; r++) {
        assert_int_equal(step->token[r], want[r].token);
        assert_int_equal(step->request[r], want[r].request);
        for (int k = 0; k < 2; k++) {
            int is_row = r < b->tokens;
            int32_t start = is_row && !paged ? b->k_start[k][want[r].request] : 0;
            int64_t visible = want[r].visible[k];
            assert_int_equal(step->ks[k][r], start);
            assert_int_equal(step->ke[k][r], start + visible);
            longest[k] = visible > longest[k] ? visible : longest[k];
        }
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(step->counts->max_visible[k], longest[k]);
        assert_ptr_equal(step->page_table[k], b->page_table[k]);
        assert_int_equal(step->page_table_stride[k], b->page_table_stride[k]);
        assert_int_equal(step->page_table_width[k], b->page_table_width[k]);
        for (int32_t topk = 1; topk < 40; topk++) {
            assert_int_equal(tamis_step_is_short(step, k + 1, topk), longest[k] <= topk);
        }
    }
}

static shape plain_shape(int32_t layout) {
    return (shape){.layout = layout,
                   .page_size = layout == TAMIS_K_MXFP4_PAGE ? 16 : 0,
                   .heads = 4,
                   .dim = 64,
                   .topk = 4,
                   .topk_blocks = 3,
                   .block = 8,
                   .source_ratio = 1,
                   .numerics = TAMIS_NUMERICS_EXACT};
}

/* Requests of any kind: without new tokens, decoding with and without drafts, prefilling. */
static int32_t random_requests(request *out) {
    int32_t count = (int32_t)random_below(MAX_TEST_REQUESTS + 1);
    for (int32_t i = 0; i < count; i++) {
        out[i].fresh = (int32_t)random_below(random_below(3) ? DRAFTS + 3 : 30);
        out[i].context = out[i].fresh + random_below(random_below(2) ? 4 : 60);
    }
    return count;
}

void plan_step_arrays(void **state) {
    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        request requests[MAX_TEST_REQUESTS];
        seed(1000 + (uint64_t)trial);
        int paged = trial % 2;
        int32_t count = random_requests(requests);
        layers *l = layers_make(plain_shape(paged ? TAMIS_K_MXFP4_PAGE : TAMIS_K_MXFP4_ROW),
                                requests, count);
        tamis_indexer *indexer = layers_indexer(l, "ref", TAMIS_SPARSE_ON);
        tamis_plan *plan = layers_plan(l, indexer, 1, l->batch.tokens + 20);
        int32_t *at = NULL;
        for (int again = 0; again < 3; again++) {
            l->batch.padded_rows = again ? l->batch.tokens + random_below(21) : 0;
            tamis_step step = layers_step(plan, &l->batch);
            check_arrays(&l->batch, &step, 1 + DRAFTS, paged);
            assert_int_equal(step.serial, again + 1);
            assert_int_equal(step.counts->serial, step.serial);
            assert_ptr_equal(step.plan, plan);
            assert_true(again == 0 || step.token == at); /* the same addresses */
            at = step.token;
        }
        tamis_indexer_destroy(indexer);
        release();
    }
}

/* Arrays of a ratio whose layers select nothing are not read, whatever they hold. */
void plan_step_of_one_ratio(void **state) {
    static const request two[] = {{40, 4}, {50, 20}};
    const int32_t junk[] = {INT32_MAX, INT32_MIN};
    (void)state;
    for (int32_t layout = TAMIS_K_MXFP4_PAGE; layout <= TAMIS_K_MXFP4_ROW; layout++) {
        seed(4);
        layers *l = layers_make(plain_shape(layout), two, COUNT(two));
        l->ratios[LAYER_FULL] = l->ratios[LAYER_REUSE] = 1;
        tamis_indexer *indexer = layers_indexer(l, "ref", TAMIS_SPARSE_ON);
        tamis_plan *plan = layers_plan(l, indexer, 1, 0);
        l->batch.k_start[1] = junk;
        l->batch.page_table[1] = NULL;
        l->batch.page_table_width[1] = INT64_MIN;
        tamis_step step = layers_step(plan, &l->batch);
        for (int64_t r = 0; r < step.counts->rows; r++) {
            int32_t start = layout == TAMIS_K_MXFP4_PAGE ? 0 : l->keys[0].k_start[step.request[r]];
            assert_int_equal(step.ks[0][r], start);
            assert_int_equal(step.ks[1][r], 0);
            assert_int_equal(step.ke[1][r], (step.ke[0][r] - start) / 2);
        }
        tamis_indexer_destroy(indexer);
        release();
    }
}

static tamis_plan_limits good_limits(void) {
    tamis_plan_limits limits;
    tamis_plan_limits_default(&limits);
    limits.max_requests = 16;
    limits.max_batched_tokens = 24;
    limits.draft_tokens = 2;
    limits.max_context = 100;
    return limits;
}

static void check_max_rows(void) {
    tamis_plan_limits l = good_limits();
    assert_int_equal(tamis_plan_max_rows(&l), 48); /* 16 requests of 3 tokens */
    l.max_batched_tokens = 49;
    assert_int_equal(tamis_plan_max_rows(&l), 49);
    l.largest_graph = 50;
    assert_int_equal(tamis_plan_max_rows(&l), 50);
    l.max_requests = 65536;
    l.draft_tokens = 255;
    assert_int_equal(tamis_plan_max_rows(&l), 65536 * 256);
}

static void check_bad_limits(const tamis_indexer *indexer) {
    static const struct {
        size_t field;
        int32_t low, high;
        const char *name;
    } fields[] = {
        {offsetof(tamis_plan_limits, max_requests), 1, 65536, "limits.max_requests"},
        {offsetof(tamis_plan_limits, max_batched_tokens), 1, 1 << 24, "limits.max_batched_tokens"},
        {offsetof(tamis_plan_limits, draft_tokens), 0, 255, "limits.draft_tokens"},
        {offsetof(tamis_plan_limits, largest_graph), 0, 1 << 24, "limits.largest_graph"},
        {offsetof(tamis_plan_limits, threads), 1, 1024, "limits.threads"},
    };
    for (int i = 0; i < COUNT(fields); i++) {
        const int32_t values[] = {fields[i].low - 1, INT32_MIN, fields[i].high + 1, INT32_MAX};
        for (int v = 0; v < COUNT(values); v++) {
            tamis_plan_limits l = good_limits();
            tamis_error error = {0};
            memcpy((char *)&l + fields[i].field, &values[v], sizeof values[v]);
            assert_int_equal(tamis_plan_bytes(indexer, &l, &error), -1);
            refused(error.status, TAMIS_ERROR_LIMIT, &error, fields[i].name, watched(), __LINE__);
            assert_int_equal(tamis_plan_max_rows(&l), -1);
        }
    }
    const int64_t contexts[] = {0, -1, INT64_MIN, (int64_t)INT32_MAX + 1, INT64_MAX};
    for (int v = 0; v < COUNT(contexts); v++) {
        tamis_plan_limits l = good_limits();
        tamis_error error = {0};
        l.max_context = contexts[v];
        assert_int_equal(tamis_plan_bytes(indexer, &l, &error), -1);
        refused(error.status, TAMIS_ERROR_LIMIT, &error, "limits.max_context", watched(), __LINE__);
    }
}

static void check_bad_memory(const tamis_indexer *indexer) {
    tamis_plan_limits l = good_limits();
    tamis_error e = {0};
    tamis_plan *plan = NULL;
    int64_t bytes = tamis_plan_bytes(indexer, &l, &e);
    uint8_t *memory = fresh(bytes + 64);
    assert_true(bytes > 0 && bytes % 64 == 0);
    watch_none();
    watch(memory, bytes + 64);
    uint64_t before = watched();
    refused(tamis_plan_init(indexer, &l, memory, bytes - 1, &plan, &e), TAMIS_ERROR_WORKSPACE, &e,
            "bytes", before, __LINE__);
    refused(tamis_plan_init(indexer, &l, memory + 8, bytes, &plan, &e), TAMIS_ERROR_WORKSPACE, &e,
            "memory", before, __LINE__);
    refused(tamis_plan_init(indexer, &l, NULL, bytes, &plan, &e), TAMIS_ERROR_WORKSPACE, &e,
            "memory", before, __LINE__);
    refused(tamis_plan_init(NULL, &l, memory, bytes, &plan, &e), TAMIS_ERROR_ARGUMENT, &e,
            "indexer", before, __LINE__);
    refused(tamis_plan_init(indexer, NULL, memory, bytes, &plan, &e), TAMIS_ERROR_ARGUMENT, &e,
            "limits", before, __LINE__);
    refused(tamis_plan_init(indexer, &l, memory, bytes, NULL, &e), TAMIS_ERROR_ARGUMENT, &e, "plan",
            before, __LINE__);
    l.struct_size--;
    refused(tamis_plan_init(indexer, &l, memory, bytes, &plan, &e), TAMIS_ERROR_STRUCT_SIZE, &e,
            "struct_size", before, __LINE__);
    assert_null(plan);
    l.struct_size++;
    succeeded(tamis_plan_init(indexer, &l, memory, bytes, &plan, &e), &e, __LINE__);
    untouched(memory, bytes, bytes + 64, 1, "memory past the plan");
    watch_none();
}

void plan_limits(void **state) {
    (void)state;
    request one = {9, 1};
    seed(1);
    layers *l = layers_make(plain_shape(TAMIS_K_MXFP4_PAGE), &one, 1);
    tamis_indexer *indexer = layers_indexer(l, "ref", TAMIS_SPARSE_ON);
    check_max_rows();
    watch_none();
    check_bad_limits(indexer);
    check_bad_memory(indexer);
    tamis_indexer_destroy(indexer);
}

void plan_chunk_rows(void **state) {
    (void)state;
    const int64_t budget = 512 << 20;
    assert_int_equal(tamis_chunk_rows_dense(budget, 32 << 10), 4096);
    assert_int_equal(tamis_chunk_rows_dense(budget, 128 << 10), 1024);
    assert_int_equal(tamis_chunk_rows_dense(budget, 256 << 10), 512);
    assert_int_equal(tamis_chunk_rows_dense(budget, 1 << 20), 128);
    assert_int_equal(tamis_chunk_rows_dense(budget, INT64_MAX), 1);
    assert_int_equal(tamis_chunk_rows_dense(3, 1), 1);
    const int64_t few[] = {1, 100, 8191, 8192};
    for (int i = 0; i < COUNT(few); i++) { /* 16,384 columns count as 8,192 positions */
        assert_int_equal(tamis_chunk_rows_sparse(budget, few[i], 16384), 16384);
    }
    assert_true(tamis_chunk_rows_sparse(budget, 8193, 16384) < 16384);
    assert_int_equal(tamis_chunk_rows_sparse(budget, 1 << 20, 16384), 128);
    assert_int_equal(tamis_chunk_rows_sparse(budget, 1, INT64_MAX), 1);
    const int64_t bad[] = {0, -1, INT64_MIN};
    for (int i = 0; i < COUNT(bad); i++) {
        assert_int_equal(tamis_chunk_rows_dense(bad[i], 8), -1);
        assert_int_equal(tamis_chunk_rows_dense(8, bad[i]), -1);
        assert_int_equal(tamis_chunk_rows_sparse(bad[i], 8, 8), -1);
        assert_int_equal(tamis_chunk_rows_sparse(8, bad[i], 8), -1);
        assert_int_equal(tamis_chunk_rows_sparse(8, 8, bad[i]), -1);
    }
}
