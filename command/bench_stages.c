/* SPDX-License-Identifier: MIT */
/*
 * bench_stages.c: the arguments of every stage for the last rows of a scene. Inputs that another
 * stage makes (logits, block maxima, expanded lists) are made here by that stage, untimed.
 */
#include "bench.h"
#include "command.h"

enum { LOGITS_LIMIT = 64 << 20 }; /* bytes of f32 scores that one job may hold */

int stage_has_lists(int stage) {
    return stage == STAGE_expand || stage == STAGE_sparse_mqa_logits || stage == STAGE_topk ||
           stage == STAGE_consume || stage == STAGE_dense;
}

int stage_opponent(int stage) {
    switch (stage) {
    case STAGE_sparse_mqa_logits:
        return STAGE_mqa_logits;
    case STAGE_consume:
    case STAGE_source:
        return STAGE_dense;
    case STAGE_topk:
        return STAGE_topk; /* over the whole row: lists LISTS_NONE */
    default:
        return -1;
    }
}

int64_t stage_most_rows(int stage, const bench_scene *scene) {
    int64_t wide = LOGITS_LIMIT / 4 / scene->shape.positions, rows = scene->shape.rows;
    wide = wide < 1 ? 1 : wide;
    switch (stage) {
    case STAGE_k_gather: /* one interval: rows of a prompt gather the same one */
        return 1;
    case STAGE_mqa_logits:
    case STAGE_block_max:
    case STAGE_publish:
    case STAGE_topk:
        return rows < wide ? rows : wide;
    default:
        return rows;
    }
}

/* ---- the last rows of a scene ------------------------------------------------------------------
 */

static int64_t first_row(const bench_job *job, const bench_scene *s) {
    return s->shape.rows - job->rows;
}

static tamis_rows rows_of(const bench_job *job, const bench_scene *s) {
    tamis_rows rows = s->rows;
    rows.count = job->rows;
    rows.ke += first_row(job, s);
    rows.request += first_row(job, s);
    return rows;
}

static tamis_query query_of(const bench_job *job, const bench_scene *s) {
    tamis_query query = s->query;
    query.codes += first_row(job, s) * query.codes_row_stride;
    query.scales += first_row(job, s) * query.scales_row_stride;
    query.weights = (const float *)query.weights + first_row(job, s) * query.weights_row_stride;
    return query;
}

static const int32_t *lists_of(const bench_job *job, const bench_scene *s, int32_t kind) {
    return scene_lists(s, kind) + first_row(job, s) * s->shape.blocks;
}

static int64_t visible_positions(const bench_job *job, const bench_scene *s) {
    int64_t sum = 0;
    for (int64_t r = first_row(job, s); r < s->shape.rows; r++)
        sum += scene_length(s, r);
    return sum;
}

static int64_t pool_positions(const bench_job *job, const bench_scene *s, int32_t kind) {
    int64_t sum = 0;
    for (int64_t r = 0; r < job->rows; r++) {
        const int32_t *ids = lists_of(job, s, kind) + r * s->shape.blocks;
        for (int64_t i = 0, size = s->shape.block_size; i < s->shape.blocks; i++) {
            int64_t left = scene_length(s, first_row(job, s) + r) - ids[i] * size;
            sum += ids[i] < 0 ? 0 : left < size ? left : size;
        }
    }
    return sum;
}

static void works_on(bench_job *job, const bench_scene *s, int64_t positions, int reads_k) {
    job->positions = positions;
    job->k_bytes = reads_k ? positions * tamis_k_row_bytes(s->shape.dim) : 0;
}

static tamis_selection selection_for(bench_job *job, const bench_scene *s) {
    return (tamis_selection){.topk = s->shape.topk,
                             .positions = job_take(job, job->rows * s->shape.topk * 4),
                             .positions_stride = s->shape.topk};
}

/* Runs an untimed stage whose output a job reads. */
static void make_input(bench_job *job, tamis_status status, const tamis_error *error) {
    int first = 0;
    if (status != TAMIS_OK && atomic_compare_exchange_strong(&job->failed, &first, 1))
        job->error = *error;
}

