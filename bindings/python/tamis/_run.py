# SPDX-License-Identifier: MIT
"""Selects for every row and layer of a trace."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import stages, traces
from ._backend import Backend
from .errors import ArgumentError, FormatError
from .traces import Result, Trace, TraceLayer
from .views import Query, Rows

_TILE = 256  #: rows of a call: bounds its workspace


def run(
    trace: Any,
    *,
    layers: Iterable[int] | None = None,
    numerics: str = "exact",
    scores: bool = False,
    slots: bool = False,
    dense: bool = False,
    tier: str = "auto",
    threads: int | None = None,
) -> Result:
    """Selects positions for the rows of a trace, as ``tamis run`` does.

    Args:
        trace: a Trace, or the path of one.
        layers: only these; a consumer brings the source it reads along. None: all.
        numerics: "exact" or "bf16" (and the judging classes on tier "ref").
        scores, slots: also give the scores and the K rows of what is selected.
        dense: consumers score everything and mask: the same results, for comparison.
        tier, threads: CPU kernels; threads None: one for each processor.
    """
    if not isinstance(trace, Trace):
        trace = traces.read(os.fspath(trace))
    backend = Backend(tier, threads)
    want = ["positions", "counts"] + ["scores"] * scores + ["slots"] * slots
    out = Result({}, blocks=None, numerics=numerics)
    blocks = trace.blocks if trace.source is None else None
    for layer in _chosen(trace, layers):
        start = time.perf_counter()
        parts: list[stages.SourceOutput] = []
        for at in range(0, max(trace.rows, 1), _TILE):
            tile = slice(at, at + _TILE)
            parts.append(_tile(trace, layer, tile, blocks, numerics, dense, want, backend))
        out.seconds[layer.layer] = time.perf_counter() - start
        if layer.role.role == "source":
            blocks = out.blocks = np.concatenate([part.blocks for part in parts])
        for name, by_layer in (
            ("positions", out.selected),
            ("counts", out.counts),
            ("scores", out.scores),
            ("slots", out.slots),
        ):
            if name in want:
                by_layer[layer.layer] = np.concatenate(
                    [getattr(part.selection, name) for part in parts]
                )
    return out


def _chosen(trace: Trace, layers: Iterable[int] | None) -> list[TraceLayer]:
    if layers is None:
        return trace.present
    numbers = set(layers)
    known: dict[int, TraceLayer] = {entry.layer: entry for entry in trace.present}
    for number in sorted(numbers):
        if number not in known:
            raise ArgumentError(
                "layers", "a layer that selects and that the trace holds", str(number)
            )
        if known[number].role.role == "consumer" and trace.source is not None:
            numbers.add(trace.source.layer)
    return [entry for entry in trace.present if entry.layer in numbers]


def _tile(
    trace: Trace,
    layer: TraceLayer,
    tile: slice,
    blocks: Any,
    numerics: str,
    dense: bool,
    want: list[str],
    backend: Backend,
) -> stages.SourceOutput:
    """Rows of a layer; blocks are published for a source and None otherwise."""
    model = trace.model
    rows = Rows(ke=layer.ke[tile], ks=layer.ks[tile])
    query = Query(*(x[tile] for x in layer.query))
    size = model.candidate_block_size or 8
    if layer.role.role != "consumer":
        publishes = model.candidate_topk_blocks if layer.role.role == "source" else 0
        return stages.source(
            layer.k,
            rows,
            query,
            model.index_topk,
            publishes,
            block_size=size,
            numerics=numerics,
            want=want,
            backend=backend,
        )
    if blocks is None:
        raise FormatError("blocks", f"those of layer {model.candidate_source_layer_id}", "missing")
    if dense:
        chosen = stages.dense(
            layer.k,
            rows,
            query,
            model.index_topk,
            blocks=blocks[tile],
            block_size=size,
            numerics=numerics,
            want=want,
            backend=backend,
        )
    else:
        chosen = stages.consume(
            layer.k,
            rows,
            query,
            blocks[tile],
            model.index_topk,
            block_size=size,
            numerics=numerics,
            want=want,
            backend=backend,
        )
    return stages.SourceOutput(chosen, None, None)
