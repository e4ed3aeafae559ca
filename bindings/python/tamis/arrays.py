# SPDX-License-Identifier: MIT
"""Arrays of any kind as a pointer, a dtype, a shape and strides: nothing is copied.

Taken: numpy arrays, torch tensors on the CPU and on CUDA devices, and whatever has ``__dlpack__``.
torch is never imported here: where nobody else imported it, no argument can be a tensor.

dtypes are spelled as torch spells them. numpy has no bfloat16, so ``uint16`` stands for its bits
wherever bfloat16 is taken; ``ml_dtypes.bfloat16`` is taken by its name. Where bytes are taken
(MXFP4 codes and scales) any one-byte dtype is: uint8, int8, the float8 and packed float4 types.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .errors import ArgumentError, CudaError, Error

BYTES = (
    "uint8",
    "int8",
    "float8_e8m0fnu",
    "float8_e4m3fn",
    "float8_e5m2",
    "float4_e2m1fn_x2",
)
BFLOAT16 = ("bfloat16", "uint16")
FLOATS = ("float32",) + BFLOAT16
INT32 = ("int32",)
INT64 = ("int64",)
FLOAT32 = ("float32",)

_ITEMSIZE = {name: 1 for name in BYTES}
_ITEMSIZE.update(bool=1, int16=2, uint16=2, float16=2, bfloat16=2)
_ITEMSIZE.update(int32=4, uint32=4, float32=4, int64=8, uint64=8, float64=8)


class Device(NamedTuple):
    """Where an array lies: ``Device("cpu", 0)``, ``Device("cuda", 1)``."""

    kind: str
    ordinal: int

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.ordinal}"


CPU = Device("cpu", 0)


class View:
    """An array as calls need it. ``owner`` keeps the memory alive; strides count elements."""

    __slots__ = ("device", "dtype", "owner", "pointer", "shape", "strides", "writable")

    def __init__(
        self,
        pointer: int,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        device: Device,
        owner: Any,
        writable: bool = True,
    ) -> None:
        self.pointer = pointer
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.device = device
        self.owner = owner
        self.writable = writable

    def __reduce__(self) -> Any:
        raise TypeError("a View is an address in this process: pickle the array that it is of")

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE.get(self.dtype, 1)

    def describe(self) -> str:
        """``uint8 [232, 32, 64] on cuda:0``."""
        place = "" if self.device.kind == "cpu" else f" on {self.device}"
        return f"{self.dtype} {list(self.shape)}{place}"


# ---- numpy, torch, DLPack ---------------------------------------------------------------------


_NUMPY_NAMES: dict[Any, str] = {}


def _from_numpy(x: Any) -> View:
    dtype = x.dtype
    name = _NUMPY_NAMES.get(dtype)
    if name is None:  # numpy takes its time to spell a name
        name = _NUMPY_NAMES[dtype] = ("" if dtype.isnative else "byte-swapped ") + dtype.name
    size = dtype.itemsize or 1
    strides = tuple(s // size if s % size == 0 else -1 for s in x.strides)
    pointer = x.__array_interface__["data"][0]
    return View(pointer, name, x.shape, strides, CPU, x, x.flags.writeable)


_empty = (ctypes.c_uint64 * 16)()
_nowhere = ctypes.addressof(_empty) + -ctypes.addressof(_empty) % 64

_TORCH_NAMES: dict[Any, str] = {}
_DEVICES: dict[Any, Device] = {}


def _from_torch(name: str, x: Any) -> View:
    try:
        pointer, strides, held = x.data_ptr(), x.stride(), x.numel()
    except RuntimeError as error:  # sparse, nested and functional tensors
        found = str(error).splitlines()[0]
        raise ArgumentError(name, "a strided tensor with memory of its own", found) from error
    if x.is_neg() or x.is_conj():
        raise ArgumentError(name, "a tensor whose memory is its values", "a lazy negative of one")
    if held == 0:  # torch has no address there, and no call reads one
        pointer = _nowhere
    dtype = x.dtype
    kind = _TORCH_NAMES.get(dtype)
    if kind is None:
        kind = _TORCH_NAMES[dtype] = str(dtype).split(".", 1)[1]
    where = x.device
    device = _DEVICES.get(where)
    if device is None:
        device = _DEVICES[where] = Device(where.type, where.index or 0)
    return View(pointer, kind, tuple(x.shape), strides, device, x)


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# (code, bits, lanes) of dlpack.h
_DL_NAMES = {
    (0, 8, 1): "int8",
    (0, 16, 1): "int16",
    (0, 32, 1): "int32",
    (0, 64, 1): "int64",
    (1, 8, 1): "uint8",
    (1, 16, 1): "uint16",
    (1, 32, 1): "uint32",
    (1, 64, 1): "uint64",
    (2, 16, 1): "float16",
    (2, 32, 1): "float32",
    (2, 64, 1): "float64",
    (4, 16, 1): "bfloat16",
    (6, 8, 1): "bool",
    (10, 8, 1): "float8_e4m3fn",
    (12, 8, 1): "float8_e5m2",
    (14, 8, 1): "float8_e8m0fnu",
    (17, 4, 2): "float4_e2m1fn_x2",
}
_DL_CPU = (1, 3)  # kDLCPU, kDLCUDAHost
_DL_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(name: str, x: Any, stream: int | None) -> View:
    kind, index = x.__dlpack_device__()
    if kind in _DL_CPU:
        device = CPU
        capsule = x.__dlpack__()
    elif kind in _DL_CUDA:
        device = Device("cuda", int(index))
        capsule = x.__dlpack__(stream=stream or _stream_of_torch(device) or 1)
    else:
        raise ArgumentError(name, "an array on the CPU or a CUDA device", f"DLPack device {kind}")
    address = _capsule_pointer(capsule, b"dltensor")
    t = ctypes.cast(address, ctypes.POINTER(_DLTensor)).contents
    code = (t.dtype.code, t.dtype.bits, t.dtype.lanes)
    shape = tuple(t.shape[i] for i in range(t.ndim))
    if t.strides:
        strides = tuple(t.strides[i] for i in range(t.ndim))
    else:
        strides = contiguous_strides(shape)
    dtype = _DL_NAMES.get(code, f"DLPack type {code}")
    pointer = (t.data or 0) + t.byte_offset
    # The capsule's destructor hands the memory back: nobody renames it, so that it is called.
    return View(pointer, dtype, shape, strides, device, (x, capsule))


def _stream_of_torch(device: Device) -> int:
    """torch's current stream, where torch is; 0, which DLPack spells 1, is the default stream."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return stream_handle(None, device)