/* ---- preparing ---------------------------------------------------------------------------------
 */

static tamis_rope rope_of(const bench_scene *s) {
    return (tamis_rope){
        .table = s->rope, .type = TAMIS_F32, .positions = BENCH_ROPE, .row_stride = 64};
}

static void q_prepare_arguments(bench_job *job, const bench_scene *s) {
    tamis_q_prepare_args *a = &job->args.q_prepare;
    int64_t heads = s->shape.heads, dim = s->shape.dim, first = first_row(job, s);
    tamis_q_prepare_args_default(a);
    a->heads = s->shape.heads;
    a->head_dim = s->shape.dim;
    a->weights_in_type = a->weights_out_type = TAMIS_F32;
    a->tokens = job->rows;
    a->q = s->q + first * heads * dim;
    a->q_token_stride = heads * dim;
    a->q_head_stride = dim;
    a->positions = s->tokens + first;
    a->rope = rope_of(s);
    a->weights_in = (const float *)s->query.weights + first * heads;
    a->weights_in_stride = heads;
    a->codes = job_take(job, job->rows * heads * dim / 2);
    a->scales = job_take(job, job->rows * heads * dim / 32);
    a->weights_out = job_take(job, job->rows * heads * 4);
    a->codes_row_stride = heads * dim / 2;
    a->codes_head_stride = dim / 2;
    a->scales_row_stride = heads * dim / 32;
    a->scales_head_stride = dim / 32;
    a->weights_out_stride = heads;
    works_on(job, s, job->rows, 0);
}

/* Into pages of its own, one slot a row. */
static void k_insert_arguments(bench_job *job, const bench_scene *s) {
    static const float eps = 1e-6f;
    tamis_k_insert_args *a = &job->args.k_insert;
    int64_t first = first_row(job, s), *slots = job_take(job, job->rows * 8);
    tamis_k_insert_args_default(a);
    a->ratio = 1;
    a->norm_weight_type = TAMIS_F32;
    a->tokens = job->rows;
    a->x = s->x + first * s->shape.dim;
    a->x_stride = s->shape.dim;
    a->positions = s->tokens + first;
    a->slots = slots;
    a->norm_weight = s->ones;
    a->eps = &eps;
    a->rope = rope_of(s);
    a->k = s->k;
    a->k.size = (job->rows + BENCH_PAGE - 1) / BENCH_PAGE;
    a->k.codes = job_take(job, a->k.size * a->k.stride);
    for (int64_t i = 0; slots && i < job->rows; i++)
        slots[i] = i;
    works_on(job, s, job->rows, 0);
}

static void k_gather_arguments(bench_job *job, const bench_scene *s) {
    static const int64_t start;
    tamis_k_gather_args *a = &job->args.k_gather;
    tamis_k_gather_args_default(a);
    a->k = s->k;
    a->rows = rows_of(job, s);
    a->start = &start;
    a->size = s->shape.positions;
    a->codes_stride = s->shape.dim / 2;
    a->scales_stride = s->shape.dim / 32;
    a->codes = job_take(job, a->size * a->codes_stride);
    a->scales = job_take(job, a->size * a->scales_stride);
    works_on(job, s, visible_positions(job, s), 1);
}

/* ---- scoring -----------------------------------------------------------------------------------
 */

static void mqa_logits_arguments(bench_job *job, const bench_scene *s) {
    tamis_mqa_logits_args *a = &job->args.mqa_logits;
    tamis_mqa_logits_args_default(a);
    a->numerics = TAMIS_NUMERICS_EXACT;
    a->k = s->k;
    a->rows = rows_of(job, s);
    a->query = query_of(job, s);
    a->logits_type = TAMIS_F32;
    a->block_size = s->shape.block_size;
    a->columns = a->logits_stride = s->shape.positions;
    a->logits = job_take(job, job->rows * s->shape.positions * 4);
    works_on(job, s, visible_positions(job, s), 1);
}

