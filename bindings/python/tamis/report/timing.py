# SPDX-License-Identifier: MIT
"""Time of a row, sparse and dense, measured here and now on rows of the trace itself.

CPU time of one thread, so that a machine shared with others distorts it less. Both ways run in
turns, so that a change of the machine's clock meets both, and are held against each other before
they are timed: two ways that select differently are not compared.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..traces import Trace, TraceLayer
from .engine import Engine
from .ranks import publish, score_keys

TURNS = 7
MAX_LAYERS = 8  # consumers that are timed
MAX_ROWS = 16
SECONDS = 10.0  # for all layers, dense turns alone; wide exponents can take far longer a row


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"


def rows_to_time(trace: Trace, engine: Engine, layer: TraceLayer) -> tuple[int, int]:
    """Neighbouring rows that end with the row of the longest context, as many as time allows."""
    visible = layer.visible
    last = int(trace.rows - 1 - np.argmax(visible[::-1]))
    start = time.thread_time()
    engine.scores(layer, last, last + 1)
    row = max(time.thread_time() - start, 1e-9)
    turns = (TURNS + 1) * min(len(trace.present), MAX_LAYERS + 1)
    count = int(max(1, min(MAX_ROWS, SECONDS / (row * turns))))
    first = last
    request = trace.request
    while first > 0 and last - first + 1 < count and request[first - 1] == request[last]:
        first -= 1
    return first, last + 1


def _turns(ways: dict[str, Any], rows: int) -> dict[str, dict[str, float]]:
    """Nanoseconds a row of each prepared call: turns taken one way after another."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, way in ways.items():
            start = time.thread_time()
            way.run()
            taken[name].append((time.thread_time() - start) * 1e9 / rows)
    out = {}
    for name, values in taken.items():
        low, median, high = statistics.quantiles(values, n=4)
        out[name] = {"ns": median, "low": low, "high": high}
    return out


def _blocks_for(trace: Trace, engine: Engine, layer: TraceLayer, rows: range) -> NDArray[np.int32]:
    """What the consumers read: published by the source here, or the trace's own."""
    if trace.source is None:
        return np.ascontiguousarray(trace.blocks[rows.start : rows.stop], np.int32)
    size, width = trace.model.candidate_block_size, trace.model.candidate_topk_blocks
    table = np.full((len(rows), width), -1, np.int32)
    for i, row in enumerate(rows):
        visible = max(0, int(layer.visible[row]))
        keys = score_keys(engine.scores(trace.source, row, row + 1)[0, :visible])
        ids = publish(keys, size, width)[0]
        table[i, : len(ids)] = ids
    return table


def _levels(trace: Trace, engine: Engine, rows: range) -> list[dict[str, Any]]:
    """One entry a timed layer: the first that scores everything, then consumers."""
    model, first, last = trace.model, rows.start, rows.stop
    topk, size, width = model.index_topk, model.candidate_block_size, model.candidate_topk_blocks
    consumers = [layer for layer in trace.present if layer.role.role == "consumer"]
    scoring = trace.source or next((x for x in trace.present if x.role.role == "full"), None)
    entries = []
    if scoring:
        way = engine.prepare_source(scoring, first, last, topk, size, width if trace.source else 0)
        way.run()
        entries.append(_entry(scoring, _turns({"dense": way}, len(rows))))
    blocks = _blocks_for(trace, engine, consumers[0], rows) if consumers else None
    for layer in consumers[:MAX_LAYERS]:
        ways = {
            "sparse": engine.prepare_consume(layer, first, last, topk, size, blocks),
            "dense": engine.prepare_dense(layer, first, last, topk, size, blocks),
        }
        sparse, dense = (way.run().positions for way in ways.values())
        if not np.array_equal(sparse, dense):
            raise RuntimeError(f"layer {layer.layer}: sparse and dense selections differ")
        entries.append(_entry(layer, _turns(ways, len(rows))))
    return entries


def _entry(layer: TraceLayer, taken: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {"layer": layer.layer, "role": layer.role.role, **taken}


def measure(trace: Trace, engine: Engine) -> dict[str, Any] | None:
    """Times of the layer that scores everything and of the consumers; None without rows."""
    if not trace.rows:
        return None
    last = trace.present[-1]
    rows = range(*rows_to_time(trace, engine, last))
    entries = _levels(trace, engine, rows)
    both = [entry for entry in entries if "sparse" in entry]
    sparse, dense = (sum(entry[way]["ns"] for entry in both) for way in ("sparse", "dense"))
    return {
        "processor": processor(),
        "tier": engine.tier,
        "load": os.getloadavg()[0],
        "processors": os.cpu_count() or 1,
        "turns": TURNS,
        "rows": len(rows),
        "positions": int(last.visible[rows].max()),
        "pool": trace.model.candidate_topk_blocks * trace.model.candidate_block_size,
        "layers": entries,
        "ratio": dense / sparse if sparse else None,
    }
