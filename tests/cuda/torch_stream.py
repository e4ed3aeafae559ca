# SPDX-License-Identifier: MIT
"""torch_stream.py LIBTAMIS: calls on torch's streams, over torch's memory, in its context and in its graphs.

Work of torch comes late before each call, and spoils the inputs right after it, so that a call on another stream, or out
of order, shows. What has to be selected is computed by numpy from the same numbers, which are such that every sum is exact.
"""
import ctypes
import sys

SKIPPED = 77
ROWS, COLUMNS, TOPK = 29, 5000, 96  # of topk
HEADS, DIM, K_ROWS, BLOCK, BLOCKS, SOURCE_TOPK = 32, 128, 1500, 8, 40, 48  # of source
F32, EXACT, K_ROW = 1, 1, 3
CODES, SCALES = DIM // 2, DIM // 32


def skip(why):
    print(f"SKIPPED: gpu.torch-stream: {why}")
    sys.exit(SKIPPED)


try:
    import numpy as np
    import torch
except ImportError as missing:
    skip(f"{sys.executable} has no {missing.name}")
if not torch.cuda.is_available():
    skip(f"torch {torch.__version__} finds no GPU")

# ---- the library's structs -------------------------------------------------------------------

i32, i64, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class Error(ctypes.Structure):
    _fields_ = [("status", i32), ("argument", ctypes.c_char * 60), ("required", ctypes.c_char * 128),
                ("found", ctypes.c_char * 128)]


class Cache(ctypes.Structure):
    _fields_ = [("layout", i32), ("head_dim", i32), ("page_size", i32), ("reserved", i32), ("size", i64), ("stride", i64),
                ("scales_stride", i64), ("codes", pointer), ("scales", pointer)]


class Rows(ctypes.Structure):
    _fields_ = [("count", i64), ("ks", pointer), ("ke", pointer), ("request", pointer), ("page_table", pointer),
                ("page_table_stride", i64), ("page_table_width", i64), ("requests", i64)]


class Query(ctypes.Structure):
    _fields_ = [("heads", i32), ("head_dim", i32), ("weights_type", i32), ("reserved", i32), ("codes", pointer),
                ("scales", pointer), ("weights", pointer), ("codes_row_stride", i64), ("codes_head_stride", i64),
                ("scales_row_stride", i64), ("scales_head_stride", i64), ("weights_row_stride", i64)]


class Selection(ctypes.Structure):
    _fields_ = [("topk", i32), ("reserved", i32), ("positions", pointer), ("positions_stride", i64), ("slots", pointer),
                ("slots_stride", i64), ("scores", pointer), ("scores_stride", i64), ("counts", pointer)]


class Topk(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("logits_type", i32), ("block_size", i32), ("reserved", i32),
                ("rows", Rows), ("logits", pointer), ("logits_stride", i64), ("width", i64), ("columns", pointer),
                ("blocks", pointer), ("blocks_stride", i64), ("page_size", i32), ("reserved2", i32),
                ("selection", Selection)]


class Source(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("numerics", i32), ("k", Cache), ("rows", Rows), ("query", Query),
                ("block_size", i32), ("topk_blocks", i32), ("blocks", pointer), ("blocks_stride", i64),
                ("counts", pointer), ("selection", Selection), ("workspace", pointer), ("workspace_bytes", i64)]


class Tamis:
    """The library, and one of its objects in torch's context."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.cuda, self.error = pointer(), Error()
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the context current
        status = self.library.tamis_cuda_create(ctypes.byref(self.cuda), ctypes.byref(self.error))
        if status == -8 and self.error.argument == b"build":
            skip("a build without CUDA kernels")
        self.check(status)

    def check(self, status):
        e = self.error
        assert status == 0, (status, e.argument, e.required, e.found)

    def default(self, kind, name):
        args = kind()
        getattr(self.library, f"tamis_{name}_args_default")(ctypes.byref(args))
        assert args.struct_size == ctypes.sizeof(kind), f"{name}'s struct has {args.struct_size} bytes"
        return args

    def call(self, name, args):
        """Queues a stage on torch's current stream."""
        stream = pointer(torch.cuda.current_stream().cuda_stream)
        self.check(getattr(self.library, f"tamis_cuda_{name}")(self.cuda, ctypes.byref(args), stream,
                                                              ctypes.byref(self.error)))