static const float *full_logits(bench_job *job, const bench_scene *s) {
    bench_job score = {.rows = job->rows, .backend = job->backend};
    tamis_error error;
    mqa_logits_arguments(&score, s);
    float *logits = job_take(job, job->rows * s->shape.positions * 4);
    score.args.mqa_logits.logits = logits;
    if (logits && !score.short_of_memory)
        make_input(job, tamis_mqa_logits(job->backend, &score.args.mqa_logits, 0, 1, &error),
                   &error);
    job_free(&score);
    return logits;
}

static void block_max_arguments(bench_job *job, const bench_scene *s) {
    tamis_block_max_args *a = &job->args.block_max;
    int64_t blocks = (s->shape.positions + s->shape.block_size - 1) / s->shape.block_size;
    tamis_block_max_args_default(a);
    a->block_size = s->shape.block_size;
    a->logits_type = TAMIS_F32;
    a->rows = rows_of(job, s);
    a->logits = full_logits(job, s);
    a->logits_stride = s->shape.positions;
    a->block_max = job_take(job, job->rows * blocks * 4);
    a->block_max_stride = blocks;
    works_on(job, s, visible_positions(job, s), 0);
}

static void publish_arguments(bench_job *job, const bench_scene *s) {
    bench_job maxima = {.rows = job->rows, .backend = job->backend};
    tamis_publish_args *a = &job->args.publish;
    tamis_error error;
    block_max_arguments(&maxima, s);
    const tamis_block_max_args *m = &maxima.args.block_max;
    tamis_publish_args_default(a);
    a->block_size = s->shape.block_size;
    a->topk_blocks = s->shape.blocks;
    a->rows = rows_of(job, s);
    float *block_max = job_take(job, job->rows * m->block_max_stride * 4);
    maxima.args.block_max.block_max = block_max;
    if (block_max && !maxima.short_of_memory)
        make_input(job, tamis_block_max(job->backend, m, 0, 1, &error), &error);
    a->block_max = block_max;
    a->block_max_stride = m->block_max_stride;
    a->blocks = job_take(job, job->rows * s->shape.blocks * 4);
    a->blocks_stride = s->shape.blocks;
    job_free(&maxima);
    works_on(job, s, visible_positions(job, s), 0);
}

static void expand_arguments(bench_job *job, const bench_scene *s, int32_t lists) {
    tamis_expand_args *a = &job->args.expand;
    tamis_expand_args_default(a);
    a->candidate_size = a->block_size = s->shape.block_size;
    a->rows = rows_of(job, s);
    a->width = s->shape.blocks;
    a->candidates = lists_of(job, s, lists);
    a->candidates_stride = s->shape.blocks;
    a->blocks = job_take(job, job->rows * s->shape.blocks * 4);
    a->blocks_stride = s->shape.blocks;
    a->counts = job_take(job, job->rows * 4);
    works_on(job, s, pool_positions(job, s, lists), 0);
}

static void sparse_mqa_logits_arguments(bench_job *job, const bench_scene *s, int32_t lists) {
    tamis_sparse_mqa_logits_args *a = &job->args.sparse_mqa_logits;
    tamis_sparse_mqa_logits_args_default(a);
    a->numerics = TAMIS_NUMERICS_EXACT;
    a->k = s->k;
    a->rows = rows_of(job, s);
    a->query = query_of(job, s);
    a->block_size = s->shape.block_size;
    a->logits_type = TAMIS_F32;
    a->width = s->shape.blocks;
    a->blocks = lists_of(job, s, lists);
    a->blocks_stride = s->shape.blocks;
    a->logits_stride = a->width * s->shape.block_size;
    a->logits = job_take(job, job->rows * a->logits_stride * 4);
    works_on(job, s, pool_positions(job, s, lists), 1);
}

/* ---- selecting ---------------------------------------------------------------------------------
 */

