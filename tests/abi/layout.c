/* SPDX-License-Identifier: MIT */
/*
 * layout.c: sizes and offsets of every public struct, as foreign-function bindings mirror them on
 * 64-bit machines. None has a hole. An assertion that fails here is a break of the ABI: raise
 * TAMIS_ABI_VERSION together with it.
 */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>

#include <tamis/tamis.h>

#define SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type " has another size");
#define AT(type, field, offset)                                                                    \
    static_assert(offsetof(type, field) == (offset), #type "." #field " has moved");

/* clang-format off */
SIZE(tamis_error, 320)
AT(tamis_error, status, 0)
AT(tamis_error, argument, 4)
AT(tamis_error, required, 64)
AT(tamis_error, found, 192)

SIZE(tamis_k_cache, 56)
AT(tamis_k_cache, layout, 0)
AT(tamis_k_cache, head_dim, 4)
AT(tamis_k_cache, page_size, 8)
AT(tamis_k_cache, reserved, 12)
AT(tamis_k_cache, size, 16)
AT(tamis_k_cache, stride, 24)
AT(tamis_k_cache, scales_stride, 32)
AT(tamis_k_cache, codes, 40)
AT(tamis_k_cache, scales, 48)

SIZE(tamis_rows, 64)
AT(tamis_rows, count, 0)
AT(tamis_rows, ks, 8)
AT(tamis_rows, ke, 16)
AT(tamis_rows, request, 24)
AT(tamis_rows, page_table, 32)
AT(tamis_rows, page_table_stride, 40)
AT(tamis_rows, page_table_width, 48)
AT(tamis_rows, requests, 56)

SIZE(tamis_query, 80)
AT(tamis_query, heads, 0)
AT(tamis_query, head_dim, 4)
AT(tamis_query, weights_type, 8)
AT(tamis_query, reserved, 12)
AT(tamis_query, codes, 16)
AT(tamis_query, scales, 24)
AT(tamis_query, weights, 32)
AT(tamis_query, codes_row_stride, 40)
AT(tamis_query, codes_head_stride, 48)
AT(tamis_query, scales_row_stride, 56)
AT(tamis_query, scales_head_stride, 64)
AT(tamis_query, weights_row_stride, 72)

SIZE(tamis_selection, 64)
AT(tamis_selection, topk, 0)
AT(tamis_selection, reserved, 4)
AT(tamis_selection, positions, 8)
AT(tamis_selection, positions_stride, 16)
AT(tamis_selection, slots, 24)
AT(tamis_selection, slots_stride, 32)
AT(tamis_selection, scores, 40)
AT(tamis_selection, scores_stride, 48)
AT(tamis_selection, counts, 56)

SIZE(tamis_model, 64)
AT(tamis_model, struct_size, 0)
AT(tamis_model, num_layers, 4)
AT(tamis_model, compress_ratios, 8)
AT(tamis_model, kv_source_layer_ids, 16)
AT(tamis_model, index_source_layer_ids, 24)
AT(tamis_model, num_kv_sources, 32)
AT(tamis_model, num_index_sources, 36)
AT(tamis_model, candidate_source_layer_id, 40)
AT(tamis_model, candidate_topk_blocks, 44)
AT(tamis_model, candidate_block_size, 48)
AT(tamis_model, index_n_heads, 52)
AT(tamis_model, index_head_dim, 56)
AT(tamis_model, index_topk, 60)

SIZE(tamis_layer_role, 16)
AT(tamis_layer_role, role, 0)
AT(tamis_layer_role, ratio, 4)
AT(tamis_layer_role, k_owner, 8)
AT(tamis_layer_role, source, 12)

SIZE(tamis_rope, 32)
AT(tamis_rope, table, 0)
AT(tamis_rope, type, 8)
AT(tamis_rope, reserved, 12)
AT(tamis_rope, positions, 16)
AT(tamis_rope, row_stride, 24)

SIZE(tamis_q_prepare_args, 176)
AT(tamis_q_prepare_args, struct_size, 0)
AT(tamis_q_prepare_args, heads, 4)
AT(tamis_q_prepare_args, head_dim, 8)
AT(tamis_q_prepare_args, weights_in_type, 12)
AT(tamis_q_prepare_args, weights_out_type, 16)
AT(tamis_q_prepare_args, reserved, 20)
AT(tamis_q_prepare_args, tokens, 24)
AT(tamis_q_prepare_args, q, 32)
AT(tamis_q_prepare_args, q_token_stride, 40)
AT(tamis_q_prepare_args, q_head_stride, 48)
AT(tamis_q_prepare_args, positions, 56)
AT(tamis_q_prepare_args, rope, 64)
AT(tamis_q_prepare_args, weights_in, 96)
AT(tamis_q_prepare_args, weights_in_stride, 104)
AT(tamis_q_prepare_args, codes, 112)
AT(tamis_q_prepare_args, scales, 120)
AT(tamis_q_prepare_args, weights_out, 128)
AT(tamis_q_prepare_args, codes_row_stride, 136)
AT(tamis_q_prepare_args, codes_head_stride, 144)
AT(tamis_q_prepare_args, scales_row_stride, 152)
AT(tamis_q_prepare_args, scales_head_stride, 160)
AT(tamis_q_prepare_args, weights_out_stride, 168)

SIZE(tamis_k_insert_args, 160)
AT(tamis_k_insert_args, struct_size, 0)
AT(tamis_k_insert_args, ratio, 4)
AT(tamis_k_insert_args, norm_weight_type, 8)
AT(tamis_k_insert_args, reserved, 12)
AT(tamis_k_insert_args, tokens, 16)
AT(tamis_k_insert_args, x, 24)
AT(tamis_k_insert_args, x_stride, 32)
AT(tamis_k_insert_args, positions, 40)
AT(tamis_k_insert_args, slots, 48)
AT(tamis_k_insert_args, norm_weight, 56)
AT(tamis_k_insert_args, eps, 64)
AT(tamis_k_insert_args, rope, 72)
AT(tamis_k_insert_args, k, 104)

SIZE(tamis_k_gather_args, 176)
AT(tamis_k_gather_args, struct_size, 0)
AT(tamis_k_gather_args, reserved, 4)
AT(tamis_k_gather_args, k, 8)
AT(tamis_k_gather_args, rows, 64)
AT(tamis_k_gather_args, start, 128)
AT(tamis_k_gather_args, size, 136)
AT(tamis_k_gather_args, codes, 144)
AT(tamis_k_gather_args, scales, 152)
AT(tamis_k_gather_args, codes_stride, 160)
AT(tamis_k_gather_args, scales_stride, 168)

SIZE(tamis_mqa_logits_args, 256)
AT(tamis_mqa_logits_args, struct_size, 0)
AT(tamis_mqa_logits_args, numerics, 4)
AT(tamis_mqa_logits_args, k, 8)
AT(tamis_mqa_logits_args, rows, 64)
AT(tamis_mqa_logits_args, query, 128)
AT(tamis_mqa_logits_args, logits_type, 208)
AT(tamis_mqa_logits_args, block_size, 212)
AT(tamis_mqa_logits_args, columns, 216)
AT(tamis_mqa_logits_args, logits, 224)
AT(tamis_mqa_logits_args, logits_stride, 232)
AT(tamis_mqa_logits_args, block_max, 240)
AT(tamis_mqa_logits_args, block_max_stride, 248)

SIZE(tamis_block_max_args, 112)
AT(tamis_block_max_args, struct_size, 0)
AT(tamis_block_max_args, block_size, 4)
AT(tamis_block_max_args, logits_type, 8)
AT(tamis_block_max_args, reserved, 12)
AT(tamis_block_max_args, rows, 16)
AT(tamis_block_max_args, logits, 80)
AT(tamis_block_max_args, logits_stride, 88)
AT(tamis_block_max_args, block_max, 96)
AT(tamis_block_max_args, block_max_stride, 104)

SIZE(tamis_publish_args, 120)
AT(tamis_publish_args, struct_size, 0)
AT(tamis_publish_args, block_size, 4)
AT(tamis_publish_args, topk_blocks, 8)
AT(tamis_publish_args, reserved, 12)
AT(tamis_publish_args, rows, 16)
AT(tamis_publish_args, block_max, 80)
AT(tamis_publish_args, block_max_stride, 88)
AT(tamis_publish_args, blocks, 96)
AT(tamis_publish_args, blocks_stride, 104)
AT(tamis_publish_args, counts, 112)

SIZE(tamis_expand_args, 136)
AT(tamis_expand_args, struct_size, 0)
AT(tamis_expand_args, candidate_size, 4)
AT(tamis_expand_args, block_size, 8)
AT(tamis_expand_args, flags, 12)
AT(tamis_expand_args, rows, 16)
AT(tamis_expand_args, width, 80)
AT(tamis_expand_args, candidates, 88)
AT(tamis_expand_args, candidates_stride, 96)
AT(tamis_expand_args, blocks, 104)
AT(tamis_expand_args, blocks_stride, 112)
AT(tamis_expand_args, counts, 120)
AT(tamis_expand_args, columns, 128)

SIZE(tamis_sparse_mqa_logits_args, 264)
AT(tamis_sparse_mqa_logits_args, struct_size, 0)
AT(tamis_sparse_mqa_logits_args, numerics, 4)
AT(tamis_sparse_mqa_logits_args, k, 8)
AT(tamis_sparse_mqa_logits_args, rows, 64)
AT(tamis_sparse_mqa_logits_args, query, 128)
AT(tamis_sparse_mqa_logits_args, block_size, 208)
AT(tamis_sparse_mqa_logits_args, logits_type, 212)
AT(tamis_sparse_mqa_logits_args, width, 216)
AT(tamis_sparse_mqa_logits_args, blocks, 224)
AT(tamis_sparse_mqa_logits_args, blocks_stride, 232)
AT(tamis_sparse_mqa_logits_args, counts, 240)
AT(tamis_sparse_mqa_logits_args, logits, 248)
AT(tamis_sparse_mqa_logits_args, logits_stride, 256)

SIZE(tamis_topk_args, 200)
AT(tamis_topk_args, struct_size, 0)
AT(tamis_topk_args, logits_type, 4)
AT(tamis_topk_args, block_size, 8)
AT(tamis_topk_args, reserved, 12)
AT(tamis_topk_args, rows, 16)
AT(tamis_topk_args, logits, 80)
AT(tamis_topk_args, logits_stride, 88)
AT(tamis_topk_args, width, 96)
AT(tamis_topk_args, columns, 104)
AT(tamis_topk_args, blocks, 112)
AT(tamis_topk_args, blocks_stride, 120)
AT(tamis_topk_args, page_size, 128)
AT(tamis_topk_args, reserved2, 132)
AT(tamis_topk_args, selection, 136)

SIZE(tamis_consume_args, 328)
AT(tamis_consume_args, struct_size, 0)
AT(tamis_consume_args, numerics, 4)
AT(tamis_consume_args, k, 8)
AT(tamis_consume_args, rows, 64)
AT(tamis_consume_args, query, 128)
AT(tamis_consume_args, block_size, 208)
AT(tamis_consume_args, reserved, 212)
AT(tamis_consume_args, width, 216)
AT(tamis_consume_args, blocks, 224)
AT(tamis_consume_args, blocks_stride, 232)
AT(tamis_consume_args, counts, 240)
AT(tamis_consume_args, selection, 248)
AT(tamis_consume_args, workspace, 312)
AT(tamis_consume_args, workspace_bytes, 320)

SIZE(tamis_source_args, 320)
AT(tamis_source_args, struct_size, 0)
AT(tamis_source_args, numerics, 4)
AT(tamis_source_args, k, 8)
AT(tamis_source_args, rows, 64)
AT(tamis_source_args, query, 128)
AT(tamis_source_args, block_size, 208)
AT(tamis_source_args, topk_blocks, 212)
AT(tamis_source_args, blocks, 216)
AT(tamis_source_args, blocks_stride, 224)
AT(tamis_source_args, counts, 232)
AT(tamis_source_args, selection, 240)
AT(tamis_source_args, workspace, 304)
AT(tamis_source_args, workspace_bytes, 312)

SIZE(tamis_dense_args, 328)
AT(tamis_dense_args, struct_size, 0)
AT(tamis_dense_args, numerics, 4)
AT(tamis_dense_args, k, 8)
AT(tamis_dense_args, rows, 64)
AT(tamis_dense_args, query, 128)
AT(tamis_dense_args, block_size, 208)
AT(tamis_dense_args, reserved, 212)
AT(tamis_dense_args, width, 216)
AT(tamis_dense_args, blocks, 224)
AT(tamis_dense_args, blocks_stride, 232)
AT(tamis_dense_args, counts, 240)
AT(tamis_dense_args, selection, 248)
AT(tamis_dense_args, workspace, 312)
AT(tamis_dense_args, workspace_bytes, 320)

/* clang-format on */

/* _default() sets struct_size to what this program was compiled with. */
static int defaults_agree(void) {
    int wrong = 0;
#define CHECK_DEFAULT(name)                                                                        \
    {                                                                                              \
        tamis_##name##_args args;                                                                  \
        unsigned char *bytes = (unsigned char *)&args;                                             \
        for (size_t i = 0; i < sizeof args; i++)                                                   \
            bytes[i] = 0xA5;                                                                       \
        tamis_##name##_args_default(&args);                                                        \
        wrong += args.struct_size != sizeof args;                                                  \
        for (size_t i = sizeof args.struct_size; i < sizeof args; i++)                             \
            wrong += bytes[i] != 0;                                                                \
    }
    TAMIS_STAGE_LIST(CHECK_DEFAULT)
#undef CHECK_DEFAULT
    return wrong;
}

int main(void) {
    int wrong = defaults_agree();
    if (wrong)
        fprintf(stderr, "FAILED: %d fields or bytes are not as _default() promises\n", wrong);
    return wrong != 0;
}
