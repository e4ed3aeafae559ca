# SPDX-License-Identifier: MIT
"""Prepared calls: a C struct that is filled and checked once, and run as often as it is needed.

What a run costs over the C call is one ctypes call. Arrays may be exchanged for others of the same
dtype, shape and strides; only their pointers change then.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Any,
    Generic,
    ParamSpec,
    TypeVar,
)

import numpy as np

from . import _abi, arrays
from ._backend import Backend, Cuda, cpu, cuda
from ._library import check, error_address, lib
from .arrays import BYTES, Device, Maker, Stream, View, require, stream_handle
from .errors import ArgumentError, NumericsError, WorkspaceError

P = ParamSpec("P")
T = TypeVar("T")

_WORKSPACES = ("consume", "source", "dense")


def numerics_code(name: str) -> int:
    """TAMIS_NUMERICS_* of a class's name."""
    code = _abi.NUMERICS.get(name) if isinstance(name, str) else None
    if code is None:
        raise NumericsError("numerics", " or ".join(_abi.NUMERICS), repr(name))
    return code


def float_type(name: str, dtype: str) -> int:
    """TAMIS_F32 or TAMIS_BF16 of a dtype's name."""
    if dtype not in ("float32", "bfloat16"):
        raise ArgumentError(name, "float32 or bfloat16", repr(dtype))
    return _abi.F32 if dtype == "float32" else _abi.BF16


_from_buffer: Any = ctypes.c_char.from_buffer


class _Field:
    """A pointer of the struct and the array that it was checked with."""

    __slots__ = (
        "attribute",
        "device",
        "dtype",
        "kind",
        "shape",
        "strides",
        "struct",
        "view",
        "writable",
    )

    def __init__(
        self, struct: ctypes.Structure, attribute: str, view: View, writable: bool
    ) -> None:
        self.struct = struct
        self.attribute = attribute
        self.writable = writable
        self.view = view
        owner = view.owner
        self.kind = type(owner) if arrays.is_torch(owner) else None
        self.dtype = getattr(owner, "dtype", None)
        self.shape = getattr(owner, "shape", None)
        self.strides: Any = None
        self.device = -1
        if self.kind is not None:
            self.strides = owner.stride()
            self.device = owner.get_device()
        elif isinstance(owner, np.ndarray):
            self.strides = owner.strides

    def fit(self, name: str, x: Any) -> int | View:
        """The address of x, which has to be as the array before it was; of another kind: its view.
        Nothing is changed yet."""
        kind = x.__class__
        pointer: int
        if kind is self.kind:  # of torch
            if (
                x.dtype is self.dtype
                and x.shape == self.shape
                and x.stride() == self.strides
                and x.get_device() == self.device
                and not x.is_neg()
            ):
                pointer = x.data_ptr()
                if pointer:  # none: empty, or a tensor without memory
                    return pointer
        elif (
            kind is np.ndarray
            and x.dtype == self.dtype
            and x.shape == self.shape
            and x.strides == self.strides
        ):
            try:  # the quickest way to an address; of dense arrays that can be written
                pointer = ctypes.addressof(_from_buffer(x))
            except (TypeError, ValueError):
                pointer = 0 if self.writable else x.__array_interface__["data"][0]
            if pointer and pointer % self.view.itemsize == 0:
                return pointer
        return self._fit_other(name, x)

    def _fit_other(self, name: str, x: Any) -> View:
        """An array of another kind, or one that does not fit: say how."""
        was = self.view
        v = require(name, x, (was.dtype,), was.shape, was.device, 0, self.writable)
        for i, size in enumerate(v.shape):
            if size > 1 and v.strides[i] != was.strides[i]:
                raise ArgumentError(name, f"strides {was.strides}", f"strides {v.strides}")
        return v