/* Over the scores of the pool, or of the whole row when lists is LISTS_NONE. */
static void topk_arguments(bench_job *job, const bench_scene *s, int32_t lists) {
    tamis_topk_args *a = &job->args.topk;
    tamis_topk_args_default(a);
    a->logits_type = TAMIS_F32;
    a->rows = rows_of(job, s);
    a->selection = selection_for(job, s);
    if (lists == LISTS_NONE) {
        a->logits = full_logits(job, s);
        a->width = a->logits_stride = s->shape.positions;
        works_on(job, s, visible_positions(job, s), 0);
        return;
    }
    bench_job score = {.rows = job->rows, .backend = job->backend};
    tamis_error error;
    sparse_mqa_logits_arguments(&score, s, lists);
    tamis_sparse_mqa_logits_args *scores = &score.args.sparse_mqa_logits;
    float *logits = job_take(job, job->rows * scores->logits_stride * 4);
    scores->logits = logits;
    if (logits && !score.short_of_memory)
        make_input(job, tamis_sparse_mqa_logits(job->backend, scores, 0, 1, &error), &error);
    a->block_size = s->shape.block_size;
    a->logits = logits;
    a->width = a->logits_stride = scores->logits_stride;
    a->blocks = scores->blocks;
    a->blocks_stride = scores->blocks_stride;
    job_free(&score);
    works_on(job, s, pool_positions(job, s, lists), 0);
}

/* ---- the two levels
 * ------------------------------------------------------------------------------ */

static void consume_arguments(bench_job *job, const bench_scene *s, int32_t lists) {
    tamis_consume_args *a = &job->args.consume;
    tamis_consume_args_default(a);
    a->numerics = TAMIS_NUMERICS_EXACT;
    a->k = s->k;
    a->rows = rows_of(job, s);
    a->query = query_of(job, s);
    a->block_size = s->shape.block_size;
    a->width = a->blocks_stride = s->shape.blocks;
    a->blocks = lists_of(job, s, lists);
    a->selection = selection_for(job, s);
    works_on(job, s, pool_positions(job, s, lists), 1);
}

static void source_arguments(bench_job *job, const bench_scene *s) {
    tamis_source_args *a = &job->args.source;
    tamis_source_args_default(a);
    a->numerics = TAMIS_NUMERICS_EXACT;
    a->k = s->k;
    a->rows = rows_of(job, s);
    a->query = query_of(job, s);
    a->block_size = s->shape.block_size;
    a->topk_blocks = s->shape.blocks;
    a->blocks = job_take(job, job->rows * s->shape.blocks * 4);
    a->blocks_stride = s->shape.blocks;
    a->selection = selection_for(job, s);
    works_on(job, s, visible_positions(job, s), 1);
}

/* Masked by lists, or a full layer when lists is LISTS_NONE. */
static void dense_arguments(bench_job *job, const bench_scene *s, int32_t lists) {
    tamis_dense_args *a = &job->args.dense;
    tamis_dense_args_default(a);
    a->numerics = TAMIS_NUMERICS_EXACT;
    a->k = s->k;
    a->rows = rows_of(job, s);
    a->query = query_of(job, s);
    a->block_size = s->shape.block_size;
    if (lists != LISTS_NONE) {
        a->width = a->blocks_stride = s->shape.blocks;
        a->blocks = lists_of(job, s, lists);
    }
    a->selection = selection_for(job, s);
    works_on(job, s, visible_positions(job, s), 1);
}

void stage_arguments(bench_job *job, const bench_scene *scene, int32_t lists) {
    switch (job->stage) {
    case STAGE_q_prepare:
        q_prepare_arguments(job, scene);
        break;
    case STAGE_k_insert:
        k_insert_arguments(job, scene);
        break;
    case STAGE_k_gather:
        k_gather_arguments(job, scene);
        break;
    case STAGE_mqa_logits:
        mqa_logits_arguments(job, scene);
        break;
    case STAGE_block_max:
        block_max_arguments(job, scene);
        break;
    case STAGE_publish:
        publish_arguments(job, scene);
        break;
    case STAGE_expand:
        expand_arguments(job, scene, lists);
        break;
    case STAGE_sparse_mqa_logits:
        sparse_mqa_logits_arguments(job, scene, lists);
        break;
    case STAGE_topk:
        topk_arguments(job, scene, lists);
        break;
    case STAGE_consume:
        consume_arguments(job, scene, lists);
        break;
    case STAGE_source:
        source_arguments(job, scene);
        break;
    default:
        dense_arguments(job, scene, lists);
        break;
    }
}
