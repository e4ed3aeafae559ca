# SPDX-License-Identifier: MIT
"""A plan: limits and memory taken once. A step: a forward pass inside them. A layer's call."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _abi, arrays
from ._backend import Backend, Cuda, cuda
from ._calls import output
from ._library import check, error_address, lib
from .arrays import INT32, INT64, Device, Maker, Stream, require, stream_handle, stride
from .errors import ArgumentError
from .stages import WANT
from .views import KCache, Query, Selection, fill_query

if TYPE_CHECKING:
    from .indexer import Indexer


class PlanCounters(NamedTuple):
    """What a plan on the CPU has done, see ``tamis_plan_counters``."""

    steps: int
    expanded: int
    consumed: int
    sparse_rows: int
    dense_rows: int


class Fault(NamedTuple):
    """The first fault of a plan on a GPU since the last clear."""

    kind: str  #: "stale blocks", "other rows" or "published twice"
    layer: int


_FAULTS = {1: "stale blocks", 2: "other rows", 3: "published twice"}


class Step:
    """A forward pass's rows. Made by ``Plan.step``; the plan's next step ends it."""

    __slots__ = ("_batch", "_keep", "address", "device", "rows", "struct", "tokens")

    def __init__(
        self, device: Device, batch: _abi.BatchStruct, keep: Sequence[Any], tokens: int, rows: int
    ) -> None:
        self.struct = _abi.StepStruct()
        self.address = ctypes.addressof(self.struct)
        self.device = device
        self.tokens = tokens  #: query tokens, on a GPU the capacity
        self.rows = rows  #: with padding
        self._batch = batch
        self._keep = keep

    def is_short(self, ratio: int, topk: int) -> bool:
        """Whether every row of a ratio sees at most topk positions, so that its selection is the
        identity; False on a GPU, whose lengths no host reads."""
        return bool(lib.tamis_step_is_short(self.address, ratio, topk))

    def _int32(self, address: int | None) -> Any:
        """A copy of one of the step's arrays, on the CPU."""
        if self.device.kind != "cpu":
            raise ArgumentError("step", "one on the CPU", f"one on {self.device}")
        import numpy as np

        rows = _abi.StepCountsStruct.from_address(self.struct.counts or 0).rows
        if not rows:
            return np.empty(0, np.int32)
        return np.array((ctypes.c_int32 * rows).from_address(address or 0), np.int32)

    @property
    def token(self) -> Any:
        """int32 [rows]: each row's index in the flat batch (CPU)."""
        return self._int32(self.struct.token)

    @property
    def request(self) -> Any:
        """int32 [rows]: each row's request (CPU)."""
        return self._int32(self.struct.request)

    def visible(self, ratio: int) -> Any:
        """int32 [rows]: positions that each row sees (CPU)."""
        return self._int32(self.struct.ke[ratio - 1]) - self._int32(self.struct.ks[ratio - 1])


