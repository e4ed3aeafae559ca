# SPDX-License-Identifier: MIT
"""Candidate expansion, remap and the two flows of vLLM's sparse MQA indexer, on any device.

The calls are those of its kernels' module (``sparse_mqa_logits.py`` of the DSA attention kernels),
with its argument names, so that a plugin can put these in their place: examples/vllm_plugin does.
Outputs go to the caller's buffers, of any row stride. What differs:

* scores come from :mod:`tamis.deepgemm`: exact, then bfloat16, the same on every device;
* ties go to the lower position, NaN last, and positions ascend in a row (their order is free there);
* any topk up to 4,096, not 512, 1,024 and 2,048 alone;
* the two flows drop duplicates, so that no position is selected twice (expansion alone keeps them);
* ``workspace``, ``col_indices``, ``zero_starts`` and ``decode`` are taken and not needed.
"""

from __future__ import annotations

from typing import Optional, Tuple

import torch

from . import stages
from .deepgemm import (
    fp8_fp4_paged_sparse_mqa_logits,
    fp8_fp4_sparse_mqa_logits,
    get_paged_sparse_mqa_logits_metadata,
    get_sparse_mqa_logits_metadata,
)
from .errors import ArgumentError
from .stages import Expanded
from .views import Rows, Selection

__all__ = [
    "SPARSE_BLOCK_KV_CHOICES",
    "candidate_blocks_to_sparse_indices",
    "pick_sparse_block_kv",
    "sparse_mqa_logits_paged_decode",
    "sparse_mqa_logits_prefill_chunk",
    "sparse_topk_remap",
]

#: Positions of a sparse block, the larger first.
SPARSE_BLOCK_KV_CHOICES = (16, 8)

_INT32_MAX = 2**31 - 1


def pick_sparse_block_kv(candidate_block_size: int) -> int:
    """The largest sparse block that divides a candidate block."""
    for size in SPARSE_BLOCK_KV_CHOICES:
        if candidate_block_size > 0 and candidate_block_size % size == 0:
            return size
    raise ArgumentError("candidate_block_size", "a multiple of 8", str(candidate_block_size))