# ---- what has to come out --------------------------------------------------------------------


def best(scores, count):
    """The first `count` by (higher score, lower index), ascending."""
    order = np.lexsort((np.arange(len(scores)), -scores))[:count]
    return np.sort(order)


def selected(scores, lengths, topk):
    out = np.full((len(scores), topk), -1, np.int32)
    for row, (values, length) in enumerate(zip(scores, lengths)):
        chosen = best(values[:length], min(topk, length))
        out[row, :len(chosen)] = chosen
    return out


def published(scores, lengths):
    """The best blocks of each row by their largest score; that of the newest position always."""
    out = np.full((len(scores), BLOCKS), -1, np.int32)
    for row, (values, length) in enumerate(zip(scores, lengths)):
        if length == 0:
            continue
        newest = (length - 1) // BLOCK
        tops = np.array([values[b * BLOCK:min((b + 1) * BLOCK, length)].max() for b in range(newest + 1)])
        tops[newest] = np.inf
        chosen = best(tops, min(BLOCKS, newest + 1))
        out[row, :len(chosen)] = chosen
    return out


MAGNITUDES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float64) / 2


def decoded(codes):
    """E2M1 codes, two to a byte, the low nibble first."""
    return MAGNITUDES[np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], -1)]


def scored(k, codes, weights):
    """Scales are 1 and weights small whole numbers: every partial sum is an exact f32."""
    dots = np.einsum("rhd,jd->rhj", decoded(codes), decoded(k[:, :CODES]))
    return np.einsum("rh,rhj->rj", weights.astype(np.float64), np.maximum(dots, 0))


# ---- the calls -------------------------------------------------------------------------------


def numbers(seed):
    """Inputs on the device, where a round finds them."""
    make = torch.Generator(device="cuda").manual_seed(seed)
    k = torch.randint(0, 256, (K_ROWS, CODES + SCALES), dtype=torch.uint8, device="cuda", generator=make)
    k[:, CODES:] = 127
    return {
        "logits": (torch.randn(ROWS, COLUMNS, device="cuda", generator=make) * 8).round() / 8,
        "k": k,
        "codes": torch.randint(0, 256, (ROWS, HEADS, CODES), dtype=torch.uint8, device="cuda", generator=make),
        "weights": torch.randint(-3, 8, (ROWS, HEADS), device="cuda", generator=make).float(),
        "lengths": torch.randint(0, K_ROWS + 1, (ROWS,), dtype=torch.int32, device="cuda", generator=make),
    }


