# SPDX-License-Identifier: MIT
"""Problems for the tests of drop-in calls, and what torch computes from the published formulas.

Scores are f64 sums over MXFP4 values decoded here, so nothing below comes from the library.
"""

from __future__ import annotations

from typing import List, Optional

import pytest

torch = pytest.importorskip(
    "torch", reason="SKIPPED: torch is not installed: drop-in calls need it"
)

MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def values(codes: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
    """f64 [.., 2n] of packed codes [.., n] and UE8M0 scales [.., n / 16]."""
    codes = codes.contiguous().view(torch.uint8)
    nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()
    table = torch.tensor(MAGNITUDES, dtype=torch.float64, device=codes.device)
    magnitude = table[nibbles & 7] * torch.where(nibbles > 7, -1.0, 1.0)
    scale = torch.exp2(scales.contiguous().view(torch.uint8).double() - 127)
    return magnitude * scale.repeat_interleave(32, -1)


def row_scores(q: "torch.Tensor", k: "torch.Tensor", w: "torch.Tensor") -> "torch.Tensor":
    """f64 [N]: the weighted sum over heads of the positive dots."""
    return (w.double()[:, None] * (q @ k.T).clamp(min=0)).sum(0)


def bound(q: "torch.Tensor", k: "torch.Tensor", w: "torch.Tensor") -> "torch.Tensor":
    """How far a bfloat16 score may lie from row_scores: half a unit, and f32 sums' rounding."""
    total = (w.double().abs()[:, None] * (q @ k.T).clamp(min=0)).sum(0)
    return row_scores(q, k, w).abs() * 2**-8 + total * 2**-20 + 1e-30


class Paged:
    """Rows of several requests over pages in shuffled order."""

    def __init__(
        self,
        device: str,
        lens: List[int],
        heads: int = 32,
        page: int = 64,
        seed: int = 1,
        pad: int = 0,
    ) -> None:
        gen = torch.Generator().manual_seed(seed)
        rows = len(lens)
        self.page, self.heads = page, heads
        self.width = max(1, -(-max(lens) // page)) if lens else 1
        pages = rows * self.width + 1
        pool = torch.randint(0, 256, (pages, page * 68 + pad), generator=gen, dtype=torch.uint8)
        pool[:, page * 64 : page * 68] = torch.randint(
            118, 121, (pages, page * 4), generator=gen, dtype=torch.uint8
        )
        self.pool = pool.to(device)
        self.kv = self.pool[:, : page * 68].unflatten(1, (page, 1, 68))
        self.lens = torch.tensor(lens, dtype=torch.int32, device=device)
        order = torch.randperm(pages, generator=gen)[: rows * self.width]
        self.table = order.view(rows, self.width).int().to(device)
        self.q = torch.randint(-128, 128, (rows, 1, heads, 64), generator=gen, dtype=torch.int8).to(
            device
        )
        scales = torch.randint(125, 127, (rows, 1, heads, 4), generator=gen, dtype=torch.uint8)
        self.q_sf = scales.view(torch.int32).squeeze(-1).to(device)
        self.w = torch.randn((rows, heads), generator=gen).bfloat16().to(device)

    def k_of(self, r: int) -> "torch.Tensor":
        """f64 [length, 128]: the row's K in order."""
        n, page = int(self.lens[r]), self.page
        used = self.pool[self.table[r].long()]
        codes = used[:, : page * 64].reshape(-1, 64)[:n]
        scales = used[:, page * 64 : page * 68].reshape(-1, 4)[:n]
        return values(codes, scales)

    def q_of(self, r: int) -> "torch.Tensor":
        return values(self.q[r, 0], self.q_sf[r, 0].unsqueeze(1).view(torch.uint8))

    def scores(self, r: int) -> "torch.Tensor":
        return row_scores(self.q_of(r), self.k_of(r), self.w[r])

    def lists(self, width: int, fill: Optional[int], seed: int = 2) -> "torch.Tensor":
        """Ascending lists of some blocks of each row; ``fill`` None repeats the last id."""
        gen = torch.Generator().manual_seed(seed)
        out = torch.zeros((len(self.lens), width), dtype=torch.int32)
        for r, n in enumerate(self.lens.tolist()):
            blocks = -(-n // 8)
            kept = torch.randperm(blocks, generator=gen)[:width].sort().values.int()
            out[r, : len(kept)] = kept
            tail = fill if fill is not None else (int(kept[-1]) if len(kept) else 0)
            out[r, len(kept) :] = tail
        return out.to(self.lens.device)
