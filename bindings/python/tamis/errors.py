# SPDX-License-Identifier: MIT
"""Exceptions: what was at fault, what was required, what was found.

The library's error codes and the checks of this package raise the same classes, so that a caller
need not know which of the two saw a fault first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from . import _abi


class Error(Exception):
    """A refused call. Nothing was queued and no output was touched.

    Attributes:
        name: the thing at fault, as the call names it: ``"rows.ke[3]"``.
        required: what was required: ``"0 .. 4096"``.
        found: what was found: ``"-7"``.
        status: the code of ``status.h``, negative.
        file: the file that it was found in, or None.
    """

    file: str | None = None
    status = 0
    summary = "the call was refused"

    def __init__(self, name: str, required: str, found: str) -> None:
        super().__init__(name, required, found)
        self.name = name
        self.required = required
        self.found = found

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file else ""
        return f"{where}{self.name}: required {self.required}, found {self.found} ({self.summary})"


class ArgumentError(Error, ValueError):
    status = -1
    summary = "an argument is missing or out of its range"


class StructSizeError(Error):
    status = -2
    summary = "a struct has an unknown size or non-zero reserved bytes"


class LayoutError(Error, ValueError):
    status = -3
    summary = "the index-K layout does not fit the call or its strides"


class GeometryError(Error, ValueError):
    status = -4
    summary = "the number of heads or the head dimension is not supported"


class LengthError(Error, ValueError):
    status = -5
    summary = "a length, interval or position lies outside what K or the limits hold"


class WorkspaceError(Error, ValueError):
    status = -6
    summary = "the workspace is too small or misaligned"


class ModelError(Error, ValueError):
    status = -7
    summary = "the model's configuration is invalid or not supported"


class TierError(Error, ValueError):
    status = -8
    summary = "the tier is unknown or this machine does not support it"


class OutOfMemoryError(Error, MemoryError):
    status = -9
    summary = "memory could not be allocated"


class NumericsError(Error, ValueError):
    status = -10
    summary = "the numerics class is unknown or this tier does not offer it"


class FileError(Error, OSError):
    status = -11
    summary = "a file could not be opened, read or written"


class FormatError(Error, ValueError):
    status = -12
    summary = "a file is malformed or holds what its format does not allow"


class StampError(Error):
    status = -13
    summary = "the published blocks are missing, stale or of other rows"


class LimitError(Error, ValueError):
    status = -14
    summary = "a step is larger than its plan's limits"


class RequirementError(Error):
    """An indexer cannot be created. ``failures`` holds every requirement that is not met."""

    status = -15
    summary = "a requirement of the indexer is not met"
    failures: Sequence[Any] = ()

    def __str__(self) -> str:
        if len(self.failures) < 2:
            return super().__str__()
        lines = "".join(f"\n  {failure}" for failure in self.failures)
        return f"{len(self.failures)} requirements of the indexer are not met:{lines}"


class CudaError(Error, RuntimeError):
    status = -16
    summary = "the CUDA driver failed a call"


class ShardError(Error, ValueError):
    status = -17
    summary = "the shards of a request's positions are invalid or do not fit together"


class PeerError(Error, RuntimeError):
    status = -18
    summary = "another rank differs or failed"


class TransportError(Error, RuntimeError):
    status = -19
    summary = "the transport between ranks failed a call"


_ALL: tuple[type[Error], ...] = (
    ArgumentError,
    StructSizeError,
    LayoutError,
    GeometryError,
    LengthError,
    WorkspaceError,
    ModelError,
    TierError,
    OutOfMemoryError,
    NumericsError,
    FileError,
    FormatError,
    StampError,
    LimitError,
    RequirementError,
    CudaError,
    ShardError,
    PeerError,
    TransportError,
)
BY_STATUS: dict[int, type[Error]] = {cls.status: cls for cls in _ALL}


@contextlib.contextmanager
def in_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors say which file they were found in; those about the file itself do already."""
    try:
        yield
    except Error as error:
        if error.file is None and error.name != os.fspath(path):
            error.file = os.fspath(path)
        raise


def from_struct(error: _abi.ErrorStruct) -> Error:
    """The exception of what a failed call left behind."""
    cls = BY_STATUS.get(error.status, Error)
    return cls(
        error.argument.decode("utf-8", "replace").replace("args.", "", 1),
        error.required.decode("utf-8", "replace"),
        error.found.decode("utf-8", "replace"),
    )