class Call(Generic[T]):
    """A stage with its arguments. ``run`` does it; ``outputs`` is what it writes.

    Made by ``tamis.stages.NAME.prepare(...)``. The arrays given are kept alive. A call is for one
    thread at a time, and where it has a workspace, for one stream.
    """

    outputs: T

    def __init__(
        self,
        stage: str,
        struct: Any,
        device: Device,
        backend: Backend | None,
        threads: int,
        stream: Stream,
        workspace: Any,
    ) -> None:
        getattr(lib, f"tamis_{stage}_args_default")(ctypes.addressof(struct))
        self.stage = stage
        self.struct = struct
        self.device = device
        self.address = ctypes.addressof(struct)
        self._fields: dict[str, _Field] = {}
        self._arrays: dict[str, Any] = {}
        self._keep: list[Any] = []
        self._stream = stream
        self._workspace = workspace
        self._split: tuple[Any, ...] = ()
        self._backend: Backend
        self._cuda: Cuda
        if device.kind == "cuda":
            if backend is not None:
                raise ArgumentError("backend", f"None for arrays on {device}", "a CPU backend")
            self._cuda = cuda(device)
            self._function = getattr(lib, f"tamis_cuda_{stage}")
            self._stream_at_start = stream_handle(stream, device)
        elif device.kind == "cpu":
            self._backend = cpu(backend, threads)
            self._function = getattr(lib, f"tamis_{stage}")
        else:
            raise ArgumentError("k.codes", "arrays on the CPU or a CUDA device", str(device))

    # ---- filling --------------------------------------------------------------------------------

    def point(
        self, name: str, v: View, struct: Any = None, attribute: str = "", writable: bool = False
    ) -> None:
        """Sets a pointer and remembers what it was checked with."""
        struct = self.struct if struct is None else struct
        attribute = attribute or name.rsplit(".", 1)[-1]
        setattr(struct, attribute, v.pointer)
        self._fields[name] = _Field(struct, attribute, v, writable)
        self._arrays[name] = v.owner

    def finish(self, outputs: T, rows: int = 0) -> Call[T]:
        """Gets the workspace; the struct is complete but for it."""
        self.outputs = outputs
        if self.stage in _WORKSPACES:
            threads = 1 if self.device.kind == "cuda" else self._backend.threads
            if self.device.kind == "cpu" and self.stage != "dense" and 0 < rows < threads:
                self._split = (
                    getattr(lib, f"tamis_{self.stage}_score"),
                    getattr(lib, f"tamis_{self.stage}_merge"),
                )
            self._take_workspace()
        return self

    def _workspace_bytes(self) -> int:
        if self.device.kind == "cuda":
            size = getattr(lib, f"tamis_cuda_{self.stage}_workspace")
            return int(size(self._cuda.handle, self.address))
        middle = "_split" if self._split else ""
        size = getattr(lib, f"tamis_{self.stage}{middle}_workspace")
        return int(size(self.address, self._backend.threads))

    def _take_workspace(self) -> None:
        """-1 bytes: the arguments are invalid, and the call itself says why."""
        size = self._workspace_bytes()
        given = self._workspace
        if given is not None:
            v = require("workspace", given, BYTES, (None,), self.device, writable=True)
            self.struct.workspace = v.pointer
            self.struct.workspace_bytes = v.shape[0]
        elif self.device.kind == "cpu":
            memory, address = arrays.aligned_bytes(size)
            self.struct.workspace = address
            self.struct.workspace_bytes = max(size, 0)
            self._keep.append(memory)
        else:
            self._take_cuda_workspace(size)

    def _take_cuda_workspace(self, size: int) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise WorkspaceError(
                "workspace", f"{size} bytes on {self.device}, as torch is not imported", "None"
            )
        current = stream_handle(None, self.device)
        if self._stream_at_start == current:
            memory = torch.empty(max(size, 1), dtype=torch.uint8, device=str(self.device))
        else:  # so that the allocator orders its reuse by the stream that uses it
            other = torch.cuda.ExternalStream(self._stream_at_start, device=str(self.device))
            with torch.cuda.stream(other):
                memory = torch.empty(max(size, 1), dtype=torch.uint8, device=str(self.device))
        self.struct.workspace = memory.data_ptr()
        self.struct.workspace_bytes = max(size, 0)
        self._keep.append(memory)

    # ---- running --------------------------------------------------------------------------------

    def run(self) -> T:
        """Does it, on the CPU before it returns, on a GPU in stream order."""
        if self.device.kind == "cuda":
            stream = (
                self._stream_at_start
                if self._stream is not None
                else stream_handle(None, self.device)
            )
            self._cuda.run(self._function, self._cuda.handle, self.address, stream)
            return self.outputs
        backend = self._backend
        if backend.threads == 1:
            status = self._function(backend.handle, self.address, 0, 1, error_address())
            if status != 0:
                self._retry(status)
        else:
            self._run_slices()
        return self.outputs

    __call__ = run

    def _retry(self, status: int) -> None:
        """Longer rows may need a larger workspace than the rows that it was taken for."""
        if status != WorkspaceError.status or self._workspace is not None:
            check(status)
        self._take_workspace()
        check(self._function(self._backend.handle, self.address, 0, 1, error_address()))

    def _run_slices(self) -> None:
        try:
            self._run_all()
        except WorkspaceError:
            if self._workspace is not None:
                raise
            self._take_workspace()
            self._run_all()

    def _run_all(self) -> None:
        for function in self._split or (self._function,):
            self._backend.slices(function, self._backend.handle, self.address)

    def update(self, exchanged: Mapping[str, Any]) -> Call[T]:
        """Exchanges arrays, by the names that errors have ("blocks", "query.codes", "rows.ke"),
        for others of the same dtype, shape and strides: all of them or, on an error, none.
        ``outputs`` stays what it was: the names of outputs are "out.positions" and the like."""
        if exchanged.__class__ is not dict and not isinstance(exchanged, Mapping):
            raise ArgumentError("update", "names and arrays, as a dict", type(exchanged).__name__)
        fitting = []
        for name, x in exchanged.items():
            field = self._fields.get(name)
            if field is None:
                raise ArgumentError("update", "one of " + ", ".join(self._fields), repr(name))
            fitting.append((field, name, x, field.fit(name, x)))
        for field, name, x, at in fitting:  # all of them fit
            if at.__class__ is View:
                field.view, at = at, at.pointer
            setattr(field.struct, field.attribute, at)
            self._arrays[name] = x
        return self


class Stage(Generic[P, T]):
    """A stage as a function, and as a prepared call."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self._build = build
        functools.update_wrapper(self, build)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._build(*args, **kwargs).run()

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """The call with these arguments, checked but not run."""
        return self._build(*args, **kwargs)


def output(
    device: Device,
    name: str,
    given: Any,
    maker: Maker | None,
    dtype: str,
    shape: Sequence[int],
    dense: int = 1,
) -> tuple[Any, View | None]:
    """The caller's array, checked, or a new one of the maker's; neither: None."""
    if given is None and maker is None:
        return None, None
    x = maker.empty(shape, dtype) if given is None and maker is not None else given
    kinds: tuple[str, ...] = (dtype,)
    if dtype == "bfloat16":
        kinds = arrays.BFLOAT16
    elif dtype == "uint8":
        kinds = BYTES
    return x, require(f"out.{name}", x, kinds, shape, device, dense, writable=True)
