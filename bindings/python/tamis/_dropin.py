# SPDX-License-Identifier: MIT
"""What the drop-in calls share: checks of their arguments, under the names that their callers know.

torch's own errors name no argument, and on a GPU some come as an assertion that ends the context:
so shapes, dtypes and devices are compared here first. Nothing is read on the host.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from .errors import ArgumentError, Error


def tensor(
    name: str,
    x: Any,
    dtype: torch.dtype,
    shape: Sequence[int | None],
    device: torch.device | None = None,
) -> torch.Tensor:
    """x, which has to be a tensor of this dtype, shape (None: any size) and device."""
    if not isinstance(x, torch.Tensor):
        raise ArgumentError(name, "a torch tensor", type(x).__name__)
    found = tuple(x.shape)
    if (
        x.dtype != dtype
        or len(found) != len(shape)
        or any(a is not None and a != b for a, b in zip(shape, found))
    ):
        sizes = ", ".join("*" if size is None else str(size) for size in shape)
        raise ArgumentError(name, f"{dtype} [{sizes}]", f"{x.dtype} {list(found)}")
    if device is not None and x.device != device:
        raise ArgumentError(name, f"a tensor on {device}", f"one on {x.device}")
    return x


def int32(
    name: str, x: Any, shape: Sequence[int | None], device: torch.device | None = None
) -> torch.Tensor:
    """An int32 tensor."""
    return tensor(name, x, torch.int32, shape, device)


def integer(name: str, x: Any, least: int = 0) -> int:
    """A Python integer of at least ``least``."""
    try:
        value = operator.index(x)
    except TypeError:
        raise ArgumentError(name, "an integer", repr(x)) from None
    if value < least:
        raise ArgumentError(name, f"{least} or more", str(value))
    return value


def sparse_block(x: Any) -> None:
    """Positions of a sparse block."""
    if x not in (8, 16):
        raise ArgumentError("sparse_block_kv", "8 or 16", repr(x))


def blocks_of(name: str, size: Any, block: int, block_name: str = "sparse_block_kv") -> int:
    """How many blocks a candidate or a page of ``size`` positions holds."""
    if not isinstance(size, int) or size <= 0 or size % block:
        raise ArgumentError(name, f"a multiple of {block_name} {block}", repr(size))
    return size // block


def pair(name: str, x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and their scales."""
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise ArgumentError(name, "a pair: codes and scales", type(x).__name__)
    for i, part in enumerate(x):
        if not isinstance(part, torch.Tensor):
            raise ArgumentError(f"{name}[{i}]", "a torch tensor", type(part).__name__)
    return x[0], x[1]


def place(blocks: torch.Tensor, table: torch.Tensor, each: int, out: torch.Tensor) -> None:
    """Where blocks lie in a pool whose pages hold ``each`` of them; -1 stays -1."""
    if table.shape[1] == 0:  # gather has nothing to read
        out.fill_(-1)
        return
    safe = blocks.clamp(min=0)
    page = torch.div(safe, each, rounding_mode="floor")
    found = table.gather(1, page.long()) * each + (safe - page * each)
    torch.where(blocks < 0, blocks, found, out=out)


class Names:
    """Errors of the stages inside say the caller's names: ``Names({"rows.ke": "row_ke"})``."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, Error):
            head, bracket, rest = error.name.partition("[")
            if head in self._names:
                error.name = self._names[head] + bracket + rest
                error.args = (error.name, error.required, error.found)
