# SPDX-License-Identifier: MIT
"""What else selects positions on this GPU, on one problem: torch, and a Triton scorer.

Usage: bench/gpu/peers.py [ROWS] [POSITIONS ..]

One layer of 32 heads x 128, published lists of 2,048 blocks of 8 (72% kept from row to row), topk
512. bf16 matmuls for torch, which has the K dequantised beforehand; MXFP4 codes decoded in the kernel
for Triton. Medians of five CUDA-event times after two warm-ups; 512 MiB are written between two runs.
Overlap is the share of the selection of exact scores (f64 of the same MXFP4 values) that a peer's
selection holds.
"""

import statistics
import sys

import torch
import triton
import triton.language as tl

HEADS, DIM, BLOCKS, BLOCK, TOPK = 32, 128, 2048, 8, 512
MAGNITUDES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@triton.jit
def candidate_scores(
    codes,
    scales,
    q_even,
    q_odd,
    weights,
    blocks,
    scores,
    width,
    HEADS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scores of TILE listed positions of one row: E2M1 codes to bf16 by arithmetic, two dots of 64."""
    row, first = tl.program_id(1), tl.program_id(0) * TILE
    column = first + tl.arange(0, TILE)
    block = tl.load(blocks + row.to(tl.int64) * (width // BLOCK) + column // BLOCK)
    position = (block * BLOCK + column % BLOCK).to(tl.int64)
    byte = tl.arange(0, 64)
    packed = tl.load(codes + position[:, None] * 64 + byte[None, :]).to(tl.int32)
    exponent = tl.load(scales + position[:, None] * 4 + (byte // 16)[None, :]).to(tl.int32)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    head = tl.arange(0, HEADS)
    q_at = row * HEADS * 64 + head[None, :] * 64 + byte[:, None]
    total = tl.zeros((TILE, HEADS), tl.float32)
    for half in tl.static_range(2):
        nibble = (packed >> (4 * half)) & 15
        magnitude = nibble & 7
        # 2^-1 at 1; from 2 on, two exponent bits and one of mantissa
        normal = (((magnitude >> 1) + 126) << 23) | ((magnitude & 1) << 22)
        value = tl.where(magnitude < 2, magnitude * 0.5, normal.to(tl.float32, bitcast=True))
        value = tl.where(nibble > 7, -value, value) * scale
        q = tl.load((q_even if half == 0 else q_odd) + q_at)
        total = tl.dot(value.to(tl.bfloat16), q, total)
    weight = tl.load(weights + row * HEADS + head)
    score = tl.sum(tl.maximum(total, 0.0) * weight[None, :], 1)
    tl.store(scores + row.to(tl.int64) * width + column, score)


class Problem:
    def __init__(self, rows, positions):
        gen = torch.Generator(device="cuda").manual_seed(1)
        self.rows, self.positions = rows, positions
        self.codes = torch.randint(0, 256, (positions, 64), generator=gen, device="cuda", dtype=torch.uint8)
        self.scales = torch.randint(118, 121, (positions, 4), generator=gen, device="cuda", dtype=torch.uint8)
        q_codes = torch.randint(0, 256, (rows * HEADS, 64), generator=gen, device="cuda", dtype=torch.uint8)
        q_scales = torch.randint(126, 128, (rows * HEADS, 4), generator=gen, device="cuda", dtype=torch.uint8)
        self.k = self.values(self.codes, self.scales)
        self.q = self.values(q_codes, q_scales).view(rows, HEADS, DIM)
        self.weights = torch.randn((rows, HEADS), generator=gen, device="cuda") / 64
        self.blocks = self.lists(gen)

    @staticmethod
    def values(codes, scales):
        nibbles = torch.stack((codes & 15, codes >> 4), -1).view(codes.shape[0], DIM)
        value = MAGNITUDES.cuda()[(nibbles & 7).long()] * torch.where(nibbles > 7, -1.0, 1.0)
        return (value * torch.exp2(scales.float() - 127).repeat_interleave(32, 1)).bfloat16()

    def lists(self, gen):
        """Lists of one row after the other: 72% of a row's blocks stay in the next."""
        total = self.positions // BLOCK
        if total <= BLOCKS:
            return torch.arange(total, device="cuda", dtype=torch.int32).repeat(self.rows, 1)
        key = torch.rand(total, generator=gen, device="cuda")
        out = torch.empty((self.rows, BLOCKS), device="cuda", dtype=torch.int32)
        for r in range(self.rows):
            out[r] = key.topk(BLOCKS).indices.sort().values
            drawn = torch.rand(total, generator=gen, device="cuda") < 0.28
            key = torch.where(drawn, torch.rand(total, generator=gen, device="cuda"), key)
            held = torch.zeros(total, dtype=torch.bool, device="cuda")
            held[out[r].long()] = True
            key = key + torch.where(held & ~drawn, 1.0, 0.0) - key.floor()
        return out

    def exact(self, r):
        """The selection of row r, by f64."""
        position = (self.blocks[r].long()[:, None] * BLOCK + torch.arange(BLOCK, device="cuda")).flatten()
        dots = self.q[r].double() @ self.k[position].double().T
        score = (self.weights[r].double()[:, None] * dots.clamp(min=0)).sum(0)
        return set(position[score.topk(min(TOPK, len(score))).indices].tolist())


class Torch:
    """Candidates gathered, one matmul a row's 16,384; or everything scored and masked."""

    def __init__(self, problem, gather, tile):
        self.p, self.gather, self.tile = problem, gather, tile
        self.name = "torch: gather, bmm, topk, sort" if gather else "torch: matmul of everything, mask, topk, sort"

    def run(self):
        p, out = self.p, []
        for r in range(0, p.rows, self.tile):
            q, w, blocks = p.q[r : r + self.tile], p.weights[r : r + self.tile], p.blocks[r : r + self.tile].long()
            position = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device="cuda")).flatten(1)
            if self.gather:
                dots = torch.bmm(p.k[position.flatten()].view(*position.shape, DIM), q.transpose(1, 2))
                score = torch.matmul(dots.relu_(), w.bfloat16()[:, :, None]).squeeze(2)
                out.append(position.gather(1, score.topk(TOPK, sorted=False).indices).sort(1).values)
                continue
            dots = (q.flatten(0, 1) @ p.k.T).relu_().view(q.shape[0], HEADS, -1)
            score = torch.bmm(w.bfloat16()[:, None, :], dots).squeeze(1)
            mask = torch.full_like(score, float("-inf")).scatter_(1, position, 0.0)
            out.append((score + mask).topk(TOPK, sorted=False).indices.sort(1).values)
        return torch.cat(out)