def is_torch(x: Any) -> bool:
    """Whether x is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def view(name: str, x: Any, stream: int | None = None) -> View:
    """The view of any array; ``name`` is the argument's, for the exception."""
    if isinstance(x, View):
        return x
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise ArgumentError(name, "an array without a mask", "a masked array")
        return _from_numpy(x)
    if is_torch(x):
        return _from_torch(name, x)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        try:
            return _from_dlpack(name, x, stream)
        except Error:
            raise
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise ArgumentError(name, "an object whose __dlpack__ works", found) from error
    raise ArgumentError(
        name, "a numpy array, a torch tensor or an object with __dlpack__", type(x).__name__
    )


# ---- checks -----------------------------------------------------------------------------------


def integer(name: str, x: Any, bits: int = 32) -> int:
    """An int that C's bits hold; its range beyond that is the call's to check."""
    try:
        value = operator.index(x)
    except TypeError:
        raise ArgumentError(name, "an integer", repr(x)) from None
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ArgumentError(name, f"an integer of {bits} bits", str(value))
    return value


def dimension(name: str, x: Any, least: int, most: int) -> int:
    """An integer that an output's shape is made of, before anybody allocates it."""
    value = integer(name, x)
    if not least <= value <= most:
        raise ArgumentError(name, f"{least} .. {most}", str(value))
    return value


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a dense array of this shape."""
    out = []
    step = 1
    for size in reversed(shape):
        out.append(step)
        step *= max(size, 1)
    return tuple(reversed(out))


def _wanted(dtypes: Sequence[str], shape: Sequence[int | None]) -> str:
    kinds = "a one-byte dtype" if tuple(dtypes) == BYTES else " or ".join(dtypes)
    sizes = ", ".join("*" if size is None else str(size) for size in shape)
    return f"{kinds} [{sizes}]"


def require(
    name: str,
    x: Any,
    dtypes: Sequence[str],
    shape: Sequence[int | None],
    device: Device | None = None,
    dense: int = 1,
    writable: bool = False,
    stream: int | None = None,
) -> View:
    """The view of an array that has to be one of ``dtypes`` and of ``shape`` (None: any size).

    The last ``dense`` dimensions have to lie without gaps; strides before them are free but not
    negative. ``device``, where given, is where the array has to be.
    Raises ArgumentError with the name, what was required and what was found.
    """
    v = view(name, x, stream)
    found = v.shape
    good = v.dtype in dtypes and len(found) == len(shape)
    if good:
        for want, have in zip(shape, found):
            if want is not None and want != have:
                good = False
                break
    if not good:
        raise ArgumentError(name, _wanted(dtypes, shape), v.describe())
    if device is not None and v.device != device:
        raise ArgumentError(name, f"an array on {device}", f"one on {v.device}")
    if 0 in found:
        v.strides = contiguous_strides(found)  # numpy's are 0 there
    strides = v.strides
    step = 1
    for i in range(len(found) - 1, -1, -1):
        size = found[i]
        if size > 1 and (strides[i] < 0 or (i >= len(found) - dense and strides[i] != step)):
            need = f"the last {dense} dimensions contiguous" if dense > 1 else "a last stride of 1"
            raise ArgumentError(
                name, f"{need}, no stride negative or in parts of an element", f"strides {strides}"
            )
        step *= size
    if v.pointer % v.itemsize:
        raise ArgumentError(
            name,
            f"an address aligned to {v.itemsize} bytes",
            f"one with {v.pointer % v.itemsize} over",
        )
    if writable and not v.writable:
        raise ArgumentError(name, "an array that can be written", "a read-only one")
    return v


def int32_values(v: View) -> Any:
    """The values of a dense int32 vector on the CPU, as numpy's view of them."""
    count = v.shape[0]
    if count == 0:
        return np.empty(0, np.int32)
    memory: Any = (ctypes.c_int32 * count).from_address(v.pointer)
    return np.frombuffer(memory, np.int32)


