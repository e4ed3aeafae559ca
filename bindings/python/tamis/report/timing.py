# SPDX-License-Identifier: MIT
"""Time of a row, sparse and dense, measured here and now on rows of the trace itself.

One thread. Both ways run in turns, so that a change of the machine's clock meets both, and are
held against each other before they are timed: two ways that select differently are not compared.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .engine import Engine, LayerView, TraceView
from .ranks import publish, score_keys

TURNS = 7
MAX_LAYERS = 8  # consumers that are timed
SCORES = 1 << 21  # rows x positions of a turn: some 0.1 s dense on one core
MAX_ROWS = 16


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


def rows_to_time(trace: TraceView, layer: LayerView) -> tuple[int, int]:
    """Neighbouring rows that end with the row of the longest context."""
    visible = np.asarray(layer.ke, np.int64) - layer.ks
    last = int(trace.rows - 1 - np.argmax(visible[::-1]))
    count = max(1, min(MAX_ROWS, SCORES // max(int(visible[last]), 1)))
    first = last
    while first > 0 and last - first + 1 < count and trace.request[first - 1] == trace.request[last]:
        first -= 1
    return first, last + 1


def _turns(ways: dict[str, Callable[[], object]], rows: int) -> dict[str, dict[str, float]]:
    """Nanoseconds a row of each way: the median of turns taken one way after another."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append((time.perf_counter() - start) * 1e9 / rows)
    return {
        name: {"ns": statistics.median(v), "least": min(v), "most": max(v)}
        for name, v in seconds.items()
    }


def _blocks_for(
    trace: TraceView, engine: Engine, source: LayerView | None, layer: LayerView, rows: range
) -> NDArray[np.int32]:
    size = int(trace.model["candidate_block_size"])
    width = int(trace.model["candidate_topk_blocks"])
    table = np.full((len(rows), width), -1, np.int32)
    for i, row in enumerate(rows):
        visible = max(0, int(layer.ke[row] - layer.ks[row]))
        if source is not None:
            keys = score_keys(engine.scores(source, row, row + 1)[0, :visible])
            ids = publish(keys, size, width)[0]
        elif trace.blocks is not None:
            table[i] = trace.blocks[row]
            continue
        else:
            ids = np.arange(-(-visible // size))
        table[i, : len(ids)] = ids
    return table


def measure(trace: TraceView, engine: Engine) -> dict[str, Any] | None:
    """Times of the candidate source (or a full layer) and of the consumers; None without rows."""
    present = [layer for layer in trace.layers if layer.present]
    if not trace.rows or not present:
        return None
    topk = int(trace.model["index_topk"])
    size = int(trace.model.get("candidate_block_size") or 0)
    width = int(trace.model.get("candidate_topk_blocks") or 0)
    first, last = rows_to_time(trace, present[-1])
    rows = range(first, last)
    source = next((layer for layer in present if layer.role == "source"), None)
    consumers = [layer for layer in present if layer.role == "consumer"]
    entries = []
    for layer in [source] if source else [x for x in present if x.role == "full"][:1]:
        way = {"dense": lambda: engine.source(layer, first, last, topk, size, width)}
        way["dense"]()
        entries.append({"layer": layer.layer, "role": layer.role, **_turns(way, len(rows))})
    if consumers:
        blocks = _blocks_for(trace, engine, source, consumers[0], rows)
    for layer in consumers[:MAX_LAYERS]:
        ways: dict[str, Callable[[], NDArray[np.int32]]] = {
            "sparse": lambda: engine.consume(layer, first, last, blocks, size, topk),
            "dense": lambda: engine.dense(layer, first, last, blocks, size, topk),
        }
        if not np.array_equal(ways["sparse"](), ways["dense"]()):
            raise RuntimeError(f"layer {layer.layer}: sparse and dense selections differ")
        entries.append({"layer": layer.layer, "role": layer.role, **_turns(ways, len(rows))})
    sparse = sum(e["sparse"]["ns"] for e in entries if "sparse" in e)
    dense = sum(e["dense"]["ns"] for e in entries if "sparse" in e)
    return {
        "processor": processor(),
        "tier": engine.tier,
        "threads": 1,
        "turns": TURNS,
        "rows": len(rows),
        "positions": int((present[-1].ke[rows] - present[-1].ks[rows]).max(initial=0)),
        "pool": width * size,
        "consumers": len(consumers),
        "layers": entries,
        "ratio": dense / sparse if sparse else None,
    }
