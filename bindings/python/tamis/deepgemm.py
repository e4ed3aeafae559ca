# SPDX-License-Identifier: MIT
"""The four sparse MQA-logits calls of the DeepGEMM 2.8 family, on any device that tamis runs on.

Same names, arguments and outputs, so that ``import tamis.deepgemm as deep_gemm`` serves code written
for them. What differs, all of it more than was promised there:

* any GPU from Ampere on, and the CPU, instead of one GPU generation;
* heads 4..64 in multiples of 4, any number of blocks up to 4,096, any page stride in multiples of 16;
* scores are exact before their one rounding to bfloat16 (numerics "bf16"), the same bits everywhere;
* columns past a row's last visible position hold -inf; there they hold whatever was there;
* a list may be padded in any way: -1, INT32_MAX, the last id repeated. Its ids have to ascend
  strictly before that; one that does not is sorted, repeats dropped, and columns follow that list;
* without ``use_unaligned_ks`` a row's ks is rounded down to a multiple of ``sparse_block_kv``.

The metadata holds all that a logits call does not get: intervals, lists, and where each block lies.
Nothing in it is read on the host, so every call here can be captured in a CUDA graph. What kind it
is shows in its shape, which the logits calls compare with their own arguments.
"""

from __future__ import annotations

import torch

from . import arrays, stages
from ._dropin import Names, blocks_of, int32, integer, pair, place, sparse_block, tensor
from .errors import ArgumentError
from .stages import Expanded
from .views import KCache, Query, Rows

__all__ = [
    "fp8_fp4_paged_sparse_mqa_logits",
    "fp8_fp4_sparse_mqa_logits",
    "get_paged_sparse_mqa_logits_metadata",
    "get_sparse_mqa_logits_metadata",
]

#: Scores of a row start this many elements apart, or a multiple of it.
LOGITS_ALIGNMENT = 512

# What the stages' arguments are called here: by the calls that make metadata, and by logits.
_INTERVALS = {"rows.ks": "cu_seq_len_k_start", "rows.ke": "cu_seq_len_k_end"}
_LENGTHS = {"rows.ke": "context_lens"}
_RAGGED = {
    **dict.fromkeys(("rows.ks", "rows.ke", "counts", "blocks", "physical"), "metadata"),
    "k.codes": "kv[0]",
    "k.scales": "kv[1]",
    "query.codes": "q[0]",
    "query.scales": "q[1]",
    "query.weights": "weights",
}
_PAGED = {**_RAGGED, "k.codes": "kv_cache"}


class _Parts:
    """A metadata tensor as what it holds. In rows of R words: ks, ke, counts, W of lists, where
    paged W of places, then as many unused ones as ``kind`` says."""

    def __init__(self, metadata: torch.Tensor, width: int, paged: bool) -> None:
        rows = metadata.shape[1] // 4
        words = (
            metadata.view(torch.int32)
            if rows
            else metadata.new_empty((metadata.shape[0], 0), dtype=torch.int32)
        )
        self.ks, self.ke, self.counts = words[0], words[1], words[2]
        self.blocks = words[3 : 3 + width].reshape(rows, width)
        self.physical: torch.Tensor | None = None
        if paged:
            self.physical = words[3 + width : 3 + 2 * width].reshape(rows, width)


