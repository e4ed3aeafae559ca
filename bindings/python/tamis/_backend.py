# SPDX-License-Identifier: MIT
"""Where calls run: CPU kernels with a pool of threads, or CUDA kernels loaded into a context.

Slices of a CPU call run on Python threads inside ctypes calls, which hold no GIL. CUDA kernels are
loaded once a device, into its primary context, which is torch's.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import _abi
from ._library import check, error_address, lib
from .arrays import Device, integer
from .errors import ArgumentError, CudaError


class Backend:
    """CPU kernels of a tier and the threads that slices run on. May be shared by threads.

    Args:
        tier: "ref", "avx2" or "auto", the best that this machine runs.
        threads: slices of a call, the calling thread's among them; None: one for each processor.
    """

    def __init__(self, tier: str = "auto", threads: int | None = 1) -> None:
        if not isinstance(tier, str) or "\0" in tier:
            raise ArgumentError("tier", "the name of a tier", repr(tier))
        handle = ctypes.c_void_p()
        check(lib.tamis_backend_create(tier.encode(), ctypes.addressof(handle), error_address()))
        self.handle = handle.value
        if threads is None:
            threads = len(os.sched_getaffinity(0))
        threads = integer("threads", threads)
        if not 1 <= threads <= 1024:
            raise ArgumentError("threads", "1 .. 1024", str(threads))
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), None
        if handle:
            lib.tamis_backend_destroy(handle)

    @property
    def tier(self) -> str:
        """The tier's name, "auto" resolved."""
        name: bytes = lib.tamis_backend_tier(self.handle)
        return name.decode()

    def slices(self, function: Callable[..., int], *arguments: Any) -> None:
        """Calls function(*arguments, ith, nth, error) for every slice and waits for all of them.

        Raises what a slice found; slices of one call find the same.
        """
        if self.threads == 1:
            check(function(*arguments, 0, 1, error_address()))
            return
        pool, nth = self._threads(), self.threads
        others = [pool.submit(_slice, function, arguments, i, nth) for i in range(1, nth)]
        try:
            check(function(*arguments, 0, nth, error_address()))
        finally:
            for other in others:
                other.result()

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None or self._pid != os.getpid():  # a child of fork has no threads
                self._pool = ThreadPoolExecutor(self.threads - 1, "tamis")
                self._pid = os.getpid()
            return self._pool


def _slice(function: Callable[..., int], arguments: tuple[Any, ...], ith: int, nth: int) -> None:
    check(function(*arguments, ith, nth, error_address()))


_default: dict[int, Backend] = {}
_guard = threading.Lock()


def cpu(backend: Backend | None = None, threads: int = 1) -> Backend:
    """The backend given, or a shared one of the best tier with that many threads."""
    if backend is not None:
        if not isinstance(backend, Backend):
            raise ArgumentError("backend", "a tamis.Backend", repr(backend))
        return backend
    with _guard:
        if threads not in _default:
            _default[threads] = Backend("auto", threads)
        return _default[threads]


# ---- CUDA -------------------------------------------------------------------------------------


class Cuda:
    """The CUDA kernels, loaded into the primary context of a device. Made by ``cuda(device)``."""

    def __init__(self, index: int) -> None:
        self.index = index
        _start_torch(index)
        handle = ctypes.c_void_p()
        before = _current_context()
        check(lib.tamis_cuda_create_on(index, ctypes.addressof(handle), error_address()))
        self.handle = handle.value
        self.context = _current_context()
        if before and before != self.context:
            _set_context(before)

    def run(self, call: Callable[..., int], *arguments: Any) -> None:
        """Makes a call with this thread's context set to the kernels' own."""
        current = _current_context()
        if current == self.context:
            check(call(*arguments, error_address()))
            return
        _set_context(self.context)
        try:
            check(call(*arguments, error_address()))
        finally:
            if current:
                _set_context(current)

    @property
    def result(self) -> str:
        """The name of the driver's last error on these kernels; "" when there was none."""
        code = lib.tamis_cuda_result(self.handle)
        text: bytes = lib.tamis_cuda_result_text(self.handle, code)
        return text.decode() if code else ""


def _start_torch(index: int) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.init()
        with torch.cuda.device(index):
            torch.cuda.current_stream().synchronize()


_driver: ctypes.CDLL | None = None


def _open_driver() -> ctypes.CDLL:
    global _driver
    if _driver is None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise CudaError("driver", "libcuda.so.1", "none") from None
        driver.cuCtxGetCurrent.argtypes = [ctypes.c_void_p]
        driver.cuCtxSetCurrent.argtypes = [ctypes.c_void_p]
        _driver = driver
    return _driver


def _current_context() -> int | None:
    context = ctypes.c_void_p()
    code = _open_driver().cuCtxGetCurrent(ctypes.addressof(context))
    return context.value if code == 0 else None


def _set_context(context: int | None) -> None:
    code = _open_driver().cuCtxSetCurrent(context)
    if code != 0:
        raise CudaError("context", "one that can be made current", f"CUresult {code}")


_cuda: dict[int, Cuda] = {}


def cuda(device: Device) -> Cuda:
    """The kernels on a device: loaded by the first call, which is not to be in a capture."""
    found = _cuda.get(device.ordinal)
    if found is None:
        with _guard:
            found = _cuda.get(device.ordinal)
            if found is None:
                found = _cuda[device.ordinal] = Cuda(device.ordinal)
    return found


class CudaDevice:
    """A GPU of this machine."""

    def __init__(self, entry: _abi.CudaDeviceStruct) -> None:
        self.name = entry.name.decode("utf-8", "replace")
        self.capability = (entry.major, entry.minor)
        self.multiprocessors = entry.multiprocessors
        self.supported = bool(entry.supported)
        self.memory_bytes = entry.memory_bytes

    def __repr__(self) -> str:
        return f"CudaDevice({self.name!r}, capability={self.capability})"


def cuda_devices() -> list[CudaDevice]:
    """The GPUs of this machine; none also without a driver."""
    count = lib.tamis_cuda_devices(None, 0)
    entries = (_abi.CudaDeviceStruct * max(count, 1))()
    count = min(count, lib.tamis_cuda_devices(ctypes.addressof(entries), count))
    return [CudaDevice(entries[i]) for i in range(count)]


def cuda_built() -> int:
    """The CUDA version of the kernels in this build, 1000 * major + 10 * minor; 0: none."""
    return int(lib.tamis_cuda_built())


def tiers() -> dict[str, bool]:
    """CPU tiers of this build, lowest first, and whether this machine runs them."""
    out: dict[str, bool] = {}
    supported = ctypes.c_int32()
    for i in range(16):
        name = lib.tamis_tier_name(i, ctypes.addressof(supported))
        if name is None:
            break
        out[name.decode()] = bool(supported.value)
    return out
