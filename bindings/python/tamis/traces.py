# SPDX-License-Identifier: MIT
"""Traces of an indexer (``tamis-trace/1``) and results of a selection, in numpy.

docs/trace.md is the format. Everything a file says is checked before it is believed, as the C
reader does: one error, with the tensor's name, what was required and what was found. K and q in
MXFP4 are views into the mapped file; floats are quantised when a layer is first read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Union

import numpy as np

from . import errors, mxfp4, safetensors
from .errors import FormatError
from .model import Config, Model, Role
from .views import KCache, Query, Rows

Path = Union[str, "os.PathLike[str]"]

TRACE_FORMAT = "tamis-trace/1"
RESULT_FORMAT = "tamis-result/1"
_TOKEN_LIMIT = (2**31 - 1) * 2
_ROWS_LIMIT = 2**31 - 1


class TraceLayer:
    """An index source layer of a trace.

    Attributes:
        layer: its number.
        present: whether the trace has its q, w and K; without them nothing below is set.
        role: a Role; ``role.role`` is "full", "source" or "consumer".
        query: codes ``uint8 [R, H, D/2]``, scales ``uint8 [R, H, D/32]``, weights ``[R, H]``
            (float32, or bfloat16 as uint16 bits).
        k: the K owner's cache, ``mxfp4_split``: ``k.codes [N, D/2]``, ``k.scales [N, D/32]``.
        ks, ke: int32 [R]: the rows of K that each row sees, ``ks[r] .. ke[r]-1``. Positions in
            results count from ks[r].
        selected: int32 [R, index_topk] of the file, or None.
    """

    def __init__(self, layer: int, role: Role) -> None:
        self.layer = layer
        self.role = role
        self.present = False
        self.query: Query
        self.k: KCache
        self.ks: Any = None
        self.ke: Any = None
        self.selected: Any = None

    @property
    def rows(self) -> Rows:
        """The rows as stage calls take them."""
        return Rows(ke=self.ke, ks=self.ks)

    @property
    def visible(self) -> Any:
        """int64 [R]: positions that each row sees."""
        return self.ke.astype(np.int64) - self.ks

    @property
    def weights(self) -> Any:
        """float32 [R, H]: the head weights, whatever the file holds."""
        w = self.query.weights
        return mxfp4.bfloat16_to_float32(w) if w.dtype == np.uint16 else w


class Trace:
    """An opened trace.

    Attributes:
        path, about: the file's path; its line on where the tensors are from, or None.
        model, roles: a Model; the role of every layer.
        rows, requests: R; how many requests.
        position: int64 [R]: token positions. request: int32 [R]. context: int64 [requests], tokens.
        layers: every index source layer, ascending, present or not.
        blocks: int32 [R, candidate_topk_blocks] of the file (or, where consumers are there without
            their source and every row fits the pool, every visible block), or None.
    """

    def __init__(self, path: str, model: Model, about: str | None) -> None:
        self.path = path
        self.model = model
        self.roles = model.roles()
        self.about = about
        self.rows = 0
        self.requests = 1
        self.position: Any = None
        self.request: Any = None
        self.context: Any = None
        self.layers: list[TraceLayer] = []
        self.blocks: Any = None

    def layer(self, number: int) -> TraceLayer:
        """The index source layer of this number."""
        for entry in self.layers:
            if entry.layer == number:
                return entry
        raise FormatError("layer", "an index source layer of the trace", str(number))

    @property
    def present(self) -> list[TraceLayer]:
        """The layers that the trace holds."""
        return [entry for entry in self.layers if entry.present]

    @property
    def source(self) -> TraceLayer | None:
        """The candidate source, when the trace holds it."""
        for entry in self.present:
            if entry.role.role == "source":
                return entry
        return None


class Result:
    """Selections: ``selected``, ``counts``, ``scores`` and ``slots`` by layer, and ``blocks``.

    Arrays are those of a result file (docs/trace.md); scores and slots only where asked for.
    """

    def __init__(
        self,
        selected: dict[int, Any],
        blocks: Any = None,
        counts: dict[int, Any] | None = None,
        scores: dict[int, Any] | None = None,
        slots: dict[int, Any] | None = None,
        numerics: str = "exact",
        seconds: dict[int, float] | None = None,
    ) -> None:
        self.selected = selected
        self.blocks = blocks
        self.counts = counts or {}
        self.scores = scores or {}
        self.slots = slots or {}
        self.numerics = numerics
        self.seconds = seconds or {}

    def save(self, path: Path) -> None:
        """Writes a result file, whole or not at all."""
        tensors: dict[str, Any] = {}
        for prefix, arrays in (
            ("selected", self.selected),
            ("count", self.counts),
            ("score", self.scores),
            ("slot", self.slots),
        ):
            for layer, array in arrays.items():
                tensors[f"{prefix}.{layer}"] = array
        if self.blocks is not None:
            tensors["blocks"] = self.blocks
        about = {"format": RESULT_FORMAT, "numerics": self.numerics, "about": "selections of tamis"}
        safetensors.write(path, tensors, about)


# ---- finding tensors --------------------------------------------------------------------------


def _describe(dtypes: tuple[str, ...], shape: tuple[int | None, ...]) -> str:
    sizes = ", ".join("N" if n is None else str(n) for n in shape)
    return f"{' or '.join(dtypes)} [{sizes}]"


def _find(
    file: safetensors.File, name: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...]
) -> Any:
    """The array of that name, of one of these dtypes and this shape; None when there is none."""
    tensor = file.get(name)
    if tensor is None:
        return None
    have = tensor.array.shape
    good = tensor.dtype in dtypes and len(have) == len(shape)
    if not good or any(want is not None and want != n for want, n in zip(shape, have)):
        raise FormatError(name, _describe(dtypes, shape), tensor.describe())
    return tensor.array


def _has(file: safetensors.File, name: str) -> bool:
    return any(name + end in file for end in ("", ".codes", ".scales"))


def _mxfp4(
    file: safetensors.File, name: str, shape: tuple[int | None, ...], why: str
) -> tuple[Any, Any]:
    """Codes and scales of NAME, quantised from floats or as they lie in the file."""
    dim = shape[-1] or 0
    plain = _find(file, name, ("F32", "BF16"), shape)
    codes = _find(file, f"{name}.codes", ("U8",), (*shape[:-1], dim // 2))
    first = shape[0] if codes is None else codes.shape[0]
    scales = _find(file, f"{name}.scales", ("U8",), (first, *shape[1:-1], dim // 32))
    if (codes is None) != (scales is None):
        lacking = f"{name}.scales" if scales is None else f"{name}.codes"
        raise FormatError(lacking, "both .codes and .scales", "missing")
    if plain is not None and codes is not None:
        raise FormatError(name, "floats or .codes and .scales, not both", "both")
    if plain is None and codes is None:
        raise FormatError(name, why, "missing")
    return (codes, scales) if plain is None else _quantize(plain)


def _quantize(x: Any) -> tuple[Any, Any]:
    """In pieces, so that temporaries stay small beside the array."""
    codes = np.empty((*x.shape[:-1], x.shape[-1] // 2), np.uint8)
    scales = np.empty((*x.shape[:-1], x.shape[-1] // 32), np.uint8)
    step = max(1, (1 << 22) // max(1, int(np.prod(x.shape[1:]))))
    for at in range(0, x.shape[0], step):
        codes[at : at + step], scales[at : at + step] = mxfp4.quantize(x[at : at + step])
    return codes, scales


# ---- rows -------------------------------------------------------------------------------------


def _load_rows(trace: Trace, file: safetensors.File) -> None:
    position = _find(file, "position", ("I32", "I64"), (None,))
    if position is None:
        raise FormatError("position", "I32 or I64 [N]", "missing")
    trace.position = position.astype(np.int64)
    trace.rows = rows = int(position.size)
    _refuse_first(
        "position",
        (trace.position < 0) | (trace.position >= _TOKEN_LIMIT),
        trace.position,
        f"a token, 0 .. {_TOKEN_LIMIT - 1}",
    )
    request = _find(file, "request", ("I32",), (rows,))
    context = _find(file, "context", ("I32",), (None,))
    if (request is None) != (context is None):
        lacking = "context" if context is None else "request"
        raise FormatError(lacking, "both request and context, or neither", "missing")
    if request is None:
        trace.request = np.zeros(rows, np.int32)
        trace.context = np.zeros(1, np.int64)
    else:
        trace.request = request
        trace.context = context.astype(np.int64)
        trace.requests = int(context.size)
        _refuse_first("context", trace.context < 0, trace.context, "0 or more tokens")
        before = np.concatenate([[0], request[:-1]]) if rows else request
        _refuse_first(
            "request",
            (request < before) | (request >= trace.requests),
            request,
            f"grouped, ascending, 0 .. {trace.requests - 1}",
        )
        _refuse_first(
            "position",
            trace.position >= trace.context[request],
            trace.position,
            "below its request's context",
        )
    same = np.zeros(rows, np.bool_)
    if rows:
        same[1:] = (trace.request[1:] == trace.request[:-1]) & (np.diff(trace.position) <= 0)
    _refuse_first("position", same, trace.position, "ascending within a request")


def _refuse_first(name: str, wrong: Any, values: Any, required: str) -> None:
    if wrong.any():
        i = int(np.argmax(wrong))
        raise FormatError(f"{name}[{i}]", required, str(int(values[i])))


def _load_intervals(trace: Trace, layer: TraceLayer, given: bool) -> None:
    """Rows of K of the requests lie one after another, context / ratio each."""
    ratio = layer.role.ratio
    held = layer.k.size
    name = f"k.{layer.role.k_owner}"
    if held > _ROWS_LIMIT:
        raise FormatError(name, "at most 2^31-1 rows", f"{held} rows")
    if given:
        owner_ratio = trace.roles[layer.role.k_owner].ratio
        sizes = trace.context // owner_ratio
        if int(sizes.sum()) != held:
            raise FormatError(
                name, f"{int(sizes.sum())} rows, as context and ratio give", f"{held} rows"
            )
    else:
        sizes = np.array([held], np.int64)
    start = np.concatenate([[0], np.cumsum(sizes)])
    visible = (trace.position + 1) // ratio
    room = sizes[trace.request] if trace.rows else visible
    if (visible > room).any():
        r = int(np.argmax(visible > room))
        raise FormatError(
            f"position[{r}]",
            f"at most the {int(room[r])} K rows that {name} holds of request {trace.request[r]}",
            f"token {trace.position[r]}, which sees {visible[r]} in layer {layer.layer}",
        )
    first = start[trace.request] if trace.rows else visible
    layer.ks = first.astype(np.int32)
    layer.ke = (first + visible).astype(np.int32)


# ---- layers -----------------------------------------------------------------------------------


def _load_layer(
    trace: Trace,
    layer: TraceLayer,
    file: safetensors.File,
    caches: dict[int, KCache],
    given: bool,
) -> None:
    model, number = trace.model, layer.layer
    shape = (trace.rows, model.index_n_heads, model.index_head_dim)
    why = f"all of q, w of layer {number}, or none"
    codes, scales = _mxfp4(file, f"q.{number}", shape, why)
    weights = _find(file, f"w.{number}", ("F32", "BF16"), shape[:2])
    if weights is None:
        raise FormatError(f"w.{number}", why, "missing")
    layer.query = Query(codes, scales, weights)
    owner = layer.role.k_owner
    if owner not in caches:
        k = _mxfp4(
            file, f"k.{owner}", (None, model.index_head_dim), f"the K that layer {number} reads"
        )
        caches[owner] = KCache.split(*k)
    layer.k = caches[owner]
    layer.present = True
    _load_intervals(trace, layer, given)
    layer.selected = _find(file, f"selected.{number}", ("I32",), (trace.rows, model.index_topk))


def _load_layers(trace: Trace, file: safetensors.File) -> None:
    caches: dict[int, KCache] = {}
    given = "request" in file
    for number in trace.model.index_source_layer_ids:
        layer = TraceLayer(number, trace.roles[number])
        trace.layers.append(layer)
        if _has(file, f"q.{number}") or f"w.{number}" in file or f"selected.{number}" in file:
            _load_layer(trace, layer, file, caches, given)
    for layer in trace.layers:
        if not layer.present and _has(file, f"k.{layer.layer}") and layer.layer not in caches:
            raise FormatError(
                f"q.{layer.layer}", f"q and w of a layer that reads k.{layer.layer}", "missing"
            )
    if not trace.present:
        raise FormatError("q", "q, w and K of at least one index source layer", "none")
    if not given:
        tokens = int(trace.position[-1]) + 1 if trace.rows else 0
        held = [k.size * trace.roles[owner].ratio for owner, k in caches.items()]
        trace.context = np.array([max([tokens, *held])], np.int64)


def _load_blocks(trace: Trace, file: safetensors.File) -> None:
    model = trace.model
    if not model.two_level:
        if "blocks" in file:
            raise FormatError("blocks", "none, as the model has no candidate source", "blocks")
        return
    width, size = model.candidate_topk_blocks, model.candidate_block_size
    trace.blocks = _find(file, "blocks", ("I32",), (trace.rows, width))
    orphans = [entry for entry in trace.present if entry.role.role == "consumer"]
    if trace.blocks is not None or trace.source is not None or not orphans:
        return
    visible = orphans[0].visible
    if (visible > width * size).any():
        r = int(np.argmax(visible > width * size))
        raise FormatError(
            "blocks",
            f"given, as layer {model.candidate_source_layer_id} is absent and layer "
            f"{orphans[0].layer} consumes its blocks",
            f"missing; row {r} sees {visible[r]} positions, more than the pool's {width * size}",
        )
    ids = np.arange(width, dtype=np.int32)
    trace.blocks = np.where(ids * size < visible[:, None], ids, np.int32(-1)).astype(np.int32)


# ---- opening and writing ----------------------------------------------------------------------


def read(path: Path) -> Trace:
    """Opens, checks and prepares a trace.

    Raises FileError, FormatError or ModelError naming the tensor or key, what was required and
    what was found.
    """
    with errors.in_file(path):
        return _read(path)


def _read(path: Path) -> Trace:
    file = safetensors.read(path)
    form = file.metadata.get("format")
    if form != TRACE_FORMAT:
        raise FormatError("__metadata__.format", TRACE_FORMAT, form or "missing")
    config = file.metadata.get("model")
    if config is None:
        raise FormatError("__metadata__.model", "the model's config.json values", "missing")
    try:
        values = json.loads(config, object_pairs_hook=safetensors.unique)
        if not isinstance(values, dict):
            raise ValueError("another JSON value")
    except (ValueError, RecursionError) as why:
        raise FormatError(
            "__metadata__.model", "a JSON object of the model's values", str(why)
        ) from None
    model = Model.from_config(values, name="__metadata__.model: ", strict=True)
    trace = Trace(file.path, model, file.metadata.get("about"))
    _load_rows(trace, file)
    _load_layers(trace, file)
    _load_blocks(trace, file)
    return trace


def read_result(path: Path, trace: Trace) -> Result:
    """Opens a result against its trace: dtypes and shapes are checked, values are not."""
    with errors.in_file(path):
        return _read_result(path, trace)


def _read_result(path: Path, trace: Trace) -> Result:
    file = safetensors.read(path)
    form = file.metadata.get("format")
    if form not in (None, RESULT_FORMAT, TRACE_FORMAT):
        raise FormatError(
            "__metadata__.format", f"{RESULT_FORMAT} or {TRACE_FORMAT}, where given", str(form)
        )
    found: dict[str, dict[int, Any]] = {"selected": {}, "count": {}, "score": {}, "slot": {}}
    wide = (trace.rows, trace.model.index_topk)
    kinds = (
        ("selected", "I32", wide),
        ("count", "I32", wide[:1]),
        ("score", "F32", wide),
        ("slot", "I64", wide),
    )
    for layer in trace.layers:
        for prefix, dtype, shape in kinds:
            array = _find(file, f"{prefix}.{layer.layer}", (dtype,), shape)
            if array is not None:
                found[prefix][layer.layer] = array
    blocks = None
    if trace.model.two_level:
        blocks = _find(file, "blocks", ("I32",), (trace.rows, trace.model.candidate_topk_blocks))
    if not found["selected"] and blocks is None:
        raise FormatError(
            "selected", "selected.LAYER of an index source of the trace, or blocks", "none"
        )
    return Result(
        found["selected"],
        blocks,
        found["count"],
        found["score"],
        found["slot"],
        file.metadata.get("numerics", "exact"),
    )


def write(path: Path, model: Config, tensors: Mapping[str, Any], about: str | None = None) -> None:
    """Writes a trace: ``tensors`` by the names of docs/trace.md (``q.20``, ``k.20.codes``, ..),
    numpy or torch. The file is read back as a trace before it replaces anything at ``path``."""
    config: Any = model
    if isinstance(model, Model):
        config = model.to_config()
    elif not isinstance(model, Mapping):
        config = Model.from_config(model).to_config()
    metadata = {"format": TRACE_FORMAT, "model": json.dumps(dict(config))}
    if about is not None:
        metadata["about"] = about
    safetensors.write(path, tensors, metadata, check=read)
