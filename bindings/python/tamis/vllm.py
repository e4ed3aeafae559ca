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

import torch

from . import stages
from ._dropin import Names, blocks_of, int32, sparse_block
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

# What the stages' arguments are called here.
_EXPANSION = {
    "candidates": "candidate_blocks",
    "rows.ks": "row_ks",
    "rows.ke": "row_ke",
    "out.blocks": "out[0]",
    "out.columns": "out[1]",
}
_REMAP = {
    "columns": "end",
    "blocks": "sparse_indices",
    "rows.ks": "row_ks",
    "out.positions": "topk_indices",
    "selection.topk": "topk_tokens",
}


def pick_sparse_block_kv(candidate_block_size: int) -> int:
    """The largest sparse block that divides a candidate block."""
    if isinstance(candidate_block_size, int) and candidate_block_size > 0:
        for size in SPARSE_BLOCK_KV_CHOICES:
            if candidate_block_size % size == 0:
                return size
    raise ArgumentError("candidate_block_size", "a multiple of 8", repr(candidate_block_size))


def candidate_blocks_to_sparse_indices(
    candidate_blocks: torch.Tensor,
    row_ks: torch.Tensor,
    row_ke: torch.Tensor,
    candidate_block_size: int,
    sparse_block_kv: int,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    *,
    keep_duplicates: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
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
    sparse_block(sparse_block_kv)
    ratio = blocks_of("candidate_block_size", candidate_block_size, sparse_block_kv)
    rows, count = int32("candidate_blocks", candidate_blocks, (None, None)).shape
    int32("row_ks", row_ks, (rows,), candidate_blocks.device)
    int32("row_ke", row_ke, (rows,), candidate_blocks.device)
    if out is None:
        width = count * ratio
        made = {"dtype": torch.int32, "device": candidate_blocks.device}
        out = (torch.empty((rows, width), **made), torch.empty(rows, **made))  # type: ignore[call-overload]
    elif not isinstance(out, (tuple, list)) or len(out) != 2:
        raise ArgumentError("out", "a pair: sparse_indices and end", type(out).__name__)
    with Names(_EXPANSION):
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
    col_indices: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    zero_starts: torch.Tensor | None = None,
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
    sparse_block(sparse_block_kv)
    rows = int32("sparse_indices", sparse_indices, (None, None)).shape[0]
    int32("row_ks", row_ks, (rows,), sparse_indices.device)
    int32("topk_indices", topk_indices, (rows, None), sparse_indices.device)
    if not isinstance(end, torch.Tensor):
        raise ArgumentError("end", "a torch tensor", type(end).__name__)
    visible = torch.full_like(row_ks, _INT32_MAX)  # `end` says what counts
    with Names(_REMAP):
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
    col_indices: torch.Tensor | None = None,
    zero_starts: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    kernel_metadata: torch.Tensor | None = None,
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
    row_indices: torch.Tensor | None,
    candidate_blocks: torch.Tensor,
    candidate_block_size: int,
    sparse_block_kv: int,
    topk_tokens: int,
    topk_indices: torch.Tensor,
    *,
    row_ks: torch.Tensor,
    sparse_indices: torch.Tensor,
    end: torch.Tensor,
    col_indices: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    kernel_metadata: torch.Tensor | None = None,
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
