# SPDX-License-Identifier: MIT
"""safetensors files in numpy: 8 bytes of header length, a JSON header, the tensors' bytes.

Reading maps the file and checks everything before any of it is used: offsets lie in the file,
agree with dtype and shape, and cover the data without overlap or hole. Arrays are views into the
map; only a tensor whose place is not aligned to its element is copied. bfloat16 is given as
``uint16`` bits. Writing goes to a temporary beside the target, which replaces it only when whole.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import stat
import sys
from collections.abc import Callable, Mapping
from typing import Any, Union

import numpy as np

from . import errors
from .errors import Error, FileError, FormatError

Path = Union[str, "os.PathLike[str]"]

_HEADER_LIMIT = 16 << 20

#: name in the file -> (bytes, numpy's dtype)
_DTYPES: dict[str, tuple[int, Any]] = {
    "U8": (1, np.uint8),
    "I32": (4, np.int32),
    "I64": (8, np.int64),
    "F32": (4, np.float32),
    "BF16": (2, np.uint16),
    "BOOL": (1, np.bool_),
    "I8": (1, np.int8),
    "F8_E4M3": (1, np.uint8),
    "I16": (2, np.int16),
    "F8_E5M2": (1, np.uint8),
    "U16": (2, np.uint16),
    "F8_E8M0": (1, np.uint8),
    "F16": (2, np.float16),
    "U32": (4, np.uint32),
    "U64": (8, np.uint64),
    "F64": (8, np.float64),
}
_WRITTEN = {"uint8": "U8", "int32": "I32", "int64": "I64", "float32": "F32", "bfloat16": "BF16"}


class Tensor:
    """One tensor of a file: ``dtype`` as the file has it ("BF16"), ``array`` in numpy."""

    __slots__ = ("array", "dtype", "name")

    def __init__(self, name: str, dtype: str, array: Any) -> None:
        self.name = name
        self.dtype = dtype
        self.array = array

    def describe(self) -> str:
        """``F32 [232, 32]``."""
        return f"{self.dtype} {list(self.array.shape)}"


class File:
    """An opened file: ``metadata`` and ``tensors`` by name."""

    def __init__(self, path: str, metadata: dict[str, str], tensors: dict[str, Tensor]) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def get(self, name: str) -> Tensor | None:
        return self.tensors.get(name)


def _kind(value: Any) -> str:
    if value is None:
        return "missing or null"
    names = {dict: "an object", list: "an array", str: "a string", int: "an integer"}
    return names.get(type(value), "another JSON value")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a JSON text; a name twice is refused."""
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:60]!r} twice")
    return out


def _map(path: Path) -> Any:
    """The file's bytes, mapped."""
    try:
        # Without O_NONBLOCK a pipe by that name would hang the open instead of being refused.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as why:
        raise FileError(
            os.fspath(path), "a regular file that can be read", why.strerror or str(why)
        ) from None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            what = "a directory" if stat.S_ISDIR(about.st_mode) else "a device, pipe or socket"
            raise FileError(os.fspath(path), "a regular file that can be read", what)
        if about.st_size == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(fd, about.st_size, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(fd)


def _header(data: Any) -> tuple[dict[str, Any], int]:
    if data.size < 8:
        raise FormatError("file", "8 bytes of header length", f"{data.size} bytes")
    length = int.from_bytes(data[:8].tobytes(), "little")
    left = int(data.size) - 8
    if length > min(_HEADER_LIMIT, left):
        limit = min(_HEADER_LIMIT, left)
        raise FormatError(
            "header length", f"at most {limit} (of the file, {_HEADER_LIMIT} in all)", str(length)
        )
    try:
        text = data[8 : 8 + length].tobytes().decode("utf-8")
        if "\0" in text or "\\u0000" in text:
            raise ValueError("a NUL")
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as why:
        raise FormatError("header", "one JSON object, names unique, in UTF-8", str(why)) from None
    if not isinstance(header, dict):
        raise FormatError("header", "a JSON object", _kind(header))
    return header, 8 + length


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shape(name: str, entry: Mapping[str, Any], element: int) -> tuple[tuple[int, ...], int]:
    shape = entry.get("shape")
    if not isinstance(shape, list):
        raise FormatError(name, "shape: an array of integers", _kind(shape))
    if len(shape) > 4:
        raise FormatError(name, "shape: at most 4 dimensions", f"{len(shape)} dimensions")
    size = element
    for n in shape:
        if not _is_int(n) or n < 0:
            raise FormatError(name, "shape: integers of 0 or more", json.dumps(n)[:60])
        size *= n
        if size >= 2**63:
            raise FormatError(name, "shape: fewer than 2^63 bytes", "more")
    return tuple(shape), size


def _offsets(name: str, entry: Mapping[str, Any], size: int, room: int) -> int:
    offsets = entry.get("data_offsets")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_int, offsets)):
        raise FormatError(name, "data_offsets: two integers", _kind(offsets))
    begin, end = offsets
    if not 0 <= begin <= end <= room:
        raise FormatError(name, f"data_offsets: ascending, in 0 .. {room}", str(offsets))
    if end - begin != size:
        raise FormatError(
            name,
            f"data_offsets: {size} bytes, as shape and dtype say",
            f"{end - begin} bytes",
        )
    return int(begin)