class Plan:
    """Limits and memory of an indexer's steps. Used by one thread at a time."""

    def __init__(
        self,
        indexer: Indexer,
        limits: _abi.PlanLimitsStruct,
        device: Device,
        stream: Stream,
    ) -> None:
        self.indexer = indexer
        self.device = device
        self.threads = limits.threads if device.kind == "cpu" else 1
        self._limits = limits
        self._handle: int | None = None
        self._cuda: Cuda | None = None
        self._backend: Backend | None = None
        handle = ctypes.c_void_p()
        where = ctypes.addressof(limits)
        self.max_rows = int(lib.tamis_plan_max_rows(where))
        if device.kind == "cpu":
            self.bytes = self._bytes(lib.tamis_plan_bytes)
            self._memory, address = arrays.aligned_bytes(self.bytes)
            arguments = (indexer.handle, where, address, self.bytes, ctypes.addressof(handle))
            check(lib.tamis_plan_init(*arguments, error_address()))
            if self.threads > 1:
                self._backend = Backend("auto", self.threads)
        else:
            kernels = self._cuda = cuda(device)
            self.bytes = self._bytes(lib.tamis_cuda_plan_bytes)
            self._memory = _torch_bytes(self.bytes, device)
            kernels.run(
                lib.tamis_cuda_plan_create,
                kernels.handle,
                indexer.handle,
                where,
                self._memory.data_ptr(),
                self.bytes,
                stream_handle(stream, device),
                ctypes.addressof(handle),
            )
        self._handle = handle.value

    def _bytes(self, call: Any) -> int:
        size = int(call(self.indexer.handle, ctypes.addressof(self._limits), error_address()))
        if size < 0:
            check(_last_status())
        return size

    def close(self) -> None:
        """Ends a plan on a GPU, once its work is done. Nothing is to be done on the CPU."""
        handle, self._handle = self._handle, None
        if handle and self._cuda is not None:
            torch: Any = sys.modules.get("torch")
            if torch is not None:
                torch.cuda.synchronize(self.device.ordinal)
            lib.tamis_cuda_plan_destroy(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and sys is not None and sys.modules is not None:
            self.close()

    @property
    def handle(self) -> int:
        """The C object's address."""
        assert self._handle is not None, "the plan is closed"
        return self._handle

    # ---- steps ----------------------------------------------------------------------------------

    def step(
        self,
        context: Any,
        query_start: Any,
        *,
        page_tables: Mapping[int, Any] | None = None,
        k_starts: Mapping[int, Any] | None = None,
        tokens: int | None = None,
        padded_rows: int = 0,
        max_context: int | None = None,
        stream: Stream = None,
    ) -> Step:
        """Makes a step; the last one ends. Page tables are pointed to until its last run.

        Args:
            context: int64 ``[requests]``: tokens of each request, new ones included.
            query_start: int32 ``[requests + 1]``: first new token of each in the flat batch.
            page_tables: by ratio, int32 ``[requests, pages]``, for layouts with pages.
            k_starts: by ratio, int32 ``[requests]``: first K row, for layouts without pages.
            tokens: query tokens in all; None on the CPU: the last of ``query_start``. On a GPU, a
                capacity that has to be given.
            padded_rows: rows that the step is padded to, e.g. a graph's.
            max_context: at least the longest of ``context``, where the host knows it: page tables
                are read no further. On a GPU less is queued then, and longer requests are cut to
                it, also in a replay of a graph that was captured with it.
        """
        c = require("context", context, INT64, (None,), self.device)
        requests = c.shape[0]
        q = require("query_start", query_start, INT32, (requests + 1,), self.device)
        if tokens is None:
            if self.device.kind != "cpu":
                raise ArgumentError("tokens", f"given for arrays on {self.device}", "None")
            tokens = ctypes.c_int32.from_address(q.pointer + 4 * requests).value
        keep: list[Any] = [c, q]
        b = _abi.BatchStruct()
        lib.tamis_batch_default(ctypes.addressof(b))
        b.requests, b.tokens, b.padded_rows = requests, tokens, padded_rows
        b.context, b.query_start = c.pointer, q.pointer
        for ratio, table in (page_tables or {}).items():
            i = _ratio("page_tables", ratio)
            v = require(f"page_tables[{ratio}]", table, INT32, (requests, None), self.device)
            b.page_table[i] = v.pointer
            b.page_table_width[i] = self._pages(max_context, ratio, v.shape[1])
            b.page_table_stride[i] = stride(v, 0, v.shape[1])
            keep.append(v)
        for ratio, start in (k_starts or {}).items():
            i = _ratio("k_starts", ratio)
            v = require(f"k_starts[{ratio}]", start, INT32, (requests,), self.device)
            b.k_start[i] = v.pointer
            keep.append(v)
        step = Step(self.device, b, keep, tokens, max(tokens, padded_rows))
        batch = ctypes.addressof(b)
        if self._cuda is None:
            check(lib.tamis_step_make(self.handle, batch, step.address, error_address()))
        else:
            where = stream_handle(stream, self.device)
            self._cuda.run(lib.tamis_cuda_step_make, self.handle, batch, step.address, where)
        return step

    def _pages(self, max_context: int | None, ratio: int, width: int) -> int:
        """Entries of a page table that requests of max_context tokens have."""
        if max_context is None:
            return width
        longest = arrays.integer("max_context", max_context, 64)
        if longest < 0:
            raise ArgumentError("max_context", "0 or more", str(longest))
        return min(width, -(-(longest // ratio) // self.indexer.page_size))

    # ---- layers ---------------------------------------------------------------------------------

    def layer(
        self,
        layer: int,
        k: KCache,
        query: Query,
        *,
        rows: int | None = None,
        want: Sequence[str] = WANT,
        out: Selection | None = None,
        blocks: Any = None,
    ) -> LayerCall:
        """A layer's call, checked and kept: ``run(step)`` does it for as many steps as wanted.

        Args:
            layer: one whose role is full, source or consumer.
            k: of the layer's K owner.
            query: ``[tokens]`` rows, as q_prepare makes them, in the order of the flat batch.
            rows: of the outputs that are made, padding included; None: the query's.
            want: which of positions, slots, scores, counts are made.
            out: arrays to write instead.
            blocks: int32 ``[rows, topk_blocks]``: where a source copies its published blocks.
        """
        return LayerCall(self, layer, k, query, rows, want, out, blocks)

    def counters(self) -> PlanCounters:
        """What the plan has done so far (CPU)."""
        if self._cuda is not None:
            raise ArgumentError("plan", "one on the CPU", f"one on {self.device}")
        s = _abi.PlanCountersStruct()
        lib.tamis_plan_count(self.handle, ctypes.addressof(s))
        return PlanCounters(*(getattr(s, name) for name in PlanCounters._fields))

    @property
    def fault(self) -> Fault | None:
        """The first fault of the work that a GPU has done since the last ``clear``: waits for
        nothing. None on the CPU, where faults are exceptions."""
        if self._cuda is None:
            return None
        status = int(lib.tamis_cuda_plan_status(self.handle))
        return Fault(_FAULTS.get(status & 255, "unknown"), status >> 8) if status else None

    def clear(self) -> None:
        """Forgets the fault."""
        if self._cuda is not None:
            lib.tamis_cuda_plan_clear(self.handle)


def _last_status() -> int:
    return int(ctypes.c_int32.from_address(error_address()).value)


def _ratio(name: str, ratio: int) -> int:
    if ratio not in (1, 2):
        raise ArgumentError(name, "ratios 1 and 2", repr(ratio))
    return ratio - 1


def _torch_bytes(size: int, device: Device) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise ArgumentError(
            "device", "torch imported: plans on a GPU lie in its memory", str(device)
        )
    if not torch.cuda.is_available():
        raise ArgumentError("device", "a CUDA device that torch finds", f"none, for {device}")
    return torch.empty(size, dtype=torch.uint8, device=str(device))


class LayerCall:
    """One layer of a plan with its arrays. ``outputs`` is what a run writes."""

    def __init__(
        self,
        plan: Plan,
        layer: int,
        k: KCache,
        query: Query,
        rows: int | None,
        want: Sequence[str],
        out: Selection | None,
        blocks: Any,
    ) -> None:
        self.plan = plan
        self.device = plan.device
        role = plan.indexer.role(layer).role
        if role not in ("full", "source", "consumer"):
            raise ArgumentError("layer", "a full, source or consumer layer", f"{layer}, {role}")
        if k.device != plan.device:
            raise ArgumentError("k.codes", f"an array on {plan.device}", f"one on {k.device}")
        kind = "consumer" if role == "consumer" else "source"
        device = "cuda_" if plan.device.kind == "cuda" else ""
        self._function = getattr(lib, f"tamis_{device}{kind}_run")
        a = self.struct = _abi.LayerArgs()
        self.address = ctypes.addressof(a)
        lib.tamis_layer_args_default(self.address)
        a.layer = layer
        k.fill(a.k)
        views = query.views(plan.device)
        fill_query(a.query, *views)
        self._tokens = views[0].shape[0]
        self._rows = self._tokens if rows is None else rows
        self._keep: list[Any] = [k, views]
        self.outputs = self._selection(query, want, out)
        self.blocks = blocks
        if blocks is not None:
            v = require("blocks", blocks, INT32, (None, None), plan.device, writable=True)
            a.blocks, a.blocks_stride = v.pointer, stride(v, 0, v.shape[1])
            self._rows = min(self._rows, v.shape[0])

    def _selection(self, query: Query, want: Sequence[str], out: Selection | None) -> Selection:
        topk = self.plan.indexer.model.index_topk
        maker = Maker(query.codes, self.device)
        made = []
        s = self.struct.selection
        kinds = {"positions": "int32", "slots": "int64", "scores": "float32", "counts": "int32"}
        for name in Selection._fields:
            given = None if out is None else getattr(out, name)
            if given is not None:
                self._rows = min(self._rows, arrays.view(f"out.{name}", given).shape[0])
        for name, dtype in kinds.items():
            given = None if out is None else getattr(out, name)
            make = maker if out is None and name in want else None
            rows = self._rows if given is None else arrays.view(f"out.{name}", given).shape[0]
            shape = (rows,) if name == "counts" else (rows, topk)
            x, v = output(self.device, name, given, make, dtype, shape)
            if v is not None:
                setattr(s, name, v.pointer)
                if name != "counts":
                    setattr(s, f"{name}_stride", stride(v, 0, topk))
            made.append(x)
        return Selection(*made)

    def run(self, step: Step, stream: Stream = None) -> Selection:
        """Runs the layer for a step: on the CPU before it returns, on a GPU in stream order."""
        if step.tokens > self._tokens:
            raise ArgumentError("query.codes", f"{step.tokens} rows or more", f"{self._tokens}")
        if step.rows > self._rows:
            raise ArgumentError("rows", f"outputs of {step.rows} rows or more", f"{self._rows}")
        plan = self.plan
        if plan._cuda is not None:
            where = stream_handle(stream, self.device)
            plan._cuda.run(self._function, plan.handle, step.address, self.address, where)
        elif plan._backend is None:
            status = self._function(plan.handle, step.address, self.address, 0, 1, error_address())
            if status != 0:
                check(status)
        else:
            self._run_slices(step, plan._backend)
        return self.outputs

    def _run_slices(self, step: Step, backend: Backend) -> None:
        """Few rows on many threads: a row's scores are shared out, then merged."""
        functions: tuple[Any, ...] = (self._function,)
        if step.rows < backend.threads:
            functions = (lib.tamis_layer_score, lib.tamis_layer_merge)
        for function in functions:
            backend.slices(function, self.plan.handle, step.address, self.address)