class Work:
    """Buffers whose addresses stay, arguments over them, and one round of calls."""

    def __init__(self, tamis):
        self.tamis = tamis
        self.inputs = {name: torch.zeros_like(value) for name, value in numbers(0).items()}
        self.scales = torch.full((ROWS, HEADS, SCALES), 127, dtype=torch.uint8, device="cuda")
        self.outputs = {name: torch.zeros(ROWS, width, dtype=torch.int32, device="cuda")
                        for name, width in (("topk", TOPK), ("source", SOURCE_TOPK), ("blocks", BLOCKS))}
        self.topk, self.source = self.topk_args(), self.source_args()

    def topk_args(self):
        a = self.tamis.default(Topk, "topk")
        a.logits_type, a.rows.count = F32, ROWS
        a.logits, a.logits_stride, a.width = self.inputs["logits"].data_ptr(), COLUMNS, COLUMNS
        a.selection.topk = a.selection.positions_stride = TOPK
        a.selection.positions = self.outputs["topk"].data_ptr()
        return a

    def source_args(self):
        a = self.tamis.default(Source, "source")
        a.numerics, a.block_size, a.topk_blocks = EXACT, BLOCK, BLOCKS
        a.k.layout, a.k.head_dim, a.k.size, a.k.stride = K_ROW, DIM, K_ROWS, CODES + SCALES
        a.k.codes = self.inputs["k"].data_ptr()
        a.rows.count, a.rows.ke = ROWS, self.inputs["lengths"].data_ptr()
        q = a.query
        q.heads, q.head_dim, q.weights_type = HEADS, DIM, F32
        q.codes, q.codes_row_stride, q.codes_head_stride = self.inputs["codes"].data_ptr(), HEADS * CODES, CODES
        q.scales, q.scales_row_stride, q.scales_head_stride = self.scales.data_ptr(), HEADS * SCALES, SCALES
        q.weights, q.weights_row_stride = self.inputs["weights"].data_ptr(), HEADS
        a.blocks, a.blocks_stride = self.outputs["blocks"].data_ptr(), BLOCKS
        a.selection.topk = a.selection.positions_stride = SOURCE_TOPK
        a.selection.positions = self.outputs["source"].data_ptr()
        size = self.tamis.library.tamis_cuda_source_workspace
        size.restype = i64
        a.workspace_bytes = size(self.tamis.cuda, ctypes.byref(a))
        assert a.workspace_bytes > 0
        self.workspace = torch.zeros(a.workspace_bytes, dtype=torch.uint8, device="cuda")
        a.workspace = self.workspace.data_ptr()
        return a

    def round(self, fresh, late=True):
        """Queues inputs, calls, copies of what they wrote, then junk over both; returns the copies."""
        if late:
            torch.cuda._sleep(100_000_000)
        for name, value in fresh.items():
            self.inputs[name].copy_(value)
        self.tamis.call("topk", self.topk)
        self.tamis.call("source", self.source)
        taken = {name: value.clone() for name, value in self.outputs.items()}
        for value in self.inputs.values():
            value.zero_()
        for value in self.outputs.values():
            value.fill_(-7)
        return taken


def check(fresh, taken, where):
    torch.cuda.synchronize()
    host = {name: value.cpu().numpy() for name, value in fresh.items()}
    scores, lengths = scored(host["k"], host["codes"], host["weights"]), host["lengths"]
    want = {"topk": selected(host["logits"], [COLUMNS] * ROWS, TOPK), "source": selected(scores, lengths, SOURCE_TOPK),
            "blocks": published(scores, lengths)}
    for name, value in taken.items():
        wrong = np.argwhere(value.cpu().numpy() != want[name])
        assert len(wrong) == 0, f"{where}: {name}: {len(wrong)} entries differ, first at {wrong[0]}"
    print(f"{where}: every row as numpy's")


def in_a_graph(work):
    """The first calls of all are those of the capture."""
    fresh, graph = numbers(0), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        taken = work.round(fresh, late=False)
    for seed in range(1, 4):
        for name, value in numbers(seed).items():
            fresh[name].copy_(value)
        torch.cuda.synchronize()
        graph.replay()
        check(fresh, taken, f"graph, replay {seed}")


def on_streams(work):
    kinds = {"the current stream": torch.cuda.current_stream(), "a side stream": torch.cuda.Stream(),
             "a stream of high priority": torch.cuda.Stream(priority=-1)}
    for seed, (where, stream) in enumerate(kinds.items(), start=10):
        fresh = numbers(seed)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            taken = work.round(fresh)
        check(fresh, taken, where)


def across_streams(work):
    """The calls' stream waits for another one's event, and a third for the calls."""
    makes, calls = torch.cuda.Stream(), torch.cuda.Stream()
    fresh = numbers(20)
    torch.cuda.synchronize()
    with torch.cuda.stream(makes):
        torch.cuda._sleep(100_000_000)
        later = {name: value.clone() for name, value in fresh.items()}
    calls.wait_stream(makes)
    with torch.cuda.stream(calls):
        taken = work.round(later, late=False)
    check(fresh, taken, "behind another stream's event")


def main():
    tamis = Tamis(sys.argv[1])
    work = Work(tamis)
    in_a_graph(work)
    on_streams(work)
    across_streams(work)
    tamis.library.tamis_cuda_destroy(tamis.cuda)
    print(f"gpu: torch {torch.__version__}: three kinds of streams, a graph, an event")


main()