def _tensor(name: str, entry: Any, data: Any) -> tuple[int, int, Tensor]:
    """Where a tensor begins, its bytes, and itself."""
    if not isinstance(entry, dict):
        raise FormatError(name, "an object with dtype, shape, data_offsets", _kind(entry))
    dtype = entry.get("dtype")
    if not isinstance(dtype, str):
        raise FormatError(name, "dtype: a string", _kind(dtype))
    if dtype not in _DTYPES:
        raise FormatError(name, "dtype: one of safetensors', of whole bytes", dtype)
    element, kind = _DTYPES[dtype]
    shape, size = _shape(name, entry, element)
    begin = _offsets(name, entry, size, int(data.size))
    raw = data[begin : begin + size]
    if size and raw.ctypes.data % element:
        raw = raw.copy()
    array = raw.view(kind).reshape(shape)
    return begin, size, Tensor(name, dtype, np.asarray(array))


def read(path: Path) -> File:
    """Opens and checks a whole file.

    Raises FileError for what cannot be read and FormatError for what is malformed, with the
    tensor's or key's name, what was required and what was found.
    """
    with errors.in_file(path):
        return _read(path)


def _read(path: Path) -> File:
    data = _map(path)
    header, start = _header(data)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise FormatError("__metadata__", "an object of strings", _kind(metadata))
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise FormatError(f"__metadata__.{key}", "a string", _kind(value))
    data = data[start:]
    entries = sorted((_tensor(name, entry, data) for name, entry in header.items()), key=_place)
    end = 0
    for begin, size, tensor in entries:
        if begin != end:
            raise FormatError(
                tensor.name,
                f"data_offsets: begin at {end}, where the tensor before it ends",
                f"{'an overlap' if begin < end else 'a hole before it'} at {begin}",
            )
        end = begin + size
    if end != data.size:
        raise FormatError(
            "data",
            "tensors that cover all bytes of the file",
            f"{data.size - end} bytes after the last tensor",
        )
    return File(os.fspath(path), metadata, {tensor.name: tensor for _, _, tensor in entries})


def _place(entry: tuple[int, int, Tensor]) -> tuple[int, int]:
    return entry[0], entry[1]


# ---- writing ----------------------------------------------------------------------------------


def _to_write(name: str, x: Any) -> tuple[str, Any]:
    """The file's dtype and a dense array. uint16 is taken for bfloat16 bits."""
    if hasattr(x, "detach"):  # a torch tensor, of any device
        x = x.detach().cpu().contiguous()
        if str(x.dtype) == "torch.bfloat16":
            x = x.view(sys.modules["torch"].int16).numpy().view(np.uint16)
        else:
            x = x.numpy()
    array = np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x)
    kind = array.dtype.name
    if kind in ("uint16", "bfloat16"):
        return "BF16", array.view(np.uint16)
    if kind not in _WRITTEN:
        raise FormatError(name, " or ".join(_WRITTEN), kind)
    return _WRITTEN[kind], array


def write(
    path: Path,
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str],
    check: Callable[[str], Any] | None = None,
) -> None:
    """Writes a file whole or not at all: to a temporary in its folder, synced, then renamed.

    Arrays are uint8, int32, int64, float32 or bfloat16 (as uint16 bits), of numpy or torch. Wide
    dtypes are put first, so that nothing has to be copied when it is read. ``check`` is called with
    the temporary's path; what it raises ends the write.
    """
    ready = [(name, *_to_write(name, x)) for name, x in tensors.items()]
    ready.sort(key=lambda entry: (-entry[2].itemsize, entry[0]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, dtype, array in ready:
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = os.fspath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise FileError(target, "a regular file, or none", "something else")
    try:
        temporary, fd = _temporary(os.path.dirname(target) or ".")
        try:
            with os.fdopen(fd, "wb") as out:
                out.write(len(text).to_bytes(8, "little"))
                out.write(text)
                for _, _, array in ready:
                    out.write(memoryview(array.reshape(-1)).cast("B") if array.nbytes else b"")
                out.flush()
                os.fsync(out.fileno())
            if check is not None:
                check(temporary)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except Error:
        raise
    except OSError as why:
        raise FileError(target, "a file that can be written", why.strerror or str(why)) from None


_serial = itertools.count()


def _temporary(folder: str) -> tuple[str, int]:
    """A new file with the permissions that any other would get."""
    while True:
        path = os.path.join(folder, f".tamis.tmp-{os.getpid()}-{next(_serial)}")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
