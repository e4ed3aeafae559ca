# SPDX-License-Identifier: MIT
"""Registers the drop-in calls with torch as ``torch.ops.tamis.*``, with fake implementations.

``import tamis.torch_ops`` registers; torch.compile and export then trace through models that call
them. Arguments are those of :mod:`tamis.deepgemm` and :mod:`tamis.vllm`; pairs are spelled out as
two tensors, since operators take no tuples, and dtypes that can only be packed MXFP4 are left out.
"""

# No postponed annotations here: torch reads the operators' schemas from them.

from typing import Tuple

import torch
from torch import Tensor
from torch.library import custom_op

from . import deepgemm, stages, vllm
from ._dropin import Names, blocks_of, sparse_block
from .views import Query, Rows

__all__ = [
    "consume_pages",
    "expand_candidates",
    "paged_sparse_mqa_logits",
    "paged_sparse_mqa_logits_metadata",
    "sparse_mqa_logits",
    "sparse_mqa_logits_metadata",
    "topk_remap",
]

# What the stages' arguments are called in consume_pages.
_CONSUME = {
    "rows.ke": "context_lens",
    "rows.page_table": "block_table",
    "query.codes": "q",
    "query.scales": "q_scale",
    "query.weights": "weights",
}


@custom_op("tamis::sparse_mqa_logits_metadata", mutates_args=())
def sparse_mqa_logits_metadata(
    ks: Tensor,
    ke: Tensor,
    num_kv_tokens: int,
    blocks: Tensor,
    sparse_block_kv: int,
    unaligned: bool,
) -> Tensor:
    """``deepgemm.get_sparse_mqa_logits_metadata``."""
    return deepgemm.get_sparse_mqa_logits_metadata(
        ks, ke, num_kv_tokens, blocks, torch.int8, sparse_block_kv, unaligned
    )


@sparse_mqa_logits_metadata.register_fake
def _(
    ks: Tensor,
    ke: Tensor,
    num_kv_tokens: int,
    blocks: Tensor,
    sparse_block_kv: int,
    unaligned: bool,
) -> Tensor:
    return deepgemm.new_metadata(blocks, sparse_block_kv, unaligned=unaligned)


@custom_op("tamis::paged_sparse_mqa_logits_metadata", mutates_args=())
def paged_sparse_mqa_logits_metadata(
    context_lens: Tensor, block_table: Tensor, page_kv: int, blocks: Tensor, sparse_block_kv: int
) -> Tensor:
    """``deepgemm.get_paged_sparse_mqa_logits_metadata``."""
    return deepgemm.get_paged_sparse_mqa_logits_metadata(
        context_lens, block_table, None, page_kv, blocks, torch.int8, sparse_block_kv
    )


@paged_sparse_mqa_logits_metadata.register_fake
def _(
    context_lens: Tensor, block_table: Tensor, page_kv: int, blocks: Tensor, sparse_block_kv: int
) -> Tensor:
    return deepgemm.new_metadata(blocks, sparse_block_kv, page_kv)


@custom_op("tamis::sparse_mqa_logits", mutates_args=())
def sparse_mqa_logits(
    q: Tensor,
    q_scale: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    metadata: Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
    unaligned: bool,
) -> Tensor:
    """``deepgemm.fp8_fp4_sparse_mqa_logits``."""
    return deepgemm.fp8_fp4_sparse_mqa_logits(
        (q, q_scale),
        (k, k_scale),
        weights,
        metadata,
        num_max_sparse_blocks,
        sparse_block_kv,
        unaligned,
    )


@sparse_mqa_logits.register_fake
def _(
    q: Tensor,
    q_scale: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    metadata: Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
    unaligned: bool,
) -> Tensor:
    return deepgemm.new_logits(q, q.shape[0], num_max_sparse_blocks * sparse_block_kv)


@custom_op("tamis::paged_sparse_mqa_logits", mutates_args=())
def paged_sparse_mqa_logits(
    q: Tensor,
    q_scale: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    metadata: Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
) -> Tensor:
    """``deepgemm.fp8_fp4_paged_sparse_mqa_logits``."""
    return deepgemm.fp8_fp4_paged_sparse_mqa_logits(
        (q, q_scale), kv_cache, weights, metadata, num_max_sparse_blocks, sparse_block_kv
    )


@paged_sparse_mqa_logits.register_fake
def _(
    q: Tensor,
    q_scale: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    metadata: Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
) -> Tensor:
    return deepgemm.new_logits(q, q.shape[0], num_max_sparse_blocks * sparse_block_kv)


@custom_op("tamis::expand_candidates", mutates_args=())
def expand_candidates(
    candidates: Tensor, ks: Tensor, ke: Tensor, candidate_block_size: int, sparse_block_kv: int
) -> Tuple[Tensor, Tensor]:
    """``vllm.candidate_blocks_to_sparse_indices``."""
    return vllm.candidate_blocks_to_sparse_indices(
        candidates, ks, ke, candidate_block_size, sparse_block_kv
    )


@expand_candidates.register_fake
def _(
    candidates: Tensor, ks: Tensor, ke: Tensor, candidate_block_size: int, sparse_block_kv: int
) -> Tuple[Tensor, Tensor]:
    rows, width = candidates.shape
    sparse_block(sparse_block_kv)
    ratio = blocks_of("candidate_block_size", candidate_block_size, sparse_block_kv)
    return candidates.new_empty((rows, width * ratio)), candidates.new_empty((rows,))


@custom_op("tamis::topk_remap", mutates_args=("topk_indices",))
def topk_remap(
    logits: Tensor,
    sparse_indices: Tensor,
    end: Tensor,
    ks: Tensor,
    sparse_block_kv: int,
    topk_tokens: int,
    topk_indices: Tensor,
) -> None:
    """``vllm.sparse_topk_remap``."""
    vllm.sparse_topk_remap(
        logits, sparse_indices, end, ks, sparse_block_kv, topk_tokens, topk_indices
    )


@topk_remap.register_fake
def _(
    logits: Tensor,
    sparse_indices: Tensor,
    end: Tensor,
    ks: Tensor,
    sparse_block_kv: int,
    topk_tokens: int,
    topk_indices: Tensor,
) -> None:
    return None


@custom_op("tamis::consume_pages", mutates_args=())
def consume_pages(
    q: Tensor,
    q_scale: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    blocks: Tensor,
    topk: int,
    sparse_block_kv: int,
) -> Tensor:
    """A consumer in one call, in exact scores: int32 ``[R, topk]``, positions ascending, -1 tail.

    q int8 ``[R, H, D/2]``, q_scale int32 ``[R, H]``, kv_cache bytes ``[pages, page, 1, 68]``,
    weights bfloat16 or float32 ``[R, H]``, context_lens int32 ``[R]``, block_table int32
    ``[R, pages]``, blocks int32 ``[R, W]`` of any kind.
    """
    request = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    packed = deepgemm.scale_bytes(q_scale, "q_scale")
    with Names(_CONSUME):
        selection = stages.consume(
            deepgemm.page_cache(kv_cache, 2 * q.shape[2]),
            Rows(context_lens, request=request, page_table=block_table),
            Query(q, packed, weights),
            blocks,
            topk,
            block_size=sparse_block_kv,
            want=("positions",),
        )
    positions: Tensor = selection.positions
    return positions


@consume_pages.register_fake
def _(
    q: Tensor,
    q_scale: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    blocks: Tensor,
    topk: int,
    sparse_block_kv: int,
) -> Tensor:
    return blocks.new_empty((q.shape[0], topk))
