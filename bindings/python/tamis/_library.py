# SPDX-License-Identifier: MIT
"""Loads libtamis and turns its error codes into exceptions.

The wheel carries the library in ``tamis/lib``; ``TAMIS_LIBRARY`` names another one, as the tests
of a build folder do. It is loaded with ``ctypes.CDLL``, which releases the GIL for every call.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from . import _abi, errors


def _path() -> str:
    named = os.environ.get("TAMIS_LIBRARY")
    if named:
        return named
    bundled = Path(__file__).parent / "lib" / "libtamis.so.0"
    if bundled.exists():
        return str(bundled)
    raise ImportError(
        f"libtamis: required {bundled}, which the wheel carries, or a library that TAMIS_LIBRARY "
        "names; found neither"
    )


def _load() -> ctypes.CDLL:
    path = _path()
    library = ctypes.CDLL(path)
    try:
        _abi.bind(library)
    except AttributeError as missing:
        raise ImportError(f"{path}: required a libtamis of this version, found {missing}") from None
    found = library.tamis_abi_version()
    if found != ABI_VERSION:
        raise ImportError(f"{path}: required ABI version {ABI_VERSION}, found {found}")
    return library


ABI_VERSION = 0
lib = _load()


class _Local(threading.local):
    """An error struct for each thread, made once: a call that succeeds leaves it alone."""

    def __init__(self) -> None:
        self.error = _abi.ErrorStruct()
        self.address = ctypes.addressof(self.error)


_local = _Local()


def error_address() -> int:
    """Where this thread's calls leave what went wrong."""
    return _local.address


def check(status: int) -> None:
    """Raises what the last call of this thread left behind unless it succeeded."""
    if status != 0:
        error = _local.error
        if error.status != status:  # the call had nowhere to write, or wrote nothing
            text = lib.tamis_status_text(status).decode()
            raise errors.BY_STATUS.get(status, errors.Error)("call", "success", text)
        raise errors.from_struct(error)


def version() -> str:
    """The library's version."""
    text: bytes = lib.tamis_version()
    return text.decode()
