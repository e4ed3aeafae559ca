# SPDX-License-Identifier: MIT
"""Every stage of the indexer as a function, on numpy arrays, torch tensors and DLPack objects.

docs/kernels.md is the contract of each stage, docs/numerics.md its arithmetic to the bit. All are
called alike::

    selection = tamis.stages.consume(k, rows, query, blocks, topk=512)
    call = tamis.stages.consume.prepare(k, rows, query, blocks, topk=512)   # checked once
    call.update({"blocks": others}).run()                                  # a ctypes call

Common arguments:

* ``out``: arrays to write, strided as they like; without it outputs are made, numpy's or torch's
  as the inputs are. On a GPU without torch it has to be given.
* ``backend`` and ``threads``: CPU kernels of a tier, and the slices that a call is cut into.
  Results never depend on them.
* ``stream``: of a GPU; None is torch's current one. The call queues its work there and returns.
* ``numerics``: "exact" (default) or "bf16"; "dg_bf16" and "ref_bf16" on the ref tier.

On a GPU lengths, positions and ids are clamped by the kernels instead of refused, and a call can be
captured in a torch CUDA graph: make one eager call before, which loads the kernels.
"""

from __future__ import annotations

from ._calls import Call
from ._stage_parts import WANT, Blocks, Expanded, Logits, SourceOutput, Split
from ._stages_levels import consume, dense, source
from ._stages_prepare import k_gather, k_insert, q_prepare
from ._stages_score import block_max, mqa_logits, sparse_mqa_logits
from ._stages_select import expand, publish, topk

__all__ = [
    "WANT",
    "Blocks",
    "Call",
    "Expanded",
    "Logits",
    "SourceOutput",
    "Split",
    "block_max",
    "consume",
    "dense",
    "expand",
    "k_gather",
    "k_insert",
    "mqa_logits",
    "publish",
    "q_prepare",
    "source",
    "sparse_mqa_logits",
    "topk",
]
