# SPDX-License-Identifier: MIT
"""What a consumer call from Python costs over the C call, where C has next to nothing to do.

A C loop, compiled here, makes the same call with the same arguments; the rest is Python's. Rounds
are interleaved and the median is printed, in microseconds a call.
Usage: bench_overhead.py [cpu|cuda] [CALLS]
"""

import ctypes
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tamis
from tamis._library import error_address

ROUNDS = 300  # short ones: a median of them is free of what else the machine does

LOOP = """
#include <stdint.h>
typedef int32_t slice(const void *, const void *, int32_t, int32_t, void *);
typedef int32_t queue(const void *, const void *, void *, void *);
int32_t loop_cpu(slice *f, const void *b, const void *a, void *e, int n) {
    int32_t bad = 0;
    for (int i = 0; i < n; i++) bad |= f(b, a, 0, 1, e);
    return bad;
}
typedef int32_t layer(const void *, const void *, const void *, int32_t, int32_t, void *);
typedef int32_t queued(const void *, const void *, const void *, void *, void *);
int32_t loop_layer_cpu(layer *f, const void *p, const void *s, const void *a, void *e, int n) {
    int32_t bad = 0;
    for (int i = 0; i < n; i++) bad |= f(p, s, a, 0, 1, e);
    return bad;
}
int32_t loop_layer_cuda(queued *f, const void *p, const void *s, const void *a, void *q, void *e,
                        int n) {
    int32_t bad = 0;
    for (int i = 0; i < n; i++) bad |= f(p, s, a, q, e);
    return bad;
}
int32_t loop_cuda(queue *f, const void *c, const void *a, void *s, void *e, int n) {
    int32_t bad = 0;
    for (int i = 0; i < n; i++) bad |= f(c, a, s, e);
    return bad;
}
"""


def compile_loop(folder):
    source = Path(folder, "loop.c")
    source.write_text(LOOP)
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = Path(folder, "loop.so")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    return ctypes.CDLL(str(library))


def problem(torch, device):
    """One row of 4 heads that sees 8 positions: arrays of numpy, or of torch where given."""
    rng = np.random.default_rng(0)
    arrays = {
        "codes": rng.integers(0, 256, (8, 32), np.uint8),
        "scales": rng.integers(120, 130, (8, 2)).astype(np.uint8),
        "q": rng.integers(0, 256, (1, 4, 32), np.uint8),
        "qs": rng.integers(120, 130, (1, 4, 2)).astype(np.uint8),
        "w": rng.standard_normal((1, 4)).astype(np.float32),
        "ke": np.array([8], np.int32),
        "blocks": np.zeros((1, 1), np.int32),
        "positions": np.zeros((1, 8), np.int32),
        "counts": np.zeros(1, np.int32),
        "context": np.array([8], np.int64),
        "start": np.array([0, 1], np.int32),
    }
    if torch is not None:
        arrays = {name: torch.from_numpy(x).to(device) for name, x in arrays.items()}
    return arrays


