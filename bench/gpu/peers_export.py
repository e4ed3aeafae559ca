# SPDX-License-Identifier: MIT
"""Compiles tokenspeed-kernel's CuTe DSL kernels for sm_90a to objects and headers of C.

Neither a GPU nor torch is needed: only nvidia-cutlass-dsl (4.8.0, and its -libs-cu13) and the
unpacked wheel of tokenspeed-kernel (0.1.4). peers_topk.cu and peers_scores.cu link them, with
nvidia_cutlass_dsl/cu13/lib/libcuda_dialect_runtime_static.a.

    python3 bench/gpu/peers_export.py WHEEL OUT
"""

import importlib.util
import os
import sys
import types

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.cute import runtime

F8, F32, I32 = cutlass.Float8E4M3FN, cutlass.Float32, cutlass.Int32


def stand_in_for_torch():
    """What the modules name when they are imported."""
    torch = types.ModuleType("torch")
    torch.bfloat16, torch.float8_e4m3fn = "bf16", "e4m3"
    torch.Tensor = torch.device = type("Unused", (), {})
    sys.modules["torch"] = torch


def load(wheel, name):
    """One module of the wheel, without what its packages import."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        package = types.ModuleType(".".join(parts[:i]))
        package.__path__ = []
        sys.modules.setdefault(package.__name__, package)
    path = os.path.join(wheel, *parts) + ".py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def rows_of(dtype, rows, divisibility=1, align=4):
    """A matrix whose width and stride are arguments."""
    width, stride = cute.sym_int(), cute.sym_int(divisibility=divisibility)
    return runtime.make_fake_tensor(dtype, (rows, width), (stride, 1), assumed_align=align)


def compact(dtype, shape, align):
    order = tuple(reversed(range(len(shape))))
    return runtime.make_fake_compact_tensor(dtype, shape, stride_order=order, assumed_align=align)


def export(out, name, kernel, *args):
    compiled = cute.compile(kernel, *args)
    compiled.export_to_c(file_path=out, file_name=name, function_prefix=name)
    print(name)


def main():
    wheel, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    stand_in_for_torch()
    attention = "tokenspeed_kernel.ops.attention."
    load(wheel, attention + "_cute_dsl.utils")
    select = load(wheel, attention + "dsa._cute_dsl.deep_select")
    scores = load(wheel, attention + "dsv41._cute_dsl.sparse_index_scores")
    # export_to_c reads types of arguments from annotations.
    call = select.DeepSelectTopK.__call__
    for function in (call, getattr(call, "__wrapped__", call)):
        function.__annotations__["stream"] = CUstream
    stream = runtime.make_fake_stream()

    # As compiled_selector of deep_select.py has them.
    for capacity, cluster in ((512, 1), (2048, 1), (2048, 2), (2048, 4)):
        rows, topk = cute.sym_int(), cute.sym_int()
        export(
            out,
            f"deep_select_{capacity}_{cluster}",
            select.DeepSelectTopK(capacity, cluster),
            rows_of(F32, rows, divisibility=4, align=16),
            compact(I32, (rows,), 4),
            compact(I32, (rows, topk), 4),
            compact(F32, (rows, topk), 4),
            stream,
        )

    # As sparse_index_scores of dsv41/cute_dsl.py has them: the cache, of pages of 64 codes and
    # then their scales, is compiled in.
    heads, dim, page = 32, 128, 64
    for pages in (4096, 16384):
        rows, row = cute.sym_int(), page * (dim + 4)
        export(
            out,
            f"index_scores_{pages}",
            scores.SparseIndexScoreKernel(heads, False),
            compact(F8, (rows, heads, dim), 16),
            compact(F32, (rows, heads), 16),
            runtime.make_fake_tensor(F8, (pages, page, dim), (row, dim, 1), assumed_align=16),
            runtime.make_fake_tensor(F32, (pages, page), (row // 4, 1), assumed_align=16),
            rows_of(I32, rows),
            compact(I32, (rows,), 4),
            rows_of(I32, rows),
            rows_of(F32, rows, align=16),
            I32(1),
            stream,
        )


main()
