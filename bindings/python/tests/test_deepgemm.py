# SPDX-License-Identifier: MIT
"""The DeepGEMM-shaped calls against the formula in f64."""

from __future__ import annotations

import pytest

from dropin import DEVICES, Paged, bound, row_scores, torch, values

import tamis
from tamis import deepgemm

INT32_MAX = 2**31 - 1
LENS = [0, 1, 7, 8, 9, 63, 64, 65, 200, 333, 400]


def paged_logits(p: Paged, lists: "torch.Tensor") -> "torch.Tensor":
    metadata = deepgemm.get_paged_sparse_mqa_logits_metadata(
        p.lens,
        p.table,
        torch.arange(len(p.lens), device=p.lens.device),
        p.page,
        lists,
        torch.int8,
        8,
    )
    return deepgemm.fp8_fp4_paged_sparse_mqa_logits(
        (p.q, p.q_sf), p.kv, p.w, metadata, lists.shape[1], 8
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fill", [-1, INT32_MAX, None])
@pytest.mark.parametrize("heads", [32, 8])
def test_paged(device: str, fill: int, heads: int) -> None:
    p = Paged(device, LENS, heads=heads, pad=128)
    lists = p.lists(12, fill)
    found = paged_logits(p, lists)
    assert (
        found.dtype == torch.bfloat16
        and found.shape == (len(LENS), 96)
        and found.stride(0) % 512 == 0
    )
    for r, n in enumerate(LENS):
        q, k, w = p.q_of(r), p.k_of(r), p.w[r]
        want, near = row_scores(q, k, w), bound(q, k, w)
        kept = min(12, -(-n // 8))
        for j in range(12):
            for o in range(8):
                position, value = int(lists[r, j]) * 8 + o, float(found[r, j * 8 + o])
                if j >= kept or position >= n:
                    assert value == -float("inf"), (r, j, o)
                else:
                    assert abs(value - float(want[position])) <= float(near[position]), (r, j, o)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("unaligned", [False, True])
def test_ragged(device: str, block: int, unaligned: bool) -> None:
    gen = torch.Generator().manual_seed(5)
    total, heads, width = 900, 32, 16
    codes = torch.randint(-128, 128, (total, 64), generator=gen, dtype=torch.int8).to(device)
    sf = (
        torch.randint(118, 121, (total, 4), generator=gen, dtype=torch.uint8)
        .view(torch.int32)
        .squeeze(1)
        .to(device)
    )
    starts = [0, 16, 48, 160, 160, 896] if not unaligned else [0, 13, 47, 161, 163, 899]
    ends = [100, 16, 49, 400, 900, 900]
    rows = len(starts)
    ks = torch.tensor(starts, dtype=torch.int32, device=device)
    ke = torch.tensor(ends, dtype=torch.int32, device=device)
    q = torch.randint(-128, 128, (rows, heads, 64), generator=gen, dtype=torch.int8).to(device)
    q_sf = (
        torch.randint(125, 127, (rows, heads, 4), generator=gen, dtype=torch.uint8)
        .view(torch.int32)
        .squeeze(-1)
        .to(device)
    )
    w = torch.randn((rows, heads), generator=gen).bfloat16().to(device)
    lists = torch.full((rows, width), -1, dtype=torch.int32)
    for r in range(rows):
        blocks = -(-max(0, ends[r] - starts[r]) // block)
        kept = (
            torch.randperm(blocks, generator=gen)[:width].sort().values.int() + starts[r] // block
        )
        lists[r, : len(kept)] = kept
    metadata = deepgemm.get_sparse_mqa_logits_metadata(
        ks, ke, total, lists.to(device), torch.int8, block, unaligned
    )
    found = deepgemm.fp8_fp4_sparse_mqa_logits(
        (q, q_sf), (codes, sf), w, metadata, width, block, unaligned
    )
    k = values(codes, sf.unsqueeze(1).view(torch.uint8))
    for r in range(rows):
        own = values(q[r], q_sf[r].unsqueeze(1).view(torch.uint8))
        want, near = row_scores(own, k, w[r]), bound(own, k, w[r])
        for j in range(width):
            for o in range(block):
                position = int(lists[r, j]) * block + starts[r] % block + o
                value = float(found[r, j * block + o])
                if lists[r, j] < 0 or position >= ends[r]:
                    assert value == -float("inf"), (r, j, o)
                else:
                    assert abs(value - float(want[position])) <= float(near[position]), (r, j, o)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_depends_on_the_batch(device: str) -> None:
    p = Paged(device, LENS)
    lists = p.lists(12, -1)
    whole = paged_logits(p, lists)
    for r in range(len(LENS)):
        alone = Paged(device, LENS)
        for name in ("lens", "table", "q", "q_sf", "w"):
            setattr(alone, name, getattr(p, name)[r : r + 1])
        assert torch.equal(
            paged_logits(alone, lists[r : r + 1]).view(torch.int16),
            whole[r : r + 1].view(torch.int16),
        )


def test_refusals_name_argument_and_both_values() -> None:
    p = Paged("cpu", [100, 200])
    lists = p.lists(12, -1)
    metadata = deepgemm.get_paged_sparse_mqa_logits_metadata(
        p.lens, p.table, None, p.page, lists, torch.int8, 8
    )
    call = deepgemm.fp8_fp4_paged_sparse_mqa_logits
    with pytest.raises(tamis.Error) as error:
        call((p.q, p.q_sf), p.kv, p.w, metadata, 16, 8)
    assert (
        error.value.name == "metadata"
        and "16 blocks" in error.value.required
        and "[" in error.value.found
    )
    with pytest.raises(tamis.Error) as error:
        call((p.q, p.q_sf), p.kv, p.w, metadata, 12, 16)
    assert error.value.name == "metadata"
    with pytest.raises(tamis.Error) as error:
        call((p.q.float(), p.q_sf), p.kv, p.w, metadata, 12, 8)
    assert error.value.name == "q[0]" and "float32" in error.value.found
    with pytest.raises(tamis.Error) as error:
        call((p.q, p.q_sf.long()), p.kv, p.w, metadata, 12, 8)
    assert error.value.name == "q[1]" and "int64" in error.value.found
    with pytest.raises(tamis.Error) as error:
        deepgemm.get_paged_sparse_mqa_logits_metadata(
            p.lens, p.table, None, 60, lists, torch.int8, 8
        )
    assert error.value.name == "page_kv" and "60" in error.value.found
    ragged = deepgemm.get_sparse_mqa_logits_metadata(
        torch.zeros_like(p.lens), p.lens, 400, lists, torch.int8, 8
    )
    with pytest.raises(tamis.Error):
        call((p.q, p.q_sf), p.kv, p.w, ragged, 12, 8)
    with pytest.raises(tamis.Error):  # made for aligned intervals
        deepgemm.fp8_fp4_sparse_mqa_logits(
            (p.q[:, 0], p.q_sf[:, 0]),
            (torch.zeros((400, 64), dtype=torch.int8), torch.zeros(400, dtype=torch.int32)),
            p.w,
            ragged,
            12,
            8,
            True,
        )


@pytest.mark.skipif(len(DEVICES) < 2, reason="SKIPPED: no CUDA device for torch graphs")
def test_cuda_graph_replays_other_contents() -> None:
    p, other = Paged("cuda", [10] * 6, seed=3), Paged("cuda", [400] * 6, seed=4)
    big = Paged("cuda", [400] * 6, seed=3)
    big.lens.copy_(p.lens)
    lists = torch.full((6, 64), -1, dtype=torch.int32, device="cuda")
    lists[:, :2] = torch.tensor([0, 1], dtype=torch.int32)
    paged_logits(big, lists)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_logits(big, lists)
    for name in ("pool", "lens", "table", "q", "q_sf", "w"):
        getattr(big, name).copy_(getattr(other, name))
    lists.copy_(other.lists(64, INT32_MAX))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.view(torch.int16), paged_logits(other, lists).view(torch.int16))


def refusals(p: Paged):  # type: ignore[no-untyped-def]
    """Calls that have one wrong argument each, and its name."""
    lists, zeros = p.lists(12, -1), torch.zeros_like(p.lens)
    ragged, paged = (
        deepgemm.get_sparse_mqa_logits_metadata,
        deepgemm.get_paged_sparse_mqa_logits_metadata,
    )
    logits = deepgemm.fp8_fp4_paged_sparse_mqa_logits
    made = paged(p.lens, p.table, None, p.page, lists, torch.int8, 8)
    q = (p.q, p.q_sf)
    return [
        ("cu_seq_len_k_start", lambda: ragged(zeros[:1], p.lens, 400, lists, torch.int8, 8)),
        ("cu_seq_len_k_start[0]", lambda: ragged(zeros - 9, p.lens, 400, lists, torch.int8, 8)),
        ("cu_seq_len_k_end", lambda: ragged(zeros, p.lens.long(), 400, lists, torch.int8, 8)),
        ("num_kv_tokens", lambda: ragged(zeros, p.lens, -1, lists, torch.int8, 8)),
        ("sparse_kv_block_indices", lambda: ragged(zeros, p.lens, 4, lists[0], torch.int8, 8)),
        ("qk_dtype", lambda: ragged(zeros, p.lens, 400, lists, torch.bfloat16, 8)),
        ("sparse_block_kv", lambda: ragged(zeros, p.lens, 400, lists, torch.int8, "8")),
        ("context_lens", lambda: paged(p.lens[:1], p.table, None, 64, lists, torch.int8, 8)),
        ("block_table", lambda: paged(p.lens, p.table[:1], None, 64, lists, torch.int8, 8)),
        ("block_table", lambda: paged(p.lens, p.table.long(), None, 64, lists, torch.int8, 8)),
        ("q", lambda: logits(p.q, p.kv, p.w, made, 12, 8)),
        ("q[1]", lambda: logits((p.q, None), p.kv, p.w, made, 12, 8)),
        ("kv_cache", lambda: logits(q, p.kv.squeeze(2), p.w, made, 12, 8)),
        ("kv_cache", lambda: logits(q, p.kv.float(), p.w, made, 12, 8)),
        ("weights", lambda: logits(q, p.kv, p.w.half(), made, 12, 8)),
        ("metadata", lambda: logits(q, p.kv, p.w, None, 12, 8)),
        ("metadata", lambda: logits(q, p.kv, p.w, torch.cat([made, made], 1)[:, :8], 12, 8)),
        ("metadata[0]", lambda: logits(q, p.kv, p.w, torch.full_like(made, 0x7F), 12, 8)),
        (  # places of blocks in other pages
            "metadata",
            lambda: logits(
                q, p.kv, p.w, paged(p.lens, p.table, None, 32, lists, torch.int8, 8), 12, 8
            ),
        ),
    ]


def test_every_wrong_argument_is_named() -> None:
    for name, call in refusals(Paged("cpu", [100, 200])):
        with pytest.raises(tamis.Error) as error:
            call()
        assert error.value.name == name, str(error.value)
        assert error.value.required and error.value.found


@pytest.mark.parametrize("device", DEVICES)
def test_no_rows(device: str) -> None:
    p = Paged(device, [100, 200])
    lists = p.lists(12, -1)
    for name in ("lens", "table", "q", "q_sf", "w"):
        setattr(p, name, getattr(p, name)[:0])
    assert paged_logits(p, lists[:0]).shape == (0, 96)