def stride(v: View, dimension: int, least: int = 0) -> int:
    """A stride for a struct: where a dimension has one entry any stride serves, so a legal one."""
    return v.strides[dimension] if v.shape[dimension] > 1 else max(v.strides[dimension], least)


# ---- outputs ----------------------------------------------------------------------------------

_NUMPY_DTYPES = {
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
    "float32": np.float32,
    "bfloat16": np.uint16,
    "uint16": np.uint16,
}


class Maker:
    """Makes outputs of the kind that a call's inputs are: numpy arrays, or torch tensors there."""

    __slots__ = ("device", "torch")

    def __init__(self, like: Any, device: Device) -> None:
        self.device = device
        self.torch = sys.modules.get("torch") if is_torch(like) or device.kind != "cpu" else None
        if device.kind != "cpu" and self.torch is None:
            raise ArgumentError(
                "out", "outputs given by the caller: torch makes them and is not imported", "none"
            )

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """An array without contents. numpy has no bfloat16: its bits, as uint16."""
        if self.torch is None:
            return np.empty(tuple(shape), _NUMPY_DTYPES[dtype])
        return self.torch.empty(
            tuple(shape), dtype=getattr(self.torch, dtype), device=str(self.device)
        )


def aligned_bytes(size: int) -> tuple[Any, int]:
    """Host memory aligned to 64 bytes: what keeps it alive, and its address."""
    memory = np.empty(max(size, 1) + 64, np.uint8)
    address = int(memory.ctypes.data)
    return memory, address + -address % 64


# ---- streams ----------------------------------------------------------------------------------

#: An address, a torch or cupy stream, or None: torch's current one.
Stream = Any


def stream_handle(stream: Stream, device: Device) -> int:
    """The address of a stream: an int, something with ``cuda_stream`` or ``ptr``, or torch's
    current one of the device."""
    if stream is None:
        torch = sys.modules.get("torch")
        if torch is None:
            raise ArgumentError(
                "stream", "a stream: torch, which has a current one, is not imported", "None"
            )
        return _torch_current(torch)(device.ordinal)
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    raise ArgumentError("stream", "an int, a torch stream or None", type(stream).__name__)


_current: Callable[[int], int] | None = None


def _torch_current(torch: Any) -> Callable[[int], int]:
    """torch's current stream by device, raw: far quicker than by way of a Stream object."""
    global _current
    if _current is None:
        if not torch.cuda.is_available():
            raise CudaError("torch", "one with CUDA", torch.__version__)

        def slow(index: int) -> int:
            return int(torch.cuda.current_stream(index).cuda_stream)

        _current = getattr(torch._C, "_cuda_getCurrentRawStream", None) or slow
    return _current
