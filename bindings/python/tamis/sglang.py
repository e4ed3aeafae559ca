# SPDX-License-Identifier: MIT
"""Publish and select as SGLang's two-level indexer calls them, on any device.

Names and arguments are those of its candidate kernels, so that a candidate backend can be built on
them: examples/sglang_backend.py is one. Lists are ascending, INT32_MAX in the tail; places of blocks
are slots / block size; the columns of a sparse row stand block after block, the newest perhaps partly
filled. What differs: any GPU and the CPU, ties and NaN by rule (lower position first, NaN last),
selections in ascending order, and scores past a row's valid length are -inf.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import stages
from ._dropin import Names, blocks_of, int32, integer, place
from .deepgemm import fp8_fp4_paged_sparse_mqa_logits, get_paged_sparse_mqa_logits_metadata
from .errors import ArgumentError
from .stages import Expanded
from .views import Rows

__all__ = [
    "CANDIDATE_BLOCK_SIZE",
    "SparseTable",
    "amax_topk_blocks",
    "build_sparse_schedule",
    "candidate_row_lens",
    "deep_gemm_sparse_logits",
    "publish",
    "select",
    "sort_candidate_blocks",
    "topk_transform_bf16_small",
]

CANDIDATE_BLOCK_SIZE = 8

_INT32_MAX = 2**31 - 1


class SparseTable(NamedTuple):
    """What a candidate source publishes for a step's rows.

    blocks int32 ``[R, topk_blocks]``: ids of each row, ascending, INT32_MAX in the tail;
    schedule: the metadata of ``get_paged_sparse_mqa_logits_metadata``;
    phys_blocks int32 ``[R, topk_blocks]``: the same blocks as slots / 8 of the pool;
    valid_lens int32 ``[R]``: valid columns of the row's scores.
    """

    blocks: torch.Tensor
    schedule: torch.Tensor
    phys_blocks: torch.Tensor
    valid_lens: torch.Tensor


def candidate_row_lens(
    seq_lens: torch.Tensor, topk_blocks: int, block_size: int = CANDIDATE_BLOCK_SIZE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of rows of ``seq_lens`` positions, int32 ``[R]``: how many blocks they have, and how many
    columns their best ``topk_blocks`` (the newest among them) take."""
    lens = seq_lens.clamp(min=0)
    blocks = torch.div(lens + (block_size - 1), block_size, rounding_mode="floor")
    kept = blocks.clamp(max=topk_blocks)
    columns = block_size * (kept - 1) + torch.remainder(lens - 1, block_size) + 1
    return blocks, torch.where(lens > 0, columns, 0)