def _height(width: int, block: int, page_kv: int, unaligned: bool) -> int:
    """Rows of a metadata tensor: no two kinds with lists of one width have the same."""
    paged = width + 4 * (page_kv // block) if page_kv else 0
    return 3 + width + paged + 2 * (block == 16) + unaligned


def new_metadata(
    lists: torch.Tensor, block: int, page_kv: int = 0, unaligned: bool = False
) -> torch.Tensor:
    """An empty metadata tensor for ``lists`` [R, W]; ``page_kv`` 0: for ragged K."""
    rows, width = lists.shape
    height = _height(width, block, page_kv, unaligned)
    return lists.new_empty((height, 4 * rows), dtype=torch.uint8)


def new_logits(like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Empty scores, rows LOGITS_ALIGNMENT or a multiple of it apart."""
    stride = -(-columns // LOGITS_ALIGNMENT) * LOGITS_ALIGNMENT
    return like.new_empty((rows, stride), dtype=torch.bfloat16)[:, :columns]


def _check_fp4(name: str, dtype: torch.dtype) -> None:
    if dtype not in (torch.int8, torch.uint8, getattr(torch, "float4_e2m1fn_x2", torch.int8)):
        raise ArgumentError(name, "packed MXFP4: int8, uint8 or float4_e2m1fn_x2", repr(dtype))


def get_sparse_mqa_logits_metadata(
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    num_kv_tokens: int,
    sparse_kv_block_indices: torch.Tensor,
    qk_dtype: torch.dtype,
    sparse_block_kv: int,
    use_unaligned_ks: bool = False,
) -> torch.Tensor:
    """What ``fp8_fp4_sparse_mqa_logits`` needs of R rows with W listed blocks each.

    Args:
        cu_seq_len_k_start, cu_seq_len_k_end: int32 ``[R]``: K's rows that each query row sees.
        num_kv_tokens: K's rows; longer intervals end there.
        sparse_kv_block_indices: int32 ``[R, W]``, ids of K's blocks: block i starts at
            i * sparse_block_kv (+ ks % sparse_block_kv with use_unaligned_ks).
        qk_dtype: int8 (packed MXFP4).
        sparse_block_kv: positions of a block, 8 or 16.
    """
    sparse_block(sparse_block_kv)
    _check_fp4("qk_dtype", qk_dtype)
    lists = int32("sparse_kv_block_indices", sparse_kv_block_indices, (None, None))
    rows, width = lists.shape
    int32("cu_seq_len_k_start", cu_seq_len_k_start, (rows,), lists.device)
    int32("cu_seq_len_k_end", cu_seq_len_k_end, (rows,), lists.device)
    integer("num_kv_tokens", num_kv_tokens)
    made = new_metadata(lists, sparse_block_kv, unaligned=use_unaligned_ks)
    p = _Parts(made, width, False)
    anchor = torch.div(cu_seq_len_k_start, sparse_block_kv, rounding_mode="floor")
    p.ks.copy_(cu_seq_len_k_start if use_unaligned_ks else anchor * sparse_block_kv)
    p.ke.copy_(torch.maximum(cu_seq_len_k_end.clamp(max=num_kv_tokens), p.ks))
    with Names(_INTERVALS):
        stages.expand(
            lists - anchor[:, None],
            Rows(p.ke, ks=p.ks),
            candidate_size=sparse_block_kv,
            block_size=sparse_block_kv,
            out=Expanded(p.blocks, p.counts, None),
        )
    return made


def get_paged_sparse_mqa_logits_metadata(
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    indices: torch.Tensor | None,
    page_kv: int,
    sparse_kv_block_indices: torch.Tensor,
    qk_dtype: torch.dtype,
    sparse_block_kv: int,
) -> torch.Tensor:
    """What ``fp8_fp4_paged_sparse_mqa_logits`` needs of R rows with W listed blocks each.

    Args:
        context_lens: int32 ``[R]`` or ``[R, 1]``: positions that each row sees.
        block_table: int32 ``[R, pages]``: each row's pages.
        indices: which rows share a request; tamis needs no such hint and reads none.
        page_kv: slots of a page, a multiple of ``sparse_block_kv``.
        sparse_kv_block_indices: int32 ``[R, W]``, ids of the row's own blocks.
        qk_dtype: int8 (packed MXFP4).
        sparse_block_kv: positions of a block, 8 or 16.
    """
    sparse_block(sparse_block_kv)
    _check_fp4("qk_dtype", qk_dtype)
    each = blocks_of("page_kv", page_kv, sparse_block_kv)
    lists = int32("sparse_kv_block_indices", sparse_kv_block_indices, (None, None))
    rows, width = lists.shape
    int32("block_table", block_table, (rows, None), lists.device)
    flat = isinstance(context_lens, torch.Tensor) and context_lens.dim() == 1
    int32("context_lens", context_lens, (rows,) if flat else (rows, 1), lists.device)
    made = new_metadata(lists, sparse_block_kv, page_kv)
    p = _Parts(made, width, True)
    assert p.physical is not None
    p.ks.zero_()
    pages = block_table.shape[1]
    p.ke.copy_(context_lens.reshape(rows).clamp(min=0, max=pages * page_kv))
    with Names(_LENGTHS):
        stages.expand(
            lists,
            Rows(p.ke),
            candidate_size=sparse_block_kv,
            block_size=sparse_block_kv,
            out=Expanded(p.blocks, p.counts, None),
        )
    place(p.blocks, block_table, each, p.physical)
    return made


def scale_bytes(scales: torch.Tensor, name: str = "q[1]") -> torch.Tensor:
    """int32 scales ``[.., H]`` as bytes ``[.., H, 4]``."""
    if scales.dtype != torch.int32 or (scales.shape[-1] > 1 and scales.stride(-1) != 1):
        raise ArgumentError(
            name,
            "int32 scales, four bytes a head, with a last stride of 1",
            f"{scales.dtype} with strides {scales.stride()}",
        )
    return scales.view(torch.uint8).view(*scales.shape, 4)


def _query(q: tuple[torch.Tensor, torch.Tensor], weights: torch.Tensor) -> Query:
    """Codes [.., H, 64] and int32 scales [.., H], the middle dimension of paged calls left out."""
    codes, scales = pair("q", q)
    _check_fp4("q[0]", codes.dtype)
    if codes.dim() == 4:
        if codes.shape[1] != 1 or scales.dim() != 3 or scales.shape[1] != 1:
            raise ArgumentError(
                "q",
                "one query a row: [R, 1, H, D/2] and [R, 1, H]",
                f"{list(codes.shape)} and {list(scales.shape)}",
            )
        codes, scales = codes.squeeze(1), scales.squeeze(1)
    if codes.dim() != 3 or tuple(scales.shape) != tuple(codes.shape[:2]):
        raise ArgumentError(
            "q[1]", f"int32 {list(codes.shape[:-1])}", f"{scales.dtype} {list(scales.shape)}"
        )
    return Query(codes, scale_bytes(scales), weights)


def _logits(
    k: KCache, rows: Rows, query: Query, p: _Parts, block: int, physical: torch.Tensor | None
) -> torch.Tensor:
    count, width = p.blocks.shape
    out = new_logits(p.blocks, count, width * block)
    with Names(_PAGED if physical is not None else _RAGGED):
        stages.sparse_mqa_logits(
            k,
            rows,
            query,
            p.blocks,
            counts=p.counts,
            physical=physical,
            block_size=block,
            numerics="bf16",
            out=out,
        )
    return out


def _check_metadata(
    metadata: torch.Tensor, rows: int, width: int, block: int, page_kv: int, unaligned: bool
) -> None:
    want = (_height(integer("num_max_sparse_blocks", width), block, page_kv, unaligned), 4 * rows)
    maker, pages = "get_sparse_mqa_logits_metadata", ""
    if page_kv:
        maker, pages = "get_paged_sparse_mqa_logits_metadata", f" and pages of {page_kv}"
    need = f"that of {maker} for {rows} rows of {width} blocks of {block}{pages}"
    if not isinstance(metadata, torch.Tensor):
        raise ArgumentError("metadata", need, type(metadata).__name__)
    if metadata.dtype != torch.uint8 or tuple(metadata.shape) != want:
        raise ArgumentError(
            "metadata",
            f"{need} (uint8 {list(want)})",
            f"{metadata.dtype} {list(metadata.shape)}",
        )
    if not metadata.is_contiguous() or metadata.storage_offset() % 4:
        raise ArgumentError(
            "metadata",
            "contiguous, at an offset of whole int32",
            f"strides {metadata.stride()}, offset {metadata.storage_offset()}",
        )


def fp8_fp4_sparse_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor],
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    metadata: torch.Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
    use_unaligned_ks: bool = False,
) -> torch.Tensor:
    """Scores of listed blocks of contiguous K: bfloat16 ``[R, W * sparse_block_kv]``.

    Args:
        q: codes int8 ``[R, H, D/2]`` and scales int32 ``[R, H]``.
        kv: codes int8 ``[N, D/2]`` and scales int32 ``[N]``.
        weights: bfloat16 ``[R, H]`` (float32 is rounded first).
        metadata: of ``get_sparse_mqa_logits_metadata`` with the same W, block and alignment.
        num_max_sparse_blocks: W.
    """
    sparse_block(sparse_block_kv)
    query = _query(q, weights)
    _check_metadata(
        metadata,
        query.codes.shape[0],
        num_max_sparse_blocks,
        sparse_block_kv,
        0,
        use_unaligned_ks,
    )
    codes, scales = pair("kv", kv)
    _check_fp4("kv[0]", codes.dtype)
    tensor("kv[1]", scales, torch.int32, codes.shape[:1], codes.device)
    with Names(_RAGGED):
        k = KCache.split(codes, scales.unsqueeze(1).view(torch.uint8))
    p = _Parts(metadata, num_max_sparse_blocks, False)
    return _logits(k, Rows(p.ke, ks=p.ks), query, p, sparse_block_kv, None)


def fp8_fp4_paged_sparse_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor],
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    metadata: torch.Tensor,
    num_max_sparse_blocks: int,
    sparse_block_kv: int,
) -> torch.Tensor:
    """Scores of listed blocks of paged K: bfloat16 ``[R, W * sparse_block_kv]``.

    Args:
        q: codes int8 ``[R, 1, H, D/2]`` and scales int32 ``[R, 1, H]``.
        kv_cache: bytes ``[pages, page_kv, 1, 68]``; a page holds all its codes, then its scales.
        weights: bfloat16 ``[R, H]`` (float32 is rounded first).
        metadata: of ``get_paged_sparse_mqa_logits_metadata`` with the same W and block.
        num_max_sparse_blocks: W.
    """
    sparse_block(sparse_block_kv)
    query = _query(q, weights)
    k = page_cache(kv_cache, 2 * query.codes.shape[2])
    _check_metadata(
        metadata,
        query.codes.shape[0],
        num_max_sparse_blocks,
        sparse_block_kv,
        kv_cache.shape[1],
        False,
    )
    p = _Parts(metadata, num_max_sparse_blocks, True)
    assert p.physical is not None
    return _logits(
        k, Rows(p.ke, page_table=_any_table(k, p)), query, p, sparse_block_kv, p.physical
    )


def page_cache(kv_cache: torch.Tensor, head_dim: int) -> KCache:
    """K of bytes ``[pages, page_kv, 1, 68]`` (34 at 64 dims)."""
    found = list(kv_cache.shape) if isinstance(kv_cache, torch.Tensor) else type(kv_cache).__name__
    if not isinstance(kv_cache, torch.Tensor) or kv_cache.dim() != 4 or kv_cache.shape[2] != 1:
        raise ArgumentError("kv_cache", "bytes [pages, page_kv, 1, 68]", f"{found}")
    with Names(_PAGED):
        return KCache.pages(kv_cache.squeeze(2), head_dim=head_dim)


def _any_table(k: KCache, p: _Parts) -> arrays.View:
    """A page table as wide as the pool, for lengths to be held to. Blocks come with their places,
    so kernels read none of it; a CPU's checks do, and find page 0."""
    pages = k.size
    if k.device.kind == "cpu":
        return arrays.view("rows.page_table", torch.zeros((1, pages), dtype=torch.int32))
    return arrays.View(p.ks.data_ptr(), "int32", (1, pages), (pages, 1), k.device, p.ks)
