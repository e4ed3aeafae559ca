# SPDX-License-Identifier: MIT
"""The same calls on CUDA tensors: on side streams, inside torch CUDA graphs, by DLPack; the bytes
are the CPU's."""

import numpy as np
import pytest
from problems import LAYOUTS, Problem

import tamis
from tamis import errors, stages

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("SKIPPED: torch sees no CUDA device", allow_module_level=True)
if not tamis.cuda_built():
    pytest.skip("SKIPPED: this build has no CUDA kernels", allow_module_level=True)

EVERYTHING = ("positions", "slots", "scores", "counts")


def cuda(x):
    return None if x is None else torch.from_numpy(np.ascontiguousarray(x)).cuda()


def moved(p):
    """K, rows and queries of a problem on the GPU."""
    k = {
        "mxfp4_page": lambda: tamis.KCache.pages(cuda(p.k.codes), p.page_size, p.dim),
        "mxfp4_split": lambda: tamis.KCache.split(cuda(p.k.codes), cuda(p.k.scales)),
        "mxfp4_row": lambda: tamis.KCache.rows(cuda(p.k.codes)),
    }[p.layout]()
    return k, tamis.Rows(*map(cuda, p.rows)), tamis.Query(*map(cuda, p.query))


def same(got, want):
    """Tuples of tensors and arrays, byte for byte."""
    for a, b in zip(got, want):
        if isinstance(b, tuple):
            same(a, b)
        elif b is None:
            assert a is None
        else:
            a = a.cpu().numpy()
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("seed", range(3))
def test_stages_are_the_cpus_bytes(layout, dim, seed):
    p = Problem(seed, rows=9, heads=(4, 12, 32)[seed], dim=dim, layout=layout, wide=seed == 1)
    args, on = (p.k, p.rows, p.query), moved(p)
    columns = 224
    want = stages.mqa_logits(*args, columns=columns, block_max=True)
    got = stages.mqa_logits(*on, columns=columns, block_max=True)
    same(got[:1], want[:1])
    for r in range(9):
        n = -(-p.interval(r)[1] // 8)
        assert got[1][r, :n].cpu().numpy().tobytes() == want[1][r, :n].tobytes()
    published = stages.publish(want[1], p.rows, 6)
    same(stages.publish(cuda(want[1]), on[1], 6), published)
    expanded = stages.expand(published.blocks, p.rows, fixed_width=True)
    same(stages.expand(cuda(published.blocks), on[1], fixed_width=True), expanded)
    again = stages.block_max(got.logits, on[1])
    same([again[:, :1]], [stages.block_max(want.logits, p.rows)[:, :1]])
    same(stages.topk(got.logits, on[1], 20), stages.topk(want.logits, p.rows, 20))
    blocks = published.blocks
    same(
        stages.consume(*on, cuda(blocks), 16, want=EVERYTHING),
        stages.consume(*args, blocks, 16, want=EVERYTHING),
    )
    same(
        stages.dense(*on, 16, blocks=cuda(blocks), want=EVERYTHING),
        stages.dense(*args, 16, blocks=blocks, want=EVERYTHING),
    )
    same(stages.source(*on, 16, 6, want=EVERYTHING), stages.source(*args, 16, 6, want=EVERYTHING))
    sparse = stages.sparse_mqa_logits(*args, expanded.blocks, counts=expanded.counts)
    same(
        [stages.sparse_mqa_logits(*on, cuda(expanded.blocks), counts=cuda(expanded.counts))],
        [sparse],
    )


def test_preparing_is_the_cpus_bytes():
    rng = np.random.default_rng(3)
    q = tamis.mxfp4.float32_to_bfloat16(rng.standard_normal((7, 32, 128)).astype(np.float32))
    x = q[:, 0].copy()
    w, table = rng.standard_normal((7, 32)), rng.standard_normal((50, 64))
    w, table = w.astype(np.float32), table.astype(np.float32)
    norm = rng.standard_normal(128).astype(np.float32)
    positions, slots = np.arange(7) * 7, rng.permutation(16)[:7]

    def bfloat16(array):
        return cuda(array.view(np.int16)).view(torch.bfloat16)

    want = stages.q_prepare(q, positions, table, w)
    same(stages.q_prepare(bfloat16(q), cuda(positions), cuda(table), cuda(w)), want)
    made = stages.q_prepare(
        bfloat16(q), cuda(positions), cuda(table), cuda(w), weights_dtype="bfloat16"
    )
    assert made.weights.dtype == torch.bfloat16
    data = np.zeros((2, 8, 68), np.uint8)
    k, on = tamis.KCache.pages(data), tamis.KCache.pages(cuda(data))
    stages.k_insert(x, positions, slots, k, norm, table)
    stages.k_insert(bfloat16(x), cuda(positions), cuda(slots), on, cuda(norm), cuda(table))
    same([on.codes], [data])
    pages = np.array([[1, 0]], np.int32)
    rows = tamis.Rows(np.array([16], np.int32), page_table=pages)
    there = tamis.Rows(cuda(rows.ke), page_table=cuda(pages))
    start = np.zeros(1, np.int64)
    same(stages.k_gather(on, there, cuda(start), 16), stages.k_gather(k, rows, start, 16))


def test_side_streams_order_the_work():
    """The queries are written on the side stream behind a long kernel: an order by any other
    stream reads what was there before."""
    p, other = Problem(1, rows=64, heads=32), Problem(2, rows=64, heads=32)
    k, rows, query = moved(p)
    blocks = stages.source(k, rows, query, 16, 6).blocks
    want = stages.consume(p.k, p.rows, other.query, blocks.cpu().numpy(), 16)
    fresh = [cuda(x) for x in other.query]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        for mine, new in zip(query, fresh):
            mine.copy_(new, non_blocking=True)
        got = stages.consume(k, rows, query, blocks, 16)
    side.synchronize()
    same(got, want)
    for mine, old in zip(query, p.query):
        mine.copy_(cuda(old))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        for mine, new in zip(query, fresh):
            mine.copy_(new, non_blocking=True)
    for stream in (side, side.cuda_stream):
        got = stages.consume(k, rows, query, blocks, 16, stream=stream)
        side.synchronize()
        same(got, want)


def test_calls_are_captured_in_torch_graphs():
    p, other = Problem(1, rows=5, heads=32), Problem(2, rows=5, heads=32)
    k, rows, query = moved(p)
    blocks = torch.zeros(5, 6, dtype=torch.int32).cuda()
    consume = stages.consume.prepare(k, rows, query, blocks, 16)
    source = stages.source.prepare(k, rows, query, 16, 6)
    source.run()
    consume.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = source.run()
        consume.update({"blocks": made.blocks})
        consume.run()
        inside = stages.dense(k, rows, query, 16, blocks=made.blocks)
    for q, ke in ((p.query, p.rows.ke), (other.query, p.rows.ke // 2), (p.query, p.rows.ke * 0)):
        for mine, new in zip(query, q):
            mine.copy_(cuda(new))
        rows.ke.copy_(cuda(ke))
        graph.replay()
        torch.cuda.synchronize()
        on_cpu = (p.k, p.rows._replace(ke=ke), q)
        want = stages.source(*on_cpu, 16, 6)
        same(made, want)
        same(consume.outputs, stages.consume(*on_cpu, want.blocks, 16))
        same(inside, stages.consume(*on_cpu, want.blocks, 16))


class Plans:
    """One model on the CPU and on the GPU, with K of both owners' pages."""

    config = {
        "compress_ratios": [0, 1, 1, 1, 1],
        "kv_source_layer_ids": [1],
        "index_source_layer_ids": [1, 2, 4],
        "candidate_source_layer_id": 1,
        "candidate_topk_blocks": 40,
        "candidate_block_size": 8,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 32,
    }

    def __init__(self, sparse):
        rng = self.rng = np.random.default_rng(5)
        self.indexer = tamis.Indexer(
            self.config, {"indexer_sparse_logits": sparse}, page_size=16, page_align=16
        )
        limits = {"max_requests": 4, "max_batched_tokens": 32, "max_context": 1024}
        self.cpu = self.indexer.plan(**limits)
        self.gpu = self.indexer.plan(**limits, device="cuda")
        data = rng.integers(0, 256, (256, 16 * 68), np.uint8)
        data[:, 16 * 64 :] = rng.integers(120, 130, (256, 64))
        self.k, self.on = tamis.KCache.pages(data, 16), tamis.KCache.pages(cuda(data), 16)
        self.table = rng.permutation(256).astype(np.int32).reshape(4, 64)
        codes = rng.integers(0, 256, (16, 32, 64), np.uint8)
        scales = rng.integers(120, 130, (16, 32, 4)).astype(np.uint8)
        self.query = tamis.Query(codes, scales, rng.standard_normal((16, 32)).astype(np.float32))

    def batch(self, context, new):
        starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
        return np.array(context, np.int64), starts


@pytest.mark.parametrize("sparse", [True, False, "auto"])
def test_plans_select_as_on_the_cpu_eagerly_and_in_a_graph(sparse):
    s = Plans(sparse)
    first = s.batch([10, 3, 0, 0], [1, 1, 0, 0])
    context, starts = cuda(first[0]), cuda(first[1])
    table, query = cuda(s.table), tamis.Query(*map(cuda, s.query))
    calls = {n: s.gpu.layer(n, s.on, query, want=EVERYTHING) for n in (1, 2, 4)}
    blocks = torch.zeros(16, 40, dtype=torch.int32, device="cuda")
    calls[1] = s.gpu.layer(1, s.on, query, want=EVERYTHING, blocks=blocks)

    def forward():
        step = s.gpu.step(context, starts, page_tables={1: table}, tokens=16)
        for n in (1, 2, 4):
            calls[n].run(step)
        return step

    forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = forward()
    assert kept.rows == 16
    for lengths, new in (
        ([1000, 700, 64, 5], [1, 4, 9, 2]),
        ([10, 3, 0, 0], [1, 1, 0, 0]),
        ([900, 1024, 320, 321], [8, 4, 3, 1]),
    ):
        c, starts_now = s.batch(lengths, new)
        context.copy_(cuda(c))
        starts.copy_(cuda(starts_now))
        graph.replay()
        torch.cuda.synchronize()
        assert s.gpu.fault is None
        step = s.cpu.step(c, starts_now, page_tables={1: s.table})
        for n in (1, 2, 4):
            want = s.cpu.layer(n, s.k, s.query, want=EVERYTHING).run(step)
            tokens = int(starts_now[-1])
            for a, b in zip(calls[n].outputs, want):
                assert a[:tokens].cpu().numpy().tobytes() == b[:tokens].tobytes(), (n, lengths)
        assert (calls[4].outputs.positions[int(starts_now[-1]) :] == -1).all()
    s.gpu.close()


def test_plans_report_faults_without_waiting():
    s = Plans(True)
    c, starts = s.batch([100, 30, 0, 0], [1, 1, 0, 0])
    query = tamis.Query(*map(cuda, s.query))
    consumer = s.gpu.layer(2, s.on, query)
    step = s.gpu.step(cuda(c), cuda(starts), page_tables={1: cuda(s.table)}, tokens=16)
    out = consumer.run(step)
    torch.cuda.synchronize()
    assert (out.positions == -1).all()
    assert s.gpu.fault == ("stale blocks", 2)
    s.gpu.clear()
    assert s.gpu.fault is None
    with pytest.raises(errors.ArgumentError, match="query.codes"):
        s.gpu.layer(2, s.on, tamis.Query(*(x[:8] for x in query))).run(step)


def test_dlpack_and_packed_float_views_are_taken():
    streams = []

    class Dlpack:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, stream=None):
            streams.append(stream)
            return self.x.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    p = Problem(4, rows=6, heads=32, layout="mxfp4_split")
    k, rows, query = moved(p)
    want = stages.mqa_logits(p.k, p.rows, p.query, columns=200).logits
    k2 = tamis.KCache.split(Dlpack(k.codes), k.scales.view(torch.float8_e8m0fnu))
    codes = query.codes
    if hasattr(torch, "float4_e2m1fn_x2"):
        codes = codes.view(torch.float4_e2m1fn_x2)
    query2 = tamis.Query(codes, query.scales.view(torch.float8_e8m0fnu), Dlpack(query.weights))
    got = stages.mqa_logits(k2, rows, query2, columns=200).logits
    same([got], [want])
    assert got.is_cuda
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        stages.mqa_logits(k2, rows, query2, columns=200)
    assert set(streams) == {1, side.cuda_stream}  # the default one, then the side stream's


def test_mixed_devices_and_streams_are_refused_by_name():
    p = Problem(4, rows=3, heads=32)
    k, rows, query = moved(p)
    with pytest.raises(errors.ArgumentError, match="query.weights: required an array on cuda:0"):
        stages.mqa_logits(k, rows, query._replace(weights=p.query.weights), columns=200)
    with pytest.raises(errors.ArgumentError, match="columns: required given"):
        stages.mqa_logits(k, rows, query)
    with pytest.raises(errors.ArgumentError, match="stream"):
        stages.mqa_logits(k, rows, query, columns=200, stream="main")
    with pytest.raises(errors.ArgumentError, match="backend"):
        stages.mqa_logits(k, rows, query, columns=200, backend=tamis.Backend())


def test_threads_without_a_context_get_the_kernels_own():
    import threading

    p = Problem(5, rows=4, heads=32)
    on = moved(p)
    want = stages.source(p.k, p.rows, p.query, 16, 6)
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(stages.source(*on, 16, 6))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(got) == 3
    for made in got:
        same(made, want)