def amax_topk_blocks(
    logits: torch.Tensor,
    seq_lens: torch.Tensor,
    nblocks: torch.Tensor | None,
    topk_blocks: int,
    max_seq_len: int | None = None,
) -> torch.Tensor:
    """The best blocks of dense scores by their maxima, the newest always among them: int32
    ``[R, topk_blocks]``, ascending, -1 in the tail.

    Args:
        logits: float32 or bfloat16 ``[R, columns]``; columns past ``seq_lens`` are not read.
        nblocks: taken and not needed.
    """
    count = int32("seq_lens", seq_lens, (None,)).shape[0]
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or logits.shape[0] != count:
        found = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ArgumentError("logits", f"float32 or bfloat16 [{count}, *]", f"{found}")
    columns = logits.shape[1]
    if max_seq_len is not None:
        columns = min(columns, integer("max_seq_len", max_seq_len, 1))
        logits = logits[:, :columns]
    rows = Rows(seq_lens.clamp(min=0, max=columns))
    width = -(-columns // CANDIDATE_BLOCK_SIZE)
    maxima = torch.empty((logits.shape[0], max(width, 1)), device=logits.device)
    stages.block_max(logits, rows, block_size=CANDIDATE_BLOCK_SIZE, out=maxima)
    published = stages.publish(maxima, rows, topk_blocks, block_size=CANDIDATE_BLOCK_SIZE)
    blocks: torch.Tensor = published.blocks
    return blocks


def sort_candidate_blocks(
    blocks: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    *,
    out_pages: torch.Tensor | None = None,
) -> torch.Tensor:
    """Makes lists in any order the published table, in place; the places of its blocks.

    Args:
        blocks: int32 ``[R, k]``, -1 or INT32_MAX where there is none. A row that has no more than k
            blocks gets all of them, whatever it held.
        seq_lens: int32 ``[R]``.
        page_table: int32 ``[R, pages]``; ``page_size`` slots a page.
        out_pages: int32 ``[R, k]``, or made here.
    """
    each = blocks_of("page_size", page_size, CANDIDATE_BLOCK_SIZE, "a block's size")
    rows, width = int32("blocks", blocks, (None, None)).shape
    int32("seq_lens", seq_lens, (rows,), blocks.device)
    int32("page_table", page_table, (rows, None), blocks.device)
    if out_pages is None:
        out_pages = torch.empty_like(blocks)
    int32("out_pages", out_pages, (rows, width), blocks.device)
    lens = seq_lens.clamp(min=0, max=page_table.shape[1] * page_size)  # no page past the table
    count, _ = candidate_row_lens(lens, width)
    every = torch.arange(width, dtype=torch.int32, device=blocks.device)
    lists = torch.where((count <= width)[:, None], every, blocks)
    stages.expand(lists, Rows(lens), out=Expanded(blocks, None, None))
    place(blocks, page_table, each, out_pages)
    out_pages.masked_fill_(blocks < 0, _INT32_MAX)
    blocks.masked_fill_(blocks < 0, _INT32_MAX)
    return out_pages


def build_sparse_schedule(
    blocks: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    q_dtype: torch.dtype,
    request_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """The metadata of the published blocks; ``request_ids`` are not needed."""
    return get_paged_sparse_mqa_logits_metadata(
        seq_lens, page_table, request_ids, page_size, blocks, q_dtype, CANDIDATE_BLOCK_SIZE
    )


def deep_gemm_sparse_logits(
    q_fp4: torch.Tensor,
    q_sf: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    table: SparseTable,
) -> torch.Tensor:
    """bfloat16 ``[R, topk_blocks * 8]``: scores of the published blocks."""
    return fp8_fp4_paged_sparse_mqa_logits(
        (q_fp4, q_sf), k_cache, weights, table.schedule, table.blocks.shape[1], CANDIDATE_BLOCK_SIZE
    )


def topk_transform_bf16_small(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    out_page_indices: torch.Tensor,
    page_size: int,
) -> None:
    """The best of each row's first ``seq_lens`` scores, as ``page_table`` places them.

    Column i becomes ``page_table[r, i // page_size] * page_size + i % page_size``, -1 in the tail.
    ``out_page_indices`` int32 ``[R, k]`` says k; columns ascend.
    """
    integer("page_size", page_size, 1)
    rows = int32("out_page_indices", out_page_indices, (None, None)).shape[0]
    int32("page_table", page_table, (rows, None), out_page_indices.device)
    columns = int32("seq_lens", seq_lens, (rows,), out_page_indices.device)
    if isinstance(scores, torch.Tensor) and scores.shape[-1] > page_table.shape[1] * page_size:
        columns = columns.clamp(max=page_table.shape[1] * page_size)  # no page past the table
    with Names({"logits": "scores", "columns": "seq_lens", "selection.topk": "out_page_indices"}):
        chosen = stages.topk(
            scores, None, out_page_indices.shape[1], columns=columns, want=("positions",)
        ).positions
    place(chosen, page_table, page_size, out_page_indices)


def publish(
    logits: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    topk_blocks: int,
    q_dtype: torch.dtype = torch.int8,
) -> SparseTable:
    """The table of a candidate source from its dense scores ``[R, columns]``."""
    blocks = amax_topk_blocks(logits, seq_lens, None, topk_blocks)
    places = sort_candidate_blocks(blocks, seq_lens, page_table, page_size)
    schedule = build_sparse_schedule(blocks, seq_lens, page_table, page_size, q_dtype)
    return SparseTable(blocks, schedule, places, candidate_row_lens(seq_lens, topk_blocks)[1])


def select(
    q_fp4: torch.Tensor,
    q_sf: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    table: SparseTable,
    out_page_indices: torch.Tensor,
) -> None:
    """A consumer's selection: scores of the table's blocks, then slots of the best of them."""
    logits = deep_gemm_sparse_logits(q_fp4, q_sf, k_cache, weights, table)
    topk_transform_bf16_small(
        logits, table.valid_lens, table.phys_blocks, out_page_indices, CANDIDATE_BLOCK_SIZE
    )
