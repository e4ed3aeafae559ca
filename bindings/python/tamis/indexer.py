# SPDX-License-Identifier: MIT
"""The object that a serving engine holds: an indexer, a plan for its limits, a step a forward pass.

docs/engines.md is the walk through it. On the CPU::

    indexer = tamis.Indexer(config, {"indexer_sparse_logits": True}, page_size=128)
    plan = indexer.plan(max_requests=256, max_batched_tokens=8192, max_context=1 << 20)
    step = plan.step(context, query_start, page_tables={1: table})
    chosen = plan.layer(20, k, query).run(step)    # the candidate source, then its consumers

With ``device="cuda"`` the plan lies on the GPU: a step is made there, from lengths that the host
need not know, and the whole of it can be captured in a torch CUDA graph. Selections are the CPU's.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import Any

from . import _abi
from ._library import check, error_address, lib
from ._options import Options, Requirement, Settings, limits_struct
from ._plan import Fault, LayerCall, Plan, PlanCounters, Step
from .arrays import CPU, Device, Stream
from .errors import ArgumentError, RequirementError
from .model import Config, Role, role_of

__all__ = [
    "Fault",
    "Indexer",
    "LayerCall",
    "Plan",
    "PlanCounters",
    "Requirement",
    "Step",
]


class Indexer:
    """A model, its settings and the shape of its index K, checked once. May be shared by threads.

    Args:
        model: a config.json's values: a dict, JSON text, a path, or a Model.
        settings: the attention config's keys (``indexer_sparse_logits``, ..): a dict, JSON text or
            a path. Unknown keys are errors.
        page_size: slots of an index-K page.
        layout: "mxfp4_page", "mxfp4_split" or "mxfp4_row".
        page_align, page_stride: bytes; a stride of 0 is the smallest that fits.
        tier: CPU kernels: "auto", "ref", "avx2".
        limits: of plans to come, so that they are checked here: see ``plan``.
        workspace_limit: bytes that a plan of these limits may take; 0: no limit.

    Raises RequirementError, whose ``failures`` are all requirements that are not met.
    """

    def __init__(
        self,
        model: Config,
        settings: Settings = None,
        *,
        page_size: int = 128,
        layout: str = "mxfp4_page",
        page_align: int = 16,
        page_stride: int = 0,
        tier: str = "auto",
        context_parallel: int = 1,
        decode_parallel: int = 1,
        limits: Mapping[str, int] | None = None,
        workspace_limit: int = 0,
    ) -> None:
        self._handle: int | None = None
        options = Options(
            model,
            settings,
            layout,
            page_size,
            page_align,
            page_stride,
            tier,
            context_parallel,
            decode_parallel,
            limits,
            workspace_limit,
        )
        handle = ctypes.c_void_p()
        try:
            check(
                lib.tamis_indexer_create(
                    ctypes.addressof(options.struct), ctypes.addressof(handle), error_address()
                )
            )
        except RequirementError as error:
            error.failures = options.failures()
            raise
        self._handle = handle.value
        self.model = options.model
        self.settings = options.settings
        self.layout = layout
        self.page_size = page_size

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            lib.tamis_indexer_destroy(handle)

    @staticmethod
    def requirements(
        model: Config,
        settings: Settings = None,
        *,
        page_size: int = 128,
        layout: str = "mxfp4_page",
        page_align: int = 16,
        page_stride: int = 0,
        tier: str = "auto",
        context_parallel: int = 1,
        decode_parallel: int = 1,
        limits: Mapping[str, int] | None = None,
        workspace_limit: int = 0,
    ) -> list[Requirement]:
        """The requirements that such an indexer does not meet; none: it can be created."""
        return Options(
            model,
            settings,
            layout,
            page_size,
            page_align,
            page_stride,
            tier,
            context_parallel,
            decode_parallel,
            limits,
            workspace_limit,
        ).failures()

    @property
    def handle(self) -> int:
        """The C object's address."""
        assert self._handle is not None
        return self._handle

    @property
    def tier(self) -> str:
        """The tier of its CPU runs, "auto" resolved."""
        name: bytes = lib.tamis_indexer_tier(self.handle)
        return name.decode()

    @property
    def roles(self) -> list[Role]:
        """The role of every layer."""
        return [self.role(layer) for layer in range(len(self.model.compress_ratios))]

    def role(self, layer: int) -> Role:
        """The role of one layer."""
        address = lib.tamis_indexer_role(self.handle, layer)
        if address is None:
            last = len(self.model.compress_ratios) - 1
            raise ArgumentError("layer", f"0 .. {last}", str(layer))
        return role_of(_abi.LayerRoleStruct.from_address(address))

    def plan(
        self,
        *,
        max_requests: int,
        max_batched_tokens: int,
        max_context: int,
        draft_tokens: int = 0,
        largest_graph: int = 0,
        threads: int = 1,
        device: Any = "cpu",
        stream: Stream = None,
    ) -> Plan:
        """A plan: limits and all memory, taken once.

        Args:
            max_requests, max_batched_tokens: of a step. max_context: tokens of the longest request.
            draft_tokens: that a decoding request verifies. largest_graph: rows of the largest
                captured graph.
            threads: of a plan on the CPU: slices of its calls.
            device: "cpu", or a CUDA device ("cuda", "cuda:1", a torch device): then memory is
                torch's and ``stream`` (None: torch's current one) clears it.
        """
        limits = limits_struct(
            {
                "max_requests": max_requests,
                "max_batched_tokens": max_batched_tokens,
                "max_context": max_context,
                "draft_tokens": draft_tokens,
                "largest_graph": largest_graph,
                "threads": threads,
            }
        )
        return Plan(self, limits, _device(device), stream)


def _device(given: Any) -> Device:
    """A Device of "cpu", "cuda:1" or a torch device."""
    kind, _, index = str(given).partition(":")
    if kind == "cpu":
        return CPU
    if kind == "cuda" and (not index or index.isdigit()):
        if index:
            return Device(kind, int(index))
        torch: Any = sys.modules.get("torch")
        return Device(kind, 0 if torch is None else torch.cuda.current_device())
    raise ArgumentError("device", '"cpu" or a CUDA device', repr(given))
