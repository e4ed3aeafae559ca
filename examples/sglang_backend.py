# SPDX-License-Identifier: MIT
"""A candidate backend for SGLang's two-level indexer, on tamis.

SGLang asks a backend for four things: a source layer's selection with the blocks it publishes, and a
consumer's selection inside them, for prefill and for decode. Here all four are one call into tamis
each: no score matrix, no schedule, no GPU generation named. Positions of a request are *logical*; what
attention reads are *slots* of the pool, and both come out of the same call.

Where an engine keeps its tensors is its own business: ``data`` turns its inputs into ``LayerData``.
docs/sglang.md says which of SGLang's fields those are.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch

from tamis import stages
from tamis.sglang import CANDIDATE_BLOCK_SIZE
from tamis.stages import SourceOutput
from tamis.views import KCache, Query, Rows, Selection


class LayerData(NamedTuple):
    """One indexer layer's rows, as SGLang's kernels take them.

    q_fp4 int8 ``[R, 1, H, 64]`` and q_sf int32 ``[R, 1, H]``: packed MXFP4;
    weights float32 or bfloat16 ``[R, H]``;
    k_cache bytes ``[pages, page_size, 1, 68]``: the index-K pool of the layer that owns it;
    seq_lens int32 ``[R]``: compressed positions that each row sees;
    page_table int32 ``[R, pages]``: the index pool's pages of each row's request.
    """

    q_fp4: torch.Tensor
    q_sf: torch.Tensor
    weights: torch.Tensor
    k_cache: torch.Tensor
    seq_lens: torch.Tensor
    page_table: torch.Tensor


class Published(NamedTuple):
    """What a source hands to the consumers of its step.

    blocks int32 ``[R, topk_blocks]`` ascending, -1 tail; counts int32 ``[R]``; seq_lens of the rows
    they are for.
    """

    blocks: torch.Tensor
    counts: torch.Tensor
    seq_lens: torch.Tensor

    def tail(self, rows: torch.Tensor) -> "Published":
        """The same for some of the rows: nothing is bound to a row set, so slicing is all."""
        return Published(*(x[rows].contiguous() for x in self))


class TamisCandidateBackend:
    """Publishes and consumes candidate blocks. One serves any number of layers and streams: it holds
    no state between calls."""

    def __init__(
        self,
        *,
        data: Callable[[Any], Optional[LayerData]],
        candidate_topk_blocks: int,
        candidate_block_size: int = CANDIDATE_BLOCK_SIZE,
        numerics: str = "exact",
    ) -> None:
        if candidate_block_size not in (8, 16):
            raise ValueError(
                f"candidate_block_size: 8 or 16 is required, found {candidate_block_size}"
            )
        self.data = data
        self.topk_blocks = candidate_topk_blocks
        self.block_size = candidate_block_size
        self.numerics = numerics

    def publish_decode(self, inputs: Any, out: Any) -> Optional[Published]:
        """A source's own selection to ``out``, and its blocks."""
        d = self.data(inputs)
        if d is None:
            return None
        selection = _selection(d, out.page_indices.shape[1])
        device, rows = d.seq_lens.device, d.seq_lens.shape[0]
        blocks = torch.empty((rows, self.topk_blocks), dtype=torch.int32, device=device)
        counts = torch.empty(rows, dtype=torch.int32, device=device)
        stages.source(
            *_scored(d),
            selection.slots.shape[1],
            self.topk_blocks,
            block_size=self.block_size,
            numerics=self.numerics,
            out=SourceOutput(selection, blocks, counts),
        )
        _write(selection, out)
        return Published(blocks, counts, d.seq_lens)

    def consume_decode(self, inputs: Any, published: Optional[Published], out: Any) -> None:
        """A consumer's selection to ``out``, inside the blocks of this step."""
        d = self.data(inputs)
        if d is None:
            return
        if published is None or published.blocks.shape[0] != d.seq_lens.shape[0]:
            found = "none" if published is None else f"those of {published.blocks.shape[0]} rows"
            raise ValueError(
                f"published: blocks of these {d.seq_lens.shape[0]} rows are required, found {found}"
            )
        selection = _selection(d, out.page_indices.shape[1])
        stages.consume(
            *_scored(d),
            published.blocks,
            selection.slots.shape[1],
            counts=published.counts,
            block_size=self.block_size,
            numerics=self.numerics,
            out=selection,
        )
        _write(selection, out)

    # A prefill row is a decode row with another length: nothing is left to tell apart.
    publish_prefill = publish_decode
    consume_prefill = consume_decode


def _scored(d: LayerData) -> tuple[KCache, Rows, Query]:
    rows = d.seq_lens.shape[0]
    request = torch.arange(rows, dtype=torch.int32, device=d.seq_lens.device)
    scales = d.q_sf.squeeze(1)
    return (
        KCache.pages(d.k_cache.squeeze(2)),
        Rows(d.seq_lens, request=request, page_table=d.page_table),
        Query(d.q_fp4.squeeze(1), scales.view(torch.uint8).view(*scales.shape, 4), d.weights),
    )


def _selection(d: LayerData, topk: int) -> Selection:
    make = lambda dtype: torch.empty(
        (d.seq_lens.shape[0], topk), dtype=dtype, device=d.seq_lens.device
    )
    return Selection(positions=make(torch.int32), slots=make(torch.int64))


def _write(selection: Selection, out: Any) -> None:
    """SGLang's slots are int32; the positions go along where they are asked for."""
    out.page_indices.copy_(selection.slots)
    if getattr(out, "raw_indices", None) is not None:
        out.raw_indices.copy_(selection.positions)