class Triton:
    name = "Triton: candidate scores of MXFP4, torch.topk, sort"

    def __init__(self, problem):
        self.p = problem
        halves = problem.q.view(problem.rows, HEADS, 64, 2)
        self.even, self.odd = halves[..., 0].contiguous(), halves[..., 1].contiguous()
        self.width = problem.blocks.shape[1] * BLOCK
        self.scores = torch.empty((problem.rows, self.width), device="cuda")

    def score(self):
        p, tile = self.p, 128
        candidate_scores[(self.width // tile, p.rows)](
            p.codes,
            p.scales,
            self.even,
            self.odd,
            p.weights,
            p.blocks,
            self.scores,
            self.width,
            HEADS=HEADS,
            TILE=tile,
            BLOCK=BLOCK,
            num_warps=4,
            num_stages=3,
        )

    def run(self):
        self.score()
        column = self.scores.topk(TOPK, sorted=False).indices
        return (self.p.blocks.gather(1, column // BLOCK) * BLOCK + column % BLOCK).sort(1).values


def time_ns(call, rows, flush):
    times = []
    for i in range(7):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if i > 1:
            times.append(start.elapsed_time(end) * 1e6 / rows)
    return statistics.median(times)


def overlap(problem, selected):
    rows = range(0, problem.rows, max(1, problem.rows // 16))
    return statistics.mean(len(problem.exact(r) & set(selected[r].tolist())) / TOPK for r in rows)


def report(name, rows, positions, ns, held):
    share = f"{100 * held:6.2f}%" if held is not None else "      -"
    print(f"{positions:>9,} {rows:>6} {ns:>10,.0f} {share}  {name}", flush=True)


def attempt(make, rows, positions, flush):
    try:
        peer = make(Problem(rows, positions))
        result = peer.run()
        report(peer.name, rows, positions, time_ns(peer.run, rows, flush), overlap(peer.p, result))
        if isinstance(peer, Triton):
            report(peer.name.split(",")[0] + " alone", rows, positions, time_ns(peer.score, rows, flush), None)
    except Exception as error:  # a peer that does not run is told, by name
        print(
            f"{positions:>9,} {rows:>6} did not run  {getattr(make, '__name__', make)}: "
            f"{type(error).__name__}: {' '.join(str(error).split())}"[:300],
            flush=True,
        )
    torch.cuda.empty_cache()


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    sizes = [int(a) for a in sys.argv[2:]] or [262144]
    flush = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print("positions   rows     ns/row  overlap  peer")
    for positions in sizes:
        few = min(rows, 64)
        attempt(lambda p: Torch(p, True, 16), few, positions, flush)
        attempt(lambda p: Torch(p, False, 4), few, positions, flush)
        attempt(Triton, rows, positions, flush)


if __name__ == "__main__":
    main()