class Calls:
    """The same call made in several ways."""

    def __init__(self, torch, device, loop):
        a = problem(torch, device)
        self.k = tamis.KCache.split(a["codes"], a["scales"])
        self.rows = tamis.Rows(a["ke"])
        self.query = tamis.Query(a["q"], a["qs"], a["w"])
        self.blocks = a["blocks"]
        self.out = tamis.Selection(a["positions"], counts=a["counts"])
        self.call = tamis.stages.consume.prepare(*self.arguments(), 8, out=self.out)
        self.exchanged = {
            "query.codes": a["q"],
            "query.scales": a["qs"],
            "query.weights": a["w"],
            "blocks": a["blocks"],
            "out.positions": a["positions"],
        }
        self.loop, self.cuda = loop, device == "cuda"
        self.make_plan(a, device)
        self.sync = torch.cuda.synchronize if self.cuda else lambda: None

    def make_plan(self, a, device):
        """A plan whose step has published its blocks, and the consumer's call."""
        indexer = tamis.Indexer(MODEL, {"indexer_sparse_logits": True}, layout="mxfp4_split")
        limits = {"max_requests": 1, "max_batched_tokens": 1, "max_context": 8}
        plan = self.plan = indexer.plan(**limits, device=device)
        self.step = plan.step(a["context"], a["start"], tokens=1)
        plan.layer(0, self.k, self.query).run(self.step)
        self.layer_call = plan.layer(1, self.k, self.query, out=self.out)

    def layer_in_c(self, n):
        call = self.layer_call
        function = ctypes.cast(call._function, ctypes.c_void_p)
        places = (self.plan.handle, self.step.address, call.address)
        if self.cuda:
            places += (tamis.arrays.stream_handle(None, call.device),)
        places = [ctypes.c_void_p(place) for place in (*places, error_address())]
        loop = self.loop.loop_layer_cuda if self.cuda else self.loop.loop_layer_cpu
        assert loop(function, *places, n) == 0

    def layer(self, n):
        run, step = self.layer_call.run, self.step
        for _ in range(n):
            run(step)

    def arguments(self):
        return self.k, self.rows, self.query, self.blocks

    def in_c(self, n):
        call = self.call
        function = ctypes.cast(call._function, ctypes.c_void_p)
        where = ctypes.c_void_p(call.address)
        error = ctypes.c_void_p(error_address())
        if self.cuda:
            stream = ctypes.c_void_p(tamis.arrays.stream_handle(None, call.device))
            handle = ctypes.c_void_p(call._cuda.handle)
            bad = self.loop.loop_cuda(function, handle, where, stream, error, n)
        else:
            handle = ctypes.c_void_p(call._backend.handle)
            bad = self.loop.loop_cpu(function, handle, where, error, n)
        assert bad == 0

    def run(self, n):
        run = self.call.run
        for _ in range(n):
            run()

    def exchange(self, n):
        call, exchanged = self.call, self.exchanged
        for _ in range(n):
            call.update(exchanged).run()

    def function(self, n):
        arguments, out, consume = self.arguments(), self.out, tamis.stages.consume
        for _ in range(n):
            consume(*arguments, 8, out=out)

    def seconds(self, way, n):
        self.sync()
        start = time.perf_counter()
        getattr(self, way)(n)
        return (time.perf_counter() - start) / n  # on a GPU: until all are queued


WAYS = {  # what each is, and the C loop that it is over
    "in_c": ("tamis_consume in a loop of C", "in_c"),
    "run": ("stages.consume prepared: run()", "in_c"),
    "exchange": ("the same, update() of 5 arrays before", "in_c"),
    "function": ("stages.consume(.., out=)", "in_c"),
    "layer_in_c": ("tamis_consumer_run in a loop of C", "layer_in_c"),
    "layer": ("plan.layer(..): run(step)", "layer_in_c"),
}
MODEL = {
    "compress_ratios": [1, 1],
    "kv_source_layer_ids": [0],
    "index_source_layer_ids": [0, 1],
    "candidate_source_layer_id": 0,
    "candidate_topk_blocks": 2,
    "candidate_block_size": 8,
    "index_n_heads": 4,
    "index_head_dim": 64,
    "index_topk": 8,
}


def measure(kind, torch, device, loop, calls):
    made = Calls(torch, device, loop)
    times = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            times[way].append(made.seconds(way, calls) * 1e6)
    median = {way: statistics.median(times[way]) for way in WAYS}
    print(f"{kind}")
    for way, (text, base) in WAYS.items():
        over = f"over C {median[way] - median[base]:+7.2f} us" if way != base else ""
        print(f"  {text:38s} {median[way]:8.2f} us   {over}".rstrip())
    required = ("exchange", "layer")
    return max(median[way] - median[WAYS[way][1]] for way in required)


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    calls = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    try:
        import torch
    except ImportError:
        torch = None
    with tempfile.TemporaryDirectory() as folder:
        loop = compile_loop(folder)
        over = []
        if device == "cpu":
            over.append(measure("numpy arrays", None, "cpu", loop, calls))
        if torch is not None:
            over.append(measure(f"torch tensors on {device}", torch, device, loop, calls))
    print(f"required: at most 15 us over C; found {max(over):.2f} us")
    return 0 if max(over) <= 15 else 1


if __name__ == "__main__":
    sys.exit(main())
