# SPDX-License-Identifier: MIT
"""The calls shaped as vLLM's and SGLang's, against torch and the contract's vectors."""

from __future__ import annotations

from typing import List, Tuple

import pytest

from dropin import DEVICES, Paged, torch

import tamis
import tamis.torch_ops  # (registers)
from tamis import sglang, vllm

INT32_MAX = 2**31 - 1
LENS = [0, 1, 8, 100, 128, 129, 333, 1000]

# list, ks, ke, candidate size, sparse block -> blocks, columns (spec 5.4; kept duplicates)
VECTORS: List[Tuple[List[int], int, int, int, int, List[int], int]] = [
    ([0, -1, -1, -1], 64, 72, 8, 8, [8, 8, 8, 8], 8),
    ([2, 0, -1, -1], 13, 30, 8, 8, [1, 3, 3, 3], 9),
    ([3, -1, -1, -1], 100, 100, 8, 8, [12] * 4, 0),
    ([2**30, -(2**30), 0, -1], 0, 1000, 8, 8, [0] * 4, 8),
    ([1, 1, 7, 0], 8, 40, 8, 8, [1, 2, 2, 2], 24),
    ([1, 0], 0, 48, 16, 8, [0, 1, 2, 3], 32),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vector", VECTORS)
def test_expansion_vectors(
    device: str, vector: Tuple[List[int], int, int, int, int, List[int], int]
) -> None:
    ids, ks, ke, size, block, want, columns = vector
    one = dict(dtype=torch.int32, device=device)
    lists = torch.tensor([ids], **one)
    # buffers of a larger array, strided
    buffer = torch.full((1, len(want) + 5), 77, **one)
    end = torch.full((1,), 77, **one)
    made = vllm.candidate_blocks_to_sparse_indices(
        lists,
        torch.tensor([ks], **one),
        torch.tensor([ke], **one),
        size,
        block,
        out=(buffer[:, : len(want)], end),
    )
    assert (
        made[0].tolist() == [want] and made[1].tolist() == [columns] and end.tolist() == [columns]
    )
    assert buffer[0, len(want) :].tolist() == [77] * 5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_remap(device: str, dtype: "torch.dtype") -> None:
    gen = torch.Generator().manual_seed(9)
    rows, width, block, topk = 7, 24, 8, 32
    logits = torch.randn((rows, width * block), generator=gen).to(dtype)
    logits[2] = 0.5  # ties: the lowest columns
    lists = torch.stack(
        [torch.randperm(90, generator=gen)[:width].sort().values for _ in range(rows)]
    ).int()
    ks = torch.tensor([0, 3, 8, 17, 64, 5, 0], dtype=torch.int32)
    anchored = lists + (ks // block)[:, None]
    end = torch.tensor([192, 191, 150, 5, 0, 33, 32], dtype=torch.int32)
    out = torch.full((rows, topk + 3), 77, dtype=torch.int32, device=device)
    vllm.sparse_topk_remap(
        logits.to(device), anchored.to(device), end.to(device), ks.to(device), block, topk, out
    )
    for r in range(rows):
        n = int(end[r])
        order = torch.sort(logits[r, :n].double(), descending=True, stable=True).indices[:topk]
        positions = sorted(int(lists[r, c // block]) * block + c % block for c in order.tolist())
        assert out[r, :topk].tolist() == positions + [-1] * (topk - len(positions))
        assert out[r, topk:].tolist() == [77] * 3


def best(scores: "torch.Tensor", columns: List[int], topk: int) -> List[int]:
    """The best of some positions by bfloat16 scores, ties to the lower one; ascending."""
    rounded = scores.bfloat16().double()
    return sorted(sorted(columns, key=lambda j: (-float(rounded[j]), j))[:topk])


def agrees(found: List[int], scores: "torch.Tensor", columns: List[int], topk: int) -> None:
    """The same selection, but for positions whose f64 scores round differently at the cut."""
    want = best(scores, columns, topk)
    kept = [j for j in found if j >= 0]
    assert kept == sorted(set(kept)) and len(kept) == len(want) and set(kept) <= set(columns)
    assert found[len(kept) :] == [-1] * (len(found) - len(kept))
    differ = set(kept) ^ set(want)
    if differ:
        cut = min(float(scores[j]) for j in want)
        assert all(abs(float(scores[j]) - cut) <= abs(cut) * 2**-6 for j in differ)


@pytest.mark.parametrize("device", DEVICES)
def test_vllm_decode(device: str) -> None:
    p = Paged(device, LENS)
    rows, width, topk = len(LENS), 32, 64
    lists = p.lists(width, -1)[:, torch.randperm(width)].contiguous()  # any order
    i32 = dict(dtype=torch.int32, device=device)
    ks, indices, end = (
        torch.zeros(rows, **i32),
        torch.empty((rows, width), **i32),
        torch.empty(rows, **i32),
    )
    out = torch.full((rows, topk), 77, **i32)
    arguments = (p.q, p.q_sf, p.kv, p.w, p.lens, p.table, None, lists, 8, 8, topk, out)
    metadata = vllm.sparse_mqa_logits_paged_decode(
        *arguments, row_ks=ks, sparse_indices=indices, end=end
    )
    for r in range(rows):
        columns = [
            b * 8 + o for b in lists[r].tolist() if b >= 0 for o in range(8) if b * 8 + o < LENS[r]
        ]
        agrees(out[r].tolist(), p.scores(r), columns, topk)
    first = out.clone()
    lists.fill_(-1)  # a later layer: metadata and buffers of the first stand
    again = vllm.sparse_mqa_logits_paged_decode(
        *arguments, row_ks=ks, sparse_indices=indices, end=end, kernel_metadata=metadata
    )
    assert again is metadata and torch.equal(out, first)


@pytest.mark.parametrize("device", DEVICES)
def test_vllm_prefill_is_decode_over_gathered_k(device: str) -> None:
    p = Paged(device, [333, 1000, 129])
    total = int(p.lens.sum())
    starts = [0, 333, 1333]
    codes = torch.cat(
        [
            p.pool[p.table[r].long()][:, : p.page * 64].reshape(-1, 64)[: int(p.lens[r])]
            for r in range(3)
        ]
    )
    scales = torch.cat(
        [
            p.pool[p.table[r].long()][:, p.page * 64 : p.page * 68].reshape(-1, 4)[: int(p.lens[r])]
            for r in range(3)
        ]
    )
    i32 = dict(dtype=torch.int32, device=device)
    ks = torch.tensor(starts, **i32)
    lists = p.lists(32, -1)
    out, want = torch.empty((3, 64), **i32), torch.empty((3, 64), **i32)
    buffers = lambda: dict(sparse_indices=torch.empty((3, 32), **i32), end=torch.empty(3, **i32))
    vllm.sparse_mqa_logits_prefill_chunk(
        p.q[:, 0],
        p.q_sf[:, 0],
        codes.view(torch.int8),
        scales.contiguous().view(torch.int32).squeeze(1),
        p.w,
        ks,
        ks + p.lens,
        lists,
        8,
        8,
        64,
        out,
        **buffers(),
    )
    assert codes.shape[0] == total
    vllm.sparse_mqa_logits_paged_decode(
        p.q,
        p.q_sf,
        p.kv,
        p.w,
        p.lens,
        p.table,
        None,
        lists,
        8,
        8,
        64,
        want,
        row_ks=torch.zeros_like(ks),
        **buffers(),
    )
    assert torch.equal(out, want)


@pytest.mark.parametrize("device", DEVICES)
def test_sglang_table(device: str) -> None:
    p = Paged(device, LENS)
    k = 16
    lists = p.lists(k, -1)[:, torch.randperm(k)].contiguous()
    given = lists.clone()
    places = sglang.sort_candidate_blocks(lists, p.lens, p.table, p.page)
    counts, columns = sglang.candidate_row_lens(p.lens, k)
    for r, n in enumerate(LENS):
        blocks = -(-n // 8)
        ids = list(range(blocks)) if blocks <= k else sorted(b for b in given[r].tolist() if b >= 0)
        kept = min(k, blocks)
        assert counts[r] == blocks
        assert columns[r] == (8 * (kept - 1) + (n - 1) % 8 + 1 if n else 0)
        assert lists[r].tolist() == ids + [INT32_MAX] * (k - len(ids))
        each = p.page // 8
        want = [int(p.table[r, b // each]) * each + b % each for b in ids]
        assert places[r].tolist() == want + [INT32_MAX] * (k - len(ids))


@pytest.mark.parametrize("device", DEVICES)
def test_sglang_publish_and_select(device: str) -> None:
    p = Paged(device, LENS)
    k, topk = 16, 48
    longest = max(LENS)
    dense = torch.full((len(LENS), longest + 3), float("nan"), device=device)  # junk past the end
    for r, n in enumerate(LENS):
        dense[r, :n] = p.scores(r).float()
    table = sglang.publish(dense, p.lens, p.table, p.page, k)
    out = torch.full((len(LENS), topk), 77, dtype=torch.int32, device=device)
    sglang.select(p.q, p.q_sf, p.kv, p.w, table, out)
    for r, n in enumerate(LENS):
        blocks = -(-n // 8)
        maxima = [float(dense[r, b * 8 : min(n, b * 8 + 8)].max()) for b in range(blocks)]
        order = sorted(range(blocks), key=lambda b: (b != blocks - 1, -maxima[b], b))[:k]
        assert [b for b in table.blocks[r].tolist() if b != INT32_MAX] == sorted(order)
        columns = [b * 8 + o for b in sorted(order) for o in range(8) if b * 8 + o < n]
        slot = {int(p.table[r, j // p.page]) * p.page + j % p.page: j for j in range(n)}
        positions = [slot[s] if s >= 0 else -1 for s in out[r].tolist()]
        agrees(positions, p.scores(r), columns, topk)


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_past_the_page_table_end_with_it(device: str) -> None:
    p = Paged(device, [1000, 333])
    for pages in (0, 2):
        lists = p.lists(40, -1)
        places = sglang.sort_candidate_blocks(lists, p.lens, p.table[:, :pages], p.page)
        held = pages * p.page // 8
        assert lists.tolist() == [[*range(held), *[INT32_MAX] * (40 - held)]] * 2
        for r in range(2):
            pools = [int(p.table[r, i * 8 // p.page]) * (p.page // 8) for i in range(held)]
            want = [at + i % (p.page // 8) for i, at in enumerate(pools)]
            assert places[r].tolist() == want + [INT32_MAX] * (40 - held)


def test_every_wrong_argument_is_named() -> None:
    p = Paged("cpu", [100, 200])
    lists, zeros, scores = p.lists(8, -1), torch.zeros_like(p.lens), torch.zeros(2, 64)
    expand, remap = vllm.candidate_blocks_to_sparse_indices, vllm.sparse_topk_remap
    sort, best_of = sglang.sort_candidate_blocks, sglang.topk_transform_bf16_small
    out = torch.zeros((2, 16), dtype=torch.int32)
    wide = torch.zeros((2, 5000), dtype=torch.int32)
    for name, call in [
        ("candidate_blocks", lambda: expand(lists.long(), zeros, p.lens, 8, 8)),
        ("candidate_blocks", lambda: expand(lists[0], zeros, p.lens, 8, 8)),
        ("candidate_block_size", lambda: expand(lists, zeros, p.lens, 12, 8)),
        ("sparse_block_kv", lambda: expand(lists, zeros, p.lens, 8, 0)),
        ("row_ks", lambda: expand(lists, zeros[:1], p.lens, 8, 8)),
        ("out[0]", lambda: expand(lists, zeros, p.lens, 8, 8, out=(lists[:, :3], zeros))),
        ("out", lambda: expand(lists, zeros, p.lens, 8, 8, out=lists)),
        ("candidate_block_size", lambda: vllm.pick_sparse_block_kv(4)),
        ("end[0]", lambda: remap(scores, lists, p.lens, zeros, 8, 16, out)),
        ("topk_indices", lambda: remap(scores, lists, zeros, zeros, 8, 16, out[:, :4])),
        ("topk_indices", lambda: remap(scores, lists, zeros, zeros, 8, 16, out.long())),
        ("topk_tokens", lambda: remap(scores, lists, zeros, zeros, 8, 0, out)),
        ("sparse_indices", lambda: remap(scores[:, :8], lists, zeros, zeros, 8, 16, out)),
        ("logits", lambda: remap(scores.half(), lists, zeros, zeros, 8, 16, out)),
        ("logits", lambda: sglang.amax_topk_blocks(scores[:1], p.lens, None, 4)),
        ("seq_lens", lambda: sglang.amax_topk_blocks(scores, p.lens.long(), None, 4)),
        ("page_size", lambda: sort(lists, p.lens, p.table, 12)),
        ("page_table", lambda: sort(lists, p.lens, p.table[:1], 64)),
        ("out_pages", lambda: sort(lists, p.lens, p.table, 64, out_pages=lists.long())),
        ("page_size", lambda: best_of(scores, zeros, lists, out, 0)),
        ("out_page_indices", lambda: best_of(scores, zeros, lists, out.long(), 8)),
        ("out_page_indices", lambda: best_of(scores, zeros, lists, wide, 8)),
    ]:
        with pytest.raises(tamis.Error) as error:
            call()
        assert error.value.name == name, str(error.value)
        assert error.value.required and error.value.found


def flows(p: Paged, dense: "torch.Tensor", lists: "torch.Tensor") -> "List[torch.Tensor]":
    """A step of each engine: SGLang's publish and select, vLLM's decode, one operator."""
    i32 = dict(dtype=torch.int32, device=p.lens.device)
    rows, width = lists.shape
    slots, positions = torch.empty((rows, 48), **i32), torch.empty((rows, 64), **i32)
    table = sglang.publish(dense, p.lens, p.table, p.page, 16)
    sglang.select(p.q, p.q_sf, p.kv, p.w, table, slots)
    vllm.sparse_mqa_logits_paged_decode(
        p.q,
        p.q_sf,
        p.kv,
        p.w,
        p.lens,
        p.table,
        None,
        lists,
        8,
        8,
        64,
        positions,
        row_ks=torch.zeros(rows, **i32),
        sparse_indices=torch.empty((rows, width), **i32),
        end=torch.empty(rows, **i32),
    )
    exact = torch.ops.tamis.consume_pages(
        p.q[:, 0], p.q_sf[:, 0], p.kv, p.w, p.lens, p.table, lists, 64, 8
    )
    return [table.blocks, table.phys_blocks, table.valid_lens, slots, positions, exact]


@pytest.mark.parametrize("device", DEVICES)
def test_flows_replay_other_contents_in_a_cuda_graph(device: str) -> None:
    """On the CPU the same calls follow the contents of the same tensors without a graph."""
    p, other = Paged(device, [1000, 333, 8, 129]), Paged(device, [5, 700, 1000, 64], seed=7)
    gen = torch.Generator().manual_seed(3)
    dense, later = (torch.randn((4, 1003), generator=gen).to(device) for _ in range(2))
    lists, others = p.lists(32, -1), other.lists(32, -1)
    first = flows(p, dense, lists)
    graph = torch.cuda.CUDAGraph() if device == "cuda" else None
    if graph is not None:
        with torch.cuda.graph(graph):
            out = flows(p, dense, lists)
    for name in ("pool", "lens", "table", "q", "q_sf", "w"):
        getattr(p, name).copy_(getattr(other, name))
    dense.copy_(later)
    lists.copy_(others)
    if graph is not None:
        graph.replay()
        torch.cuda.synchronize()
    else:
        out = flows(p, dense, lists)
    for found, want, before in zip(out, flows(other, later, others), first):
        assert torch.equal(found, want) and not torch.equal(found, before)
