# SPDX-License-Identifier: MIT
"""The operators: their schemas and fakes, a compiled model, and consume against the drop-in flow."""

from __future__ import annotations

import pytest

from dropin import DEVICES, Paged, torch

import tamis.torch_ops  # noqa: F401  (registers)
from tamis import deepgemm, vllm

LENS = [0, 9, 333, 1000]
ops = torch.ops.tamis


def arguments(p: Paged, width: int):  # type: ignore[no-untyped-def]
    lists = p.lists(width, -1)
    metadata = ops.paged_sparse_mqa_logits_metadata(p.lens, p.table, p.page, lists, 8)
    return lists, metadata, (p.q, p.q_sf, p.kv, p.w, metadata, width, 8)


@pytest.mark.parametrize("device", DEVICES)
def test_schemas_and_fakes(device: str) -> None:
    p = Paged(device, LENS)
    lists, _, logits = arguments(p, 32)
    zeros = torch.zeros_like(p.lens)
    check = lambda op, args: torch.library.opcheck(
        op, args, test_utils=("test_schema", "test_faketensor")
    )
    check(ops.paged_sparse_mqa_logits_metadata.default, (p.lens, p.table, p.page, lists, 8))
    check(ops.paged_sparse_mqa_logits.default, logits)
    check(ops.sparse_mqa_logits_metadata.default, (zeros, p.lens, 1000, lists, 8, True))
    ragged = ops.sparse_mqa_logits_metadata(zeros, p.lens, 1000, lists, 8, True)
    codes = torch.zeros((1000, 64), dtype=torch.int8, device=device)
    sf = torch.full((1000,), 0x7F7F7F7F, dtype=torch.int32, device=device)
    check(
        ops.sparse_mqa_logits.default,
        (p.q[:, 0], p.q_sf[:, 0], codes, sf, p.w, ragged, 32, 8, True),
    )
    check(ops.expand_candidates.default, (lists, zeros, p.lens, 16, 8))
    blocks, end = ops.expand_candidates(lists, zeros, p.lens, 8, 8)
    out = torch.zeros((len(LENS), 16), dtype=torch.int32, device=device)
    scores = ops.paged_sparse_mqa_logits(*logits)
    check(ops.topk_remap.default, (scores, blocks, end, zeros, 8, 16, out))
    check(
        ops.consume_pages.default,
        (p.q[:, 0], p.q_sf[:, 0], p.kv, p.w, p.lens, p.table, lists, 16, 8),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_is_eager(device: str) -> None:
    p = Paged(device, LENS)
    lists, metadata, logits = arguments(p, 32)
    eager = deepgemm.fp8_fp4_paged_sparse_mqa_logits((p.q, p.q_sf), p.kv, p.w, metadata, 32, 8)

    @torch.compile(backend="eager", fullgraph=True)
    def model(q, q_sf, kv, w, lens, table, lists):  # type: ignore[no-untyped-def]
        made = torch.ops.tamis.paged_sparse_mqa_logits_metadata(lens, table, 64, lists, 8)
        return torch.ops.tamis.paged_sparse_mqa_logits(q, q_sf, kv, w, made, 32, 8)

    found = model(p.q, p.q_sf, p.kv, p.w, p.lens, p.table, lists)
    assert torch.equal(found.view(torch.int16), eager.view(torch.int16))


@pytest.mark.parametrize("device", DEVICES)
def test_consume_selects_like_exact_scores(device: str) -> None:
    p = Paged(device, LENS)
    lists = p.lists(32, -1)
    found = ops.consume_pages(p.q[:, 0], p.q_sf[:, 0], p.kv, p.w, p.lens, p.table, lists, 40, 8)
    for r, n in enumerate(LENS):
        columns = [
            b * 8 + o for b in lists[r].tolist() if b >= 0 for o in range(8) if b * 8 + o < n
        ]
        scores = p.scores(r)
        want = sorted(sorted(columns, key=lambda j: (-float(scores[j]), j))[:40])
        kept = [j for j in found[r].tolist() if j >= 0]
        assert len(kept) == len(want)
        for j in set(kept) ^ set(want):  # f32 may join what f64 tells apart
            assert abs(float(scores[j]) - min(float(scores[i]) for i in want)) < 1e-3
    assert vllm.pick_sparse_block_kv(48) == 16
