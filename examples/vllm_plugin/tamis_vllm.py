# SPDX-License-Identifier: MIT
"""Puts tamis behind vLLM's sparse MQA indexer, on any GPU from Ampere on.

vLLM's consumer layers call two flows of its DSA kernels' module, and its metadata builder asks at
engine start whether DeepGEMM and an SM100 GPU are there. ``register`` replaces the flows, and answers
those two questions for that builder and that layer alone; every other check of theirs stays. A vLLM
whose modules lack one of the names is left as it was, with an error that says which.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Dict, List, Tuple

from tamis import vllm as drop_in

KERNELS = "vllm.model_executor.kernels.attention.dsa.sparse_mqa_logits"
LAYER = "vllm.model_executor.layers.sparse_mqa_indexer"
BUILDER = "vllm.v1.attention.backends.mla.sparse_indexer"

#: What is replaced where it is defined, and where it was imported by name.
FLOWS = (
    "candidate_blocks_to_sparse_indices",
    "sparse_topk_remap",
    "sparse_mqa_logits_prefill_chunk",
    "sparse_mqa_logits_paged_decode",
)
IMPORTED = ("sparse_mqa_logits_prefill_chunk", "sparse_mqa_logits_paged_decode")


class _Platform:
    """vLLM's platform, but for the question that tamis makes moot."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def is_device_capability_family(self, capability: int, *args: Any) -> bool:
        return capability == 100 or self._platform.is_device_capability_family(capability, *args)


def register() -> None:
    """The entry point of the ``vllm.general_plugins`` group; a second call does nothing."""
    kernels, layer, builder = (importlib.import_module(name) for name in (KERNELS, LAYER, BUILDER))
    if getattr(kernels, "tamis_registered", False):
        return
    changes: List[Tuple[ModuleType, Dict[str, Any]]] = [
        (kernels, {name: getattr(drop_in, name) for name in FLOWS}),
        (layer, {name: getattr(drop_in, name) for name in IMPORTED}),
    ]
    for module in (layer, builder):
        changes.append(
            (
                module,
                {
                    "has_deep_gemm_sparse_mqa": lambda: True,
                    "current_platform": _Platform(getattr(module, "current_platform", None)),
                },
            )
        )
    missing = [f"{m.__name__}.{n}" for m, names in changes for n in names if not hasattr(m, n)]
    if missing:
        raise ImportError(
            f"tamis_vllm: a vLLM with {', '.join(missing)} is required, found one without"
        )
    for module, names in changes:
        for name, value in names.items():
            setattr(module, name, value)
    kernels.tamis_registered = True