def candidate_blocks_to_sparse_indices(
    candidate_blocks: torch.Tensor,
    row_ks: torch.Tensor,
    row_ke: torch.Tensor,
    candidate_block_size: int,
    sparse_block_kv: int,
    out: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    *,
    keep_duplicates: bool = True,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Candidate blocks of any kind as ascending sparse blocks of fixed width.

    Args:
        candidate_blocks: int32 ``[R, K]``, local to the row's interval: any order, -1, duplicates,
            out of range.
        row_ks, row_ke: int32 ``[R]``, the row's interval of K.
        candidate_block_size, sparse_block_kv: positions of a block in and out.
        out: int32 ``[R, K * ratio]`` and ``[R]``, strided as they like.
        keep_duplicates: of ids. Scores of a list that keeps them are not for its columns:
            ``get_sparse_mqa_logits_metadata`` wants unique ids.

    Returns:
        sparse_indices: ids anchored at row_ks / sparse_block_kv, ascending; the tail repeats the
            last one (the anchor, where a row has none).
        end: how many leading columns are valid.
    """
    rows, count = candidate_blocks.shape
    if out is None:
        width = count * (candidate_block_size // sparse_block_kv)
        made = {"dtype": torch.int32, "device": candidate_blocks.device}
        out = (torch.empty((rows, width), **made), torch.empty(rows, **made))  # type: ignore[call-overload]
    stages.expand(
        candidate_blocks,
        Rows(torch.maximum(row_ke, row_ks), ks=row_ks),
        candidate_size=candidate_block_size,
        block_size=sparse_block_kv,
        keep_duplicates=keep_duplicates,
        fixed_width=True,
        out=Expanded(out[0], None, out[1]),
    )
    return out


def sparse_topk_remap(
    logits: torch.Tensor,
    sparse_indices: torch.Tensor,
    end: torch.Tensor,
    row_ks: torch.Tensor,
    sparse_block_kv: int,
    topk_tokens: int,
    topk_indices: torch.Tensor,
    *,
    col_indices: Optional[torch.Tensor] = None,
    workspace: Optional[torch.Tensor] = None,
    zero_starts: Optional[torch.Tensor] = None,
    decode: bool = False,
) -> None:
    """The best ``topk_tokens`` of each row's first ``end`` columns as positions of its request.

    Args:
        logits: bfloat16 or float32 ``[R, W * sparse_block_kv]``.
        sparse_indices, end: of ``candidate_blocks_to_sparse_indices``.
        row_ks: int32 ``[R]``; zeros for paged K.
        topk_indices: int32 ``[R, topk_tokens or more]``; the first ``topk_tokens`` are written,
            ascending, -1 in the tail.
    """
    visible = torch.full_like(row_ks, _INT32_MAX)  # `end` says what counts
    stages.topk(
        logits,
        Rows(visible, ks=row_ks),
        topk_tokens,
        columns=end if end.dtype == torch.int32 else end.int(),
        blocks=sparse_indices,
        block_size=sparse_block_kv,
        out=Selection(positions=topk_indices[:, :topk_tokens]),
    )


def sparse_mqa_logits_prefill_chunk(
    q: torch.Tensor,
    q_scale: torch.Tensor,
    k_quant: torch.Tensor,
    k_scale: torch.Tensor,
    weights: torch.Tensor,
    cu_seqlen_ks: torch.Tensor,
    cu_seqlen_ke: torch.Tensor,
    candidate_blocks: torch.Tensor,
    candidate_block_size: int,
    sparse_block_kv: int,
    topk_tokens: int,
    topk_indices: torch.Tensor,
    *,
    sparse_indices: torch.Tensor,
    end: torch.Tensor,
    col_indices: Optional[torch.Tensor] = None,
    zero_starts: Optional[torch.Tensor] = None,
    workspace: Optional[torch.Tensor] = None,
    kernel_metadata: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Scores and selection of one prefill chunk over its gathered K.

    Args:
        q, q_scale: packed MXFP4 ``[R, H, D/2]``, int32 ``[R, H]``.
        k_quant, k_scale: packed MXFP4 ``[N, D/2]``, int32 ``[N]``: what ``k_gather`` makes.
        weights: bfloat16 or float32 ``[R, H]``.
        sparse_indices, end: buffers of ``candidate_blocks_to_sparse_indices``.
        kernel_metadata: of an earlier layer of the step: expansion is skipped, the buffers stand.

    Returns:
        The metadata used, for later layers.
    """
    if kernel_metadata is None:
        candidate_blocks_to_sparse_indices(
            candidate_blocks,
            cu_seqlen_ks,
            cu_seqlen_ke,
            candidate_block_size,
            sparse_block_kv,
            out=(sparse_indices, end),
            keep_duplicates=False,
        )
        kernel_metadata = get_sparse_mqa_logits_metadata(
            cu_seqlen_ks,
            cu_seqlen_ke,
            k_quant.shape[0],
            sparse_indices,
            q.dtype,
            sparse_block_kv,
            True,
        )
    logits = fp8_fp4_sparse_mqa_logits(
        (q, q_scale),
        (k_quant, k_scale),
        weights.to(torch.bfloat16),
        kernel_metadata,
        sparse_indices.shape[1],
        sparse_block_kv,
        True,
    )
    sparse_topk_remap(
        logits, sparse_indices, end, cu_seqlen_ks, sparse_block_kv, topk_tokens, topk_indices
    )
    return kernel_metadata


def sparse_mqa_logits_paged_decode(
    q: torch.Tensor,
    q_scale: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    row_ke: torch.Tensor,
    block_table: torch.Tensor,
    row_indices: Optional[torch.Tensor],
    candidate_blocks: torch.Tensor,
    candidate_block_size: int,
    sparse_block_kv: int,
    topk_tokens: int,
    topk_indices: torch.Tensor,
    *,
    row_ks: torch.Tensor,
    sparse_indices: torch.Tensor,
    end: torch.Tensor,
    col_indices: Optional[torch.Tensor] = None,
    workspace: Optional[torch.Tensor] = None,
    kernel_metadata: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Scores and selection of decode rows over paged K.

    Args:
        q, q_scale: packed MXFP4 ``[R, 1, H, D/2]``, int32 ``[R, 1, H]``.
        kv_cache: bytes ``[pages, page_size, 1, 68]``.
        row_ke: int32 ``[R]``, positions that each row sees.
        block_table: int32 ``[R, pages]``.
        row_ks: int32 ``[R]`` of zeros.

    Returns:
        The metadata used, for later layers.
    """
    if kernel_metadata is None:
        candidate_blocks_to_sparse_indices(
            candidate_blocks,
            row_ks,
            row_ke,
            candidate_block_size,
            sparse_block_kv,
            out=(sparse_indices, end),
            keep_duplicates=False,
        )
        kernel_metadata = get_paged_sparse_mqa_logits_metadata(
            row_ke,
            block_table,
            row_indices,
            kv_cache.shape[1],
            sparse_indices,
            q.dtype,
            sparse_block_kv,
        )
    logits = fp8_fp4_paged_sparse_mqa_logits(
        (q, q_scale),
        kv_cache,
        weights.to(torch.bfloat16),
        kernel_metadata,
        sparse_indices.shape[1],
        sparse_block_kv,
    )
    sparse_topk_remap(
        logits, sparse_indices, end, row_ks, sparse_block_kv, topk_tokens, topk_indices
    )
    return kernel_metadata
