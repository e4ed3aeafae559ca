# SPDX-License-Identifier: MIT
"""tamis: which positions of a very long context a model's attention reads, exactly.

The two-level indexer of DeepSeek-V4.1 over libtamis: ``tamis.traces`` reads what an indexer was
given, ``tamis.run`` selects, ``tamis.check`` judges a selection, ``tamis.Indexer`` is what a
serving engine holds, ``tamis.stages`` has every stage as a call of its own.

Arrays are numpy's, torch's on the CPU and on CUDA devices, or anything with ``__dlpack__``; nothing
is copied, and torch is never imported here. Calls release the GIL.
"""

from __future__ import annotations

from . import arrays, errors, mxfp4, reference, safetensors, stages, traces, views
from ._backend import Backend, cuda_built, cuda_devices, tiers
from ._check import Report, check
from ._library import version as _version
from ._run import run
from .errors import Error
from .indexer import Indexer, Plan, Requirement, Step
from .model import Model, Role, visible
from .views import KCache, Query, Rows, Selection

__version__ = _version()

__all__ = [
    "Backend",
    "Error",
    "Indexer",
    "KCache",
    "Model",
    "Plan",
    "Query",
    "Report",
    "Requirement",
    "Role",
    "Rows",
    "Selection",
    "Step",
    "arrays",
    "check",
    "cuda_built",
    "cuda_devices",
    "errors",
    "mxfp4",
    "reference",
    "run",
    "safetensors",
    "stages",
    "tiers",
    "traces",
    "views",
    "visible",
]
